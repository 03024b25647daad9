//! How much memory a model asks for, and how much there is.

use std::path::{Path, PathBuf};

use shamrock_model::ModelFile;
use shamrock_model::config::LayerKind;

use crate::KvPrecision;

/// Memory that a model's weights and states take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of weights that every pass reads: all but experts and the embedding, of which a pass reads a
    /// row for each of its own (unless it is the head as well).
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
        let bytes_of = |matrix| weights.tensor(matrix).bytes.len() as u64;
        let experts = weights.layers.iter().flat_map(|layer| &layer.moe.experts);
        let experts = experts.flat_map(|ffn| ffn.matrices()).map(bytes_of).sum();
        let kv_bytes = match kv {
            KvPrecision::F16 => 2,
            KvPrecision::F32 => 4,
        };
        let count = |kind| config.layers.iter().filter(|k| **k == kind).count();
        let gdn = config.gdn.memory_len() + config.gdn.ring_rows() * config.gdn.channels();
        let embedding = if weights.embed.id == weights.head.id { 0 } else { bytes_of(weights.embed) };
        Memory {
            dense: all - experts - embedding,
            experts,
            sequence: (count(LayerKind::Linear) * gdn * size_of::<f32>()) as u64,
            position: (count(LayerKind::Full) * 2 * config.attention.kv_width() * kv_bytes) as u64,
        }
    }

    /// Weights that there should be memory for.
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
    let system = kilobytes("/proc/meminfo", "MemAvailable:");
    let limits = limit_files(&read("/proc/self/cgroup").unwrap_or_default());
    // A limit counts cached files too, but they give way.
    let limits = limits.into_iter().filter_map(|path| read(path.to_str()?)?.trim().parse::<u64>().ok());
    limits.chain(system).min()
}

/// Bytes that this process holds beside mapped files. `None` where that cannot be told.
pub fn anonymous_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "RssAnon:")
}

/// An entry of a table in `/proc`, in bytes.
fn kilobytes(table: &str, entry: &str) -> Option<u64> {
    let table = std::fs::read_to_string(table).ok()?;
    let value = table.lines().find_map(|line| line.strip_prefix(entry))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The files that may hold a memory limit of a process with this `/proc/self/cgroup`, of its group and of
/// all groups above it. Version 2 of control groups has one hierarchy, `0::PATH`, version 1 one for each
/// resource, like `4:memory:PATH`.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
        files.extend(ancestors.map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_of_control_groups_are_looked_for() {
        let files = limit_files("9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/c\n");
        let files: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        let v1 = "/sys/fs/cgroup/memory";
        let expected = [
            format!("{v1}/a/b/memory.limit_in_bytes"),
            format!("{v1}/a/memory.limit_in_bytes"),
            format!("{v1}/memory.limit_in_bytes"),
            "/sys/fs/cgroup/c/memory.max".into(),
            "/sys/fs/cgroup/memory.max".into(),
        ];
        assert_eq!(files, expected);
    }
}
