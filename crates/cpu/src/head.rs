//! The head, for the rows that are asked for.
//!
//! Logits are made some ids at a time for all rows. Picks are read off there and then: no row of
//! logits is ever whole.

use shamrock_model::weights::Matrix;
use shamrock_model::{Pick, PickPart, Result, Score, Scored, Shaping};

use crate::kernel::BAND;
use crate::linear::{Linear, ROW_BLOCK, Stripe};

/// Ids of a task: what a pick is read off at a time.
const IDS: usize = PickPart::IDS;
const _: () = assert!(IDS.is_multiple_of(BAND));

/// What becomes of the logits of one part.
enum Sink<'a> {
    Nothing,
    /// The logits, `[rows, vocab]`.
    Logits(Vec<f32>),
    Picks(Picks<'a>),
}

/// Picks of one part in the making.
struct Picks<'a> {
    rows: &'a [usize],
    shaping: Shaping<'a>,
    probes: &'a [u32],
    /// `shaping.counts` by ascending id.
    counts: Vec<(u32, u32)>,
    /// `[tasks, rows]`.
    partial: Vec<PickPart>,
}

/// Scores parts: `wanted[i]` are the normed rows of `scores[i]`, one after the other.
pub(crate) fn score(
    linear: &Linear<'_>,
    head: Matrix,
    wanted: &[f32],
    scores: &[&Score<'_>],
) -> Result<Vec<Scored>> {
    let (vocab, tasks) = (head.rows, head.rows.div_ceil(IDS));
    let mut sinks: Vec<Sink<'_>> = scores.iter().map(|score| Sink::new(score, vocab, tasks)).collect();
    let source = linear.prepare(&[(head, wanted).into()])?.remove(0);
    // What each task writes of every part.
    let mut work: Vec<Vec<Target<'_>>> = (0..tasks).map(|_| Vec::with_capacity(sinks.len())).collect();
    for (sink, score) in sinks.iter_mut().zip(scores) {
        sink.share(score.rows().len(), vocab, &mut work);
    }
    if source.rows() == 0 {
        work.clear();
    }
    linear.tasks(work.into_iter().enumerate().collect(), |scratch, (task, mut targets)| {
        let ids = task * IDS..vocab.min((task + 1) * IDS);
        let mut logits = vec![0.0; source.rows().min(ROW_BLOCK) * ids.len()];
        let mut products = vec![[0.0; BAND]; source.rows().min(ROW_BLOCK)];
        source.prefetch(ids.start);
        for first in (0..source.rows()).step_by(ROW_BLOCK) {
            let rows = first..source.rows().min(first + ROW_BLOCK);
            for at in (0..ids.len()).step_by(BAND) {
                let products = &mut products[..rows.len()];
                let next = if at + BAND < ids.len() { source.weights(ids.start + at + BAND) } else { &[] };
                source.band(linear.isa(), ids.start + at, rows.clone(), scratch, next, products)?;
                for (logits, products) in logits.chunks_exact_mut(ids.len()).zip(products) {
                    for (logit, product) in logits[at..].iter_mut().zip(products) {
                        *logit = *product;
                    }
                }
            }
            let mut at = 0;
            for target in &mut targets {
                let own = at..at + target.rows();
                at = own.end;
                for row in own.start.max(rows.start)..own.end.min(rows.end) {
                    let logits = &mut logits[(row - rows.start) * ids.len()..][..ids.len()];
                    linear.isa().run(|| target.take(row - own.start, ids.start, logits));
                }
            }
        }
        Ok(())
    })?;
    Ok(sinks.into_iter().map(|sink| sink.finish(vocab)).collect())
}

/// One task's share of a [`Sink`].
enum Target<'a> {
    Logits { stripe: Stripe<'a>, rows: usize },
    Picks { shaping: Shaping<'a>, rows: &'a [usize], probes: &'a [u32], partial: &'a mut [PickPart] },
}

impl Target<'_> {
    fn rows(&self) -> usize {
        match self {
            Target::Logits { rows, .. } => *rows,
            Target::Picks { rows, .. } => rows.len(),
        }
    }

    /// Takes the logits of the ids from `first` on of the `i`-th row.
    #[inline(always)]
    fn take(&mut self, i: usize, first: usize, logits: &mut [f32]) {
        match self {
            Target::Logits { stripe, .. } => stripe.row(i).copy_from_slice(logits),
            Target::Picks { shaping, rows, probes, partial } => {
                shaping.apply_from(rows[i], first, logits);
                partial[i] = PickPart::of(first, logits, probes.get(i).copied());
            }
        }
    }
}

impl<'a> Sink<'a> {
    fn new(score: &Score<'a>, vocab: usize, tasks: usize) -> Self {
        match *score {
            Score::None => Sink::Nothing,
            Score::Logits { rows } => Sink::Logits(vec![0.0; rows.len() * vocab]),
            Score::Picks { rows, shaping, probes } => {
                let mut counts = shaping.counts.to_vec();
                counts.sort_unstable();
                let partial = vec![PickPart::NONE; tasks * rows.len()];
                Sink::Picks(Picks { rows, shaping, probes, counts, partial })
            }
        }
    }

    /// Gives each task its share.
    fn share<'s>(&'s mut self, rows: usize, vocab: usize, work: &mut [Vec<Target<'s>>]) {
        match self {
            Sink::Nothing => {}
            Sink::Logits(values) => {
                for (targets, stripe) in work.iter_mut().zip(Stripe::split(values, vocab, IDS)) {
                    targets.push(Target::Logits { stripe, rows });
                }
            }
            Sink::Picks(picks) if picks.rows.is_empty() => {}
            Sink::Picks(Picks { rows, shaping, probes, counts, partial }) => {
                for (task, (targets, partial)) in
                    work.iter_mut().zip(partial.chunks_mut(rows.len())).enumerate()
                {
                    let from = |id: usize| counts.partition_point(|count| (count.0 as usize) < id);
                    let counts = &counts[from(task * IDS)..from((task + 1) * IDS)];
                    targets.push(Target::Picks {
                        shaping: Shaping { counts, ..*shaping },
                        rows,
                        probes,
                        partial,
                    });
                }
            }
        }
    }

    fn finish(self, vocab: usize) -> Scored {
        match self {
            Sink::Nothing => Scored::None,
            Sink::Logits(values) => Scored::Logits { values, vocab },
            Sink::Picks(Picks { rows, partial, .. }) => {
                let of_row = |i: usize| partial.iter().skip(i).step_by(rows.len());
                Scored::Picks((0..rows.len()).map(|i| Pick::merge(of_row(i))).collect())
            }
        }
    }
}
