//! Little-endian half-precision numbers in byte slices of any alignment.

use half::f16;
use half::slice::HalfFloatSliceExt;

pub(super) const BYTES: usize = 2;
/// Values converted at once: enough to amortise the choice of instruction set.
const BATCH: usize = 512;

/// Number `index` of `bytes`.
pub(super) fn get(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[BYTES * index], bytes[BYTES * index + 1]]).to_f32()
}

/// Stores `value`, rounded half to even, in the two `bytes`.
pub(super) fn put(bytes: &mut [u8], value: f32) {
    bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Converts all numbers; `out` has one place for each.
pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let mut batch = [f16::ZERO; BATCH];
    for (bytes, out) in bytes.chunks(BYTES * BATCH).zip(out.chunks_mut(BATCH)) {
        let batch = &mut batch[..out.len()];
        for (half, bytes) in batch.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        batch.convert_to_f32_slice(out);
    }
}

/// Stores all `values`, rounded half to even; `bytes` has two places for each.
pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    let mut batch = [f16::ZERO; BATCH];
    for (values, bytes) in values.chunks(BATCH).zip(bytes.chunks_mut(BYTES * BATCH)) {
        let batch = &mut batch[..values.len()];
        batch.convert_from_f32_slice(values);
        for (half, bytes) in batch.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = half.to_le_bytes();
        }
    }
}

/// All numbers.
pub(super) fn to_vec(bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / BYTES];
    decode(bytes, &mut out);
    out
}
