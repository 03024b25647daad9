//! Speed of the integer products on one thread, in multiply-adds (counted as two) per second and in
//! bytes of weights per second.
//!
//! One row is bound by how fast weights arrive, 32 and more by the integer units.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shamrock_cmf::{Encoding, encode};
use shamrock_cpu::kernel::Isa;
use shamrock_cpu::linear::{Operands, product};

/// `gate_proj` of an expert of the 35B model.
const ROWS: usize = 512;
const COLS: usize = 2048;

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.618).sin()).collect()
}

fn products(c: &mut Criterion) {
    for encoding in [Encoding::Q4tp, Encoding::Q8TwoField] {
        let payload = encode(encoding, ROWS, COLS, &numbers(ROWS * COLS)).unwrap();
        let mut group = c.benchmark_group(format!("product_{}", encoding.name()));
        for n in [1, 2, 4, 8, 32, 256] {
            let x = numbers(n * COLS);
            group.throughput(Throughput::Elements((2 * n * ROWS * COLS) as u64));
            for isa in Isa::available() {
                if isa == Isa::Portable && n > 4 {
                    continue;
                }
                group.bench_function(BenchmarkId::new(isa.name(), n), |b| {
                    let operands = Operands { encoding, rows: ROWS, cols: COLS, payload: &payload, x: &x };
                    b.iter(|| product(isa, black_box(operands)).unwrap());
                });
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
