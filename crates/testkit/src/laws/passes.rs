//! What the rows of a pass come to does not depend on how they were put into passes.

use proptest::prelude::*;
use proptest::sample::Index;
use shamrock_model::{Controls, Pick, Score, Shaping, Step};

use super::Bench;
use super::trial::{MASK, VOCAB, blocks, logits, same_logits, tokens};
use crate::backend::Tolerance;

pub(super) fn pieces(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(2..80), prop::collection::vec(any::<Index>(), 0..5));
    bench.law("committing in pieces equals committing at once", inputs, |t, (ids, cuts)| {
        let (whole, pieces) = (t.open()?, t.open()?);
        let at_once = t.commit(whole, &ids)?;
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(ids.len())).chain([0, ids.len()]).collect();
        at.sort_unstable();
        let mut in_pieces = Vec::new();
        for pair in at.windows(2) {
            in_pieces.extend(t.commit(pieces, &ids[pair[0]..pair[1]])?);
        }
        same_logits(t.tolerance, "logits in pieces", &in_pieces, &at_once)?;
        t.same_sequence("state in pieces", pieces, whole)
    })
}

pub(super) fn previews_only_read(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(0..40), blocks(1..9), blocks(1..9));
    bench.law("a preview changes no state", inputs, |t, (prefix, block, other)| {
        let seq = t.open_with(&prefix)?;
        let before = t.state(seq)?;
        let first = t.preview(seq, &block)?;
        t.unchanged("state after a preview", seq, &before)?;
        t.preview(seq, &other)?;
        same_logits(t.tolerance, "the same preview again", &t.preview(seq, &block)?, &first)
    })
}

pub(super) fn scored_rows(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(1..12), blocks(1..9), prop::collection::vec(any::<Index>(), 1..4));
    bench.law("rows are scored alike whichever are asked for", inputs, |t, (ids, block, rows)| {
        let (all, some) = (t.open()?, t.open()?);
        let (commit, preview) = (t.commit(all, &ids)?, t.preview(all, &block)?);
        let pick = |len: usize| {
            let mut rows: Vec<usize> = rows.iter().map(|r| r.index(len)).collect();
            rows.sort_unstable_by(|a, b| b.cmp(a)); // any order, so the last first
            rows.dedup();
            rows
        };
        let of = |all: &[f32], rows: &[usize]| -> Vec<f32> {
            let width = VOCAB as usize;
            rows.iter().flat_map(|r| &all[r * width..][..width]).copied().collect()
        };
        let (c, p) = (pick(ids.len()), pick(block.len()));
        let step = Step::commit(some, &ids, Score::Logits { rows: &c });
        let pass = t.run(&[step.then_preview(&block, Score::Logits { rows: &p })])?;
        let output = &pass.outputs[0];
        same_logits(t.tolerance, "commit rows", &logits(&output.commit, c.len())?, &of(&commit, &c))?;
        same_logits(t.tolerance, "preview rows", &logits(&output.preview, p.len())?, &of(&preview, &p))
    })
}

pub(super) fn picks(bench: &Bench<'_>) -> Result<(), String> {
    let penalties = (-1.0f32..3.0, -0.5f32..1.0, 0.7f32..2.0);
    let inputs = (tokens(1..12), blocks(7..9), penalties, 0..VOCAB, tokens(2..3));
    bench.law("picks are the shaped logits read off", inputs, |t, (ids, block, penalties, seen, probes)| {
        let seq = t.open_with(&ids)?;
        let all = t.preview(seq, &block)?;
        let controls = Controls {
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            repetition_penalty: penalties.2,
            ..Controls::default()
        };
        let counts = [(seen, 1), ((seen + 5) % VOCAB, 2)];
        let shaping = Shaping {
            controls: &controls,
            forbidden: &[MASK],
            counts: &counts,
            first_position: 4,
            think_open: false,
        };
        let rows = [6, 2];
        let score = Score::Picks { rows: &rows, shaping, probes: &probes };
        let pass = t.run(&[Step::preview(seq, &block, score)])?;
        let got = pass.outputs[0].preview.picks();
        prop_assert_eq!(got.len(), rows.len(), "one pick per row asked for");
        for ((got, row), probe) in got.iter().zip(rows).zip(&probes) {
            let mut shaped = all[row * VOCAB as usize..][..VOCAB as usize].to_vec();
            shaping.apply(row, &mut shaped);
            let want = Pick::from_logits(&shaped, Some(*probe));
            prop_assert!(
                same_pick(t.tolerance, got, &want, &shaped),
                "row {row}: {got:?}, expected {want:?}"
            );
        }
        Ok(())
    })
}

/// Whether a pick is that of logits off by no more than the tolerance, its sums being taken in f32 (as
/// [`Pick`] allows): some units in the last place of numbers up to 1, and up to ln V.
fn same_pick(tolerance: Tolerance, got: &Pick, want: &Pick, shaped: &[f32]) -> bool {
    const SUMS: f32 = 1e-6;
    let near = got.token == want.token
        || tolerance != Tolerance::EXACT
            && shaped[want.token as usize] - shaped[got.token as usize] <= 2.0 * tolerance.logits;
    let within = |a: f32, b: f32, off: f32| (a - b).abs() <= off;
    let p = SUMS + tolerance.probability();
    // An error of e in every logit moves the entropy H by at most e Σ p |ln p + H| ≤ 2e·ln V.
    let entropy = (SUMS + 2.0 * tolerance.logits) * (VOCAB as f32).ln();
    near && within(got.probability, want.probability, p)
        && within(got.runner_up, want.runner_up, p)
        && within(got.probe, want.probe, p)
        && within(got.entropy, want.entropy, entropy)
}

pub(super) fn batches(bench: &Bench<'_>) -> Result<(), String> {
    let members = prop::collection::vec((tokens(0..20), tokens(0..9), blocks(0..9)), 2..5);
    bench.law("a batch equals its members one by one", members, |t, members| {
        let rows: Vec<usize> = (0..9).collect();
        let mut steps = Vec::new();
        for (prefix, ids, block) in &members {
            let step = Step::commit(t.open_with(prefix)?, ids, Score::Logits { rows: &rows[..ids.len()] });
            steps.push(step.then_preview(block, Score::Logits { rows: &rows[..block.len()] }));
        }
        let together = t.run(&steps)?.outputs;
        for (i, ((step, together), (prefix, ids, block))) in
            steps.iter().zip(&together).zip(&members).enumerate()
        {
            let alone = t.open_with(prefix)?;
            let output = &t.run(&[Step { seq: alone, ..*step }])?.outputs[0];
            for (part, got, want, rows) in [
                ("commit", &together.commit, &output.commit, ids.len()),
                ("preview", &together.preview, &output.preview, block.len()),
            ] {
                same_logits(
                    t.tolerance,
                    &format!("{part} of member {i}"),
                    &logits(got, rows)?,
                    &logits(want, rows)?,
                )?;
            }
            t.same_sequence(&format!("state of member {i}"), step.seq, alone)?;
        }
        Ok(())
    })
}

pub(super) fn fused_steps(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(0..20), tokens(1..40), blocks(1..9));
    bench.law("a commit and a preview in one step equal the two", inputs, |t, (prefix, ids, block)| {
        let (fused, apart) = (t.open_with(&prefix)?, t.open_with(&prefix)?);
        let rows: Vec<usize> = (0..40).collect();
        let score = |n: usize| Score::Logits { rows: &rows[..n] };
        let step = Step::commit(fused, &ids, score(ids.len())).then_preview(&block, score(block.len()));
        let output = &t.run(&[step])?.outputs[0];
        let (commit, preview) = (t.commit(apart, &ids)?, t.preview(apart, &block)?);
        same_logits(t.tolerance, "commit", &logits(&output.commit, ids.len())?, &commit)?;
        same_logits(t.tolerance, "preview", &logits(&output.preview, block.len())?, &preview)?;
        t.same_sequence("state", fused, apart)
    })
}
