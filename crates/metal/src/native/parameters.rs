//! The small vectors (norms, taps, gate biases), which the model has decoded, in one buffer.

use shamrock_model::Result;
use shamrock_model::weights::{GdnWeights, MixerWeights, Weights};

use super::device::{At, Buffer, Device};

/// Where each vector begins, in bytes.
type Offset = usize;

/// One layer's.
pub(crate) struct LayerParameters {
    pub(crate) input_norm: Offset,
    pub(crate) post_norm: Offset,
    pub(crate) mixer: MixerParameters,
}

/// A mixer's.
#[derive(Clone, Copy)]
pub(crate) enum MixerParameters {
    Full { q_norm: Offset, k_norm: Offset },
    Linear(GdnParameters),
}

/// A Gated DeltaNet's. Where there is no block operator, its vectors are other ones: they are not read.
#[derive(Clone, Copy)]
pub(crate) struct GdnParameters {
    pub(crate) conv: Offset,
    pub(crate) conv_right: Offset,
    pub(crate) a_log: Offset,
    pub(crate) dt_bias: Offset,
    pub(crate) norm: Offset,
    pub(crate) logit_scale: Offset,
    pub(crate) history_bias: Offset,
    pub(crate) history_c: Offset,
}

/// All of a model's.
pub(crate) struct Parameters {
    values: Buffer,
    pub(crate) layers: Vec<LayerParameters>,
    pub(crate) norm: Offset,
}

impl Parameters {
    pub(crate) fn new(device: &Device, weights: &Weights) -> Result<Parameters> {
        let mut values: Vec<f32> = Vec::new();
        let mut put = |vector: &[f32]| {
            values.resize(values.len().next_multiple_of(64), 0.0);
            let at = values.len();
            values.extend_from_slice(vector);
            at * size_of::<f32>()
        };
        let layers = weights
            .layers
            .iter()
            .map(|layer| LayerParameters {
                input_norm: put(&layer.input_norm),
                post_norm: put(&layer.post_norm),
                mixer: match &layer.mixer {
                    MixerWeights::Full(a) => {
                        MixerParameters::Full { q_norm: put(&a.q_norm), k_norm: put(&a.k_norm) }
                    }
                    MixerWeights::Linear(g) => MixerParameters::Linear(gdn(g, &mut put)),
                },
            })
            .collect();
        let norm = put(&weights.norm);
        Ok(Parameters { values: device.filled(&values)?, layers, norm })
    }

    pub(crate) fn at(&self, offset: Offset) -> At<'_> {
        self.values.at(offset)
    }
}

fn gdn(g: &GdnWeights, put: &mut impl FnMut(&[f32]) -> Offset) -> GdnParameters {
    let conv = put(&g.conv);
    let mut block = |vector: Option<&Vec<f32>>| vector.map_or(conv, |vector| put(vector));
    let conv_right = block(g.block.as_ref().map(|b| &b.conv_right));
    let logit_scale = block(g.block.as_ref().map(|b| &b.logit_scale));
    let history_bias = block(g.block.as_ref().map(|b| &b.history_bias));
    let history_c = block(g.block.as_ref().map(|b| &b.history_c));
    GdnParameters {
        conv,
        conv_right,
        a_log: put(&g.a_log),
        dt_bias: put(&g.dt_bias),
        norm: put(&g.norm),
        logit_scale,
        history_bias,
        history_c,
    }
}
