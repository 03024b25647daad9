//! Running the server until it is told to stop.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::api::App;

/// Time for replies to reach their readers once the engine has stopped.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    };
    engine.stop();
    result
}
