//! What every API can ask of a generation, and its check against the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use shamrock_generate::{Grammar, Mode, Options, Rule};
use shamrock_text::{ToolFormat, Tools};
use utoipa::ToSchema;

use crate::api::App;
use crate::api::error::{ApiError, Result};
use crate::random::random;

/// Most stop strings of a request, and most bytes of one.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

/// Most answers of one request.
const MAX_CHOICES: usize = 16;

/// Most biased tokens of a request, and the greatest bias.
const MAX_BIASED: usize = 1024;
const MAX_BIAS: f32 = 100.0;

/// Most alternatives to be told with a token.
const MAX_TOP_LOGPROBS: usize = 20;

/// Options of block diffusion, which no other API has.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct Extension {
    /// `denoise`, `draft`, `causal` or `auto`.
    #[schema(value_type = Option<String>)]
    pub(crate) mode: Option<Mode>,
    /// Confidence that a row of a block must exceed to be fixed, 0 to 1; in mode `denoise`.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) threshold: Option<f32>,
    /// Instead of a threshold another rule for fixing rows, as `NAME:number,number`.
    pub(crate) rule: Option<String>,
    /// Rows of a denoised block, 1 to 256; in mode `denoise`.
    #[schema(minimum = 1, maximum = 256)]
    pub(crate) block_size: Option<usize>,
    /// Rows of a draft with its pending token, 2 to 256; in modes `draft` and `auto`.
    #[schema(minimum = 2, maximum = 256)]
    pub(crate) draft_width: Option<usize>,
    /// When a draft is kept: `exact` or, in mode `draft`, `typical`.
    pub(crate) accept: Option<String>,
    /// Stream an event for every pass.
    #[serde(default)]
    pub(crate) events: bool,
    /// Go on behind end-of-text tokens.
    #[serde(default)]
    pub(crate) ignore_eos: bool,
}

impl Extension {
    /// Refuses what a mode has no use for, and what contradicts itself.
    fn check(&self, mode: Mode) -> Result<()> {
        let given = [
            ("threshold", self.threshold.is_some()),
            ("rule", self.rule.is_some()),
            ("block_size", self.block_size.is_some()),
            ("draft_width", self.draft_width.is_some()),
            ("accept", self.accept.is_some()),
        ];
        let given = given.into_iter().filter(|(_, given)| *given).map(|(option, _)| option);
        mode.check_given(given).map_err(|error| ApiError::from(error).code("unsupported_value"))?;
        if self.rule.is_some() && self.threshold.is_some() {
            return Err(ApiError::field("shamrock.rule", "stands for a threshold; give one of the two"));
        }
        Ok(())
    }
}

/// One stop string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or a list of strings")]
pub(crate) enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Stop::One(stop) => vec![stop],
            Stop::Many(stops) => stops,
        }
    }
}

/// What an API calls the fields that not all call the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) max_tokens: &'static str,
    pub(crate) stop: &'static str,
    pub(crate) top_logprobs: &'static str,
}

/// What a request asks of a generation; `None` takes the server's default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<i64>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) stop: Vec<String>,
    pub(crate) n: Option<usize>,
    pub(crate) logprobs: bool,
    pub(crate) top_logprobs: Option<usize>,
    /// Token ids with what is added to their logits.
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    pub(crate) extension: Option<Extension>,
}

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    options: Options,
    /// What the answers are held to, and the field that asks for it.
    pub(crate) grammar: Option<(Arc<dyn Grammar>, &'static str)>,
    /// The form in which calls of these tools are to be found in the answers.
    pub(crate) calls: Option<(ToolFormat, Tools)>,
    pub(crate) stops: Vec<String>,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) logprobs: bool,
    pub(crate) top_logprobs: usize,
    pub(crate) events: bool,
}

impl Params {
    /// Fills in defaults and checks everything, with errors in the words of the API.
    pub(crate) fn resolve(self, app: &App, names: Names) -> Result<Plan> {
        let config = app.engine.config();
        let extension = self.extension.unwrap_or_default();
        let mut options = app.options.defaults.clone();
        options.mode = extension.mode.unwrap_or(options.mode);
        extension.check(options.mode)?;
        options.rule = extension.threshold.map(Rule::threshold).or(options.rule);
        if let Some(rule) = &extension.rule {
            options.rule = Some(rule.parse().map_err(ApiError::from)?);
        }
        options.block_size = extension.block_size.or(options.block_size);
        options.draft_width = extension.draft_width.or(options.draft_width);
        if let Some(accept) = &extension.accept {
            options.accept = accept.parse().map_err(ApiError::from)?;
        }
        options.ignore_eos |= extension.ignore_eos;
        options.max_tokens = self.max_tokens.unwrap_or(options.max_tokens);
        if options.max_tokens == 0 {
            return Err(ApiError::field(names.max_tokens, "must be at least 1"));
        }
        let sampling = &mut options.sampling;
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.min_p = self.min_p.unwrap_or(sampling.min_p);
        // Seeds may be negative; what counts is that equal ones are equal.
        sampling.seed = self.seed.map_or_else(random, |seed| seed as u64);
        let mut controls = options.controls.take().unwrap_or_else(|| config.controls.clone());
        for (asked, field) in [
            (self.presence_penalty, &mut controls.presence_penalty),
            (self.frequency_penalty, &mut controls.frequency_penalty),
            (self.repetition_penalty, &mut controls.repetition_penalty),
        ] {
            *field = asked.unwrap_or(*field);
        }
        options.controls = Some(controls);
        options.bias = self.logit_bias.map(bias).transpose()?.unwrap_or_default();
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        if top_logprobs > MAX_TOP_LOGPROBS {
            let problem = format!("{top_logprobs} is out of range 0..={MAX_TOP_LOGPROBS}");
            return Err(ApiError::field(names.top_logprobs, problem));
        }
        options.alternatives = top_logprobs;
        options.check(config)?;
        check_stops(&self.stop, names.stop)?;
        let n = self.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            return Err(ApiError::field("n", format!("{n} is out of range 1..={MAX_CHOICES}")));
        }
        Ok(Plan {
            options,
            grammar: None,
            calls: None,
            stops: self.stop,
            n,
            logprobs: self.logprobs,
            top_logprobs,
            events: extension.events,
        })
    }
}

impl Plan {
    /// Options of the answer number `choice` to one prompt: each draws its own numbers.
    pub(crate) fn options(&self, choice: usize) -> Options {
        let mut options = self.options.clone();
        options.sampling.seed = options.sampling.seed.wrapping_add(choice as u64);
        options
    }

    pub(crate) fn mode(&self) -> Mode {
        self.options.mode
    }

    pub(crate) fn temperature(&self) -> f32 {
        self.options.sampling.temperature
    }

    pub(crate) fn top_p(&self) -> f32 {
        self.options.sampling.top_p
    }
}

fn bias(given: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>> {
    if given.len() > MAX_BIASED {
        return Err(ApiError::field("logit_bias", format!("at most {MAX_BIASED} tokens are allowed")));
    }
    let entry = |(id, bias): (String, f32)| {
        let field = format!("logit_bias.{id}");
        // One spelling for each id, so that none is biased twice.
        let id = id.parse().ok().filter(|number: &u32| number.to_string() == id);
        let id = id.ok_or_else(|| ApiError::field(&field, "is no token id"))?;
        if bias.abs() > MAX_BIAS {
            return Err(ApiError::field(&field, format!("{bias} is out of range -{MAX_BIAS}..={MAX_BIAS}")));
        }
        Ok((id, bias))
    };
    given.into_iter().map(entry).collect()
}

fn check_stops(stops: &[String], field: &str) -> Result<()> {
    if stops.len() > MAX_STOPS {
        return Err(ApiError::field(field, format!("at most {MAX_STOPS} stop strings are allowed")));
    }
    for (i, stop) in stops.iter().enumerate() {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            let problem = format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes");
            return Err(ApiError::field(format!("{field}[{i}]"), problem));
        }
    }
    Ok(())
}

/// A request with the fields that chat and text completions have in common. (`#[serde(flatten)]` would do,
/// but for errors that no longer name the field.)
macro_rules! with_common_fields {
    ($(#[$meta:meta])* pub(crate) struct $name:ident { $($(#[$of:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        pub(crate) struct $name {
            $($(#[$of])* $field: $kind,)*
            /// Name of the served model, or nothing.
            model: Option<String>,
            /// Reply as server-sent events.
            stream: Option<bool>,
            stream_options: Option<StreamOptions>,
            #[schema(minimum = 0)]
            temperature: Option<f32>,
            #[schema(minimum = 0, maximum = 1)]
            top_p: Option<f32>,
            /// Most candidates of a draw; 0 sets no limit.
            top_k: Option<usize>,
            /// Drop candidates less likely than this share of the likeliest.
            #[schema(minimum = 0, maximum = 1)]
            min_p: Option<f32>,
            seed: Option<i64>,
            presence_penalty: Option<f32>,
            frequency_penalty: Option<f32>,
            /// Divides positive and multiplies negative logits of tokens already in the answer.
            repetition_penalty: Option<f32>,
            stop: Option<Stop>,
            /// Answers to give to each prompt.
            #[schema(minimum = 1, maximum = 16)]
            n: Option<usize>,
            /// Added to the logits of token ids, -100 to 100.
            #[schema(value_type = Option<BTreeMap<String, f32>>)]
            logit_bias: Option<BTreeMap<String, f32>>,
            /// Options of block diffusion.
            shamrock: Option<Extension>,
            #[serde(flatten)]
            #[schema(ignore)]
            rest: Map<String, Value>,
        }

        impl $name {
            /// What the common fields ask of a generation.
            fn common(&mut self) -> Params {
                Params {
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    seed: self.seed,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    repetition_penalty: self.repetition_penalty,
                    stop: self.stop.take().map(Stop::into_vec).unwrap_or_default(),
                    n: self.n,
                    logit_bias: self.logit_bias.take(),
                    extension: self.shamrock.take(),
                    ..Params::default()
                }
            }
        }
    };
}
pub(crate) use with_common_fields;
