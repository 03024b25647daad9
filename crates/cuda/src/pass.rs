//! One pass as a sequence of kernels. Nothing here depends on a pass's ids, positions or states:
//! those are in the tables, so that the same sequence can be recorded once and replayed.

use std::time::Duration;

use bytemuck::Zeroable;
use cudarc::driver::{CudaEvent, sys};
use shamrock_model::Result;

use crate::abi::{self, Ptr};
use crate::cache::ExpertCache;
use crate::device::{Device, Grid, driver};
use crate::geometry::{Geometry, padded};
use crate::inputs::{Shape, Tables};
use crate::sequence::{RECUR_THREADS, recur_grid};
use crate::upload::{AttentionLayer, DeviceWeights, GdnLayer, Layer, MixerLayer, Placed};
use crate::workspace::{Activations, CHUNK, PICK_CHUNKS, RESULT_HEADER, Workspace};

mod dense;
mod few;

use dense::{Product, WIDE_SHARED};

/// Threads of most kernels.
const THREADS: u32 = 256;
/// Query rows of a block in `gdn_preview`, and queries of a block in `attention` in f32.
const QUERIES: usize = 8;
/// Key rows that all attention kernels stage at once.
const KEYS: usize = 32;
/// Queries of a block in `attention` on tensor cores.
pub(crate) const TENSOR_QUERIES: usize = 64;
/// Rows up to which one block chooses experts for all.
const CHOOSE_ROWS: usize = 64;
/// Average rows of an expert up to which they do in its products.
const FEW_EXPERT_ROWS: usize = 12;
/// Weight rows of a block in the experts' products of many rows.
const EXPERT_BAND: usize = 128;
/// Blocks that share the row tiles of one band of an expert. Most have nothing to do and end at once, but
/// a popular expert must not keep one multiprocessor busy while the others have finished.
const GATE_UP_SHARES: usize = 16;
const DOWN_SHARES: usize = 4;
/// Rows from which a commit's recurrence pays in chunks on tensor cores.
const CHUNKED_ROWS: usize = 24;
/// Shared memory that all supported devices have for one block.
const SHARED_LIMIT: usize = 99 << 10;

/// What a pass runs on.
#[derive(Clone, Copy)]
pub(crate) struct Launcher<'a> {
    pub(crate) device: &'a Device,
    pub(crate) geometry: &'a Geometry,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) space: &'a Workspace,
    pub(crate) tables: Tables,
    pub(crate) shape: Shape,
}

/// Times of stages, from events between them.
#[derive(Default)]
pub(crate) struct Profile {
    marks: Vec<(&'static str, CudaEvent)>,
}

impl Profile {
    /// Notes that the stage `name` ends here (the first mark starts the clock).
    fn mark(&mut self, device: &Device, name: &'static str) -> Result<()> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.marks.push((name, device.stream.record_event(flags).map_err(driver)?));
        Ok(())
    }

    /// Time per stage in the order they first ran; the device is done.
    pub(crate) fn stages(&self) -> Result<Vec<(&'static str, Duration)>> {
        let mut stages: Vec<(&'static str, Duration)> = Vec::new();
        for pair in self.marks.windows(2) {
            let ms = pair[0].1.elapsed_ms(&pair[1].1).map_err(driver)?;
            let (name, time) = (pair[1].0, Duration::from_secs_f64(f64::from(ms).max(0.0) / 1e3));
            match stages.iter_mut().find(|(n, _)| *n == name) {
                Some((_, total)) => *total += time,
                None => stages.push((name, time)),
            }
        }
        Ok(stages)
    }
}

/// What a norm adds to the residual stream before it.
enum Added {
    Nothing,
    Experts,
    /// The experts' kernel has added what there was.
    Done,
    /// The partial sums of the mixer's output product.
    Mixer {
        splits: usize,
    },
}

/// Experts of one launch.
#[derive(Clone, Copy)]
struct ExpertList {
    /// The table that the list counts in.
    experts: Ptr,
    /// The list, of `len` entries or up to the first without rows.
    work: Ptr,
    len: usize,
    /// The layer's shared expert as well.
    shared: bool,
}

impl Launcher<'_> {
    /// All kernels of a pass, in order. With a cache of experts, the host reads each layer's choice on
    /// the way, so that the pass cannot be recorded.
    pub(crate) fn run(&self, profile: &mut Option<Profile>, cache: &mut Option<ExpertCache>) -> Result<()> {
        let mut mark = |name| match profile {
            Some(profile) => profile.mark(self.device, name),
            None => Ok(()),
        };
        mark("start")?;
        self.device.clear(self.space.results, RESULT_HEADER)?;
        let embed = abi::Embed {
            table: self.weights.embed.matrix,
            cols: self.weights.embed.cols,
            ids: self.tables.ids,
            hidden: self.space.hidden[0],
        };
        self.device.launch("embed", Grid::new((self.shape.rows, 1, 1), 1024), &embed)?;
        mark("embed")?;
        let (mut linear, mut full) = (0, 0);
        for (i, layer) in self.weights.layers.iter().enumerate() {
            // What the layer before left to be added comes in with the norm.
            let added = if i > 0 { self.added_by_experts(cache.is_some()) } else { Added::Nothing };
            let residual = self.residual(layer.input_norm, added);
            let splits = match &layer.mixer {
                MixerLayer::Linear(w) => {
                    linear += 1;
                    self.gdn(w, linear - 1, residual, &mut mark)?
                }
                MixerLayer::Full(w) => {
                    full += 1;
                    self.attention(w, full - 1, residual, &mut mark)?
                }
            };
            let residual = self.residual(layer.post_norm, Added::Mixer { splits });
            if self.is_one_row(cache.is_some()) {
                self.experts_of_one(layer, residual, &mut mark)?;
                continue;
            }
            self.route(layer, residual, &mut mark)?;
            match cache {
                None => self.experts(layer, self.all_experts(layer), &mut mark)?,
                Some(cache) => {
                    let experts = self.geometry.config.moe.experts;
                    let batches = cache.batches(self.device, experts, i, self.space.groups.work)?;
                    for (n, batch) in batches.iter().enumerate() {
                        cache.send(self.device, self.geometry, i, batch)?;
                        let (experts, work, len) = (cache.table(), batch.list, batch.len);
                        self.experts(layer, ExpertList { experts, work, len, shared: n == 0 }, &mut mark)?;
                    }
                }
            }
        }
        self.score(self.added_by_experts(cache.is_some()))?;
        mark("head")
    }

    /// A list of all experts of a layer that have rows.
    fn all_experts(&self, layer: &Layer) -> ExpertList {
        let (work, len) = (self.space.groups.work, self.geometry.config.moe.experts);
        ExpertList { experts: layer.experts, work, len, shared: true }
    }

    /// The residual stream in front of a norm. It goes on in the other of its two places.
    fn residual(&self, weight: Ptr, added: Added) -> abi::Residual {
        let s = self.space;
        let [hidden, sum] = match added {
            Added::Nothing | Added::Experts => s.hidden,
            Added::Mixer { .. } => [s.hidden[1], s.hidden[0]],
            Added::Done => [s.hidden[1], 0],
        };
        abi::Residual {
            hidden,
            sum,
            weight,
            parts: s.mixer_out,
            splits: if let Added::Mixer { splits } = added { splits as u32 } else { 0 },
            rows: self.shape.rows as u32,
            experts: if matches!(added, Added::Experts) { s.expert_out } else { 0 },
            weights: s.weights,
            shared_gate: s.router,
        }
    }

    /// Writes normed copies of the residual stream, of its chosen rows if `chosen` names some.
    fn norm(
        &self,
        residual: abi::Residual,
        chosen: Option<Ptr>,
        outputs: impl IntoIterator<Item = (Activations, Ptr)>,
    ) -> Result<()> {
        let mut copies = [abi::Copy::zeroed(); abi::MAX_COPIES];
        let mut copy_count = 0;
        for (copy, (to, cols)) in copies.iter_mut().zip(outputs) {
            *copy = abi::Copy { hi: to.hi, lo: to.lo, cols };
            copy_count += 1;
        }
        let args = abi::Norm { residual, chosen: chosen.unwrap_or(0), copies, copy_count, pad: 0 };
        let rows = if chosen.is_some() { self.shape.scored } else { self.shape.rows };
        // Few rows: more threads each, since latency is all there is.
        let threads = if rows <= 64 { 512 } else { THREADS };
        self.device.launch("rms_norm", Grid::new((rows, 1, 1), threads), &args)
    }

    /// The norm in front of a mixer and the mixer's first products.
    fn mixer_input(
        &self,
        residual: abi::Residual,
        products: &[Product],
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<()> {
        if self.norms_in_products() {
            return self.normed_dense(residual, products);
        }
        self.norm(residual, None, products.iter().map(|p| (p.input, p.weight.cols)))?;
        mark("norm")?;
        self.dense(self.shape.rows, products, false).map(drop)
    }

    fn mixer_output(&self, weight: Placed, width: usize) -> Result<usize> {
        let hidden = self.geometry.config.hidden_size;
        let out = Product {
            weight,
            input: self.space.mixed,
            stride: padded(width),
            out: self.space.mixer_out,
            out_stride: hidden,
        };
        self.dense(self.shape.rows, &[out], true)
    }

    fn gdn(
        &self,
        w: &GdnLayer,
        layer: u32,
        residual: abi::Residual,
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<usize> {
        let (s, shape, g) = (self.space, &self.shape, &self.geometry.config.gdn);
        let stride = padded(self.geometry.config.hidden_size);
        let product = |weight, input, out, out_stride| Product { weight, input, stride, out, out_stride };
        let products = [
            product(w.qkv, s.copies[0], s.raw, g.channels()),
            product(w.z, s.copies[1], s.z, g.value_width()),
            product(w.ab, s.copies[2], s.ab, 2 * g.value_heads),
        ];
        self.mixer_input(residual, &products, mark)?;
        mark("gdn products")?;
        let mut args = abi::Mixer {
            w: w.small,
            parts: self.tables.parts,
            raw: s.raw,
            z: s.z,
            ab: s.ab,
            rows: s.conv_rows,
            gates: s.gates,
            read: s.read,
            hi: s.mixed.hi,
            lo: s.mixed.lo,
            qk: s.qk,
            squares: s.squares,
            layer,
            pad: 0,
        };
        let units = (2 * g.key_heads + g.value_heads + 1).div_ceil(8);
        if shape.commits > 0 && self.commits_in_steps() {
            self.gdn_step(&args)?;
        } else if shape.commits > 0 {
            let by_unit = Grid::new((shape.longest_commit, units, shape.commits), THREADS);
            self.device.launch("gdn_prepare", by_unit, &args)?;
            match self.chunk_shared() {
                Some(shared) if shape.longest_commit >= CHUNKED_ROWS => {
                    let chunks = shape.longest_commit.div_ceil(CHUNK);
                    let solve = Grid::new((chunks, g.value_heads, shape.commits), RECUR_THREADS);
                    self.device.launch("gdn_solve", solve, &args)?;
                    let walk = recur_grid(self.geometry, shape.commits).shared(shared);
                    self.device.launch("gdn_chunks", walk, &args)?;
                }
                _ => self.device.launch("gdn_recur", recur_grid(self.geometry, shape.commits), &args)?,
            }
            let by_head =
                Grid::new((shape.longest_commit, g.value_heads.div_ceil(8), shape.commits), THREADS);
            self.device.launch("gdn_gate", by_head, &args)?;
        }
        if shape.previews > 0 {
            // Prepared only now: a preview reads the state that its step's commit has left.
            args.parts += (shape.commits * size_of::<abi::Part>()) as Ptr;
            let by_unit = Grid::new((shape.longest_preview, units, shape.previews), THREADS);
            self.device.launch("gdn_prepare", by_unit, &args)?;
            let (dk, dv) = (g.key_dim, g.value_dim);
            let floats = (QUERIES + KEYS) * (dk + 4) + (KEYS + QUERIES) * dv + QUERIES * KEYS + 3 * QUERIES;
            let tiles = shape.longest_preview.div_ceil(QUERIES);
            let grid = Grid::new((g.value_heads, tiles, shape.previews), THREADS).shared(floats * 4);
            self.device.launch("gdn_preview", grid, &args)?;
        }
        mark("gdn mixer")?;
        let splits = self.mixer_output(w.out, g.value_width())?;
        mark("gdn products")?;
        Ok(splits)
    }

    /// Shared memory of a block of `gdn_chunks`, if that kernel can be had: it rounds to half.
    fn chunk_shared(&self) -> Option<usize> {
        let stage = 2 * CHUNK * (self.geometry.config.gdn.key_dim + 8) + 2 * CHUNK * (CHUNK + 8);
        let rest = (self.geometry.config.gdn.key_dim + 3 * CHUNK) * (CHUNK + 8);
        let shared = (2 * stage + rest) * 2;
        (self.geometry.halves() == 1 && shared <= SHARED_LIMIT).then_some(shared)
    }

    fn attention(
        &self,
        w: &AttentionLayer,
        layer: u32,
        residual: abi::Residual,
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<usize> {
        let (s, shape, a) = (self.space, &self.shape, &self.geometry.config.attention);
        let stride = padded(self.geometry.config.hidden_size);
        let product = |weight, input, out, out_stride| Product { weight, input, stride, out, out_stride };
        let products = [
            product(w.q, s.copies[0], s.q, 2 * a.q_width()),
            product(w.k, s.copies[1], s.k, a.kv_width()),
            product(w.v, s.copies[2], s.v, a.kv_width()),
        ];
        self.mixer_input(residual, &products, mark)?;
        mark("attention products")?;
        let args = abi::Attention {
            q_norm: w.q_norm,
            k_norm: w.k_norm,
            frequency: self.weights.frequency,
            out_cols: w.o.cols,
            parts: self.tables.parts,
            part_of: self.tables.part_of,
            q: s.q,
            k: s.k,
            v: s.v,
            query: s.query,
            partial: s.partial,
            hi: s.mixed.hi,
            lo: s.mixed.lo,
            layer,
            rows: shape.rows as u32,
            splits: shape.attention_splits as u32,
            pad: 0,
        };
        let few = self.prepares_in_attention();
        if !few {
            let by_head = Grid::new((shape.rows, a.heads + a.kv_heads, 1), 32);
            self.device.launch("attention_prepare", by_head, &args)?;
        }
        let queries = shape.longest_commit.max(shape.longest_preview) * (a.heads / a.kv_heads);
        let (tile, shared) = if self.geometry.tensor_attention() {
            // Two tiles of keys and values, logits, corrections, and weights as halves.
            let tiles = 2 * 2 * KEYS * a.head_dim * 2;
            let rest = (KEYS + 4) * 4 + 4 + (KEYS + 8) * 2;
            (TENSOR_QUERIES, tiles + TENSOR_QUERIES * rest)
        } else {
            let floats = QUERIES * a.head_dim + KEYS * (a.head_dim + 4) + QUERIES * KEYS + QUERIES;
            (QUERIES, floats * 4)
        };
        let blocks =
            (queries.div_ceil(tile), a.kv_heads * shape.attention_splits, shape.commits + shape.previews);
        let kernel = if few { "attention_few" } else { "attention" };
        self.device.launch(kernel, Grid::new(blocks, THREADS).shared(shared), &args)?;
        if !few || shape.attention_splits > 1 {
            self.device.launch("attention_finish", Grid::new((shape.rows, a.heads, 1), 128), &args)?;
        }
        mark("attention mixer")?;
        let splits = self.mixer_output(w.o, a.q_width())?;
        mark("attention products")?;
        Ok(splits)
    }

    fn router(&self, layer: &Layer) -> Product {
        let config = &self.geometry.config;
        Product {
            weight: layer.router,
            input: self.space.ffn,
            stride: padded(config.hidden_size),
            out: self.space.router,
            out_stride: config.moe.experts + 1,
        }
    }

    fn routing(&self) -> abi::Routing {
        let (s, shape, config) = (self.space, &self.shape, &self.geometry.config);
        let coreset = config.block.as_ref().and_then(|b| b.coreset_top_p);
        abi::Routing {
            logits: s.router,
            probs: s.probs,
            chosen: s.chosen,
            weights: s.weights,
            // Of the previews: only they have coresets.
            parts: self.tables.parts + (shape.commits * size_of::<abi::Part>()) as Ptr,
            groups: s.groups,
            distinct: s.results,
            rows: shape.rows as u32,
            top_p: coreset.unwrap_or(1.0),
            previews: if coreset.is_some() { shape.previews as u32 } else { 0 },
            pad: 0,
        }
    }

    /// The norm in front of the experts, their logits, each row's choice, and the rows by expert.
    fn route(
        &self,
        layer: &Layer,
        residual: abi::Residual,
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<()> {
        let (s, shape, config) = (self.space, &self.shape, &self.geometry.config);
        let router = self.router(layer);
        let routing = self.routing();
        if self.routes_at_once() {
            self.route_few(residual, &router, routing, true)?;
            return mark("router");
        }
        self.norm(residual, None, [(s.ffn, 0)])?;
        mark("norm")?;
        self.dense(shape.rows, &[router], false)?;
        if shape.rows <= CHOOSE_ROWS {
            // The rows' probabilities, for coresets.
            let probs = shape.rows * config.moe.experts * 4;
            self.device.launch("choose", Grid::new((1, 1, 1), 1024).shared(probs), &routing)?;
            return mark("router");
        }
        self.device.launch("route", Grid::new((shape.rows.div_ceil(8), 1, 1), THREADS), &routing)?;
        self.device.launch("route_coreset", Grid::new((routing.previews as usize, 1, 1), 1024), &routing)?;
        self.device.launch("group_rows", Grid::new((1, 1, 1), 1024), &routing)?;
        mark("router")
    }

    fn expert_args(&self, layer: &Layer, list: ExpertList) -> abi::Experts {
        let (s, shape) = (self.space, &self.shape);
        let split = self.geometry.halves() == 2;
        abi::Experts {
            experts: list.experts,
            shared: layer.shared,
            groups: abi::Groups { work: list.work, ..s.groups },
            hi: s.ffn.hi,
            lo: if split { s.ffn.lo } else { 0 },
            act_hi: s.act.hi,
            act_lo: s.act.lo,
            out: s.expert_out,
            rows: shape.rows as u32,
            stride: self.geometry.expert_stride() as u32,
            row_tiles: layer.expert_tiles.0,
            shared_tiles: if list.shared { layer.expert_tiles.1 } else { 0 },
            listed: list.len as u32,
            pad: 0,
        }
    }

    /// The products of listed experts.
    fn experts(
        &self,
        layer: &Layer,
        list: ExpertList,
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<()> {
        let (s, shape, m) = (self.space, &self.shape, &self.geometry.config.moe);
        let mut args = self.expert_args(layer, list);
        // Floats that warps hand over, see `reduce` in gemm.cu.
        let handed =
            |shares: usize, groups: usize, tiles: usize| (shares - 1) * groups * 2 * tiles * 4 * 32 * 4;
        // Blocks that go from item to item: as many as fit.
        let few = |tiles: usize, resident: usize| {
            let grid = || Grid::new((self.device.multiprocessors * resident, 1, 1), THREADS);
            (grid().shared(handed(8, 1, tiles)), grid().shared(handed(4, 2, tiles)))
        };
        let (gate_up, down, (gate_up_grid, down_grid)) = match shape.rows {
            0..=8 => ("gate_up_8", "down_8", few(1, 3)),
            rows if rows * m.top_k < FEW_EXPERT_ROWS * m.experts => ("gate_up_16", "down_16", few(2, 2)),
            _ => {
                // A block for each band of every expert.
                let bands = |tiles: u32| (tiles as usize * 16).div_ceil(EXPERT_BAND / 2);
                let hidden = self.geometry.config.hidden_size.div_ceil(EXPERT_BAND);
                let shared_expert = usize::from(list.shared);
                let grid = |items, shares| Grid::new((items, shares, 1), THREADS).shared(WIDE_SHARED);
                let gate_up =
                    grid(bands(args.row_tiles) * list.len + bands(args.shared_tiles), GATE_UP_SHARES);
                (
                    "gate_up_wide",
                    "down_wide",
                    (gate_up, grid(hidden * (list.len + shared_expert), DOWN_SHARES)),
                )
            }
        };
        self.device.launch(gate_up, gate_up_grid, &args)?;
        mark("gate and up")?;
        (args.hi, args.lo) = (s.act.hi, s.act.lo);
        self.device.launch(down, down_grid, &args)?;
        mark("down")
    }

    /// Final norm, head and picks of the scored rows.
    fn score(&self, added: Added) -> Result<()> {
        let (s, shape, config) = (self.space, &self.shape, &self.geometry.config);
        if shape.scored == 0 {
            return Ok(());
        }
        let head = self.weights.head;
        // Only the chosen rows are normed, and the stream ends.
        let residual = abi::Residual { sum: 0, ..self.residual(self.weights.norm, added) };
        self.norm(residual, Some(self.tables.chosen), [(s.head_input, head.cols)])?;
        let product = Product {
            weight: head,
            input: s.head_input,
            stride: padded(config.hidden_size),
            out: s.logits,
            out_stride: config.vocab_size,
        };
        self.dense(shape.scored, &[product], false)?;
        if !shape.picks {
            return Ok(());
        }
        let args = abi::Shape {
            logits: s.logits,
            rows: self.tables.scored,
            shapings: self.tables.shapings,
            words: self.tables.words,
        };
        self.device.launch("shape", Grid::new((shape.scored, 1, 1), THREADS), &args)?;
        let args = abi::Picks {
            logits: s.logits,
            rows: self.tables.scored,
            partial: s.softmax,
            picks: s.results + RESULT_HEADER as Ptr,
            chunks: PICK_CHUNKS as u32,
            pad: 0,
        };
        self.device.launch("pick_chunks", Grid::new((PICK_CHUNKS, shape.scored, 1), THREADS), &args)?;
        self.device.launch("pick_join", Grid::new((shape.scored, 1, 1), 32), &args)
    }
}
