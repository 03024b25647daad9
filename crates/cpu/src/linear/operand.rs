//! Activation rows made ready for a kernel.

use rayon::prelude::*;

use crate::kernel::{BAND, Few, GROUP, Isa, LANES, Tall};

/// Most rows that go one at a time through a [`Few`] kernel; more lie side by side.
pub(super) const FEW_ROWS: usize = 4;
/// Activations of a group below this magnitude count as zero: their scale could not be inverted.
const TINY: f32 = 1e-30;
/// 1.5 · 2²³: adding it to a number of magnitude below 2²² leaves no fraction bits.
const SHIFT: f32 = 12_582_912.0;

const _: () = assert!(LANES == BAND);

/// Order of the columns inside a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// 0, 1, … 31.
    Natural,
    /// 0, 2, … 30, 1, 3, … 31: the order in which nibbles are unpacked.
    EvenOdd,
}

/// Rows rounded to 8 bits: `x ≈ scale · quant` with one scale per row and group,
/// `scale = max |x| / 127`, so that each value is off by at most half a scale.
#[derive(Debug)]
pub(super) struct Quantised {
    rows: usize,
    groups: usize,
    tall: bool,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

/// One rounded group.
struct Group {
    quants: [i8; GROUP],
    scale: f32,
    sum: i32,
}

impl Quantised {
    /// Rounds `x` `[n, cols]`, each column multiplied with its `factor` first if there are any.
    pub(super) fn new(isa: Isa, x: &[f32], cols: usize, columns: Columns, factors: Option<&[f32]>) -> Self {
        let (rows, groups) = (x.len() / cols, cols.div_ceil(GROUP));
        let tall = rows > FEW_ROWS;
        let places = if tall { rows.next_multiple_of(LANES) } else { rows } * groups;
        let mut new = Quantised {
            rows,
            groups,
            tall,
            quants: vec![0; places * GROUP],
            scales: vec![0.0; places],
            sums: vec![0; places],
        };
        if tall {
            let octets = new
                .quants
                .par_chunks_mut(LANES * groups * GROUP)
                .zip(new.scales.par_chunks_mut(LANES * groups))
                .zip(new.sums.par_chunks_mut(LANES * groups));
            octets.zip(x.par_chunks(LANES * cols)).for_each(|(((quants, scales), sums), x)| {
                for (lane, x) in x.chunks_exact(cols).enumerate() {
                    isa.run(|| {
                        for_groups(x, columns, factors, |g, group| {
                            (scales[g * LANES + lane], sums[g * LANES + lane]) = (group.scale, group.sum);
                            let quads = quants[g * LANES * GROUP..].as_chunks_mut::<4>().0.iter_mut();
                            let quads = quads.skip(lane).step_by(LANES);
                            for (to, from) in quads.zip(group.quants.as_chunks::<4>().0) {
                                *to = *from;
                            }
                        });
                    });
                }
            });
        } else {
            for (row, x) in x.chunks_exact(cols).enumerate() {
                isa.run(|| {
                    for_groups(x, columns, factors, |g, group| {
                        let place = row * groups + g;
                        (new.scales[place], new.sums[place]) = (group.scale, group.sum);
                        new.quants[place * GROUP..][..GROUP].copy_from_slice(&group.quants);
                    });
                });
            }
        }
        new
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the rows lie side by side.
    pub(super) fn is_tall(&self) -> bool {
        self.tall
    }

    /// All rows, when they are [few](FEW_ROWS).
    pub(super) fn few(&self) -> Few<'_> {
        debug_assert!(!self.tall);
        Few { quants: self.quants.as_chunks().0, scales: &self.scales, sums: &self.sums }
    }

    /// Groups `groups` of the rows `8 · octet` and following, when they lie side by side.
    pub(super) fn octet(&self, octet: usize, groups: std::ops::Range<usize>) -> Tall<'_> {
        debug_assert!(self.tall);
        let groups = octet * self.groups + groups.start..octet * self.groups + groups.end;
        Tall {
            quants: &self.quants.as_chunks().0[groups.clone()],
            scales: &self.scales.as_chunks().0[groups.clone()],
            sums: &self.sums.as_chunks().0[groups],
        }
    }
}

/// Rounds the groups of one row.
#[inline(always)]
fn for_groups(x: &[f32], columns: Columns, factors: Option<&[f32]>, mut put: impl FnMut(usize, Group)) {
    for (g, from) in (0..x.len()).step_by(GROUP).enumerate() {
        let to = (from + GROUP).min(x.len());
        let mut values = [0.0; GROUP];
        values[..to - from].copy_from_slice(&x[from..to]);
        if let Some(factors) = factors {
            for (value, factor) in values.iter_mut().zip(&factors[from..to]) {
                *value *= factor;
            }
        }
        put(g, round(&values, columns));
    }
}

#[inline(always)]
fn round(values: &[f32; GROUP], columns: Columns) -> Group {
    // Magnitudes are ordered like their bit patterns, NaN above all: a group with one gets a NaN
    // scale and spoils its products, as it would in floats.
    let peak = values.iter().fold(0, |peak, value| value.abs().to_bits().max(peak));
    let peak = f32::from_bits(peak);
    let (scale, inverse) = if peak < TINY { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) };
    // The low bits are the integer; where there is none (NaN), any byte.
    let whole: [i8; GROUP] =
        std::array::from_fn(|i| (values[i] * inverse + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i8);
    let sum = whole.iter().map(|q| i32::from(*q)).sum();
    let quants = match columns {
        Columns::Natural => whole,
        Columns::EvenOdd => std::array::from_fn(|i| whole[2 * (i % (GROUP / 2)) + i / (GROUP / 2)]),
    };
    Group { quants, scale, sum }
}
