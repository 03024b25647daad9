//! A backend under test, and how its results are compared.

use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Config, Executor, LayerState, ModelFile, Result, SequenceState};

/// How far two results may lie apart, absolute; zero means equal numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Logits.
    pub logits: f32,
    /// Keys and values.
    pub kv: f32,
    /// Ring and memory of a Gated DeltaNet layer.
    pub gdn: f32,
}

impl Tolerance {
    /// Equal numbers.
    pub const EXACT: Tolerance = Tolerance { logits: 0.0, kv: 0.0, gdn: 0.0 };

    /// What `fixtures/README.md` allows an engine that computes in f32: the oracle's own float32 run
    /// is off by up to 1.5e-4 on logits, 3.3e-5 on keys and values and 2.1e-6 on the memory.
    pub const ORACLE: Tolerance = Tolerance { logits: 1e-3, kv: 1e-4, gdn: 1e-5 };

    /// Of probabilities: an error of `e` in every logit moves `p` by at most `2e·p(1−p) ≤ e/2`.
    pub fn probability(self) -> f32 {
        self.logits / 2.0
    }

    /// Whether two states of one model agree; says where they do not.
    ///
    /// # Errors
    /// The layer, part and place of the worst difference.
    pub fn compare_states(
        self,
        config: &Config,
        got: &SequenceState,
        want: &SequenceState,
    ) -> std::result::Result<(), String> {
        if (got.len, got.layers.len()) != (want.len, want.layers.len()) {
            let (g, w) = ((got.len, got.layers.len()), (want.len, want.layers.len()));
            return Err(format!("{g:?} rows and layers, expected {w:?}"));
        }
        let (kv, channels) = (config.attention.kv_width(), config.gdn.channels());
        for (i, layers) in got.layers.iter().zip(&want.layers).enumerate() {
            let parts = match layers {
                (LayerState::Kv { k, v }, LayerState::Kv { k: k2, v: v2 }) => {
                    [("keys", k, k2, kv, self.kv), ("values", v, v2, kv, self.kv)]
                }
                (LayerState::Gdn { ring, memory }, LayerState::Gdn { ring: ring2, memory: memory2 }) => [
                    ("ring", ring, ring2, channels, self.gdn),
                    ("memory", memory, memory2, config.gdn.value_dim, self.gdn),
                ],
                _ => return Err(format!("layer {i} is of another kind")),
            };
            for (part, got, want, width, tolerance) in parts {
                compare(got, want, Some(width), tolerance)
                    .map_err(|e| format!("{part} of layer {i}: {e}"))?;
            }
        }
        Ok(())
    }
}

type Open = dyn Fn(ModelFile, Option<usize>) -> Result<Box<dyn Executor>>;

/// A backend under test.
pub struct Backend {
    /// Stands in front of every complaint.
    pub name: String,
    /// Between passes of one executor that should give the same numbers ([`laws`](crate::laws)).
    pub laws: Tolerance,
    /// Between an executor and the oracle ([`conformance`](crate::conformance)).
    pub oracle: Tolerance,
    open: Box<Open>,
}

impl Backend {
    /// A backend that opens a model, with a limit on the context if one is given, by `open`. It is
    /// held to [`Tolerance::EXACT`] between its own passes and to [`Tolerance::ORACLE`] otherwise.
    pub fn new<E: Executor + 'static>(
        name: impl Into<String>,
        open: impl Fn(ModelFile, Option<usize>) -> Result<E> + 'static,
    ) -> Self {
        Backend {
            name: name.into(),
            laws: Tolerance::EXACT,
            oracle: Tolerance::ORACLE,
            open: Box::new(move |model, max_context| Ok(Box::new(open(model, max_context)?))),
        }
    }

    /// The reference executor.
    pub fn reference() -> Self {
        Backend::new("reference", |model, max_context| {
            ReferenceExecutor::new(model, ReferenceOptions { max_context, ..ReferenceOptions::DEFAULT })
        })
    }

    /// With another tolerance between its own passes: for a device whose sums depend on what shares
    /// a pass.
    pub fn laws(self, laws: Tolerance) -> Self {
        Backend { laws, ..self }
    }

    /// With another tolerance against the oracle.
    pub fn oracle(self, oracle: Tolerance) -> Self {
        Backend { oracle, ..self }
    }

    /// An executor over `model`.
    pub fn open(&self, model: &ModelFile, max_context: Option<usize>) -> Box<dyn Executor> {
        (self.open)(model.clone(), max_context).unwrap_or_else(|e| {
            panic!("{}: cannot open {}: {e}", self.name, model.container().path().display())
        })
    }
}

/// Whether `got` has the expected size and is within `tolerance` of it everywhere.
///
/// # Errors
/// Both numbers and the place (row and column, if rows have a `width`) of the worst difference.
pub fn compare(
    got: &[f32],
    want: &[f32],
    width: Option<usize>,
    tolerance: f32,
) -> std::result::Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} values, expected {}", got.len(), want.len()));
    }
    let differences = got.iter().zip(want).map(|(g, w)| if g == w { 0.0 } else { (g - w).abs() });
    // `total_cmp` puts NaN last, so a NaN is the worst value.
    let Some((at, off)) = differences.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)) else { return Ok(()) };
    if off <= tolerance {
        return Ok(());
    }
    let place = match width {
        Some(width) => format!("row {}, column {}", at / width, at % width),
        None => format!("{at}"),
    };
    Err(format!("{} at {place}, expected {} (off by {off:e}, allowed {tolerance:e})", got[at], want[at]))
}
