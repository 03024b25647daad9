//! Answers held to a grammar, biased, and with alternatives, over a script that knows of none of it.

use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{
    Alternative, Constraint, Event, Finish, Grammar, Matcher, Mode, Options, Outcome, Sampling, Savings,
    Session,
};
use shamrock_model::Controls;

use crate::support::{assert_same, cold, controls, options, prompts, rules, samplings, savings};

const OPEN: u32 = 10;
const CLOSE: u32 = 11;
/// Comes before `PARTNER` only, and only it comes there.
const FIRST: u32 = 19;
const PARTNER: u32 = 20;
const THINK_END: u32 = 2;

/// One list, lists in it three deep, of the ids 12 to 18 and of pairs.
#[derive(Debug)]
struct Lists;

#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    begun: bool,
    pair: bool,
}

impl Place {
    const START: Place = Place { depth: 0, begun: false, pair: false };

    fn next(self, id: u32) -> Option<Place> {
        let Place { depth, begun, pair } = self;
        let inside = depth > 0 && !pair;
        match id {
            OPEN if !begun || inside && depth < 3 => Some(Place { depth: depth + 1, begun: true, pair }),
            CLOSE if inside => Some(Place { depth: depth - 1, ..self }),
            12..=18 if inside => Some(self),
            FIRST if inside => Some(Place { pair: true, ..self }),
            PARTNER if pair => Some(Place { pair: false, ..self }),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        self.begun && self.depth == 0
    }
}

struct Walker(Vec<Place>);

impl Walker {
    fn place(&self) -> Place {
        self.0[self.0.len() - 1]
    }
}

impl Grammar for Lists {
    fn matcher(&self) -> Result<Box<dyn Matcher>, String> {
        Ok(Box::new(Walker(vec![Place::START])))
    }
}

impl Matcher for Walker {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        for (id, logit) in (0..).zip(logits) {
            if self.place().next(id).is_none() {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Option<u32>, String> {
        let mut next = (0..24).filter(|&id| self.place().next(id).is_some());
        Ok(next.next().filter(|_| next.next().is_none() && !self.place().may_end()))
    }

    fn advance(&mut self, id: u32) -> Result<bool, String> {
        let next = self.place().next(id);
        self.0.extend(next);
        Ok(next.is_some())
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.0.truncate(self.0.len() - tokens);
        Ok(())
    }

    fn may_end(&mut self) -> Result<bool, String> {
        Ok(self.place().may_end())
    }
}

/// Asserts that an answer is a list, or the beginning of one where it was cut.
#[track_caller]
fn assert_list(outcome: &Outcome, constraint: &Constraint, controls: &Controls) {
    let mut text = &outcome.tokens[..];
    if let Finish::Stop { id } = outcome.finish {
        assert_eq!(text.split_last().map(|(last, rest)| (*last, rest)), Some((id, &text[..text.len() - 1])));
        text = &text[..text.len() - 1];
    }
    assert!(!text.iter().any(|id| controls.stop_ids.contains(id)), "{text:?}");
    if let Some(after) = constraint.after {
        let Some(end) = text.iter().position(|&id| id == after) else {
            assert!(!matches!(outcome.finish, Finish::Stop { .. }), "ends in its reasoning");
            return;
        };
        text = &text[end + 1..];
    }
    let end = text.iter().try_fold(Place::START, |place, &id| place.next(id));
    let end = end.unwrap_or_else(|| panic!("{text:?} is no list"));
    assert!(!matches!(outcome.finish, Finish::Stop { .. }) || end.may_end(), "{text:?} stops too soon");
    assert!(!matches!(outcome.finish, Finish::Cancelled));
}

fn constraints() -> impl Strategy<Value = Constraint> {
    prop::option::of(Just(THINK_END)).prop_map(|after| Constraint { grammar: Arc::new(Lists), after })
}

/// Options under a constraint.
fn constrained() -> impl Strategy<Value = Options> {
    (options(), constraints(), rules(), samplings()).prop_map(|(options, constraint, rule, sampling)| {
        Options { rule: Some(rule), sampling, constraint: Some(constraint), ignore_eos: false, ..options }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_the_mode_the_answer_is_of_the_grammar(
        seed in any::<u64>(), prompt in prompts(20), options in constrained(), context in 20..80usize,
    ) {
        let mut executor = ScriptedExecutor::new(seed).with_context(context.max(prompt.len() + 1));
        let outcome = cold(&mut executor, &prompt, &options);
        assert_list(&outcome, options.constraint.as_ref().unwrap(), options.controls.as_ref().unwrap());
    }

    #[test]
    fn savings_change_no_answer_of_a_grammar(
        seed in any::<u64>(), prompt in prompts(20), options in constrained(), savings in savings(),
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let other = Options { savings, ..options.clone() };
        let plain = Options { savings: Savings::NONE, ..options };
        // Draft mode without `fuse` proposes from other rows, which typical acceptance lets show.
        prop_assume!(plain.mode != Mode::Draft || plain.accept == shamrock_generate::Accept::Exact);
        assert_same(&cold(&mut executor, &prompt, &other), &cold(&mut executor, &prompt, &plain));
    }

    #[test]
    fn exact_drafting_under_a_grammar_is_causal_decoding_under_it(
        seed in any::<u64>(), prompt in prompts(20), options in constrained(),
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let accept = shamrock_generate::Accept::Exact;
        let causal = Options { mode: Mode::Causal, accept, ..options };
        let decoded = cold(&mut executor, &prompt, &causal);
        for mode in [Mode::Draft, Mode::Auto] {
            assert_same(&cold(&mut executor, &prompt, &Options { mode, ..causal.clone() }), &decoded);
        }
    }

    #[test]
    fn asking_for_alternatives_changes_nothing_and_they_are_the_likeliest(
        seed in any::<u64>(), prompt in prompts(20), options in options(), most in 1..30usize,
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let plain = cold(&mut executor, &prompt, &options);
        let asking = Options { alternatives: most, ..options };
        let mut told: Vec<(u32, f32, Vec<Alternative>)> = Vec::new();
        let mut session = Session::new();
        let outcome = session.generate(&mut executor, &prompt, &asking, &mut |event| {
            if let Event::Token { id, confidence, alternatives, .. } = event {
                told.push((id, confidence, alternatives.to_vec()));
            }
            ControlFlow::Continue(())
        });
        assert_same(&outcome.unwrap(), &plain);
        for (id, confidence, alternatives) in told {
            prop_assert!(alternatives.len() == most.min(alternatives.len()) && !alternatives.is_empty());
            prop_assert!(alternatives.is_sorted_by(|a, b| a.probability >= b.probability));
            let sum: f32 = alternatives.iter().map(|a| a.probability).sum();
            // Twenty-odd roundings of f32.
            prop_assert!(sum <= 1.0 + 1e-5, "{sum}");
            match alternatives.iter().find(|a| a.id == id) {
                // The same f64 product, rounded once, or f32 of a sum in another order.
                Some(own) => prop_assert!((own.probability - confidence).abs() <= 1e-6),
                None => prop_assert!(confidence <= alternatives[alternatives.len() - 1].probability + 1e-6),
            }
        }
    }

    #[test]
    fn a_great_bias_decides_and_a_small_one_forbids(
        seed in any::<u64>(), prompt in prompts(20), controls in controls(), id in 6..20u32,
        mode in crate::support::modes(),
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let base = Options { max_tokens: 12, controls: Some(controls), ..Options::new(mode) };
        // Penalties and ramps shift the logits of a script by some dozens in a dozen tokens.
        let always = cold(&mut executor, &prompt, &Options { bias: vec![(id, 1e4)], ..base.clone() });
        prop_assert_eq!(always.tokens, vec![id; 12]);
        let never = cold(&mut executor, &prompt, &Options { bias: vec![(id, -1e4)], ..base });
        prop_assert!(!never.tokens.contains(&id));
    }
}

#[test]
fn a_forced_pair_costs_no_pass_of_its_own() {
    // Two rows of which the second is forced: once the first is sure, so is the second.
    let mut executor = ScriptedExecutor::new(3);
    let options = Options {
        max_tokens: 3,
        block_size: Some(3),
        bias: vec![(FIRST, 50.0)],
        constraint: Some(Constraint { grammar: Arc::new(Lists), after: None }),
        ..Options::new(Mode::Denoise)
    };
    let outcome = cold(&mut executor, &[4], &options);
    assert_eq!(outcome.tokens, [OPEN, FIRST, PARTNER]);
    assert_eq!((outcome.stats.passes, outcome.confidence), (1, vec![1.0; 3]));
}

#[test]
fn what_cannot_be_held_is_refused() {
    let config = ScriptedExecutor::new(0);
    let config = shamrock_model::Executor::config(&config);
    let constraint = Some(Constraint { grammar: Arc::new(Lists), after: None });
    let refused = |options: Options| options.check(config).unwrap_err().to_string();
    let base = Options { constraint, ..Options::new(Mode::Causal) };
    assert!(refused(Options { ignore_eos: true, ..base.clone() }).contains("ignore_eos"));
    let controls = Some(Controls::default());
    assert!(refused(Options { controls, ..base.clone() }).contains("no stop id"));
    let plain = Options { constraint: None, sampling: Sampling::GREEDY, ..base };
    assert!(refused(Options { bias: vec![(24, 1.0)], ..plain.clone() }).contains("id 24 is outside"));
    assert!(refused(Options { bias: vec![(2, f32::NAN)], ..plain.clone() }).contains("finite"));
    assert!(refused(Options { alternatives: 65, ..plain }).contains("alternatives"));
}
