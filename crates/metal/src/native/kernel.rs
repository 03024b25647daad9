//! The kernels by name.

use shamrock_cmf::Encoding;

use crate::{KvPrecision, Precision};

/// Source of all kernels, to be compiled as one.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../../kernels/common.metal"),
    include_str!("../../kernels/norm.metal"),
    include_str!("../../kernels/gemm.metal"),
    include_str!("../../kernels/attention.metal"),
    include_str!("../../kernels/gdn.metal"),
    include_str!("../../kernels/route.metal"),
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
    /// As panels are sorted.
    pub(crate) const ALL: [Rows; 3] = [Rows::One, Rows::Eight, Rows::Many];

    /// What products of `rows` rows take.
    pub(crate) fn of(rows: usize) -> Rows {
        match rows {
            ..=1 => Rows::One,
            2..=8 => Rows::Eight,
            _ => Rows::Many,
        }
    }

    /// Rows that a threadgroup computes.
    pub(crate) fn rows(self) -> usize {
        match self {
            Rows::One => 1,
            Rows::Eight => 8,
            Rows::Many => 32,
        }
    }

    /// Outputs that a threadgroup computes.
    pub(crate) fn outs(self) -> usize {
        match self {
            Rows::One | Rows::Eight => 8,
            Rows::Many => 64,
        }
    }

    /// Threads of a threadgroup.
    pub(crate) fn threads(self) -> usize {
        match self {
            Rows::One | Rows::Eight => 64,
            Rows::Many => 128,
        }
    }
}

/// A product with matrices of one encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) rows: Rows,
    encoding: Encoding,
    precision: Precision,
}

impl Product {
    /// Halves are for encodings whose weights they hold: not for floats, and the scales of q4_tiled times
    /// eight could be beyond them.
    pub(crate) fn new(rows: Rows, encoding: Encoding, precision: Precision) -> Product {
        let precision = match encoding {
            Encoding::Q8Row | Encoding::Q8TwoField | Encoding::Q4tp => precision,
            _ => Precision::Full,
        };
        Product { rows, encoding, precision }
    }

    /// Whether inputs are rounded.
    #[cfg(test)]
    pub(crate) fn is_rounded(self) -> bool {
        self.precision == Precision::Half
    }

    fn name(self, family: &str) -> String {
        let rows = match self.rows {
            Rows::One => "1",
            Rows::Eight => "8",
            Rows::Many => "wide",
        };
        let half = if self.precision == Precision::Half { "half_" } else { "" };
        format!("{family}_{rows}_{half}{}", self.encoding)
    }
}

/// All products with matrices of these encodings.
fn products(encodings: &[Encoding], precision: Precision) -> impl Iterator<Item = Product> {
    encodings.iter().flat_map(move |&e| Rows::ALL.map(|rows| Product::new(rows, e, precision)))
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Gemm(Product),
    /// The same for the experts that the device has chosen.
    Experts(Product),
    RouteSoftmax,
    RouteCoreset,
    RouteChoose,
    RoutePanels,
    Norm,
    Gather,
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
    pub(crate) fn needed(
        encodings: &[Encoding],
        key_dim: usize,
        kv: KvPrecision,
        precision: Precision,
    ) -> Vec<Kernel> {
        let gemms = products(encodings, precision).map(Kernel::Gemm);
        let others = [
            Kernel::Norm,
            Kernel::Gather,
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

    /// Those that choose experts, of these encodings, on the device.
    pub(crate) fn routing(encodings: &[Encoding], precision: Precision) -> Vec<Kernel> {
        let panels = products(encodings, precision).map(Kernel::Experts);
        let others = [Kernel::RouteSoftmax, Kernel::RouteCoreset, Kernel::RouteChoose, Kernel::RoutePanels];
        panels.chain(others).collect()
    }

    /// Its name in the source.
    pub(crate) fn name(self) -> String {
        let kv = |kv: KvPrecision| match kv {
            KvPrecision::Half => "f16",
            KvPrecision::Full => "f32",
        };
        match self {
            Kernel::Gemm(product) => product.name("gemm"),
            Kernel::Experts(product) => product.name("experts"),
            Kernel::RouteSoftmax => "route_softmax".into(),
            Kernel::RouteCoreset => "route_coreset".into(),
            Kernel::RouteChoose => "route_choose".into(),
            Kernel::RoutePanels => "route_panels".into(),
            Kernel::Norm => "norm".into(),
            Kernel::Gather => "gather".into(),
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
