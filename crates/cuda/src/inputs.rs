//! What differs from pass to pass: the tables that a pass's kernels read.

use bytemuck::{Pod, Zeroable};
use shamrock_model::{Config, Part, Pick, PlannedPart, Result, Score, Shaping};

use crate::abi::{self, NONE, Ptr};
use crate::device::{Buffer, Device, Pinned};

/// A pass's parts, commits first, and its size.
pub(crate) struct Plan<'a> {
    pub(crate) parts: Vec<PlannedPart<'a>>,
    pub(crate) shape: Shape,
}

/// All that a pass's launches depend on beside the tables: two passes of one shape are the same
/// sequence of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) commits: usize,
    pub(crate) previews: usize,
    pub(crate) longest_commit: usize,
    pub(crate) longest_preview: usize,
    pub(crate) scored: usize,
    /// Some scored rows are picks.
    pub(crate) picks: bool,
    pub(crate) attention_splits: usize,
}

impl<'a> Plan<'a> {
    /// A pass over these parts. `attention_splits` is left at 1.
    pub(crate) fn new(parts: Vec<PlannedPart<'a>>) -> Plan<'a> {
        let of = |kind: Part| parts.iter().filter(move |part| part.part == kind);
        let longest = |kind: Part| of(kind).map(|part| part.ids.len()).max().unwrap_or(0);
        let shape = Shape {
            rows: parts.last().map_or(0, |part| part.rows.end),
            commits: of(Part::Commit).count(),
            previews: of(Part::Preview).count(),
            longest_commit: longest(Part::Commit),
            longest_preview: longest(Part::Preview),
            scored: parts.last().map_or(0, |part| part.scored.end),
            picks: parts.iter().any(|p| matches!(p.score, Score::Picks { rows, .. } if !rows.is_empty())),
            attention_splits: 1,
        };
        Plan { parts, shape }
    }
}

/// Device addresses of one pass's tables.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) parts: Ptr,
    pub(crate) shapings: Ptr,
    pub(crate) scored: Ptr,
    pub(crate) ids: Ptr,
    pub(crate) part_of: Ptr,
    pub(crate) chosen: Ptr,
    pub(crate) words: Ptr,
}

impl Tables {
    /// Their places for a shape, from `base` on: the same for every pass of one shape, which is
    /// what lets its graph be replayed.
    fn at(base: Ptr, shape: &Shape) -> Tables {
        let parts = shape.commits + shape.previews;
        let mut at = base;
        let mut take = |bytes: usize| {
            let ptr = at;
            at += bytes.next_multiple_of(16) as Ptr;
            ptr
        };
        Tables {
            parts: take(parts * size_of::<abi::Part>()),
            shapings: take(parts * size_of::<abi::Shaping>()),
            scored: take(shape.scored * size_of::<abi::ScoredRow>()),
            ids: take(shape.rows * 4),
            part_of: take(shape.rows * 4),
            chosen: take(shape.scored * 4),
            words: take(0),
        }
    }
}

/// The tables' memory on both sides.
pub(crate) struct Inputs {
    host: Pinned,
    device: Buffer,
}

impl Inputs {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Inputs> {
        Ok(Inputs { host: device.pinned(bytes)?, device: device.uninit(bytes)? })
    }

    /// Where the tables of a shape lie.
    pub(crate) fn tables(&self, shape: &Shape) -> Tables {
        Tables::at(self.device.ptr(), shape)
    }

    /// Fills the tables and sends them off; `parts` are the plan's, with their device addresses.
    /// Returns the bytes that are needed when there is too little room.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        config: &Config,
        plan: &Plan<'_>,
        parts: &[abi::Part],
    ) -> Result<std::result::Result<(), usize>> {
        let tables = Tables::at(0, &plan.shape);
        let mut words: Vec<u32> = Vec::new();
        let mut shapings = Vec::with_capacity(plan.parts.len());
        let mut scored = Vec::with_capacity(plan.shape.scored);
        let mut chosen = Vec::with_capacity(plan.shape.scored);
        let mut part_of = Vec::with_capacity(plan.shape.rows);
        let mut ids = Vec::with_capacity(plan.shape.rows);
        for (i, part) in plan.parts.iter().enumerate() {
            ids.extend_from_slice(part.ids);
            part_of.extend(std::iter::repeat_n(i as u32, part.ids.len()));
            let (shaping, probes) = match part.score {
                Score::Picks { shaping, probes, .. } => (Some(shaping), *probes),
                _ => (None, &[][..]),
            };
            shapings.push(record(shaping, &mut words));
            for (n, &row) in part.score.rows().iter().enumerate() {
                chosen.push((part.rows.start + row) as u32);
                scored.push(abi::ScoredRow {
                    shaping: if shaping.is_some() { i as u32 } else { NONE },
                    position: shaping.map_or(0, |s| s.first_position.saturating_add(row as i32)),
                    probe: probes
                        .get(n)
                        .copied()
                        .filter(|&id| (id as usize) < config.vocab_size)
                        .unwrap_or(NONE),
                    pad: 0,
                });
            }
        }
        let end = tables.words as usize + size_of_val(&words[..]);
        if end > self.device.len() {
            return Ok(Err(end));
        }
        let bytes = self.host.bytes()?;
        let mut put = |at: Ptr, from: &[u8]| bytes[at as usize..][..from.len()].copy_from_slice(from);
        put(tables.parts, slice(parts));
        put(tables.shapings, slice(&shapings));
        put(tables.scored, slice(&scored));
        put(tables.ids, slice(&ids));
        put(tables.part_of, slice(&part_of));
        put(tables.chosen, slice(&chosen));
        put(tables.words, slice(&words));
        device.upload(&bytes[..end], self.device.ptr())?;
        Ok(Ok(()))
    }
}

fn slice<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// A part's response processing; its ids go to `words`.
fn record(shaping: Option<&Shaping<'_>>, words: &mut Vec<u32>) -> abi::Shaping {
    let Some(s) = shaping else { return abi::Shaping::zeroed() };
    let c = s.controls;
    // Pairs are indexed in twos: they start at an even word.
    if words.len() % 2 == 1 {
        words.push(0);
    }
    let neutral = c.presence_penalty == 0.0 && c.frequency_penalty == 0.0 && c.repetition_penalty == 1.0;
    let pairs: &[(u32, u32)] = if neutral { &[] } else { s.counts };
    let counts = words.len() as u32 / 2;
    words.extend(pairs.iter().flat_map(|&(id, count)| [id, count]));
    let counts_end = words.len() as u32 / 2;
    let mut list = |ids: &[u32]| {
        let start = words.len() as u32;
        words.extend_from_slice(ids);
        (start, words.len() as u32)
    };
    let (forbidden, forbidden_end) = list(s.forbidden);
    let (stops, stops_end) = list(&c.stop_ids);
    abi::Shaping {
        forbidden,
        forbidden_end,
        counts,
        counts_end,
        stops,
        stops_end,
        think_id: c.think_end_id.filter(|_| s.think_open).unwrap_or(NONE),
        presence: c.presence_penalty,
        frequency: c.frequency_penalty,
        repetition: c.repetition_penalty,
        length_strength: c.length_ramp.strength,
        length_start: c.length_ramp.start as f32,
        length_window: c.length_ramp.window.max(1) as f32,
        think_strength: c.think_end_ramp.strength,
        think_start: c.think_end_ramp.start as f32,
        think_window: c.think_end_ramp.window.max(1) as f32,
    }
}

/// A pick's record in the seam's terms.
pub(crate) fn pick(record: &abi::PickRecord) -> Pick {
    Pick {
        token: record.token,
        probability: record.probability,
        runner_up: record.runner_up,
        entropy: record.entropy,
        probe: record.probe,
    }
}
