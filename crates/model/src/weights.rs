//! A model's tensors, bound by name with shape and encoding checks.
//!
//! Matrices stay where they are, in the container's mapping; a [`Matrix`] is only a checked handle.
//! The few small vectors (norms, convolution taps, gate biases) are decoded once.

use std::sync::Arc;

use shamrock_cmf::{Container, Encoding, Tensor, TensorId};

use crate::config::{Config, LayerKind};
use crate::error::{Error, Result};

/// A bound matrix `[rows, cols]` that maps `x [cols]` to `x Wᵀ [rows]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Handle into [`Weights::tensor`].
    pub id: TensorId,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
}

/// A SwiGLU feed-forward: `down( silu(gate x) ⊙ (up x) )`.
#[derive(Clone, Copy, Debug)]
pub struct Ffn {
    /// `[width, hidden]`.
    pub gate: Matrix,
    /// `[width, hidden]`.
    pub up: Matrix,
    /// `[hidden, width]`.
    pub down: Matrix,
}

impl Ffn {
    /// Its matrices.
    pub fn matrices(&self) -> [Matrix; 3] {
        [self.gate, self.up, self.down]
    }
}

/// Gated full attention.
#[derive(Clone, Debug)]
pub struct AttentionWeights {
    /// `[2 · heads · head_dim, hidden]`: per head the query rows, then the gate rows.
    pub q: Matrix,
    /// `[kv_heads · head_dim, hidden]`.
    pub k: Matrix,
    /// `[kv_heads · head_dim, hidden]`.
    pub v: Matrix,
    /// `[hidden, heads · head_dim]`.
    pub o: Matrix,
    /// `[head_dim]`, a (1 + w) norm.
    pub q_norm: Vec<f32>,
    /// `[head_dim]`, a (1 + w) norm.
    pub k_norm: Vec<f32>,
}

/// Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct GdnWeights {
    /// `[channels, hidden]`: rows of q, k, v.
    pub qkv: Matrix,
    /// `[value_heads · value_dim, hidden]`, the output gate.
    pub z: Matrix,
    /// `[value_heads, hidden]`, the decay.
    pub a: Matrix,
    /// `[value_heads, hidden]`, the write strength.
    pub b: Matrix,
    /// `[hidden, value_heads · value_dim]`.
    pub out: Matrix,
    /// `[channels, conv_kernel]`, tap `conv_kernel - 1` being the row itself.
    pub conv: Vec<f32>,
    /// `[value_heads]`.
    pub a_log: Vec<f32>,
    /// `[value_heads]`.
    pub dt_bias: Vec<f32>,
    /// `[value_dim]`, a plain norm weight shared by all heads.
    pub norm: Vec<f32>,
    /// What a preview needs beside these; `None` in a plain trunk.
    pub block: Option<GdnBlockWeights>,
}

/// The block operator's own weights.
#[derive(Clone, Debug)]
pub struct GdnBlockWeights {
    /// `[channels, conv_kernel - 1]`, taps on the rows after the current one.
    pub conv_right: Vec<f32>,
    /// `[value_heads]`.
    pub logit_scale: Vec<f32>,
    /// `[value_heads]`.
    pub history_bias: Vec<f32>,
    /// `[value_heads]`.
    pub history_c: Vec<f32>,
}

/// How a layer mixes rows.
#[derive(Clone, Debug)]
pub enum MixerWeights {
    /// Full attention.
    Full(AttentionWeights),
    /// Gated DeltaNet.
    Linear(GdnWeights),
}

/// Mixture of experts.
#[derive(Clone, Debug)]
pub struct MoeWeights {
    /// `[experts, hidden]`.
    pub router: Matrix,
    /// One per expert.
    pub experts: Vec<Ffn>,
    /// The shared expert.
    pub shared: Ffn,
    /// `[1, hidden]`.
    pub shared_gate: Matrix,
}

/// One layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// `[hidden]`, a (1 + w) norm before the mixer.
    pub input_norm: Vec<f32>,
    /// The mixer.
    pub mixer: MixerWeights,
    /// `[hidden]`, a (1 + w) norm before the experts.
    pub post_norm: Vec<f32>,
    /// The experts.
    pub moe: MoeWeights,
}

/// All weights of a model, over one mapped container.
#[derive(Clone, Debug)]
pub struct Weights {
    container: Arc<Container>,
    /// `[vocab, hidden]`.
    pub embed: Matrix,
    /// `[hidden]`, a (1 + w) norm before the head.
    pub norm: Vec<f32>,
    /// `[vocab, hidden]`; the embedding itself when tied.
    pub head: Matrix,
    /// One per layer.
    pub layers: Vec<LayerWeights>,
}

impl Weights {
    /// Binds every tensor that `config` calls for. Reads only the small vectors.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], [`Error::TensorShape`] or [`Error::TensorEncoding`], naming the
    /// file and the tensor.
    pub fn bind(container: Arc<Container>, config: &Config) -> Result<Weights> {
        let binder = Binder { container: &container, config };
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let embed = binder.matrix("model.embed_tokens.weight", vocab, hidden)?;
        let head =
            if config.tie_embeddings { embed } else { binder.matrix("lm_head.weight", vocab, hidden)? };
        let norm = binder.vector("model.norm.weight", &[hidden])?;
        let layers = (0..config.layers.len()).map(|i| binder.layer(i)).collect::<Result<_>>()?;
        Ok(Weights { embed, norm, head, layers, container })
    }

    /// The container the weights lie in.
    pub fn container(&self) -> &Arc<Container> {
        &self.container
    }

    /// The stored bytes and encoding of a bound matrix.
    pub fn tensor(&self, matrix: Matrix) -> Tensor<'_> {
        self.container.tensor(matrix.id)
    }
}

/// Looks tensors up and checks them.
struct Binder<'a> {
    container: &'a Container,
    config: &'a Config,
}

impl Binder<'_> {
    fn file(&self) -> String {
        self.container.path().display().to_string()
    }

    fn find(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>> {
        let tensor = self.container.get(name).ok_or_else(|| Error::MissingTensor {
            file: self.file(),
            tensor: name.into(),
            expected: expected.to_vec(),
        })?;
        if tensor.shape != expected {
            return Err(Error::TensorShape {
                file: self.file(),
                tensor: name.into(),
                found: tensor.shape.to_vec(),
                expected: expected.to_vec(),
            });
        }
        Ok(tensor)
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        Ok(Matrix { id: self.find(name, &[rows, cols])?.id, rows, cols })
    }

    /// A small tensor, decoded to f32.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.find(name, shape)?;
        self.decode(&tensor)
    }

    /// A small tensor of which only the number of values is fixed.
    fn vector_of_len(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        match self.container.get(name) {
            Some(tensor) if tensor.shape.iter().product::<usize>() == len => self.decode(&tensor),
            _ => self.vector(name, &[len]),
        }
    }

    fn decode(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>> {
        if !matches!(tensor.encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16) {
            return Err(Error::TensorEncoding {
                file: self.file(),
                tensor: tensor.name.into(),
                found: tensor.encoding,
                problem: "vectors and convolution taps must be f32, f16 or bf16",
            });
        }
        Ok(tensor.decode()?)
    }

    fn layer(&self, i: usize) -> Result<LayerWeights> {
        let p = format!("model.layers.{i}");
        let hidden = self.config.hidden_size;
        Ok(LayerWeights {
            input_norm: self.vector(&format!("{p}.input_layernorm.weight"), &[hidden])?,
            mixer: match self.config.layers[i] {
                LayerKind::Full => MixerWeights::Full(self.attention(&format!("{p}.self_attn"))?),
                LayerKind::Linear => MixerWeights::Linear(self.gdn(&format!("{p}.linear_attn"))?),
            },
            post_norm: self.vector(&format!("{p}.post_attention_layernorm.weight"), &[hidden])?,
            moe: self.moe(&format!("{p}.mlp"))?,
        })
    }

    fn attention(&self, p: &str) -> Result<AttentionWeights> {
        let (hidden, a) = (self.config.hidden_size, &self.config.attention);
        let matrix = |name: &str, rows, cols| self.matrix(&format!("{p}.{name}.weight"), rows, cols);
        Ok(AttentionWeights {
            q: matrix("q_proj", 2 * a.q_width(), hidden)?,
            k: matrix("k_proj", a.kv_width(), hidden)?,
            v: matrix("v_proj", a.kv_width(), hidden)?,
            o: matrix("o_proj", hidden, a.q_width())?,
            q_norm: self.vector(&format!("{p}.q_norm.weight"), &[a.head_dim])?,
            k_norm: self.vector(&format!("{p}.k_norm.weight"), &[a.head_dim])?,
        })
    }

    fn gdn(&self, p: &str) -> Result<GdnWeights> {
        let (hidden, g) = (self.config.hidden_size, &self.config.gdn);
        let matrix = |name: &str, rows, cols| self.matrix(&format!("{p}.{name}.weight"), rows, cols);
        let heads = |name: &str| self.vector_of_len(&format!("{p}.{name}"), g.value_heads);
        let block = match self.config.block {
            None => None,
            Some(_) => Some(GdnBlockWeights {
                conv_right: self
                    .vector_of_len(&format!("{p}.conv_right_weight"), g.channels() * g.ring_rows())?,
                logit_scale: heads("bd_softmax_logit_scale")?,
                history_bias: heads("bd_softmax_history_bias")?,
                history_c: heads("bd_softmax_history_c")?,
            }),
        };
        Ok(GdnWeights {
            qkv: matrix("in_proj_qkv", g.channels(), hidden)?,
            z: matrix("in_proj_z", g.value_width(), hidden)?,
            a: matrix("in_proj_a", g.value_heads, hidden)?,
            b: matrix("in_proj_b", g.value_heads, hidden)?,
            out: matrix("out_proj", hidden, g.value_width())?,
            conv: self.vector_of_len(&format!("{p}.conv1d.weight"), g.channels() * g.conv_kernel)?,
            a_log: heads("A_log")?,
            dt_bias: heads("dt_bias")?,
            norm: self.vector_of_len(&format!("{p}.norm.weight"), g.value_dim)?,
            block,
        })
    }

    fn moe(&self, p: &str) -> Result<MoeWeights> {
        let (hidden, m) = (self.config.hidden_size, &self.config.moe);
        let ffn = |p: String, width: usize| -> Result<Ffn> {
            Ok(Ffn {
                gate: self.matrix(&format!("{p}.gate_proj.weight"), width, hidden)?,
                up: self.matrix(&format!("{p}.up_proj.weight"), width, hidden)?,
                down: self.matrix(&format!("{p}.down_proj.weight"), hidden, width)?,
            })
        };
        Ok(MoeWeights {
            router: self.matrix(&format!("{p}.gate.weight"), m.experts, hidden)?,
            experts: (0..m.experts)
                .map(|e| ffn(format!("{p}.experts.{e}"), m.expert_width))
                .collect::<Result<_>>()?,
            shared: ffn(format!("{p}.shared_expert"), m.shared_width)?,
            shared_gate: self.matrix(&format!("{p}.shared_expert_gate.weight"), 1, hidden)?,
        })
    }
}
