//! Scratch memory of passes.

use shamrock_model::Result;

use crate::abi::{self, MAX_COPIES, Ptr};
use crate::device::{Buffer, Device};
use crate::geometry::{Geometry, padded};

/// Column splits of a mixer's output product, at most.
pub(crate) const MAX_SPLITS: usize = 8;
/// Rows that the recurrence of long commits takes at a time.
pub(crate) const CHUNK: usize = 32;
/// Blocks that share the vocabulary in a pick.
pub(crate) const PICK_CHUNKS: usize = 128;
/// Bytes before the picks in [`Workspace::results`]: the count of distinct experts.
pub(crate) const RESULT_HEADER: usize = 16;

/// What a workspace has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Rows of a pass.
    pub(crate) rows: usize,
    /// Scored rows of a pass.
    pub(crate) scored: usize,
    /// Rows times attention splits.
    pub(crate) partial_rows: usize,
}

impl Room {
    /// Whether `other` fits in.
    pub(crate) fn holds(&self, other: &Room) -> bool {
        self.rows >= other.rows && self.scored >= other.scored && self.partial_rows >= other.partial_rows
    }

    /// Room for both, with some to spare so that it seldom grows again.
    pub(crate) fn grown(&self, other: &Room) -> Room {
        Room {
            rows: self.rows.max(other.rows.next_power_of_two()),
            scored: self.scored.max(other.scored.next_power_of_two()),
            partial_rows: self.partial_rows.max(other.partial_rows.next_power_of_two()),
        }
    }
}

/// Activations as halves: `lo` is 0 where products keep no remainder.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    pub(crate) hi: Ptr,
    pub(crate) lo: Ptr,
}

/// Device addresses of all scratch; the kernels' comments give the shapes.
pub(crate) struct Workspace {
    pub(crate) room: Room,
    /// The residual stream: between layers, and between mixer and experts. Blocks that need the one may
    /// still read it while the other is written.
    pub(crate) hidden: [Ptr; 2],
    /// Inputs of the mixer's products.
    pub(crate) copies: [Activations; MAX_COPIES],
    /// Input of router and experts; always with its remainder, for the router.
    pub(crate) ffn: Activations,
    pub(crate) raw: Ptr,
    pub(crate) z: Ptr,
    pub(crate) ab: Ptr,
    pub(crate) conv_rows: Ptr,
    pub(crate) gates: Ptr,
    pub(crate) read: Ptr,
    /// Of long commits: unit q and k as halves, and two 32 by 32 matrices a chunk and head.
    pub(crate) qk: Ptr,
    pub(crate) squares: Ptr,
    pub(crate) q: Ptr,
    pub(crate) k: Ptr,
    pub(crate) v: Ptr,
    pub(crate) query: Ptr,
    pub(crate) partial: Ptr,
    /// Input of the mixer's output product.
    pub(crate) mixed: Activations,
    pub(crate) mixer_out: Ptr,
    pub(crate) router: Ptr,
    pub(crate) probs: Ptr,
    pub(crate) chosen: Ptr,
    pub(crate) weights: Ptr,
    pub(crate) groups: abi::Groups,
    /// The down matrices of one row's experts.
    pub(crate) picked: Ptr,
    pub(crate) act: Activations,
    pub(crate) expert_out: Ptr,
    /// Counters of blocks that have come to some point of a kernel: zero between kernels.
    pub(crate) arrived: Ptr,
    pub(crate) head_input: Activations,
    pub(crate) logits: Ptr,
    pub(crate) softmax: Ptr,
    /// Distinct experts, then picks from [`RESULT_HEADER`] on.
    pub(crate) results: Ptr,
    _memory: Buffer,
}

/// Hands out addresses in one buffer.
struct Cut {
    base: Ptr,
    at: usize,
}

impl Cut {
    fn take(&mut self, bytes: usize) -> Ptr {
        let ptr = self.base + self.at as Ptr;
        self.at += bytes.next_multiple_of(256);
        ptr
    }
}

impl Workspace {
    /// Scratch for passes of up to `room`, all zero: padding columns stay zero for good.
    pub(crate) fn new(device: &Device, geometry: &Geometry, room: Room) -> Result<Workspace> {
        let mut measure = Cut { base: 0, at: 0 };
        Workspace::cut(&mut measure, geometry, room, device.uninit(0)?);
        let memory = device.zeroed(measure.at)?;
        let mut cut = Cut { base: memory.ptr(), at: 0 };
        Ok(Workspace::cut(&mut cut, geometry, room, memory))
    }

    fn cut(cut: &mut Cut, geometry: &Geometry, room: Room, memory: Buffer) -> Workspace {
        let c = &geometry.config;
        let (a, g, m) = (&c.attention, &c.gdn, &c.moe);
        let Room { rows, scored, partial_rows } = room;
        let (hidden, split) = (c.hidden_size, geometry.halves() == 2);
        let pairs = rows * m.top_k;
        let activations = |cut: &mut Cut, rows: usize, width: usize, split: bool| {
            let bytes = rows * padded(width) * 2;
            Activations { hi: cut.take(bytes), lo: if split { cut.take(bytes) } else { 0 } }
        };
        Workspace {
            room,
            hidden: std::array::from_fn(|_| cut.take(rows * hidden * 4)),
            copies: std::array::from_fn(|_| activations(cut, rows, hidden, split)),
            ffn: activations(cut, rows, hidden, true),
            raw: cut.take(rows * g.channels() * 4),
            z: cut.take(rows * g.value_width() * 4),
            ab: cut.take(rows * g.value_heads * 8),
            conv_rows: cut.take(rows * g.channels() * 4),
            gates: cut.take(rows * g.value_heads * 8),
            read: cut.take(rows * g.value_width() * 4),
            qk: cut.take(rows * g.key_heads * g.key_dim * 4),
            squares: cut.take(rows * g.value_heads * 2 * CHUNK * 2),
            q: cut.take(rows * a.q_width() * 8),
            k: cut.take(rows * a.kv_width() * 4),
            v: cut.take(rows * a.kv_width() * 4),
            query: cut.take(rows * a.q_width() * 4),
            partial: cut.take(partial_rows * a.heads * (a.head_dim + 2) * 4),
            mixed: activations(cut, rows, g.value_width().max(a.q_width()), split),
            mixer_out: cut.take(MAX_SPLITS * rows * hidden * 4),
            router: cut.take(rows * (m.experts + 1) * 4),
            probs: cut.take(rows * m.experts * 4),
            chosen: cut.take(pairs * 4),
            weights: cut.take(pairs * 4),
            groups: abi::Groups { work: cut.take(m.experts * 16), pairs: cut.take(pairs * 4) },
            picked: cut.take(m.top_k * size_of::<abi::Matrix>()),
            act: activations(cut, pairs + rows, geometry.expert_stride(), split),
            expert_out: cut.take((pairs + rows) * hidden * 4),
            arrived: cut.take(rows * g.key_heads * 4),
            head_input: activations(cut, scored, hidden, split),
            logits: cut.take(scored * c.vocab_size * 4),
            softmax: cut.take(scored * PICK_CHUNKS * abi::SOFTMAX_BYTES),
            results: cut.take(RESULT_HEADER + scored * size_of::<abi::PickRecord>()),
            _memory: memory,
        }
    }
}
