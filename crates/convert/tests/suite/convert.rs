//! Import of checkpoints: against files made by cortiq, and against itself in other layouts.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::{Checkpoint, Stored, assert_same_tensors, convert_quietly};
use safetensors::Dtype;
use serde_json::{Value, json};
use shamrock_cmf::Container;
use shamrock_convert::{Recipe, convert};
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Error, Executor, ModelFile, Score, Step};

/// Payloads and the header's meaning equal those of a file that cortiq made.
fn assert_equals_cortiq(folder: &str, recipe: &Recipe, theirs: &Path) {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    let report = convert_quietly(&shamrock_testkit::fixture(&format!("{folder}/hf")), &out, recipe).unwrap();
    let (ours, theirs) = (Container::open(&out).unwrap(), Container::open(theirs).unwrap());
    assert_same_tensors(&ours, &theirs);
    for field in ["format", "version", "arch", "quant_type", "tokenizer_config", "section_hashes"] {
        assert_eq!(ours.header()[field], theirs.header()[field], "{folder}: header field {field}");
    }
    assert_eq!(ours.vocab(), theirs.vocab());
    assert_eq!(ours.features(), theirs.features());
    assert!(ours.verify(&mut |_| {}).unwrap().is_clean());
    assert_eq!(report.file_bytes, ours.file_len());
    assert_eq!((report.tensors, report.skipped), (ours.tensors().len(), 0));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    ModelFile::open(&out).unwrap();
}

#[test]
fn default_recipe_equals_cortiq_q4tp_byte_for_byte() {
    for folder in shamrock_testkit::FOLDERS {
        let theirs = shamrock_testkit::fixture(&format!("{folder}/model.q4tp.cmf"));
        assert_equals_cortiq(folder, &Recipe::default(), &theirs);
    }
}

#[test]
fn f16_recipe_equals_cortiq_f16_byte_for_byte() {
    for folder in shamrock_testkit::FOLDERS {
        // Two of these are too large for the repository.
        if let Some(theirs) = shamrock_testkit::find(&format!("{folder}/model.f16.cmf")) {
            assert_equals_cortiq(folder, &Recipe::F16, &theirs);
        }
    }
}

#[test]
fn configuration_cases_give_cortiqs_records() {
    for case in shamrock_testkit::json("controls.json").as_array().unwrap() {
        let mut checkpoint = Checkpoint::fixture("small");
        let config = checkpoint.config.as_object_mut().unwrap();
        for (key, value) in case["config_overrides"].as_object().unwrap() {
            match value {
                Value::Null => config.remove(key),
                value => config.insert(key.clone(), value.clone()),
            };
        }
        match &case["generation_config"] {
            Value::Null => checkpoint.files.remove("generation_config.json"),
            value => checkpoint.files.insert("generation_config.json".into(), value.to_string().into_bytes()),
        };
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("out.cmf");
        convert_quietly(&checkpoint.write(temp.path(), "hf"), &out, &Recipe::default()).unwrap();
        let container = Container::open(&out).unwrap();
        let (header, name) = (container.header(), &case["name"]);
        assert_eq!(header["arch"]["block_diffusion"], case["block_diffusion"], "{name}");
        assert_eq!(header["tokenizer_config"]["eos_token_ids"], case["eos_token_ids"], "{name}");
        assert_eq!(header["tokenizer_config"]["pad_token_id"], case["pad_token_id"], "{name}");
    }
}

#[test]
fn layouts_of_the_same_checkpoint_give_the_same_file() {
    let temp = tempfile::tempdir().unwrap();
    let folder = |i: usize| temp.path().join(i.to_string());
    let result = |i: usize, dir: &Path| {
        let out = folder(i).join("out.cmf");
        let report = convert_quietly(dir, &out, &Recipe::default()).unwrap();
        (std::fs::read(out).unwrap(), report)
    };
    let plain = Checkpoint::fixture("awkward");
    let (expected, _) = result(0, &plain.write(&folder(0), "hf"));

    let (sharded, _) = result(1, &plain.write_sharded(&folder(1), "hf", 3));
    assert!(sharded == expected, "shards");

    let mut wrapped = plain.clone();
    wrapped.split_experts();
    wrapped.rename(|name| name.replacen("model.", "model.language_model.", 1));
    let stray = Stored(Dtype::I64, vec![1], vec![0; 8]);
    wrapped.tensors.insert("model.visual.patch_embed.proj.bias".into(), stray.clone());
    wrapped.tensors.insert("mtp.layers.0.input_layernorm.weight".into(), stray);
    let (bytes, report) = result(2, &wrapped.write_sharded(&folder(2), "hf", 2));
    assert!(bytes == expected, "wrapper prefix, split experts, other towers");
    assert_eq!(report.skipped, 2);
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);

    // Every value of this checkpoint is exact in all three types.
    for (i, dtype) in [(3, Dtype::F32), (4, Dtype::F16)] {
        let mut other = plain.clone();
        for Stored(stored, _, bytes) in other.tensors.values_mut() {
            *stored = dtype;
            let values = bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32());
            *bytes = match dtype {
                Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
                _ => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
            };
        }
        let (bytes, _) = result(i, &other.write(&folder(i), "hf"));
        assert!(bytes == expected, "{dtype}");
    }
}

#[test]
fn a_plain_trunk_converts_and_runs_causally() {
    let mut trunk = Checkpoint::fixture("small");
    trunk.tensors.retain(|name, _| !name.contains("conv_right") && !name.contains("bd_softmax"));
    let mut text = trunk.config.clone();
    for key in ["block_size", "mask_token_id", "denoising_config"] {
        text.as_object_mut().unwrap().remove(key);
    }
    text["model_type"] = "qwen3_5_moe_text".into();
    trunk.config = json!({ "model_type": "qwen3_5_moe", "vision_config": {}, "text_config": text });

    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    convert_quietly(&trunk.write(temp.path(), "hf"), &out, &Recipe::F16).unwrap();
    let model = ModelFile::open(&out).unwrap();
    assert_eq!(model.config.block, None);
    assert_eq!(model.config.eos_ids, [309, 307]);

    // The trunk is that of the block-diffusion model: same causal logits.
    let mut logits = Vec::new();
    for path in [out, shamrock_testkit::fixture("small/model.f16.cmf")] {
        let mut executor =
            ReferenceExecutor::new(ModelFile::open(path).unwrap(), ReferenceOptions::DEFAULT).unwrap();
        let seq = executor.open().unwrap();
        let pass = executor.run(&[Step::commit(seq, &[5, 6, 7], Score::Logits { rows: &[2] })]).unwrap();
        logits.push(pass.outputs[0].commit.logits(0).to_vec());
        if executor.config().block.is_none() {
            let error = executor.run(&[Step::preview(seq, &[5], Score::None)]).unwrap_err();
            assert!(matches!(error, Error::NotBlockDiffusion));
        }
    }
    assert!(logits[0].iter().all(|x| x.is_finite()));
    assert_eq!(logits[0], logits[1]);
}

#[test]
fn text_metadata_is_optional_and_comes_from_the_usual_places() {
    let temp = tempfile::tempdir().unwrap();
    let template_of = |name: &str, change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = Checkpoint::fixture("small");
        change(&mut checkpoint);
        let out = temp.path().join(format!("{name}.cmf"));
        let report = convert_quietly(&checkpoint.write(temp.path(), name), &out, &Recipe::default()).unwrap();
        (ModelFile::open(&out).unwrap(), report.warnings)
    };
    let (model, warnings) = template_of("list", &|c| {
        let named = json!([{ "name": "tool_use", "template": "T" }, { "name": "default", "template": "D" }]);
        let file = json!({ "chat_template": named });
        c.files.insert("tokenizer_config.json".into(), file.to_string().into_bytes());
        c.config["bos_token_id"] = 7.into();
    });
    assert_eq!((model.chat_template.as_deref(), warnings.len()), (Some("D"), 0));
    assert_eq!(model.container().header()["tokenizer_config"]["bos_token_id"], 7);

    let (model, warnings) = template_of("jinja", &|c| {
        c.files.insert("chat_template.jinja".into(), b"J".to_vec());
    });
    assert_eq!((model.chat_template.as_deref(), warnings.len()), (Some("J"), 0));

    let (model, warnings) = template_of("none", &|c| c.files.clear());
    assert_eq!((model.chat_template.as_deref(), model.container().vocab().len()), (None, 0));
    assert!(warnings[0].contains("tokenizer.json") && warnings[1].contains("chat template"), "{warnings:?}");
}

#[test]
fn progress_ends_at_the_whole() {
    let temp = tempfile::tempdir().unwrap();
    let (mut last, mut total, mut calls) = (0, 0, 0);
    let mut progress = |p: shamrock_convert::Progress<'_>| {
        assert!(p.done_bytes > last && !p.tensor.is_empty());
        (last, total, calls) = (p.done_bytes, p.total_bytes, calls + 1);
        ControlFlow::Continue(())
    };
    let dir = shamrock_testkit::fixture("small/hf");
    let report = convert(&dir, &temp.path().join("out.cmf"), &Recipe::default(), &mut progress).unwrap();
    assert_eq!((last, calls), (total, report.tensors));
}
