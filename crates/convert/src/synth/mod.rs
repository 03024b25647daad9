//! Random models of any geometry, made directly in their encodings.
//!
//! Such a model says nothing sensible, but it costs what a trained one costs: the same bytes, the
//! same shapes, finite activations of ordinary size, routing that spreads over the experts with
//! some preference, and a tokenizer whose every id prints something.

mod geometry;
mod init;
mod payload;
mod random;
mod tokenizer;

use std::borrow::Cow;
use std::path::Path;

use shamrock_cmf::Writer;

pub use geometry::Geometry;

use crate::convert::specs;
use crate::error::Result;
use crate::hf::{Origin, Text, header};
use crate::pipeline::{OnProgress, Report, write_all};
use crate::plan::family_tensors;
use crate::recipe::Recipe;

/// Options of [`synth`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynthOptions {
    /// Same geometry, recipe and seed, same file: on any machine and any number of threads.
    pub seed: u64,
    /// Encodings.
    pub recipe: Recipe,
}

/// Writes a random model of `geometry` to `out`.
///
/// Threads and the appearance of `out` are as in [`convert`](crate::convert()).
///
/// # Errors
/// A geometry that is impossible or does not fit the recipe's encodings; a disk that refuses.
pub fn synth(
    out: &Path,
    geometry: &Geometry,
    options: &SynthOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Report> {
    options.recipe.check()?;
    let config = geometry.config()?;
    let tensors = family_tensors(&config)?;
    let specs = specs(&tensors, &options.recipe)?;
    let text = Text { chat_template: Some(tokenizer::CHAT_TEMPLATE.into()), bos_id: None };
    let origin = Origin { tool: "shamrock synth", source: &geometry.name };
    let header = header(&config, &text, &options.recipe, &origin);
    let vocab = tokenizer::tokenizer_json(config.vocab_size);
    let writer = Writer::create(out, header, &vocab, specs.clone())?;
    let file_bytes = writer.file_len();

    let sizes: Vec<u64> = (0..specs.len()).map(|i| writer.payload_len(i)).collect();
    let make = |i: usize| -> Result<Cow<'_, [u8]>> {
        let init = init::of(&tensors[i], config.tie_embeddings);
        let stream = random::Stream::new(options.seed, &specs[i].name);
        Ok(Cow::Owned(payload::random(&specs[i], init, stream, sizes[i] as usize)?))
    };
    write_all(writer, &|i| sizes[i], &make, progress)?;
    Ok(Report { tensors: specs.len(), file_bytes, ..Report::default() })
}
