//! Ctrl-C and the system's request to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What shells report of a program that Ctrl-C has ended.
pub const EXIT_CODE: u8 = 130;

/// A flag that Ctrl-C raises.
pub fn on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, raised.clone()).context("catching Ctrl-C")?;
    Ok(raised)
}

/// A flag that Ctrl-C or a request to end raises, so that work can be cleared away. A second signal
/// ends the program at once.
pub fn on_request_to_end() -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, EXIT_CODE.into(), raised.clone())
            .and_then(|_| flag::register(signal, raised.clone()))
            .context("catching Ctrl-C")?;
    }
    Ok(raised)
}

/// Whether the flag is raised.
pub fn is_raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
