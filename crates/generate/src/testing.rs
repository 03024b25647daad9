//! A model-free executor for tests of what generates: made-up logits, real sequence semantics.

use std::collections::HashMap;
use std::time::Duration;

use shamrock_model::config::{AttentionConfig, BlockConfig, GdnConfig, MoeConfig};
use shamrock_model::executor::StepOutput;
use shamrock_model::{
    Config, Controls, Error, Executor, LayerKind, LayerState, Limits, Pass, PassStats, Pick, Result, Score,
    Scored, SeqId, SequenceState, Sequences, SnapshotId, Step,
};

/// An executor whose logits are a hash of what a row sees: the committed ids before it and, in a
/// preview, the whole block. Every position has a favoured token that causal and preview rows agree
/// on most of the time, so that drafts are accepted now and then and blocks take several passes.
///
/// The vocabulary is [`VOCAB`](Self::VOCAB) ids, of which the last is the mask, 1 is the stop id and
/// 2 ends thinking.
pub struct ScriptedExecutor {
    script: Script,
    config: Config,
    /// A state is the ids themselves.
    sequences: Sequences<Vec<u32>>,
    passes: usize,
    fails_at: Option<usize>,
    clock: Box<Clock>,
    cold_passes: u32,
    /// Passes so far by committed and previewed rows.
    shapes: HashMap<(usize, usize), u32>,
}

/// Time of a pass by its committed and previewed rows.
type Clock = dyn Fn(usize, usize) -> Duration + Send;

/// The made-up logits.
struct Script {
    seed: u64,
    agreement: Option<f64>,
}

impl ScriptedExecutor {
    /// Size of the vocabulary.
    pub const VOCAB: u32 = 24;
    /// The mask token.
    pub const MASK: u32 = Self::VOCAB - 1;
    /// The stop id.
    pub const STOP: u32 = 1;

    /// A script: blocks of 8, a context of 256, passes of up to 64 rows.
    pub fn new(seed: u64) -> Self {
        let config = Config {
            vocab_size: Self::VOCAB as usize,
            hidden_size: 1,
            layers: vec![LayerKind::Full],
            norm_eps: 1e-6,
            tie_embeddings: true,
            max_context: 256,
            attention: AttentionConfig { heads: 1, kv_heads: 1, head_dim: 1, rotary_dim: 0, rope_theta: 1e4 },
            gdn: GdnConfig { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, conv_kernel: 1 },
            moe: MoeConfig { experts: 1, top_k: 1, expert_width: 1, shared_width: 1, norm_topk: true },
            block: Some(BlockConfig {
                block_size: 8,
                mask_id: Self::MASK,
                threshold: 0.5,
                coreset_top_p: None,
            }),
            controls: Controls { stop_ids: vec![Self::STOP], think_end_id: Some(2), ..Controls::default() },
            eos_ids: vec![Self::STOP],
            pad_id: None,
        };
        let limits =
            Limits { max_context: config.max_context, max_rows: 64, chunk_rows: 64, max_sequences: 64 };
        ScriptedExecutor {
            script: Script { seed, agreement: None },
            config,
            sequences: Sequences::new(limits),
            passes: 0,
            fails_at: None,
            clock: Box::new(|_, _| Duration::ZERO),
            cold_passes: 0,
            shapes: HashMap::new(),
        }
    }

    /// With passes that say they took this long, by the rows they committed and previewed in all.
    pub fn with_clock(mut self, clock: impl Fn(usize, usize) -> Duration + Send + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// With the first passes of every shape taking three times as long, and saying that they are
    /// [cold](PassStats::cold).
    pub fn with_cold_passes(mut self, passes: u32) -> Self {
        self.cold_passes = passes;
        self
    }

    /// With previews that foresee greedy decoding: each row proposes, all equally sure, what
    /// decoding will choose with this probability, and something else otherwise.
    pub fn with_agreement(mut self, probability: f64) -> Self {
        self.script.agreement = Some(probability);
        self
    }

    /// With another context length.
    pub fn with_context(self, positions: usize) -> Self {
        self.limit(|limits| limits.max_context = positions)
    }

    /// With another limit on the rows of a pass.
    pub fn with_max_rows(self, rows: usize) -> Self {
        self.limit(|limits| limits.max_rows = rows)
    }

    fn limit(mut self, set: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = self.sequences.limits();
        set(&mut limits);
        self.sequences = Sequences::new(limits);
        self
    }

    /// A plain causal trunk.
    pub fn without_blocks(mut self) -> Self {
        self.config.block = None;
        self
    }

    /// Lets pass number `pass` (from 0) fail half-way.
    pub fn fail_at(&mut self, pass: usize) {
        self.fails_at = Some(pass);
    }

    /// Passes run so far.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// Sequences and snapshots held.
    pub fn held(&self) -> (usize, usize) {
        self.sequences.held()
    }

    /// Ids a sequence holds.
    pub fn ids(&self, seq: SeqId) -> &[u32] {
        self.sequences.get(seq).map_or(&[], |s| &s.state)
    }
}

impl Script {
    /// Logits of the token at `position`, for a row that sees `context`.
    fn logits(&self, position: usize, context: u64) -> Vec<f32> {
        let favoured = (hash(self.seed, position as u64) % u64::from(ScriptedExecutor::VOCAB)) as u32;
        (0..ScriptedExecutor::VOCAB)
            .map(|id| {
                let noise = (hash(context, id.into()) >> 40) as f32 / (1 << 24) as f32;
                4.0 * noise + if id == favoured { 3.0 } else { 0.0 }
            })
            .collect()
    }

    fn context(&self, ids: &[u32]) -> u64 {
        ids.iter().fold(self.seed, |h, &id| hash(h, id.into()))
    }

    fn run_step(&self, step: &Step<'_>, held: &[u32]) -> StepOutput {
        let ids = [held, step.commit].concat();
        let commit = self.score(&step.commit_score, |row| {
            let seen = held.len() + row + 1;
            self.logits(seen, self.context(&ids[..seen]))
        });
        let block = hash(self.context(step.preview), self.context(&ids));
        let foreseen = self.foresee(&ids, step.preview.len());
        let preview = self.score(&step.preview_score, |row| match foreseen.get(row) {
            Some(&token) => certain(token),
            None => self.logits(ids.len() + row, hash(block, row as u64)),
        });
        StepOutput { commit, preview }
    }

    /// What the rows of a preview behind `ids` propose with an [agreement](ScriptedExecutor::with_agreement).
    fn foresee(&self, ids: &[u32], rows: usize) -> Vec<u32> {
        let Some(agreement) = self.agreement else { return Vec::new() };
        let mut ids = ids.to_vec();
        let right = |chance: u64| (chance >> 11) as f64 / ((1u64 << 53) as f64) < agreement;
        let row = |row| {
            let context = self.context(&ids);
            let logits = self.logits(ids.len(), context);
            let next = Pick::from_logits(&logits[..ScriptedExecutor::MASK as usize], None).token;
            ids.push(next);
            let chance = hash(hash(context, 0xa9ee), row as u64);
            if right(chance) { next } else { (next + 1) % ScriptedExecutor::MASK }
        };
        (0..rows).map(row).collect()
    }

    fn score(&self, score: &Score<'_>, logits: impl Fn(usize) -> Vec<f32>) -> Scored {
        match score {
            Score::None => Scored::None,
            Score::Logits { rows } => Scored::Logits {
                values: rows.iter().flat_map(|&row| logits(row)).collect(),
                vocab: ScriptedExecutor::VOCAB as usize,
            },
            Score::Picks { rows, shaping, probes } => {
                let pick = |(i, &row): (usize, &usize)| {
                    let mut shaped = logits(row);
                    shaping.apply(row, &mut shaped);
                    Pick::from_logits(&shaped, probes.get(i).copied())
                };
                Scored::Picks(rows.iter().enumerate().map(pick).collect())
            }
        }
    }
}

/// Logits with most of the mass on one token.
fn certain(token: u32) -> Vec<f32> {
    (0..ScriptedExecutor::VOCAB).map(|id| if id == token { 6.0 } else { 0.0 }).collect()
}

/// Stirs two numbers into one.
fn hash(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e59b_d9b4_e019);
    let x = (x ^ (x >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

impl Executor for ScriptedExecutor {
    fn backend(&self) -> &'static str {
        "scripted"
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn limits(&self) -> Limits {
        self.sequences.limits()
    }

    fn open(&mut self) -> Result<SeqId> {
        self.sequences.open(|| Ok(Vec::new()))
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.sequences.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        self.sequences.run(&self.config, steps, |sequences| {
            let fails = self.fails_at == Some(self.passes);
            self.passes += 1;
            let mut pass = Pass::default();
            for step in steps {
                let ids = &mut sequences.get_mut(step.seq)?.state;
                pass.outputs.push(self.script.run_step(step, ids));
                pass.stats.weight_bytes += (step.commit.len() + step.preview.len()) as u64;
                ids.extend_from_slice(step.commit);
            }
            if fails {
                return Err(Error::Device { backend: "scripted", problem: "failed as told".into() });
            }
            let rows = |part: fn(&Step<'_>) -> usize| steps.iter().map(part).sum();
            let shape = (rows(|step| step.commit.len()), rows(|step| step.preview.len()));
            let before = self.shapes.entry(shape).or_insert(0);
            let cold = *before < self.cold_passes;
            *before += 1;
            let device = (self.clock)(shape.0, shape.1) * if cold { 3 } else { 1 };
            pass.stats = PassStats { device, distinct_experts: 1, cold, ..pass.stats };
            Ok(pass)
        })
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        self.sequences.rewind(seq, len, |ids, (), cut| {
            ids.truncate(cut.len);
            Ok(())
        })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        self.sequences.snapshot(seq, |ids, _| Ok(ids.clone()))
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        self.sequences.restore(snapshot, into, |from, _, to| {
            to.clone_from(from);
            Ok(())
        })
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.sequences.release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        self.sequences.export(seq, |ids, _| {
            let ids: Vec<f32> = ids.iter().map(|&id| id as f32).collect();
            Ok(vec![LayerState::Kv { k: ids.clone(), v: ids }])
        })
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        self.sequences.import(&self.config, seq, state, |ids| {
            let LayerState::Kv { k, .. } = &state.layers[0] else {
                return Err(Error::State("layer 0 is not the script's".into()));
            };
            *ids = k.iter().map(|&id| id as u32).collect();
            Ok(())
        })
    }
}
