//! Any bytes either are refused as saved states, or are states of the model that read back after they are
//! written.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use shamrock_cmf::hash64;
use shamrock_model::{Config, SequenceState, StateReader, StateWriter};

/// A model whose states have a few bytes, so that inputs stay small.
static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let header = serde_json::from_str(include_str!("../seeds/config/small-header.json")).unwrap();
    let mut config = Config::from_header(&header).unwrap();
    (config.attention.kv_heads, config.attention.head_dim) = (1, 2);
    (config.gdn.key_heads, config.gdn.value_heads) = (1, 1);
    (config.gdn.key_dim, config.gdn.value_dim) = (2, 2);
    config
});

fuzz_target!(|data: &[u8]| {
    read(data);
    // Almost no mutation survives the hashes: make those good that can be found.
    let mut data = data.to_vec();
    rehash(&mut data);
    read(&data);
});

fn read(data: &[u8]) {
    let Ok(mut reader) = StateReader::new(data, data.len() as u64) else { return };
    let mut states: Vec<(Vec<u32>, SequenceState)> = Vec::new();
    loop {
        match reader.next(&CONFIG) {
            Ok(Some((ids, state))) => {
                state.check(&CONFIG).unwrap();
                assert_eq!(state.len, ids.len());
                states.push((ids, state));
            }
            Ok(None) => break,
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
    let (origin, note) = (reader.origin(), reader.note());
    let mut writer = StateWriter::new(Vec::new(), origin, note, states.len() as u32).unwrap();
    for (ids, state) in &states {
        writer.push(ids, state).unwrap();
    }
    let file = writer.into_inner();
    let mut again = StateReader::new(&file[..], file.len() as u64).unwrap();
    assert_eq!((again.origin(), again.note()), (origin, note));
    for (ids, state) in states {
        let (found, read) = again.next(&CONFIG).unwrap().unwrap();
        // By their text, since a number may be none.
        assert_eq!((found, format!("{read:?}")), (ids, format!("{state:?}")));
    }
    assert!(again.next(&CONFIG).unwrap().is_none());
}

/// Corrects the hash of the head and of the first record.
fn rehash(file: &mut [u8]) {
    let number = |file: &[u8], at: usize| file.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b) as usize);
    let seal = |file: &mut [u8], from: usize, to: usize| {
        let hash = hash64(file.get(from..to)?).to_le_bytes();
        file.get_mut(to..to + 8)?.copy_from_slice(&hash);
        Some(to + 8)
    };
    let head = |file: &[u8]| 32usize.checked_add(number(file, 24)?)?.checked_add(number(file, 28)?);
    let Some(record) = head(file).and_then(|end| seal(file, 0, end)) else { return };
    let Some((rows, storage)) = number(file, record).zip(number(file, record + 4)) else { return };
    let (fixed, per_row) = CONFIG.state_bytes();
    let per_row = if storage == 1 { per_row / 2 } else { per_row } as usize + 4;
    let end = rows.checked_mul(per_row).and_then(|bytes| bytes.checked_add(record + 8 + fixed as usize));
    let _ = end.and_then(|end| seal(file, record, end));
}
