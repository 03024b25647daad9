//! What `config.json` and the CMF header spell alike, or nearly so.

use serde_json::Value;

use super::json::Object;
use super::{GdnConfig, LayerKind, MoeConfig};
use crate::error::Result;

pub(super) fn gdn(source: &Object<'_>) -> Result<GdnConfig> {
    Ok(GdnConfig {
        key_heads: source.usize("linear_num_key_heads")?,
        value_heads: source.usize("linear_num_value_heads")?,
        key_dim: source.usize("linear_key_head_dim")?,
        value_dim: source.usize("linear_value_head_dim")?,
        conv_kernel: source.usize("linear_conv_kernel_dim")?,
    })
}

/// The experts; the sources differ in the key of how many a row uses.
pub(super) fn moe(source: &Object<'_>, top_k: &str) -> Result<MoeConfig> {
    Ok(MoeConfig {
        experts: source.usize("num_experts")?,
        top_k: source.usize(top_k)?,
        expert_width: source.usize("moe_intermediate_size")?,
        shared_width: source.usize("shared_expert_intermediate_size")?,
        norm_topk: source.bool_opt("norm_topk_prob")?.unwrap_or(true),
    })
}

/// `layer_types`, which must list `count` layers; `linear` and `full` are the source's names.
pub(super) fn layers(
    source: &Object<'_>,
    list: &[Value],
    count: usize,
    linear: &str,
    full: &str,
) -> Result<Vec<LayerKind>> {
    if list.len() != count {
        return Err(source.error("layer_types", format!("lists {} layers of {count}", list.len())));
    }
    list.iter()
        .map(|kind| match kind.as_str() {
            Some(name) if name == linear => Ok(LayerKind::Linear),
            Some(name) if name == full => Ok(LayerKind::Full),
            _ => Err(source.error("layer_types", format!("{kind} is neither {linear:?} nor {full:?}"))),
        })
        .collect()
}

/// Rotating dims of a head, from their share.
pub(super) fn rotary_dim(source: &Object<'_>, head_dim: usize, factor: f64) -> Result<usize> {
    if !(0.0..=1.0).contains(&factor) {
        return Err(source.error("partial_rotary_factor", format!("{factor} is out of range 0..=1")));
    }
    Ok((head_dim as f64 * factor) as usize)
}

/// Refuses denoising by any other rule than this engine's.
pub(super) fn check_algorithm(source: &Object<'_>, algorithm: &str) -> Result<()> {
    if algorithm != "low_confidence" {
        let problem = format!("{algorithm:?} is not known; only \"low_confidence\" is");
        return Err(source.error("algorithm", problem));
    }
    Ok(())
}
