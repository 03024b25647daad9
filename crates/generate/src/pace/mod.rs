//! Drafting or decoding: what [`Mode::Auto`](crate::Mode::Auto) has learned, and what it does about
//! it.
//!
//! The shape of a pass is how many drafts it verifies and how many rows it previews behind them;
//! verifying and previewing nothing is causal decoding. Three things decide: what passes of each
//! shape take ([`Costs`]), how often a guess of some confidence is right ([`Rates`]), and which
//! confidences previews come with ([`Previews`]).
//!
//! Let `g` be the tokens per second of the best known way to go on. A pass that takes `T` seconds and
//! is expected to yield `n` tokens is worth `n − g·T` tokens, and a preview adds the worth of the
//! drafts it is expected to bring. Every pass has the shape of the greatest worth. `g` is itself the
//! rate at which the best cycle of preview and verification is worth nothing, found by Dinkelbach's
//! method for ratios: take the best policy at some `g`, its rate is the next `g`.
//!
//! Shapes that look worse are tried now and then, for one hundredth of the time at most, so that a
//! change of text or machine is noticed.

mod costs;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::costs::{Costs, Plane};

/// Share of the time that may be lost by trying what looks worse.
const CURIOSITY: f64 = 0.01;
/// Passes without a preview, or without plain decoding, after which it is worth a try.
const STALE: u32 = 32;
/// Rows by which passes that verify differ. Every shape of a pass has a cost to be learned, is weighed before every
/// pass, and is recorded by a GPU before it is fast.
const STEP: usize = 2;
/// Previews remembered.
const REMEMBERED: usize = 32;

/// What [`Mode::Auto`](crate::Mode::Auto) has learned of one executor: the cost of passes and the
/// worth of drafts.
///
/// Cheap to clone; clones share what they learn. Sessions on one executor do well to share one. It
/// decides how fast an answer is made, never what the answer is.
#[derive(Clone, Debug, Default)]
pub struct Pace(Arc<Mutex<State>>);

/// Shape of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Drafts it verifies.
    pub(crate) verify: usize,
    /// Rows it previews.
    pub(crate) preview: usize,
}

/// What a pass has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Rows it commits anyway.
    pub(crate) commit: usize,
    /// Rows of drafts and preview that may be added.
    pub(crate) rows: usize,
}

impl Room {
    /// Rows left to preview behind some drafts, at most `rows`; 0 where no draft can come of it.
    pub(crate) fn preview(&self, verify: usize, rows: usize) -> usize {
        let rows = (self.rows - verify).min(rows);
        if rows < 2 { 0 } else { rows }
    }
}

/// What a pass showed.
pub(crate) struct Observation {
    /// Rows it committed.
    pub(crate) commit: usize,
    /// Rows it previewed.
    pub(crate) preview_rows: usize,
    /// Seconds it took.
    pub(crate) time: f64,
    /// Whether later passes of its shape will take less.
    pub(crate) cold: bool,
    /// Confidences of guesses whose place is decided now, and whether they were right.
    pub(crate) guesses: Vec<(f32, bool)>,
    /// If it previewed and all drafts before held: confidences of the preview's rows.
    pub(crate) preview: Option<Vec<f32>>,
}

#[derive(Debug, Default)]
struct State {
    costs: Costs,
    rates: Rates,
    previews: Previews,
    /// Seconds that may be lost to curiosity.
    budget: f64,
    /// Passes since the last preview and since the last plain decoding.
    since: [u32; 2],
    /// Passes learned from.
    passes: u64,
    /// What [`rounds`](State::rounds) said last.
    rounds: Rounds,
}

impl Pace {
    /// The shape of the next pass: at most `drafts` (their confidences, in order) verified and
    /// `width` rows previewed.
    pub(crate) fn choose(&self, drafts: &[f32], room: Room, width: usize) -> Shape {
        self.state().choose(drafts, room, width)
    }

    pub(crate) fn learn(&self, seen: Observation) {
        self.state().learn(seen);
    }

    /// What another answer learned before it panicked is as good as ever.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn choose(&mut self, drafts: &[f32], room: Room, width: usize) -> Shape {
        if room.commit == 1 && self.costs.samples(1, 0) == 0 {
            // Decoding is what everything is measured against.
            return Shape::default();
        }
        let plane = self.costs.plane();
        if self.rounds.stale(width, self.passes) {
            self.rounds = self.rounds(&plane, width);
        }
        let rounds = &self.rounds;
        let time = |commit, preview| self.costs.time(&plane, commit, preview);
        let worth = |shape: Shape, survival: f64, tokens: f64| {
            let cost = rounds.rate * time(room.commit + shape.verify, shape.preview);
            tokens - cost + if shape.preview > 0 { survival * rounds.worth(shape.preview) } else { 0.0 }
        };
        let (mut best, mut unseen) = ((f64::NEG_INFINITY, Shape::default()), None);
        let (mut survival, mut tokens) = (1.0, 0.0);
        let most = drafts.len().min(room.rows);
        for verify in 0..=most {
            if verify > 0 {
                survival *= self.rates.at(drafts[verify - 1]);
            }
            tokens += survival;
            if !considered(verify, most) {
                continue;
            }
            for preview in [0].into_iter().chain(previews(width).map(|rows| room.preview(verify, rows))) {
                let shape = Shape { verify, preview };
                let worth = worth(shape, survival, tokens);
                if worth > best.0 {
                    best = (worth, shape);
                }
                let known = self.costs.samples(room.commit + verify, preview) > 0;
                if !known && unseen.is_none_or(|(other, _)| worth > other) {
                    unseen = Some((worth, shape));
                }
            }
        }
        let preview = Shape { verify: 0, preview: room.preview(0, preview_rows(width)) };
        let stale = [preview, Shape::default()].into_iter().zip(self.since);
        let stale =
            stale.filter(|(_, since)| *since >= STALE).map(|(shape, _)| (worth(shape, 1.0, 1.0), shape));
        for (worth, shape) in stale.chain(unseen) {
            let loss = (best.0 - worth) / rounds.rate;
            if loss > 0.0 && loss <= self.budget {
                self.budget -= loss;
                return shape;
            }
        }
        best.1
    }

    fn learn(&mut self, seen: Observation) {
        self.passes += 1;
        if seen.cold {
            // Its time says nothing of later passes, but is lost for looking around.
            let later = self.costs.time(&self.costs.plane(), seen.commit, seen.preview_rows);
            self.budget -= (seen.time - later).max(0.0);
        } else {
            self.costs.add(seen.commit, seen.preview_rows, seen.time);
        }
        for (confidence, right) in seen.guesses {
            self.rates.add(confidence, right);
        }
        for (since, done) in
            self.since.iter_mut().zip([seen.preview_rows > 0, seen.commit == 1 && seen.preview_rows == 0])
        {
            *since = if done { 0 } else { since.saturating_add(1) };
        }
        if let Some(confidences) = seen.preview {
            self.previews.add(confidences);
        }
        // What is saved up buys one look at a time.
        let dearest = self.costs.time(&self.costs.plane(), 1, self.rounds.width);
        self.budget = (self.budget + CURIOSITY * seen.time).min(dearest);
    }

    /// What rounds of preview and verification are worth at the best rate there is.
    fn rounds(&self, plane: &Plane, width: usize) -> Rounds {
        let time = |commit, preview| self.costs.time(plane, commit, preview);
        let alone: Vec<f64> = (1..=width.max(2)).map(|rows| time(rows, 0)).collect();
        let mut rounds = Rounds { width, passes: self.passes, rate: 1.0 / alone[0], rounds: Vec::new() };
        let with: Vec<(usize, Vec<f64>)> = previews(width)
            .map(|preview| (preview, (1..=width.max(2)).map(|rows| time(rows, preview)).collect()))
            .collect();
        rounds.rounds = with.iter().map(|&(preview, _)| Round { preview, tokens: 0.0, time: 0.0 }).collect();
        // Each turn gives the rate of a better policy; in practice the fourth changes nothing.
        for _ in 0..4 {
            let mut rate = 1.0 / alone[0];
            for (round, (_, with)) in rounds.rounds.iter_mut().zip(&with) {
                *round = self.round(*round, rounds.rate, &alone, with);
                rate = rate.max((1.0 + round.tokens) / (with[0] + round.time));
            }
            rounds.rate = rate;
        }
        rounds
    }

    /// What follows a preview, at a rate. `alone[v]` and `with[v]` are the times of verifying `v`
    /// drafts without and with a preview behind them.
    fn round(&self, before: Round, rate: f64, alone: &[f64], with: &[f64]) -> Round {
        let (mut tokens, mut time, mut again) = (0.0, 0.0, 0.0);
        let mut count = 0.0;
        for mut guesses in self.previews.of_width(before.preview) {
            count += 1.0;
            // The first guess stands in the place of a token that its own pass decides.
            let usable = guesses.next().map_or(0.0, |first| self.rates.at(first));
            let mut best = (0.0, 0.0, 0.0, 0.0);
            let (mut survival, mut gain, mut verify) = (1.0, 0.0, 0);
            loop {
                gain += survival;
                let next = survival * (before.tokens - rate * before.time);
                let draft = guesses.next();
                if draft.is_none() || considered(verify, usize::MAX) {
                    for (time, next, again) in [(alone[verify], 0.0, 0.0), (with[verify], next, survival)] {
                        let worth = gain - rate * time + next;
                        if worth > best.0 {
                            best = (worth, gain, time, again);
                        }
                    }
                }
                let Some(draft) = draft else { break };
                survival *= self.rates.at(draft);
                verify += 1;
            }
            tokens += usable * best.1;
            time += usable * best.2;
            again += usable * best.3;
        }
        // A round that ends in another preview is followed by such a round again.
        let rounds = 1.0 / (1.0 - (again / count).min(0.95));
        Round { tokens: rounds * tokens / count, time: rounds * time / count, ..before }
    }
}

/// Whether a pass may verify so many drafts of at most `most`: none, all, or with the pending token a multiple of
/// [`STEP`] rows.
fn considered(verify: usize, most: usize) -> bool {
    verify == 0 || verify == most || (verify + 1).is_multiple_of(STEP)
}

/// Rows of a preview that makes a pass of `width` rows together with the pending token. Fewer than
/// two bring no draft: the first row's place is decided by the pass itself.
pub(crate) fn preview_rows(width: usize) -> usize {
    (width - 1).max(2)
}

/// Rows of preview that are considered, descending.
fn previews(width: usize) -> impl Iterator<Item = usize> {
    let narrower = [width / 2, width / 4].into_iter().filter(|&width| width >= 3);
    [width].into_iter().chain(narrower).map(preview_rows)
}

/// Best tokens per second, and what each width of preview brings.
#[derive(Debug, Default)]
struct Rounds {
    /// Width of drafts they are for.
    width: usize,
    /// Passes that were known.
    passes: u64,
    rate: f64,
    rounds: Vec<Round>,
}

impl Rounds {
    /// Whether to look again: often at first, every sixteen passes later.
    fn stale(&self, width: usize, passes: u64) -> bool {
        self.width != width || passes >= self.passes + (self.passes / 8).min(16)
    }

    /// Tokens that a preview is worth beyond what its time would have brought otherwise.
    fn worth(&self, preview: usize) -> f64 {
        // A preview cut short by the end of the answer is worth about what the next narrower is.
        let round = self.rounds.iter().find(|round| round.preview <= preview).or(self.rounds.last());
        round.map_or(0.0, |round| round.tokens - self.rate * round.time)
    }
}

/// Expected tokens and seconds of the passes that use a preview's drafts.
#[derive(Clone, Copy, Debug)]
struct Round {
    preview: usize,
    tokens: f64,
    time: f64,
}

/// How often guesses of some confidence are right.
#[derive(Debug, Default)]
struct Rates {
    bands: [(f64, f64); 8],
}

impl Rates {
    /// Upper ends of all bands but the last.
    const ENDS: [f32; 7] = [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99];

    fn band(confidence: f32) -> usize {
        Rates::ENDS.iter().take_while(|&&end| confidence >= end).count()
    }

    fn add(&mut self, confidence: f32, right: bool) {
        let (hits, all) = &mut self.bands[Rates::band(confidence)];
        // Old guesses fade: some hundred count.
        const KEPT: f64 = 127.0 / 128.0;
        *hits = *hits * KEPT + f64::from(u8::from(right));
        *all = *all * KEPT + 1.0;
    }

    /// Expected share of right guesses; the model's own word counts as two samples.
    fn at(&self, confidence: f32) -> f64 {
        let (hits, all) = self.bands[Rates::band(confidence)];
        (hits + 2.0 * f64::from(confidence.clamp(0.0, 1.0))) / (all + 2.0)
    }
}

/// The confidences that the latest previews came with.
#[derive(Debug, Default)]
struct Previews {
    latest: VecDeque<Vec<f32>>,
    /// Moving average by row, for what narrow previews leave out.
    rows: Vec<f32>,
}

impl Previews {
    /// Expected of a model trained to draft, while nothing is known.
    const HOPE: f32 = 0.9;

    fn add(&mut self, confidences: Vec<f32>) {
        for (row, &confidence) in confidences.iter().enumerate() {
            match self.rows.get_mut(row) {
                Some(mean) => *mean += (confidence - *mean) / 16.0,
                None => self.rows.push(confidence),
            }
        }
        self.latest.push_back(confidences);
        while self.latest.len() > REMEMBERED {
            self.latest.pop_front();
        }
    }

    /// Confidences of the first `rows` rows, preview by preview; a hopeful one if there is none.
    fn of_width(&self, rows: usize) -> impl Iterator<Item = impl Iterator<Item = f32>> {
        let nothing = self.latest.is_empty().then_some(&[][..]);
        self.latest.iter().map(Vec::as_slice).chain(nothing).map(move |known| {
            (0..rows).map(|row| known.get(row).or(self.rows.get(row)).copied().unwrap_or(Self::HOPE))
        })
    }
}
