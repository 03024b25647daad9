//! Scratch memory of passes.

use shamrock_model::{Config, Result};

use super::abi;
use super::device::{Buffer, Device};

/// Scored rows that go through the head at a time: what bounds the memory of logits.
pub(crate) const HEAD_ROWS: usize = 64;
/// Stretches of the vocabulary that are reduced side by side in a pick, at most.
pub(crate) const PICK_CHUNKS: usize = 64;
/// Ids of such a stretch, at least.
pub(crate) const PICK_IDS: usize = 2048;

/// What a workspace has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Rows of a pass.
    pub(crate) rows: usize,
    /// Rows times attention splits.
    pub(crate) partial_rows: usize,
    /// Rows through the head at a time.
    pub(crate) scored: usize,
    /// Parts of a pass.
    pub(crate) parts: usize,
    /// Words of the tables that shape logits.
    pub(crate) words: usize,
}

/// Kinds of panels that products have kernels of their own for: one row, up to eight, more.
pub(crate) const PANEL_KINDS: usize = 3;

impl Room {
    /// Room for both, in powers of two, so that it seldom grows again.
    fn grown(&self, other: &Room) -> Room {
        let grow = |a: usize, b: usize| if a >= b { a } else { b.next_power_of_two() };
        Room {
            rows: grow(self.rows, other.rows),
            partial_rows: grow(self.partial_rows, other.partial_rows),
            scored: grow(self.scored, other.scored),
            parts: grow(self.parts, other.parts),
            words: grow(self.words, other.words),
        }
    }
}

/// All scratch. Row-major f32 unless it says otherwise.
pub(crate) struct Workspace {
    room: Room,
    /// The residual stream, `[rows][hidden]`.
    pub(crate) hidden: Buffer,
    /// Input of the products at hand, `[rows][hidden]`.
    pub(crate) normed: Buffer,
    /// What a mixer returns, `[rows][hidden]`.
    pub(crate) mixer_out: Buffer,
    /// Input of a mixer's output product, `[rows][value width or query width]`.
    pub(crate) mixed: Buffer,

    /// `[rows][channels]`, as projected.
    pub(crate) raw: Buffer,
    /// `[rows][channels]`, through convolution and norms.
    pub(crate) ready: Buffer,
    pub(crate) z: Buffer,
    pub(crate) a: Buffer,
    pub(crate) b: Buffer,
    /// `[rows][2][value heads]`.
    pub(crate) gates: Buffer,

    /// `[rows][heads][2][head dim]`, queries and gates.
    pub(crate) q: Buffer,
    pub(crate) k: Buffer,
    pub(crate) v: Buffer,
    pub(crate) query: Buffer,
    /// Keys and values of previewed rows, as stored ones are.
    pub(crate) own_k: Buffer,
    pub(crate) own_v: Buffer,
    pub(crate) partial: Buffer,
    /// `[rows][rotary / 2][2]`: cosine and sine.
    pub(crate) turns: Buffer,

    /// `[rows][experts]`.
    pub(crate) router: Buffer,
    /// `[rows]`.
    pub(crate) shared_gate: Buffer,
    /// `[pairs]`, u32: the row of each pair of a row and one of its experts, by expert.
    pub(crate) pair_rows: Buffer,
    /// `[rows][top k]`, u32: a row's own best experts. These and what follows up to `used` are for choosing
    /// on the device.
    pub(crate) top: Buffer,
    /// `[previews]` of [`abi::RowRange`].
    pub(crate) blocks: Buffer,
    /// `[rows]`, u32: the preview that a row is of.
    pub(crate) block_of: Buffer,
    /// `[previews][experts]`, u32: 1 if in the coreset.
    pub(crate) allowed: Buffer,
    /// `[rows][top k]`, u32: experts, ascending.
    pub(crate) chosen_experts: Buffer,
    pub(crate) chosen_weights: Buffer,
    /// `[rows]`, u32: how many.
    pub(crate) chosen_counts: Buffer,
    /// `[kinds][experts]` of [`abi::Panel`].
    pub(crate) panels: Buffer,
    /// `[kinds][2]` of [`abi::Groups`]: of products with the experts' width, and with the hidden size.
    pub(crate) grids: Buffer,
    /// `[layers]`, u32: experts in use.
    pub(crate) used: Buffer,
    /// `[rows + 1]`, u32: where each row's entries of the next two begin.
    pub(crate) starts: Buffer,
    /// `[pairs]`, u32.
    pub(crate) slots: Buffer,
    /// `[pairs]`.
    pub(crate) weights: Buffer,
    /// `[pairs][expert width]`.
    pub(crate) gate: Buffer,
    pub(crate) up: Buffer,
    /// `[pairs][hidden]`.
    pub(crate) routed: Buffer,
    /// `[rows][shared width]`.
    pub(crate) shared_gated: Buffer,
    pub(crate) shared_up: Buffer,
    /// `[rows][hidden]`.
    pub(crate) shared_out: Buffer,

    /// u32: 0, 1, 2, …, the index of products over all rows.
    pub(crate) identity: Buffer,
    /// `[scored]`, u32: rows that go through the head.
    pub(crate) chosen: Buffer,
    /// `[scored][hidden]`.
    pub(crate) head_input: Buffer,
    /// `[scored][vocab]`.
    pub(crate) logits: Buffer,
    /// `[scored]` of [`abi::ScoredRow`].
    pub(crate) scored_rows: Buffer,
    /// `[parts]` of [`abi::Shaping`].
    pub(crate) shapings: Buffer,
    pub(crate) words: Buffer,
    pub(crate) softmax: Buffer,
    /// `[scored]` of [`abi::Pick`].
    pub(crate) picks: Buffer,
}

impl Workspace {
    pub(crate) fn new(device: &Device, config: &Config, room: Room) -> Result<Workspace> {
        let (a, g, m) = (&config.attention, &config.gdn, &config.moe);
        let Room { rows, partial_rows, scored, parts, words } = room;
        let pairs = rows * m.top_k;
        let floats = |rows: usize, width: usize| device.alloc(rows * width * 4);
        let identity: Vec<u32> = (0..pairs.max(scored) as u32).collect();
        Ok(Workspace {
            room,
            hidden: floats(rows, config.hidden_size)?,
            normed: floats(rows, config.hidden_size)?,
            mixer_out: floats(rows, config.hidden_size)?,
            mixed: floats(rows, g.value_width().max(a.q_width()))?,
            raw: floats(rows, g.channels())?,
            ready: floats(rows, g.channels())?,
            z: floats(rows, g.value_width())?,
            a: floats(rows, g.value_heads)?,
            b: floats(rows, g.value_heads)?,
            gates: floats(rows, 2 * g.value_heads)?,
            q: floats(rows, 2 * a.q_width())?,
            k: floats(rows, a.kv_width())?,
            v: floats(rows, a.kv_width())?,
            query: floats(rows, a.q_width())?,
            own_k: floats(rows, a.kv_width())?,
            own_v: floats(rows, a.kv_width())?,
            partial: floats(partial_rows, a.heads * (a.head_dim + 2))?,
            turns: floats(rows, a.rotary_dim)?,
            router: floats(rows, m.experts)?,
            shared_gate: floats(rows, 1)?,
            pair_rows: floats(pairs, 1)?,
            top: floats(pairs, 1)?,
            blocks: device.alloc(parts * size_of::<abi::RowRange>())?,
            block_of: floats(rows, 1)?,
            allowed: floats(parts, m.experts)?,
            chosen_experts: floats(pairs, 1)?,
            chosen_weights: floats(pairs, 1)?,
            chosen_counts: floats(rows, 1)?,
            panels: device.alloc(PANEL_KINDS * m.experts * size_of::<abi::Panel>())?,
            grids: device.alloc(PANEL_KINDS * 2 * size_of::<abi::Groups>())?,
            used: floats(config.layers.len(), 1)?,
            starts: floats(rows + 1, 1)?,
            slots: floats(pairs, 1)?,
            weights: floats(pairs, 1)?,
            gate: floats(pairs, m.expert_width)?,
            up: floats(pairs, m.expert_width)?,
            routed: floats(pairs, config.hidden_size)?,
            shared_gated: floats(rows, m.shared_width)?,
            shared_up: floats(rows, m.shared_width)?,
            shared_out: floats(rows, config.hidden_size)?,
            identity: device.filled(&identity)?,
            chosen: floats(scored, 1)?,
            head_input: floats(scored, config.hidden_size)?,
            logits: floats(scored, config.vocab_size)?,
            scored_rows: device.alloc(scored * size_of::<abi::ScoredRow>())?,
            shapings: device.alloc(parts * size_of::<abi::Shaping>())?,
            words: floats(words, 1)?,
            softmax: device.alloc(scored * PICK_CHUNKS * abi::SOFTMAX_BYTES)?,
            picks: device.alloc(scored * size_of::<abi::Pick>())?,
        })
    }

    /// Grows to hold `needed`; whatever it held is gone then.
    pub(crate) fn reserve(&mut self, device: &Device, config: &Config, needed: Room) -> Result<()> {
        let grown = self.room.grown(&needed);
        if grown != self.room {
            *self = Workspace::new(device, config, grown)?;
        }
        Ok(())
    }
}
