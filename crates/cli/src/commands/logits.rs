//! `shamrock logits`: the numbers behind a prompt and a block, for comparison with other programs.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use safetensors::tensor::{Dtype, TensorView};
use shamrock_model::{Score, Scored, Step};

use crate::engine::{self, EngineArgs};
use crate::locate;
use crate::output::println;

/// Arguments of `logits`.
#[derive(Args)]
pub struct LogitsArgs {
    /// Model file, or a pulled model by its name: OWNER/REPO or OWNER/REPO:FILE
    model: PathBuf,
    /// Token ids to commit, comma-separated
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    prompt_ids: Vec<u32>,
    /// Token ids of a block to preview after them, comma-separated
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    block_ids: Vec<u32>,
    /// File to write: f32 tensors `causal` [n, vocab] and, with a block, `preview` [b, vocab]
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
pub fn run(args: LogitsArgs) -> Result<()> {
    // The file is renamed into place, which would replace a device as well.
    ensure!(
        !args.out.exists() || args.out.is_file(),
        "{}: is there and is no file; give the name of a file",
        args.out.display()
    );
    let mut executor = args.engine.executor(engine::open(&locate::find(&args.model)?)?)?;
    let seq = executor.open()?;
    let mut causal = Vec::new();
    for chunk in args.prompt_ids.chunks(executor.limits().max_rows) {
        let rows: Vec<usize> = (0..chunk.len()).collect();
        let pass = executor.run(&[Step::commit(seq, chunk, Score::Logits { rows: &rows })])?;
        append(&mut causal, &pass.outputs[0].commit);
    }
    let mut parts = vec![("causal", causal)];
    if !args.block_ids.is_empty() {
        let rows: Vec<usize> = (0..args.block_ids.len()).collect();
        let pass = executor.run(&[Step::preview(seq, &args.block_ids, Score::Logits { rows: &rows })])?;
        let mut preview = Vec::new();
        append(&mut preview, &pass.outputs[0].preview);
        parts.push(("preview", preview));
    }
    let row_bytes = 4 * executor.config().vocab_size;
    let views = parts
        .iter()
        .map(|(name, data)| {
            let shape = vec![data.len() / row_bytes, row_bytes / 4];
            Ok((*name, TensorView::new(Dtype::F32, shape, data)?))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, &args.out)
        .map_err(|error| anyhow!("writing {}: {error}", args.out.display()))?;
    println(&args.out.display().to_string())
}

/// Appends logits in the byte form of safetensors.
fn append(out: &mut Vec<u8>, scored: &Scored) {
    if let Scored::Logits { values, .. } = scored {
        out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
}
