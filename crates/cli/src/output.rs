//! What commands share in talking to a person: progress bars, byte counts, and a standard output
//! that may go away.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A byte-counting progress bar on standard error; silent when that is not a terminal.
pub fn byte_bar(total: u64, what: &str) -> ProgressBar {
    bar(total, what, "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A counting progress bar on standard error; silent when that is not a terminal.
pub fn count_bar(total: u64, what: &str) -> ProgressBar {
    bar(total, what, "{msg} [{wide_bar}] {pos}/{len} {eta}")
}

fn bar(total: u64, what: &str, template: &str) -> ProgressBar {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_owned());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// `19.1 GB`, `512 MB`, `3.2 KB`: decimal units, as file managers show them.
pub fn bytes(n: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("KB", 1e3)];
    for (unit, size) in units {
        if n as f64 >= size {
            return format!("{:.1} {unit}", n as f64 / size);
        }
    }
    format!("{n} B")
}

/// Writes to standard output and flushes; a reader that has gone away is an [`io::Error`] of kind
/// `BrokenPipe`, which `main` treats as a quiet end.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).context("writing to standard output")
}

/// [`print()`] with a line end.
pub fn println(text: &str) -> Result<()> {
    print(format!("{text}\n"))
}

/// Writes to standard error what nobody may be there to read: unlike `eprint!`, a standard error
/// that is closed or full is no reason to stop.
pub fn note(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// [`note`] with a line end.
pub fn noteln(text: &str) {
    note(&format!("{text}\n"));
}

#[cfg(test)]
mod tests {
    #[test]
    fn byte_counts_read_well() {
        assert_eq!(super::bytes(999), "999 B");
        assert_eq!(super::bytes(1_500), "1.5 KB");
        assert_eq!(super::bytes(19_000_000_000), "19.0 GB");
    }
}
