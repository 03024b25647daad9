//! Conformance fixtures.
//!
//! Files are looked for in the repository's `fixtures/` and then in `../shared/conformance`, which
//! holds the few that are too large to commit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The tiny checkpoints.
pub const FOLDERS: [&str; 3] = ["small", "awkward", "kernel"];

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit has a root").into()
}

/// A fixture file or folder, wherever it is; `None` when this checkout does not have it.
pub fn find(path: &str) -> Option<PathBuf> {
    [root().join("fixtures"), root().join("../shared/conformance")]
        .into_iter()
        .map(|base| base.join(path))
        .find(|full| full.exists())
}

/// A fixture that every checkout has.
pub fn fixture(path: &str) -> PathBuf {
    find(path).unwrap_or_else(|| panic!("fixtures/{path} is missing"))
}

/// The Hugging Face checkpoint `folder/hf` converted to f16, in a folder that goes with the guard.
pub fn convert_f16(folder: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.f16.cmf");
    let recipe = shamrock_convert::Recipe::F16;
    shamrock_convert::convert(&fixture(&format!("{folder}/hf")), &path, &recipe, &mut |_| {
        ControlFlow::Continue(())
    })
    .expect("fixture converts");
    (dir, path)
}

/// A parsed JSON fixture.
pub fn json(path: &str) -> Value {
    let file = File::open(fixture(path)).expect("fixture opens");
    serde_json::from_reader(BufReader::new(file)).expect("fixture is JSON")
}

/// Expected numbers of one checkpoint over one set of weights.
pub struct Expected {
    /// `expected*.json`, over what `expected.json` says for every encoding.
    pub json: Value,
    arrays: BTreeMap<String, Array>,
}

/// An array of `expected*.npz`.
#[derive(Clone, Debug)]
pub struct Array {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

impl Expected {
    /// Loads `folder/expected{suffix}.json` and `.npz`; the suffix is empty (over the Hugging Face
    /// weights), `.f16` or `.q4tp` (over the decoded container).
    pub fn load(folder: &str, suffix: &str) -> Expected {
        let file = File::open(fixture(&format!("{folder}/expected{suffix}.npz"))).expect("npz opens");
        let mut archive = npyz::npz::NpzArchive::new(BufReader::new(file)).expect("npz reads");
        let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
        let arrays = names
            .into_iter()
            .map(|name| {
                let array = archive.by_name(&name).expect("array reads").expect("array is there");
                let shape = array.shape().iter().map(|&d| d as usize).collect();
                let values = array.into_vec::<f32>().expect("array is f32");
                (name, Array { shape, values })
            })
            .collect();
        // What does not depend on the weights (the prompt, say) stands in the unsuffixed file only.
        let mut merged = json(&format!("{folder}/expected.json"));
        let own = json(&format!("{folder}/expected{suffix}.json"));
        for (key, value) in own.as_object().expect("expectations are an object") {
            merged[key] = value.clone();
        }
        Expected { json: merged, arrays }
    }

    /// An array that must be there.
    pub fn array(&self, name: &str) -> &Array {
        self.arrays.get(name).unwrap_or_else(|| panic!("no array {name}"))
    }

    /// An array, if this archive has it.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    /// Token ids at a JSON pointer.
    pub fn ids(&self, pointer: &str) -> Vec<u32> {
        ids(self.json.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")))
    }
}

/// A JSON list of ids.
pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Panics unless `got` has the expected size and is within `tolerance` of it everywhere.
pub fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    if let Err(problem) = crate::backend::compare(got, want, None, tolerance) {
        panic!("{what}: {problem}");
    }
}
