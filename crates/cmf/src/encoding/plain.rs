//! `f32`, `f16` and `bf16`: values one after the other, little endian.

use half::bf16;
use rayon::prelude::*;

use super::half_bytes;

/// Values that make a task.
const TASK: usize = 1 << 16;

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    half_bytes::decode(bytes, out);
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    values.par_chunks(TASK).zip(out.par_chunks_mut(4 * TASK)).for_each(|(values, out)| {
        for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
            *bytes = value.to_le_bytes();
        }
    });
}

pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
    let tasks = values.par_chunks(TASK).zip(out.par_chunks_mut(2 * TASK));
    tasks.for_each(|(values, out)| half_bytes::encode(values, out));
}

pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    values.par_chunks(TASK).zip(out.par_chunks_mut(2 * TASK)).for_each(|(values, out)| {
        for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
            *bytes = bf16::from_f32(*value).to_le_bytes();
        }
    });
}
