//! The kernels compile for every architecture that is promised. Needs NVRTC, no device:
//! `cargo test -p shamrock-cuda -- --ignored compile`, as `.ci/run` does.

use shamrock_cuda::{KvPrecision, Precision, compile};
use shamrock_model::ModelFile;
use shamrock_testkit::{fixture, root};

/// Ampere, Ada, Hopper, Blackwell.
const ARCHITECTURES: [u32; 4] = [80, 89, 90, 100];

#[test]
#[ignore = "needs NVRTC, which .ci/run installs"]
fn compile_for_every_architecture() {
    let nano = ModelFile::open(root().join("models/clover-nano.cmf")).unwrap();
    for arch in ARCHITECTURES {
        for (module, bytes) in compile::check(&nano, arch, Precision::Half, KvPrecision::Half).unwrap() {
            assert!(bytes > 0, "sm_{arch}, module {module}");
        }
    }
}

/// Head ratios, widths and taps unlike the trained model's, the exact precision, and as many experts as are taken:
/// what a block chooses them with has to fit its shared memory.
#[test]
#[ignore = "needs NVRTC, which .ci/run installs"]
fn compile_awkward_shapes_in_full_precision() {
    let mut model = ModelFile::open(fixture("awkward/model.q4tp.cmf")).unwrap();
    (model.config.moe.experts, model.config.moe.top_k) = (1024, 32);
    compile::check(&model, 90, Precision::Split, KvPrecision::Full).unwrap();
}
