//! `shamrock convert`: a model file from a Hugging Face checkpoint.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use shamrock_cmf::Encoding;
use shamrock_convert::{OnProgress, Recipe, Report};

use crate::engine;
use crate::interrupt;
use crate::output::{byte_bar, bytes, noteln, println};

/// Encodings of the large matrices.
#[derive(Args, Clone, Copy, Debug)]
pub struct RecipeArgs {
    /// Encoding of routed and shared experts: q4tp, q8_2f or f16
    #[arg(long, value_name = "ENCODING", default_value_t = Encoding::Q4tp)]
    experts: Encoding,
    /// Encoding of other projections, embedding and head: q8_2f, q8_row or f16
    #[arg(long, value_name = "ENCODING", default_value_t = Encoding::Q8TwoField)]
    dense: Encoding,
}

impl RecipeArgs {
    /// The recipe they name.
    pub fn recipe(self) -> Recipe {
        Recipe { experts: self.experts, dense: self.dense }
    }
}

/// Arguments of `convert`.
#[derive(Args)]
pub struct ConvertArgs {
    /// Folder with config.json, safetensors and tokenizer.json
    dir: PathBuf,
    /// Model file to write
    out: PathBuf,
    #[command(flatten)]
    recipe: RecipeArgs,
}

/// Runs the command.
pub fn run(args: ConvertArgs) -> Result<()> {
    let report = with_bar("converting", |progress| {
        shamrock_convert::convert(&args.dir, &args.out, &args.recipe.recipe(), progress)
    })?;
    tell(&args.out, &report)?;
    warn_of_text(&args.out)
}

/// Tokenizer and template are carried along as they are; says now what `run` would say later.
fn warn_of_text(out: &Path) -> Result<()> {
    let model = engine::open(out)?;
    if !model.tokenizer_json().is_empty()
        && let Err(error) = engine::text_side(out, &model)
    {
        noteln(&format!("warning: commands on text will refuse this file: {error:#}"));
    }
    Ok(())
}

/// Runs a conversion behind a progress bar. Ctrl-C or a request to end stops it between two tensors,
/// and nothing of its file stays.
pub fn with_bar(
    what: &str,
    work: impl FnOnce(&mut OnProgress<'_>) -> shamrock_convert::Result<Report>,
) -> Result<Report> {
    let interrupt = interrupt::on_request_to_end()?;
    let bar = byte_bar(0, what);
    let report = work(&mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.done_bytes);
        if interrupt::is_raised(&interrupt) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    Ok(report?)
}

/// Says what was made; warnings go to standard error.
pub fn tell(out: &Path, report: &Report) -> Result<()> {
    for warning in &report.warnings {
        noteln(&format!("warning: {warning}"));
    }
    let mut line = format!("{}: {} tensors, {}", out.display(), report.tensors, bytes(report.file_bytes));
    if report.copied > 0 {
        line += &format!(", {} copied as they were", report.copied);
    }
    if report.skipped > 0 {
        line += &format!(", {} of the source not needed", report.skipped);
    }
    println(&line)
}
