//! Named geometries.

use shamrock_model::config::{AttentionConfig, BlockConfig, GdnConfig, MoeConfig, Ramp};
use shamrock_model::{Config, Controls, LayerKind};

use super::tokenizer::{MIN_VOCAB, Special};
use crate::error::{Error, Result};

/// The sizes of a model to be synthesised. Take a [preset](Geometry::preset) and change what
/// should differ; [`Geometry::config`] checks the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// Recorded in the file's provenance.
    pub name: String,
    /// Rows of the embedding and of the head; at least 262, for bytes and special tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Every so many layers, counted from 1, use full attention; the others Gated DeltaNet.
    pub full_interval: usize,
    /// The head is the embedding.
    pub tie_embeddings: bool,
    /// Positions the model claims to be made for.
    pub max_context: usize,
    /// Full attention.
    pub attention: AttentionConfig,
    /// Gated DeltaNet.
    pub gdn: GdnConfig,
    /// Mixture of experts.
    pub moe: MoeConfig,
    /// Rows of a block, 1..=256; `None` makes a plain causal trunk.
    pub block_size: Option<usize>,
    /// Cumulative routing mass of the coreset; `None` switches coresets off.
    pub coreset_top_p: Option<f32>,
}

impl Geometry {
    /// Names that [`Geometry::preset`] knows.
    pub const PRESETS: [&str; 3] = ["clover-35b-a3b", "clover-nano", "tiny"];

    /// A named geometry: `clover-35b-a3b`, the released model's; `clover-nano`, of a few million
    /// weights; `tiny`, for tests, with the shapes of the smallest conformance checkpoint.
    ///
    /// # Errors
    /// [`Error::Geometry`] listing the names.
    pub fn preset(name: &str) -> Result<Geometry> {
        let geometry = match name {
            "clover-35b-a3b" => Geometry {
                name: name.into(),
                vocab_size: 248_320,
                hidden_size: 2048,
                layers: 40,
                full_interval: 4,
                tie_embeddings: false,
                max_context: 262_144,
                attention: AttentionConfig {
                    heads: 16,
                    kv_heads: 2,
                    head_dim: 256,
                    rotary_dim: 64,
                    rope_theta: 1e7,
                },
                gdn: GdnConfig {
                    key_heads: 16,
                    value_heads: 32,
                    key_dim: 128,
                    value_dim: 128,
                    conv_kernel: 4,
                },
                moe: MoeConfig {
                    experts: 256,
                    top_k: 8,
                    expert_width: 512,
                    shared_width: 512,
                    norm_topk: true,
                },
                block_size: Some(32),
                coreset_top_p: Some(0.9),
            },
            "clover-nano" => Geometry {
                name: name.into(),
                vocab_size: 4096,
                hidden_size: 256,
                layers: 8,
                full_interval: 4,
                tie_embeddings: false,
                max_context: 4096,
                attention: AttentionConfig {
                    heads: 4,
                    kv_heads: 2,
                    head_dim: 128,
                    rotary_dim: 64,
                    rope_theta: 1e4,
                },
                gdn: GdnConfig { key_heads: 4, value_heads: 8, key_dim: 64, value_dim: 64, conv_kernel: 4 },
                moe: MoeConfig { experts: 32, top_k: 4, expert_width: 64, shared_width: 64, norm_topk: true },
                block_size: Some(32),
                coreset_top_p: Some(0.9),
            },
            "tiny" => Geometry {
                name: name.into(),
                vocab_size: 384,
                hidden_size: 64,
                layers: 4,
                full_interval: 2,
                tie_embeddings: false,
                max_context: 4096,
                attention: AttentionConfig {
                    heads: 4,
                    kv_heads: 4,
                    head_dim: 32,
                    rotary_dim: 32,
                    rope_theta: 1e5,
                },
                gdn: GdnConfig { key_heads: 1, value_heads: 2, key_dim: 32, value_dim: 32, conv_kernel: 3 },
                moe: MoeConfig { experts: 6, top_k: 2, expert_width: 64, shared_width: 32, norm_topk: true },
                block_size: Some(8),
                coreset_top_p: None,
            },
            _ => {
                let names = Geometry::PRESETS.join(", ");
                return Err(Error::Geometry(format!("{name:?} is not known; choose one of {names}")));
            }
        };
        Ok(geometry)
    }

    /// The configuration of a model of this geometry. Special tokens take the last ids.
    ///
    /// # Errors
    /// [`Error::Geometry`] or a field that the family does not allow.
    pub fn config(&self) -> Result<Config> {
        if self.vocab_size < MIN_VOCAB {
            let problem =
                format!("vocab_size {} is below {MIN_VOCAB} (bytes and special tokens)", self.vocab_size);
            return Err(Error::Geometry(problem));
        }
        if self.full_interval == 0 || self.layers > 1 << 20 {
            let (layers, interval) = (self.layers, self.full_interval);
            return Err(Error::Geometry(format!(
                "{layers} layers at an interval of {interval} are not possible"
            )));
        }
        let kind =
            |i: usize| if i.is_multiple_of(self.full_interval) { LayerKind::Full } else { LayerKind::Linear };
        let id = |special: Special| special.id(self.vocab_size);
        let mut stop_ids = vec![id(Special::EndOfText), id(Special::ImEnd)];
        stop_ids.sort_unstable();
        let config = Config {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            layers: (1..=self.layers).map(kind).collect(),
            norm_eps: 1e-6,
            tie_embeddings: self.tie_embeddings,
            max_context: self.max_context,
            attention: self.attention.clone(),
            gdn: self.gdn.clone(),
            moe: self.moe.clone(),
            block: self.block_size.map(|block_size| BlockConfig {
                block_size,
                mask_id: id(Special::Mask),
                threshold: 0.95,
                coreset_top_p: self.coreset_top_p,
            }),
            controls: self.controls(stop_ids),
            eos_ids: vec![id(Special::ImEnd), id(Special::EndOfText)],
            pad_id: Some(id(Special::EndOfText)),
        };
        config.validate("geometry")?;
        Ok(config)
    }
    /// Neutral defaults. A file without block diffusion has no place for other than stop ids.
    fn controls(&self, stop_ids: Vec<u32>) -> Controls {
        if self.block_size.is_none() {
            return Controls { stop_ids, ..Controls::default() };
        }
        Controls {
            length_ramp: Ramp { strength: 0.0, start: 8192, window: 8192 },
            think_end_ramp: Ramp { strength: 0.0, start: 4096, window: 4096 },
            think_end_id: Some(Special::ThinkEnd.id(self.vocab_size)),
            stop_ids,
            ..Controls::default()
        }
    }
}
