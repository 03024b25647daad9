//! Re-encoding of model files.

use std::ops::ControlFlow;

use crate::common::{assert_same_tensors, convert_quietly, listing};
use shamrock_cmf::{Container, Encoding};
use shamrock_convert::{Recipe, quantize};
use shamrock_model::ModelFile;

/// Where the source is exact in half precision, a detour over it changes nothing.
#[test]
fn quantizing_the_f16_file_equals_converting_directly() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    let other = Recipe { experts: Encoding::Q8TwoField, dense: Encoding::Q8Row };
    for folder in ["awkward", "kernel"] {
        let hf = shamrock_testkit::fixture(&format!("{folder}/hf"));
        convert_quietly(&hf, &path("f16.cmf"), &Recipe::F16).unwrap();
        for recipe in [Recipe::default(), other] {
            convert_quietly(&hf, &path("direct.cmf"), &recipe).unwrap();
            let report =
                quantize(&path("f16.cmf"), &path("detour.cmf"), &recipe, &mut |_| ControlFlow::Continue(()))
                    .unwrap();
            let direct = Container::open(path("direct.cmf")).unwrap();
            let detour = Container::open(path("detour.cmf")).unwrap();
            assert_same_tensors(&detour, &direct);
            for field in ["arch", "quant_type", "tokenizer_config", "section_hashes"] {
                assert_eq!(detour.header()[field], direct.header()[field], "{field}");
            }
            let provenance = |c: &Container, field: &str| c.header()["provenance"][field].clone();
            for field in ["source_model", "weight_quant"] {
                assert_eq!(provenance(&detour, field), provenance(&direct, field));
            }
            assert_eq!(provenance(&detour, "tool"), "shamrock quantize");
            assert_eq!(detour.vocab(), direct.vocab());
            let kept =
                direct.tensors().filter(|t| matches!(t.encoding, Encoding::F16 | Encoding::F32)).count();
            assert_eq!(report.copied, kept);
        }
    }
}

#[test]
fn tensors_in_the_wanted_encoding_are_copied() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    let input = shamrock_testkit::fixture("awkward/model.q4tp.cmf");
    let report = quantize(&input, &out, &Recipe::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let (ours, theirs) = (Container::open(&out).unwrap(), Container::open(&input).unwrap());
    assert_same_tensors(&ours, &theirs);
    assert_eq!(report.copied, report.tensors);

    // Dense ones only.
    let recipe = Recipe { dense: Encoding::F16, ..Recipe::default() };
    quantize(&input, &out, &recipe, &mut |_| ControlFlow::Continue(())).unwrap();
    let model = ModelFile::open(&out).unwrap();
    let name = "model.layers.0.mlp.experts.3.up_proj.weight";
    assert_eq!(model.container().get(name).unwrap().bytes, theirs.get(name).unwrap().bytes);
    let head = model.container().get("model.embed_tokens.weight").unwrap();
    assert_eq!(head.encoding, Encoding::F16);
    for (ours, theirs) in head.decode().unwrap().iter().zip(theirs.get(head.name).unwrap().decode().unwrap())
    {
        assert_eq!(*ours, half::f16::from_f32(theirs).to_f32());
    }
}

#[test]
fn damage_is_found_and_not_signed_anew() {
    let temp = tempfile::tempdir().unwrap();
    let (input, out) = (temp.path().join("in.cmf"), temp.path().join("out.cmf"));
    let mut bytes = std::fs::read(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap();
    let name = "model.layers.1.self_attn.k_norm.weight";
    let offset = Container::from_bytes(bytes.clone()).unwrap().get(name).unwrap().offset;
    bytes[offset as usize] ^= 1;
    std::fs::write(&input, &bytes).unwrap();
    for recipe in [Recipe::default(), Recipe::F16] {
        let error =
            quantize(&input, &out, &recipe, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.contains("in.cmf") && error.contains(name) && error.contains("hash"), "{error}");
    }
    assert_eq!(listing(temp.path()), ["in.cmf"]);
}

#[test]
fn a_file_is_not_replaced_by_itself() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("model.cmf");
    std::fs::copy(shamrock_testkit::fixture("small/model.q4tp.cmf"), &path).unwrap();
    let error = quantize(&path, &temp.path().join("./model.cmf"), &Recipe::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(error.to_string().contains("another name"), "{error}");
}
