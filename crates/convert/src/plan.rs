//! The tensors of the family: one table for import, re-encoding and synthesis.

use shamrock_model::{Config, LayerKind};

use crate::error::{Error, Result};

/// More tensors than any model of the family has; a configuration that calls for more is wrong.
const MAX_TENSORS: usize = 1 << 22;

/// What decides a tensor's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A matrix of a routed or shared expert: most of the bytes.
    Expert,
    /// Another large matrix: projections, embedding, head.
    Dense,
    /// Routers, gates, convolution taps and vectors: few bytes, f16.
    Small,
    /// What the block operator adds: few bytes, kept in f32.
    Exact,
}

/// What a tensor is in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are those of the checkpoint's tensors.
pub enum TensorKind {
    Embedding,
    Head,
    FinalNorm,
    InputNorm,
    PostAttentionNorm,
    QProj,
    KProj,
    VProj,
    OProj,
    QNorm,
    KNorm,
    InProjQkv,
    InProjZ,
    InProjA,
    InProjB,
    Conv1d,
    ALog,
    DtBias,
    GatedNorm,
    OutProj,
    ConvRight,
    LogitScale,
    HistoryBias,
    HistoryC,
    Router,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedExpertGate,
}

impl TensorKind {
    /// The part this kind plays in a [`Recipe`](crate::Recipe).
    pub fn role(self) -> Role {
        use TensorKind::*;
        match self {
            ExpertGate | ExpertUp | ExpertDown | SharedGate | SharedUp | SharedDown => Role::Expert,
            Embedding | Head | QProj | KProj | VProj | OProj | InProjQkv | InProjZ | OutProj => Role::Dense,
            ConvRight | LogitScale | HistoryBias | HistoryC => Role::Exact,
            FinalNorm | InputNorm | PostAttentionNorm | QNorm | KNorm | InProjA | InProjB | Conv1d | ALog
            | DtBias | GatedNorm | Router | SharedExpertGate => Role::Small,
        }
    }

    /// Whether a checkpoint may fold the values into other dimensions: true for vectors and taps,
    /// whose number of values alone identifies them, false for matrices.
    pub fn any_shape(self) -> bool {
        use TensorKind::*;
        matches!(self, Conv1d | ALog | DtBias | GatedNorm | ConvRight | LogitScale | HistoryBias | HistoryC)
    }
}

/// A tensor that a configuration calls for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyTensor {
    /// Name in a CMF file, and in a checkpoint after its prefix is normalised.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: TensorKind,
    /// Where else a checkpoint may have it.
    pub packed: Option<Packed>,
}

/// A run of rows of a stacked expert tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Name of the stacked tensor.
    pub name: String,
    /// Its shape: experts, rows of one expert, columns.
    pub shape: [usize; 3],
    /// First row, experts and rows folded.
    pub first_row: usize,
}

/// All tensors that `config` calls for, in the order in which files store them: the order of
/// execution, and the three matrices of an expert side by side.
///
/// The names and shapes are those that [`shamrock_model::Weights::bind`] asks for.
///
/// # Errors
/// [`Error::TooManyTensors`], before anything of that size is allocated.
pub fn family_tensors(config: &Config) -> Result<Vec<FamilyTensor>> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    // A layer has at most 20 tensors beside those of its experts.
    let count = config.layers.len().saturating_mul(3 * config.moe.experts + 20);
    if count > MAX_TENSORS {
        return Err(Error::TooManyTensors { count, limit: MAX_TENSORS });
    }
    let mut table = Table { config, tensors: Vec::new() };
    table.put("model.embed_tokens.weight", &[vocab, hidden], TensorKind::Embedding);
    for (i, kind) in config.layers.iter().enumerate() {
        table.layer(&format!("model.layers.{i}"), *kind);
    }
    table.put("model.norm.weight", &[hidden], TensorKind::FinalNorm);
    if !config.tie_embeddings {
        table.put("lm_head.weight", &[vocab, hidden], TensorKind::Head);
    }
    Ok(table.tensors)
}

struct Table<'a> {
    config: &'a Config,
    tensors: Vec<FamilyTensor>,
}

impl Table<'_> {
    fn put(&mut self, name: impl Into<String>, shape: &[usize], kind: TensorKind) {
        self.tensors.push(FamilyTensor { name: name.into(), shape: shape.to_vec(), kind, packed: None });
    }

    fn layer(&mut self, p: &str, kind: LayerKind) {
        let hidden = self.config.hidden_size;
        self.put(format!("{p}.input_layernorm.weight"), &[hidden], TensorKind::InputNorm);
        match kind {
            LayerKind::Full => self.attention(&format!("{p}.self_attn")),
            LayerKind::Linear => self.gdn(&format!("{p}.linear_attn")),
        }
        self.put(format!("{p}.post_attention_layernorm.weight"), &[hidden], TensorKind::PostAttentionNorm);
        self.moe(&format!("{p}.mlp"));
    }

    fn attention(&mut self, p: &str) {
        let (hidden, a) = (self.config.hidden_size, &self.config.attention);
        self.put(format!("{p}.q_proj.weight"), &[2 * a.q_width(), hidden], TensorKind::QProj);
        self.put(format!("{p}.k_proj.weight"), &[a.kv_width(), hidden], TensorKind::KProj);
        self.put(format!("{p}.v_proj.weight"), &[a.kv_width(), hidden], TensorKind::VProj);
        self.put(format!("{p}.o_proj.weight"), &[hidden, a.q_width()], TensorKind::OProj);
        self.put(format!("{p}.q_norm.weight"), &[a.head_dim], TensorKind::QNorm);
        self.put(format!("{p}.k_norm.weight"), &[a.head_dim], TensorKind::KNorm);
    }

    fn gdn(&mut self, p: &str) {
        let (hidden, g) = (self.config.hidden_size, &self.config.gdn);
        let (channels, heads) = (g.channels(), g.value_heads);
        self.put(format!("{p}.in_proj_qkv.weight"), &[channels, hidden], TensorKind::InProjQkv);
        self.put(format!("{p}.in_proj_z.weight"), &[g.value_width(), hidden], TensorKind::InProjZ);
        self.put(format!("{p}.in_proj_a.weight"), &[heads, hidden], TensorKind::InProjA);
        self.put(format!("{p}.in_proj_b.weight"), &[heads, hidden], TensorKind::InProjB);
        self.put(format!("{p}.conv1d.weight"), &[channels, 1, g.conv_kernel], TensorKind::Conv1d);
        self.put(format!("{p}.A_log"), &[heads], TensorKind::ALog);
        self.put(format!("{p}.dt_bias"), &[heads], TensorKind::DtBias);
        self.put(format!("{p}.norm.weight"), &[g.value_dim], TensorKind::GatedNorm);
        self.put(format!("{p}.out_proj.weight"), &[hidden, g.value_width()], TensorKind::OutProj);
        if self.config.block.is_some() {
            let taps = [channels, g.ring_rows()];
            self.put(format!("{p}.conv_right_weight"), &taps, TensorKind::ConvRight);
            self.put(format!("{p}.bd_softmax_logit_scale"), &[heads], TensorKind::LogitScale);
            self.put(format!("{p}.bd_softmax_history_bias"), &[heads], TensorKind::HistoryBias);
            self.put(format!("{p}.bd_softmax_history_c"), &[heads], TensorKind::HistoryC);
        }
    }

    fn moe(&mut self, p: &str) {
        let (hidden, m) = (self.config.hidden_size, &self.config.moe);
        let (width, shared) = (m.expert_width, m.shared_width);
        self.put(format!("{p}.gate.weight"), &[m.experts, hidden], TensorKind::Router);
        self.put(format!("{p}.shared_expert_gate.weight"), &[1, hidden], TensorKind::SharedExpertGate);
        let s = format!("{p}.shared_expert");
        self.put(format!("{s}.gate_proj.weight"), &[shared, hidden], TensorKind::SharedGate);
        self.put(format!("{s}.up_proj.weight"), &[shared, hidden], TensorKind::SharedUp);
        self.put(format!("{s}.down_proj.weight"), &[hidden, shared], TensorKind::SharedDown);
        for e in 0..m.experts {
            let gate_up = [m.experts, 2 * width, hidden];
            let down = [m.experts, hidden, width];
            let mut put = |part: &str, stack: &str, shape: [usize; 3], first_row, rows, kind| {
                let name = format!("{p}.experts.{stack}");
                self.tensors.push(FamilyTensor {
                    name: format!("{p}.experts.{e}.{part}.weight"),
                    shape: vec![rows, shape[2]],
                    kind,
                    packed: Some(Packed { name, shape, first_row }),
                });
            };
            let first = e * 2 * width;
            put("gate_proj", "gate_up_proj", gate_up, first, width, TensorKind::ExpertGate);
            put("up_proj", "gate_up_proj", gate_up, first + width, width, TensorKind::ExpertUp);
            put("down_proj", "down_proj", down, e * hidden, hidden, TensorKind::ExpertDown);
        }
    }
}
