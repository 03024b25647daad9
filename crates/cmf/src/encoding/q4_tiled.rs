//! `q4_tiled`: 4-bit integers with one scale per 32 columns, side by side.
//!
//! ```text
//! rows * cols / 32 tiles of 18 bytes, row-major:
//!   f16 scale | 16 bytes: byte n holds element 2n (low nibble) and 2n + 1 (high nibble)
//! w = (nibble - 8) * scale                                                    (f32)
//! ```
//!
//! The encoder takes `scale = f16(max |w| / 7)`, at least 2⁻¹⁴, and rounds half to even.

use std::ops::Range;

use rayon::prelude::*;

use super::rounding::{peak, round_to_int, scale};
use super::wide::{self, Kernel};
use super::{Encoding, GROUP, half_bytes};
use crate::error::EncodingError;

/// Bytes of the nibbles of a group of 32 columns.
pub(super) const NIBBLES: usize = GROUP / 2;
const TILE: usize = half_bytes::BYTES + NIBBLES;
const MAX: f32 = 7.0;
/// Tiles that make a task.
const TASK: usize = 2048;

pub(super) fn byte_len(rows: u64, cols: u64) -> Option<u64> {
    rows.checked_mul(cols / GROUP as u64)?.checked_mul(TILE as u64)
}

/// A payload's tiles.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    rows: usize,
    cols: usize,
    /// One tile of 18 bytes for each 32 columns, row-major.
    pub tiles: &'a [[u8; TILE]],
}

impl<'a> View<'a> {
    /// The tiles of a payload.
    ///
    /// # Errors
    /// If `bytes` does not have the size of the shape or `cols` is no multiple of 32.
    pub fn new(bytes: &'a [u8], rows: usize, cols: usize) -> Result<Self, EncodingError> {
        Encoding::Q4Tiled.check_payload(bytes, rows, cols)?;
        Ok(View { rows, cols, tiles: bytes.as_chunks().0 })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The `cols / 32` tiles of a row.
    pub fn row(&self, row: usize) -> &'a [[u8; TILE]] {
        let groups = self.cols / GROUP;
        &self.tiles[row * groups..][..groups]
    }

    pub(super) fn decode_rows(&self, range: Range<usize>, out: &mut [f32]) {
        let groups = self.cols / GROUP;
        let tiles = &self.tiles[range.start * groups..range.end * groups];
        wide::run(DecodeTiles { tiles, out });
    }
}

struct DecodeTiles<'a> {
    tiles: &'a [[u8; TILE]],
    out: &'a mut [f32],
}

impl Kernel for DecodeTiles<'_> {
    #[inline(always)]
    fn run(self) {
        for (tile, out) in self.tiles.iter().zip(self.out.as_chunks_mut().0) {
            let [a, b, nibbles @ ..] = tile;
            decode_group(nibbles, half_bytes::get(&[*a, *b], 0), out);
        }
    }
}

/// `(nibble - 8) * scale` for the 32 nibbles of a group.
#[inline(always)]
pub(super) fn decode_group(nibbles: &[u8; NIBBLES], scale: f32, out: &mut [f32; GROUP]) {
    // In two steps, because interleaving bytes is cheaper than interleaving floats.
    let mut spread = [0u8; GROUP];
    for (pair, byte) in spread.as_chunks_mut::<2>().0.iter_mut().zip(nibbles) {
        *pair = [byte & 15, byte >> 4];
    }
    for (value, nibble) in out.iter_mut().zip(spread) {
        *value = (i32::from(nibble) - 8) as f32 * scale;
    }
}

pub(super) fn encode(cols: usize, values: &[f32], payload: &mut [u8]) {
    debug_assert!(cols.is_multiple_of(GROUP));
    let groups = values.as_chunks::<GROUP>().0;
    let tiles = payload.as_chunks_mut::<TILE>().0;
    let tasks = groups.par_chunks(TASK).zip(tiles.par_chunks_mut(TASK));
    tasks.for_each(|(groups, tiles)| wide::run(EncodeTiles { groups, tiles }));
}

struct EncodeTiles<'a> {
    groups: &'a [[f32; GROUP]],
    tiles: &'a mut [[u8; TILE]],
}

impl Kernel for EncodeTiles<'_> {
    #[inline(always)]
    fn run(self) {
        for (group, tile) in self.groups.iter().zip(self.tiles) {
            let scale = scale(peak(group) / MAX);
            half_bytes::put(&mut tile[..half_bytes::BYTES], scale);
            let [_, _, nibbles @ ..] = tile;
            encode_group(group, 1.0 / scale, nibbles);
        }
    }
}

/// `value * inverse` as the 32 nibbles of a group, rounded half to even and clamped to -8..=7.
#[inline(always)]
pub(super) fn encode_group(values: &[f32; GROUP], inverse: f32, nibbles: &mut [u8; NIBBLES]) {
    let mut spread = [0u8; GROUP];
    for (nibble, value) in spread.iter_mut().zip(values) {
        *nibble = (round_to_int(value * inverse, -8.0, 7.0) + 8) as u8;
    }
    for (byte, [low, high]) in nibbles.iter_mut().zip(spread.as_chunks().0) {
        *byte = low | high << 4;
    }
}
