//! The `arch` and `tokenizer_config` parts of a CMF header.

use serde_json::{Map, Value, json};

use super::json::Object;
use super::{AttentionConfig, BlockConfig, Config, Controls, LayerKind, Ramp, trunk};
use crate::error::Result;

const HEADER: &str = "CMF header";

impl Config {
    /// Reads the configuration from a container's JSON header.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) naming the field.
    pub fn from_header(header: &Value) -> Result<Config> {
        let top = Object::new(header, HEADER, "")?;
        let arch = top.object("arch", "arch")?.ok_or_else(|| top.error("arch", "is missing"))?;
        let moe = arch.object("moe", "arch.moe")?.ok_or_else(|| {
            arch.error("moe", "is missing; only mixture-of-experts models of the Clover family run here")
        })?;
        check_family(&arch)?;
        let tokenizer = top.object("tokenizer_config", "tokenizer_config")?;
        let eos_ids = tokenizer.map(|t| t.ids("eos_token_ids")).transpose()?.unwrap_or_default();
        let pad_id = tokenizer.map(|t| t.id_opt("pad_token_id")).transpose()?.flatten();

        let head_dim = arch.usize("head_dim")?;
        let factor = arch.f64_opt("partial_rotary_factor")?.unwrap_or(1.0);
        let (block, mut controls) = match arch.object("block_diffusion", "arch.block_diffusion")? {
            Some(record) => block(&record)?,
            None => (None, Controls::default()),
        };
        controls.stop_ids.extend(&eos_ids);
        let mut config = Config {
            vocab_size: arch.usize("vocab_size")?,
            hidden_size: arch.usize("hidden_size")?,
            layers: layers(&arch)?,
            norm_eps: arch.f32("rms_norm_eps")?,
            tie_embeddings: arch.bool_opt("tie_word_embeddings")?.unwrap_or(false),
            max_context: arch.usize_opt("max_position_embeddings")?.unwrap_or(32768),
            attention: AttentionConfig {
                heads: arch.usize("num_attention_heads")?,
                kv_heads: arch.usize("num_kv_heads")?,
                head_dim,
                rotary_dim: trunk::rotary_dim(&arch, head_dim, factor)?,
                rope_theta: arch.f64("rope_theta")?,
            },
            gdn: trunk::gdn(&arch)?,
            moe: trunk::moe(&moe, "top_k")?,
            block,
            controls,
            eos_ids,
            pad_id,
        };
        config.drop_foreign_ids();
        config.validate(HEADER)?;
        Ok(config)
    }

    /// The `arch` object of a CMF header: the inverse of [`Config::from_header`].
    pub fn to_arch(&self) -> Value {
        let (a, g, m) = (&self.attention, &self.gdn, &self.moe);
        let layer_types: Vec<&str> = self
            .layers
            .iter()
            .map(|kind| match kind {
                LayerKind::Linear => "LinearAttention",
                LayerKind::Full => "FullAttention",
            })
            .collect();
        let mut arch = json!({
            "arch_name": "qwen3_5_moe_text",
            "hidden_size": self.hidden_size,
            "intermediate_size": m.expert_width,
            "num_layers": self.layers.len(),
            "num_attention_heads": a.heads,
            "num_kv_heads": a.kv_heads,
            "head_dim": a.head_dim,
            "vocab_size": self.vocab_size,
            "layer_types": layer_types,
            "rms_norm_eps": shortest(self.norm_eps),
            "norm_style": "gemma",
            "rope_theta": a.rope_theta,
            "tie_word_embeddings": self.tie_embeddings,
            "partial_rotary_factor": rotary_factor(a),
            "attention_sink": false,
            "moe": {
                "num_experts": m.experts,
                "top_k": m.top_k,
                "moe_intermediate_size": m.expert_width,
                "norm_topk_prob": m.norm_topk,
                "shared_expert_intermediate_size": m.shared_width,
            },
            "linear_core": {
                "kind": "gated_delta_net",
                "num_heads": g.value_heads,
                "value_head_dim": g.value_dim,
            },
            "max_position_embeddings": self.max_context,
            "linear_conv_kernel_dim": g.conv_kernel,
            "linear_num_key_heads": g.key_heads,
            "linear_num_value_heads": g.value_heads,
            "linear_key_head_dim": g.key_dim,
            "linear_value_head_dim": g.value_dim,
        });
        if let Some(block) = &self.block {
            arch["block_diffusion"] = Value::Object(block_record(block, &self.controls));
        }
        arch
    }
}

/// Refuses trunks whose arithmetic this engine does not implement.
fn check_family(arch: &Object<'_>) -> Result<()> {
    let style = arch.str_opt("norm_style")?.unwrap_or("gemma");
    if style != "gemma" {
        return Err(
            arch.error("norm_style", format!("{style:?} is not supported; Clover uses \"gemma\" (1 + w)"))
        );
    }
    if arch.bool_opt("attention_sink")?.unwrap_or(false) {
        return Err(arch.error("attention_sink", "attention sinks are not part of the Clover family"));
    }
    if let Some(core) = arch.object("linear_core", "arch.linear_core")? {
        let kind = core.str_opt("kind")?.unwrap_or("gated_delta_net");
        if kind != "gated_delta_net" {
            return Err(
                core.error("kind", format!("{kind:?} is not supported; Clover uses \"gated_delta_net\""))
            );
        }
    }
    Ok(())
}

fn layers(arch: &Object<'_>) -> Result<Vec<LayerKind>> {
    let list = arch.array_opt("layer_types")?.ok_or_else(|| arch.error("layer_types", "is missing"))?;
    let count = arch.usize("num_layers")?;
    trunk::layers(arch, list, count, "LinearAttention", "FullAttention")
}

fn block(record: &Object<'_>) -> Result<(Option<BlockConfig>, Controls)> {
    let algorithm = record.str_opt("algorithm")?.ok_or_else(|| record.error("algorithm", "is missing"))?;
    trunk::check_algorithm(record, algorithm)?;
    let enabled =
        record.bool_opt("coreset_enabled")?.ok_or_else(|| record.error("coreset_enabled", "is missing"))?;
    let top_p = record.f32("coreset_top_p")?;
    let block = BlockConfig {
        block_size: record.usize("block_size")?,
        mask_id: record
            .id_opt("mask_token_id")?
            .ok_or_else(|| record.error("mask_token_id", "is missing"))?,
        threshold: record.f32("threshold")?,
        coreset_top_p: enabled.then_some(top_p),
    };
    let controls = Controls {
        presence_penalty: record.f32_or("presence_penalty", 0.0)?,
        frequency_penalty: record.f32_or("frequency_penalty", 0.0)?,
        repetition_penalty: record.f32_or("repetition_penalty", 1.0)?,
        length_ramp: Ramp {
            strength: record.f32_or("length_penalty", 0.0)?,
            start: record.u32_or("length_penalty_start", 0)?,
            window: record.u32_or("length_penalty_window", 1)?.max(1),
        },
        think_end_ramp: Ramp {
            strength: record.f32_or("think_end_bias", 0.0)?,
            start: record.u32_or("think_end_start", 0)?,
            window: record.u32_or("think_end_window", 1)?.max(1),
        },
        think_end_id: record.id_opt("think_end_token_id")?,
        stop_ids: record.ids("stop_token_ids")?,
    };
    Ok((Some(block), controls))
}

fn block_record(block: &BlockConfig, controls: &Controls) -> Map<String, Value> {
    let (length, think) = (&controls.length_ramp, &controls.think_end_ramp);
    let mut record = Map::new();
    let mut put = |key: &str, value: Value| {
        record.insert(key.into(), value);
    };
    put("algorithm", "low_confidence".into());
    put("block_size", block.block_size.into());
    put("mask_token_id", block.mask_id.into());
    put("threshold", shortest(block.threshold));
    put("coreset_enabled", block.coreset_top_p.is_some().into());
    put("coreset_top_p", shortest(block.coreset_top_p.unwrap_or(1.0)));
    put("presence_penalty", shortest(controls.presence_penalty));
    put("frequency_penalty", shortest(controls.frequency_penalty));
    put("repetition_penalty", shortest(controls.repetition_penalty));
    put("length_penalty", shortest(length.strength));
    put("length_penalty_start", length.start.into());
    put("length_penalty_window", length.window.into());
    put("think_end_bias", shortest(think.strength));
    put("think_end_start", think.start.into());
    put("think_end_window", think.window.into());
    if let Some(id) = controls.think_end_id {
        put("think_end_token_id", id.into());
    }
    if !controls.stop_ids.is_empty() {
        put("stop_token_ids", controls.stop_ids.clone().into());
    }
    record
}

/// The share of rotary dims; readers truncate its product with `head_dim`.
fn rotary_factor(a: &AttentionConfig) -> f64 {
    let factor = a.rotary_dim as f64 / a.head_dim as f64;
    if ((a.head_dim as f64 * factor) as usize) < a.rotary_dim { factor.next_up() } else { factor }
}

/// An f32 as the shortest decimal that reads back as the same f32 (0.7, not 0.699999988079071).
fn shortest(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
