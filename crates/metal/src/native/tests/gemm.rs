//! Products in every encoding.

use shamrock_cmf::Encoding;

use super::super::device::Device;
use super::super::kernel::{Product, Rows};
use super::super::views::View;
use super::{U, in_all_orders, in_all_orders_with, noise};
use crate::Precision;

/// What rounding to a half costs, relatively; and absolutely, below the least normal one.
const HALF: f64 = 1.0 / (1 << 11) as f64;
const HALF_LEAST: f64 = 1.0 / (1 << 25) as f64;

/// One product of `rows` rows, the first of which is row 2 of `x`, against decoded weights.
fn check(device: &Device, encoding: Encoding, rows: usize, outs: usize, cols: usize) {
    let values = noise(outs as u64, outs * cols);
    let payload = shamrock_cmf::encode(encoding, outs, cols, &values).unwrap();
    let weights = shamrock_cmf::decode(encoding, outs, cols, &payload).unwrap();
    let view = View::of(device, encoding, outs, cols, &payload).unwrap();
    let x = noise(7, (rows + 2) * cols);
    let index: Vec<u32> = (0..rows as u32).map(|r| if r == 0 { 2 } else { r - 1 }).collect();
    let (x_buffer, index_buffer) = (device.filled(&x).unwrap(), device.filled(&index).unwrap());
    let y = device.alloc(rows * outs * 4).unwrap();
    let mut work = device.work(false);
    work.gemm(&view, &x_buffer, &index_buffer, &y, rows).unwrap();
    work.wait().unwrap();
    let half = Product::new(Rows::of(rows), encoding, work.precision()).is_rounded();
    let largest = weights.iter().fold(0f32, |a, w| a.max(w.abs()));
    for (r, row) in y.read::<f32>(0, rows * outs).chunks_exact(outs).enumerate() {
        let x = &x[index[r] as usize * cols..][..cols];
        for (o, got) in row.iter().enumerate() {
            let terms = weights[o * cols..][..cols].iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (want, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            // A product, a sum for each of `cols` terms at most, and the order of two or three scales.
            let mut off = (cols + 4) as f64 * U * size;
            if half {
                // An input, and a weight relative to the row's largest scale; q8 weights are whole numbers.
                off += 2.0 * HALF * size + cols as f64 * HALF_LEAST * f64::from(8.0 * largest);
            }
            let error = (f64::from(*got) - want).abs();
            assert!(
                error <= off,
                "{encoding}, {rows} rows: y[{r}][{o}] is {got}, expected {want} (off by {error:e}, allowed {off:e})"
            );
        }
    }
}

#[test]
fn products_of_few_rows() {
    in_all_orders(|device| {
        for encoding in Encoding::ALL {
            for (rows, outs, cols) in [(1, 13, 96), (2, 1, 32), (7, 9, 288), (8, 12, 64)] {
                check(device, encoding, rows, outs, cols);
            }
        }
    });
}

#[test]
fn products_of_many_rows() {
    in_all_orders(|device| {
        for encoding in Encoding::ALL {
            for (rows, outs, cols) in [(9, 33, 32), (37, 5, 160), (16, 129, 64)] {
                check(device, encoding, rows, outs, cols);
            }
        }
    });
}

#[test]
fn products_in_half_precision() {
    in_all_orders_with(Precision::Half, |device| {
        for encoding in [Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4tp] {
            for (rows, outs, cols) in [(1, 13, 96), (7, 9, 288), (9, 33, 32), (37, 5, 160), (16, 129, 64)] {
                check(device, encoding, rows, outs, cols);
            }
        }
    });
}

/// Inputs beyond the range of halves become the largest one, and not infinite.
#[test]
fn halves_saturate() {
    let (rows, outs, cols) = (9, 3, 32);
    let payload = shamrock_cmf::encode(Encoding::Q8Row, outs, cols, &vec![1.0; outs * cols]).unwrap();
    let weights = shamrock_cmf::decode(Encoding::Q8Row, outs, cols, &payload).unwrap();
    in_all_orders_with(Precision::Half, |device| {
        let view = View::of(device, Encoding::Q8Row, outs, cols, &payload).unwrap();
        let mut x = vec![0f32; rows * cols];
        (0..rows).for_each(|r| x[r * cols + r] = if r % 2 == 0 { 1e6 } else { -1e6 });
        let index: Vec<u32> = (0..rows as u32).collect();
        let (x, index) = (device.filled(&x).unwrap(), device.filled(&index).unwrap());
        let y = device.alloc(rows * outs * 4).unwrap();
        let mut work = device.work(false);
        work.gemm(&view, &x, &index, &y, rows).unwrap();
        work.wait().unwrap();
        for (i, got) in y.read::<f32>(0, rows * outs).iter().enumerate() {
            let want = weights[i % outs * cols] * if i / outs % 2 == 0 { 65504.0 } else { -65504.0 };
            assert!((got / want - 1.0).abs() < 1e-6, "row {}: {got}, expected {want}", i / outs);
        }
    });
}

/// The ladders of q4tp are products of powers that must be correctly rounded: with any width of ladder a
/// product with a unit vector gives back the decoded weight to the bit.
#[test]
fn ladders_are_exact() {
    let (outs, cols) = (16, 1024);
    let mut values = noise(3, outs * cols);
    for (i, value) in values.iter_mut().enumerate() {
        // Every row has groups of sizes that are up to 2^40 apart.
        *value *= ((i / 32 % 32) as f32 * (i / cols) as f32 / 12.0).exp2();
    }
    let payload = shamrock_cmf::encode(Encoding::Q4tp, outs, cols, &values).unwrap();
    let weights = shamrock_cmf::decode(Encoding::Q4tp, outs, cols, &payload).unwrap();
    in_all_orders(|device| {
        let view = View::of(device, Encoding::Q4tp, outs, cols, &payload).unwrap();
        for rows in [1, 8, 32] {
            let mut x = vec![0f32; rows * cols];
            (0..rows).for_each(|r| x[r * cols + r * 32 % cols] = 1.0);
            let index: Vec<u32> = (0..rows as u32).collect();
            let (x, index) = (device.filled(&x).unwrap(), device.filled(&index).unwrap());
            let y = device.alloc(rows * outs * 4).unwrap();
            let mut work = device.work(false);
            work.gemm(&view, &x, &index, &y, rows).unwrap();
            work.wait().unwrap();
            for (i, got) in y.read::<f32>(0, rows * outs).iter().enumerate() {
                let (r, o) = (i / outs, i % outs);
                assert_eq!(*got, weights[o * cols + r * 32 % cols], "{rows} rows: weight [{o}][{}]", r * 32);
            }
        }
    });
}
