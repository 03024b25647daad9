//! `shamrock quantize`: a model file in other encodings.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::convert::{RecipeArgs, tell, with_bar};

/// Arguments of `quantize`.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Model file to read
    input: PathBuf,
    /// Model file to write
    out: PathBuf,
    #[command(flatten)]
    recipe: RecipeArgs,
}

/// Runs the command.
pub fn run(args: QuantizeArgs) -> Result<()> {
    let report = with_bar("quantizing", |progress| {
        shamrock_convert::quantize(&args.input, &args.out, &args.recipe.recipe(), progress)
    })?;
    tell(&args.out, &report)
}
