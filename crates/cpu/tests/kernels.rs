//! Every kernel against its plain twin, and the integer products against f32 ones within the bound
//! that the rounding implies.

use proptest::prelude::*;
use shamrock_cmf::{Encoding, decode, encode};
use shamrock_cpu::kernel::Isa;
use shamrock_cpu::linear::{Operands, product};

/// Bell-shaped numbers with a few outliers, as activations and weights have them.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|i| (uniform() + uniform() + uniform()) * if i % 61 == 7 { 20.0 } else { 1.0 }).collect()
}

fn quantised() -> impl Strategy<Value = Encoding> {
    prop::sample::select(vec![Encoding::Q4tp, Encoding::Q4Tiled, Encoding::Q8Row, Encoding::Q8TwoField])
}

/// Shapes with every kind of edge: bands, tasks, planes, octets, tiles and groups cut short.
fn shapes() -> impl Strategy<Value = (usize, usize, usize)> {
    let rows = prop_oneof![1..20usize, Just(64), 60..80usize, Just(130)];
    let cols = prop_oneof![Just(32usize), 1..100usize, (1..24usize).prop_map(|g| 32 * g)];
    let n = prop_oneof![1..6usize, Just(8), 5..40usize, Just(32), Just(33), 60..90usize];
    (rows, cols, n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_instruction_set_gives_the_same_bits(encoding in quantised(), (rows, cols, n) in shapes(), seed: u32) {
        let cols = if encoding.byte_len(&[rows, cols]).is_ok() { cols } else { cols.next_multiple_of(32) };
        let payload = encode(encoding, rows, cols, &numbers(rows * cols, seed)).unwrap();
        let x = numbers(n * cols, seed ^ 77);
        let of = |isa| product(isa, Operands { encoding, rows, cols, payload: &payload, x: &x });
        let plain = of(Isa::Portable).unwrap();
        for isa in Isa::available() {
            prop_assert_eq!(&of(isa).unwrap(), &plain, "{}", isa.name());
        }
        // A row's result is its own, whatever kernel the rows beside it call for.
        let alone = product(Isa::detect(), Operands { encoding, rows, cols, payload: &payload, x: &x[..cols] });
        prop_assert_eq!(&alone.unwrap()[..], &plain[..rows]);
    }

    /// An activation is off by at most half a step of its group, a 254th of the group's peak, so a
    /// product is off by at most `Σ_groups peak/254 · Σ |w|` over the columns; peaks and weights
    /// with the column field moved from the one to the other. The f32 sums on both sides add a few
    /// units in the last place of `Σ |x w|`.
    #[test]
    fn rounding_is_within_its_bound(encoding in quantised(), (rows, cols, n) in shapes(), seed: u32) {
        let cols = if encoding.byte_len(&[rows, cols]).is_ok() { cols } else { cols.next_multiple_of(32) };
        let payload = encode(encoding, rows, cols, &numbers(rows * cols, seed)).unwrap();
        let x = numbers(n * cols, seed ^ 77);
        let got = product(Isa::detect(), Operands { encoding, rows, cols, payload: &payload, x: &x }).unwrap();
        let w = decode(encoding, rows, cols, &payload).unwrap();
        let factors = match encoding {
            Encoding::Q8TwoField => {
                shamrock_cmf::q8_2f::View::new(&payload, rows, cols).unwrap().col_scales()
            }
            _ => vec![1.0; cols],
        };
        for (x, got) in x.chunks_exact(cols).zip(got.chunks_exact(rows)) {
            for (w, got) in w.chunks_exact(cols).zip(got) {
                let (mut exact, mut size, mut bound) = (0.0f64, 0.0f64, 0.0f64);
                for ((w, x), f) in w.chunks(32).zip(x.chunks(32)).zip(factors.chunks(32)) {
                    let peak = x.iter().zip(f).map(|(x, f)| f64::from(x * f).abs()).fold(0.0, f64::max);
                    for ((w, x), f) in w.iter().zip(x).zip(f) {
                        let (w, x, f) = (f64::from(*w), f64::from(*x), f64::from(*f));
                        exact += w * x;
                        size += (w * x).abs();
                        bound += peak / 254.0 * (w / f).abs();
                    }
                }
                let off = (f64::from(*got) - exact).abs();
                prop_assert!(off <= bound * 1.0001 + size * 1e-5, "off by {off}, bound {bound}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let (rows, cols) = (9, 64);
    for encoding in [Encoding::Q4tp, Encoding::Q8TwoField] {
        let payload = encode(encoding, rows, cols, &numbers(rows * cols, 1)).unwrap();
        for n in [1, 9] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = numbers(n * cols, 2);
                x[40] = bad;
                let operands = Operands { encoding, rows, cols, payload: &payload, x: &x };
                let got = product(Isa::detect(), operands).unwrap();
                assert!(got[..rows].iter().all(|y| !y.is_finite()));
                assert!(got[rows..].iter().all(|y| y.is_finite()));
            }
        }
    }
}

#[test]
fn float_products_agree_with_double_precision() {
    let isas = Isa::available();
    for (rows, cols, n) in [(1, 1, 1), (3, 7, 2), (9, 64, 1), (12, 131, 5), (5, 40, 33)] {
        let (w, x) = (numbers(rows * cols, 3), numbers(n * cols, 4));
        for isa in isas.iter().copied() {
            let mut out = vec![0.0; rows * n];
            isa.dots(&w, &x, cols, &mut out);
            for (w, out) in w.chunks_exact(cols).zip(out.chunks_exact(n)) {
                for (x, got) in x.chunks_exact(cols).zip(out) {
                    let terms = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let (exact, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                    // A sum of `cols / 8` terms a lane, each step rounded to 2⁻²⁴.
                    assert!((f64::from(*got) - exact).abs() <= size * 1e-6);
                }
            }
        }
    }
}
