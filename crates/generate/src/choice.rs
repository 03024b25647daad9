//! Choosing a token from a scored row: shaping, bias, grammar, then the greedy pick or a draw.

use shamrock_model::{Pick, Scored, Shaping};

use crate::answer::Rows;
use crate::constraint::Guide;
use crate::error::{Error, Result};
use crate::event::Alternative;
use crate::history::History;
use crate::options::Settings;

/// What was chosen for a row.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) token: u32,
    /// Probability of `token` in the shaped row at temperature 1.
    pub(crate) confidence: f32,
    /// The row's greedy pick; `token` differs from its token when sampling.
    pub(crate) pick: Pick,
    /// The likeliest tokens of the row, as many as the options ask for.
    pub(crate) alternatives: Vec<Alternative>,
}

/// Chooses among the scored rows of one part of a pass, with the penalty counts of one history.
#[derive(Clone, Copy)]
pub(crate) struct Chooser<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) rows: &'a Rows,
    pub(crate) history: &'a History,
}

impl<'a> Chooser<'a> {
    pub(crate) fn shaping(&self) -> Shaping<'a> {
        Shaping {
            controls: &self.settings.controls,
            forbidden: &self.settings.forbidden,
            counts: if self.settings.penalises() { self.history.counts() } else { &[] },
            first_position: self.rows.first_position,
            think_open: self.rows.think_open,
        }
    }

    /// The choice for the `i`th scored row, among what `guide` allows there.
    ///
    /// `draw` tells apart the draws at one response position: the pass over the block.
    pub(crate) fn choose(
        &self,
        guide: Option<&mut Guide>,
        scored: &mut Scored,
        i: usize,
        draw: u32,
    ) -> Result<Choice> {
        self.check(scored)?;
        match scored {
            Scored::Logits { values, vocab } => {
                let row = &mut values[i * *vocab..(i + 1) * *vocab];
                self.shape(i, row);
                if let Some(guide) = guide {
                    guide.mask(row)?;
                }
                self.decide(i, row, draw)
            }
            _ => {
                let pick = self.usable(i, scored.picks()[i])?;
                Ok(Choice { token: pick.token, confidence: pick.probability, pick, alternatives: Vec::new() })
            }
        }
    }

    /// A copy of the `i`th scored row, shaped.
    ///
    /// # Errors
    /// If the executor gave no logits.
    pub(crate) fn shaped(&self, scored: &Scored, i: usize) -> Result<Vec<f32>> {
        self.check(scored)?;
        let Scored::Logits { values, vocab } = scored else {
            return Err(Error::MissingScores { expected: self.rows.scored.len(), found: 0 });
        };
        let mut row = values[i * vocab..(i + 1) * vocab].to_vec();
        self.shape(i, &mut row);
        Ok(row)
    }

    /// The choice for the `i`th scored row from its shaped and masked logits.
    pub(crate) fn decide(&self, i: usize, row: &[f32], draw: u32) -> Result<Choice> {
        let pick = self.usable(i, Pick::from_logits(row, self.rows.probes.get(i).copied()))?;
        let sampling = &self.settings.sampling;
        let (token, confidence) = if sampling.is_greedy() {
            (pick.token, pick.probability)
        } else {
            sampling.draw(row, &pick, self.position(i), draw)
        };
        Ok(Choice { token, confidence, pick, alternatives: self.alternatives(row, &pick) })
    }

    /// What [`decide`](Chooser::decide) would say, had it chosen `token`.
    pub(crate) fn judge(&self, i: usize, row: &[f32], token: u32) -> Result<Choice> {
        let pick = self.usable(i, Pick::from_logits(row, Some(token)))?;
        Ok(Choice { token, confidence: pick.probe, pick, alternatives: self.alternatives(row, &pick) })
    }

    fn check(&self, scored: &Scored) -> Result<()> {
        let expected = self.rows.scored.len();
        let found = match scored {
            Scored::None => 0,
            Scored::Picks(picks) => picks.len(),
            Scored::Logits { values, vocab } => values.len() / (*vocab).max(1),
        };
        if found == expected { Ok(()) } else { Err(Error::MissingScores { expected, found }) }
    }

    fn shape(&self, i: usize, row: &mut [f32]) {
        self.shaping().apply(self.rows.scored[i], row);
        for &(id, bias) in &self.settings.bias {
            if let Some(logit) = row.get_mut(id as usize) {
                *logit += bias;
            }
        }
    }

    /// Response position of the `i`th scored row.
    fn position(&self, i: usize) -> u32 {
        self.rows.first_position.saturating_add_unsigned(self.rows.scored[i] as u32).max(0) as u32
    }

    /// A pick of a row that has a best logit; rows of nothing but −∞, or with NaN or +∞ on top, do
    /// not.
    fn usable(&self, i: usize, pick: Pick) -> Result<Pick> {
        if pick.probability > 0.0 && pick.probability.is_finite() {
            Ok(pick)
        } else {
            Err(Error::NothingToChoose { position: self.position(i) })
        }
    }

    /// The likeliest tokens, likeliest first, equals in the order of their ids. Forbidden ones are
    /// none.
    fn alternatives(&self, row: &[f32], pick: &Pick) -> Vec<Alternative> {
        let most = self.settings.alternatives;
        if most == 0 {
            return Vec::new();
        }
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(most + 1);
        for (id, &logit) in (0u32..).zip(row) {
            let full = best.len() == most;
            let candidate =
                logit > f32::NEG_INFINITY && best.last().is_none_or(|last| !full || logit > last.1);
            if candidate {
                let at = best.partition_point(|other| other.1 >= logit);
                best.insert(at, (id, logit));
                best.truncate(most);
            }
        }
        let top = f64::from(row[pick.token as usize]);
        let probability = |logit: f32| ((f64::from(logit) - top).exp() * f64::from(pick.probability)) as f32;
        best.into_iter().map(|(id, logit)| Alternative { id, probability: probability(logit) }).collect()
    }
}
