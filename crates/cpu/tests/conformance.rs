//! The f32 path against the float64 oracle's numbers on the tiny checkpoints. (The integer path is
//! measured against the f32 path where the rounding of activations can be told from noise, in
//! `clover_nano.rs`.)

use shamrock_cpu::{CpuExecutor, CpuOptions, KvPrecision, Precision};
use shamrock_testkit::{Backend, conformance};

#[test]
fn the_float_path_matches_the_oracle() {
    conformance::all(&Backend::new("cpu (f32)", |model, max_context| {
        let (precision, kv) = (Precision::F32, KvPrecision::F32);
        CpuExecutor::new(model, CpuOptions { max_context, precision, kv, ..Default::default() })
    }));
}
