//! An executor that can be watched and held up, listeners, and requests without a socket.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;
use shamrock_cpu::{CpuExecutor, CpuOptions};
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Error, Event, Options, Outcome, Session};
use shamrock_model::{
    Config, Executor, Limits, ModelFile, Pass, Result, SeqId, SequenceState, SnapshotId, Step,
};
use shamrock_server::{App, Engine, EngineOptions, Listener, Request, ServerOptions};
use shamrock_text::{ChatTemplate, Prompter, Tokenizer};
use tower::ServiceExt;

/// Long enough for any test; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An executor shared with the test. A closed gate holds passes up.
pub(crate) struct Watched<E> {
    inner: Arc<Mutex<E>>,
    gate: Arc<Gate>,
    config: Config,
    limits: Limits,
}

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Passes that may go through; none says all.
    allowed: Option<usize>,
    /// Passes that came to the gate.
    arrived: usize,
    /// Ids committed, in the order of the steps.
    committed: Vec<u32>,
}

impl Gate {
    /// Holds up the passes that come from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap();
        state.allowed = Some(state.arrived);
    }

    /// Lets one more pass through.
    pub(crate) fn step(&self) {
        let mut state = self.state.lock().unwrap();
        state.allowed = state.allowed.map(|passes| passes + 1);
        self.changed.notify_all();
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().allowed = None;
        self.changed.notify_all();
    }

    /// Waits until so many passes have come to the gate.
    pub(crate) fn wait_for(&self, passes: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |s| s.arrived < passes).unwrap();
        assert!(!waited.1.timed_out(), "pass {passes} never came");
    }

    pub(crate) fn arrived(&self) -> usize {
        self.state.lock().unwrap().arrived
    }

    pub(crate) fn committed(&self) -> Vec<u32> {
        self.state.lock().unwrap().committed.clone()
    }

    fn pass(&self, steps: &[Step<'_>]) {
        let mut state = self.state.lock().unwrap();
        state.arrived += 1;
        state.committed.extend(steps.iter().flat_map(|step| step.commit));
        self.changed.notify_all();
        let number = state.arrived;
        let held = |s: &mut GateState| s.allowed.is_some_and(|allowed| number > allowed);
        let _open = self.changed.wait_while(state, held).unwrap();
    }
}

impl<E: Executor> Watched<E> {
    pub(crate) fn new(executor: E) -> (Box<Watched<E>>, Arc<Mutex<E>>, Arc<Gate>) {
        let (config, limits) = (executor.config().clone(), executor.limits());
        let inner = Arc::new(Mutex::new(executor));
        let gate = Arc::new(Gate::default());
        (Box::new(Watched { inner: inner.clone(), gate: gate.clone(), config, limits }), inner, gate)
    }
}

impl<E: Executor> Executor for Watched<E> {
    fn backend(&self) -> &'static str {
        self.inner.lock().unwrap().backend()
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self) -> Result<SeqId> {
        self.inner.lock().unwrap().open()
    }

    fn close(&mut self, seq: SeqId) {
        self.inner.lock().unwrap().close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.inner.lock().unwrap().len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        self.gate.pass(steps);
        self.inner.lock().unwrap().run(steps)
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        self.inner.lock().unwrap().rewind(seq, len)
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        self.inner.lock().unwrap().snapshot(seq)
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        self.inner.lock().unwrap().restore(snapshot, into)
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.inner.lock().unwrap().release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        self.inner.lock().unwrap().export(seq)
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        self.inner.lock().unwrap().import(seq, state)
    }
}

/// The receiving end of an answer.
pub(crate) struct Ear {
    result: Receiver<std::result::Result<Outcome, Error>>,
    gone: Arc<AtomicBool>,
}

struct Mouth {
    result: Sender<std::result::Result<Outcome, Error>>,
    gone: Arc<AtomicBool>,
}

impl Listener for Mouth {
    fn event(&mut self, _: Event<'_>) -> ControlFlow<()> {
        if self.gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn end(self: Box<Self>, result: std::result::Result<Outcome, Error>) {
        let _ = self.result.send(result);
    }
}

impl Ear {
    pub(crate) fn hang_up(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    pub(crate) fn wait(&self) -> std::result::Result<Outcome, Error> {
        self.result.recv_timeout(PATIENCE).expect("the answer ends")
    }

    /// Whether the answer was dropped without an end.
    pub(crate) fn was_dropped(&self) -> bool {
        use std::sync::mpsc::RecvTimeoutError;
        matches!(self.result.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected))
    }
}

pub(crate) fn request(prompt: &[u32], options: &Options) -> (Request, Ear) {
    let (sender, result) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    let listener = Box::new(Mouth { result: sender, gone: gone.clone() });
    let request = Request { prompt: prompt.to_vec(), options: options.clone(), listener };
    (request, Ear { result, gone })
}

pub(crate) fn submit(engine: &Engine, prompt: &[u32], options: &Options) -> Ear {
    let (request, ear) = request(prompt, options);
    engine.submit(vec![request]).expect("there is room");
    ear
}

/// The answer of a session that has never seen anything else.
pub(crate) fn cold(executor: &mut dyn Executor, prompt: &[u32], options: &Options) -> Vec<u32> {
    let mut session = Session::new();
    let outcome = session.generate(executor, prompt, options, &mut |_| ControlFlow::Continue(()));
    session.close(executor);
    outcome.expect("a cold answer").tokens
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} never held");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) type Script = Arc<Mutex<ScriptedExecutor>>;

/// An engine over a script.
pub(crate) fn scripted(script: ScriptedExecutor, options: EngineOptions) -> (Engine, Script, Arc<Gate>) {
    let (executor, script, gate) = Watched::new(script);
    (Engine::start(executor, options).unwrap(), script, gate)
}

pub(crate) fn nano() -> ModelFile {
    ModelFile::open(shamrock_testkit::root().join("models/clover-nano.cmf")).unwrap()
}

pub(crate) fn nano_executor() -> CpuExecutor {
    CpuExecutor::new(nano(), CpuOptions::default()).unwrap()
}

pub(crate) fn nano_prompter() -> Prompter {
    let model = nano();
    let tokenizer = Tokenizer::from_bytes(model.tokenizer_json()).unwrap();
    let template = model.chat_template.as_deref().map(|source| ChatTemplate::new(source, []).unwrap());
    Prompter::new(tokenizer, template)
}

/// The API over clover-nano.
pub(crate) struct Api {
    pub(crate) router: Router,
    pub(crate) app: Arc<App>,
    pub(crate) gate: Arc<Gate>,
}

pub(crate) fn api() -> Api {
    api_with(EngineOptions::default(), |_| {})
}

pub(crate) fn api_with(engine: EngineOptions, change: impl FnOnce(&mut ServerOptions)) -> Api {
    api_over(nano_executor(), engine, change)
}

pub(crate) fn api_over(
    executor: impl Executor + 'static,
    engine: EngineOptions,
    change: impl FnOnce(&mut ServerOptions),
) -> Api {
    let mut options = ServerOptions::new("clover-nano", Options::for_model(executor.config()));
    change(&mut options);
    let (executor, _, gate) = Watched::new(executor);
    let engine = Engine::start(executor, engine).unwrap();
    let app = Arc::new(App::new(engine, nano_prompter(), options));
    Api { router: app.clone().router(), app, gate }
}

/// A reply read to its end.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The data of server-sent events, `[DONE]` excluded.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")))
            .collect()
    }
}

impl Api {
    pub(crate) async fn send(&self, request: axum::http::Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Reply { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(axum::http::Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(post(path, body.to_string())).await
    }

    /// A chat completion that must succeed.
    pub(crate) async fn chat(&self, body: Value) -> Value {
        let reply = self.post("/v1/chat/completions", body).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        reply.json()
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        metric(self.app.engine(), name)
    }
}

pub(crate) fn metric(engine: &Engine, name: &str) -> f64 {
    let text = engine.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

pub(crate) fn post(path: &str, body: impl Into<Body>) -> axum::http::Request<Body> {
    axum::http::Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

/// An object with more fields.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
