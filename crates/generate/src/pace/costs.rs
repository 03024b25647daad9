//! What a pass costs by its rows, learned from passes.

use std::collections::BTreeMap;

/// Longer commits are prompts: another regime, of which too few come to learn from.
const LONGEST: usize = 64;

/// Samples of which an average is made, and with which it stands for itself.
const KNOWN: u32 = 16;

/// Times the average that a pass counts for at most: of passes that took longer, the host was held up. Otherwise shapes
/// would differ more by who was held up than by what they take.
const HELD_UP: f64 = 1.25;

/// Relative cost of a row before anything is known of it.
const ROW: f64 = 0.05;

/// Pass times by committed and previewed rows.
///
/// A shape that was seen has a moving average. One that was not is read off a plane over the rows,
/// fitted to the averages, but costs no less than what was seen of fewer rows and no more than what
/// was seen of more. The plane also tempers averages of few samples.
#[derive(Debug, Default)]
pub(super) struct Costs {
    seen: BTreeMap<(usize, usize), Seen>,
}

#[derive(Debug)]
struct Seen {
    mean: f64,
    samples: u32,
}

impl Costs {
    /// Takes the time of a pass over `commit` and `preview` rows, in seconds.
    pub(super) fn add(&mut self, commit: usize, preview: usize, time: f64) {
        // An executor may report nothing; a pass is never free.
        let time = time.max(1e-9);
        if commit > LONGEST || !time.is_finite() {
            return;
        }
        let seen = self.seen.entry((commit, preview)).or_insert(Seen { mean: time, samples: 0 });
        seen.samples = seen.samples.saturating_add(1);
        let time = if seen.samples > 3 { time.min(HELD_UP * seen.mean) } else { time };
        seen.mean += (time - seen.mean) / f64::from(seen.samples.min(KNOWN));
    }

    /// Samples of a shape.
    pub(super) fn samples(&self, commit: usize, preview: usize) -> u32 {
        self.seen.get(&(commit, preview)).map_or(0, |seen| seen.samples)
    }

    /// Fits the plane.
    pub(super) fn plane(&self) -> Plane {
        let Some(scale) = self.seen.iter().map(|(&rows, seen)| seen.mean / prior(rows)).reduce(f64::min)
        else {
            return Plane { fixed: 1.0, commit: ROW, preview: ROW };
        };
        // Weighted least squares on relative errors, drawn towards the prior. In units of the prior's
        // terms, so that the pull is the same on each: unknowns 1, 1, 1 are the prior itself.
        let (mut a, mut b) = ([[0.0; 3]; 3], [0.0; 3]);
        for i in 0..3 {
            (a[i][i], b[i]) = (PULL, PULL);
        }
        for (&(commit, preview), seen) in &self.seen {
            let unit = scale / seen.mean;
            let x = [unit, unit * ROW * commit as f64, unit * ROW * preview as f64];
            let weight = f64::from(seen.samples.min(8));
            for i in 0..3 {
                for j in 0..3 {
                    a[i][j] += weight * x[i] * x[j];
                }
                b[i] += weight * x[i];
            }
        }
        let u = solve(a, b).map(|u| scale * u.max(0.0));
        Plane { fixed: u[0], commit: ROW * u[1], preview: ROW * u[2] }
    }

    /// Expected time of a pass, in seconds.
    pub(super) fn time(&self, plane: &Plane, commit: usize, preview: usize) -> f64 {
        let expected = || self.bound(plane.at(commit, preview), commit, preview);
        match self.seen.get(&(commit, preview)) {
            // Nothing to be tempered; and this is asked for every shape before every pass.
            Some(seen) if seen.samples >= KNOWN => seen.mean,
            Some(seen) => {
                let n = f64::from(seen.samples);
                (n * seen.mean + expected()) / (n + 1.0)
            }
            None => expected(),
        }
    }

    /// Keeps an expectation between what smaller and what larger passes took.
    fn bound(&self, expected: f64, commit: usize, preview: usize) -> f64 {
        let (mut least, mut most) = (0.0f64, f64::INFINITY);
        for (&(c, p), seen) in &self.seen {
            if c <= commit && p <= preview {
                least = least.max(seen.mean);
            }
            if c >= commit && p >= preview {
                most = most.min(seen.mean);
            }
        }
        // Noise can put the bounds in the wrong order.
        expected.min(most).max(least.min(most))
    }
}

/// Weight of the prior on each term of the plane: it decides what no sample speaks of, no more.
const PULL: f64 = 1e-4;

fn prior((commit, preview): (usize, usize)) -> f64 {
    1.0 + ROW * (commit + preview) as f64
}

/// `fixed + commit · rows + preview · rows`, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    fixed: f64,
    commit: f64,
    preview: f64,
}

impl Plane {
    fn at(&self, commit: usize, preview: usize) -> f64 {
        // All terms can be zero where the executor reports no times.
        (self.fixed + self.commit * commit as f64 + self.preview * preview as f64).max(1e-9)
    }
}

/// Solves a symmetric positive definite system by elimination; no pivoting is needed.
fn solve(mut a: [[f64; 3]; 3], mut b: [f64; 3]) -> [f64; 3] {
    for i in 0..3 {
        let (pivot, right) = (a[i], b[i]);
        for j in i + 1..3 {
            let factor = a[j][i] / pivot[i];
            a[j].iter_mut().zip(pivot).for_each(|(value, above)| *value -= factor * above);
            b[j] -= factor * right;
        }
    }
    for i in (0..3).rev() {
        let known: f64 = (i + 1..3).map(|k| a[i][k] * b[k]).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_is_found_and_extended() {
        let truth = |commit: usize, preview: usize| 2e-3 + 1e-4 * commit as f64 + 3e-4 * preview as f64;
        let mut costs = Costs::default();
        for (commit, preview) in [(1, 0), (1, 16), (12, 0)] {
            for _ in 0..20 {
                costs.add(commit, preview, truth(commit, preview));
            }
        }
        let plane = costs.plane();
        for (commit, preview) in [(1, 0), (1, 8), (6, 0), (16, 16)] {
            let (got, want) = (costs.time(&plane, commit, preview), truth(commit, preview));
            // The prior's pull is 0.01 against weights of 8.
            assert!((got / want - 1.0).abs() < 0.02, "{commit}+{preview}: {got} should be {want}");
        }
    }

    #[test]
    fn what_was_measured_counts_more_than_the_plane() {
        let mut costs = Costs::default();
        for _ in 0..50 {
            costs.add(1, 0, 1.0);
            costs.add(8, 0, 1.0);
            costs.add(9, 0, 2.0);
        }
        let plane = costs.plane();
        assert!((costs.time(&plane, 8, 0) - 1.0).abs() < 0.02);
        assert!((costs.time(&plane, 9, 0) - 2.0).abs() < 0.02);
    }

    #[test]
    fn outliers_and_silent_executors_do_no_harm() {
        let mut costs = Costs::default();
        for i in 0..100 {
            costs.add(1, 0, if i == 50 { 1e3 } else { 1.0 });
        }
        assert!(costs.time(&costs.plane(), 1, 0) < 1.1);
        let mut silent = Costs::default();
        silent.add(1, 0, 0.0);
        assert!(silent.time(&silent.plane(), 1, 16) > 0.0);
    }
}
