//! Time on the device of products with the file's matrices: in multiply-adds (counted as two) per second, and in
//! bytes of weights per second.
//!
//! Up to eight rows are bound by how fast weights arrive, so they are spread over more memory than caches have.

fn main() {
    #[cfg(any(target_os = "macos", metal_host))]
    device::run();
    #[cfg(not(any(target_os = "macos", metal_host)))]
    eprintln!("this program was not built for macOS");
}

#[cfg(any(target_os = "macos", metal_host))]
mod device {
    use criterion::{BenchmarkId, Criterion, Throughput};
    use shamrock_cmf::{Encoding, encode};
    use shamrock_metal::Precision;
    use shamrock_metal::measure::Product;

    /// `gate_proj` of an expert of the 35B model.
    const OUTS: usize = 512;
    const COLS: usize = 2048;
    /// Bytes of weights that the products go round.
    const SPREAD: usize = 128 << 20;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.618).sin()).collect()
    }

    fn products(c: &mut Criterion, encoding: Encoding) {
        let payload = encode(encoding, OUTS, COLS, &numbers(OUTS * COLS)).expect("finite numbers");
        let copies = SPREAD.div_ceil(payload.len());
        for rows in [1, 2, 4, 8, 16, 32, 256] {
            for precision in [Precision::Half, Precision::Full] {
                let mut product = Product::new(encoding, (OUTS, COLS), &payload, copies, rows, precision)
                    .expect("a device");
                let mut group = c.benchmark_group(format!("product_{encoding}_{precision:?}"));
                for (unit, throughput) in [
                    ("multiply-adds", Throughput::Elements((2 * rows * OUTS * COLS) as u64)),
                    ("weights", Throughput::Bytes(payload.len() as u64)),
                ] {
                    group.throughput(throughput);
                    group.bench_function(BenchmarkId::new(unit, rows), |b| {
                        b.iter_custom(|times| product.run(times as usize).expect("a result"));
                    });
                }
            }
        }
    }

    pub(super) fn run() {
        let mut criterion = Criterion::default().configure_from_args();
        for encoding in [Encoding::Q4tp, Encoding::Q8TwoField] {
            products(&mut criterion, encoding);
        }
        criterion.final_summary();
    }
}
