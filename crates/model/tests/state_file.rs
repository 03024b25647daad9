//! Saved states: what is read is what was written, to the last bit, or nothing.

use proptest::prelude::*;
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{
    Config, Executor, LayerState, ModelFile, Origin, Score, SequenceState, StateFileError, StateReader,
    StateWriter, Step,
};

type States = Vec<(Vec<u32>, SequenceState)>;

fn model() -> ModelFile {
    ModelFile::open(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap()
}

fn origin(model: &ModelFile) -> Origin {
    Origin { model: model.fingerprint(), engine: "reference".into() }
}

/// States of a few lengths, an empty one among them; `round` makes keys and values fit half precision.
fn states(model: &ModelFile, round: bool) -> States {
    let mut executor =
        ReferenceExecutor::new(model.clone(), ReferenceOptions { max_context: None, threads: None }).unwrap();
    let made = [0, 1, 9].map(|len| {
        let ids: Vec<u32> = (0..len).map(|i| i * 7 + 3).collect();
        let seq = executor.open().unwrap();
        executor.run(&[Step::commit(seq, &ids, Score::None)]).unwrap();
        let mut state = executor.export(seq).unwrap();
        for layer in &mut state.layers {
            if let LayerState::Kv { k, v } = layer
                && round
            {
                k.iter_mut().chain(v).for_each(|x| *x = half::f16::from_f32(*x).to_f32());
            }
        }
        (ids, state)
    });
    made.into()
}

fn written(origin: &Origin, note: &[u8], states: &States) -> Vec<u8> {
    let mut writer = StateWriter::new(Vec::new(), origin, note, states.len() as u32).unwrap();
    for (ids, state) in states {
        writer.push(ids, state).unwrap();
    }
    writer.into_inner()
}

fn read(config: &Config, file: &[u8]) -> Result<(Origin, Vec<u8>, States), StateFileError> {
    let mut reader = StateReader::new(file, file.len() as u64)?;
    let mut states = Vec::new();
    while let Some(state) = reader.next(config)? {
        states.push(state);
    }
    Ok((reader.origin().clone(), reader.note().to_vec(), states))
}

fn bits(states: &States) -> Vec<u32> {
    let numbers = |layer: &LayerState| match layer {
        LayerState::Kv { k, v } => [&k[..], v].concat(),
        LayerState::Gdn { ring, memory } => [&ring[..], memory].concat(),
    };
    states.iter().flat_map(|(_, s)| s.layers.iter().flat_map(numbers)).map(f32::to_bits).collect()
}

#[test]
fn states_come_back_to_the_bit_and_halves_take_half_the_room() {
    let model = model();
    let origin = origin(&model);
    let [full, half] = [false, true].map(|round| {
        let states = states(&model, round);
        let file = written(&origin, b"a note", &states);
        let (found, note, again) = read(&model.config, &file).unwrap();
        assert_eq!((&found, &note[..]), (&origin, &b"a note"[..]));
        assert_eq!(again, states);
        assert_eq!(bits(&again), bits(&states), "signs of zeros, too");
        file.len()
    });
    let (_, per_position) = model.config.state_bytes();
    assert_eq!(full - half, 10 * per_position as usize / 2);
}

#[test]
fn numbers_that_are_none_survive() {
    let model = model();
    let mut states = states(&model, true);
    for (_, state) in &mut states {
        for layer in &mut state.layers {
            if let LayerState::Kv { k, .. } = layer {
                k.iter_mut().for_each(|x| *x = f32::from_bits(0x7fc0_1234));
            }
        }
    }
    let (_, _, again) = read(&model.config, &written(&origin(&model), b"", &states)).unwrap();
    assert_eq!(bits(&again), bits(&states));
}

#[test]
fn other_files_versions_and_models_are_told_apart() {
    let model = model();
    let file = written(&origin(&model), b"", &states(&model, true));
    let refused = |file: &[u8]| read(&model.config, file).unwrap_err().to_string();
    assert!(refused(b"").contains("no file of saved states"));
    assert!(refused(b"CMF\x01 and so on").contains("no file of saved states"));
    let mut newer = file.clone();
    newer[8] = 2;
    assert!(refused(&newer).contains("version 2"));
    assert!(refused(&[&file[..], b"x"].concat()).contains("behind its end"));
    // A huge length costs nothing but the refusal.
    let mut huge = file.clone();
    let record = 32 + "reference".len() + 8;
    huge[record..record + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refused(&huge).contains("ends too early"));
    let other = ModelFile::open(shamrock_testkit::fixture("kernel/model.q4tp.cmf")).unwrap();
    assert_ne!(model.fingerprint(), other.fingerprint());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn damage_is_found_wherever_it_is(at in any::<prop::sample::Index>(), bit in 0..8u8, cut in any::<bool>()) {
        let model = model();
        let states: States = states(&model, true).split_off(1);
        let mut file = written(&origin(&model), b"a note", &states);
        let at = at.index(file.len());
        if cut {
            file.truncate(at);
        } else {
            file[at] ^= 1 << bit;
        }
        prop_assert!(read(&model.config, &file).is_err());
    }
}
