//! `q4tp`: 4-bit integers whose scales are rungs of a ladder, one ladder per row.
//!
//! With `G = cols / 32` groups in a row and `S = ceil(5 * G / 8)`:
//!
//! ```text
//! nibbles  rows * G * 16 bytes, row-major, 16 a group;
//!          byte n holds element 2n (low nibble) and 2n + 1 (high nibble)
//! params   rows * (f16 lo, f16 step)
//! codes    rows * S bytes; group g has bits 5g ..= 5g + 4 of its row, least significant first
//!
//! t[0] = exp2(lo), t[c] = t[c - 1] * exp2(step)            (f32, 31 products one after the other)
//! w    = (nibble - 8) * t[code]                            (f32)
//! ```
//!
//! A group's scale costs 5 bits instead of 16. The planes are apart so that a kernel can stream
//! nibbles in whole vectors.
//!
//! The encoder puts a row's ladder between the levels of its smallest and largest group, where a
//! group's level is `log2(max |w| / 7)`, and searches four rungs about each group's level for the
//! smallest squared error. The reader does not depend on the search. Single-precision sums run in
//! element order, so payloads are equal to those of the format's other encoders, byte for byte.

use std::ops::Range;

use half::f16;
use rayon::prelude::*;

use super::q4_tiled::{NIBBLES, decode_group, encode_group};
use super::rounding::{peak, round_clamped, round_to_int, scale};
use super::wide::{self, Kernel};
use super::{Encoding, GROUP, half_bytes, rows_per_task};
use crate::error::EncodingError;

/// Rungs of a ladder, numbered by 5-bit codes.
pub const RUNGS: usize = 32;
const CODE_BITS: usize = 5;
/// Bytes of a row's ladder parameters.
const PARAMS: usize = 2 * half_bytes::BYTES;

/// Bytes of a row's codes.
const fn code_stride(groups: usize) -> usize {
    // `CODE_BITS * groups` cannot overflow: a row's nibbles alone take more bytes.
    (CODE_BITS * groups).div_ceil(8)
}

pub(super) fn byte_len(rows: u64, cols: u64) -> Option<u64> {
    let groups = cols / GROUP as u64;
    let codes = groups.checked_mul(CODE_BITS as u64)?.div_ceil(8);
    let row = groups.checked_mul(NIBBLES as u64)?.checked_add(PARAMS as u64 + codes)?;
    rows.checked_mul(row)
}

/// The scales of a row: `exp2(lo)`, then 31 single-precision products with `exp2(step)`.
///
/// The powers are correctly rounded, hence the same on every platform. A C library's
/// single-precision `exp2` now and then differs in the last place, and a difference in the ratio
/// grows along the ladder; see `docs/format.md`.
pub fn ladder(lo: f32, step: f32) -> [f32; RUNGS] {
    let exp2 = |x: f32| f64::from(x).exp2() as f32;
    let ratio = exp2(step);
    let mut rung = exp2(lo);
    std::array::from_fn(|_| {
        let this = rung;
        rung *= ratio;
        this
    })
}

/// A payload's planes.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    rows: usize,
    cols: usize,
    /// 16 bytes for each group, row-major.
    pub nibbles: &'a [[u8; NIBBLES]],
    /// `(f16 lo, f16 step)` for each row, little endian.
    pub params: &'a [[u8; PARAMS]],
    /// [`View::code_stride`] bytes for each row.
    pub codes: &'a [u8],
}

impl<'a> View<'a> {
    /// The planes of a payload.
    ///
    /// # Errors
    /// If `bytes` does not have the size of the shape or `cols` is no multiple of 32.
    pub fn new(bytes: &'a [u8], rows: usize, cols: usize) -> Result<Self, EncodingError> {
        Encoding::Q4tp.check_payload(bytes, rows, cols)?;
        let (nibbles, rest) = bytes.split_at(rows * (cols / GROUP) * NIBBLES);
        let (params, codes) = rest.split_at(rows * PARAMS);
        Ok(View { rows, cols, nibbles: nibbles.as_chunks().0, params: params.as_chunks().0, codes })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Groups in a row: `cols / 32`.
    pub fn groups(&self) -> usize {
        self.cols / GROUP
    }

    /// Bytes of a row's codes.
    pub fn code_stride(&self) -> usize {
        code_stride(self.groups())
    }

    /// The nibbles of a row's groups.
    pub fn row(&self, row: usize) -> &'a [[u8; NIBBLES]] {
        &self.nibbles[row * self.groups()..][..self.groups()]
    }

    /// The ladder of a row.
    pub fn ladder(&self, row: usize) -> [f32; RUNGS] {
        let params = &self.params[row];
        ladder(half_bytes::get(params, 0), half_bytes::get(params, 1))
    }

    /// The packed codes of a row.
    pub fn row_codes(&self, row: usize) -> &'a [u8] {
        &self.codes[row * self.code_stride()..][..self.code_stride()]
    }

    /// The scale of each group of a row, into `out` of [`View::groups`] values.
    pub fn scales(&self, row: usize, out: &mut [f32]) {
        let ladder = self.ladder(row);
        // Eight codes fill five bytes.
        for (out, bytes) in out.chunks_mut(8).zip(self.row_codes(row).chunks(CODE_BITS)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let mut word = u64::from_le_bytes(word);
            for scale in out {
                *scale = ladder[word as usize % RUNGS];
                word >>= CODE_BITS;
            }
        }
    }

    pub(super) fn decode_rows(&self, range: Range<usize>, out: &mut [f32]) {
        let mut scales = vec![0.0; self.groups()];
        for (row, out) in range.zip(out.chunks_exact_mut(self.cols.max(1))) {
            self.scales(row, &mut scales);
            wide::run(DecodeRow { nibbles: self.row(row), scales: &scales, out });
        }
    }
}

struct DecodeRow<'a> {
    nibbles: &'a [[u8; NIBBLES]],
    scales: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for DecodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        let groups = self.out.as_chunks_mut().0.iter_mut();
        for ((out, nibbles), &scale) in groups.zip(self.nibbles).zip(self.scales) {
            decode_group(nibbles, scale, out);
        }
    }
}

pub(super) fn encode(rows: usize, cols: usize, values: &[f32], payload: &mut [u8]) {
    let groups = cols / GROUP;
    let (nibbles, rest) = payload.split_at_mut(rows * groups * NIBBLES);
    let (params, codes) = rest.split_at_mut(rows * PARAMS);
    let params = params.as_chunks_mut::<PARAMS>().0;
    if cols == 0 {
        params.iter_mut().for_each(|bytes| *bytes = fit_ladder(&[], &[]).to_bytes());
        return;
    }
    values
        .par_chunks(cols)
        .zip(nibbles.par_chunks_mut(groups * NIBBLES))
        .zip(params)
        .zip(codes.par_chunks_mut(code_stride(groups)))
        .with_min_len(rows_per_task(cols))
        .for_each_init(Scratch::default, |scratch, (((values, nibbles), params), codes)| {
            let (values, nibbles) = (values.as_chunks().0, nibbles.as_chunks_mut().0);
            wide::run(EncodeRow { values, nibbles, params, codes, scratch });
        });
}

/// What encoding a row needs beside its output, kept from row to row.
#[derive(Default)]
struct Scratch {
    peaks: Vec<f32>,
    levels: Vec<f32>,
    codes: Vec<u8>,
}

struct EncodeRow<'a> {
    values: &'a [[f32; GROUP]],
    nibbles: &'a mut [[u8; NIBBLES]],
    params: &'a mut [u8; PARAMS],
    codes: &'a mut [u8],
    scratch: &'a mut Scratch,
}

impl Kernel for EncodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        // Plain loops: closures inside iterator adapters are not always compiled for wide vectors.
        let groups = self.values.len();
        let Scratch { peaks, levels, codes } = self.scratch;
        peaks.resize(groups, 0.0);
        levels.resize(groups, 0.0);
        codes.resize(groups, 0);
        for ((group, group_peak), level) in self.values.iter().zip(peaks.iter_mut()).zip(levels.iter_mut()) {
            *group_peak = peak(group);
            *level = f64::from(scale(*group_peak / 7.0)).log2() as f32;
        }

        let fit = fit_ladder(peaks, levels);
        *self.params = fit.to_bytes();
        let (lo, step) = (fit.lo.to_f32(), fit.step.to_f32());
        let rungs = ladder(lo, step);
        let inverses = rungs.map(|rung| 1.0 / rung);

        let batches = self.values.chunks(LANES).zip(levels.chunks(LANES)).zip(codes.chunks_mut(LANES));
        for ((batch, levels), codes) in batches {
            let mut nominal = [0; LANES];
            for (nominal, level) in nominal.iter_mut().zip(levels) {
                *nominal = round_to_int((level - lo) / step, 0.0, (RUNGS - 1) as f32) as u8;
            }
            codes.copy_from_slice(&search(batch, nominal, &rungs, &inverses)[..batch.len()]);
        }

        for (((group, nibbles), code), &peak) in
            self.values.iter().zip(self.nibbles).zip(codes.iter_mut()).zip(peaks.iter())
        {
            // A group of zeros is as good on any rung; the format's encoders take the first.
            *code = if peak == 0.0 { 0 } else { *code };
            encode_group(group, inverses[usize::from(*code)], nibbles);
        }
        pack_codes(codes, self.codes);
    }
}

/// Parameters of a row's ladder.
struct Fit {
    lo: f16,
    step: f16,
}

impl Fit {
    fn to_bytes(&self) -> [u8; PARAMS] {
        let ([a, b], [c, d]) = (self.lo.to_le_bytes(), self.step.to_le_bytes());
        [a, b, c, d]
    }
}

/// A ladder from the lowest to at least the highest level of the groups that are not all zero.
fn fit_ladder(peaks: &[f32], levels: &[f32]) -> Fit {
    let live = || levels.iter().zip(peaks).filter(|(_, peak)| **peak != 0.0).map(|(level, _)| *level);
    // A row of zeros has the level of the smallest scale.
    let floor = f64::from(scale(0.0)).log2() as f32;
    let low = live().reduce(f32::min).unwrap_or(floor);
    let high = live().reduce(f32::max).unwrap_or(floor);

    let lo = f16::from_f32(low);
    let span = (high - lo.to_f32()).max(0.0);
    let top = (RUNGS - 1) as f32;
    let mut step = f16::from_f32(span / top);
    // Rounding may leave the last rung short of the highest level: go up unit by unit. A step is
    // never zero.
    let reaches = |step: f16| step > f16::ZERO && lo.to_f32() + top * step.to_f32() >= high;
    for _ in 0..64 {
        if reaches(step) {
            break;
        }
        step = f16::from_bits(step.to_bits() + 1);
    }
    Fit { lo, step }
}

/// Groups searched at once, one to a vector lane: two AVX2 vectors, so that two chains of sums
/// are in flight.
const LANES: usize = 16;
/// Rungs tried for a group: from two below its nominal one to one above.
const CANDIDATES: u8 = 4;

/// The code of each group that gives the smallest squared error, the lowest on ties. Lanes beyond
/// `batch` are meaningless.
#[inline(always)]
fn search(
    batch: &[[f32; GROUP]],
    nominal: [u8; LANES],
    rungs: &[f32; RUNGS],
    inverses: &[f32; RUNGS],
) -> [u8; LANES] {
    let mut columns = [[0f32; LANES]; GROUP];
    for (lane, group) in batch.iter().enumerate().take(LANES) {
        for (column, value) in columns.iter_mut().zip(group) {
            column[lane] = *value;
        }
    }
    let (mut best, mut least) = ([0; LANES], [0.0; LANES]);
    for candidate in 0..CANDIDATES {
        let (mut codes, mut scales, mut inverse_scales) = ([0; LANES], [0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            // At the ladder's ends a candidate falls onto its neighbour: it ties and loses nothing.
            let code = (nominal[lane].saturating_sub(2) + candidate).min(nominal[lane] + 1);
            codes[lane] = code.min(RUNGS as u8 - 1);
            scales[lane] = rungs[usize::from(codes[lane])];
            inverse_scales[lane] = inverses[usize::from(codes[lane])];
        }
        let errors = squared_errors(&columns, &scales, &inverse_scales);
        for lane in 0..LANES {
            if candidate == 0 || errors[lane] < least[lane] {
                (least[lane], best[lane]) = (errors[lane], codes[lane]);
            }
        }
    }
    best
}

/// The squared error of each lane's group on its rung: a single-precision sum in element order.
#[inline(always)]
fn squared_errors(
    columns: &[[f32; LANES]; GROUP],
    scales: &[f32; LANES],
    inverses: &[f32; LANES],
) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    for column in columns {
        for lane in 0..LANES {
            let nibble = round_clamped(column[lane] * inverses[lane], -8.0, 7.0);
            let error = column[lane] - nibble * scales[lane];
            sums[lane] += error * error;
        }
    }
    sums
}

/// Packs five bits a code, least significant first.
fn pack_codes(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks(8).zip(out.chunks_mut(CODE_BITS)) {
        let word = codes.iter().rev().fold(0u64, |word, &code| word << CODE_BITS | u64::from(code));
        out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
    }
}
