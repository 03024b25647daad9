//! `config.json` and `generation_config.json` of a Hugging Face folder.

use serde_json::Value;

use super::json::Object;
use super::{AttentionConfig, BlockConfig, Config, Controls, LayerKind, Ramp, trunk};
use crate::error::Result;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

impl Config {
    /// Reads a `clover_moe` checkpoint's configuration, or a plain `qwen3_5_moe` text trunk's
    /// (which has no block-diffusion record).
    ///
    /// Text keys may sit at top level or under `text_config`; the block-diffusion keys are always
    /// top level. `generation` is the parsed `generation_config.json`, if there is one.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) naming the file and the field.
    pub fn from_hf(config: &Value, generation: Option<&Value>) -> Result<Config> {
        let top = Object::new(config, CONFIG, "")?;
        let text = top.object("text_config", "text_config")?.unwrap_or(top);
        let empty = Value::Object(Default::default());
        let gen_cfg = Object::new(generation.unwrap_or(&empty), GENERATION, "")?;

        let (controls, eos_ids, pad_id) = controls(&top, &text, &gen_cfg)?;
        let mut config = Config {
            vocab_size: text.usize("vocab_size")?,
            hidden_size: text.usize("hidden_size")?,
            layers: layers(&text)?,
            norm_eps: text.f32_or("rms_norm_eps", 1e-6)?,
            tie_embeddings: match text.bool_opt("tie_word_embeddings")? {
                Some(tied) => tied,
                None => top.bool_opt("tie_word_embeddings")?.unwrap_or(false),
            },
            max_context: text.usize_opt("max_position_embeddings")?.unwrap_or(32768),
            attention: attention(&text)?,
            gdn: trunk::gdn(&text)?,
            moe: trunk::moe(&text, "num_experts_per_tok")?,
            block: block(&top)?,
            controls,
            eos_ids,
            pad_id,
        };
        config.drop_foreign_ids();
        config.validate(CONFIG)?;
        Ok(config)
    }
}

fn layers(text: &Object<'_>) -> Result<Vec<LayerKind>> {
    let count = text.usize("num_hidden_layers")?;
    let Some(list) = text.array_opt("layer_types")? else {
        let interval = text.usize_opt("full_attention_interval")?.unwrap_or(4);
        if interval == 0 || count > super::MAX_DIM {
            return Err(
                text.error("full_attention_interval", "needs layer_types or an interval of at least 1")
            );
        }
        return Ok((1..=count)
            .map(|i| if i % interval == 0 { LayerKind::Full } else { LayerKind::Linear })
            .collect());
    };
    trunk::layers(text, list, count, "linear_attention", "full_attention")
}

fn attention(text: &Object<'_>) -> Result<AttentionConfig> {
    let rope = text.object("rope_parameters", "rope_parameters")?;
    let rope_number = |key: &str, default: f64| -> Result<f64> {
        if let Some(x) = text.f64_opt(key)? {
            return Ok(x);
        }
        Ok(rope.map(|r| r.f64_opt(key)).transpose()?.flatten().unwrap_or(default))
    };
    let heads = text.usize("num_attention_heads")?;
    let head_dim = match text.usize_opt("head_dim")? {
        Some(width) => width,
        None if heads > 0 => text.usize("hidden_size")? / heads,
        None => 0,
    };
    let factor = rope_number("partial_rotary_factor", 1.0)?;
    Ok(AttentionConfig {
        heads,
        kv_heads: text.usize("num_key_value_heads")?,
        head_dim,
        rotary_dim: trunk::rotary_dim(text, head_dim, factor)?,
        rope_theta: rope_number("rope_theta", 10000.0)?,
    })
}

/// A checkpoint is a block-diffusion model when it says so or carries a block size.
fn block(top: &Object<'_>) -> Result<Option<BlockConfig>> {
    if top.str_opt("model_type")? != Some("clover_moe") && top.get("block_size").is_none() {
        return Ok(None);
    }
    let denoising = top.object("denoising_config", "denoising_config")?;
    let mut threshold = 0.95;
    if let Some(d) = denoising {
        trunk::check_algorithm(&d, d.str_opt("algorithm")?.unwrap_or("low_confidence"))?;
        threshold = d.f32_or("threshold", threshold)?;
    }
    let mask_id = top.id_opt("mask_token_id")?.ok_or_else(|| top.error("mask_token_id", "is missing"))?;
    let enabled = top.bool_opt("moe_block_coreset_enabled")?.unwrap_or(false);
    let top_p = top.f32_or("moe_block_coreset_top_p", 1.0)?;
    Ok(Some(BlockConfig {
        block_size: top.usize("block_size")?,
        mask_id,
        threshold,
        coreset_top_p: enabled.then_some(top_p),
    }))
}

/// Generation defaults, eos ids and pad id; the latter two come from `generation_config.json` and
/// only if absent there from `config.json`.
fn controls(
    top: &Object<'_>,
    text: &Object<'_>,
    gen_cfg: &Object<'_>,
) -> Result<(Controls, Vec<u32>, Option<u32>)> {
    let first_of = |key: &str| -> Result<Vec<u32>> {
        for place in [gen_cfg, top, text] {
            let ids = place.ids(key)?;
            if !ids.is_empty() {
                return Ok(ids);
            }
        }
        Ok(Vec::new())
    };
    let eos = first_of("eos_token_id")?;
    let pad = first_of("pad_token_id")?.first().copied();
    let ramp = |name: &str, start: u32| -> Result<Ramp> {
        let stem = name.trim_end_matches("_bias");
        Ok(Ramp {
            strength: gen_cfg.f32_or(name, 0.0)?,
            start: gen_cfg.u32_or(&format!("{stem}_start"), start)?,
            window: gen_cfg.u32_or(&format!("{stem}_window"), start)?.max(1),
        })
    };
    let mut stop_ids = gen_cfg.ids("stop_token_ids")?;
    stop_ids.extend(eos.iter().copied().chain(pad));
    let controls = Controls {
        presence_penalty: gen_cfg.f32_or("presence_penalty", 0.0)?,
        frequency_penalty: gen_cfg.f32_or("frequency_penalty", 0.0)?,
        repetition_penalty: gen_cfg.f32_or("repetition_penalty", 1.0)?,
        length_ramp: ramp("dllm_length_penalty", 8192)?,
        think_end_ramp: ramp("dllm_think_end_bias", 4096)?,
        think_end_id: gen_cfg.id_opt("dllm_think_end_token_id")?,
        stop_ids,
    };
    Ok((controls, eos, pad))
}
