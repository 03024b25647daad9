//! Structures that kernels take by value or read from tables: the mirror of `kernels/*.cu`.
//!
//! Pointers are device addresses (`u64`, 0 for none). All are plain data without padding.

use bytemuck::{Pod, Zeroable};
use cudarc::driver::DeviceRepr;

/// A device address.
pub(crate) type Ptr = u64;

macro_rules! device_struct {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        // SAFETY: plain data of the layout that the kernels declare, see the test below.
        unsafe impl DeviceRepr for $name {}
    };
}

device_struct!(/// Rows of one commit or preview.
Part { kind: u32, row0: u32, rows: u32, position: u32, kv_rows: u32, pad: u32, kv: Ptr, gdn: Ptr, undo: Ptr });

/// [`Part::kind`] of a commit.
pub(crate) const COMMIT: u32 = 0;
/// [`Part::kind`] of a preview.
pub(crate) const PREVIEW: u32 = 1;

device_struct!(/// A matrix in the device's layout.
Matrix { tiles: Ptr, codes: Ptr, scales: Ptr, encoding: u32, rows: u32, row_tiles: u32, steps: u32 });

/// [`Matrix::encoding`]: 4-bit integers with ladders.
pub(crate) const Q4: u32 = 0;
/// 8-bit integers with row scales.
pub(crate) const Q8: u32 = 1;
/// Halves.
pub(crate) const F16: u32 = 2;

device_struct!(/// Three matrices of an expert.
Expert { gate: Matrix, up: Matrix, down: Matrix });

/// Words of an entry of [`Groups::work`]: expert, first pair, rows (0 ends the list early), nothing.
pub(crate) const WORK_WORDS: usize = 4;

device_struct!(/// Rows by expert.
Groups { work: Ptr, pairs: Ptr });

device_struct!(/// Arguments of the `repack` kernels.
Repack {
    source: Ptr, params: Ptr, codes: Ptr, tiles: Ptr, tile_codes: Ptr, scales: Ptr,
    row0: u32, rows: u32, cols: u32, steps: u32,
});

device_struct!(/// Arguments of `embed`.
Embed { table: Matrix, cols: Ptr, ids: Ptr, hidden: Ptr });

device_struct!(/// A copy of a normed row for one product.
Copy { hi: Ptr, lo: Ptr, cols: Ptr });

/// Copies that one norm can make.
pub(crate) const MAX_COPIES: usize = 3;

device_struct!(/// The residual stream, what a norm adds to it, and where the sum goes.
Residual {
    hidden: Ptr, sum: Ptr, weight: Ptr, parts: Ptr, splits: u32, rows: u32, experts: Ptr, weights: Ptr,
    shared_gate: Ptr,
});

device_struct!(/// Arguments of `rms_norm`.
Norm { residual: Residual, chosen: Ptr, copies: [Copy; MAX_COPIES], copy_count: u32, pad: u32 });

device_struct!(/// One matrix of a `dense` launch.
Segment { w: Matrix, hi: Ptr, lo: Ptr, out: Ptr, stride: u32, out_stride: u32, first_block: u32, pad: u32 });

/// Matrices that one `dense` launch can take.
pub(crate) const MAX_SEGMENTS: usize = 4;

device_struct!(/// Arguments of `dense`.
Dense { segments: [Segment; MAX_SEGMENTS], count: u32, rows: u32 });

device_struct!(/// Arguments of the `normed` products.
NormedDense { dense: Dense, residual: Residual, cols: [Ptr; MAX_SEGMENTS] });

device_struct!(/// Arguments of `gate_up` and `down`.
Experts {
    experts: Ptr, shared: Ptr, groups: Groups, hi: Ptr, lo: Ptr, act_hi: Ptr, act_lo: Ptr, out: Ptr,
    rows: u32, stride: u32, row_tiles: u32, shared_tiles: u32, listed: u32, pad: u32,
});

device_struct!(/// Weights of a Gated DeltaNet layer.
Gdn {
    conv: Ptr, right: Ptr, a_log: Ptr, dt_bias: Ptr, logit_scale: Ptr, history_bias: Ptr,
    history_c: Ptr, norm: Ptr, out_cols: Ptr,
});

device_struct!(/// Arguments of the `gdn` kernels.
Mixer {
    w: Gdn, parts: Ptr, raw: Ptr, z: Ptr, ab: Ptr, rows: Ptr, gates: Ptr, read: Ptr, hi: Ptr,
    lo: Ptr, qk: Ptr, squares: Ptr, layer: u32, pad: u32,
});

device_struct!(/// Arguments of `gdn_step`.
Step { mixer: Mixer, arrived: Ptr });

device_struct!(/// Arguments of `gdn_replay`.
Replay { gdn: Ptr, undo: Ptr, rows: u32, kept: u32 });

device_struct!(/// Arguments of the `attention` kernels.
Attention {
    q_norm: Ptr, k_norm: Ptr, frequency: Ptr, out_cols: Ptr, parts: Ptr, part_of: Ptr, q: Ptr,
    k: Ptr, v: Ptr, query: Ptr, partial: Ptr, hi: Ptr, lo: Ptr, layer: u32, rows: u32,
    splits: u32, pad: u32,
});

device_struct!(/// Arguments of the routing kernels.
Routing {
    logits: Ptr, probs: Ptr, chosen: Ptr, weights: Ptr, parts: Ptr, groups: Groups, distinct: Ptr,
    rows: u32, top_p: f32, previews: u32, pad: u32,
});

device_struct!(/// Arguments of `route_few`.
RouteFew { dense: Dense, residual: Residual, ffn: Copy, routing: Routing, arrived: Ptr });

device_struct!(/// Arguments of `gate_up_one` and `down_one`.
One { experts: Experts, routing: Routing, picked: Ptr, low: Ptr, hidden: Ptr, sum: Ptr });

device_struct!(/// One scored row.
ScoredRow { shaping: u32, position: i32, probe: u32, pad: u32 });

/// No shaping, no probe, no think-end id.
pub(crate) const NONE: u32 = u32::MAX;

device_struct!(/// Response processing of one part.
Shaping {
    forbidden: u32, forbidden_end: u32, counts: u32, counts_end: u32, stops: u32, stops_end: u32,
    think_id: u32, presence: f32, frequency: f32, repetition: f32, length_strength: f32,
    length_start: f32, length_window: f32, think_strength: f32, think_start: f32, think_window: f32,
});

device_struct!(/// Arguments of `shape`.
Shape { logits: Ptr, rows: Ptr, shapings: Ptr, words: Ptr });

device_struct!(/// Result of a pick.
PickRecord { token: u32, probability: f32, runner_up: f32, entropy: f32, probe: f32 });

device_struct!(/// Arguments of the pick kernels.
Picks { logits: Ptr, rows: Ptr, partial: Ptr, picks: Ptr, chunks: u32, pad: u32 });

/// Bytes of the kernels' `Softmax`.
pub(crate) const SOFTMAX_BYTES: usize = 20;
