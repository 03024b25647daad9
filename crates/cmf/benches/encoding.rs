//! Speed of encoders and decoders on one expert-sized matrix, in bytes of `f32` per second.
//!
//! The floor of both is memory: an encoder reads four bytes a value, a decoder writes them.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shamrock_cmf::{Container, Encoding, TensorSpec, Writer, encode_into, hash64};

/// `down_proj` of 16 experts of the 35B model, one above the other.
const ROWS: usize = 16 * 2048;
const COLS: usize = 512;

/// Bell-shaped numbers of the size of trained weights.
fn weights() -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..ROWS * COLS).map(|_| 0.05 * (uniform() + uniform() + uniform())).collect()
}

fn encoders(c: &mut Criterion) {
    let values = weights();
    let mut group = c.benchmark_group("encode");
    group.throughput(Throughput::Bytes(4 * values.len() as u64)).sample_size(10);
    for encoding in Encoding::ALL {
        let mut payload = vec![0; encoding.byte_len(&[ROWS, COLS]).unwrap() as usize];
        group.bench_function(encoding.name(), |b| {
            b.iter(|| encode_into(encoding, ROWS, COLS, black_box(&values), &mut payload).unwrap());
        });
    }
}

fn decoders(c: &mut Criterion) {
    let values = weights();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bench.cmf");
    let spec =
        |encoding: Encoding| TensorSpec { name: encoding.name().into(), encoding, shape: vec![ROWS, COLS] };
    let specs = Encoding::ALL.map(spec).to_vec();
    let mut writer = Writer::create(&path, serde_json::json!({}), b"", specs).unwrap();
    for (index, encoding) in Encoding::ALL.into_iter().enumerate() {
        let payload = shamrock_cmf::encode(encoding, ROWS, COLS, &values).unwrap();
        writer.write(index, &payload).unwrap();
    }
    writer.finish().unwrap();
    let container = Container::open(&path).unwrap();

    let mut group = c.benchmark_group("decode_rows_one_thread");
    group.throughput(Throughput::Bytes(4 * values.len() as u64)).sample_size(10);
    let mut out = vec![0.0; ROWS * COLS];
    for tensor in container.tensors() {
        group.bench_function(tensor.name, |b| {
            b.iter(|| tensor.decode_rows(0..ROWS, black_box(&mut out)).unwrap());
        });
    }
}

fn hashing(c: &mut Criterion) {
    let bytes = vec![7; 64 << 20];
    let mut group = c.benchmark_group("hash64_one_thread");
    group.throughput(Throughput::Bytes(bytes.len() as u64)).sample_size(10);
    group.bench_function("64 MiB", |b| b.iter(|| hash64(black_box(&bytes))));
}

criterion_group!(benches, encoders, decoders, hashing);
criterion_main!(benches);
