//! Experts chosen on the device, so that the host waits for a pass and not for its layers.
//!
//! Where all experts are viewed, what remains of routing is arithmetic and sorting (`route.metal`). Products go by
//! panels that the device has laid out: their kernels find an expert's matrix by its address in a table, and
//! the number of panels is read by the dispatch itself.

use shamrock_cmf::Encoding;
use shamrock_model::weights::{Ffn, Matrix};
use shamrock_model::{Config, ModelFile, Part, Result};

use super::abi;
use super::device::{Buffer, Device, Grid, failure};
use super::experts::Which;
use super::kernel::{Kernel, Product, Rows};
use super::pass::Pass;
use super::plan::Plan;
use super::views::Views;
use super::workspace::Workspace;

/// Experts and chosen ones that the kernels have room for.
const MAX_EXPERTS: usize = 1024;
const MAX_TOP_K: usize = 64;

/// What the kernels choose among.
pub(crate) struct DeviceRouting {
    /// `[layers][3][experts]`, u64: where each matrix begins on the device.
    addresses: Buffer,
    /// By layer: of gate, up and down.
    encodings: Vec<[Encoding; 3]>,
    experts: usize,
}

impl DeviceRouting {
    /// The kernels that routing on the device takes.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when a layer's experts differ in encoding or there are too many.
    pub(crate) fn encodings(model: &ModelFile) -> Result<Vec<[Encoding; 3]>> {
        let m = &model.config.moe;
        if m.experts > MAX_EXPERTS || m.top_k.min(m.experts) > MAX_TOP_K {
            return Err(refuse(&format!(
                "{} experts of which {} are chosen are more than {MAX_EXPERTS} and {MAX_TOP_K}",
                m.experts, m.top_k
            )));
        }
        let of = |ffn: &Ffn| ffn.matrices().map(|matrix: Matrix| model.weights.tensor(matrix).encoding);
        let layer = |(i, layer): (usize, &shamrock_model::weights::LayerWeights)| {
            let first = of(&layer.moe.experts[0]);
            let same = layer.moe.experts.iter().all(|ffn| of(ffn) == first);
            same.then_some(first).ok_or_else(|| refuse(&format!("experts of layer {i} differ in encoding")))
        };
        model.weights.layers.iter().enumerate().map(layer).collect()
    }

    /// Views all experts and keeps them resident.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when they are beyond `budget` bytes, or with all that the device views
    /// beyond what it can keep wired, an eighth of which is left to states and scratch.
    pub(crate) fn new(
        device: &mut Device,
        views: &mut Views,
        model: &ModelFile,
        budget: usize,
    ) -> Result<DeviceRouting> {
        let encodings = DeviceRouting::encodings(model)?;
        let needed = views.all_expert_bytes();
        if needed > budget {
            return Err(refuse(&format!("the experts have {needed} bytes, beyond --expert-views {budget}")));
        }
        let (all, room) = ((needed + views.dense_bytes()) as u64, device.working_set() / 8 * 7);
        if all > room {
            return Err(refuse(&format!(
                "the weights have {all} bytes, and the device can keep {room} wired"
            )));
        }
        let experts = model.config.moe.experts;
        let numbers: Vec<u32> = (0..experts as u32).collect();
        let mut addresses: Vec<u64> = Vec::with_capacity(encodings.len() * 3 * experts);
        for layer in 0..encodings.len() {
            views.acquire(device, layer, &numbers)?;
            for which in Which::ALL {
                for &number in &numbers {
                    addresses.push(which.of(views.expert(layer, number)?).address());
                }
            }
        }
        device.hold(views.expert_buffers());
        Ok(DeviceRouting { addresses: device.filled(&addresses)?, encodings, experts })
    }
}

fn refuse(problem: &str) -> shamrock_model::Error {
    failure(format!("{problem}; experts must be chosen on the host (--routing host)"))
}

/// Tells the kernels which rows are of which preview.
pub(crate) fn write_blocks(config: &Config, plan: &Plan<'_>, space: &mut Workspace) {
    let coreset = config.block.as_ref().and_then(|block| block.coreset_top_p).is_some();
    let mut blocks: Vec<abi::RowRange> = Vec::new();
    let mut block_of: Vec<u32> = Vec::with_capacity(plan.rows);
    for part in &plan.parts {
        let own = if coreset && part.part == Part::Preview {
            blocks.push(abi::RowRange { row0: part.rows.start as u32, rows: part.ids.len() as u32 });
            blocks.len() as u32 - 1
        } else {
            abi::NONE
        };
        block_of.extend(part.ids.iter().map(|_| own));
    }
    space.blocks.put(&blocks);
    space.block_of.put(&block_of);
}

impl Pass<'_> {
    /// Encodes the choice of a layer's experts from the router's logits.
    pub(super) fn choose(&mut self, layer: usize) -> Result<()> {
        let (space, rows, m) = (&*self.space, self.plan.rows, &self.config.moe);
        let top_k = m.top_k.min(m.experts) as u32;
        let route =
            abi::Route { experts: m.experts as u32, top_k, rows: rows as u32, norm: m.norm_topk.into() };
        let buffers = [(&space.router).into(), (&space.top).into()];
        self.work.dispatch(Kernel::RouteSoftmax, Grid::new((rows, 1, 1), 32), &route, &buffers)?;
        self.work.barrier();
        if let Some(top_p) = self.config.block.as_ref().and_then(|block| block.coreset_top_p) {
            // Exact but for what is beyond 2: everything is kept from 1 on.
            let fraction = (f64::from(top_p).clamp(0.0, 1.5) * (1u64 << 63) as f64) as u64;
            let coreset = abi::Coreset {
                experts: route.experts,
                top_k,
                top_p_low: fraction as u32,
                top_p_high: (fraction >> 32) as u32,
            };
            let previews = self.plan.parts.iter().filter(|part| part.part == Part::Preview).count();
            let buffers = [&space.router, &space.top, &space.blocks, &space.allowed].map(Into::into);
            self.work.dispatch(Kernel::RouteCoreset, Grid::new((previews, 1, 1), 256), &coreset, &buffers)?;
            self.work.barrier();
        }
        let buffers = [
            &space.router,
            &space.block_of,
            &space.allowed,
            &space.chosen_experts,
            &space.chosen_weights,
            &space.chosen_counts,
        ];
        let grid = Grid::new((rows, 1, 1), 32);
        self.work.dispatch(Kernel::RouteChoose, grid, &route, &buffers.map(Into::into))?;
        self.work.barrier();
        self.work.stage("gather")?;
        let panels = abi::Panels {
            experts: route.experts,
            top_k,
            rows: rows as u32,
            width: m.expert_width as u32,
            hidden: self.config.hidden_size as u32,
        };
        let buffers = [
            (&space.chosen_experts).into(),
            (&space.chosen_weights).into(),
            (&space.chosen_counts).into(),
            (&space.pair_rows).into(),
            (&space.starts).into(),
            (&space.slots).into(),
            (&space.weights).into(),
            (&space.panels).into(),
            (&space.grids).into(),
            space.used.at(layer * 4),
        ];
        self.work.dispatch(Kernel::RoutePanels, Grid::new((1, 1, 1), 256), &panels, &buffers)?;
        self.work.barrier();
        Ok(())
    }

    /// Encodes products of the panels that [`choose`](Self::choose) lays out.
    pub(super) fn chosen_panels(&mut self, layer: usize, which: Which) -> Result<()> {
        let Some(routing) = self.device_routing else { return Err(failure("experts are not held")) };
        let (space, hidden, width) = (&*self.space, self.config.hidden_size, self.config.moe.expert_width);
        let (cols, outs, grid) = match which {
            Which::Gate | Which::Up => (hidden, width, 0),
            Which::Down => (width, hidden, 1),
        };
        let (x, index, y) = which.operands(space);
        let encoding = routing.encodings[layer][which as usize];
        let matrices = routing.addresses.at((layer * 3 + which as usize) * routing.experts * 8);
        let parameters = abi::Gemm { rows: 0, outs: outs as u32, cols: cols as u32 };
        for (kind, rows) in Rows::ALL.into_iter().enumerate() {
            let panels = space.panels.at(kind * routing.experts * size_of::<abi::Panel>());
            let groups = space.grids.at((kind * 2 + grid) * size_of::<abi::Groups>());
            let buffers = [matrices, x.into(), index.into(), y.into(), self.work.exp2(), panels];
            let kernel = Kernel::Experts(Product::new(rows, encoding, self.work.precision()));
            self.work.dispatch_indirect(kernel, groups, rows.threads(), &parameters, &buffers)?;
        }
        Ok(())
    }

    /// Counts what the layers have used, once the pass is done.
    pub(super) fn count_chosen(&mut self) {
        let used = self.space.used.read::<u32>(0, self.weights.layers.len());
        for (layer, &used) in self.weights.layers.iter().zip(used) {
            let bytes = layer.moe.experts[0].matrices().map(|m| self.weights.tensor(m).bytes.len() as u64);
            self.routing.distinct += u64::from(used);
            self.routing.found.hits += u64::from(used);
            self.routing.bytes += u64::from(used) * bytes.iter().sum::<u64>();
        }
    }
}
