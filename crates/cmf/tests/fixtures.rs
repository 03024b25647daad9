//! Files made by cortiq 0.8.54 from known checkpoints: they open, verify, decode to the
//! checkpoint's numbers, and our encoders make the same bytes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use shamrock_cmf::{Container, Encoding, Features, TensorSpec, Writer, encode};

const CHECKPOINTS: [&str; 3] = ["small", "awkward", "kernel"];

/// A fixture in the repository, or in the material beside it if it is too large for one.
fn fixture(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [root.join("fixtures"), root.join("../shared/conformance")];
    places.into_iter().map(|place| place.join(name)).find(|path| path.exists())
}

fn open(name: &str) -> Option<Container> {
    fixture(name).map(|path| Container::open(path).unwrap())
}

fn containers() -> Vec<Container> {
    let files = CHECKPOINTS
        .iter()
        .flat_map(|name| ["f16", "q4tp"].map(|quant| open(&format!("{name}/model.{quant}.cmf"))));
    let found: Vec<_> = files.flatten().collect();
    assert!(found.len() >= 4, "the repository has at least four fixture containers");
    found
}

/// The checkpoint's tensors by the names that containers use: experts apart, `gate_up_proj` split.
fn checkpoint(name: &str) -> HashMap<String, Vec<f32>> {
    let path = fixture(&format!("{name}/hf/model.safetensors")).expect("checkpoint is in the repository");
    let bytes = std::fs::read(path).unwrap();
    let mut tensors = HashMap::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => {
                view.data().as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            other => panic!("{other:?}"),
        };
        let Some((layer, kind)) = name.split_once(".experts.") else {
            tensors.insert(name.to_owned(), values);
            continue;
        };
        let parts: &[&str] = match kind {
            "down_proj" => &["down_proj"],
            "gate_up_proj" => &["gate_proj", "up_proj"],
            other => panic!("{other}"),
        };
        let part_len = values.len() / view.shape()[0] / parts.len();
        for (at, values) in values.chunks(part_len).enumerate() {
            let (expert, part) = (at / parts.len(), parts[at % parts.len()]);
            tensors.insert(format!("{layer}.experts.{expert}.{part}.weight"), values.to_vec());
        }
    }
    tensors
}

#[test]
fn cortiq_files_open_and_verify() {
    for container in containers() {
        let name = container.path().display();
        let two_field = container.tensors().any(|t| t.encoding == Encoding::Q8TwoField);
        assert_eq!(container.features().bits(), if two_field { 0x8005 } else { 0x8001 }, "{name}");
        assert!(container.features().contains(Features::BLOCK_DIFFUSION), "{name}");
        let tokenizer: serde_json::Value = serde_json::from_slice(container.vocab()).unwrap();
        assert!(tokenizer["model"].is_object(), "{name}");

        let mut seen = vec![];
        let report = container.verify(&mut |bytes| seen.push(bytes)).unwrap();
        assert!(report.is_clean() && report.unhashed.is_empty(), "{name}: {report:?}");
        assert_eq!(report.tensors, container.tensors().len());
        let payloads: u64 = container.tensors().map(|t| t.bytes.len() as u64).sum();
        assert_eq!(report.bytes, payloads + container.vocab().len() as u64);
        assert!(seen.is_sorted() && seen.last() == Some(&report.bytes), "{name}");

        for tensor in container.tensors() {
            assert_eq!(container.get(tensor.name).unwrap().id, tensor.id);
            assert_eq!(&container.bytes()[tensor.offset as usize..][..tensor.bytes.len()], tensor.bytes);
        }
        assert!(container.get("no such tensor").is_none());
    }
}

/// Every payload of every file, byte for byte: f32, f16, q8_2f and q4tp.
#[test]
fn our_encoders_make_cortiq_payloads() {
    for name in CHECKPOINTS {
        let weights = checkpoint(name);
        for quant in ["f16", "q4tp"] {
            let Some(container) = open(&format!("{name}/model.{quant}.cmf")) else {
                continue;
            };
            assert!(container.tensors().len() > 100);
            for tensor in container.tensors() {
                let values = &weights[tensor.name];
                let ours = encode(tensor.encoding, tensor.rows(), tensor.cols(), values).unwrap();
                assert!(ours == tensor.bytes, "{name} {quant}: {tensor:?}");
            }
        }
    }
}

/// Every weight of these two checkpoints is exact in half precision.
#[test]
fn plain_tensors_decode_to_the_checkpoint() {
    for name in ["awkward", "kernel"] {
        let weights = checkpoint(name);
        for quant in ["f16", "q4tp"] {
            let Some(container) = open(&format!("{name}/model.{quant}.cmf")) else {
                continue;
            };
            let plain = |encoding| matches!(encoding, Encoding::F16 | Encoding::F32);
            let mut count = 0;
            for tensor in container.tensors().filter(|tensor| plain(tensor.encoding)) {
                assert_eq!(tensor.decode().unwrap(), weights[tensor.name], "{name}: {tensor:?}");
                count += 1;
            }
            assert!(count > 10);
        }
    }
}

/// A writer fed with a file's header, vocabulary and payloads makes an equal file.
#[test]
fn rewriting_a_cortiq_file_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    for original in containers() {
        let path = directory.path().join("copy.cmf");
        let specs = original.tensors().map(|tensor| TensorSpec {
            name: tensor.name.into(),
            encoding: tensor.encoding,
            shape: tensor.shape.into(),
        });
        let header = original.header().clone();
        let mut writer = Writer::create(&path, header, original.vocab(), specs.collect()).unwrap();
        for (index, tensor) in original.tensors().enumerate() {
            writer.write(index, tensor.bytes).unwrap();
        }
        writer.finish().unwrap();

        let copy = Container::open(&path).unwrap();
        assert!(copy.verify(&mut |_| {}).unwrap().is_clean());
        assert_eq!(copy.header(), original.header());
        assert_eq!(copy.vocab(), original.vocab());
        assert_eq!(copy.features(), original.features());
        // The same layout rules: payloads lie at the same places of the data section.
        let places = |container: &Container| -> Vec<(String, u64, u64)> {
            let base = container.tensors().next().unwrap().offset;
            container.tensors().map(|t| (t.name.to_owned(), t.offset - base, t.hash)).collect()
        };
        assert_eq!(places(&copy), places(&original));
    }
}

/// Rounding to half precision is all that separates the `small` checkpoint from its f16 file.
#[test]
fn small_f16_is_the_rounded_checkpoint() {
    let weights = checkpoint("small");
    let container = open("small/model.f16.cmf").unwrap();
    for tensor in container.tensors().filter(|tensor| tensor.encoding == Encoding::F16) {
        let rounded = weights[tensor.name].iter().map(|value| f16::from_f32(*value).to_f32());
        assert!(tensor.decode().unwrap().into_iter().eq(rounded), "{tensor:?}");
    }
}
