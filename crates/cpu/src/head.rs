//! The head, for the rows that are asked for.

use rayon::prelude::*;
use shamrock_model::weights::Matrix;
use shamrock_model::{Pick, Result, Score, Scored};

use crate::linear::Linear;

/// Scores parts: `wanted[i]` are the normed rows of `scores[i]`, one after the other.
pub(crate) fn score(
    linear: &Linear<'_>,
    head: Matrix,
    wanted: &[f32],
    scores: &[&Score<'_>],
) -> Result<Vec<Scored>> {
    let vocab = head.rows;
    let mut logits = linear.project(head, wanted)?;
    let mut rest = logits.as_mut_slice();
    Ok(scores
        .iter()
        .map(|score| {
            let own = rest.split_off_mut(..score.rows().len() * vocab).unwrap_or_default();
            match score {
                Score::None => Scored::None,
                Score::Logits { .. } => Scored::Logits { values: own.to_vec(), vocab },
                Score::Picks { rows, shaping, probes } => Scored::Picks(
                    own.par_chunks_exact_mut(vocab)
                        .zip(*rows)
                        .enumerate()
                        .map(|(i, (logits, &row))| {
                            shaping.apply(row, logits);
                            Pick::from_logits(logits, probes.get(i).copied())
                        })
                        .collect(),
                ),
            }
        })
        .collect())
}
