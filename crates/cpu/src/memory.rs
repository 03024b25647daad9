//! How much memory a model asks for, and how much there is.

use std::path::Path;

use shamrock_model::ModelFile;
use shamrock_model::config::LayerKind;

use crate::KvPrecision;

/// Memory that a model's weights and states take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of weights that every pass reads.
    pub dense: u64,
    /// Bytes of all routed experts, of which a pass reads some.
    pub experts: u64,
    /// Bytes of a sequence's state, whatever its length.
    pub sequence: u64,
    /// Bytes of a sequence's state for each committed position.
    pub position: u64,
}

impl Memory {
    /// Of a model with keys and values in `kv`.
    pub fn of(model: &ModelFile, kv: KvPrecision) -> Memory {
        let (config, weights) = (&model.config, &model.weights);
        let all: u64 = weights.container().tensors().map(|tensor| tensor.bytes.len() as u64).sum();
        let experts = weights.layers.iter().flat_map(|layer| &layer.moe.experts);
        let experts =
            experts.flat_map(|ffn| ffn.matrices()).map(|m| weights.tensor(m).bytes.len() as u64).sum();
        let kv_bytes = match kv {
            KvPrecision::F16 => 2,
            KvPrecision::F32 => 4,
        };
        let count = |kind| config.layers.iter().filter(|k| **k == kind).count();
        let gdn = config.gdn.memory_len() + config.gdn.ring_rows() * config.gdn.channels();
        Memory {
            dense: all - experts,
            experts,
            sequence: (count(LayerKind::Linear) * gdn * size_of::<f32>()) as u64,
            position: (count(LayerKind::Full) * 2 * config.attention.kv_width() * kv_bytes) as u64,
        }
    }

    /// All weights.
    pub fn weights(&self) -> u64 {
        self.dense + self.experts
    }

    /// Bytes of experts that fit into `budget` beside the dense weights.
    pub fn experts_within(&self, budget: u64) -> u64 {
        self.experts.min(budget.saturating_sub(self.dense))
    }
}

/// Bytes of memory that this process could still take: what the system has available, page cache
/// included, or what its control group leaves. `None` where neither can be told.
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A limit counts cached files too, but they give way.
    let limits = Path::new(own).ancestors().filter_map(|group| {
        let limit = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        read(limit.to_str()?)?.trim().parse::<u64>().ok()
    });
    limits.chain(system).min()
}
