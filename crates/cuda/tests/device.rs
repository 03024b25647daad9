//! The executor on a device: `cargo test -p shamrock-cuda -- --ignored device`.

use shamrock_cuda::{CudaExecutor, CudaOptions, KvPrecision, Precision};
use shamrock_testkit::{Backend, Tolerance, conformance, laws};

/// Products of two halves and f32 states: f32 in all but name.
fn exact(max_context: Option<usize>) -> CudaOptions {
    CudaOptions { precision: Precision::Split, kv: KvPrecision::Full, max_context, ..CudaOptions::default() }
}

fn fast(max_context: Option<usize>) -> CudaOptions {
    CudaOptions { max_context, ..CudaOptions::default() }
}

#[test]
#[ignore = "needs a CUDA device"]
fn device_matches_the_oracle() {
    conformance::all(&Backend::new("cuda (split)", |model, context| {
        CudaExecutor::new(model, &exact(context))
    }));
}

/// The number of rows of a pass decides which kernels multiply and so in which order products are
/// added up: what is one row in one pass and one of many in another differs by f32 rounding.
#[test]
#[ignore = "needs a CUDA device"]
fn device_keeps_the_laws_of_the_seam() {
    let f32_rounding = Tolerance { logits: 2e-3, kv: 2e-4, gdn: 2e-5 };
    laws::all(
        &Backend::new("cuda (split)", |model, context| CudaExecutor::new(model, &exact(context)))
            .laws(f32_rounding),
    );
}

/// With inputs of products rounded to half, a last bit of difference moves a rounding: these random
/// models amplify it to a few hundredths of a logit (trained ones do not).
#[test]
#[ignore = "needs a CUDA device"]
fn device_keeps_the_laws_in_half_precision() {
    let half_rounding = Tolerance { logits: 0.5, kv: 5e-2, gdn: 1e-2 };
    laws::all(
        &Backend::new("cuda (half)", |model, context| CudaExecutor::new(model, &fast(context)))
            .laws(half_rounding),
    );
}
