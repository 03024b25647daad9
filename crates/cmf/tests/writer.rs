//! What is written is what is read, and nothing unfinished is left behind.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;
use shamrock_cmf::{Container, Encoding, Features, TensorSpec, Writer, encode};

fn spec(name: &str, encoding: Encoding, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), encoding, shape: shape.into() }
}

fn any_spec() -> impl Strategy<Value = (Encoding, Vec<usize>)> {
    let plain = prop::sample::select(vec![Encoding::F32, Encoding::F16, Encoding::Bf16]);
    let plain = (plain, prop::collection::vec(0usize..7, 0..=6));
    let quantised = prop::sample::select(Encoding::ALL[3..].to_vec());
    // Up to 33 KiB, on both sides of the page-alignment threshold.
    let quantised = (quantised, (0usize..130, 0usize..9))
        .prop_map(|(encoding, (rows, groups))| (encoding, vec![rows, 32 * groups]));
    prop_oneof![plain, quantised]
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

proptest! {
    // Each case waits for the disk.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn reading_gives_what_was_written(
        specs in prop::collection::vec(any_spec(), 0..12),
        names in prop::collection::hash_set("[a-z]{1,3}(\\.[0-9]|é|雪){0,3}", 12),
        block_diffusion in any::<bool>(),
        vocab in prop::collection::vec(any::<u8>(), 0..50),
        order in any::<u64>(),
        piece in 1usize..5000,
    ) {
        let specs: Vec<TensorSpec> = specs
            .into_iter()
            .zip(&names)
            .map(|((encoding, shape), name)| spec(name, encoding, &shape))
            .collect();
        let payload = |index: usize, len: u64| -> Vec<u8> {
            (0..len).map(|i| (i as usize * 31 + index * 7 + i as usize / 256) as u8).collect()
        };
        let mut header = json!({ "arch": { "x": 1.5 }, "note": "ünï" });
        if block_diffusion {
            header["arch"]["block_diffusion"] = json!({});
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.cmf");
        let mut writer = Writer::create(&path, header.clone(), &vocab, specs.clone()).unwrap();
        prop_assert_eq!(writer.specs(), &specs[..]);
        let file_len = writer.file_len();
        let mut indices: Vec<usize> = (0..specs.len()).collect();
        indices.sort_by_key(|index| order.rotate_left(7 * *index as u32) % 97);
        for (turn, index) in indices.into_iter().enumerate() {
            let bytes = payload(index, writer.payload_len(index));
            if turn % 2 == 0 {
                writer.write(index, &bytes).unwrap();
            } else {
                let mut tensor = writer.tensor_writer(index).unwrap();
                bytes.chunks(piece).for_each(|piece| tensor.write_all(piece).unwrap());
                tensor.finish().unwrap();
            }
        }
        writer.finish().unwrap();
        prop_assert_eq!(entries(directory.path()), ["model.cmf"]);

        let container = Container::open(&path).unwrap();
        prop_assert_eq!(container.file_len(), file_len);
        prop_assert_eq!(container.vocab(), &vocab[..]);
        prop_assert_eq!(&container.header()["arch"], &header["arch"]);
        prop_assert_eq!(&container.header()["note"], &header["note"]);
        let two_field = specs.iter().any(|spec| spec.encoding == Encoding::Q8TwoField);
        let bits = 1 | u32::from(two_field) << 2 | u32::from(block_diffusion) << 15;
        prop_assert_eq!(container.features().bits(), bits);
        prop_assert_eq!(container.features().contains(Features::TWO_FIELD), two_field);
        prop_assert_eq!(container.tensors().len(), specs.len());
        for (index, (tensor, spec)) in container.tensors().zip(&specs).enumerate() {
            prop_assert_eq!((tensor.name, tensor.encoding, tensor.shape), (&spec.name[..], spec.encoding, &spec.shape[..]));
            prop_assert_eq!(tensor.bytes, &payload(index, tensor.bytes.len() as u64)[..]);
            let align = if tensor.bytes.len() >= 16384 { 4096 } else { 64 };
            prop_assert_eq!(tensor.offset % align, 0);
            prop_assert_eq!(container.get(&spec.name).unwrap().id, tensor.id);
        }
        let report = container.verify(&mut |_| {}).unwrap();
        prop_assert!(report.is_clean() && report.unhashed.is_empty());
    }
}

/// The listing in docs/format.md, section "A file, byte by byte".
#[test]
fn the_documented_example_is_what_is_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    let page = std::fs::read_to_string(page).unwrap();
    let listing = page.split("## A file, byte by byte").nth(1).unwrap().split("```").nth(1).unwrap();
    let mut documented = vec![];
    for line in listing.lines().skip(1).filter(|line| !line.is_empty()) {
        let (at, rest) = line.split_once("  ").unwrap();
        documented.resize(usize::from_str_radix(at, 16).unwrap(), 0);
        if rest.starts_with('{') {
            documented.extend(rest.as_bytes());
        } else {
            let bytes = rest.split("    ").next().unwrap().split_whitespace();
            documented.extend(bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
        }
    }

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    let specs = vec![spec("w", Encoding::Q4tp, &[1, 32])];
    let mut writer = Writer::create(&path, json!({ "arch": {} }), b"", specs).unwrap();
    let values: Vec<f32> = (0..32).map(|i| (i as f32 - 16.0) / 8.0).collect();
    writer.write(0, &encode(Encoding::Q4tp, 1, 32, &values).unwrap()).unwrap();
    writer.finish().unwrap();
    let written = std::fs::read(path).unwrap();
    let differs = written.iter().zip(&documented).position(|(a, b)| a != b);
    assert_eq!((differs, written.len()), (None, documented.len()));
}

#[test]
fn impossible_specifications_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    let long = "n".repeat(65536);
    let refused = [
        (json!({}), vec![spec("", Encoding::F32, &[1])], "names have 1 to 65535 bytes"),
        (json!({}), vec![spec(&long, Encoding::F32, &[1])], "names have 1 to 65535 bytes"),
        (json!({}), vec![spec("a", Encoding::F32, &[1; 7])], "exceeds 6 dimensions of 32 bits"),
        (json!({}), vec![spec("a", Encoding::F32, &[1 << 32])], "exceeds 6 dimensions of 32 bits"),
        (json!({}), vec![spec("a", Encoding::Q4tp, &[2, 31])], "multiple of 32 columns"),
        (json!({}), vec![spec("a", Encoding::Q8Row, &[64])], "matrices only"),
        (json!({}), vec![spec("a", Encoding::F32, &[1 << 31, 1 << 30])], "2^63 bytes"),
        (
            json!({}),
            vec![spec("a", Encoding::F32, &[1]), spec("a", Encoding::F32, &[1])],
            "number 0's already",
        ),
        (json!([]), vec![], "header: must be a JSON object"),
        (json!({ "format": "gguf" }), vec![], "field format is \"gguf\""),
        (json!({ "version": 3 }), vec![], "field version is 3"),
        (json!({ "section_hashes": 3 }), vec![], "section_hashes must be an object"),
    ];
    for (header, specs, message) in refused {
        let error = Writer::create(&path, header, b"", specs).unwrap_err().to_string();
        assert!(error.contains(message), "expected {message:?} in {error:?}");
    }
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn misuse_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    let create = || {
        let specs = vec![spec("a", Encoding::F32, &[4]), spec("b", Encoding::F16, &[2, 2])];
        Writer::create(&path, json!({}), b"", specs)
    };
    let mut writer = create().unwrap();
    assert_eq!(entries(directory.path()), ["model.cmf.partial"]);

    let error = create().unwrap_err().to_string();
    assert!(error.contains("another process is writing"), "{error}");
    let error = writer.write(0, &[0; 15]).unwrap_err().to_string();
    assert!(error.contains("tensor a: payload has 15 bytes, its encoding and shape take 16"), "{error}");
    let error = writer.write(0, &[0; 17]).unwrap_err().to_string();
    assert!(error.contains("tensor a: payload has 17 bytes"), "{error}");
    writer.write(0, &[1; 16]).unwrap();
    let error = writer.write(0, &[1; 16]).unwrap_err().to_string();
    assert!(error.contains("tensor a: written twice"), "{error}");

    // A payload that was begun and dropped is not written.
    writer.tensor_writer(1).unwrap().write_all(&[0; 8]).unwrap();
    assert!(Container::open(directory.path().join("model.cmf.partial")).is_err());
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("1 tensors were not written, the first is b"), "{error}");
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn finishing_replaces_older_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    let write = |value: u8| {
        let specs = vec![spec("a", Encoding::F32, &[2])];
        let mut writer = Writer::create(&path, json!({}), b"", specs).unwrap();
        writer.write(0, &[value; 8]).unwrap();
        writer.finish().unwrap();
    };
    write(1);
    let before = Container::open(&path).unwrap();
    // What a killed conversion leaves: even a complete file under this name is only a leftover.
    std::fs::copy(&path, directory.path().join("model.cmf.partial")).unwrap();
    write(2);
    assert_eq!(entries(directory.path()), ["model.cmf"]);
    assert_eq!(Container::open(&path).unwrap().get("a").unwrap().bytes, [2; 8]);
    // An open container keeps what it opened.
    assert_eq!(before.get("a").unwrap().bytes, [1; 8]);
}

#[test]
fn a_folder_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let error = Writer::create(directory.path(), json!({}), b"", vec![]).unwrap_err().to_string();
    assert!(error.contains("cannot replace: is there and is not a regular file"), "{error}");
    assert!(!directory.path().with_added_extension("partial").exists());
}

#[test]
fn a_file_that_changed_its_length_is_not_verified() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.cmf");
    let writer = Writer::create(&path, json!({}), b"{}", vec![]).unwrap();
    writer.finish().unwrap();
    let container = Container::open(&path).unwrap();
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    let error = container.verify(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("do not modify a model file in use"), "{error}");
}
