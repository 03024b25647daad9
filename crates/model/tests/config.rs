//! Configuration from both of its sources.

use serde_json::{Value, json};
use shamrock_cmf::Writer;
use shamrock_model::{Config, ModelFile};
use shamrock_testkit::{FOLDERS, json as fixture_json};

/// The Hugging Face configuration of `small` with a case's overrides; null removes a key.
fn overridden(case: &Value) -> Value {
    let mut config = fixture_json("small/hf/config.json");
    for (key, value) in case["config_overrides"].as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn every_control_reaches_the_header_as_the_other_converter_writes_it() {
    for case in fixture_json("controls.json").as_array().unwrap() {
        let name = &case["name"];
        let generation = Some(&case["generation_config"]).filter(|g| !g.is_null());
        let config = Config::from_hf(&overridden(case), generation).unwrap();
        assert_eq!(config.to_arch()["block_diffusion"], case["block_diffusion"], "{name}");
        assert_eq!(json!(config.eos_ids), case["eos_token_ids"], "{name}");
        assert_eq!(json!(config.pad_id), case["pad_token_id"], "{name}");
    }
}

#[test]
fn header_and_folder_agree() {
    for folder in FOLDERS {
        let hf = Config::from_hf(
            &fixture_json(&format!("{folder}/hf/config.json")),
            Some(&fixture_json(&format!("{folder}/hf/generation_config.json"))),
        )
        .unwrap();
        let file =
            shamrock_model::ModelFile::open(shamrock_testkit::fixture(&format!("{folder}/model.q4tp.cmf")))
                .unwrap();
        assert_eq!(file.config, hf, "{folder}");
        let mut header = json!({ "arch": hf.to_arch() });
        header["tokenizer_config"] = json!({ "eos_token_ids": hf.eos_ids, "pad_token_id": hf.pad_id });
        assert_eq!(Config::from_header(&header).unwrap(), hf, "{folder}");
    }
}

#[test]
fn a_plain_trunk_has_no_block_record() {
    let mut config = fixture_json("small/hf/config.json");
    config["model_type"] = json!("qwen3_5_moe_text");
    config.as_object_mut().unwrap().remove("block_size");
    let wrapped = json!({ "model_type": "qwen3_5_moe", "text_config": config });
    let config = Config::from_hf(&wrapped, None).unwrap();
    assert_eq!(config.block, None);
    assert!(config.block().is_err());
    assert!(config.to_arch().get("block_diffusion").is_none());
}

#[test]
fn an_impossible_configuration_names_the_field() {
    let cases = [
        ("num_key_value_heads", json!(3), "num_key_value_heads: 3 does not divide 4"),
        ("num_experts_per_tok", json!(7), "num_experts_per_tok: 7 exceeds 6"),
        ("block_size", json!(257), "block_size: 257 is out of range"),
        ("block_size", json!("eight"), "block_size: must be a non-negative integer, found a string"),
        ("mask_token_id", json!(384), "mask_token_id: 384 is outside the vocabulary"),
        ("mask_token_id", json!(null), "mask_token_id: is missing"),
        ("vocab_size", json!(0), "vocab_size: 0 is out of range"),
        ("hidden_size", json!(u64::MAX), "hidden_size: 18446744073709551615 is out of range"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps"),
        ("layer_types", json!(["linear_attention"]), "layer_types: lists 1 layers of 4"),
        ("layer_types", json!(["a", "b", "c", "d"]), "layer_types: \"a\" is neither"),
        ("denoising_config", json!({ "algorithm": "other" }), "denoising_config.algorithm: \"other\""),
        ("denoising_config", json!({ "threshold": 1.5 }), "threshold: 1.5 is out of range"),
    ];
    for (key, value, message) in cases {
        let mut config = fixture_json("small/hf/config.json");
        config[key] = value;
        let error = Config::from_hf(&config, None).unwrap_err().to_string();
        assert!(error.starts_with("config.json: ") && error.contains(message), "{key}: {error}");
    }
}

/// A factor whose product with the head width falls just short of a whole number must not lose a
/// pair of dims on the way through a header.
#[test]
fn every_rotary_width_survives_the_header() {
    let mut config = Config::from_hf(&fixture_json("small/hf/config.json"), None).unwrap();
    for head_dim in 1..300 {
        for rotary_dim in (0..=head_dim).step_by(2) {
            config.attention.head_dim = head_dim;
            config.attention.rotary_dim = rotary_dim;
            let header = json!({ "arch": config.to_arch() });
            let read = Config::from_header(&header).unwrap();
            assert_eq!(read.attention, config.attention, "{rotary_dim} of {head_dim}");
        }
    }
}

#[test]
fn a_bad_header_names_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    Writer::create(&path, json!({ "arch": {} }), b"", vec![]).unwrap().finish().unwrap();
    let error = ModelFile::open(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: CMF header: arch.", path.display())), "{error}");
}
