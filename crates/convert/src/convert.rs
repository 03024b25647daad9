//! Import of a Hugging Face checkpoint.

use std::borrow::Cow;
use std::path::Path;

use shamrock_cmf::{Encoding, TensorSpec, Writer, encode};

use crate::error::{Error, Result};
use crate::hf::{Checkpoint, Metadata, Origin, Slice, header};
use crate::pipeline::{OnProgress, Report, write_all};
use crate::plan::{FamilyTensor, family_tensors};
use crate::recipe::Recipe;

/// Converts the checkpoint in folder `dir` to the model file `out`.
///
/// The folder holds `config.json`, `model.safetensors` or an index with its shards, and usually
/// `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.
/// Weights are f32, f16 or bf16; experts may be stacked or one by one; names may carry the
/// `language_model` part of a multi-modal wrapper. A checkpoint without a block-diffusion record
/// becomes a model that runs in causal mode.
///
/// Runs on the current `rayon` pool. Memory is bounded by the f32 values and the payload of the
/// largest tensor. The files of the folder must not change meanwhile. `out` appears, complete,
/// when everything has succeeded, and not before.
///
/// # Errors
/// A file of the folder that is missing, damaged or contradicts the configuration; a value or
/// shape that the recipe's encodings cannot hold; a disk that refuses. Names and shapes of all
/// tensors are checked before anything is written.
pub fn convert(dir: &Path, out: &Path, recipe: &Recipe, progress: &mut OnProgress<'_>) -> Result<Report> {
    recipe.check()?;
    let metadata = Metadata::read(dir)?;
    let checkpoint = Checkpoint::open(dir)?;
    let tensors = family_tensors(&metadata.config)?;
    let slices = tensors.iter().map(|t| checkpoint.locate(t)).collect::<Result<Vec<Slice>>>()?;
    let specs = specs(&tensors, recipe)?;

    let origin = Origin { tool: "shamrock convert", source: &metadata.source };
    let header = header(&metadata.config, &metadata.text, recipe, &origin);
    let writer = Writer::create(out, header, &metadata.tokenizer, specs.clone())?;
    let file_bytes = writer.file_len();

    // The f32 values and a payload that is at most as large.
    let cost = |i: usize| 8 * specs[i].shape.iter().product::<usize>() as u64;
    let make = |i: usize| -> Result<Cow<'_, [u8]>> {
        let (slice, spec) = (&slices[i], &specs[i]);
        let values = checkpoint.values(slice);
        Ok(Cow::Owned(encode_tensor(
            checkpoint.path(slice),
            &spec.name,
            &spec.shape,
            spec.encoding,
            &values,
        )?))
    };
    write_all(writer, &cost, &make, progress)?;

    let unused = checkpoint.unused(tensors.iter());
    let mut warnings = metadata.warnings;
    warnings.extend(unused_warning(&unused));
    Ok(Report { tensors: specs.len(), file_bytes, skipped: unused.len(), copied: 0, warnings })
}

/// The file's tensors under a recipe, checked to be possible.
pub(crate) fn specs(tensors: &[FamilyTensor], recipe: &Recipe) -> Result<Vec<TensorSpec>> {
    let spec = |tensor: &FamilyTensor| {
        let role = tensor.kind.role();
        recipe.check_fit(&tensor.name, &tensor.shape, role)?;
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        Ok(TensorSpec { name, encoding: recipe.encoding(role), shape })
    };
    tensors.iter().map(spec).collect()
}

/// Encodes values; an error names the file they came from and the tensor.
pub(crate) fn encode_tensor(
    file: &Path,
    name: &str,
    shape: &[usize],
    encoding: Encoding,
    values: &[f32],
) -> Result<Vec<u8>> {
    let (rows, cols) = match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    };
    encode(encoding, rows, cols, values).map_err(|error| Error::Encode {
        path: file.into(),
        tensor: name.into(),
        error: Box::new(error),
    })
}

/// Vision towers and MTP heads are left out silently; an unused tensor of the text model may mean
/// that the configuration belongs to another checkpoint.
fn unused_warning(unused: &[&str]) -> Option<String> {
    let of_layers =
        |name: &&&str| name.starts_with("model.layers.") || name.starts_with("model.language_model.");
    let first = unused.iter().find(of_layers)?;
    let count = unused.iter().filter(of_layers).count();
    Some(format!("{count} tensors of the text model are not called for by config.json, the first is {first}"))
}
