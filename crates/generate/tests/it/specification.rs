//! The specification's generation loops, written down literally over logits and one pass a time,
//! against ours over random scripts and options.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Accept, Mode, Options};
use shamrock_model::{Controls, Executor, Pick, Score, SeqId, Shaping, Step};

use crate::support::{cold, options, prompts, savings, threshold};

struct Specification<'a> {
    executor: &'a mut ScriptedExecutor,
    seq: SeqId,
    options: &'a Options,
    controls: &'a Controls,
    counts: BTreeMap<u32, u32>,
    out: Vec<(u32, f32)>,
    stopped: bool,
}

impl Specification<'_> {
    fn preview(&mut self, block: &[u32]) -> Vec<Vec<f32>> {
        let rows: Vec<usize> = (0..block.len()).collect();
        let step = Step::preview(self.seq, block, Score::Logits { rows: &rows });
        let pass = self.executor.run(&[step]).unwrap();
        rows.iter().map(|&r| pass.outputs[0].preview.logits(r).to_vec()).collect()
    }

    fn commit(&mut self, ids: &[u32]) -> Vec<Vec<f32>> {
        let rows: Vec<usize> = (0..ids.len()).collect();
        let step = Step::commit(self.seq, ids, Score::Logits { rows: &rows }).rewindable();
        let pass = self.executor.run(&[step]).unwrap();
        rows.iter().map(|&r| pass.outputs[0].commit.logits(r).to_vec()).collect()
    }

    fn pick(&self, row: &[f32], position: usize, think_open: bool, probe: Option<u32>) -> Pick {
        let counts: Vec<(u32, u32)> = self.counts.iter().map(|(&id, &n)| (id, n)).collect();
        let forbidden = [&self.options.suppress[..], &[ScriptedExecutor::MASK]].concat();
        let shaping = Shaping {
            controls: self.controls,
            forbidden: &forbidden,
            counts: &counts,
            first_position: position as i32,
            think_open,
        };
        let mut row = row.to_vec();
        shaping.apply(0, &mut row);
        Pick::from_logits(&row, probe)
    }

    fn think_open(&self) -> bool {
        !self.counts.contains_key(&2)
    }

    fn full(&self) -> bool {
        self.stopped || self.out.len() >= self.options.max_tokens
    }

    fn emit(&mut self, id: u32, confidence: f32) {
        self.out.push((id, confidence));
        *self.counts.entry(id).or_default() += 1;
        self.stopped = !self.options.ignore_eos && self.controls.stop_ids.contains(&id);
    }

    fn denoise(&mut self, prompt: &[u32]) {
        self.commit(prompt);
        let rows = self.options.block_size.unwrap();
        while !self.full() {
            let (mut block, mut sure) = (vec![ScriptedExecutor::MASK; rows], vec![0.0; rows]);
            while block.contains(&ScriptedExecutor::MASK) {
                let logits = self.preview(&block);
                let open = self.think_open() && !block.contains(&2);
                let picks: Vec<(usize, Pick)> = (0..rows)
                    .filter(|&r| block[r] == ScriptedExecutor::MASK)
                    .map(|r| (r, self.pick(&logits[r], self.out.len() + r + 1, open, None)))
                    .collect();
                let mut fixed: Vec<&(usize, Pick)> =
                    picks.iter().filter(|p| p.1.probability > threshold(self.options)).collect();
                if fixed.is_empty() {
                    let best = picks.iter().map(|p| p.1.probability).fold(0.0, f32::max);
                    fixed.extend(picks.iter().find(|p| p.1.probability == best));
                }
                for &&(r, pick) in &fixed {
                    (block[r], sure[r]) = (pick.token, pick.probability);
                }
            }
            for r in 0..rows {
                if !self.full() {
                    self.emit(block[r], sure[r]);
                }
            }
            self.commit(&block);
        }
    }

    fn draft(&mut self, prompt: &[u32], ratio: f32, delta: f32) {
        let last = self.commit(prompt).pop().unwrap();
        if self.full() {
            return;
        }
        let first = self.pick(&last, 1, self.think_open(), None);
        self.emit(first.token, first.probability);
        let mut pending = first.token;
        while !self.full() {
            let (n, open) = (self.out.len(), self.think_open());
            let mut width = self.options.draft_width.unwrap();
            while width > self.options.max_tokens - n {
                width /= 2;
            }
            let mut rows = vec![ScriptedExecutor::MASK; width.max(1)];
            rows[0] = pending;
            if rows.len() > 1 {
                let logits = self.preview(&rows);
                for r in 1..rows.len() {
                    rows[r] = self.pick(&logits[r], n + r, open, None).token;
                }
            }
            let base = self.executor.len(self.seq).unwrap();
            let verify = self.commit(&rows);
            let mut kept = Vec::new();
            let bonus = loop {
                let j = kept.len();
                let draft = rows.get(j + 1).copied();
                let pick = self.pick(&verify[j], n + j + 1, open, draft);
                let bar = ratio.min(delta * (-pick.entropy).exp());
                match draft {
                    Some(draft) if pick.probe >= bar => kept.push((draft, pick.probe)),
                    _ => break pick,
                }
            };
            self.executor.rewind(self.seq, base + kept.len() + 1).unwrap();
            kept.push((bonus.token, bonus.probability));
            pending = bonus.token;
            for (id, confidence) in kept {
                if !self.full() {
                    self.emit(id, confidence);
                }
            }
        }
    }

    fn causal(&mut self, prompt: &[u32]) {
        let mut next = prompt.to_vec();
        while !self.full() {
            let last = self.commit(&next).pop().unwrap();
            let pick = self.pick(&last, self.out.len() + 1, self.think_open(), None);
            self.emit(pick.token, pick.probability);
            next = vec![pick.token];
        }
    }
}

fn specified(executor: &mut ScriptedExecutor, prompt: &[u32], options: &Options) -> Vec<(u32, f32)> {
    let (seq, controls) = (executor.open().unwrap(), options.controls.as_ref().unwrap());
    let (counts, out) = (BTreeMap::new(), Vec::new());
    let mut spec = Specification { executor, seq, options, controls, counts, out, stopped: false };
    match (options.mode, options.accept) {
        (Mode::Denoise, _) => spec.denoise(prompt),
        (Mode::Draft, Accept::Typical { ratio, delta }) => spec.draft(prompt, ratio, delta),
        // Exact drafting is defined by its result.
        (Mode::Draft, Accept::Exact) | (Mode::Causal | Mode::Auto, _) => spec.causal(prompt),
    }
    spec.out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_mode_does_what_the_specification_says(
        seed in any::<u64>(), prompt in prompts(30), options in options(), savings in savings(),
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let want = specified(&mut executor, &prompt, &options);
        let got = cold(&mut executor, &prompt, &Options { savings, ..options });
        let got: Vec<(u32, f32)> = got.tokens.into_iter().zip(got.confidence).collect();
        prop_assert_eq!(got, want);
    }
}
