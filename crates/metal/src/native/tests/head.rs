//! Shaping and picks against the definitions of the model crate.

use shamrock_model::config::Ramp;
use shamrock_model::{Controls, Pick, Shaping};

use super::super::abi;
use super::super::device::Grid;
use super::super::kernel::Kernel;
use super::super::workspace::PICK_CHUNKS;
use super::{in_all_orders, noise};

const VOCAB: usize = 517;

#[test]
fn shaped_logits_and_picks() {
    let controls = Controls {
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        repetition_penalty: 1.5,
        length_ramp: Ramp { strength: 3.0, start: 1, window: 4 },
        think_end_ramp: Ramp { strength: 2.0, start: 0, window: 8 },
        think_end_id: Some(9),
        stop_ids: vec![4, 516],
    };
    let counts = [(9, 1), (4, 3), (100, 2)];
    let shaping = Shaping {
        controls: &controls,
        forbidden: &[7, 516],
        counts: &counts,
        first_position: 2,
        think_open: true,
    };
    let mut logits: Vec<f32> = noise(1, 4 * VOCAB).iter().map(|x| 4.0 * x).collect();
    logits[VOCAB + 30] = 9.0; // a tie: the first wins
    logits[VOCAB + 500] = 9.0;
    logits[3 * VOCAB..].fill(f32::NEG_INFINITY); // nothing left to pick
    let (rows, probes) = ([0usize, 3, 1, 2], [4u32, 500, 7, 0]);
    let words = [9u32, 1, 4, 3, 100, 2, 7, 516, 4, 516];
    let record = abi::Shaping {
        counts: 0,
        counts_end: 3,
        forbidden: 6,
        forbidden_end: 8,
        stops: 8,
        stops_end: 10,
        think_id: 9,
        presence: 0.5,
        frequency: 0.25,
        repetition: 1.5,
    };
    let records: Vec<abi::ScoredRow> = rows
        .iter()
        .zip(probes)
        .enumerate()
        .map(|(i, (&row, probe))| {
            let position = shaping.first_position + row as i32;
            abi::ScoredRow {
                shaping: if i == 1 { abi::NONE } else { 0 }, // one row stays as it is
                probe,
                length: controls.length_ramp.at(position),
                think: controls.think_end_ramp.at(position),
            }
        })
        .collect();
    in_all_orders(|device| {
        let logits_b = device.filled(&logits).unwrap();
        let (rows_b, shapings_b, words_b) = (
            device.filled(&records).unwrap(),
            device.filled(&[record]).unwrap(),
            device.filled(&words).unwrap(),
        );
        let softmax = device.alloc(4 * PICK_CHUNKS * abi::SOFTMAX_BYTES).unwrap();
        let picks = device.alloc(4 * size_of::<abi::Pick>()).unwrap();
        let vocab = abi::Vocab { size: VOCAB as u32, chunks: PICK_CHUNKS as u32 };
        let mut work = device.work(false);
        let buffers = [&logits_b, &rows_b, &shapings_b, &words_b].map(Into::into);
        work.dispatch(Kernel::Shape, Grid::new((4, 1, 1), 64), &vocab, &buffers).unwrap();
        work.barrier();
        let buffers = [&logits_b, &softmax].map(Into::into);
        work.dispatch(Kernel::PickChunks, Grid::new((PICK_CHUNKS, 4, 1), 32), &vocab, &buffers).unwrap();
        work.barrier();
        let buffers = [&logits_b, &rows_b, &softmax, &picks].map(Into::into);
        work.dispatch(Kernel::PickJoin, Grid::new((4, 1, 1), 1), &vocab, &buffers).unwrap();
        work.wait().unwrap();
        for (i, got) in picks.read::<abi::Pick>(0, 4).iter().enumerate() {
            let mut row = logits[i * VOCAB..][..VOCAB].to_vec();
            if i != 1 {
                shaping.apply(rows[i], &mut row);
            }
            // The same operations in the same order.
            assert_eq!(logits_b.read::<f32>(i * VOCAB * 4, VOCAB), row, "shaped row {i}");
            let want = Pick::from_logits(&row, Some(probes[i]));
            assert_eq!(got.token, want.token, "row {i}");
            let off = 1e-6; // sums of some hundred numbers up to 1, in single precision
            for (what, got, want) in [
                ("probability", got.probability, want.probability),
                ("runner-up", got.runner_up, want.runner_up),
                ("entropy", got.entropy / 8.0, want.entropy / 8.0), // up to ln 517
                ("probe", got.probe, want.probe),
            ] {
                assert!((got - want).abs() <= off, "row {i}: {what} {got}, expected {want}");
            }
        }
    });
}
