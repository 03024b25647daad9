//! The inner loops of matrix products.
//!
//! Each operation has one shape, written once in plain Rust (`portable`) and once per instruction
//! set. The integer ones agree to the last bit: group sums are exact integers, and floats are
//! accumulated group by group in the same order, each product rounded before it is added.
//!
//! | operation | weights | activation rows |
//! |---|---|---|
//! | [`Isa::few_nibbles`], [`Isa::few_bytes`] | a band of 8 rows, straight from the file | one at a time |
//! | [`Isa::tall`] | nibble planes of 4, unpacked to first-level cache | 8 or 16 side by side |
//! | [`Isa::dots`] | rows decoded to f32 | any number, f32 |

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

/// Columns that share an activation scale.
pub const GROUP: usize = 32;
/// Weight rows a kernel works on at a time.
pub const BAND: usize = 8;
/// Activation rows that lie side by side in a [`Tall`] operand.
pub const LANES: usize = 8;
/// Nibble planes of a [`Isa::tall`] call.
pub const PLANES: usize = 4;

/// Instruction set, chosen once per executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the compiler targets.
    Portable,
    /// x86-64 with AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// Proof that the processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Plain loops to be compiled for an instruction set. Implementations mark [`Loops::run`]
/// `#[inline(always)]`, so that it takes on the target features of the function it lands in.
pub(crate) trait Loops {
    fn run(self);
}

/// Activations of at most a few rows, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Few<'a> {
    /// `[rows, groups, 32]`.
    pub quants: &'a [[i8; GROUP]],
    /// `[rows, groups]`.
    pub scales: &'a [f32],
    /// Sum of a group's integers, `[rows, groups]`.
    pub sums: &'a [i32],
}

/// Eight activation rows side by side, over some groups.
#[derive(Clone, Copy, Debug)]
pub struct Tall<'a> {
    /// `[groups, 8 column quads, 8 rows, 4 columns]`.
    pub quants: &'a [[i8; GROUP * LANES]],
    /// `[groups, 8 rows]`.
    pub scales: &'a [[f32; LANES]],
    /// Sum of a group's integers, `[groups, 8 rows]`.
    pub sums: &'a [[i32; LANES]],
}

/// A band of 4-bit weight rows in the file: group `g` of row `r` is the 16 bytes at
/// `rows[r][g · stride]`.
#[derive(Clone, Copy, Debug)]
pub struct NibbleBand<'a> {
    /// Bytes of each row from its first group on.
    pub rows: [&'a [u8]; BAND],
    /// Bytes from a group to the next.
    pub stride: usize,
}

impl NibbleBand<'_> {
    /// Panics unless every row has `groups` groups.
    fn check(&self, groups: usize) {
        let needed = extent(groups, self.stride);
        assert!(self.rows.iter().all(|row| row.len() >= needed), "a weight row is too short");
    }
}

/// How nibble planes make up a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// Four rows of `nibble − 8`.
    Single,
    /// Two rows of `16 · first + second − 128`: bytes in two's complement, offset by 128.
    Pair,
}

impl Planes {
    /// Weight rows in four planes.
    pub const fn rows(self) -> usize {
        match self {
            Planes::Single => PLANES,
            Planes::Pair => PLANES / 2,
        }
    }
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return Isa::Avx2(Avx2(()));
        }
        Isa::Portable
    }

    /// Runs plain loops compiled for this instruction set; what they call must be inlined.
    #[inline]
    pub fn run<R>(self, loops: impl FnOnce() -> R) -> R {
        match self {
            Isa::Portable => loops(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => {
                #[target_feature(enable = "avx2,fma")]
                fn wide<R>(loops: impl FnOnce() -> R) -> R {
                    loops()
                }
                // SAFETY: the variant proves that the processor has AVX2 and FMA.
                unsafe { wide(loops) }
            }
        }
    }

    /// [`Isa::run`] for loops too long for the compiler to inline a closure.
    #[inline]
    pub(crate) fn run_long<L: Loops>(self, loops: L) {
        match self {
            Isa::Portable => loops.run(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => {
                #[target_feature(enable = "avx2,fma")]
                fn wide<L: Loops>(loops: L) {
                    loops.run();
                }
                // SAFETY: the variant proves that the processor has AVX2 and FMA.
                unsafe { wide(loops) }
            }
        }
    }

    /// Products of a band of 4-bit rows with each row of `x`: `out[n][r]` over all groups.
    ///
    /// Columns of `x` are in even-odd order: columns 0, 2, … 30 of a group, then 1, 3, … 31.
    /// `scales` is `[groups][band row]`.
    ///
    /// # Panics
    /// If the parts do not have the sizes that `scales` and `out` imply.
    pub fn few_nibbles(
        self,
        w: &NibbleBand<'_>,
        scales: &[[f32; BAND]],
        x: &Few<'_>,
        out: &mut [[f32; BAND]],
    ) {
        check_few(x, scales.len(), out.len());
        w.check(scales.len());
        match self {
            Isa::Portable => portable::few_nibbles(w, scales, x, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features; the sizes were checked.
            Isa::Avx2(_) => unsafe { avx2::few_nibbles(w, scales, x, out) },
        }
    }

    /// Products of a band of 8-bit rows (`cols` two's-complement bytes each) with each row of `x`.
    /// Columns of `x` are in natural order, zero past `cols`.
    ///
    /// # Panics
    /// If the parts do not have the sizes that `scales` and `out` imply.
    pub fn few_bytes(self, w: &[&[u8]; BAND], scales: &[f32; BAND], x: &Few<'_>, out: &mut [[f32; BAND]]) {
        let cols = w[0].len();
        assert!(w.iter().all(|row| row.len() == cols), "weight rows differ in length");
        check_few(x, cols.div_ceil(GROUP), out.len());
        match self {
            Isa::Portable => portable::few_bytes(w, scales, x, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features; the sizes were checked.
            Isa::Avx2(_) => unsafe { avx2::few_bytes(w, scales, x, out) },
        }
    }

    /// Adds the products of four nibble planes with `x.len()` (1 or 2) octets of rows to `acc`:
    /// weight row `r` and octet `o` to `acc[r][o]`.
    ///
    /// A plane is `[groups][32]` numbers 0..=15; `scales` is `[groups][band row]`, and the planes'
    /// rows are `first` and following of the band.
    ///
    /// # Panics
    /// If the parts do not have the sizes that `scales` implies.
    pub fn tall<const OCTETS: usize>(
        self,
        planes: [&[[u8; GROUP]]; PLANES],
        meaning: Planes,
        scales: &[[f32; BAND]],
        first: usize,
        x: &[Tall<'_>; OCTETS],
        acc: &mut [[[f32; LANES]; OCTETS]],
    ) {
        let groups = scales.len();
        assert!(planes.iter().all(|plane| plane.len() == groups), "plane of another size");
        assert!(
            x.iter().all(|x| x.quants.len() == groups && x.scales.len() == groups && x.sums.len() == groups),
            "activations of another size"
        );
        assert!(acc.len() == meaning.rows() && first + acc.len() <= BAND, "rows outside the band");
        match self {
            Isa::Portable => portable::tall(planes, meaning, scales, first, x, acc),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features; the sizes were checked.
            Isa::Avx2(_) => unsafe { avx2::tall(planes, meaning, scales, first, x, acc) },
        }
    }

    /// Unpacks `plane.len()` groups of a row of 4-bit weights, group `g` at `row[g · stride]`, in
    /// even-odd order.
    ///
    /// # Panics
    /// If `row` is too short.
    pub fn unpack_nibbles(self, row: &[u8], stride: usize, plane: &mut [[u8; GROUP]]) {
        assert!(row.len() >= extent(plane.len(), stride), "a weight row is too short");
        match self {
            Isa::Portable => portable::unpack_nibbles(row, stride, plane),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features; the size was checked.
            Isa::Avx2(_) => unsafe { avx2::unpack_nibbles(row, stride, plane) },
        }
    }

    /// Splits two's-complement bytes, offset by 128, into their high and low nibbles.
    pub fn unpack_bytes(self, row: &[[u8; GROUP]], high: &mut [[u8; GROUP]], low: &mut [[u8; GROUP]]) {
        match self {
            Isa::Portable => portable::unpack_bytes(row, high, low),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features.
            Isa::Avx2(_) => unsafe { avx2::unpack_bytes(row, high, low) },
        }
    }

    /// Inner products of every row of `w` `[rows, cols]` with every row of `x` `[n, cols]` into
    /// `out` `[rows, n]`. The order of a sum depends on `cols` only (and on the instruction set).
    ///
    /// # Panics
    /// If `out` has another size.
    pub fn dots(self, w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
        assert_eq!(out.len(), (w.len() / cols) * (x.len() / cols));
        match self {
            Isa::Portable => portable::dots(w, x, cols, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant proves the features.
            Isa::Avx2(_) => unsafe { avx2::dots(w, x, cols, out) },
        }
    }
}

/// Bytes from the first of `groups` 4-bit groups to the end of the last.
fn extent(groups: usize, stride: usize) -> usize {
    groups.checked_sub(1).map_or(0, |before| before * stride + GROUP / 2)
}

fn check_few(x: &Few<'_>, groups: usize, rows: usize) {
    let all = groups * rows;
    assert!(
        x.quants.len() == all && x.scales.len() == all && x.sums.len() == all,
        "activations of another size"
    );
}
