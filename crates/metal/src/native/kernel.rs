//! The kernels by name.

use shamrock_cmf::Encoding;

use crate::KvPrecision;

/// Source of all kernels, to be compiled as one.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../../kernels/common.metal"),
    include_str!("../../kernels/norm.metal"),
    include_str!("../../kernels/gemm.metal"),
    include_str!("../../kernels/attention.metal"),
    include_str!("../../kernels/gdn.metal"),
    include_str!("../../kernels/moe.metal"),
    include_str!("../../kernels/head.metal"),
);

/// Key widths that the recurrence is compiled for.
pub(crate) const KEY_DIMS: [usize; 4] = [32, 64, 128, 256];

/// How many activation rows a product takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rows {
    One,
    Eight,
    /// Tiles of 32.
    Many,
}

impl Rows {
    pub(crate) const ALL: [Rows; 3] = [Rows::One, Rows::Eight, Rows::Many];

    /// The kernel for a product of `rows` rows.
    pub(crate) fn of(rows: usize) -> Rows {
        match rows {
            ..=1 => Rows::One,
            2..=8 => Rows::Eight,
            _ => Rows::Many,
        }
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Gemm(Rows, Encoding),
    Norm,
    SiluUp,
    Combine,
    AttentionPrepare(KvPrecision),
    Attention(KvPrecision),
    AttentionJoin,
    GdnConv,
    GdnUnit,
    GdnGates,
    /// With the key width.
    GdnRecur(usize),
    GdnRing,
    GdnBlock,
    GdnGate,
    CopyWords,
    Shape,
    PickChunks,
    PickJoin,
}

impl Kernel {
    /// Those for a model with these encodings and this key width.
    pub(crate) fn needed(encodings: &[Encoding], key_dim: usize, kv: KvPrecision) -> Vec<Kernel> {
        let gemms = encodings.iter().flat_map(|&e| Rows::ALL.map(|rows| Kernel::Gemm(rows, e)));
        let others = [
            Kernel::Norm,
            Kernel::SiluUp,
            Kernel::Combine,
            Kernel::AttentionPrepare(kv),
            Kernel::Attention(kv),
            Kernel::AttentionJoin,
            Kernel::GdnConv,
            Kernel::GdnUnit,
            Kernel::GdnGates,
            Kernel::GdnRecur(key_dim),
            Kernel::GdnRing,
            Kernel::GdnBlock,
            Kernel::GdnGate,
            Kernel::CopyWords,
            Kernel::Shape,
            Kernel::PickChunks,
            Kernel::PickJoin,
        ];
        gemms.chain(others).collect()
    }

    /// Its name in the source.
    pub(crate) fn name(self) -> String {
        let kv = |kv: KvPrecision| match kv {
            KvPrecision::Half => "f16",
            KvPrecision::Full => "f32",
        };
        match self {
            Kernel::Gemm(Rows::One, e) => format!("gemm_1_{e}"),
            Kernel::Gemm(Rows::Eight, e) => format!("gemm_8_{e}"),
            Kernel::Gemm(Rows::Many, e) => format!("gemm_wide_{e}"),
            Kernel::Norm => "norm".into(),
            Kernel::SiluUp => "silu_up".into(),
            Kernel::Combine => "combine".into(),
            Kernel::AttentionPrepare(p) => format!("attention_prepare_{}", kv(p)),
            Kernel::Attention(p) => format!("attention_{}", kv(p)),
            Kernel::AttentionJoin => "attention_join".into(),
            Kernel::GdnConv => "gdn_conv".into(),
            Kernel::GdnUnit => "gdn_unit".into(),
            Kernel::GdnGates => "gdn_gates".into(),
            Kernel::GdnRecur(key_dim) => format!("gdn_recur_{key_dim}"),
            Kernel::GdnRing => "gdn_ring".into(),
            Kernel::GdnBlock => "gdn_block".into(),
            Kernel::GdnGate => "gdn_gate".into(),
            Kernel::CopyWords => "copy_words".into(),
            Kernel::Shape => "shape".into(),
            Kernel::PickChunks => "pick_chunks".into(),
            Kernel::PickJoin => "pick_join".into(),
        }
    }
}
