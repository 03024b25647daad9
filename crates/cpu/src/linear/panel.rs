//! A bound matrix as the kernels want it: views into the mapping, nothing copied.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use shamrock_cmf::{Encoding, q4_tiled, q4tp, q8_2f, q8_row};
use shamrock_model::{Error, Result};

use crate::kernel::{BAND, Band, Columns, GROUP, Isa, Loops, NIBBLES, Rounded, prefetch};
use crate::math::exp2;

/// A matrix as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(super) encoding: Encoding,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) bytes: &'a [u8],
}

impl Stored<'_> {
    /// Decodes some rows to f32.
    pub(super) fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        Ok(shamrock_cmf::decode_rows(self.encoding, self.rows, self.cols, self.bytes, rows, out)?)
    }
}

/// Which band of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// First of its rows; rows past the matrix's end repeat the last.
    pub(super) first: usize,
    /// What will be read afterwards: a hint.
    pub(super) next: &'a [u8],
}

/// Weights of one matrix that integer kernels read in place.
#[derive(Debug)]
pub(crate) enum Panel<'a> {
    /// 4-bit numbers with a scale per group.
    Nibbles(Nibbles<'a>),
    /// Bytes with a scale per row.
    Bytes(Bytes<'a>),
}

/// 4-bit weights.
#[derive(Debug)]
pub(crate) enum Nibbles<'a> {
    /// `q4tp`.
    Ladder(q4tp::View<'a>),
    /// `q4_tiled`.
    Tiled(q4_tiled::View<'a>),
}

/// 8-bit weights.
#[derive(Debug)]
pub(crate) struct Bytes<'a> {
    quants: &'a [u8],
    rows: usize,
    cols: usize,
    /// Half-precision numbers, one per row.
    scales: &'a [u8],
    /// One per column, for the activations.
    factors: Option<Cow<'a, [f32]>>,
}

impl<'a> Panel<'a> {
    /// The integers of a matrix; `None` if it is stored as floats. Column factors are decoded into `kept`
    /// where that is empty still.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub(super) fn new(stored: &Stored<'a>, kept: Option<&'a OnceLock<Vec<f32>>>) -> Result<Option<Self>> {
        let Stored { encoding, rows, cols, bytes } = *stored;
        let container = |e| Error::Container(shamrock_cmf::Error::from(e));
        Ok(Some(match encoding {
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => return Ok(None),
            Encoding::Q4tp => {
                Panel::Nibbles(Nibbles::Ladder(q4tp::View::new(bytes, rows, cols).map_err(container)?))
            }
            Encoding::Q4Tiled => {
                Panel::Nibbles(Nibbles::Tiled(q4_tiled::View::new(bytes, rows, cols).map_err(container)?))
            }
            Encoding::Q8Row => {
                let view = q8_row::View::new(bytes, rows, cols).map_err(container)?;
                Panel::Bytes(Bytes { quants: view.quants, rows, cols, scales: view.scales, factors: None })
            }
            Encoding::Q8TwoField => {
                let view = q8_2f::View::new(bytes, rows, cols).map_err(container)?;
                let factors = Some(match kept {
                    Some(kept) => kept.get_or_init(|| view.col_scales()).into(),
                    None => view.col_scales().into(),
                });
                Panel::Bytes(Bytes {
                    quants: view.by_row.quants,
                    rows,
                    cols,
                    scales: view.by_row.scales,
                    factors,
                })
            }
        }))
    }

    /// How activations must be ordered.
    pub(super) fn columns(&self) -> Columns {
        match self {
            Panel::Nibbles(_) => Columns::Paired,
            Panel::Bytes(_) => Columns::Natural,
        }
    }

    /// What activation columns are to be multiplied with first.
    pub(super) fn factors(&self) -> Option<&[f32]> {
        match self {
            Panel::Nibbles(_) => None,
            Panel::Bytes(bytes) => bytes.factors.as_deref(),
        }
    }

    /// Bytes of the band of weight rows that starts at `first`; none if it lies past the end.
    pub(super) fn weights(&self, first: usize) -> &'a [u8] {
        let (bytes, rows) = match self {
            Panel::Nibbles(Nibbles::Ladder(view)) => (view.nibbles.as_flattened(), view.rows()),
            Panel::Nibbles(Nibbles::Tiled(view)) => (view.tiles.as_flattened(), view.rows()),
            Panel::Bytes(bytes) => (bytes.quants, bytes.rows),
        };
        let width = bytes.len() / rows;
        &bytes[first.min(rows) * width..(first + BAND).min(rows) * width]
    }

    /// Asks for the band that starts at `first`, which a product will read soon. (For the one after it, kernels
    /// ask themselves.)
    pub(super) fn prefetch(&self, first: usize) {
        if let Panel::Nibbles(nibbles) = self {
            nibbles.ask_for_scales(first);
        }
        prefetch(self.weights(first));
    }

    /// Products of a band of weight rows with the `picked` rows of `x`, into `out[i][r]`.
    pub(super) fn multiply(
        &self,
        isa: Isa,
        Place { first, next }: Place<'_>,
        x: &Rounded<'_>,
        picked: &[u32],
        scales: &mut Vec<[f32; BAND]>,
        out: &mut [[f32; BAND]],
    ) {
        match self {
            Panel::Nibbles(nibbles) => {
                nibbles.ask_for_scales(first + BAND);
                nibbles.scales(isa, first, scales);
                isa.nibbles(&nibbles.band(first, next), scales, x, picked, out);
            }
            Panel::Bytes(bytes) => {
                isa.bytes(&bytes.band(first, next), bytes.cols, &bytes.row_scales(first), x, picked, out);
            }
        }
    }
}

impl<'a> Nibbles<'a> {
    /// Bytes of a row from its first group on, and the distance of groups. Rows past the end repeat
    /// the last.
    fn row(&self, row: usize) -> (&'a [u8], usize) {
        match self {
            Nibbles::Ladder(view) => (view.row(row.min(view.rows() - 1)).as_flattened(), NIBBLES),
            Nibbles::Tiled(view) => (&view.row(row.min(view.rows() - 1)).as_flattened()[2..], NIBBLES + 2),
        }
    }

    fn band<'b>(&self, first: usize, next: &'b [u8]) -> Band<'b>
    where
        'a: 'b,
    {
        Band { rows: std::array::from_fn(|r| self.row(first + r).0), stride: self.row(first).1, next }
    }

    /// Asks for the codes of the scales of the band that starts at `first`, if they lie apart.
    fn ask_for_scales(&self, first: usize) {
        if let Nibbles::Ladder(view) = self {
            for row in first..view.rows().min(first + BAND) {
                prefetch(view.row_codes(row));
            }
        }
    }

    /// Scales of the band that starts at row `first`, `[groups][band row]`.
    fn scales(&self, isa: Isa, first: usize, out: &mut Vec<[f32; BAND]>) {
        match self {
            Nibbles::Ladder(view) => {
                out.resize(view.groups(), [0.0; BAND]);
                isa.run_long(LadderScales { view, first, out });
            }
            Nibbles::Tiled(view) => {
                let rows: [_; BAND] = std::array::from_fn(|r| view.row((first + r).min(view.rows() - 1)));
                out.clear();
                out.extend((0..rows[0].len()).map(|g| rows.map(|row| half_at(&row[g]))));
            }
        }
    }
}

impl<'a> Bytes<'a> {
    fn band<'b>(&self, first: usize, next: &'b [u8]) -> Band<'b>
    where
        'a: 'b,
    {
        let row = |r: usize| &self.quants[(first + r).min(self.rows - 1) * self.cols..][..self.cols];
        Band { rows: std::array::from_fn(row), stride: GROUP, next }
    }

    /// Scales of the band that starts at row `first`.
    fn row_scales(&self, first: usize) -> [f32; BAND] {
        std::array::from_fn(|r| half_at(&self.scales[2 * (first + r).min(self.rows - 1)..]))
    }
}

/// The half-precision number at the beginning of `bytes`.
fn half_at(bytes: &[u8]) -> f32 {
    half(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])))
}

/// A half-precision number. Scales are read so often that the library's check of the processor on
/// each conversion would show.
#[inline(always)]
fn half(bits: u32) -> f32 {
    /// 2¹¹²: the distance of the exponents' biases, 127 − 15.
    const REBIAS: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
    // Exponent 31 stays above all numbers: infinities and NaNs.
    let magnitude =
        if bits & 0x7c00 == 0x7c00 { magnitude.to_bits() | 0x7f80_0000 } else { magnitude.to_bits() };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// [`q4tp::View::scales`] for a band: `exp2(lo + code · step)`, all rows side by side.
///
/// The format defines a rung as so many single-precision products; this is the number which those
/// approximate. The two differ by a few units in the last place, far below the rounding of activations.
struct LadderScales<'a> {
    view: &'a q4tp::View<'a>,
    first: usize,
    out: &'a mut [[f32; BAND]],
}

impl Loops for LadderScales<'_> {
    #[inline(always)]
    fn run(self) {
        const CODE_BITS: usize = 5;
        let LadderScales { view, first, out } = self;
        let mut params = [0; BAND];
        let mut codes = [&[][..]; BAND];
        for r in 0..BAND {
            let row = (first + r).min(view.rows() - 1);
            params[r] = u32::from_le_bytes(view.params[row]);
            codes[r] = view.row_codes(row);
        }
        let (mut lo, mut step) = ([0.0; BAND], [0.0; BAND]);
        for r in 0..BAND {
            (lo[r], step[r]) = (half(params[r] & 0xffff), half(params[r] >> 16));
        }
        // Eight codes fill five bytes: six of them end in the first four bytes, the last two lie in
        // the last four.
        for (octet, out) in out.chunks_mut(8).enumerate() {
            let (mut early, mut late) = ([0u32; BAND], [0u32; BAND]);
            for r in 0..BAND {
                let bytes = &codes[r][octet * CODE_BITS..];
                (early[r], late[r]) = (word(bytes), word(&bytes[1..]));
            }
            for (i, out) in out.iter_mut().enumerate() {
                let (words, shift) = if i < 6 { (&early, i * CODE_BITS) } else { (&late, i * CODE_BITS - 8) };
                for r in 0..BAND {
                    let code = words[r] >> shift & (q4tp::RUNGS as u32 - 1);
                    out[r] = exp2(step[r].mul_add(code as i32 as f32, lo[r]));
                }
            }
        }
    }
}

/// The four bytes at the beginning of `bytes`; those past the end are zero.
#[inline(always)]
fn word(bytes: &[u8]) -> u32 {
    match bytes.first_chunk() {
        Some(four) => u32::from_le_bytes(*four),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn half_precision_numbers_are_read_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half(u32::from(bits)), f16::from_bits(bits).to_f32());
            assert!(got == want || got.is_nan() && want.is_nan(), "{bits:x}: {got} against {want}");
        }
    }

    #[test]
    fn band_scales_are_those_of_the_format() {
        let (rows, cols) = (19, 32 * 13);
        let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.37).sin() * (i % 97) as f32).collect();
        let payload = shamrock_cmf::encode(Encoding::Q4tp, rows, cols, &values).unwrap();
        let view = q4tp::View::new(&payload, rows, cols).unwrap();
        let mut want = vec![0.0; 13];
        for isa in Isa::available() {
            for first in [0, 16] {
                let mut band = Vec::new();
                Nibbles::Ladder(view).scales(isa, first, &mut band);
                for r in 0..BAND {
                    view.scales((first + r).min(rows - 1), &mut want);
                    for (band, want) in band.iter().zip(&want) {
                        // 31 products on one side, an exponent of up to 2⁴ rounded to 2⁻²⁴ on the other.
                        assert!((band[r] / want - 1.0).abs() < 5e-6, "{} against {want}", band[r]);
                    }
                }
            }
        }
    }
}
