//! Committed states, in memory that both sides see.

use half::f16;
use shamrock_model::config::LayerKind;
use shamrock_model::{Config, LayerState, Result, SequenceState, Sequences};

use super::abi;
use super::device::{Buffer, Device, Grid};
use super::kernel::Kernel;
use crate::KvPrecision;

/// Rows that keys and values grow by at least.
const MIN_KV_ROWS: usize = 256;

/// Sequences with their states, and what cuts the last commit of each back.
pub(crate) type States = Sequences<DeviceState, Option<Undo>>;

/// One layer's committed state; buffers of its own, so that a command buffer wires one layer's only.
pub(crate) enum LayerBuffers {
    /// `[rows][kv width]` each, with room to grow.
    Kv { k: Buffer, v: Buffer },
    /// Ring, then memory, f32.
    Gdn(Buffer),
}

/// One sequence's committed state.
pub(crate) struct DeviceState {
    pub(crate) layers: Vec<LayerBuffers>,
    kv: KvPrecision,
    kv_rows: usize,
    /// How often it was given to the device as a whole.
    epoch: u64,
}

/// What cuts a rewindable commit back.
pub(crate) struct Undo {
    /// One per layer; `None` for full attention, whose rows are simply not read any more.
    pub(crate) layers: Vec<Option<LayerUndo>>,
}

/// The state before the commit, and its rows to be replayed, written by the pass.
pub(crate) struct LayerUndo {
    before: Buffer,
    /// `[rows][channels]`, before the convolution.
    pub(crate) raw: Buffer,
    /// `[rows][channels]`, ready for the recurrence.
    pub(crate) ready: Buffer,
    /// `[rows][2][value_heads]`.
    pub(crate) gates: Buffer,
}

/// Bytes of a stored key or value.
pub(crate) fn kv_bytes(kv: KvPrecision) -> usize {
    match kv {
        KvPrecision::Half => 2,
        KvPrecision::Full => 4,
    }
}

/// Bytes of the ring, which the memory follows.
pub(crate) fn ring_bytes(config: &Config) -> usize {
    config.gdn.ring_rows() * config.gdn.channels() * 4
}

fn copy(from: &Buffer, to: &mut Buffer, bytes: usize) {
    to.write::<u8>(0, bytes).copy_from_slice(from.read(0, bytes));
}

impl DeviceState {
    /// Nothing committed.
    pub(crate) fn empty(device: &Device, config: &Config, kv: KvPrecision) -> Result<DeviceState> {
        let layer = |kind: &LayerKind| {
            Ok(match kind {
                LayerKind::Full => LayerBuffers::Kv { k: device.alloc(0)?, v: device.alloc(0)? },
                LayerKind::Linear => {
                    LayerBuffers::Gdn(device.zeroed(ring_bytes(config) + config.gdn.memory_len() * 4)?)
                }
            })
        };
        let layers = config.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(DeviceState { layers, kv, kv_rows: 0, epoch: 0 })
    }

    /// How often it was overwritten as a whole, by a host state or a snapshot.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn plane_bytes(&self, config: &Config, rows: usize) -> usize {
        rows * config.attention.kv_width() * kv_bytes(self.kv)
    }

    /// Makes room for `rows` rows, of which the first `len` are kept.
    pub(crate) fn reserve(
        &mut self,
        device: &Device,
        config: &Config,
        len: usize,
        rows: usize,
    ) -> Result<()> {
        if rows <= self.kv_rows {
            return Ok(());
        }
        let grown = rows.max(2 * self.kv_rows).next_multiple_of(MIN_KV_ROWS);
        let (kept, bytes) = (self.plane_bytes(config, len), self.plane_bytes(config, grown));
        for layer in &mut self.layers {
            if let LayerBuffers::Kv { k, v } = layer {
                for plane in [k, v] {
                    let mut larger = device.alloc(bytes)?;
                    copy(plane, &mut larger, kept);
                    *plane = larger;
                }
            }
        }
        self.kv_rows = grown;
        Ok(())
    }

    /// A copy of a state of `len` rows.
    pub(crate) fn duplicate(&self, device: &Device, config: &Config, len: usize) -> Result<DeviceState> {
        let mut twin = DeviceState::empty(device, config, self.kv)?;
        twin.assign(device, config, self, len)?;
        Ok(twin)
    }

    /// Overwrites this state with `from`, of `len` rows.
    pub(crate) fn assign(
        &mut self,
        device: &Device,
        config: &Config,
        from: &DeviceState,
        len: usize,
    ) -> Result<()> {
        self.reserve(device, config, 0, len)?;
        let bytes = self.plane_bytes(config, len);
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            match (to, from) {
                (LayerBuffers::Kv { k, v }, LayerBuffers::Kv { k: from_k, v: from_v }) => {
                    copy(from_k, k, bytes);
                    copy(from_v, v, bytes);
                }
                (LayerBuffers::Gdn(to), LayerBuffers::Gdn(from)) => copy(from, to, from.len()),
                _ => unreachable!("states of one model"),
            }
        }
        self.epoch += 1;
        Ok(())
    }

    /// Keeps what a commit of `rows` rows needs to be cut back.
    pub(crate) fn undo(&self, device: &Device, config: &Config, rows: usize) -> Result<Undo> {
        let row_bytes = rows * config.gdn.channels() * 4;
        let layer = |layer: &LayerBuffers| {
            let LayerBuffers::Gdn(state) = layer else { return Ok(None) };
            let mut before = device.alloc(state.len())?;
            copy(state, &mut before, state.len());
            Ok(Some(LayerUndo {
                before,
                raw: device.alloc(row_bytes)?,
                ready: device.alloc(row_bytes)?,
                gates: device.alloc(rows * config.gdn.value_heads * 8)?,
            }))
        };
        Ok(Undo { layers: self.layers.iter().map(layer).collect::<Result<_>>()? })
    }

    /// Goes back to the first `kept` rows of the commit that `undo` belongs to.
    pub(crate) fn rewind(
        &mut self,
        device: &Device,
        config: &Config,
        undo: &Undo,
        kept: usize,
    ) -> Result<()> {
        let g = &config.gdn;
        let read = device.alloc(kept * g.value_width() * 4)?;
        let mut work = device.work(false);
        work.stage("rewind")?;
        for (layer, undo) in self.layers.iter_mut().zip(&undo.layers) {
            let (LayerBuffers::Gdn(state), Some(undo)) = (layer, undo) else { continue };
            copy(&undo.before, state, undo.before.len());
            if kept == 0 {
                continue;
            }
            let memory = state.at(ring_bytes(config));
            let recur = abi::Recur {
                channels: g.channels() as u32,
                key_heads: g.key_heads as u32,
                value_heads: g.value_heads as u32,
                value_dim: g.value_dim as u32,
                row0: 0,
                rows: kept as u32,
            };
            let buffers = [(&undo.ready).into(), (&undo.gates).into(), memory, (&read).into()];
            let grid = Grid::new((g.value_dim.div_ceil(32), g.value_heads, 1), 32);
            work.dispatch(Kernel::GdnRecur(g.key_dim), grid, &recur, &buffers)?;
            work.barrier(); // all layers share `read`
            let ring = abi::Ring {
                channels: g.channels() as u32,
                back: g.ring_rows() as u32,
                row0: 0,
                rows: kept as u32,
            };
            work.dispatch(
                Kernel::GdnRing,
                Grid::flat(g.channels()),
                &ring,
                &[(&undo.raw).into(), (&*state).into()],
            )?;
        }
        work.wait()
    }

    /// The host form of the first `len` rows.
    pub(crate) fn read(&self, config: &Config, len: usize) -> Vec<LayerState> {
        let values = len * config.attention.kv_width();
        let plane = |plane: &Buffer| match self.kv {
            KvPrecision::Full => plane.read(0, values).to_vec(),
            KvPrecision::Half => {
                plane.read::<u16>(0, values).iter().map(|&bits| f16::from_bits(bits).to_f32()).collect()
            }
        };
        let layer = |layer: &LayerBuffers| match layer {
            LayerBuffers::Kv { k, v } => LayerState::Kv { k: plane(k), v: plane(v) },
            LayerBuffers::Gdn(state) => {
                let ring = ring_bytes(config);
                LayerState::Gdn {
                    ring: state.read(0, ring / 4).to_vec(),
                    memory: state.read(ring, config.gdn.memory_len()).to_vec(),
                }
            }
        };
        self.layers.iter().map(layer).collect()
    }

    /// Takes over a host state; its shape has been checked.
    pub(crate) fn fill(&mut self, device: &Device, config: &Config, from: &SequenceState) -> Result<()> {
        self.reserve(device, config, 0, from.len)?;
        let kv = self.kv;
        let put = |plane: &mut Buffer, values: &[f32]| match kv {
            KvPrecision::Full => plane.put(values),
            KvPrecision::Half => {
                let to = plane.write::<u16>(0, values.len());
                to.iter_mut().zip(values).for_each(|(to, x)| *to = f16::from_f32(*x).to_bits());
            }
        };
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            match (to, from) {
                (LayerBuffers::Kv { k, v }, LayerState::Kv { k: from_k, v: from_v }) => {
                    put(k, from_k);
                    put(v, from_v);
                }
                (LayerBuffers::Gdn(to), LayerState::Gdn { ring, memory }) => {
                    to.put(ring);
                    to.write(ring_bytes(config), memory.len()).copy_from_slice(memory);
                }
                _ => unreachable!("the state's shape was checked"),
            }
        }
        self.epoch += 1;
        Ok(())
    }
}
