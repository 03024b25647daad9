//! Structures that kernels take at buffer 0 or read from tables: the mirror of `kernels/*.metal`.
//!
//! All fields are 4 bytes, so both languages lay them out alike.

use bytemuck::{Pod, Zeroable};

macro_rules! kernel_struct {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
    };
}

kernel_struct!(/// `gemm_*`.
Gemm { rows: u32, outs: u32, cols: u32 });
kernel_struct!(/// `route_softmax` and `route_choose`.
Route { experts: u32, top_k: u32, rows: u32, norm: u32 });
kernel_struct!(/// `route_coreset`.
Coreset { experts: u32, top_k: u32, top_p_low: u32, top_p_high: u32 });
kernel_struct!(/// `route_panels`.
Panels { experts: u32, top_k: u32, rows: u32, width: u32, hidden: u32 });
kernel_struct!(/// Rows of a previewed block.
RowRange { row0: u32, rows: u32 });
kernel_struct!(/// An expert's rows.
Panel { expert: u32, first: u32, rows: u32 });
kernel_struct!(/// Grid of an indirect dispatch.
Groups { x: u32, y: u32, z: u32 });
kernel_struct!(/// `norm`.
Norm { width: u32, eps: f32, add: u32 });
kernel_struct!(/// `gather`.
Gather { width: u32 });
kernel_struct!(/// `silu_up`.
Elements { count: u32 });
kernel_struct!(/// `combine`.
Combine { width: u32 });
kernel_struct!(/// `attention_prepare_*`.
Prepare { heads: u32, kv_heads: u32, head_dim: u32, rotary: u32, row0: u32, to: u32, eps: f32, scale: f32 });
kernel_struct!(/// `attention_*`.
Attention {
    heads: u32, kv_heads: u32, head_dim: u32, row0: u32, rows: u32, stored: u32, own: u32, causal: u32,
    splits: u32, chunk: u32,
});
kernel_struct!(/// `attention_join`.
Join { heads: u32, head_dim: u32, splits: u32, row0: u32 });
kernel_struct!(/// `gdn_conv`.
Conv { channels: u32, taps: u32, row0: u32, rows: u32, block: u32 });
kernel_struct!(/// `gdn_unit`.
Unit { channels: u32, key_dim: u32 });
kernel_struct!(/// `gdn_gates`.
Gates { heads: u32, count: u32 });
kernel_struct!(/// `gdn_recur_*`.
Recur { channels: u32, key_heads: u32, value_heads: u32, value_dim: u32, row0: u32, rows: u32 });
kernel_struct!(/// `gdn_ring`.
Ring { channels: u32, back: u32, row0: u32, rows: u32 });
kernel_struct!(/// `gdn_block`.
Block {
    channels: u32, key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, row0: u32, rows: u32,
    share: f32,
});
kernel_struct!(/// `gdn_gate`.
Gate { value_dim: u32, eps: f32 });
kernel_struct!(/// `copy_words`.
Copy { words: u32 });
kernel_struct!(/// `shape` and the pick kernels.
Vocab { size: u32, chunks: u32 });
kernel_struct!(/// A scored row.
ScoredRow { shaping: u32, probe: u32, length: f32, think: f32 });
kernel_struct!(/// Response processing of one part; ranges are of a table of words.
Shaping {
    forbidden: u32, forbidden_end: u32, counts: u32, counts_end: u32, stops: u32, stops_end: u32,
    think_id: u32, presence: f32, frequency: f32, repetition: f32,
});
kernel_struct!(/// Result of a pick.
Pick { token: u32, probability: f32, runner_up: f32, entropy: f32, probe: f32 });

/// No shaping, no probe, no think-end id.
pub(crate) const NONE: u32 = u32::MAX;
/// Bytes of the kernels' `Softmax`.
pub(crate) const SOFTMAX_BYTES: usize = 20;
