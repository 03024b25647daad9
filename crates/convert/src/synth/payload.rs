//! Random payloads, written as their encoding stores them.
//!
//! Encoding random numbers would cost far more than writing them. The integers of a quantised
//! payload are random bytes mapped through a table of normal quantiles; its scales then give the
//! values their deviation.

use half::f16;
use rayon::prelude::*;
use shamrock_cmf::{Encoding, TensorSpec, encode_into};

use super::init::Init;
use super::random::{Stream, normal_quantiles};
use crate::error::Result;

/// Bytes that one task fills; a multiple of a word.
const CHUNK: usize = 1 << 18;

/// Values of a plain encoding that one task makes.
const PLAIN_CHUNK: usize = 1 << 15;

/// Octaves that a q4tp row's scale ladder spans.
const LADDER_OCTAVES: f64 = 1.0;

/// A payload of `size` bytes for a tensor, with values distributed as `init` says.
pub(super) fn random(spec: &TensorSpec, init: Init, stream: Stream, size: usize) -> Result<Vec<u8>> {
    let mut payload = vec![0; size];
    match (spec.encoding, init, &spec.shape[..]) {
        (Encoding::Q8TwoField, Init::Normal { std, .. }, &[rows, cols]) => {
            let (integers, scales) = payload.split_at_mut(rows * cols);
            let unit = fill_int8(stream, integers);
            // As the encoder chooses them: a column's scale is its deviation.
            let (row_scales, col_scales) = scales.split_at_mut(2 * rows);
            fill_f16(row_scales, 1.0 / unit);
            fill_f16(col_scales, std);
        }
        (Encoding::Q8Row, Init::Normal { std, .. }, &[rows, cols]) => {
            let (integers, scales) = payload.split_at_mut(rows * cols);
            let unit = fill_int8(stream, integers);
            fill_f16(scales, std / unit);
        }
        (Encoding::Q4tp, Init::Normal { std, .. }, &[rows, cols]) => {
            fill_q4tp(stream, rows, cols, std, &mut payload);
        }
        (encoding, init, shape) => {
            let cols = shape.last().copied().unwrap_or(1);
            fill_plain(stream, encoding, init, cols, &mut payload)?;
        }
    }
    Ok(payload)
}

fn fill_bytes(stream: Stream, out: &mut [u8], table: &[u8; 256]) {
    let chunks = out.par_chunks_mut(CHUNK).enumerate();
    chunks.for_each(|(i, chunk)| stream.fill((i * CHUNK / 8) as u64, chunk, table));
}

fn fill_f16(out: &mut [u8], value: f64) {
    for half in out.as_chunks_mut::<2>().0 {
        *half = f16::from_f64(value).to_le_bytes();
    }
}

/// Fills with normal integers of -127..=127; returns their deviation.
fn fill_int8(stream: Stream, out: &mut [u8]) -> f64 {
    let quantiles = normal_quantiles::<256>();
    let integers = quantiles.map(|q| (q * 127.0 / quantiles[255]).round());
    fill_bytes(stream, out, &integers.map(|q| q as i8 as u8));
    deviation(&integers)
}

/// Fills a q4tp payload: nibbles, then `lo` and `step` of each row's ladder, then 5-bit codes.
fn fill_q4tp(stream: Stream, rows: usize, cols: usize, std: f64, payload: &mut [u8]) {
    let groups = cols / 32;
    let (nibbles, rest) = payload.split_at_mut(rows * groups * 16);
    let (ladders, codes) = rest.split_at_mut(rows * 4);

    let quantiles = normal_quantiles::<16>();
    let integers = quantiles.map(|q| (q * 7.0 / quantiles[15]).round());
    let nibble = |i: usize| (integers[i] + 8.0) as u8;
    fill_bytes(
        stream.part(0),
        nibbles,
        &std::array::from_fn(|byte| nibble(byte & 15) | nibble(byte >> 4) << 4),
    );

    // Codes are even over the ladder, so the mean square scale is that of its rungs.
    let step = f16::from_f64(LADDER_OCTAVES / 31.0);
    let rungs: [f64; 32] = std::array::from_fn(|code| (code as f64 * step.to_f64()).exp2());
    let rms_rung = (rungs.iter().map(|rung| rung * rung).sum::<f64>() / 32.0).sqrt();
    let low = f16::from_f64((std / (deviation(&integers) * rms_rung)).log2());
    for ladder in ladders.as_chunks_mut::<4>().0 {
        let ([a, b], [c, d]) = (low.to_le_bytes(), step.to_le_bytes());
        *ladder = [a, b, c, d];
    }

    let stride = (5 * groups).div_ceil(8);
    fill_bytes(stream.part(1), codes, &std::array::from_fn(|byte| byte as u8));
    // The bits behind a row's last code are zero.
    let used = 5 * groups % 8;
    if used != 0 {
        for last in codes.iter_mut().skip(stride - 1).step_by(stride) {
            *last &= (1 << used) - 1;
        }
    }
}

/// Makes values and encodes them, a chunk at a time.
fn fill_plain(stream: Stream, encoding: Encoding, init: Init, cols: usize, payload: &mut [u8]) -> Result<()> {
    let width = if encoding == Encoding::F32 { 4 } else { 2 };
    let quantiles = normal_quantiles::<256>();
    let z = |stream: Stream, index: usize| quantiles[usize::from(stream.byte(index as u64))];
    let value = |index: usize| match init {
        Init::Normal { mean, std, row_spread: 0.0 } => mean + std * z(stream, index),
        Init::Normal { mean, std, row_spread } => {
            mean + std * z(stream, index) * (row_spread * z(stream.part(0), index / cols)).exp()
        }
        Init::Uniform { low, high } => low + (high - low) * stream.unit(index as u64),
        Init::LogUniform { low, high } => (low + (high - low) * stream.unit(index as u64)).ln(),
    };
    payload.par_chunks_mut(PLAIN_CHUNK * width).enumerate().try_for_each(|(i, chunk)| {
        let (first, count) = (i * PLAIN_CHUNK, chunk.len() / width);
        let values: Vec<f32> = (first..first + count).map(|index| value(index) as f32).collect();
        Ok(encode_into(encoding, 1, count, &values, chunk)?)
    })
}

fn deviation(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shamrock_cmf::{Container, Writer};

    /// Every encoding gives the deviation that was asked for, mean zero, and no encoding clips.
    #[test]
    fn values_are_distributed_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let init = Init::Normal { mean: 0.0, std: 0.03, row_spread: 0.0 };
        for encoding in [Encoding::F16, Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4tp] {
            let spec = TensorSpec { name: "w".into(), encoding, shape: vec![96, 416] };
            let size = encoding.byte_len(&spec.shape).unwrap() as usize;
            let payload = random(&spec, init, Stream::new(3, "w"), size).unwrap();
            let path = dir.path().join("w.cmf");
            let mut writer = Writer::create(&path, serde_json::json!({"arch": {}}), b"", vec![spec]).unwrap();
            writer.write(0, &payload).unwrap();
            writer.finish().unwrap();
            let container = Container::open(&path).unwrap();
            let values = container.get("w").unwrap().decode().unwrap();
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let std = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
            // Sampling error of 40,000 values is 0.5 % of the deviation; five of these.
            assert!(mean.abs() < 0.03 * 0.025, "{encoding}: mean {mean}");
            assert!((std / 0.03 - 1.0).abs() < 0.025, "{encoding}: deviation {std}");
        }
    }
}
