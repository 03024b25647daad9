//! Which answers take part in the next pass.

use shamrock_model::{Score, Step};

/// What one answer wants of the next pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    rows: usize,
    /// Nothing is scored: a piece of a prompt.
    prompt: bool,
}

impl Demand {
    pub(super) fn of(step: &Step<'_>) -> Demand {
        let unscored = |score: &Score<'_>| score.rows().is_empty();
        Demand {
            rows: step.commit.len() + step.preview.len(),
            prompt: unscored(&step.commit_score) && unscored(&step.preview_score),
        }
    }
}

/// Indices of the demands that share the next pass, ascending.
///
/// Demands stand in the order in which they were last served, so the first is always taken and
/// nobody starves. All others are taken that fit, into `max_rows` altogether and, for prompts beside
/// answers that are past theirs, into `prompt_rows`: a long prompt must not hold up a stream.
pub(super) fn select(demands: &[Demand], max_rows: usize, prompt_rows: usize) -> Vec<usize> {
    let streaming = demands.iter().any(|demand| !demand.prompt);
    let prompt_rows = if streaming { prompt_rows } else { max_rows };
    let (mut rows, mut of_prompts) = (0, 0);
    let mut chosen = Vec::new();
    for (index, demand) in demands.iter().enumerate() {
        let first_prompt = of_prompts == 0;
        let fits = rows + demand.rows <= max_rows
            && (!demand.prompt || first_prompt || of_prompts + demand.rows <= prompt_rows);
        if fits || chosen.is_empty() {
            rows += demand.rows;
            of_prompts += if demand.prompt { demand.rows } else { 0 };
            chosen.push(index);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demands() -> impl Strategy<Value = Vec<Demand>> {
        let demand = (1..=64usize, any::<bool>()).prop_map(|(rows, prompt)| Demand { rows, prompt });
        prop::collection::vec(demand, 1..12)
    }

    proptest! {
        #[test]
        fn a_pass_holds_what_fits_and_leaves_out_only_what_does_not(
            demands in demands(), max_rows in 64..256usize, prompt_rows in 1..=64usize,
        ) {
            let chosen = select(&demands, max_rows, prompt_rows);
            let total = |f: &dyn Fn(&Demand) -> bool| -> usize {
                chosen.iter().map(|&i| demands[i]).filter(f).map(|d| d.rows).sum()
            };
            prop_assert_eq!(chosen[0], 0);
            prop_assert!(total(&|_| true) <= max_rows);
            let streaming = demands.iter().any(|d| !d.prompt);
            let prompts = chosen.iter().filter(|&&i| demands[i].prompt).count();
            prop_assert!(!streaming || prompts <= 1 || total(&|d| d.prompt) <= prompt_rows);
            for (i, left) in demands.iter().enumerate().filter(|(i, _)| !chosen.contains(i)) {
                let crowded = total(&|_| true) + left.rows > max_rows;
                let budget = streaming && left.prompt && total(&|d| d.prompt) + left.rows > prompt_rows;
                prop_assert!(crowded || budget, "{i} was left out for nothing");
            }
        }

        /// The front is always served and goes to the back, so the wait is bounded.
        #[test]
        fn nobody_starves(demands in demands(), max_rows in 64..128usize, prompt_rows in 1..=64usize) {
            let mut order: Vec<usize> = (0..demands.len()).collect();
            let mut served = vec![0; demands.len()];
            for _ in 0..demands.len() {
                let queue: Vec<Demand> = order.iter().map(|&i| demands[i]).collect();
                let chosen = select(&queue, max_rows, prompt_rows);
                let (ran, waits): (Vec<_>, Vec<_>) = (0..order.len()).partition(|i| chosen.contains(i));
                ran.iter().for_each(|&i| served[order[i]] += 1);
                order = waits.into_iter().chain(ran).map(|i| order[i]).collect();
            }
            prop_assert!(served.iter().all(|&n| n > 0), "{:?}", served);
        }
    }
}
