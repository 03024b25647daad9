//! Denoising under a grammar.
//!
//! What a row may hold depends on everything to its left, of which some rows are still masks. So
//! each pass walks the block from left to right along a *path*: fixed rows as they are, and in each
//! open row the best token that the grammar allows behind the path so far. The path is a text of
//! the grammar (or the beginning of one), so whatever subset of its rows is fixed, the block can
//! still be completed. Should a later walk run into a fixed row that does not fit behind what it
//! chose, the open rows keep to the path of the walk before, into which every fixed row does fit.
//! Every pass fixes a row of a path; nothing has to be taken back.
//!
//! A row whose left is not all known could be forced, and so look sure, by a guess to its left that
//! is not sure at all. Its confidence is therefore that of the path up to it, the product of the
//! probabilities among what the grammar allows, or its own probability before the grammar was
//! asked, whichever is larger.
//!
//! Where everything to the left is fixed and the grammar leaves one token, there is nothing to ask a
//! pass: such rows are fixed at once, before the first pass over a block and behind what a pass fixed.

use shamrock_model::{Part, Pick, Scored};

use super::{Denoise, candidate};
use crate::answer::Answer;
use crate::error::{Error, Result};
use crate::event::Alternative;
use crate::rule::Candidate;

/// Certainty of the open rows that were passed.
struct Reach {
    /// Probability that they are all right, each given the ones before.
    probability: f32,
    /// Sum of their entropies.
    entropy: f32,
}

impl Reach {
    /// What a row offers that was chosen behind these, and go on behind it. `own` is what the row
    /// says without the grammar, if it may speak for itself.
    fn pass(&mut self, mut next: Candidate, own: Option<Candidate>) -> Candidate {
        next.confidence *= self.probability;
        next.rival = (next.rival * self.probability).max(1.0 - self.probability);
        next.entropy += self.entropy;
        self.probability = next.confidence;
        self.entropy = next.entropy;
        own.filter(|own| own.confidence > next.confidence).unwrap_or(next)
    }
}

impl Denoise {
    /// Fixes the open rows that the grammar leaves no choice behind what is fixed at the block's start, but
    /// for the last `keep` ones of the block.
    pub(super) fn fill(&mut self, answer: &mut Answer, keep: usize) -> Result<()> {
        let settings = &answer.settings;
        let Some(guide) = &mut answer.guide else { return Ok(()) };
        let mut walked = 0;
        for row in 0..self.ids.len() {
            if self.pending.contains(&row) {
                let forced = if self.pending.len() > keep { guide.forced()? } else { None };
                let Some(id) = forced.filter(|id| !settings.forbidden.contains(id)) else { break };
                self.ids[row] = id;
                self.confidence[row] = 1.0;
                let alternative = (settings.alternatives > 0).then_some(Alternative { id, probability: 1.0 });
                self.alternatives[row] = alternative.into_iter().collect();
                self.pending.retain(|&open| open != row);
                self.given.push(row);
            }
            if !guide.advance(self.ids[row])? {
                break;
            }
            walked += 1;
        }
        guide.rewind(walked)
    }

    /// What the open rows offer along a path, which is kept.
    pub(super) fn walk(&mut self, answer: &mut Answer, scored: &Scored) -> Result<Vec<Candidate>> {
        for keep in [false, true] {
            if let Some(open) = self.try_walk(answer, scored, keep)? {
                return Ok(open);
            }
        }
        let problem = format!("block {} cannot be completed any more", self.block);
        Err(Error::Grammar { problem })
    }

    /// Walks along new choices, or the known path if `keep`; `None` where a fixed row does not fit.
    fn try_walk(
        &mut self,
        answer: &mut Answer,
        scored: &Scored,
        keep: bool,
    ) -> Result<Option<Vec<Candidate>>> {
        let (chooser, guide) = answer.parts(Part::Preview);
        let Some(guide) = guide else { return Ok(None) };
        let mut reach = Reach { probability: 1.0, entropy: 0.0 };
        let mut path = self.ids.clone();
        if keep && self.path.len() != path.len() {
            return Ok(None); // no walk has reached the end yet
        }
        let mut open = Vec::with_capacity(self.pending.len());
        let mut walked = 0;
        for (row, token) in path.iter_mut().enumerate() {
            if self.pending.contains(&row) {
                let Ok(i) = chooser.rows.scored.binary_search(&row) else { return Ok(None) };
                let mut logits = chooser.shaped(scored, i)?;
                let own = (reach.probability < 1.0).then(|| Pick::from_logits(&logits, None));
                let best = own.map(|own| logits[own.token as usize]);
                guide.mask(&mut logits)?;
                let choice = if keep {
                    chooser.judge(i, &logits, self.path[row])?
                } else {
                    chooser.decide(i, &logits, self.step as u32)?
                };
                *token = choice.token;
                let own = own.zip(best).map(|(pick, best)| Candidate {
                    row,
                    token: choice.token,
                    confidence: pick.probability * (logits[choice.token as usize] - best).exp(),
                    rival: if pick.token == choice.token { pick.runner_up } else { pick.probability },
                    entropy: pick.entropy,
                });
                open.push(reach.pass(candidate(row, &choice), own));
                self.alternatives[row] = choice.alternatives;
            }
            if !guide.advance(*token)? {
                break;
            }
            walked += 1;
        }
        guide.rewind(walked)?;
        if walked < path.len() {
            return Ok(None);
        }
        self.path = path;
        Ok(Some(open))
    }
}
