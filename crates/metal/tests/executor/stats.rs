//! What a pass says that it cost.

use std::time::Instant;

use super::*;

/// Passes of one executor: what each says, and how long it took as seen from outside.
fn passes(options: &MetalOptions) -> (MetalExecutor, Vec<(PassStats, Duration)>) {
    let mut executor = MetalExecutor::new(model("small"), options).unwrap();
    let seq = executor.open().unwrap();
    let ids: Vec<u32> = (1..20).collect();
    let commit = Step::commit(seq, &ids, Score::None);
    let preview = Step::preview(seq, &[310; 8], Score::Logits { rows: &[0, 7] });
    let costs = [commit, preview, preview].map(|step| {
        let start = Instant::now();
        let stats = executor.run(&[step]).unwrap().stats;
        (stats, start.elapsed())
    });
    (executor, costs.into())
}

/// Parts are no more than the whole, and the device's time is waited for.
fn times_add_up(stats: &PassStats, whole: Duration) {
    assert!(stats.device + stats.host <= whole, "{stats:?} of {whole:?}");
    assert!(stats.waiting + stats.routing + stats.fill <= whole, "{stats:?} of {whole:?}");
    // The device's clock is another: allow it a microsecond a wait.
    assert!(stats.device <= stats.waiting + Duration::from_micros(stats.waits), "{stats:?}");
}

#[test]
fn experts_are_paid_for_when_they_are_missing() {
    for expert_views in [0, MetalOptions::DEFAULT.expert_views] {
        let (executor, costs) = passes(&MetalOptions { expert_views, ..EXACT });
        for (stats, whole) in &costs {
            times_add_up(stats, *whole);
            assert!(stats.routing > Duration::ZERO);
            assert_eq!(stats.fill_bytes > 0, stats.expert_misses > 0, "{stats:?}");
            assert!(stats.expert_misses == 0 || stats.fill > Duration::ZERO, "{stats:?}");
        }
        let misses = |i: usize| costs[i].0.expert_misses;
        let filled: u64 = costs.iter().map(|(stats, _)| stats.fill_bytes).sum();
        if expert_views == 0 {
            assert!(misses(1) > 0 && misses(2) == misses(1), "the same block needs the same experts again");
            assert!(filled > executor.expert_bytes() as u64);
        } else {
            assert_eq!(misses(2), 0, "the same block has its experts");
            assert_eq!(filled, executor.expert_bytes() as u64, "each was viewed once");
        }
    }
}

/// Choosing is then part of the device's time, and nothing is missing.
#[test]
fn routing_on_the_device_costs_the_host_nothing() {
    for (stats, whole) in passes(&MetalOptions { routing: Routing::Device, ..EXACT }).1 {
        times_add_up(&stats, whole);
        assert_eq!((stats.routing, stats.fill), (Duration::ZERO, Duration::ZERO));
        assert_eq!((stats.expert_misses, stats.fill_bytes, stats.waits), (0, 0, 1));
    }
}
