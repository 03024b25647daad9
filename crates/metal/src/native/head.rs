//! Final norm, logits, shaping and picks of the rows that are to be scored.

use bytemuck::Zeroable;
use shamrock_model::executor::{Scored, StepOutput};
use shamrock_model::{Config, Pick, Result, Score, Shaping};

use super::abi::{self, NONE};
use super::device::Grid;
use super::kernel::Kernel;
use super::pass::Pass;
use super::plan::Plan;
use super::workspace::{HEAD_ROWS, PICK_CHUNKS, PICK_IDS};

/// The rows to score and what shapes them, in the order of the parts.
pub(crate) struct Scoring {
    rows: Vec<ScoredRow>,
    shapings: Vec<abi::Shaping>,
    pub(crate) words: Vec<u32>,
}

struct ScoredRow {
    /// Row of the pass.
    row: u32,
    pick: bool,
    record: abi::ScoredRow,
}

impl Scoring {
    pub(crate) fn new(config: &Config, plan: &Plan<'_>) -> Scoring {
        let mut scoring = Scoring { rows: Vec::new(), shapings: Vec::new(), words: Vec::new() };
        for (i, part) in plan.parts.iter().enumerate() {
            let (shaping, probes) = match part.score {
                Score::Picks { shaping, probes, .. } => (Some(shaping), *probes),
                _ => (None, &[][..]),
            };
            scoring
                .shapings
                .push(shaping.map_or_else(abi::Shaping::zeroed, |s| record(s, &mut scoring.words)));
            for (n, &row) in part.score.rows().iter().enumerate() {
                let bias = shaping.map(|s| biases(s, row)).unwrap_or_default();
                let probe = probes.get(n).copied().filter(|&id| (id as usize) < config.vocab_size);
                scoring.rows.push(ScoredRow {
                    row: (part.rows.start + row) as u32,
                    pick: shaping.is_some(),
                    record: abi::ScoredRow {
                        shaping: if shaping.is_some() { i as u32 } else { NONE },
                        probe: probe.unwrap_or(NONE),
                        length: bias.0,
                        think: bias.1,
                    },
                });
            }
        }
        scoring
    }

    /// Rows to score.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

/// What the ramps add to stop ids and to the think-end id in a row of the part.
fn biases(s: &Shaping<'_>, row: usize) -> (f32, f32) {
    let position = s.first_position.saturating_add(row as i32);
    (s.controls.length_ramp.at(position), s.controls.think_end_ramp.at(position))
}

/// A part's response processing; its ids go to `words`. Ramps are added to a row's ids only where they
/// are on, as the definition has it.
fn record(s: &Shaping<'_>, words: &mut Vec<u32>) -> abi::Shaping {
    let c = s.controls;
    // Pairs are indexed in twos: they start at an even word.
    if words.len() % 2 == 1 {
        words.push(0);
    }
    let counts = words.len() as u32 / 2;
    words.extend(s.counts.iter().flat_map(|&(id, count)| [id, count]));
    let counts_end = words.len() as u32 / 2;
    let mut list = |ids: &[u32]| {
        let start = words.len() as u32;
        words.extend_from_slice(ids);
        (start, words.len() as u32)
    };
    let (forbidden, forbidden_end) = list(s.forbidden);
    let (stops, stops_end) = list(if c.length_ramp.strength == 0.0 { &[] } else { &c.stop_ids });
    let think = c.think_end_id.filter(|_| s.think_open && c.think_end_ramp.strength != 0.0);
    abi::Shaping {
        forbidden,
        forbidden_end,
        counts,
        counts_end,
        stops,
        stops_end,
        think_id: think.unwrap_or(NONE),
        presence: c.presence_penalty,
        frequency: c.frequency_penalty,
        repetition: c.repetition_penalty,
    }
}

fn pick(p: &abi::Pick) -> Pick {
    Pick {
        token: p.token,
        probability: p.probability,
        runner_up: p.runner_up,
        entropy: p.entropy,
        probe: p.probe,
    }
}

impl Pass<'_> {
    /// Scores rows, some at a time, and returns one output per step. Runs whatever was encoded before.
    pub(super) fn score(&mut self, scoring: &Scoring, steps: usize) -> Result<Vec<StepOutput>> {
        let vocab = self.config.vocab_size;
        self.space.shapings.put(&scoring.shapings);
        self.space.words.put(&scoring.words);
        let mut logits: Vec<f32> = Vec::new();
        let mut picks: Vec<Option<Pick>> = Vec::new();
        for rows in scoring.rows.chunks(HEAD_ROWS) {
            self.head(rows)?;
            self.work.wait()?;
            let found = self.space.picks.read::<abi::Pick>(0, rows.len());
            picks.extend(rows.iter().zip(found).map(|(row, found)| row.pick.then(|| pick(found))));
            let values = self.space.logits.read::<f32>(0, rows.len() * vocab).chunks_exact(vocab);
            for (_, values) in rows.iter().zip(values).filter(|(row, _)| !row.pick) {
                logits.extend_from_slice(values);
            }
        }
        self.work.wait()?; // when nothing is scored

        let mut outputs = vec![StepOutput::default(); steps];
        let mut logits = logits.as_slice();
        for part in &self.plan.parts {
            let scored = match part.score {
                Score::None => Scored::None,
                Score::Logits { .. } => {
                    let (own, rest) = logits.split_at(part.scored.len() * vocab);
                    logits = rest;
                    Scored::Logits { values: own.to_vec(), vocab }
                }
                Score::Picks { .. } => {
                    Scored::Picks(picks[part.scored.clone()].iter().flatten().copied().collect())
                }
            };
            part.put(&mut outputs, scored);
        }
        Ok(outputs)
    }

    /// Encodes the head over up to [`HEAD_ROWS`] rows.
    fn head(&mut self, rows: &[ScoredRow]) -> Result<()> {
        let chosen: Vec<u32> = rows.iter().map(|row| row.row).collect();
        let records: Vec<abi::ScoredRow> = rows.iter().map(|row| row.record).collect();
        self.space.chosen.put(&chosen);
        self.space.scored_rows.put(&records);
        self.work.stage("head")?;
        self.norm(false, self.parameters.norm, Some(rows.len()))?;
        let space = &*self.space;
        let head = self.views.dense(self.weights.head)?;
        self.work.gemm(head, &space.head_input, &space.identity, &space.logits, rows.len())?;
        if !rows.iter().any(|row| row.pick) {
            return Ok(());
        }
        self.work.barrier();
        let size = self.config.vocab_size;
        let chunks = size.div_ceil(PICK_IDS).min(PICK_CHUNKS);
        let vocab = abi::Vocab { size: size as u32, chunks: chunks as u32 };
        let (logits, scored_rows) = ((&space.logits).into(), (&space.scored_rows).into());
        let shape = [logits, scored_rows, (&space.shapings).into(), (&space.words).into()];
        self.work.dispatch(Kernel::Shape, Grid::new((rows.len(), 1, 1), 64), &vocab, &shape)?;
        self.work.barrier();
        let grid = Grid::new((chunks, rows.len(), 1), 32);
        self.work.dispatch(Kernel::PickChunks, grid, &vocab, &[logits, (&space.softmax).into()])?;
        self.work.barrier();
        let join = [logits, scored_rows, (&space.softmax).into(), (&space.picks).into()];
        self.work.dispatch(Kernel::PickJoin, Grid::new((rows.len(), 1, 1), 1), &vocab, &join)
    }
}
