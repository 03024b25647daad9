//! What a caller can ask of an answer, and its check against a model.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shamrock_model::{Config, Controls};

use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::rule::Rule;
use crate::sampling::Sampling;
use crate::savings::Savings;

/// How an answer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// LowConfidence denoising, block by block.
    Denoise,
    /// Self-speculation: a preview proposes, a causal pass verifies.
    Draft,
    /// One token a pass.
    Causal,
    /// Exact drafting or causal decoding, chosen before every pass from what passes cost and drafts
    /// gain: the text of [`Mode::Causal`] at the speed of the better of the two.
    Auto,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Denoise, Mode::Draft, Mode::Causal, Mode::Auto];

    /// The mode a model was trained for: denoise with a block record, causal without.
    pub fn default_for(config: &Config) -> Mode {
        if config.block.is_some() { Mode::Denoise } else { Mode::Causal }
    }

    /// Name as options and traces spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Denoise => "denoise",
            Mode::Draft => "draft",
            Mode::Causal => "causal",
            Mode::Auto => "auto",
        }
    }

    /// Refuses what somebody set, fields of [`Options`] by name, and this mode has no use for.
    ///
    /// # Errors
    /// [`Error::Option`] naming the first such option.
    pub fn check_given(self, options: impl IntoIterator<Item = &'static str>) -> Result<()> {
        let heeds = |option: &str| match option {
            "threshold" | "rule" | "block_size" => self == Mode::Denoise,
            "draft_width" | "accept" => matches!(self, Mode::Draft | Mode::Auto),
            "ahead" => self == Mode::Draft,
            _ => true,
        };
        match options.into_iter().find(|option| !heeds(option)) {
            None => Ok(()),
            Some(option) => Err(invalid(option, format!("has no meaning in mode {self}"))),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Mode> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.as_str() == name)
            .ok_or_else(|| invalid("mode", format!("{name:?} is none of denoise, draft, causal, auto")))
    }
}

/// When a verifying row keeps a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accept {
    /// When causal decoding would have chosen it: the text equals that of [`Mode::Causal`], sampled
    /// or not. Penalty counts follow the drafts inside a round, as causal decoding's do.
    #[default]
    Exact,
    /// When its probability `p` reaches `min(ratio, delta * exp(-entropy))` of its shaped row, the
    /// specification's own rule. Penalty counts are frozen for a round.
    Typical {
        /// Probability that always suffices.
        ratio: f32,
        /// Share of the row's typical probability that suffices.
        delta: f32,
    },
}

impl Accept {
    /// How options spell the rules.
    pub const NAMES: [&str; 2] = ["exact", "typical"];

    /// The specification's numbers.
    pub const TYPICAL: Accept = Accept::Typical { ratio: 0.9, delta: 0.6 };
}

impl FromStr for Accept {
    type Err = Error;

    fn from_str(name: &str) -> Result<Accept> {
        match name {
            "exact" => Ok(Accept::Exact),
            "typical" => Ok(Accept::TYPICAL),
            _ => Err(invalid("accept", format!("{name:?} is none of exact, typical"))),
        }
    }
}

/// What is asked of one answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How the answer is made.
    pub mode: Mode,
    /// Most tokens to emit; 0 only commits the prompt.
    pub max_tokens: usize,
    /// Which rows of a block a pass fixes; `None` takes the model's threshold.
    pub rule: Option<Rule>,
    /// Rows of a denoised block, 1..=256; `None` takes the model's. Need not divide the model's.
    pub block_size: Option<usize>,
    /// Rows of a draft, 2..=256: the most that one pass verifies. `None` takes 16 or the block size
    /// if less.
    pub draft_width: Option<usize>,
    /// In [`Mode::Draft`] with [`Accept::Exact`]: a pass that verifies drafts also previews what
    /// follows them, which saves a pass if all of them hold and is for nothing if not.
    /// [`Mode::Auto`] decides this for each pass.
    pub ahead: bool,
    /// When a draft is kept.
    pub accept: Accept,
    /// How a token is chosen from a row.
    pub sampling: Sampling,
    /// Penalties, ramps and stop ids; `None` takes the model's.
    pub controls: Option<Controls>,
    /// Ids never to emit; the mask token always is one.
    pub suppress: Vec<u32>,
    /// Added to the logits of ids after everything that shapes a row: `(id, bias)`.
    pub bias: Vec<(u32, f32)>,
    /// The likeliest tokens of a row to be told with every token, at most
    /// [`MAX_ALTERNATIVES`](Options::MAX_ALTERNATIVES).
    pub alternatives: usize,
    /// What the answer is held to.
    pub constraint: Option<Constraint>,
    /// Emit stop ids like any other token. The ramp on them stays.
    pub ignore_eos: bool,
    /// Which work is left out because it cannot change the answer.
    pub savings: Savings,
    /// Most prompt rows of one pass, at least 1; the executor's limit holds too, and its choice
    /// ([`Limits::chunk_rows`](shamrock_model::Limits)) where this is `None`. Smaller chunks let an answer be
    /// cancelled sooner.
    pub chunk_rows: Option<usize>,
    /// Lengths of the prompt at which the session keeps a checkpoint besides the one after it, for
    /// later prompts that share so many tokens and no more: a chat template may drop the opening of
    /// the answer. In any order; those outside of the prompt are ignored.
    pub checkpoints: Vec<usize>,
}

impl Options {
    /// Most [`alternatives`](Options::alternatives).
    pub const MAX_ALTERNATIVES: usize = 64;

    /// A mode's defaults: greedy, no token limit but the context.
    pub fn new(mode: Mode) -> Options {
        Options {
            mode,
            max_tokens: usize::MAX,
            rule: None,
            block_size: None,
            draft_width: None,
            ahead: false,
            accept: Accept::default(),
            sampling: Sampling::GREEDY,
            controls: None,
            suppress: Vec::new(),
            bias: Vec::new(),
            alternatives: 0,
            constraint: None,
            ignore_eos: false,
            savings: Savings::ALL,
            chunk_rows: None,
            checkpoints: Vec::new(),
        }
    }

    /// Defaults in the mode a model was trained for.
    pub fn for_model(config: &Config) -> Options {
        Options::new(Mode::default_for(config))
    }

    /// Checks the options against a model, as [`Session::start`](crate::Session::start) does too.
    ///
    /// # Errors
    /// [`Error::Option`] naming the option, or [`Error::NotBlockDiffusion`].
    pub fn check(&self, config: &Config) -> Result<()> {
        Settings::resolve(self, config).map(drop)
    }
}

/// Options with every default of the model filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) max_tokens: usize,
    pub(crate) rule: Rule,
    /// Of a denoised block.
    pub(crate) block_size: usize,
    pub(crate) draft_width: usize,
    pub(crate) ahead: bool,
    /// Stands in unresolved rows; meaningless in causal mode on a plain trunk.
    pub(crate) mask: u32,
    pub(crate) accept: Accept,
    pub(crate) sampling: Sampling,
    pub(crate) controls: Controls,
    /// Suppressed ids and the mask.
    pub(crate) forbidden: Vec<u32>,
    pub(crate) bias: Vec<(u32, f32)>,
    pub(crate) alternatives: usize,
    pub(crate) constrained: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) savings: Savings,
    pub(crate) chunk_rows: Option<usize>,
}

impl Settings {
    pub(crate) fn resolve(options: &Options, config: &Config) -> Result<Settings> {
        let block = config.block.as_ref();
        let mode = match options.mode {
            // Without drafts to choose from only decoding is left.
            Mode::Auto if block.is_none() => Mode::Causal,
            mode if block.is_none() && mode != Mode::Causal => return Err(Error::NotBlockDiffusion(mode)),
            mode => mode,
        };
        let trained = block.map_or(1, |b| b.block_size);
        let settings = Settings {
            mode,
            max_tokens: options.max_tokens,
            rule: options.rule.clone().unwrap_or(Rule::threshold(block.map_or(1.0, |b| b.threshold))),
            block_size: options.block_size.unwrap_or(trained),
            draft_width: options.draft_width.unwrap_or(trained.clamp(2, 16)),
            ahead: options.ahead,
            mask: block.map_or(0, |b| b.mask_id),
            accept: options.accept,
            sampling: options.sampling,
            controls: options.controls.as_ref().unwrap_or(&config.controls).clone(),
            forbidden: block.map(|b| b.mask_id).into_iter().chain(options.suppress.iter().copied()).collect(),
            bias: options.bias.clone(),
            alternatives: options.alternatives,
            constrained: options.constraint.is_some(),
            ignore_eos: options.ignore_eos,
            savings: options.savings,
            chunk_rows: options.chunk_rows,
        };
        settings.check()?;
        settings.check_ids(config.vocab_size)?;
        Ok(settings)
    }

    fn check(&self) -> Result<()> {
        count("block_size", self.block_size, 1, 256)?;
        count("draft_width", self.draft_width, 2, 256)?;
        count("chunk_rows", self.chunk_rows.unwrap_or(1), 1, usize::MAX)?;
        count("alternatives", self.alternatives, 0, Options::MAX_ALTERNATIVES)?;
        self.rule.check()?;
        if self.mode == Mode::Auto && self.accept != Accept::Exact {
            return Err(invalid("accept", "mode auto keeps exactly the text of causal decoding".into()));
        }
        if let Accept::Typical { ratio, delta } = self.accept {
            number("accept.ratio", ratio, 0.0, 1.0)?;
            number("accept.delta", delta, 0.0, f32::MAX)?;
        }
        let s = &self.sampling;
        number("temperature", s.temperature, 0.0, f32::MAX)?;
        number("top_p", s.top_p, 0.0, 1.0)?;
        number("min_p", s.min_p, 0.0, 1.0)?;
        let c = &self.controls;
        number("presence_penalty", c.presence_penalty, f32::MIN, f32::MAX)?;
        number("frequency_penalty", c.frequency_penalty, f32::MIN, f32::MAX)?;
        number("repetition_penalty", c.repetition_penalty, f32::MIN_POSITIVE, f32::MAX)?;
        number("length_ramp", c.length_ramp.strength, f32::MIN, f32::MAX)?;
        number("think_end_ramp", c.think_end_ramp.strength, f32::MIN, f32::MAX)
    }

    fn check_ids(&self, vocab: usize) -> Result<()> {
        for &(id, bias) in &self.bias {
            if id as usize >= vocab {
                return Err(invalid("logit_bias", format!("id {id} is outside the vocabulary of {vocab}")));
            }
            number("logit_bias", bias, f32::MIN, f32::MAX)?;
        }
        if self.constrained && self.ignore_eos {
            return Err(invalid("ignore_eos", "an answer that is held to a grammar must end with it".into()));
        }
        if self.constrained && !self.controls.stop_ids.iter().any(|&id| (id as usize) < vocab) {
            return Err(invalid("constraint", "the model has no stop id that could end the answer".into()));
        }
        Ok(())
    }

    /// Whether an id ends the answer.
    pub(crate) fn stops(&self, id: u32) -> bool {
        !self.ignore_eos && self.controls.stop_ids.contains(&id)
    }

    /// Whether rows are always shaped and chosen from their logits.
    pub(crate) fn chooses_here(&self) -> bool {
        !self.sampling.is_greedy() || self.alternatives > 0 || self.edits()
    }

    /// Whether logits are changed in ways that executors know nothing of.
    pub(crate) fn edits(&self) -> bool {
        !self.bias.is_empty() || self.constrained
    }

    /// Whether the ids of the response change later logits.
    pub(crate) fn penalises(&self) -> bool {
        let c = &self.controls;
        c.presence_penalty != 0.0 || c.frequency_penalty != 0.0 || c.repetition_penalty != 1.0
    }
}

fn invalid(option: &'static str, problem: String) -> Error {
    Error::Option { option, problem }
}

fn count(option: &'static str, value: usize, low: usize, high: usize) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else if high == usize::MAX {
        Err(invalid(option, format!("{value} must be at least {low}")))
    } else {
        Err(invalid(option, format!("{value} is out of range {low}..={high}")))
    }
}

fn number(option: &'static str, value: f32, low: f32, high: f32) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(invalid(
        option,
        match (low, high) {
            (f32::MIN, f32::MAX) => format!("{value} is not a finite number"),
            (f32::MIN_POSITIVE, f32::MAX) => format!("{value} must be positive"),
            (_, f32::MAX) => format!("{value} must be a finite number of at least {low}"),
            _ => format!("{value} is out of range {low}..={high}"),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        assert_eq!(
            "Denoise".parse::<Mode>().unwrap_err().to_string(),
            "option mode: \"Denoise\" is none of denoise, draft, causal, auto"
        );
        assert_eq!("typical".parse::<Accept>().unwrap(), Accept::Typical { ratio: 0.9, delta: 0.6 });
    }
}
