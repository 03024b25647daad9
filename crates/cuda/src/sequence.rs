//! Committed states on the device.

use half::f16;
use shamrock_model::config::LayerKind;
use shamrock_model::{LayerState, Result, SequenceState};

use crate::KvPrecision;
use crate::abi::{self, Ptr};
use crate::device::{Buffer, Device, Grid};
use crate::geometry::Geometry;

/// Rows that KV planes grow by at least.
const MIN_KV_ROWS: usize = 256;
/// Threads of the recurrence and the columns its blocks take.
pub(crate) const RECUR_THREADS: u32 = 128;
const RECUR_COLS: usize = 32;

/// One sequence's committed state.
pub(crate) struct DeviceState {
    /// `[full layers][keys, values][kv_rows][kv width]`.
    kv: Buffer,
    kv_rows: usize,
    /// `[linear layers][ring, then memory]`, f32.
    gdn: Buffer,
}

/// What cuts a rewindable commit back.
pub(crate) struct DeviceUndo {
    /// The linear layers' state before it.
    before: Buffer,
    /// `[linear layers][rows][undo row]`, written by the pass.
    rows: Buffer,
    count: usize,
}

impl DeviceUndo {
    pub(crate) fn rows(&self) -> Ptr {
        self.rows.ptr()
    }
}

/// Blocks of the recurrence kernels over `parts` parts (or layers).
pub(crate) fn recur_grid(geometry: &Geometry, parts: usize) -> Grid {
    let g = &geometry.config.gdn;
    Grid::new((g.value_heads, g.value_dim.div_ceil(RECUR_COLS), parts), RECUR_THREADS)
}

impl DeviceState {
    /// Nothing committed.
    pub(crate) fn empty(device: &Device, geometry: &Geometry) -> Result<DeviceState> {
        let gdn = device.zeroed(geometry.layer_kinds().0 * geometry.gdn_state() * 4)?;
        Ok(DeviceState { kv: device.uninit(0)?, kv_rows: 0, gdn })
    }

    pub(crate) fn gdn(&self) -> Ptr {
        self.gdn.ptr()
    }

    pub(crate) fn kv(&self) -> (Ptr, usize) {
        (self.kv.ptr(), self.kv_rows)
    }

    /// Makes room for `rows` rows, of which the first `len` are kept.
    pub(crate) fn reserve(
        &mut self,
        device: &Device,
        geometry: &Geometry,
        len: usize,
        rows: usize,
    ) -> Result<()> {
        if rows <= self.kv_rows || geometry.layer_kinds().1 == 0 {
            return Ok(());
        }
        let grown = rows.max(2 * self.kv_rows).next_multiple_of(MIN_KV_ROWS);
        let kv = device.uninit(kv_bytes(geometry, grown))?;
        copy_planes(device, geometry, len, (self.kv.ptr(), self.kv_rows), (kv.ptr(), grown))?;
        (self.kv, self.kv_rows) = (kv, grown);
        Ok(())
    }

    /// A copy of a state of `len` rows.
    pub(crate) fn duplicate(&self, device: &Device, geometry: &Geometry, len: usize) -> Result<DeviceState> {
        let kv = device.uninit(kv_bytes(geometry, len))?;
        copy_planes(device, geometry, len, (self.kv.ptr(), self.kv_rows), (kv.ptr(), len))?;
        let gdn = device.uninit(self.gdn.len())?;
        device.copy(self.gdn.ptr(), gdn.ptr(), self.gdn.len())?;
        Ok(DeviceState { kv, kv_rows: len, gdn })
    }

    /// Overwrites this state with `from`, of `len` rows.
    pub(crate) fn assign(
        &mut self,
        device: &Device,
        geometry: &Geometry,
        from: &DeviceState,
        len: usize,
    ) -> Result<()> {
        self.reserve(device, geometry, 0, len)?;
        copy_planes(device, geometry, len, (from.kv.ptr(), from.kv_rows), (self.kv.ptr(), self.kv_rows))?;
        device.copy(from.gdn.ptr(), self.gdn.ptr(), self.gdn.len())
    }

    /// Keeps what a commit of `count` rows needs to be cut back.
    pub(crate) fn undo(&self, device: &Device, geometry: &Geometry, count: usize) -> Result<DeviceUndo> {
        let before = device.uninit(self.gdn.len())?;
        device.copy(self.gdn.ptr(), before.ptr(), self.gdn.len())?;
        let rows = device.uninit(geometry.layer_kinds().0 * count * geometry.undo_row() * 4)?;
        Ok(DeviceUndo { before, rows, count })
    }

    /// Goes back to the first `kept` rows of the commit that `undo` belongs to. KV rows need no
    /// cutting: what lies behind the length is not read.
    pub(crate) fn rewind(
        &self,
        device: &Device,
        geometry: &Geometry,
        undo: &DeviceUndo,
        kept: usize,
    ) -> Result<()> {
        device.copy(undo.before.ptr(), self.gdn.ptr(), self.gdn.len())?;
        let layers = geometry.layer_kinds().0;
        if kept == 0 || layers == 0 {
            return Ok(());
        }
        let args = abi::Replay {
            gdn: self.gdn.ptr(),
            undo: undo.rows.ptr(),
            rows: undo.count as u32,
            kept: kept as u32,
        };
        device.launch("gdn_replay", recur_grid(geometry, layers), &args)
    }

    /// The host form of the first `len` rows.
    pub(crate) fn read(&self, device: &Device, geometry: &Geometry, len: usize) -> Result<Vec<LayerState>> {
        let g = &geometry.config.gdn;
        let mut gdn = vec![0f32; self.gdn.len() / 4];
        device.download(self.gdn.ptr(), &mut gdn)?;
        let mut linear = gdn.chunks_exact(geometry.gdn_state());
        let mut full = 0usize;
        let kinds = geometry.config.layers.iter();
        kinds
            .map(|kind| match kind {
                LayerKind::Linear => {
                    let layer = linear.next().unwrap_or_default();
                    let (ring, memory) = layer.split_at(g.ring_rows() * g.channels());
                    Ok(LayerState::Gdn { ring: ring.to_vec(), memory: memory.to_vec() })
                }
                LayerKind::Full => {
                    let plane = |which: usize| self.read_plane(device, geometry, 2 * full + which, len);
                    let state = LayerState::Kv { k: plane(0)?, v: plane(1)? };
                    full += 1;
                    Ok(state)
                }
            })
            .collect()
    }

    fn read_plane(&self, device: &Device, geometry: &Geometry, plane: usize, len: usize) -> Result<Vec<f32>> {
        let values = len * geometry.config.attention.kv_width();
        let at = self.kv.ptr() + (plane * plane_bytes(geometry, self.kv_rows)) as Ptr;
        match geometry.kv {
            KvPrecision::Full => {
                let mut plane = vec![0f32; values];
                device.download(at, &mut plane)?;
                Ok(plane)
            }
            KvPrecision::Half => {
                let mut plane = vec![0u16; values];
                device.download(at, &mut plane)?;
                Ok(plane.into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect())
            }
        }
    }

    /// Takes over a host state; its shape has been checked.
    pub(crate) fn fill(&mut self, device: &Device, geometry: &Geometry, from: &SequenceState) -> Result<()> {
        self.reserve(device, geometry, 0, from.len)?;
        let plane_bytes = plane_bytes(geometry, self.kv_rows);
        let (mut linear, mut full) = (0, 0);
        for layer in &from.layers {
            match layer {
                LayerState::Gdn { ring, memory } => {
                    let at = self.gdn.ptr() + (linear * geometry.gdn_state() * 4) as Ptr;
                    device.upload(ring, at)?;
                    device.upload(memory, at + size_of_val(&ring[..]) as Ptr)?;
                    linear += 1;
                }
                LayerState::Kv { k, v } => {
                    for (which, values) in [k, v].into_iter().enumerate() {
                        let at = self.kv.ptr() + ((2 * full + which) * plane_bytes) as Ptr;
                        match geometry.kv {
                            KvPrecision::Full => device.upload(values, at)?,
                            KvPrecision::Half => {
                                let halves: Vec<u16> =
                                    values.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
                                device.upload(&halves, at)?;
                            }
                        }
                    }
                    full += 1;
                }
            }
        }
        device.wait()
    }
}

fn plane_bytes(geometry: &Geometry, rows: usize) -> usize {
    rows * geometry.config.attention.kv_width() * geometry.kv_bytes()
}

fn kv_bytes(geometry: &Geometry, rows: usize) -> usize {
    2 * geometry.layer_kinds().1 * plane_bytes(geometry, rows)
}

/// Copies the first `len` rows of every plane between planes of different room.
fn copy_planes(
    device: &Device,
    geometry: &Geometry,
    len: usize,
    (from, from_rows): (Ptr, usize),
    (to, to_rows): (Ptr, usize),
) -> Result<()> {
    for plane in 0..2 * geometry.layer_kinds().1 {
        let from = from + (plane * plane_bytes(geometry, from_rows)) as Ptr;
        let to = to + (plane * plane_bytes(geometry, to_rows)) as Ptr;
        device.copy(from, to, plane_bytes(geometry, len))?;
    }
    Ok(())
}
