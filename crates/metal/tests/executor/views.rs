//! Views of the file's matrices, and of experts within a budget.

use shamrock_model::weights::{LayerWeights, Matrix};

use super::*;

/// Pages that buffers over the file begin and end at.
pub(crate) const PAGE: usize = 16 << 10;

/// Bytes of the pages around a matrix.
pub(crate) fn span(model: &ModelFile, matrix: Matrix) -> usize {
    let tensor = model.weights.tensor(matrix);
    let start = tensor.offset as usize / PAGE * PAGE;
    (tensor.offset as usize + tensor.bytes.len()).next_multiple_of(PAGE) - start
}

pub(crate) fn experts_of(model: &ModelFile, layer: &LayerWeights) -> usize {
    layer.moe.experts.iter().flat_map(|e| e.matrices()).map(|m| span(model, m)).sum()
}

/// Experts are viewed and let go at every budget that makes a difference, which is every number of pages, from none
/// to all; and nothing changes but the cost. On a Mac, where every executor compiles its kernels, at some of them.
#[test]
fn any_budget_gives_the_same_numbers() {
    let model = model("small");
    let ids: Vec<u32> = (1..12).collect();
    let layers = &model.weights.layers;
    let all: usize = layers.iter().map(|layer| experts_of(&model, layer)).sum();
    let one: usize = layers.iter().map(|layer| experts_of(&model, layer)).max().unwrap();
    let open = |expert_views: usize| {
        let expert_views = expert_views as u64;
        MetalExecutor::new(model.clone(), &MetalOptions { expert_views, ..EXACT }).unwrap()
    };
    let (want, unbounded) = answers(&mut open(usize::MAX), &ids);
    let mut missed = BTreeSet::new();
    let step = if cfg!(metal_host) { PAGE } else { (all / 8).next_multiple_of(PAGE) };
    for budget in (0..all).step_by(step).chain([all]) {
        let mut tight = open(budget);
        for round in 0..2 {
            let (got, stats) = answers(&mut tight, &ids);
            assert!(got == want, "other numbers with a budget of {budget}");
            let held = tight.expert_bytes();
            assert!(held <= budget.max(one), "{held} viewed, budget {budget}");
            assert_eq!(stats.distinct_experts, unbounded.distinct_experts);
            assert_eq!(stats.distinct_experts, stats.expert_hits + stats.expert_misses);
            match (budget, round) {
                (0, _) => assert_eq!(stats.expert_hits, 0, "every layer makes those before it go"),
                (_, 1) if budget == all => assert_eq!(stats.expert_misses, 0, "all in use were viewed"),
                _ => {}
            }
            missed.insert(stats.expert_misses);
        }
    }
    assert!(missed.len() > 2, "budgets that make no difference: {missed:?}");
}

/// Pages that are asked for ahead of time change no number and no count.
#[test]
fn prefetching_changes_nothing_but_time() {
    let (model, ids) = (model("small"), (1..40).collect::<Vec<u32>>());
    for expert_views in [0, MetalOptions::DEFAULT.expert_views] {
        let [ahead, plain] = [true, false].map(|prefetch| {
            let options = MetalOptions { prefetch, expert_views, ..EXACT };
            let mut executor = MetalExecutor::new(model.clone(), &options).unwrap();
            // In the second round there are experts of the last pass to ask for.
            [(); 2].map(|()| answers(&mut executor, &ids))
        });
        for ((got, stats), (want, counts)) in ahead.into_iter().zip(plain) {
            assert!(got == want, "other numbers with pages asked for, {expert_views} bytes viewed");
            assert_eq!(
                (stats.expert_hits, stats.expert_misses, stats.fill_bytes, stats.waits),
                (counts.expert_hits, counts.expert_misses, counts.fill_bytes, counts.waits)
            );
        }
    }
}

/// Refused when it is opened, with what to do.
#[test]
fn routing_on_the_device_needs_all_experts() {
    let model = model("small");
    let all: usize = model.weights.layers.iter().map(|layer| experts_of(&model, layer)).sum();
    let open = |expert_views: usize| {
        let expert_views = expert_views as u64;
        MetalExecutor::new(model.clone(), &MetalOptions { routing: Routing::Device, expert_views, ..EXACT })
    };
    assert_eq!(open(all).unwrap().expert_bytes(), all);
    let error = open(all - 1).err().unwrap().to_string();
    assert!(error.contains("beyond --expert-views") && error.contains("--routing host"), "{error}");
}
