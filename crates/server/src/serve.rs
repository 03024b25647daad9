//! Running the server until it is told to stop.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::api::App;
use crate::engine::Engine;

/// Time for replies to reach their readers once the engine has stopped.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often metrics are tidied up.
const UPKEEP: Duration = Duration::from_secs(5);
/// Time for kept states to get to the disk.
const SAVING: Duration = Duration::from_secs(120);

/// Serves until `shutdown` is ready, then takes no more requests, lets those that are there finish
/// for at most `drain`, and ends.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> io::Result<()> {
    let engine = app.engine().clone();
    let (draining, drained) = oneshot::channel();
    let graceful = {
        let engine = engine.clone();
        async move {
            shutdown.await;
            engine.drain();
            // The other end waits below for as long as the server runs.
            let _ = draining.send(());
        }
    };
    let server = axum::serve(listener, app.router()).with_graceful_shutdown(graceful);
    let overdue = async {
        if drained.await.is_ok() {
            tokio::time::sleep(drain).await;
        } else {
            std::future::pending::<()>().await;
        }
        tracing::warn!("answers still in the making after {} s are dropped", drain.as_secs());
        engine.stop();
        tokio::time::sleep(LAST_WORDS).await;
    };
    let result = tokio::select! {
        result = server.into_future() => result,
        () = overdue => Ok(()),
        () = tidy_up(&engine) => Ok(()),
    };
    engine.stop();
    let saved = async {
        while !engine.is_saved() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(SAVING, saved).await.is_err() {
        tracing::warn!("states of earlier prompts could not be saved in {} s", SAVING.as_secs());
    }
    result
}

/// Keeps the metrics small, for ever.
async fn tidy_up(engine: &Engine) {
    let mut interval = tokio::time::interval(UPKEEP);
    loop {
        interval.tick().await;
        engine.upkeep();
    }
}
