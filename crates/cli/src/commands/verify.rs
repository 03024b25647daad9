//! `shamrock verify`: every hash of a model file, and that it binds.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use shamrock_cmf::Container;
use shamrock_model::ModelFile;

use crate::locate;
use crate::output::{byte_bar, bytes, noteln, println};

/// Arguments of `verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// Model file, or a pulled model by its name: OWNER/REPO or OWNER/REPO:FILE
    model: PathBuf,
}

/// Runs the command.
pub fn run(args: VerifyArgs) -> Result<()> {
    let path = locate::find(&args.model)?;
    let container = std::sync::Arc::new(Container::open(&path)?);
    let bar = byte_bar(container.file_len(), "verifying");
    let report = container.verify(&mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    for problem in &report.problems {
        println(&format!("{}: {problem}", path.display()))?;
    }
    if !report.is_clean() {
        let count = report.problems.len();
        bail!("{}: {count} hashes do not match; fetch or convert the file again", path.display());
    }
    if !report.unhashed.is_empty() {
        let names = report.unhashed.join(", ");
        noteln(&format!("warning: {}: no hash for {names}", path.display()));
    }
    let tensors = container.tensors().len();
    ModelFile::from_container(container.clone())?;
    println(&format!(
        "{}: {tensors} tensors, {}, all hashes match",
        path.display(),
        bytes(container.file_len())
    ))
}
