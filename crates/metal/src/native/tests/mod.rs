//! Every kernel against a plain twin, at awkward shapes.
//!
//! On the stand-in for Metal each runs in several orders of its threads: where a barrier is missing some
//! order reads what has not been written, which is NaN. Twins compute in double precision; tolerances
//! count the roundings of the kernel.

mod attention;
mod gdn;
mod gemm;
mod head;
mod routing;
mod rows;
mod stand_in;

use objc2::rc::autoreleasepool;
use shamrock_cmf::Encoding;

use super::device::Device;
use super::kernel::{KEY_DIMS, Kernel};
use crate::{KvPrecision, Precision};

/// Half an ulp of 1: what one rounding costs, relatively.
const U: f64 = 1.0 / (1 << 24) as f64;

/// A device with every kernel there is.
fn device(precision: Precision) -> Device {
    let mut kernels = Vec::new();
    for kv in [KvPrecision::Half, KvPrecision::Full] {
        for key_dim in KEY_DIMS {
            kernels.extend(Kernel::needed(&Encoding::ALL, key_dim, kv, precision));
        }
    }
    kernels.extend(Kernel::routing(&Encoding::ALL, precision));
    Device::open(&kernels, precision).expect("a device")
}

/// Runs a check in every order that there is.
fn in_all_orders(check: impl Fn(&Device)) {
    in_all_orders_with(Precision::Full, check);
}

/// The same with products of this precision.
fn in_all_orders_with(precision: Precision, check: impl Fn(&Device)) {
    autoreleasepool(|_| {
        let device = device(precision);
        for &order in stand_in::orders() {
            stand_in::set_order(order);
            check(&device);
        }
    });
}

/// Numbers in -1..1 that look random.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Panics unless all values are within `off` of what they should be.
fn close(what: &str, got: &[f32], want: &[f64], off: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        // Not `error > off`: NaN must fail.
        assert!(
            error <= off,
            "{what}: value {i} is {got}, expected {want} (off by {error:e}, allowed {off:e})"
        );
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
