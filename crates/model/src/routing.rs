//! Expert choice: softmax over all experts, the top `k` of a row, and the coreset that keeps a
//! whole block to few experts.

use crate::config::MoeConfig;

/// One expert of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Expert index.
    pub expert: u32,
    /// Weight of its output.
    pub weight: f32,
}

/// The experts of every row of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    choices: Vec<Choice>,
    /// Row `r` owns `choices[starts[r]..starts[r + 1]]`.
    starts: Vec<usize>,
}

impl Routes {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Experts of a row, most probable first.
    pub fn row(&self, r: usize) -> &[Choice] {
        &self.choices[self.starts[r]..self.starts[r + 1]]
    }

    /// The same by expert: ascending experts, each with its `(row, weight)` pairs in row order.
    pub fn by_expert(&self) -> Vec<(u32, Vec<(usize, f32)>)> {
        let mut flat: Vec<(u32, usize, f32)> =
            (0..self.rows()).flat_map(|r| self.row(r).iter().map(move |c| (c.expert, r, c.weight))).collect();
        flat.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
        flat.chunk_by(|a, b| a.0 == b.0)
            .map(|group| (group[0].0, group.iter().map(|&(_, row, weight)| (row, weight)).collect()))
            .collect()
    }
}

/// Softmax of each row of `logits` `[rows, experts]` in place.
pub fn softmax_rows(logits: &mut [f32], experts: usize) {
    for row in logits.chunks_exact_mut(experts) {
        softmax(row);
    }
}

/// Softmax in place, shifted by the maximum.
pub fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in row.iter_mut() {
        *x = (*x - max).exp();
        sum += *x;
    }
    for x in row.iter_mut() {
        *x /= sum;
    }
}

/// Indices of the `k` largest values, descending; of equal values the lower index comes first.
pub fn top_k(values: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    let descending = |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k, descending);
        order.truncate(k);
    }
    order.sort_unstable_by(descending);
    order
}

/// Experts that a block may use, ascending.
///
/// `probs` is `[rows, experts]`, the softmax of the router. Every row adds the probabilities of its
/// own top `k`; walking the experts by descending total, an expert is kept while the normalised
/// mass *before* it is below `top_p` (the first always is).
pub fn coreset(probs: &[f32], moe: &MoeConfig, top_p: f32) -> Vec<u32> {
    let mut totals = vec![0.0f64; moe.experts];
    for row in probs.chunks_exact(moe.experts) {
        for e in top_k(row, moe.top_k) {
            totals[e as usize] += f64::from(row[e as usize]);
        }
    }
    let mass = totals.iter().sum::<f64>().max(1e-9);
    let mut order: Vec<u32> = (0..moe.experts as u32).collect();
    order.sort_by(|a, b| totals[*b as usize].total_cmp(&totals[*a as usize]));
    let mut kept = Vec::new();
    let mut before = 0.0;
    for e in order {
        if !kept.is_empty() && before >= f64::from(top_p) {
            break;
        }
        kept.push(e);
        before += totals[e as usize] / mass;
    }
    kept.sort_unstable();
    kept
}

/// Chooses each row's experts from `probs` `[rows, experts]`, inside `coreset` (ascending ids) if
/// there is one. Weights are the chosen probabilities, renormalised when the model says so.
pub fn route(probs: &[f32], moe: &MoeConfig, coreset: Option<&[u32]>) -> Routes {
    let mut routes = Routes { choices: Vec::new(), starts: vec![0] };
    for row in probs.chunks_exact(moe.experts) {
        let chosen: Vec<u32> = match coreset {
            None => top_k(row, moe.top_k),
            Some(allowed) => {
                let inside: Vec<f32> = allowed.iter().map(|&e| row[e as usize]).collect();
                top_k(&inside, moe.top_k).into_iter().map(|i| allowed[i as usize]).collect()
            }
        };
        let total: f32 = if moe.norm_topk { chosen.iter().map(|&e| row[e as usize]).sum() } else { 1.0 };
        routes
            .choices
            .extend(chosen.iter().map(|&expert| Choice { expert, weight: row[expert as usize] / total }));
        routes.starts.push(routes.choices.len());
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moe(experts: usize, top_k: usize, norm_topk: bool) -> MoeConfig {
        MoeConfig { experts, top_k, expert_width: 1, shared_width: 1, norm_topk }
    }

    #[test]
    fn equal_values_keep_the_lower_index() {
        assert_eq!(top_k(&[0.2, 0.5, 0.2, 0.5, 0.1], 3), [1, 3, 0]);
        assert_eq!(top_k(&[0.2, 0.5], 5), [1, 0]);
    }

    #[test]
    fn the_expert_that_crosses_top_p_is_kept() {
        // Totals 0.5, 0.3, 0.2: mass before the second is 0.5 < 0.6, before the third 0.8.
        assert_eq!(coreset(&[0.5, 0.2, 0.3], &moe(3, 3, true), 0.6), [0, 2]);
        assert_eq!(coreset(&[0.5, 0.2, 0.3], &moe(3, 3, true), 1e-6), [0]);
    }

    #[test]
    fn totals_count_only_a_rows_own_choices() {
        // Expert 2 is never in a top-1, so its probability does not count.
        let probs = [0.6, 0.0, 0.4, 0.0, 0.6, 0.4];
        assert_eq!(coreset(&probs, &moe(3, 1, true), 0.9), [0, 1]);
    }

    #[test]
    fn a_small_coreset_narrows_the_choice_and_renormalises() {
        let routes = route(&[0.5, 0.3, 0.2], &moe(3, 2, true), Some(&[2]));
        assert_eq!(routes.row(0), [Choice { expert: 2, weight: 1.0 }]);
        let routes = route(&[0.5, 0.3, 0.2], &moe(3, 2, false), Some(&[1, 2]));
        assert_eq!(routes.row(0)[0], Choice { expert: 1, weight: 0.3 });
    }

    #[test]
    fn grouping_by_expert_keeps_every_choice() {
        let routes = route(&[0.5, 0.3, 0.2, 0.1, 0.3, 0.6], &moe(3, 2, false), None);
        assert_eq!(
            routes.by_expert(),
            [(0, vec![(0, 0.5)]), (1, vec![(0, 0.3), (1, 0.3)]), (2, vec![(1, 0.6)])]
        );
    }
}
