//! How the values of each tensor are distributed.
//!
//! Gains keep a random model well-behaved: every layer moves the residual stream by an amount of
//! order one, logits have a standard deviation of about five, attention is neither uniform nor
//! one-hot, and memories fade over tens of rows.

use crate::plan::{FamilyTensor, TensorKind};

/// A distribution of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Init {
    /// Normal values. Rows are scaled by `exp(row_spread · z)`, z normal.
    Normal { mean: f64, std: f64, row_spread: f64 },
    /// Evenly distributed values.
    Uniform { low: f64, high: f64 },
    /// Logarithms of evenly distributed values.
    LogUniform { low: f64, high: f64 },
}

impl Init {
    fn normal(mean: f64, std: f64) -> Init {
        Init::Normal { mean, std, row_spread: 0.0 }
    }
}

/// The distribution of a tensor.
pub(super) fn of(tensor: &FamilyTensor, tied: bool) -> Init {
    use TensorKind::*;
    let fan_in = tensor.shape.last().copied().unwrap_or(1) as f64;
    // A projection that multiplies the size of its input by about `gain`.
    let projection = |gain: f64| Init::normal(0.0, gain / fan_in.sqrt());
    match tensor.kind {
        // A tied embedding is the head too and must have a head's size.
        Embedding if tied => projection(5.0),
        Embedding => Init::normal(0.0, 1.0),
        Head => projection(5.0),
        // These are stored as w of (1 + w).
        FinalNorm | InputNorm | PostAttentionNorm => Init::normal(0.0, 0.1),
        QNorm => Init::normal(1.0, 0.1),
        KNorm => Init::normal(0.8, 0.1),
        QProj | KProj | InProjA | InProjB => projection(1.0),
        VProj => projection(1.5),
        OProj => projection(4.0),
        InProjQkv | InProjZ => projection(1.2),
        OutProj => projection(1.6),
        Conv1d => Init::normal(0.0, 0.6),
        ConvRight => Init::normal(0.0, 0.5),
        ALog => Init::LogUniform { low: 0.03, high: 0.9 },
        DtBias => Init::normal(0.0, 0.5),
        GatedNorm => Init::normal(1.0, 0.1),
        LogitScale => Init::Uniform { low: 3.0, high: 9.0 },
        HistoryBias => Init::Uniform { low: 1.0, high: 5.0 },
        HistoryC => Init::Uniform { low: -1.0, high: 1.0 },
        // Longer rows win more often: some experts are preferred, none is certain.
        Router => Init::Normal { mean: 0.0, std: 1.8 / fan_in.sqrt(), row_spread: 0.25 },
        ExpertGate | ExpertUp => projection(1.4),
        ExpertDown => projection(1.6),
        SharedGate | SharedUp | SharedDown => projection(1.3),
        SharedExpertGate => projection(1.5),
    }
}
