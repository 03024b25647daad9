//! Which open rows of a block a pass fixes.
//!
//! A [`Rule`] names one of the small types of this module with its parameters; each implements
//! [`Unmask`]. `docs/generation.md` says where the ideas come from and what each is worth.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// What a pass says of one open row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Row of the block.
    pub row: usize,
    /// The token that would be fixed.
    pub token: u32,
    /// Its probability in the shaped row at temperature 1.
    pub confidence: f32,
    /// Probability of the likeliest other token.
    pub rival: f32,
    /// Entropy of the row in nats.
    pub entropy: f32,
}

/// A rule for fixing rows.
///
/// Rules decide from one pass over one block and keep no state, so that an answer does not depend
/// on what ran before it or beside it.
pub trait Unmask {
    /// Indices into `open` of the rows to fix, in any order, each once. `open` holds the open rows
    /// of a block of `rows` rows, ascending, and is not empty. If the result is empty the caller
    /// fixes the first of the most confident rows, so that every pass gets on.
    fn fix(&self, open: &[Candidate], rows: usize) -> Vec<usize>;

    /// Whether a row that was fixed with this confidence is masked again, once, when the whole
    /// block is resolved.
    fn doubts(&self, _confidence: f32) -> bool {
        false
    }
}

/// Fixes every row whose confidence exceeds a bound: LowConfidence, the rule of the specification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The bound, 0..=1.
    pub above: f32,
}

impl Unmask for Threshold {
    fn fix(&self, open: &[Candidate], _: usize) -> Vec<usize> {
        indices(open, |c| c.confidence > self.above)
    }
}

/// Fixes every row whose token leads its rival by more than a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// The bound on the difference of the two probabilities, 0..=1.
    pub above: f32,
}

impl Unmask for Margin {
    fn fix(&self, open: &[Candidate], _: usize) -> Vec<usize> {
        indices(open, |c| c.confidence - c.rival > self.above)
    }
}

/// Fixes rows from the lowest entropy up while the entropies of the rows fixed, less the largest of
/// them, stay within a bound. The sum bounds what rows that are fixed together, and so do not see
/// each other, can be telling of one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyBound {
    /// The bound in nats, at least 0.
    pub nats: f32,
}

impl Unmask for EntropyBound {
    fn fix(&self, open: &[Candidate], _: usize) -> Vec<usize> {
        let mut order = by(open, |a, b| a.entropy.total_cmp(&b.entropy));
        let mut sum = 0.0;
        let within = order.iter().take_while(|&&i| {
            // The sum of those before is the sum without the largest, which is this one.
            let fits = sum <= self.nats;
            sum += open[i].entropy;
            fits
        });
        let within = within.count();
        order.truncate(within);
        order
    }
}

/// Fixes the most confident rows while the probabilities of being wrong sum to at most a bound: the
/// expected number of wrong tokens a pass may add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBudget {
    /// The bound, at least 0.
    pub errors: f32,
}

impl Unmask for ErrorBudget {
    fn fix(&self, open: &[Candidate], _: usize) -> Vec<usize> {
        let mut order = by(open, |a, b| b.confidence.total_cmp(&a.confidence));
        let mut sum = 0.0;
        let within = order.iter().take_while(|&&i| {
            sum += 1.0 - open[i].confidence;
            sum <= self.errors
        });
        let within = within.count();
        order.truncate(within);
        order
    }
}

/// A threshold for each stretch of the block, since a confidence means less in rows that are far
/// from what is known. `tools/calibrate-positions.py` finds them for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Positions {
    /// The thresholds, spread evenly over the rows of the block; at least one.
    pub above: Vec<f32>,
}

impl Unmask for Positions {
    fn fix(&self, open: &[Candidate], rows: usize) -> Vec<usize> {
        indices(open, |c| c.confidence > self.above[c.row * self.above.len() / rows])
    }
}

/// A threshold that rises with the number of rows left open before a row: it lets doubt of
/// `1 − above` pass at the first open row and `decay` times as much for each open row before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftFirst {
    /// The threshold where nothing before is open, 0..=1.
    pub above: f32,
    /// 0..=1; at 1 this is a plain threshold.
    pub decay: f32,
}

impl Unmask for LeftFirst {
    fn fix(&self, open: &[Candidate], _: usize) -> Vec<usize> {
        let mut doubt = 1.0 - self.above;
        indices(open, |c| {
            let fixed = 1.0 - c.confidence < doubt;
            if !fixed {
                doubt *= self.decay;
            }
            fixed
        })
    }
}

/// A threshold with second thoughts: when the block is resolved, rows that were fixed with little
/// confidence are masked again, once, and chosen anew with everything else in sight.
///
/// Rows are doubted for the confidence they were fixed with. Looking at what a later pass says of a
/// fixed row would need the head for all rows, and says little: rows that see their own token were
/// not trained to predict it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remask {
    /// The threshold, 0..=1.
    pub above: f32,
    /// Rows fixed with less than this are masked again, 0..=1.
    pub doubt: f32,
}

impl Unmask for Remask {
    fn fix(&self, open: &[Candidate], rows: usize) -> Vec<usize> {
        Threshold { above: self.above }.fix(open, rows)
    }

    fn doubts(&self, confidence: f32) -> bool {
        confidence < self.doubt
    }
}

/// Indices of the candidates that pass a test, which sees them in order.
fn indices(open: &[Candidate], mut test: impl FnMut(&Candidate) -> bool) -> Vec<usize> {
    (0..open.len()).filter(|&i| test(&open[i])).collect()
}

/// All indices in an order; equals keep the order of their rows.
fn by(open: &[Candidate], order: impl Fn(&Candidate, &Candidate) -> std::cmp::Ordering) -> Vec<usize> {
    let mut all: Vec<usize> = (0..open.len()).collect();
    all.sort_by(|&a, &b| order(&open[a], &open[b]));
    all
}

/// A rule with its parameters, written `NAME:number,number`.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// `threshold:0.9`
    Threshold(Threshold),
    /// `margin:0.8`
    Margin(Margin),
    /// `entropy:0.3`
    EntropyBound(EntropyBound),
    /// `budget:0.2`
    ErrorBudget(ErrorBudget),
    /// `positions:0.7,0.8,0.9`
    Positions(Positions),
    /// `left:0.7,0.8`
    LeftFirst(LeftFirst),
    /// `remask:0.5,0.9`
    Remask(Remask),
}

impl Rule {
    /// A plain threshold.
    pub fn threshold(above: f32) -> Rule {
        Rule::Threshold(Threshold { above })
    }

    /// What the rule does.
    pub fn unmask(&self) -> &dyn Unmask {
        match self {
            Rule::Threshold(rule) => rule,
            Rule::Margin(rule) => rule,
            Rule::EntropyBound(rule) => rule,
            Rule::ErrorBudget(rule) => rule,
            Rule::Positions(rule) => rule,
            Rule::LeftFirst(rule) => rule,
            Rule::Remask(rule) => rule,
        }
    }

    /// Name and parameters; the number of parameters and their ranges are checked by `from_str`.
    fn parts(&self) -> (&'static str, Vec<f32>) {
        match self {
            Rule::Threshold(rule) => ("threshold", vec![rule.above]),
            Rule::Margin(rule) => ("margin", vec![rule.above]),
            Rule::EntropyBound(rule) => ("entropy", vec![rule.nats]),
            Rule::ErrorBudget(rule) => ("budget", vec![rule.errors]),
            Rule::Positions(rule) => ("positions", rule.above.clone()),
            Rule::LeftFirst(rule) => ("left", vec![rule.above, rule.decay]),
            Rule::Remask(rule) => ("remask", vec![rule.above, rule.doubt]),
        }
    }

    /// Checks the ranges of the parameters.
    pub(crate) fn check(&self) -> Result<()> {
        let (name, numbers) = self.parts();
        let most = match self {
            Rule::EntropyBound(_) | Rule::ErrorBudget(_) => f32::MAX,
            _ => 1.0,
        };
        let problem = match numbers.iter().find(|n| !(0.0..=most).contains(*n)) {
            Some(n) if most == 1.0 => format!("{n} is out of range 0..=1"),
            Some(n) => format!("{n} must be a finite number of at least 0"),
            None if numbers.is_empty() => "at least one number is needed".to_owned(),
            None => return Ok(()),
        };
        // The threshold is an option of its own wherever options are spelt.
        Err(match self {
            Rule::Threshold(_) => Error::Option { option: "threshold", problem },
            _ => Error::Option { option: "rule", problem: format!("{name}: {problem}") },
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, numbers) = self.parts();
        let numbers: Vec<String> = numbers.iter().map(f32::to_string).collect();
        write!(f, "{name}:{}", numbers.join(","))
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rule> {
        let problem = |problem| Error::Option { option: "rule", problem };
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let numbers = rest.split(',').filter(|part| !part.is_empty()).map(|part| {
            part.trim().parse::<f32>().map_err(|_| problem(format!("{name}: {part:?} is not a number")))
        });
        let numbers = numbers.collect::<Result<Vec<f32>>>()?;
        let rule = match (name, &numbers[..]) {
            ("threshold", &[above]) => Rule::threshold(above),
            ("margin", &[above]) => Rule::Margin(Margin { above }),
            ("entropy", &[nats]) => Rule::EntropyBound(EntropyBound { nats }),
            ("budget", &[errors]) => Rule::ErrorBudget(ErrorBudget { errors }),
            ("positions", _) => Rule::Positions(Positions { above: numbers }),
            ("left", &[above, decay]) => Rule::LeftFirst(LeftFirst { above, decay }),
            ("remask", &[above, doubt]) => Rule::Remask(Remask { above, doubt }),
            ("threshold" | "margin" | "entropy" | "budget", _) => {
                return Err(problem(format!("{name} takes one number, as in {name}:0.5")));
            }
            ("left" | "remask", _) => {
                return Err(problem(format!("{name} takes two numbers, as in {name}:0.5,0.9")));
            }
            _ => {
                return Err(problem(format!(
                    "{name:?} is none of threshold, margin, entropy, budget, positions, left, remask"
                )));
            }
        };
        rule.check()?;
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 0, 2, 4, … with these confidences; the rival takes what is left.
    fn open(confidences: &[f32]) -> Vec<Candidate> {
        confidences
            .iter()
            .enumerate()
            .map(|(i, &confidence)| Candidate {
                row: 2 * i,
                token: i as u32,
                confidence,
                rival: 1.0 - confidence,
                entropy: -confidence.ln(),
            })
            .collect()
    }

    fn fixed(rule: &str, confidences: &[f32]) -> Vec<usize> {
        let rule: Rule = rule.parse().unwrap();
        let mut fixed = rule.unmask().fix(&open(confidences), 2 * confidences.len());
        fixed.sort_unstable();
        fixed
    }

    #[test]
    fn rules_fix_what_they_say() {
        let sure = [0.9, 0.5, 0.99, 0.75];
        assert_eq!(fixed("threshold:0.75", &sure), [0, 2]);
        // Margins 0.8, 0, 0.98, 0.5.
        assert_eq!(fixed("margin:0.49", &sure), [0, 2, 3]);
        // Doubts in order: 0.01, 0.1, 0.25, 0.5.
        assert_eq!(fixed("budget:0.12", &sure), [0, 2]);
        assert_eq!(fixed("budget:0.37", &sure), [0, 2, 3]);
        assert!(fixed("budget:0", &sure).is_empty());
        // Entropies in order 0.01, 0.105, 0.288, 0.693: the largest of those fixed is free.
        assert_eq!(fixed("entropy:0", &sure), [2]);
        assert_eq!(fixed("entropy:0.02", &sure), [0, 2]);
        assert_eq!(fixed("entropy:0.2", &sure), [0, 2, 3]);
        // Rows 0 and 2 lie in the first half.
        assert_eq!(fixed("positions:0.4,0.98", &sure), [0, 1, 2]);
        assert_eq!(fixed("positions:0.95", &sure), [2]);
        // 0.9 passes at 0.8; 0.5 does not and halves the doubt allowed twice over the rest.
        assert_eq!(fixed("left:0.8,0.5", &sure), [0, 2]);
        assert_eq!(fixed("left:0.7,1", &sure), [0, 2, 3]);
        assert!(fixed("left:0.95,0", &sure).is_empty());
        assert_eq!(fixed("remask:0.75,0.95", &sure), [0, 2]);
    }

    #[test]
    fn equals_go_in_the_order_of_their_rows() {
        assert_eq!(fixed("budget:0.25", &[0.9, 0.9, 0.9]), [0, 1]);
        assert_eq!(fixed("entropy:0.2", &[0.8, 0.8, 0.8]), [0]);
    }

    #[test]
    fn names_round_trip_and_bad_ones_say_why() {
        for text in
            ["threshold:0.9", "margin:0.5", "entropy:2", "budget:0.25", "positions:0.5,0.75", "left:0.5,1"]
        {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for (text, want) in [
            ("best", "\"best\" is none of"),
            ("margin", "margin takes one number"),
            ("left:0.5", "left takes two numbers"),
            ("threshold:x", "\"x\" is not a number"),
            ("threshold:1.5", "1.5 is out of range"),
            ("entropy:inf", "inf must be a finite number"),
            ("positions:", "at least one number"),
            ("budget:-1", "-1 must be a finite number"),
            ("margin:nan", "NaN is out of range"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
