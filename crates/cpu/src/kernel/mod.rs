//! The inner loops of matrix products.
//!
//! One shape for all integer products: a band of 16 weight rows meets any choice of activation rows,
//! group after group. A group of the band is loaded straight from the file and turned so that a
//! vector holds four columns of each weight row; the same four columns of an activation row,
//! broadcast, multiply it. So a weight byte is loaded and turned once for all activation rows, every
//! lane is a weight row, and nothing is summed across lanes.
//!
//! The loops are written once (`shape`); an instruction set says how a group is loaded and turned and
//! how a dot product of four columns is made. `portable` is the same in plain Rust, and the
//! definition: a group's sum is an exact integer, groups are added in order by fused multiply-adds,
//! hence every instruction set gives the same bits, whichever activation rows go together.
//!
//! | operation | weights |
//! |---|---|
//! | [`Isa::nibbles`] | a band of 4-bit rows, a scale per row and group |
//! | [`Isa::bytes`] | a band of 8-bit rows, a scale per row |
//!
//! Beside these, over f32: [`Isa::dots`], [`Isa::add_weighted_rows`] and [`Isa::delta_rule`]; their sums
//! depend on the number of lanes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod entry;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod floats;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod shape;

pub use isa::Isa;
pub(crate) use isa::Loops;

/// Columns that share an activation scale.
pub const GROUP: usize = 32;
/// Bytes of a 4-bit group.
pub const NIBBLES: usize = GROUP / 2;
/// Weight rows a kernel works on at a time.
pub const BAND: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the cache lines of `bytes`, which will be read soon. A long run in order wakes the processor's own
/// prefetcher, which has more requests on their way than a core by itself.
pub(crate) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        let at = line.as_ptr();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has it, and any address may be prefetched.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: any address may be prefetched.
        unsafe {
            neon::prefetch(at);
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = at;
    }
}

/// Order in which a kernel wants the columns of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// 0, 1, … 31; for 8-bit weights.
    Natural,
    /// Of every eight columns the even ones first: 0, 2, 4, 6, 1, 3, 5, 7, 8, …; for 4-bit weights,
    /// whose bytes hold two neighbours.
    Paired,
}

impl Columns {
    /// What is added to an unsigned weight's product to make it signed, per unit of the activation:
    /// weights are stored plus 8 or taken plus 128.
    pub const fn bias(self) -> i32 {
        match self {
            Columns::Natural => -128,
            Columns::Paired => -8,
        }
    }
}

/// A group of an activation row rounded to 8 bits, `x ≈ scale · quant`. What a kernel reads of it lies
/// together, so that one address per row is enough.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Group {
    /// Columns in the kernel's [order](Columns), values in −127..=127.
    pub quants: [i8; GROUP],
    /// Size of a step.
    pub scale: f32,
    /// [`Columns::bias`] times the sum of `quants`.
    pub bias: i32,
}

/// Activation rows rounded to 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Rounded<'a> {
    /// Groups of a row.
    pub width: usize,
    /// `[rows, width]`.
    pub groups: &'a [Group],
}

impl Rounded<'_> {
    /// Panics unless rows have `groups` groups and `picked` are rows.
    fn check(&self, groups: usize, picked: &[u32]) {
        assert_eq!(self.width, groups, "activations of another width");
        let rows = self.groups.len().checked_div(groups).unwrap_or(usize::MAX);
        assert!(picked.iter().all(|&row| (row as usize) < rows), "an activation row is not there");
    }
}

/// A band of weight rows in the file: group `g` of row `r` lies at `rows[r][g · stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Band<'a> {
    /// Bytes of each row from its first group on.
    pub rows: [&'a [u8]; BAND],
    /// Bytes from a group to the next.
    pub stride: usize,
    /// What will be read after this band, to be asked for meanwhile: a hint.
    pub next: &'a [u8],
}

impl Band<'_> {
    /// Panics unless every row has `groups` groups of `bytes` bytes.
    fn check(&self, groups: usize, bytes: usize) {
        let needed = groups.checked_sub(1).map_or(0, |before| before * self.stride + bytes);
        assert!(self.rows.iter().all(|row| row.len() >= needed), "a weight row is too short");
    }
}

/// One head's rows through the delta rule.
pub struct DeltaRule<'a> {
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// `[n, key_dim]`.
    pub queries: &'a [f32],
    /// `[n, key_dim]`.
    pub keys: &'a [f32],
    /// `[n, value_dim]`.
    pub values: &'a [f32],
    /// What is left of the memory at each row, `[n]`.
    pub decay: &'a [f32],
    /// Strength of each row's write, `[n]`.
    pub beta: &'a [f32],
    /// `[key_dim, value_dim]`, advanced.
    pub memory: &'a mut [f32],
    /// Room for some columns of the memory.
    pub strip: &'a mut Vec<f32>,
    /// What each row reads, `[n, value_dim]`.
    pub out: &'a mut [f32],
}

impl DeltaRule<'_> {
    fn check(&self) {
        let n = self.decay.len();
        assert!(
            self.beta.len() == n
                && self.queries.len() == n * self.key_dim
                && self.keys.len() == n * self.key_dim
                && self.values.len() == n * self.value_dim
                && self.out.len() == n * self.value_dim
                && self.memory.len() == self.key_dim * self.value_dim,
            "rows of another size"
        );
    }
}
