//! Which models the kernels can take.

use std::collections::HashSet;

use shamrock_cmf::Encoding;
use shamrock_model::config::LayerKind;
use shamrock_model::weights::{LayerWeights, Matrix, MixerWeights, Weights};
use shamrock_model::{Error, ModelFile, Result};

use super::device::failure;
use super::kernel::KEY_DIMS;

/// Widest attention head: a threadgroup keeps four queries.
const MAX_HEAD_DIM: usize = 256;

/// The matrices that every pass through a layer reads: all but those of the routed experts.
pub(crate) fn dense_matrices(layer: &LayerWeights) -> Vec<Matrix> {
    let mixer = match &layer.mixer {
        MixerWeights::Full(a) => vec![a.q, a.k, a.v, a.o],
        MixerWeights::Linear(g) => vec![g.qkv, g.z, g.a, g.b, g.out],
    };
    let moe = &layer.moe;
    mixer.into_iter().chain([moe.router, moe.shared_gate]).chain(moe.shared.matrices()).collect()
}

/// Every matrix that kernels read.
pub(crate) fn matrices(weights: &Weights) -> impl Iterator<Item = Matrix> {
    let routed =
        |layer: &LayerWeights| layer.moe.experts.iter().flat_map(|e| e.matrices()).collect::<Vec<_>>();
    let layers = weights.layers.iter().flat_map(move |layer| [dense_matrices(layer), routed(layer)].concat());
    layers.chain([weights.head])
}

/// Checks a model's shape and returns the encodings that its matrices have.
///
/// # Errors
/// [`Error::Device`] that names the tensor, or the first layer concerned and the field of the configuration, and the
/// limit.
pub(crate) fn check(model: &ModelFile) -> Result<Vec<Encoding>> {
    let refuse = |what: String, limit: &str| -> Error {
        failure(format!("{what} is beyond these kernels, which take {limit}; use --backend cpu"))
    };
    let (a, g) = (&model.config.attention, &model.config.gdn);
    // A field that no layer reads may still choose kernels.
    let first = |kind: LayerKind| {
        let layer = model.config.layers.iter().position(|&of| of == kind);
        layer.map_or_else(String::new, |layer| format!("model.layers.{layer}: "))
    };
    if a.head_dim > MAX_HEAD_DIM {
        return Err(refuse(format!("{}head_dim {}", first(LayerKind::Full), a.head_dim), "up to 256"));
    }
    if !KEY_DIMS.contains(&g.key_dim) {
        let what = format!("{}linear_key_head_dim {}", first(LayerKind::Linear), g.key_dim);
        return Err(refuse(what, "32, 64, 128 or 256"));
    }
    let weights = &model.weights;
    let mut encodings = HashSet::new();
    for matrix in matrices(weights) {
        let tensor = weights.tensor(matrix);
        if !matrix.cols.is_multiple_of(32) {
            let what = format!("{} with {} columns", tensor.name, matrix.cols);
            return Err(refuse(what, "multiples of 32"));
        }
        encodings.insert(tensor.encoding);
    }
    Ok(encodings.into_iter().collect())
}
