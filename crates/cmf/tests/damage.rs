//! Truncated, flipped and hostile files: opening them is an error that names what is wrong, or the
//! file says the same as before. Nothing panics.

use std::path::Path;

use serde_json::json;
use shamrock_cmf::{Container, Encoding, TensorSpec, Writer, encode, hash64};

const RECORD: usize = 56;

/// A valid file of some kilobytes with five tensors in four encodings.
fn tiny() -> Vec<u8> {
    let tensors: [(&str, Encoding, &[usize]); 5] = [
        ("embed", Encoding::Q8TwoField, &[5, 32]),
        ("layers.0.norm", Encoding::F16, &[7]),
        ("layers.0.conv", Encoding::F32, &[4, 1, 3]),
        ("layers.0.up", Encoding::Q4tp, &[3, 64]),
        ("scalar", Encoding::F32, &[]),
    ];
    let specs = tensors.map(|(name, encoding, shape)| TensorSpec {
        name: name.into(),
        encoding,
        shape: shape.into(),
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.cmf");
    let header = json!({ "arch": { "block_diffusion": { "block_size": 32 }, "layers": 1 } });
    let mut writer = Writer::create(&path, header, b"{\"model\": {}}", specs.to_vec()).unwrap();
    for (index, (_, encoding, shape)) in tensors.into_iter().enumerate() {
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / cols;
        let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7 + 0.1).sin()).collect();
        writer.write(index, &encode(encoding, rows, cols, &values).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Makes the envelope's hashes those of its header and directory, where it has them.
fn rehash(file: &mut [u8]) {
    for (section, hash_at) in [(0x10, 0x70), (0x20, 0x78)] {
        let (offset, len) = (u64_at(file, section), u64_at(file, section + 8));
        let range = offset as usize..offset.saturating_add(len) as usize;
        if let Some(bytes) = file.get(range) {
            let hash = hash64(bytes);
            put(file, hash_at, &hash.to_le_bytes());
        }
    }
}

/// End of the directory: everything before it is metadata.
fn metadata_len(file: &[u8]) -> usize {
    (u64_at(file, 0x20) + u64_at(file, 0x28)) as usize
}

/// All that a file says, for comparison.
fn content(container: &Container) -> (String, Vec<u8>, Vec<String>, Vec<Vec<u8>>) {
    (
        container.header().to_string(),
        container.vocab().to_vec(),
        container.tensors().map(|t| format!("{t:?} {}", t.hash)).collect(),
        container.tensors().map(|t| t.bytes.to_vec()).collect(),
    )
}

fn error_of(file: Vec<u8>) -> String {
    let error = Container::from_bytes(file).expect_err("damaged file opens").to_string();
    assert!(!error.contains('\n') && error.len() < 400, "{error}");
    error
}

#[test]
fn every_truncation_is_an_error() {
    let file = tiny();
    Container::from_bytes(file.clone()).unwrap();
    for len in 0..file.len() {
        error_of(file[..len].to_vec());
    }
}

#[test]
fn truncating_a_real_file_at_its_boundaries_is_an_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let path = root.join("small/model.q4tp.cmf");
    let container = Container::open(&path).unwrap();
    let file = container.bytes();
    let mut boundaries: Vec<u64> = [0x10, 0x20, 0x30, 0x50]
        .into_iter()
        .flat_map(|at| [u64_at(file, at), u64_at(file, at) + u64_at(file, at + 8)])
        .collect();
    let payloads = container.tensors().map(|t| t.offset..t.offset + t.bytes.len() as u64);
    boundaries.extend(payloads.flat_map(|range| [range.start, range.end]));
    for at in boundaries.into_iter().flat_map(|at| [at - 1, at, at + 1]) {
        if at < container.file_len() {
            error_of(file[..at as usize].to_vec());
        }
    }

    // From the disk too: a mapping of the part of a file.
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut.cmf");
    for len in [0, 1, 127, 128, 5000, file.len() - 1] {
        std::fs::write(&cut, &file[..len]).unwrap();
        let error = Container::open(&cut).unwrap_err().to_string();
        assert!(error.starts_with(cut.to_str().unwrap()), "{error}");
    }
    assert!(Container::open(directory.path()).unwrap_err().to_string().contains("regular file"));
    assert!(Container::open(directory.path().join("none")).unwrap_err().to_string().contains("open"));
}

#[test]
fn every_flipped_bit_of_metadata_is_an_error_or_changes_nothing() {
    let file = tiny();
    let original = content(&Container::from_bytes(file.clone()).unwrap());
    let mut opened = 0;
    for bit in 0..8 * metadata_len(&file) {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(container) = Container::from_bytes(flipped) else { continue };
        opened += 1;
        // Only the envelope has no hash. A vocabulary section that became shorter is known by
        // its own hash, which is compared on demand.
        let clean = container.verify(&mut |_| {}).unwrap().is_clean();
        assert!(content(&container) == original || !clean, "bit {bit}");
        assert!(bit < 8 * 128, "bit {bit} has a hash");
    }
    assert!(opened < 40, "{opened} flips went through");
}

/// With hashes made good, so that the checks behind them are reached.
#[test]
fn every_flipped_bit_with_good_hashes_is_an_error_or_a_readable_file() {
    let file = tiny();
    for bit in 0..8 * metadata_len(&file) {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        rehash(&mut flipped);
        let Ok(container) = Container::from_bytes(flipped) else { continue };
        for tensor in container.tensors() {
            assert_eq!(tensor.decode().unwrap().len(), tensor.rows() * tensor.cols());
            assert_eq!(container.get(tensor.name).unwrap().id, tensor.id);
        }
    }
}

#[test]
fn every_flipped_bit_of_a_payload_is_found_by_verify() {
    let file = tiny();
    let container = Container::from_bytes(file.clone()).unwrap();
    assert!(container.verify(&mut |_| {}).unwrap().is_clean());
    let payloads = container.tensors().map(|t| (format!("tensor {} ", t.name), t.offset, t.bytes.len()));
    let vocab = ("vocabulary ".to_owned(), u64_at(&file, 0x50), container.vocab().len());
    for (what, offset, len) in payloads.chain([vocab]) {
        for at in [0, len / 2, len - 1] {
            let mut flipped = file.clone();
            flipped[offset as usize + at] ^= 0x10;
            let report = Container::from_bytes(flipped).unwrap().verify(&mut |_| {}).unwrap();
            let [problem] = &report.problems[..] else { panic!("{report:?}") };
            assert!(problem.to_string().starts_with(&what), "{problem}");
        }
    }
}

type Damage = fn(&mut Vec<u8>, usize);

/// Each kind of damage, done to the envelope or (at the offset given) to the directory.
#[test]
fn damage_is_named() {
    fn set_u32(file: &mut [u8], at: usize, value: u32) {
        put(file, at, &value.to_le_bytes());
    }
    fn set_u64(file: &mut [u8], at: usize, value: u64) {
        put(file, at, &value.to_le_bytes());
    }
    /// Field `at` of record `index`.
    fn field(directory: usize, index: usize, at: usize) -> usize {
        directory + 16 + RECORD * index + at
    }
    let cases: [(&str, Damage); 38] = [
        ("not a CMF file: starts with [00, 4d, 46, 01]", |f, _| f[0] = 0),
        ("CMF version 3", |f, _| f[4] = 3),
        ("flags 0x00000100", |f, _| f[9] = 1),
        ("bit 1 (task masks)", |f, _| f[12] |= 2),
        ("bit 20 (unknown), bit 31 (unknown)", |f, _| set_u32(f, 12, 0x8010_8005)),
        ("feature bit 0 (tensor directory) is clear", |f, _| f[12] &= !1),
        ("bit 15 (block diffusion) is clear but header field arch.block_diffusion is present", |f, _| {
            f[13] = 0
        }),
        ("header section (offset 64,", |f, _| set_u64(f, 0x10, 64)),
        ("directory section (offset 18446744073709551615,", |f, _| set_u64(f, 0x20, u64::MAX)),
        ("data section (offset 4096, 99999 bytes)", |f, _| set_u64(f, 0x38, 99999)),
        ("vocabulary section (offset 7,", |f, _| set_u64(f, 0x50, 7)),
        ("header and directory sections overlap at byte", |f, _| {
            let len = u64_at(f, 0x18);
            set_u64(f, 0x18, len + 1);
        }),
        ("masks section (offset 4096, 8 bytes) is present", |f, _| {
            set_u64(f, 0x40, 4096);
            set_u64(f, 0x48, 8);
        }),
        ("sparse index section (offset 0, 8 bytes)", |f, _| set_u64(f, 0x68, 8)),
        ("data section at offset 4160 is not aligned to 4096", |f, _| {
            let len = u64_at(f, 0x38);
            set_u64(f, 0x30, 4096 + 64);
            set_u64(f, 0x38, len - 64);
        }),
        ("header is not valid JSON: expected value at line 1 column 1", |f, _| f[128] = b'?'),
        ("header field (root) is [], expected a JSON object", |f, _| {
            let len = u64_at(f, 0x18) as usize;
            f[128..128 + len].fill(b' ');
            put(f, 128, b"[]");
        }),
        ("header field format is missing", |f, _| {
            let len = u64_at(f, 0x18) as usize;
            f[128..128 + len].fill(b' ');
            put(f, 128, b"{\"arch\":{\"block_diffusion\":1}}");
        }),
        ("recursion limit", |f, _| {
            let len = u64_at(f, 0x18) as usize;
            f[128..128 + len].fill(b'[');
        }),
        ("shorter than its 16-byte head", |f, _| set_u64(f, 0x28, 15)),
        ("more tensors than its length holds", |f, d| set_u64(f, d, u64::MAX / 56)),
        ("more tensors than its length holds", |f, d| set_u64(f, d, 1 << 62)),
        ("name pool outside the bytes after the records", |f, d| {
            let pool = u64_at(f, d + 8);
            set_u64(f, d + 8, pool - 1);
        }),
        ("name pool outside the bytes after the records", |f, d| set_u64(f, d + 8, u64::MAX)),
        ("directory record 1: name (offset 4294967295, 13 bytes) passes the end", |f, d| {
            set_u32(f, field(d, 1, 0), u32::MAX);
        }),
        ("directory record 2: name is empty", |f, d| put(f, field(d, 2, 4), &[0, 0])),
        ("directory record 0: name is not UTF-8", |f, d| {
            let pool = u64_at(f, d + 8) as usize;
            f[d + pool + 1] = 0xFF;
        }),
        ("directory record 3: names are longer in all than the name pool", |f, d| {
            for index in 0..4 {
                set_u32(f, field(d, index, 0), index as u32);
                put(f, field(d, index, 4), &[15, 0]);
            }
        }),
        ("tensor layers.0.norm (directory record 2): the name is already taken by record 1", |f, d| {
            let name: [u8; 6] = f[field(d, 1, 0)..][..6].try_into().unwrap();
            put(f, field(d, 2, 0), &name);
        }),
        ("tensor embed (directory record 0): encoding id 4 (q4_block) is not supported", |f, d| {
            f[field(d, 0, 6)] = 4;
        }),
        ("encoding id 200 (unknown) is not supported", |f, d| f[field(d, 0, 6)] = 200),
        ("7 dimensions, the format allows 6", |f, d| f[field(d, 0, 7)] = 7),
        ("dimension 2 is 9 beyond rank 2, expected 0", |f, d| set_u32(f, field(d, 0, 16), 9)),
        ("tensor layers.0.up (directory record 3): q4tp needs a multiple of 32 columns, not 65", |f, d| {
            set_u32(f, field(d, 3, 12), 65);
        }),
        ("the byte length of shape [4294967295, 4294967295, 4294967295] overflows", |f, d| {
            for dim in 0..3 {
                set_u32(f, field(d, 2, 8 + 4 * dim), u32::MAX);
            }
        }),
        ("233 bytes, but q8_2f [5, 32] takes 234", |f, d| f[field(d, 0, 40)] -= 1),
        ("offset 32 in the data section is not aligned to 64", |f, d| f[field(d, 0, 32)] = 32),
        ("payload (offset 18446744073709551552, 234 bytes) passes the end of the data section", |f, d| {
            set_u64(f, field(d, 0, 32), u64::MAX - 63);
        }),
    ];
    let file = tiny();
    let directory = u64_at(&file, 0x20) as usize;
    for (message, damage) in cases {
        let mut damaged = file.clone();
        damage(&mut damaged, directory);
        rehash(&mut damaged);
        let error = error_of(damaged);
        assert!(error.contains(message), "expected {message:?} in {error:?}");
    }

    let mut damaged = file.clone();
    damaged[200] ^= 1;
    assert!(error_of(damaged).contains("header section hashes to"));
    let mut damaged = file.clone();
    damaged[directory + 20] ^= 1;
    assert!(error_of(damaged).contains("directory section hashes to"));
}

/// Some writers leave no hashes of the metadata; verifying says so.
#[test]
fn absent_hashes_are_reported() {
    let mut file = tiny();
    file[0x70..0x80].fill(0);
    let report = Container::from_bytes(file).unwrap().verify(&mut |_| {}).unwrap();
    assert!(report.is_clean());
    assert_eq!(report.unhashed, ["header", "directory"]);
}

/// The header's record and the feature bit stand for the same thing; a null record is none.
#[test]
fn block_diffusion_bit_must_agree_with_the_header() {
    let mut file = tiny();
    let header = String::from_utf8(file[128..128 + u64_at(&file, 0x18) as usize].to_vec()).unwrap();
    let without = header.replacen("{\"block_size\":32}", "null", 1);
    let padded = format!("{without:<width$}", width = header.len());
    put(&mut file, 128, padded.as_bytes());
    rehash(&mut file);
    let error = error_of(file.clone());
    assert!(error.contains("bit 15 (block diffusion) is set but"), "{error}");
    file[13] = 0;
    Container::from_bytes(file).unwrap();
}

/// Not damage, but made by the same means: a file with 64 GiB of holes for weights. Reading them
/// would take many seconds even from memory.
#[cfg(target_os = "linux")]
#[test]
fn opening_reads_no_weights() {
    const START: u64 = 1 << 20;
    const LEN: u64 = 64 << 30;
    let mut file = tiny();
    let record = u64_at(&file, 0x20) as usize + 16 + 2 * RECORD;
    put(&mut file, record + 7, &[2]);
    for (dim, value) in [1 << 24, 1 << 10, 0].into_iter().enumerate() {
        put(&mut file, record + 8 + 4 * dim, &u32::to_le_bytes(value));
    }
    put(&mut file, record + 32, &START.to_le_bytes());
    put(&mut file, record + 40, &LEN.to_le_bytes());
    put(&mut file, 0x38, &(START + LEN).to_le_bytes());
    put(&mut file, 0x50, &[0; 16]);
    rehash(&mut file);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse.cmf");
    std::fs::write(&path, &file).unwrap();
    let data = u64_at(&file, 0x30);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(data + START + LEN).unwrap();

    let start = std::time::Instant::now();
    let container = Container::open(&path).unwrap();
    let tensor = container.get("layers.0.conv").unwrap();
    assert_eq!(tensor.bytes.len() as u64, LEN);
    let mut row = vec![1.0; 1 << 10];
    tensor.decode_rows((1 << 24) - 1..1 << 24, &mut row).unwrap();
    assert!(row.iter().all(|value| *value == 0.0));
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}
