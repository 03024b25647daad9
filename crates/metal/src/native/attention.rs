//! Gated full attention over all parts of a pass.

use shamrock_model::weights::AttentionWeights;
use shamrock_model::{Config, Part, Result};

use super::abi;
use super::device::Grid;
use super::kernel::Kernel;
use super::pass::Pass;
use super::plan::Plan;
use super::state::{LayerBuffers, kv_bytes};

/// Keys that a split takes at least.
const SPLIT_KEYS: usize = 256;
/// Splits at most.
const MAX_SPLITS: usize = 32;
/// Threadgroups that fill a device.
const ENOUGH_GROUPS: usize = 128;

/// Splits of the context, so that few queries over a long prefix fill the device.
pub(crate) fn splits(config: &Config, plan: &Plan<'_>) -> usize {
    let groups: usize = plan.parts.iter().map(|p| config.attention.heads * p.ids.len().div_ceil(4)).sum();
    let longest = plan.parts.iter().map(|p| p.position + p.ids.len()).max().unwrap_or(0);
    ENOUGH_GROUPS.div_ceil(groups.max(1)).min(longest.div_ceil(SPLIT_KEYS)).clamp(1, MAX_SPLITS)
}

/// Cosine and sine of each row's turns, `[rows][rotary / 2][2]`, in double precision on the host: far into a
/// context a single-precision angle is off by more than a key's last digits.
pub(crate) fn turns(config: &Config, plan: &Plan<'_>, to: &mut [[f32; 2]]) {
    let a = &config.attention;
    let half = a.rotary_dim / 2;
    if half == 0 {
        return;
    }
    let frequencies: Vec<f64> =
        (0..half).map(|i| a.rope_theta.powf(-2.0 * i as f64 / a.rotary_dim as f64)).collect();
    let positions = plan.parts.iter().flat_map(|p| p.position..p.position + p.ids.len());
    for (row, position) in to.chunks_exact_mut(half).zip(positions) {
        for (to, frequency) in row.iter_mut().zip(&frequencies) {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            *to = [cos as f32, sin as f32];
        }
    }
}

impl Pass<'_> {
    /// Mixes the normed rows; commits append their keys and values.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        w: &AttentionWeights,
        (q_norm, k_norm): (usize, usize),
    ) -> Result<()> {
        let (space, parameters, rows) = (&*self.space, self.parameters, self.plan.rows);
        let a = &self.config.attention;
        self.work.stage("attention mixers")?;
        for (matrix, to) in [(w.q, &space.q), (w.k, &space.k), (w.v, &space.v)] {
            self.work.gemm(self.views.dense(matrix)?, &space.normed, &space.identity, to, rows)?;
        }
        self.work.barrier();
        let own_bytes = a.kv_width() * kv_bytes(self.kv);
        for part in &self.plan.parts {
            let LayerBuffers::Kv { k, v } = &self.states.get_mut(part.seq)?.state.layers[layer] else {
                unreachable!("states have the model's layers")
            };
            let (keys, values, to) = match part.part {
                Part::Commit => (k.into(), v.into(), part.position),
                Part::Preview => (
                    space.own_k.at(part.rows.start * own_bytes),
                    space.own_v.at(part.rows.start * own_bytes),
                    0,
                ),
            };
            let arguments = abi::Prepare {
                heads: a.heads as u32,
                kv_heads: a.kv_heads as u32,
                head_dim: a.head_dim as u32,
                rotary: a.rotary_dim as u32,
                row0: part.rows.start as u32,
                to: to as u32,
                eps: self.config.norm_eps,
                scale: 1.0 / (a.head_dim as f32).sqrt(),
            };
            let buffers = [
                (&space.q).into(),
                (&space.k).into(),
                (&space.v).into(),
                parameters.at(q_norm),
                parameters.at(k_norm),
                (&space.turns).into(),
                (&space.query).into(),
                keys,
                values,
            ];
            let grid = Grid::new((a.heads + 2 * a.kv_heads, part.ids.len(), 1), 32);
            self.work.dispatch(Kernel::AttentionPrepare(self.kv), grid, &arguments, &buffers)?;
        }
        self.work.barrier();
        for part in &self.plan.parts {
            let LayerBuffers::Kv { k, v } = &self.states.get_mut(part.seq)?.state.layers[layer] else {
                unreachable!("states have the model's layers")
            };
            let (n, commit) = (part.ids.len(), part.part == Part::Commit);
            let (stored, own) = if commit { (part.position + n, 0) } else { (part.position, n) };
            let arguments = abi::Attention {
                heads: a.heads as u32,
                kv_heads: a.kv_heads as u32,
                head_dim: a.head_dim as u32,
                row0: part.rows.start as u32,
                rows: n as u32,
                stored: stored as u32,
                own: own as u32,
                causal: commit.into(),
                splits: self.splits as u32,
                chunk: (stored + own).div_ceil(self.splits).next_multiple_of(64) as u32,
            };
            let buffers = [
                (&space.query).into(),
                k.into(),
                v.into(),
                space.own_k.at(part.rows.start * own_bytes),
                space.own_v.at(part.rows.start * own_bytes),
                (&space.partial).into(),
            ];
            let grid = Grid::new((a.heads, n.div_ceil(4), self.splits), 64);
            self.work.dispatch(Kernel::Attention(self.kv), grid, &arguments, &buffers)?;
        }
        self.work.barrier();
        let arguments = abi::Join {
            heads: a.heads as u32,
            head_dim: a.head_dim as u32,
            splits: self.splits as u32,
            row0: 0,
        };
        let buffers = [(&space.partial).into(), (&space.q).into(), (&space.mixed).into()];
        self.work.dispatch(Kernel::AttentionJoin, Grid::new((a.heads, rows, 1), 32), &arguments, &buffers)?;
        self.work.barrier();
        self.work.gemm(self.views.dense(w.o)?, &space.mixed, &space.identity, &space.mixer_out, rows)
    }
}
