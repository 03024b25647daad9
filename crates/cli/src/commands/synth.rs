//! `shamrock synth`: a random model of any geometry, to measure speed without a download.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use shamrock_convert::{Geometry, SynthOptions};

use super::convert::{RecipeArgs, tell, with_bar};

/// Arguments of `synth`.
#[derive(Args)]
pub struct SynthArgs {
    /// Model file to write
    out: PathBuf,
    /// Named geometry: clover-35b-a3b, clover-nano or tiny
    #[arg(long, value_name = "NAME", default_value = "clover-35b-a3b")]
    geometry: String,
    /// Same geometry and seed, same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Layers, in place of the geometry's
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Routed experts per layer, in place of the geometry's
    #[arg(long, value_name = "N")]
    num_experts: Option<usize>,
    /// Vocabulary, in place of the geometry's
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// A plain causal trunk without a block-diffusion record
    #[arg(long)]
    trunk: bool,
    #[command(flatten)]
    recipe: RecipeArgs,
}

/// Runs the command.
pub fn run(args: SynthArgs) -> Result<()> {
    let mut geometry = Geometry::preset(&args.geometry)?;
    geometry.layers = args.layers.unwrap_or(geometry.layers);
    geometry.moe.experts = args.num_experts.unwrap_or(geometry.moe.experts);
    geometry.vocab_size = args.vocab.unwrap_or(geometry.vocab_size);
    if args.trunk {
        geometry.block_size = None;
    }
    let options = SynthOptions { seed: args.seed, recipe: args.recipe.recipe() };
    let report =
        with_bar("writing", |progress| shamrock_convert::synth(&args.out, &geometry, &options, progress))?;
    tell(&args.out, &report)
}
