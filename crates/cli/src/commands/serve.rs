//! `shamrock serve`: the API and the page over one model.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use shamrock_generate::{Mode, Options, Rule};
use shamrock_model::{Config, Origin};
use shamrock_server::{App, Engine, EngineOptions, SavedStates, ServerOptions};
use shamrock_text::{Message, Prompter, RenderOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::engine::{self, EngineArgs};
use crate::interrupt::EXIT_CODE;
use crate::locate::ModelArgs;
use crate::output::noteln;
use crate::values::{at_least_one, host_name, model_name, one_of, origin};

/// Arguments of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on; anything but a loopback address can be reached from outside
    #[arg(long, value_name = "ADDRESS", env = "SHAMROCK_HOST", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", env = "SHAMROCK_PORT", default_value_t = 8080)]
    port: u16,
    /// Name of the model in the API [default: the file's name without its ending]
    #[arg(long, value_name = "NAME", value_parser = model_name)]
    name: Option<String>,
    /// File with the key that requests must bring
    #[arg(long, value_name = "FILE", env = "SHAMROCK_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Origin whose pages may use the API, such as `https://example.org`, or `*`; may be repeated
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors_origin: Vec<String>,
    /// Name by which requests may ask for this server, besides localhost and addresses; may be repeated
    /// [default: on a loopback address no other, else any]
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    allow_host: Vec<String>,
    /// Answers in the making at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one::<usize>)]
    parallel: usize,
    /// Requests that may wait beyond those; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Most prompt rows of a pass while answers are streaming [default: what suits the backend]
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    chunk_rows: Option<usize>,
    /// Memory for states of earlier prompts, in MiB; 0 keeps none
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    prefix_cache: u64,
    /// Keep a state after every so many tokens of a prompt, too; 0 does not
    #[arg(long, value_name = "N", default_value_t = 512)]
    prefix_every: usize,
    /// Do not commit, while there is nothing else to do, what the next turn of a conversation will begin with
    #[arg(long)]
    no_prepare: bool,
    /// Folder in which those states are kept while the server is down
    #[arg(long, value_name = "FOLDER")]
    session_dir: Option<PathBuf>,
    /// Most seconds from a request to the end of its answer
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = at_least_one::<u64>)]
    timeout: u64,
    /// Seconds that answers get to finish after SIGTERM or Ctrl-C; a second one ends at once
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain: u64,
    /// Seconds after which a pass counts as stuck for /health
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = at_least_one::<u64>)]
    stall: u64,
    /// Most KiB of a request's body
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = at_least_one::<usize>)]
    max_body: usize,
    #[command(flatten)]
    defaults: Defaults,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What an answer is made with where a request does not say.
#[derive(Args)]
#[command(next_help_heading = "Defaults of requests")]
struct Defaults {
    /// How an answer is made [default: denoise; causal for a plain trunk]
    #[arg(long, value_name = "MODE", value_parser = one_of::<Mode>(Mode::ALL.map(Mode::as_str)))]
    mode: Option<Mode>,
    /// Most tokens of an answer [default: until it ends]
    #[arg(short = 'n', long, value_name = "N", value_parser = at_least_one::<usize>)]
    max_tokens: Option<usize>,
    /// Confidence above which a row of a block is fixed, for requests in mode denoise [default: the model's]
    #[arg(long, value_name = "P")]
    threshold: Option<f32>,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,
}

impl Defaults {
    fn options(&self, config: &Config) -> Result<Options> {
        let mut options = Options::new(self.mode.unwrap_or(Mode::default_for(config)));
        options.max_tokens = self.max_tokens.unwrap_or(options.max_tokens);
        options.rule = self.threshold.map(Rule::threshold);
        options.sampling.temperature = self.temp;
        options.check(config)?;
        Ok(options)
    }
}

/// Runs the command.
pub fn run(args: ServeArgs) -> Result<()> {
    let path = args.model.path()?;
    let model = engine::open(&path)?;
    let prompter = engine::text_side(&path, &model)?;
    let name = args.name.unwrap_or_else(|| name_of(&path));
    let mut options = ServerOptions::new(name, args.defaults.options(&model.config)?);
    options.api_key = args.api_key_file.as_deref().map(read_key).transpose()?;
    options.cors = args.cors_origin;
    options.hosts = (args.host.is_loopback() || !args.allow_host.is_empty()).then_some(args.allow_host);
    options.max_body = args.max_body.saturating_mul(1024);
    options.timeout = Duration::from_secs(args.timeout);
    let fingerprint = model.fingerprint();
    let executor = args.engine.executor(model)?;
    check_context(&prompter, executor.limits().max_context)?;
    let saved = args.session_dir.map(|dir| saved_states(&dir, args.engine.origin(fingerprint, &*executor)));
    let engine_options = EngineOptions {
        parallel: args.parallel,
        queue: args.queue,
        chunk_rows: args.chunk_rows,
        prefix_bytes: args.prefix_cache.saturating_mul(1 << 20),
        prefix_every: args.prefix_every,
        prepare: !args.no_prepare,
        stall_after: Duration::from_secs(args.stall),
        saved: saved.transpose()?,
    };
    let open = options.api_key.is_none() && !args.host.is_loopback();
    let engine = Engine::start(executor, engine_options).context("starting the engine")?;
    let app = Arc::new(App::new(engine, prompter, options));

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        if open {
            noteln("warning: everybody who can reach this address can use the model; see --api-key-file");
        }
        noteln(&format!("{} on http://{}, API at /v1", path.display(), listener.local_addr()?));
        let shutdown = async move {
            wait(&mut terminate, &mut interrupt).await;
            noteln("shutting down: answers in the making are finished; once more ends at once");
            tokio::spawn(async move {
                wait(&mut terminate, &mut interrupt).await;
                std::process::exit(EXIT_CODE.into());
            });
        };
        shamrock_server::serve(listener, app, shutdown, Duration::from_secs(args.drain)).await?;
        Ok(())
    })
}

/// Refuses a context in which no chat could be answered, or, without a template for chats, no text.
fn check_context(prompter: &Prompter, limit: usize) -> Result<()> {
    let shortest = match prompter.chat(&[Message::new("user", "")], &RenderOptions::default()) {
        Ok(prompt) => prompt.ids.len(),
        Err(_) => 1,
    };
    ensure!(
        shortest < limit,
        "--ctx {limit}: nothing can be served, since even an empty message takes {shortest} tokens, and its answer \
         one more"
    );
    Ok(())
}

/// Until one of two signals comes.
async fn wait(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// One file a model, so that several servers can share a folder.
fn saved_states(dir: &Path, origin: Origin) -> Result<SavedStates> {
    std::fs::create_dir_all(dir).with_context(|| format!("--session-dir {}", dir.display()))?;
    Ok(SavedStates { path: dir.join(format!("{:016x}.states", origin.model)), origin })
}

fn name_of(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// The key is the file's only line.
fn read_key(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let key = text.trim();
    let printable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(printable, "{}: the key must be one line of printable ASCII without spaces", path.display());
    Ok(key.to_owned())
}
