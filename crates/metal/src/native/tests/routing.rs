//! Experts chosen on the device, against the host's functions; and the products that follow.

use shamrock_cmf::Encoding;
use shamrock_model::config::MoeConfig;
use shamrock_model::routing::{coreset, route, softmax_rows};

use super::super::abi;
use super::super::device::{Buffer, Device, Grid};
use super::super::kernel::{Kernel, Product, Rows};
use super::super::views::View;
use super::super::workspace::PANEL_KINDS;
use super::{U, in_all_orders, in_all_orders_with, noise};
use crate::Precision;

/// Rows of the parts, and whether each is a preview.
struct Case<'a> {
    parts: &'a [(usize, bool)],
    moe: MoeConfig,
    top_p: f32,
    /// Logits are multiples of this, so that many are equal; 0: as they come.
    grain: f32,
}

/// What `route_panels` leaves.
struct Tables {
    pair_rows: Buffer,
    starts: Buffer,
    slots: Buffer,
    weights: Buffer,
    panels: Buffer,
    grids: Buffer,
    used: Buffer,
}

fn moe(experts: usize, top_k: usize, norm_topk: bool) -> MoeConfig {
    MoeConfig { experts, top_k, expert_width: 20, shared_width: 1, norm_topk }
}

const HIDDEN: usize = 70;

fn choose(device: &Device, case: &Case<'_>, logits: &[f32]) -> Tables {
    let (m, rows) = (&case.moe, case.parts.iter().map(|(rows, _)| rows).sum::<usize>());
    let (mut blocks, mut block_of): (Vec<abi::RowRange>, Vec<u32>) = (Vec::new(), Vec::new());
    for &(count, preview) in case.parts {
        let block = if preview { blocks.len() as u32 } else { abi::NONE };
        if preview {
            blocks.push(abi::RowRange { row0: block_of.len() as u32, rows: count as u32 });
        }
        block_of.extend(vec![block; count]);
    }
    let (experts, top_k) = (m.experts as u32, m.top_k as u32);
    let pairs = rows * m.top_k;
    let word = |count: usize| device.alloc(count * 4).unwrap();
    let router = device.filled(logits).unwrap();
    let (top, allowed) = (word(pairs), word(blocks.len() * m.experts));
    let (block_count, block_of) = (blocks.len(), device.filled(&block_of).unwrap());
    let blocks = device.filled(&blocks).unwrap();
    let (chosen, chosen_weights, counts) = (word(pairs), word(pairs), word(rows));
    let tables = Tables {
        pair_rows: word(pairs),
        starts: word(rows + 1),
        slots: word(pairs),
        weights: word(pairs),
        panels: word(PANEL_KINDS * m.experts * 3),
        grids: word(PANEL_KINDS * 6),
        used: word(1),
    };
    let mut work = device.work(false);
    let route = abi::Route { experts, top_k, rows: rows as u32, norm: m.norm_topk.into() };
    let by_row = Grid::new((rows, 1, 1), 32);
    work.dispatch(Kernel::RouteSoftmax, by_row, &route, &[&router, &top].map(Into::into)).unwrap();
    work.barrier();
    let fraction = (f64::from(case.top_p) * (1u64 << 63) as f64) as u64;
    let (top_p_low, top_p_high) = (fraction as u32, (fraction >> 32) as u32);
    let arguments = abi::Coreset { experts, top_k, top_p_low, top_p_high };
    let buffers = [&router, &top, &blocks, &allowed].map(Into::into);
    work.dispatch(Kernel::RouteCoreset, Grid::new((block_count, 1, 1), 256), &arguments, &buffers).unwrap();
    work.barrier();
    let buffers = [&router, &block_of, &allowed, &chosen, &chosen_weights, &counts].map(Into::into);
    work.dispatch(Kernel::RouteChoose, by_row, &route, &buffers).unwrap();
    work.barrier();
    let (width, hidden) = (m.expert_width as u32, HIDDEN as u32);
    let arguments = abi::Panels { experts, top_k, rows: rows as u32, width, hidden };
    let t = &tables;
    let buffers = [
        &chosen,
        &chosen_weights,
        &counts,
        &t.pair_rows,
        &t.starts,
        &t.slots,
        &t.weights,
        &t.panels,
        &t.grids,
        &t.used,
    ];
    let one = Grid::new((1, 1, 1), 256);
    work.dispatch(Kernel::RoutePanels, one, &arguments, &buffers.map(Into::into)).unwrap();
    work.wait().unwrap();
    tables
}

/// `(expert, row, weight)` in order, as the host's functions choose.
fn expected(case: &Case<'_>, logits: &[f32]) -> Vec<(u32, usize, f32)> {
    let m = &case.moe;
    let mut probs = logits.to_vec();
    softmax_rows(&mut probs, m.experts);
    let (mut pairs, mut row0) = (Vec::new(), 0);
    for &(rows, preview) in case.parts {
        let probs = &probs[row0 * m.experts..][..rows * m.experts];
        let kept = preview.then(|| coreset(probs, m, case.top_p));
        let routes = route(probs, m, kept.as_deref());
        for row in 0..rows {
            pairs.extend(routes.row(row).iter().map(|c| (c.expert, row0 + row, c.weight)));
        }
        row0 += rows;
    }
    pairs.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
    pairs
}

fn check(device: &Device, case: &Case<'_>) {
    let (m, rows) = (&case.moe, case.parts.iter().map(|(rows, _)| rows).sum::<usize>());
    let grained =
        |x: &f32| if case.grain > 0.0 { (x * 4.0 / case.grain).round() * case.grain } else { x * 4.0 };
    let logits: Vec<f32> = noise(rows as u64, rows * m.experts).iter().map(grained).collect();
    let pairs = expected(case, &logits);
    let tables = choose(device, case, &logits);

    let pair_rows: Vec<u32> = pairs.iter().map(|pair| pair.1 as u32).collect();
    assert_eq!(tables.pair_rows.read::<u32>(0, pairs.len()), pair_rows);
    let mut panels: [Vec<abi::Panel>; PANEL_KINDS] = Default::default();
    for group in pairs.chunk_by(|a, b| a.0 == b.0) {
        let first = pairs.iter().position(|pair| pair.0 == group[0].0).unwrap() as u32;
        let kind = if group.len() > 8 { 2 } else { usize::from(group.len() > 1) };
        panels[kind].push(abi::Panel { expert: group[0].0, first, rows: group.len() as u32 });
    }
    assert_eq!(tables.used.read::<u32>(0, 1)[0] as usize, panels.iter().map(Vec::len).sum::<usize>());
    for (kind, panels) in panels.iter().enumerate() {
        let at = kind * m.experts * size_of::<abi::Panel>();
        assert_eq!(tables.panels.read::<abi::Panel>(at, panels.len()), panels.as_slice());
        let of_kind = Rows::ALL[kind];
        let most =
            if kind == 2 { pairs.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).max().unwrap() } else { 1 };
        for (stage, outs) in [m.expert_width, HIDDEN].into_iter().enumerate() {
            let grid = tables.grids.read::<abi::Groups>((kind * 2 + stage) * size_of::<abi::Groups>(), 1)[0];
            let x = outs.div_ceil(of_kind.outs()) as u32;
            assert_eq!(grid, abi::Groups { x, y: most.div_ceil(32) as u32, z: panels.len() as u32 });
        }
    }
    let starts = tables.starts.read::<u32>(0, rows + 1);
    for row in 0..rows {
        let own = starts[row] as usize..starts[row + 1] as usize;
        let wanted: Vec<usize> = (0..pairs.len()).filter(|&pair| pairs[pair].1 == row).collect();
        let slots = &tables.slots.read::<u32>(0, pairs.len())[own.clone()];
        assert!(slots.iter().map(|&slot| slot as usize).eq(wanted.iter().copied()), "row {row}");
        for (got, &pair) in tables.weights.read::<f32>(0, pairs.len())[own].iter().zip(&wanted) {
            // A device's exponential may be off by some units, which shows in all of a row's.
            assert!(
                (got - pairs[pair].2).abs() <= 16.0 * U as f32,
                "row {row}: {got}, expected {}",
                pairs[pair].2
            );
        }
    }
}

#[test]
fn the_device_chooses_what_the_host_chooses() {
    let parts: &[(usize, bool)] = &[(3, false), (12, true), (1, false), (5, true)];
    in_all_orders(|device| {
        check(device, &Case { parts, moe: moe(19, 4, true), top_p: 0.7, grain: 0.0 });
        // Most of the choice is among equals.
        check(device, &Case { parts, moe: moe(40, 5, false), top_p: 0.5, grain: 2.0 });
        // Coresets of fewer experts than a row wants; more experts than threads; all of them.
        check(device, &Case { parts: &[(9, true)], moe: moe(9, 3, true), top_p: 0.0, grain: 0.0 });
        check(device, &Case { parts: &[(9, true)], moe: moe(9, 3, true), top_p: 1e-6, grain: 0.0 });
        // All alike: the order of the experts decides, and the mass before the third is just what is too much.
        check(device, &Case { parts: &[(6, true)], moe: moe(8, 4, true), top_p: 0.5, grain: 10.0 });
        check(
            device,
            &Case { parts: &[(2, false), (40, true)], moe: moe(300, 2, true), top_p: 0.9, grain: 0.0 },
        );
        check(
            device,
            &Case { parts: &[(4, true), (1, true)], moe: moe(3, 3, false), top_p: 1.0, grain: 1.0 },
        );
    });
}

/// Panels of one row, of few and of many, in every encoding: what the products of one expert at a time give,
/// to the bit.
#[test]
fn products_by_panels_are_products_by_experts() {
    let (experts, cols, rows) = (5, 64, 41);
    let x = noise(1, rows * cols);
    // Expert 1 has 1 row, 2 has 8, 4 has 40, the others none.
    let panels =
        [(1, 0, 1), (2, 1, 8), (4, 9, 40)].map(|(expert, first, rows)| abi::Panel { expert, first, rows });
    let index: Vec<u32> = (0..49).map(|pair| pair * 7 % rows as u32).collect();
    for precision in [Precision::Full, Precision::Half] {
        in_all_orders_with(precision, |device| {
            let (x, index) = (device.filled(&x).unwrap(), device.filled(&index).unwrap());
            for (encoding, outs) in Encoding::ALL.into_iter().zip([13, 64, 70, 9, 33, 129, 65]) {
                let view = |seed: u64| {
                    let payload =
                        shamrock_cmf::encode(encoding, outs, cols, &noise(seed, outs * cols)).unwrap();
                    View::of(device, encoding, outs, cols, &payload).unwrap()
                };
                let views: Vec<View> = (0..experts).map(view).collect();
                let addresses: Vec<u64> = views.iter().map(View::address).collect();
                let table = device.filled(&addresses).unwrap();
                let (got, want) = [(); 2].map(|()| device.zeroed(49 * outs * 4).unwrap()).into();
                let mut work = device.work(false);
                for (panel, kind) in panels.iter().zip(Rows::ALL) {
                    let own = device.filled(&[*panel]).unwrap();
                    let grid =
                        [outs.div_ceil(kind.outs()) as u32, panel.rows.div_ceil(kind.rows() as u32), 1];
                    let grid = device.filled(&grid).unwrap();
                    let arguments = abi::Gemm { rows: 0, outs: outs as u32, cols: cols as u32 };
                    let exp2 = work.exp2();
                    let buffers =
                        [(&table).into(), (&x).into(), (&index).into(), (&got).into(), exp2, (&own).into()];
                    let kernel = Kernel::Experts(Product::new(kind, encoding, precision));
                    work.dispatch_indirect(kernel, (&grid).into(), kind.threads(), &arguments, &buffers)
                        .unwrap();
                    let (at, count) = (panel.first as usize, panel.rows as usize);
                    let to = want.at(at * outs * 4);
                    work.gemm(&views[panel.expert as usize], &x, index.at(at * 4), to, count).unwrap();
                    work.wait().unwrap();
                }
                assert_eq!(got.read::<u32>(0, 49 * outs), want.read::<u32>(0, 49 * outs), "{encoding}");
            }
        });
    }
}

/// What the stand-in is strict about: a kernel that follows an address ends the process unless the command buffer
/// makes the memory resident. (That it may where it does: the executor's tests of routing on the device.)
#[cfg(metal_host)]
#[test]
fn memory_that_is_not_resident_is_out_of_reach() {
    let test = ["--ignored", "--exact", "native::tests::routing::follows_an_address"];
    let output = std::process::Command::new(std::env::current_exe().unwrap()).args(test).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("not resident"), "{said}");
}

#[cfg(metal_host)]
#[test]
#[ignore = "ends the process"]
fn follows_an_address() {
    let model = shamrock_model::ModelFile::open(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap();
    let matrix = model.weights.layers[0].moe.experts[0].gate;
    let device = super::device(Precision::Full);
    let view = View::new(&device, model.container(), matrix).unwrap();
    let table = device.filled(&[view.address()]).unwrap();
    let (x, index) = (device.filled(&vec![1f32; matrix.cols]).unwrap(), device.filled(&[0u32]).unwrap());
    let y = device.alloc(matrix.rows * 4).unwrap();
    let panel = device.filled(&[abi::Panel { expert: 0, first: 0, rows: 1 }]).unwrap();
    let grid = device.filled(&[matrix.rows.div_ceil(Rows::One.outs()) as u32, 1, 1]).unwrap();
    let arguments = abi::Gemm { rows: 0, outs: matrix.rows as u32, cols: matrix.cols as u32 };
    let mut work = device.work(false);
    let exp2 = work.exp2();
    let buffers = [(&table).into(), (&x).into(), (&index).into(), (&y).into(), exp2, (&panel).into()];
    let kernel = Kernel::Experts(Product::new(Rows::One, view.encoding, Precision::Full));
    work.dispatch_indirect(kernel, (&grid).into(), Rows::One.threads(), &arguments, &buffers).unwrap();
    let _ = work.wait();
}
