//! Geometry, block-diffusion record and generation defaults of a model.
//!
//! A [`Config`] comes from a Hugging Face folder ([`Config::from_hf`]) or from the header of a CMF
//! container ([`Config::from_header`]); both end in [`Config::validate`], so that a `Config` in
//! hand never describes an impossible model.

mod header;
mod hf;
mod json;
mod trunk;

use crate::error::{Error, Result};

/// How a layer mixes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet: a constant-size state.
    Linear,
    /// Gated full attention: a state of one KV row per position.
    Full,
}

/// Gated full attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dims of a head that rotate; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
}

impl AttentionConfig {
    /// Width of the concatenated query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the concatenated key (or value) heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GdnConfig {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal depthwise convolution, the row itself included.
    pub conv_kernel: usize,
}

impl GdnConfig {
    /// Width of the concatenated keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of the concatenated values.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k and v side by side.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Raw rows kept before the current one: `conv_kernel - 1`.
    pub fn ring_rows(&self) -> usize {
        self.conv_kernel - 1
    }

    /// Values in one layer's associative memory: `value_heads * key_dim * value_dim`.
    pub fn memory_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts a row uses.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub expert_width: usize,
    /// Inner width of the shared expert.
    pub shared_width: usize,
    /// Renormalise the chosen experts' probabilities to sum one.
    pub norm_topk: bool,
}

/// What makes a trunk a block-diffusion model.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    /// Rows of a block, 1..=256.
    pub block_size: usize,
    /// Id of the mask token.
    pub mask_id: u32,
    /// A row is fixed when its confidence is strictly above this, 0..=1.
    pub threshold: f32,
    /// Cumulative routing mass that a preview's coreset keeps; `None` when coresets are off.
    pub coreset_top_p: Option<f32>,
}

/// Generation defaults that shape logits but not the forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Controls {
    /// Subtracted once from every id already in the response.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the response.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of ids in the response; 1 is neutral.
    pub repetition_penalty: f32,
    /// Ramp added to every stop id.
    pub length_ramp: Ramp,
    /// Ramp added to the think-end id while thinking is open.
    pub think_end_ramp: Ramp,
    /// Id that closes thinking.
    pub think_end_id: Option<u32>,
    /// Ids that end an answer; sorted, unique.
    pub stop_ids: Vec<u32>,
}

/// A bias that grows linearly with the response position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Value at full height; 0 switches the ramp off.
    pub strength: f32,
    /// Position at which it leaves zero.
    pub start: u32,
    /// Positions from zero to full height, at least 1.
    pub window: u32,
}

impl Ramp {
    /// A ramp of no effect.
    pub const OFF: Ramp = Ramp { strength: 0.0, start: 0, window: 1 };

    /// Bias at a 1-based response position.
    pub fn at(&self, position: i32) -> f32 {
        let rise = (f64::from(position) - f64::from(self.start)) / f64::from(self.window.max(1));
        (rise.clamp(0.0, 1.0) * f64::from(self.strength)) as f32
    }
}

impl Default for Controls {
    fn default() -> Self {
        Controls {
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            length_ramp: Ramp::OFF,
            think_end_ramp: Ramp::OFF,
            think_end_id: None,
            stop_ids: Vec::new(),
        }
    }
}

/// Everything about a model but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Kind of each layer, in order.
    pub layers: Vec<LayerKind>,
    /// ε of the RMS norms.
    pub norm_eps: f32,
    /// The head is the embedding.
    pub tie_embeddings: bool,
    /// Positions the model was made for.
    pub max_context: usize,
    /// Full-attention geometry.
    pub attention: AttentionConfig,
    /// Gated DeltaNet geometry.
    pub gdn: GdnConfig,
    /// Mixture-of-experts geometry.
    pub moe: MoeConfig,
    /// Block diffusion; `None` for a plain causal trunk.
    pub block: Option<BlockConfig>,
    /// Generation defaults.
    pub controls: Controls,
    /// Stop ids as the tokenizer's metadata lists them (file order).
    pub eos_ids: Vec<u32>,
    /// Padding id.
    pub pad_id: Option<u32>,
}

/// Largest value any single dimension may take; keeps every product of three in `usize`.
const MAX_DIM: usize = 1 << 20;

impl Config {
    /// The block-diffusion record, or [`Error::NotBlockDiffusion`].
    pub fn block(&self) -> Result<&BlockConfig> {
        self.block.as_ref().ok_or(Error::NotBlockDiffusion)
    }

    /// Bytes of committed state in f32, `(per sequence, per position)`; saturating.
    pub fn state_bytes(&self) -> (u64, u64) {
        let linear = self.layers.iter().filter(|k| **k == LayerKind::Linear).count() as u64;
        let full = self.layers.len() as u64 - linear;
        let fixed = self.gdn.memory_len() + self.gdn.ring_rows() * self.gdn.channels();
        (linear.saturating_mul(4 * fixed as u64), full * 8 * self.attention.kv_width() as u64)
    }

    /// Checks that the numbers describe a possible model.
    ///
    /// # Errors
    /// [`Error::Config`] naming the first field that does not.
    pub fn validate(&self, source_name: &str) -> Result<()> {
        let fail = |field: &str, problem: String| {
            Err(Error::Config { source_name: source_name.into(), field: field.into(), problem })
        };
        let (a, g, m) = (&self.attention, &self.gdn, &self.moe);
        for (field, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.layers.len()),
            ("max_position_embeddings", self.max_context),
            ("num_attention_heads", a.heads),
            ("num_key_value_heads", a.kv_heads),
            ("head_dim", a.head_dim),
            ("linear_num_key_heads", g.key_heads),
            ("linear_num_value_heads", g.value_heads),
            ("linear_key_head_dim", g.key_dim),
            ("linear_value_head_dim", g.value_dim),
            ("linear_conv_kernel_dim", g.conv_kernel),
            ("num_experts", m.experts),
            ("num_experts_per_tok", m.top_k),
            ("moe_intermediate_size", m.expert_width),
            ("shared_expert_intermediate_size", m.shared_width),
        ] {
            let limit = if field == "max_position_embeddings" { 1 << 30 } else { MAX_DIM };
            if value == 0 || value > limit {
                return fail(field, format!("{value} is out of range 1..={limit}"));
            }
        }
        if !a.heads.is_multiple_of(a.kv_heads) {
            return fail("num_key_value_heads", format!("{} does not divide {} heads", a.kv_heads, a.heads));
        }
        if a.rotary_dim > a.head_dim || !a.rotary_dim.is_multiple_of(2) {
            return fail(
                "partial_rotary_factor",
                format!("{} rotary dims must be even and at most head_dim {}", a.rotary_dim, a.head_dim),
            );
        }
        if !(a.rope_theta.is_finite() && a.rope_theta > 0.0) {
            return fail("rope_theta", format!("{} must be positive", a.rope_theta));
        }
        if !g.value_heads.is_multiple_of(g.key_heads) {
            return fail(
                "linear_num_key_heads",
                format!("{} does not divide {} value heads", g.key_heads, g.value_heads),
            );
        }
        if m.top_k > m.experts {
            return fail("num_experts_per_tok", format!("{} exceeds {} experts", m.top_k, m.experts));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return fail("rms_norm_eps", format!("{} must be positive", self.norm_eps));
        }
        if let Some(b) = &self.block {
            if !(1..=256).contains(&b.block_size) {
                return fail("block_size", format!("{} is out of range 1..=256", b.block_size));
            }
            if b.mask_id as usize >= self.vocab_size {
                return fail(
                    "mask_token_id",
                    format!("{} is outside the vocabulary of {}", b.mask_id, self.vocab_size),
                );
            }
            if !(0.0..=1.0).contains(&b.threshold) {
                return fail("threshold", format!("{} is out of range 0..=1", b.threshold));
            }
            if b.coreset_top_p.is_some_and(|p| !(p.is_finite() && p > 0.0)) {
                return fail("coreset_top_p", "must be a positive number".into());
            }
        }
        Ok(())
    }

    /// Drops ids outside the vocabulary from the stop set and the think-end id, as the format asks.
    fn drop_foreign_ids(&mut self) {
        let vocab = self.vocab_size;
        self.controls.stop_ids.retain(|&id| (id as usize) < vocab);
        self.controls.stop_ids.sort_unstable();
        self.controls.stop_ids.dedup();
        self.controls.think_end_id = self.controls.think_end_id.filter(|&id| (id as usize) < vocab);
    }
}
