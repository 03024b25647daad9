//! What is wrong with a checkpoint is said in one line, and leaves nothing behind.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::{Checkpoint, Stored, convert_quietly, listing};
use safetensors::Dtype;
use shamrock_cmf::{Container, Encoding};
use shamrock_convert::{Error, Recipe, convert};

/// Converts the folder that `make` writes into the temporary folder it is given, expects an error
/// of one line with all of `says`, and expects no file where the output should be.
#[track_caller]
fn assert_fails(recipe: &Recipe, says: &[&str], make: impl FnOnce(Checkpoint, &Path)) {
    let temp = tempfile::tempdir().unwrap();
    let (dir, outputs) = (temp.path().join("hf"), temp.path().join("outputs"));
    std::fs::create_dir(&outputs).unwrap();
    make(Checkpoint::fixture("small"), temp.path());
    let error = convert_quietly(&dir, &outputs.join("out.cmf"), recipe).unwrap_err().to_string();
    for part in says {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
    assert!(!error.contains('\n'), "{error:?}");
    assert_eq!(listing(&outputs), Vec::<String>::new(), "left behind after {error:?}");
}

#[track_caller]
fn assert_change_fails(says: &[&str], change: impl FnOnce(&mut Checkpoint)) {
    assert_fails(&Recipe::default(), says, |mut checkpoint, parent| {
        change(&mut checkpoint);
        checkpoint.write(parent, "hf");
    });
}

const NORM: &str = "model.layers.1.input_layernorm.weight";
const EXPERTS: &str = "model.layers.2.mlp.experts.down_proj";

#[test]
fn folders_without_the_needed_files() {
    let default = Recipe::default();
    assert_fails(&default, &["config.json", "cannot read"], |c, parent| {
        std::fs::remove_file(c.write(parent, "hf").join("config.json")).unwrap();
    });
    assert_fails(&default, &["neither model.safetensors nor"], |c, parent| {
        std::fs::remove_file(c.write(parent, "hf").join("model.safetensors")).unwrap();
    });
    assert_fails(&default, &["model-00002-of-00003.safetensors", "cannot open"], |c, parent| {
        let dir = c.write_sharded(parent, "hf", 3);
        std::fs::remove_file(dir.join("model-00002-of-00003.safetensors")).unwrap();
    });
    for (map, says) in [
        (r#"{"weight_map": {"w": "../model.safetensors"}}"#, "weight_map.w is"),
        (r#"{"weight_map": {"w": 3}}"#, "weight_map.w is"),
        (r#"{"weight_map": {}}"#, "weight_map is empty"),
        (r#"{}"#, "weight_map must be"),
        (r#"{"#, "not valid JSON"),
    ] {
        assert_fails(&default, &["model.safetensors.index.json", says], |c, parent| {
            let dir = c.write_sharded(parent, "hf", 1);
            std::fs::write(dir.join("model.safetensors.index.json"), map).unwrap();
        });
    }
}

#[test]
fn damaged_files() {
    let damage = |says: &[&str], damage: &dyn Fn(&mut Vec<u8>)| {
        assert_fails(&Recipe::default(), says, |c, parent| {
            let path = c.write(parent, "hf").join("model.safetensors");
            let mut bytes = std::fs::read(&path).unwrap();
            damage(&mut bytes);
            std::fs::write(path, bytes).unwrap();
        });
    };
    let says = ["model.safetensors", "truncated or damaged"];
    damage(&says, &|bytes| bytes.truncate(bytes.len() - 1));
    damage(&says, &|bytes| bytes.truncate(100));
    damage(&says, &|bytes| bytes.truncate(5));
    damage(&says, &|bytes| bytes.clear());
    damage(&says, &|bytes| bytes[..8].fill(0xFF));
    damage(&says, &|bytes| bytes[8] = b'!');
    damage(&says, &|bytes| {
        let at = bytes.windows(5).position(|w| w == b"\"F32\"").unwrap();
        bytes[at..at + 5].copy_from_slice(b"\"F16\"");
    });
    assert_change_fails(&["tokenizer.json", "not valid JSON"], |c| {
        c.files.insert("tokenizer.json".into(), b"{\"a\":".to_vec());
    });
    assert_change_fails(&["tokenizer_config.json", "\"default\""], |c| {
        c.files.insert("tokenizer_config.json".into(), br#"{"chat_template": []}"#.to_vec());
    });
}

#[test]
fn checkpoints_that_contradict_their_configuration() {
    assert_change_fails(&["num_experts"], |c| {
        c.config.as_object_mut().unwrap().remove("num_experts");
    });
    assert_change_fails(&["tensors, the limit is"], |c| c.config["num_experts"] = (1 << 20).into());
    assert_change_fails(&[NORM, "[64]", "missing"], |c| {
        c.tensors.remove(NORM);
    });
    assert_change_fails(&["model.layers.2.mlp.experts.0.down_proj.weight", "[64, 64]", "missing"], |c| {
        c.tensors.remove(EXPERTS);
    });
    assert_change_fails(&["model.safetensors", EXPERTS, "[6, 64, 64]", "[7, 64, 64]"], |c| {
        c.config["num_experts"] = 7.into();
        for layer in 0..4 {
            let base = format!("model.layers.{layer}.mlp");
            c.tensors
                .get_mut(&format!("{base}.gate.weight"))
                .map(|t| (t.1[0] = 7, t.2.resize(7 * 64 * 4, 0)));
            let stack = c.tensors.get_mut(&format!("{base}.experts.gate_up_proj")).unwrap();
            (stack.1[0], _) = (7, stack.2.resize(7 * 128 * 64 * 4, 0));
        }
        for layer in [0, 1, 3] {
            let stack = c.tensors.get_mut(&format!("model.layers.{layer}.mlp.experts.down_proj")).unwrap();
            (stack.1[0], _) = (7, stack.2.resize(7 * 64 * 64 * 4, 0));
        }
    });
    // The right number of values is not enough for a matrix.
    assert_change_fails(&["lm_head.weight", "[64, 384]", "[384, 64]"], |c| {
        c.tensors.get_mut("lm_head.weight").unwrap().1.reverse();
    });
    assert_change_fails(&[NORM, "I32", "bf16"], |c| c.tensors.get_mut(NORM).unwrap().0 = Dtype::I32);
    assert_change_fails(&["model.language_model.norm.weight", "another name of"], |c| {
        let norm = c.tensors["model.norm.weight"].clone();
        c.tensors.insert("model.language_model.norm.weight".into(), norm);
    });
}

#[test]
fn values_and_shapes_that_an_encoding_cannot_hold() {
    let put = |c: &mut Checkpoint, name: &str, at: usize, value: f32| {
        c.tensors.get_mut(name).unwrap().2[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
    };
    assert_change_fails(&[NORM, "70000", "column 3", "f16"], |c| put(c, NORM, 3, 70000.0));
    assert_change_fails(&["layers.2.mlp.experts.1.down_proj", "NaN", "row 2, column 1", "q4tp"], |c| {
        put(c, EXPERTS, 64 * 64 + 2 * 64 + 1, f32::NAN);
    });

    // Shared experts of a width that 4-bit groups do not divide.
    let mut narrow = Checkpoint::fixture("small");
    narrow.config["shared_expert_intermediate_size"] = 24.into();
    for layer in 0..4 {
        for (part, shape) in [("gate", [24, 64]), ("up", [24, 64]), ("down", [64, 24])] {
            let name = format!("model.layers.{layer}.mlp.shared_expert.{part}_proj.weight");
            narrow.tensors.insert(name, Stored(Dtype::F32, shape.to_vec(), vec![0; 24 * 64 * 4]));
        }
    }
    let says = ["model.layers.0.mlp.shared_expert.down_proj.weight", "32 columns", "--experts q8_2f"];
    assert_fails(&Recipe::default(), &says, |_, parent| drop(narrow.write(parent, "hf")));
    let temp = tempfile::tempdir().unwrap();
    let recipe = Recipe { experts: Encoding::Q8TwoField, ..Recipe::default() };
    convert_quietly(&narrow.write(temp.path(), "hf"), &temp.path().join("out.cmf"), &recipe).unwrap();
}

#[test]
fn encodings_that_are_not_offered() {
    let experts = Recipe { experts: Encoding::Q8Row, ..Recipe::default() };
    assert_fails(&experts, &["--experts q8_row", "q4tp, q8_2f, f16"], |c, parent| {
        drop(c.write(parent, "hf"))
    });
    let dense = Recipe { dense: Encoding::Q4tp, ..Recipe::default() };
    assert_fails(&dense, &["--dense q4tp", "q8_2f, q8_row, f16"], |c, parent| drop(c.write(parent, "hf")));
}

/// What lies on the disk at any moment of a conversion, that is what a kill would leave, does not
/// open; and it does not stand in the way of the next attempt.
#[test]
fn a_killed_conversion_leaves_no_file_that_opens() {
    let temp = tempfile::tempdir().unwrap();
    let (out, partial) = (temp.path().join("out.cmf"), temp.path().join("out.cmf.partial"));
    let dir = shamrock_testkit::fixture("small/hf");
    let mut moments = 0;
    let mut last = Vec::new();
    convert(&dir, &out, &Recipe::default(), &mut |progress| {
        // The last tensors are the interesting ones: all that is missing is the metadata.
        if moments % 16 == 0 || progress.done_bytes == progress.total_bytes {
            assert!(!out.exists());
            last = std::fs::read(&partial).unwrap();
            assert!(Container::from_bytes(last.clone()).is_err());
        }
        moments += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    let finished = std::fs::read(&out).unwrap();
    assert_eq!(listing(temp.path()), ["out.cmf"]);

    std::fs::remove_file(&out).unwrap();
    std::fs::write(&partial, &last).unwrap();
    convert_quietly(&dir, &out, &Recipe::default()).unwrap();
    assert!(std::fs::read(&out).unwrap() == finished);
    assert_eq!(listing(temp.path()), ["out.cmf"]);
}

#[test]
fn a_stopped_conversion_removes_its_file() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    for stop_at in [1, 7] {
        let mut tensors = 0;
        let result = convert(&shamrock_testkit::fixture("small/hf"), &out, &Recipe::default(), &mut |_| {
            tensors += 1;
            assert!(temp.path().join("out.cmf.partial").exists());
            if tensors == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Stopped { done_bytes: 1.., .. }) && tensors == stop_at, "{error}");
        assert!(listing(temp.path()).is_empty());
    }
}

/// A failure in the middle, after tensors were written.
#[test]
fn a_failed_conversion_removes_its_file_and_keeps_an_older_one() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.cmf");
    std::fs::write(&out, b"older").unwrap();
    let mut checkpoint = Checkpoint::fixture("small");
    checkpoint.tensors.get_mut("lm_head.weight").unwrap().2[..4]
        .copy_from_slice(&f32::INFINITY.to_le_bytes());
    let dir = checkpoint.write(temp.path(), "hf");
    convert_quietly(&dir, &out, &Recipe::default()).unwrap_err();
    assert_eq!(listing(temp.path()), ["hf", "out.cmf"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"older");
}
