//! Checkpoint folders made from the fixtures, with changes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use shamrock_cmf::Container;
use shamrock_convert::{Recipe, Report, Result, convert};

/// A stored tensor: type, shape, bytes.
#[derive(Clone)]
pub(crate) struct Stored(pub(crate) Dtype, pub(crate) Vec<usize>, pub(crate) Vec<u8>);

/// A checkpoint in memory.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) tensors: BTreeMap<String, Stored>,
    pub(crate) config: Value,
    /// Other files by name.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    pub(crate) fn fixture(folder: &str) -> Checkpoint {
        let dir = shamrock_testkit::fixture(&format!("{folder}/hf"));
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes)
            .unwrap()
            .iter()
            .map(|(name, t)| (name.to_owned(), Stored(t.dtype(), t.shape().to_vec(), t.data().to_vec())))
            .collect();
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
        let files = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"];
        Checkpoint {
            tensors,
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            files: files.iter().map(|name| ((*name).to_owned(), read(name))).collect(),
        }
    }

    /// Writes the folder `parent/name` with all weights in one file.
    pub(crate) fn write(&self, parent: &Path, name: &str) -> PathBuf {
        let dir = self.write_metadata(parent, name);
        write_safetensors(&dir.join("model.safetensors"), self.tensors.iter());
        dir
    }

    /// Writes the folder `parent/name` with the weights dealt out to `shards` files.
    pub(crate) fn write_sharded(&self, parent: &Path, name: &str, shards: usize) -> PathBuf {
        let dir = self.write_metadata(parent, name);
        let mut map = serde_json::Map::new();
        for shard in 0..shards {
            let file = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
            let share = || self.tensors.iter().skip(shard).step_by(shards);
            map.extend(share().map(|(name, _)| (name.clone(), file.clone().into())));
            write_safetensors(&dir.join(file), share());
        }
        let index = serde_json::json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        dir
    }

    fn write_metadata(&self, parent: &Path, name: &str) -> PathBuf {
        let dir = parent.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        for (name, bytes) in &self.files {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        dir
    }

    pub(crate) fn rename(&mut self, to: impl Fn(&str) -> String) {
        self.tensors = std::mem::take(&mut self.tensors).into_iter().map(|(n, t)| (to(&n), t)).collect();
    }

    /// Replaces stacked experts by one tensor per matrix.
    pub(crate) fn split_experts(&mut self) {
        let stacked: Vec<String> =
            self.tensors.keys().filter(|n| n.contains(".mlp.experts.")).cloned().collect();
        for name in stacked {
            let Stored(dtype, shape, bytes) = self.tensors.remove(&name).unwrap();
            let (base, part) = name.rsplit_once('.').unwrap();
            let parts: &[&str] =
                if part == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
            let rows = shape[1] / parts.len();
            let matrices = bytes.chunks(bytes.len() / (shape[0] * parts.len()));
            for (i, matrix) in matrices.enumerate() {
                let (expert, part) = (i / parts.len(), parts[i % parts.len()]);
                let tensor = Stored(dtype, vec![rows, shape[2]], matrix.to_vec());
                self.tensors.insert(format!("{base}.{expert}.{part}.weight"), tensor);
            }
        }
    }
}

pub(crate) fn write_safetensors<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Stored)>) {
    let views = tensors.map(|(name, Stored(dtype, shape, bytes))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

pub(crate) fn convert_quietly(dir: &Path, out: &Path, recipe: &Recipe) -> Result<Report> {
    convert(dir, out, recipe, &mut |_| ControlFlow::Continue(()))
}

/// Same tensors: names, encodings, shapes and payloads, in any order.
#[track_caller]
pub(crate) fn assert_same_tensors(found: &Container, expected: &Container) {
    let names =
        |c: &Container| c.tensors().map(|t| t.name.to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names(found), names(expected));
    for tensor in expected.tensors() {
        let ours = found.get(tensor.name).unwrap();
        assert_eq!((ours.encoding, ours.shape), (tensor.encoding, tensor.shape), "{}", tensor.name);
        assert!(ours.bytes == tensor.bytes, "{} ({}): payloads differ", tensor.name, tensor.encoding);
    }
}

/// Files in a folder, sorted.
pub(crate) fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
