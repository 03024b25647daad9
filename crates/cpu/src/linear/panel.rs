//! A bound matrix as the kernels want it: views into the mapping, nothing copied.

use std::ops::Range;
use std::sync::OnceLock;

use half::f16;
use shamrock_cmf::{Encoding, q4_tiled, q4tp, q8_2f, q8_row};
use shamrock_model::{Error, Result};

use super::operand::{Columns, Quantised};
use crate::kernel::{BAND, GROUP, Isa, NibbleBand, PLANES, Planes};

/// Bytes of a 4-bit group.
const NIBBLES: usize = GROUP / 2;

/// A matrix as it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
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

/// Weights of one matrix that integer kernels read in place.
#[derive(Debug)]
pub(super) enum Panel<'a> {
    /// 4-bit numbers with a scale per group.
    Nibbles(Nibbles<'a>),
    /// Bytes with a scale per row.
    Bytes(Bytes<'a>),
}

/// 4-bit weights.
#[derive(Debug)]
pub(super) enum Nibbles<'a> {
    /// `q4tp`.
    Ladder(q4tp::View<'a>),
    /// `q4_tiled`.
    Tiled(q4_tiled::View<'a>),
}

/// 8-bit weights.
#[derive(Debug)]
pub(super) struct Bytes<'a> {
    quants: &'a [u8],
    rows: usize,
    cols: usize,
    /// Half-precision numbers, one per row.
    scales: &'a [u8],
    /// One per column, for the activations.
    factors: Option<Vec<f32>>,
}

impl<'a> Panel<'a> {
    /// The integers of a matrix; `None` if it is stored as floats.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub(super) fn new(stored: &Stored<'a>) -> Result<Option<Self>> {
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
                let factors = Some(view.col_scales());
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
            Panel::Nibbles(_) => Columns::EvenOdd,
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

    /// Whether activations for `other` serve for this panel too.
    pub(super) fn same_form(&self, other: &Panel<'_>) -> bool {
        self.factors().is_none() && other.factors().is_none() && self.columns() == other.columns()
    }

    /// Activations `x` in the form that this panel wants.
    pub(super) fn quantise(&self, isa: Isa, x: &[f32], cols: usize) -> Quantised {
        Quantised::new(isa, x, cols, self.columns(), self.factors())
    }

    /// How this panel unpacks.
    pub(super) fn planes(&self) -> Planes {
        match self {
            Panel::Nibbles(_) => Planes::Single,
            Panel::Bytes(_) => Planes::Pair,
        }
    }

    /// Scales of the band that starts at row `first`, into `[groups][band row]`. Rows past the end
    /// repeat the last.
    #[inline(always)]
    pub(super) fn band_scales(&self, first: usize, out: &mut [[f32; BAND]]) {
        match self {
            Panel::Nibbles(Nibbles::Ladder(view)) => ladder_scales(view, first, out),
            Panel::Nibbles(Nibbles::Tiled(view)) => {
                let rows: [_; BAND] = std::array::from_fn(|r| view.row((first + r).min(view.rows() - 1)));
                for (g, out) in out.iter_mut().enumerate() {
                    *out = rows.map(|row| half(&row[g][..2]));
                }
            }
            Panel::Bytes(bytes) => out.fill(bytes.row_scales(first)),
        }
    }

    /// Unpacks groups `groups` of `planes().rows()` rows from `first` on into nibble planes. Rows
    /// past the end repeat the last.
    pub(super) fn unpack(
        &self,
        isa: Isa,
        first: usize,
        groups: Range<usize>,
        planes: &mut [&mut [[u8; GROUP]]; PLANES],
    ) {
        match self {
            Panel::Nibbles(nibbles) => {
                for (p, plane) in planes.iter_mut().enumerate() {
                    let (row, stride) = nibbles.row(first + p);
                    isa.unpack_nibbles(&row[groups.start * stride..], stride, plane);
                }
            }
            Panel::Bytes(bytes) => {
                for (r, [high, low]) in planes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let row = &bytes.row(first + r)[groups.start * GROUP..];
                    let (whole, rest) = row[..row.len().min(groups.len() * GROUP)].as_chunks();
                    isa.unpack_bytes(whole, high, low);
                    if !rest.is_empty() {
                        // Activations past the last column are zero: any weight will do.
                        let mut padded = [0; GROUP];
                        padded[..rest.len()].copy_from_slice(rest);
                        isa.unpack_bytes(&[padded], &mut high[whole.len()..], &mut low[whole.len()..]);
                    }
                }
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

    /// The band that starts at row `first`.
    pub(super) fn band(&self, first: usize) -> NibbleBand<'a> {
        let rows = std::array::from_fn(|r| self.row(first + r).0);
        NibbleBand { rows, stride: self.row(first).1 }
    }
}

impl<'a> Bytes<'a> {
    fn row(&self, row: usize) -> &'a [u8] {
        &self.quants[row.min(self.rows - 1) * self.cols..][..self.cols]
    }

    /// The band that starts at row `first`.
    pub(super) fn band(&self, first: usize) -> [&'a [u8]; BAND] {
        std::array::from_fn(|r| self.row(first + r))
    }

    /// Scales of the band that starts at row `first`.
    pub(super) fn row_scales(&self, first: usize) -> [f32; BAND] {
        std::array::from_fn(|r| half(&self.scales[2 * (first + r).min(self.rows - 1)..]))
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// [`q4tp::View::scales`] for eight rows at once: the ladders' products run side by side, and their
/// powers come from a table.
#[inline(always)]
fn ladder_scales(view: &q4tp::View<'_>, first: usize, out: &mut [[f32; BAND]]) {
    const CODE_BITS: usize = 5;
    let rows: [usize; BAND] = std::array::from_fn(|r| (first + r).min(view.rows() - 1));
    let power = |row: usize, at: usize| {
        let bytes = &view.params[row][at..];
        powers()[usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))]
    };
    let (mut rung, mut ratio) = ([0.0; BAND], [0.0; BAND]);
    for (r, row) in rows.into_iter().enumerate() {
        (rung[r], ratio[r]) = (power(row, 0), power(row, 2));
    }
    let mut ladder = [[0.0; BAND]; q4tp::RUNGS];
    for this in &mut ladder {
        *this = rung;
        for (rung, ratio) in rung.iter_mut().zip(ratio) {
            *rung *= ratio;
        }
    }
    let mut codes = [&[][..]; BAND];
    for (codes, row) in codes.iter_mut().zip(rows) {
        *codes = view.row_codes(row);
    }
    for (octet, out) in out.chunks_mut(8).enumerate() {
        let mut words = [0; BAND];
        for (word, codes) in words.iter_mut().zip(codes) {
            let bytes = &codes[octet * CODE_BITS..];
            *word = match bytes.first_chunk::<8>() {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
        }
        for out in out {
            for (r, word) in words.iter_mut().enumerate() {
                out[r] = ladder[*word as usize % q4tp::RUNGS][r];
                *word >>= CODE_BITS;
            }
        }
    }
}

/// `exp2` of every half-precision number, by bits.
fn powers() -> &'static [f32] {
    static POWERS: OnceLock<Vec<f32>> = OnceLock::new();
    POWERS.get_or_init(|| {
        (0..=u16::MAX).map(|bits| f64::from(f16::from_bits(bits).to_f32()).exp2() as f32).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn band_scales_are_those_of_the_format() {
        let (rows, cols) = (11, 32 * 13);
        let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.37).sin() * (i % 97) as f32).collect();
        let payload = shamrock_cmf::encode(Encoding::Q4tp, rows, cols, &values).unwrap();
        let view = q4tp::View::new(&payload, rows, cols).unwrap();
        let mut want = vec![0.0; 13];
        for first in [0, 8] {
            let mut band = vec![[0.0; BAND]; 13];
            ladder_scales(&view, first, &mut band);
            for r in 0..BAND {
                view.scales((first + r).min(rows - 1), &mut want);
                assert!(band.iter().zip(&want).all(|(band, want)| band[r] == *want));
            }
        }
    }
}
