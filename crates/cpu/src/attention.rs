//! Gated full attention over all rows of a pass.
//!
//! A few rows' queries of all heads that share a KV head go over its keys together, a block of keys at a
//! time, with a running softmax: keys and values are read once for those rows and no row of scores is
//! ever whole. Long prefixes are cut into stretches that are attended to apart and merged in order.
//! Blocks and stretches begin at fixed positions, so that a row's result does not depend on how rows are
//! spread over passes, tasks or threads.

use std::cell::RefCell;
use std::ops::Range;

use shamrock_model::config::{AttentionConfig, Config};
use shamrock_model::weights::AttentionWeights;
use shamrock_model::{Part, Result};

use crate::kernel::{Isa, Loops};
use crate::linear::{Linear, Stripe};
use crate::math::{Rotations, exp, norm_1p_in_place, peak, sigmoid, total};
use crate::pool::Pool;
use crate::state::{Cache, Numbers};

/// Queries of a task, about: with them a block's keys and values stay in second-level cache.
const QUERIES: usize = 32;
/// Keys of a block.
const KEYS: usize = 64;
/// Keys of a stretch, whole blocks.
const STRETCH: usize = 16 * KEYS;

/// Projections of all rows of a pass.
pub(crate) struct Mixer<'a> {
    isa: Isa,
    pool: &'a Pool,
    config: &'a Config,
    w: &'a AttentionWeights,
    /// Per row and head: `head_dim` normed and rotated queries, then `head_dim` gates.
    query_gate: Vec<f32>,
    /// Normed and rotated, `[rows, kv_heads, head_dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    mixed: Vec<f32>,
}

impl<'a> Mixer<'a> {
    /// Projects `x` `[rows, hidden]`, whose positions `rotations` knows.
    pub(crate) fn new(
        linear: &Linear<'a>,
        config: &'a Config,
        w: &'a AttentionWeights,
        x: &[f32],
        rotations: &Rotations,
    ) -> Result<Self> {
        let (a, isa, pool) = (&config.attention, linear.isa(), linear.pool());
        let [mut query_gate, mut k, v] = linear.project_all([(w.q, x), (w.k, x), (w.v, x)])?;
        let norm = |rows: &mut [f32], width: usize, stride: usize, weight: &[f32]| {
            pool.for_chunks(rows, width, |row, heads| {
                isa.run(|| {
                    for head in heads.chunks_exact_mut(stride) {
                        let head = &mut head[..a.head_dim];
                        norm_1p_in_place(head, weight, config.norm_eps);
                        rotations.apply(row, head);
                    }
                });
            });
        };
        norm(&mut query_gate, 2 * a.q_width(), 2 * a.head_dim, &w.q_norm);
        norm(&mut k, a.kv_width(), a.head_dim, &w.k_norm);
        let mixed = vec![0.0; query_gate.len() / 2];
        Ok(Mixer { isa, pool, config, w, query_gate, k, v, mixed })
    }

    /// Mixes `rows` over the prefix `cache`, to which a commit appends them.
    ///
    /// Row r sees the prefix and rows `0..=r` (commit) or the whole block (preview).
    pub(crate) fn mix(&mut self, rows: Range<usize>, part: Part, cache: &mut Cache) {
        let a = &self.config.attention;
        let past = cache.k.len() / a.kv_width();
        let own = rows.start * a.kv_width()..rows.end * a.kv_width();
        let (own_k, own_v) = (&self.k[own.clone()], &self.v[own]);
        let mut block = Cache { k: cache.k.none(), v: cache.v.none() };
        match part {
            Part::Commit => cache.push(own_k, own_v),
            Part::Preview => block.push(own_k, own_v),
        }
        let seen = Seen { a, part, past, rows: rows.len(), prefix: cache, block: &block };
        let group = a.heads / a.kv_heads;
        let queries = &self.query_gate[rows.start * 2 * a.q_width()..rows.end * 2 * a.q_width()];
        let mixed = &mut self.mixed[rows.start * a.q_width()..rows.end * a.q_width()];
        // A tile is some rows by the heads of one KV head.
        let step = (QUERIES / group).max(1);
        let (mut tiles, mut stripes) = (Vec::new(), Vec::new());
        for (i, mixed) in mixed.chunks_mut(step * a.q_width()).enumerate() {
            let rows = i * step..rows.len().min((i + 1) * step);
            for (kv_head, stripe) in
                Stripe::split(mixed, a.q_width(), group * a.head_dim).into_iter().enumerate()
            {
                tiles.push(Tile { a, isa: self.isa, kv_head, rows: rows.clone(), queries });
                stripes.push(stripe);
            }
        }
        let stretches = seen.all().div_ceil(STRETCH);
        if tiles.len() >= 2 * self.pool.threads() || stretches < 2 {
            self.pool.for_each(tiles.iter().zip(stripes).collect(), |(tile, mut stripe)| {
                let (mut sums, mut more) = (Sums::new(), Sums::new());
                for stretch in 0..stretches {
                    tile.attend(&seen, stretch, &mut more);
                    sums.merge(&more, a.head_dim);
                }
                tile.finish(&sums, &mut stripe);
            });
            return;
        }
        let mut parts = vec![Sums::new(); tiles.len() * stretches];
        self.pool.for_chunks(&mut parts, 1, |i, sums| {
            tiles[i / stretches].attend(&seen, i % stretches, &mut sums[0]);
        });
        for ((tile, mut stripe), parts) in tiles.iter().zip(stripes).zip(parts.chunks(stretches)) {
            let mut sums = Sums::new();
            parts.iter().for_each(|more| sums.merge(more, a.head_dim));
            tile.finish(&sums, &mut stripe);
        }
    }

    /// Output projection of all rows.
    pub(crate) fn finish(self, linear: &Linear<'_>) -> Result<Vec<f32>> {
        linear.project(self.w.o, &self.mixed)
    }
}

/// What the rows of a part see.
struct Seen<'a> {
    a: &'a AttentionConfig,
    part: Part,
    /// Rows committed before this part.
    past: usize,
    /// Rows of this part.
    rows: usize,
    /// Committed rows, those of a commit included.
    prefix: &'a Cache,
    /// Rows of a preview.
    block: &'a Cache,
}

impl Seen<'_> {
    /// Keys there are.
    fn all(&self) -> usize {
        self.past + self.rows
    }

    /// Keys that a row sees.
    fn by(&self, row: usize) -> usize {
        match self.part {
            Part::Commit => self.past + row + 1,
            Part::Preview => self.all(),
        }
    }

    /// Reads one head's keys or values of positions `keys`, `[keys, head_dim]`.
    fn read(&self, of: fn(&Cache) -> &Numbers, kv_head: usize, keys: Range<usize>, out: &mut [f32]) {
        let (hd, width) = (self.a.head_dim, self.a.kv_width());
        let prefix = of(self.prefix).len() / width;
        for (key, out) in keys.zip(out.chunks_exact_mut(hd)) {
            let (numbers, row) = match key.checked_sub(prefix) {
                None => (of(self.prefix), key),
                Some(row) => (of(self.block), row),
            };
            numbers.read(row * width + kv_head * hd, out);
        }
    }
}

/// Some rows by the heads of one KV head.
struct Tile<'a> {
    a: &'a AttentionConfig,
    isa: Isa,
    kv_head: usize,
    rows: Range<usize>,
    /// Of all rows of the part, queries and gates.
    queries: &'a [f32],
}

/// Running softmax sums of a tile's queries: peaks and sums of `e^(score - peak)` with the values so
/// weighted.
#[derive(Clone)]
struct Sums {
    peaks: Vec<f32>,
    weights: Vec<f32>,
    /// `[queries, head_dim]`.
    values: Vec<f32>,
}

/// Room that a thread reuses between tasks.
#[derive(Default)]
struct Room {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

impl Sums {
    fn new() -> Self {
        Sums { peaks: Vec::new(), weights: Vec::new(), values: Vec::new() }
    }

    fn clear(&mut self, queries: usize, head_dim: usize) {
        self.peaks.clear();
        self.peaks.resize(queries, f32::NEG_INFINITY);
        self.weights.clear();
        self.weights.resize(queries, 0.0);
        self.values.clear();
        self.values.resize(queries * head_dim, 0.0);
    }

    /// Adds the sums over later keys.
    fn merge(&mut self, more: &Sums, head_dim: usize) {
        if self.peaks.is_empty() {
            self.clone_from(more);
            return;
        }
        let values = self.values.chunks_exact_mut(head_dim).zip(more.values.chunks_exact(head_dim));
        let sums = self.peaks.iter_mut().zip(&mut self.weights).zip(values);
        for (((peak, weight), (values, more_values)), (more_peak, more_weight)) in
            sums.zip(more.peaks.iter().zip(&more.weights))
        {
            if *more_weight == 0.0 {
                continue; // a row that sees none of these keys
            }
            let top = peak.max(*more_peak);
            let (mine, theirs) = (exp(*peak - top), exp(more_peak - top));
            (*peak, *weight) = (top, *weight * mine + more_weight * theirs);
            for (value, more) in values.iter_mut().zip(more_values) {
                *value = *value * mine + more * theirs;
            }
        }
    }
}

impl Tile<'_> {
    fn group(&self) -> usize {
        self.a.heads / self.a.kv_heads
    }

    /// Query and gate of a row and one of the group's heads.
    fn query_gate(&self, row: usize, head: usize) -> (&[f32], &[f32]) {
        let at = row * self.a.heads + self.kv_head * self.group() + head;
        self.queries[at * 2 * self.a.head_dim..][..2 * self.a.head_dim].split_at(self.a.head_dim)
    }

    /// Softmax sums over the keys of one stretch.
    fn attend(&self, seen: &Seen<'_>, stretch: usize, sums: &mut Sums) {
        let (hd, group) = (self.a.head_dim, self.group());
        let queries = self.rows.len() * group;
        sums.clear(queries, hd);
        // A tile has rows, and the last of them sees most.
        let end = seen.by(self.rows.end - 1).min((stretch + 1) * STRETCH);
        ROOM.with_borrow_mut(|room| {
            room.queries.clear();
            let scale = 1.0 / (hd as f32).sqrt();
            for row in self.rows.clone() {
                for head in 0..group {
                    room.queries.extend(self.query_gate(row, head).0.iter().map(|q| q * scale));
                }
            }
            for first in (stretch * STRETCH..end).step_by(KEYS) {
                let keys = first..end.min(first + KEYS);
                room.keys.resize(keys.len() * hd, 0.0);
                room.values.resize(keys.len() * hd, 0.0);
                room.scores.resize(queries * keys.len(), 0.0);
                seen.read(|cache| &cache.k, self.kv_head, keys.clone(), &mut room.keys);
                seen.read(|cache| &cache.v, self.kv_head, keys.clone(), &mut room.values);
                self.isa.dots(&room.queries, &room.keys, hd, &mut room.scores);
                let visible = |row: usize| seen.by(row).min(keys.end).saturating_sub(keys.start);
                let visible: Vec<usize> = self.rows.clone().map(visible).collect();
                self.isa.run_long(Weigh {
                    scores: &mut room.scores,
                    keys: keys.len(),
                    visible: &visible,
                    group,
                    sums,
                });
                self.isa.add_weighted_rows(&room.scores, &room.values, hd, &mut sums.values);
            }
        });
    }

    /// The weighted means, gated.
    fn finish(&self, sums: &Sums, stripe: &mut Stripe<'_>) {
        let (hd, group) = (self.a.head_dim, self.group());
        for (i, row) in self.rows.clone().enumerate() {
            for (head, out) in stripe.row(i).chunks_exact_mut(hd).enumerate() {
                let query = i * group + head;
                let values = &sums.values[query * hd..(query + 1) * hd];
                let inverse = 1.0 / sums.weights[query];
                let gate = self.query_gate(row, head).1;
                self.isa.run(|| {
                    for ((out, value), gate) in out.iter_mut().zip(values).zip(gate) {
                        *out = value * inverse * sigmoid(*gate);
                    }
                });
            }
        }
    }
}

/// Turns a block's scores into weights relative to the running peaks, which it moves.
struct Weigh<'a> {
    /// `[queries, keys]`.
    scores: &'a mut [f32],
    keys: usize,
    /// Keys that each row sees, the first so many.
    visible: &'a [usize],
    /// Queries of a row.
    group: usize,
    sums: &'a mut Sums,
}

impl Loops for Weigh<'_> {
    #[inline(always)]
    fn run(self) {
        let Weigh { scores, keys, visible, group, sums } = self;
        let hd = sums.values.len() / sums.peaks.len().max(1);
        for (query, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let (scores, hidden) = scores.split_at_mut(visible[query / group]);
            hidden.fill(0.0);
            if scores.is_empty() {
                continue;
            }
            let top = sums.peaks[query].max(peak(scores));
            if top > sums.peaks[query] {
                let shrink = exp(sums.peaks[query] - top);
                sums.weights[query] *= shrink;
                sums.values[query * hd..(query + 1) * hd].iter_mut().for_each(|v| *v *= shrink);
                sums.peaks[query] = top;
            }
            scores.iter_mut().for_each(|score| *score = exp(*score - top));
            sums.weights[query] += total(scores);
        }
    }
}
