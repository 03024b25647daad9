//! Any bytes either are refused as a container or can be read to the last tensor.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use shamrock_cmf::{Container, hash64};

fuzz_target!(init: one_thread(), |data: &[u8]| {
    read(data.to_vec());
    // Almost no mutation survives the metadata's hashes: make them good to get past them.
    let mut data = data.to_vec();
    rehash(&mut data);
    read(data);
});

fn one_thread() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
}

fn read(data: Vec<u8>) {
    let Ok(container) = Container::from_bytes(data) else { return };
    for tensor in container.tensors() {
        assert_eq!(container.get(tensor.name).map(|found| found.id), Some(tensor.id));
        assert_eq!(tensor.encoding.byte_len(tensor.shape).unwrap(), tensor.bytes.len() as u64);
        let all = tensor.decode().unwrap();
        assert_eq!(all.len(), tensor.rows() * tensor.cols());
        if tensor.rows() > 0 {
            let mut last = vec![0.0; tensor.cols()];
            tensor.decode_rows(tensor.rows() - 1..tensor.rows(), &mut last).unwrap();
            assert!(last.iter().zip(&all[all.len() - last.len()..]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
    let report = container.verify(&mut |_| {}).unwrap();
    assert_eq!(report.tensors, container.tensors().len());
    for problem in report.problems {
        assert!(!problem.to_string().is_empty());
    }
}

fn rehash(file: &mut [u8]) {
    for (section, hash) in [(0x10, 0x70), (0x20, 0x78)] {
        if let Some(range) = section_range(file, section)
            && let Some(bytes) = file.get(range)
        {
            let value = hash64(bytes).to_le_bytes();
            file[hash..hash + 8].copy_from_slice(&value);
        }
    }
}

/// The range that an envelope's pair of offset and length names, if the envelope is whole.
fn section_range(file: &[u8], at: usize) -> Option<Range<usize>> {
    let envelope = file.get(..128)?;
    let field = |at: usize| envelope[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (offset, len) = (field(at)?, field(at + 8)?);
    Some(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?)
}
