//! How the numbers of a tensor are stored.
//!
//! Every encoding is a function from bytes to a row-major matrix of `f32`. Quantised encodings
//! hold matrices only; plain ones hold any shape.

mod half_bytes;
mod plain;
pub mod q4_tiled;
pub mod q4tp;
pub mod q8_2f;
pub mod q8_row;
mod rounding;
mod wide;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use rayon::prelude::*;

use crate::error::{EncodingError, Error};

/// Columns that share a scale in the 4-bit encodings.
pub(crate) const GROUP: usize = 32;

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// IEEE single precision, 4 bytes each.
    F32,
    /// IEEE half precision, 2 bytes each.
    F16,
    /// bfloat16, 2 bytes each.
    Bf16,
    /// `q8_row`: 8-bit integers with one scale per row, see [`q8_row`].
    Q8Row,
    /// `q8_2f`: 8-bit integers with one scale per row and one per column, see [`q8_2f`].
    Q8TwoField,
    /// `q4_tiled`: 4-bit integers with one scale per 32 columns, see [`q4_tiled`].
    Q4Tiled,
    /// `q4tp`: 4-bit integers with scales from a 32-step ladder per row, see [`q4tp`].
    Q4tp,
}

impl Encoding {
    /// All encodings, by id.
    pub const ALL: [Encoding; 7] = [
        Encoding::F32,
        Encoding::F16,
        Encoding::Bf16,
        Encoding::Q8Row,
        Encoding::Q8TwoField,
        Encoding::Q4Tiled,
        Encoding::Q4tp,
    ];

    /// The id in a directory record.
    pub const fn id(self) -> u8 {
        match self {
            Encoding::F32 => 0,
            Encoding::F16 => 1,
            Encoding::Bf16 => 2,
            Encoding::Q8Row => 3,
            Encoding::Q8TwoField => 9,
            Encoding::Q4Tiled => 11,
            Encoding::Q4tp => 15,
        }
    }

    /// The encoding with this id, if it is one that this crate reads.
    pub fn from_id(id: u8) -> Option<Encoding> {
        Self::ALL.into_iter().find(|encoding| encoding.id() == id)
    }

    /// The name in the format's specification, such as `q8_2f`.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::F16 => "f16",
            Encoding::Bf16 => "bf16",
            Encoding::Q8Row => "q8_row",
            Encoding::Q8TwoField => "q8_2f",
            Encoding::Q4Tiled => "q4_tiled",
            Encoding::Q4tp => "q4tp",
        }
    }

    /// Size in bytes of a payload of `shape`.
    ///
    /// # Errors
    /// If the encoding cannot hold the shape (quantised encodings hold matrices only, 4-bit ones
    /// with a multiple of 32 columns) or the size overflows.
    pub fn byte_len(self, shape: &[usize]) -> Result<u64, Error> {
        Ok(self.size_of(shape)?)
    }

    pub(crate) fn size_of(self, shape: &[usize]) -> Result<u64, EncodingError> {
        let bytes_per_value = match self {
            Encoding::F32 => Some(4),
            Encoding::F16 | Encoding::Bf16 => Some(2),
            _ => None,
        };
        let size = match bytes_per_value {
            // Whatever the other dimensions are, also where their product would overflow.
            Some(_) if shape.contains(&0) => Some(0),
            Some(bytes) => shape.iter().try_fold(bytes, |n: u64, &dim| n.checked_mul(dim as u64)),
            None => {
                let &[rows, cols] = shape else {
                    let shape = shape.to_vec();
                    return Err(EncodingError::NotMatrix { encoding: self.name(), shape });
                };
                self.matrix_size(rows, cols)?
            }
        };
        size.ok_or_else(|| EncodingError::Overflow { shape: shape.to_vec() })
    }

    fn matrix_size(self, rows: usize, cols: usize) -> Result<Option<u64>, EncodingError> {
        let grouped = matches!(self, Encoding::Q4Tiled | Encoding::Q4tp);
        if grouped && !cols.is_multiple_of(GROUP) {
            return Err(EncodingError::Columns { encoding: self.name(), cols });
        }
        let (rows, cols) = (rows as u64, cols as u64);
        Ok(match self {
            Encoding::F32 => rows.checked_mul(cols).and_then(|n| n.checked_mul(4)),
            Encoding::F16 | Encoding::Bf16 => rows.checked_mul(cols).and_then(|n| n.checked_mul(2)),
            Encoding::Q8Row => q8_row::byte_len(rows, cols),
            Encoding::Q8TwoField => q8_2f::byte_len(rows, cols),
            Encoding::Q4Tiled => q4_tiled::byte_len(rows, cols),
            Encoding::Q4tp => q4tp::byte_len(rows, cols),
        })
    }

    /// Checks that `bytes` is the size of a matrix.
    pub(crate) fn check_payload(self, bytes: &[u8], rows: usize, cols: usize) -> Result<(), EncodingError> {
        let encoding = self.name();
        let expected = self
            .matrix_size(rows, cols)?
            .ok_or_else(|| EncodingError::Overflow { shape: vec![rows, cols] })?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(EncodingError::PayloadLength { encoding, rows, cols, expected, found });
        }
        Ok(())
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Encoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<Encoding, Error> {
        let found = Self::ALL.into_iter().find(|encoding| encoding.name() == name);
        found.ok_or_else(|| EncodingError::Name(name.into()).into())
    }
}

/// Name of an encoding that the format knows and this crate does not read.
pub(crate) fn foreign_name(id: u8) -> Option<&'static str> {
    Some(match id {
        4 => "q4_block",
        5 => "mix8_4",
        6 => "u8",
        7 => "q4_col",
        8 => "vbit",
        10 => "vbit_ro",
        12 => "q1",
        13 => "q1s",
        14 => "q1t",
        16 => "q2tp",
        17 => "u32",
        18 => "u64",
        19 => "blr",
        20 => "q1g",
        21 => "mxfp4",
        _ => return None,
    })
}

/// Decodes some rows of a payload to `f32`, row-major, on this thread.
///
/// Payloads of any alignment and content decode, if need be to infinities and NaN.
///
/// # Errors
/// If `payload` does not have the size of `rows` x `cols`, `range` passes the end or `out` does not
/// hold `range.len() * cols` values.
pub fn decode_rows(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    payload: &[u8],
    range: Range<usize>,
    out: &mut [f32],
) -> Result<(), Error> {
    if range.start > range.end || range.end > rows {
        return Err(EncodingError::Rows { start: range.start, end: range.end, rows }.into());
    }
    check_values(range.len(), cols, out.len())?;
    match encoding {
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 => {
            encoding.check_payload(payload, rows, cols)?;
            let width = payload.len() / (rows * cols).max(1);
            let bytes = &payload[range.start * cols * width..range.end * cols * width];
            match encoding {
                Encoding::F32 => plain::decode_f32(bytes, out),
                Encoding::F16 => plain::decode_f16(bytes, out),
                _ => plain::decode_bf16(bytes, out),
            }
        }
        Encoding::Q8Row => q8_row::View::new(payload, rows, cols)?.decode_rows(range, out),
        Encoding::Q8TwoField => q8_2f::View::new(payload, rows, cols)?.decode_rows(range, out),
        Encoding::Q4Tiled => q4_tiled::View::new(payload, rows, cols)?.decode_rows(range, out),
        Encoding::Q4tp => q4tp::View::new(payload, rows, cols)?.decode_rows(range, out),
    }
    Ok(())
}

/// Decodes a payload to `f32`, row-major, on all threads of the current `rayon` pool.
///
/// # Errors
/// If `payload` does not have the size of `rows` x `cols`.
pub fn decode(encoding: Encoding, rows: usize, cols: usize, payload: &[u8]) -> Result<Vec<f32>, Error> {
    // Before the allocation: the payload bounds it.
    encoding.check_payload(payload, rows, cols)?;
    let mut values = vec![0.0; rows * cols];
    if !values.is_empty() {
        let step = rows_per_task(cols);
        values.par_chunks_mut(step * cols).enumerate().try_for_each(|(task, out)| {
            let start = task * step;
            let range = start..start + out.len() / cols;
            decode_rows(encoding, rows, cols, payload, range, out)
        })?;
    }
    Ok(values)
}

/// Encodes `values`, a row-major matrix, on all threads of the current `rayon` pool.
///
/// The same values give the same bytes on any number of threads. Plain encodings of other shapes
/// are written by passing any `rows` and `cols` with the right product.
///
/// # Errors
/// If the encoding cannot hold the shape, `values` has another length, or a value cannot be
/// represented: quantised encodings take finite values, `f16` what does not overflow it
/// (`bf16` and `f32` take everything).
pub fn encode(encoding: Encoding, rows: usize, cols: usize, values: &[f32]) -> Result<Vec<u8>, Error> {
    check_values(rows, cols, values.len())?;
    let size = encoding
        .matrix_size(rows, cols)?
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| EncodingError::Overflow { shape: vec![rows, cols] })?;
    let mut payload = vec![0; size];
    encode_into(encoding, rows, cols, values, &mut payload)?;
    Ok(payload)
}

/// [`encode`] into a buffer of exactly the payload's size, whose contents do not matter.
///
/// # Errors
/// As [`encode`], and if `payload` has another size.
pub fn encode_into(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    values: &[f32],
    payload: &mut [u8],
) -> Result<(), Error> {
    check_values(rows, cols, values.len())?;
    encoding.check_payload(payload, rows, cols)?;
    check_representable(encoding, cols, values)?;
    match encoding {
        Encoding::F32 => plain::encode_f32(values, payload),
        Encoding::F16 => plain::encode_f16(values, payload),
        Encoding::Bf16 => plain::encode_bf16(values, payload),
        Encoding::Q8Row => q8_row::encode(rows, cols, values, payload),
        Encoding::Q8TwoField => q8_2f::encode(rows, cols, values, payload),
        Encoding::Q4Tiled => q4_tiled::encode(cols, values, payload),
        Encoding::Q4tp => q4tp::encode(rows, cols, values, payload),
    }
    Ok(())
}

fn check_values(rows: usize, cols: usize, found: usize) -> Result<(), EncodingError> {
    if rows.checked_mul(cols) != Some(found) {
        return Err(EncodingError::ValueCount { rows, cols, found });
    }
    Ok(())
}

fn check_representable(encoding: Encoding, cols: usize, values: &[f32]) -> Result<(), EncodingError> {
    // Below this magnitude; the first f32 that rounds to infinity in half precision is 65520.
    let limit: f32 = match encoding {
        Encoding::F32 | Encoding::Bf16 => return Ok(()),
        Encoding::F16 => 65520.0,
        _ => f32::INFINITY,
    };
    const CHUNK: usize = 1 << 14;
    // Bit patterns of magnitudes are ordered like the magnitudes, NaN above all.
    let limit = limit.to_bits();
    let bad = |value: &f32| value.abs().to_bits() >= limit;
    // Folding without early exit lets the common case run at memory speed.
    let chunk_is_bad = |chunk: &[f32]| chunk.iter().fold(false, |any, value| any | bad(value));
    let Some(chunk) = values.par_chunks(CHUNK).position_first(chunk_is_bad) else {
        return Ok(());
    };
    let at = chunk * CHUNK + values[chunk * CHUNK..].iter().position(bad).unwrap_or_default();
    let (row, col, value) = (at / cols, at % cols, values[at].to_string());
    Err(EncodingError::Value { encoding: encoding.name(), row, col, value })
}

/// Rows that make a task large enough to be worth a thread's while (about 64 Ki values).
pub(crate) fn rows_per_task(cols: usize) -> usize {
    (1 << 16) / cols.clamp(1, 1 << 16)
}
