//! Re-encoding of a model file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use shamrock_cmf::{Container, TensorSpec, Writer, hash64};
use shamrock_model::ModelFile;

use crate::convert::encode_tensor;
use crate::error::{Error, Result};
use crate::pipeline::{OnProgress, Report, write_all};
use crate::plan::{Role, family_tensors};
use crate::recipe::Recipe;

/// Writes the model file `input` again as `out`, its tensors encoded by `recipe`.
///
/// A tensor that has the wanted encoding already, or that is not the family's, is taken over byte
/// for byte; so are the tokenizer and the header but for `quant_type` and `provenance`. Every
/// tensor is compared with its stored hash before it is used, so that damage is not signed anew.
///
/// Threads, memory and the appearance of `out` are as in [`convert`](crate::convert()).
///
/// # Errors
/// An input that is no model file or is damaged; a value or shape that an encoding cannot hold; a
/// disk that refuses.
pub fn quantize(input: &Path, out: &Path, recipe: &Recipe, progress: &mut OnProgress<'_>) -> Result<Report> {
    recipe.check()?;
    if let (Ok(a), Ok(b)) = (input.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Error::SameFile { path: input.into() });
    }
    let container = Arc::new(Container::open(input)?);
    let model = ModelFile::from_container(container.clone())?;
    let family = family_tensors(&model.config)?;
    let roles: HashMap<&str, Role> = family.iter().map(|t| (t.name.as_str(), t.kind.role())).collect();

    let tensors: Vec<_> = container.tensors().collect();
    let mut specs = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        let encoding = match roles.get(tensor.name) {
            Some(role) => {
                recipe.check_fit(tensor.name, tensor.shape, *role)?;
                recipe.encoding(*role)
            }
            None => tensor.encoding,
        };
        specs.push(TensorSpec { name: tensor.name.into(), encoding, shape: tensor.shape.to_vec() });
    }
    let writer = Writer::create(out, header(container.header(), recipe), container.vocab(), specs.clone())?;
    let file_bytes = writer.file_len();

    let keeps = |i: usize| specs[i].encoding == tensors[i].encoding;
    let cost = |i: usize| {
        if keeps(i) {
            tensors[i].bytes.len() as u64
        } else {
            8 * (tensors[i].rows() * tensors[i].cols()) as u64
        }
    };
    let make = |i: usize| -> Result<Cow<'_, [u8]>> {
        let tensor = &tensors[i];
        if hash64(tensor.bytes) != tensor.hash {
            return Err(Error::Damaged { path: input.into(), tensor: tensor.name.into() });
        }
        if keeps(i) {
            return Ok(Cow::Borrowed(tensor.bytes));
        }
        let values = tensor.decode()?;
        Ok(Cow::Owned(encode_tensor(input, tensor.name, tensor.shape, specs[i].encoding, &values)?))
    };
    write_all(writer, &cost, &make, progress)?;
    let copied = (0..tensors.len()).filter(|i| keeps(*i)).count();
    Ok(Report { tensors: specs.len(), file_bytes, skipped: 0, copied, warnings: Vec::new() })
}

/// The input's header with the fields that tell how weights are stored brought up to date.
fn header(input: &Value, recipe: &Recipe) -> Value {
    let mut header = input.clone();
    header["quant_type"] = recipe.quant_type().into();
    if !header["provenance"].is_object() {
        header["provenance"] = json!({});
    }
    header["provenance"]["tool"] = "shamrock quantize".into();
    header["provenance"]["weight_quant"] = recipe.label().into();
    header
}
