//! Loops over f32, for any instruction set. A sum's order depends on its length and on the number of
//! lanes, never on what else is computed beside it.

use super::DeltaRule;
use super::shape::Simd;

/// Inner products: [`Isa::dots`](super::Isa::dots).
///
/// # Safety
/// The instruction set is there; `x` and `w` are whole rows of `cols`, `out` is `[w rows, x rows]`.
#[inline(always)]
pub(super) unsafe fn dots<S: Simd>(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let (rows, n) = (w.len() / cols, x.len() / cols);
    let mut row = 0;
    // SAFETY: the caller's promise; `row` and `at` stay below `rows` and `n`.
    unsafe {
        // Enough independent sums to cover the latency of a multiply-add.
        while row < rows {
            let mut at = 0;
            if row + 4 <= rows {
                while at + 2 <= n {
                    dots_of::<S, 4, 2>(w, x, cols, (row, at), n, out);
                    at += 2;
                }
                if at < n {
                    dots_of::<S, 4, 1>(w, x, cols, (row, at), n, out);
                }
                row += 4;
            } else {
                while at < n {
                    dots_of::<S, 1, 1>(w, x, cols, (row, at), n, out);
                    at += 1;
                }
                row += 1;
            }
        }
    }
}

/// `W × X` inner products, `W` being four or one, of rows from `(row, at)` on.
#[inline(always)]
unsafe fn dots_of<S: Simd, const W: usize, const X: usize>(
    w: &[f32],
    x: &[f32],
    cols: usize,
    (row, at): (usize, usize),
    n: usize,
    out: &mut [f32],
) {
    let whole = cols / S::ROWS * S::ROWS;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); X]; W];
        for c in (0..whole).step_by(S::ROWS) {
            let mut xs = [S::splat(0.0); X];
            for (i, x_vector) in xs.iter_mut().enumerate() {
                *x_vector = S::load(x.as_ptr().add((at + i) * cols + c));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = S::load(w.as_ptr().add((row + r) * cols + c));
                for (sum, x) in sums.iter_mut().zip(xs) {
                    *sum = S::fma(w, x, *sum);
                }
            }
        }
        for i in 0..X {
            // Four sums together cost little more than one. (A row alone is all four.)
            let totals = S::totals([sums[0][i], sums[1 % W][i], sums[2 % W][i], sums[3 % W][i]]);
            for (r, total) in totals.into_iter().enumerate().take(W) {
                let mut dot = total;
                for c in whole..cols {
                    dot = w[(row + r) * cols + c].mul_add(x[(at + i) * cols + c], dot);
                }
                out[(row + r) * n + at + i] = dot;
            }
        }
    }
}

/// [`Isa::add_weighted_rows`](super::Isa::add_weighted_rows).
///
/// # Safety
/// The instruction set is there; `rows` is whole rows of `width`, `out` `[n, width]` and `weights`
/// `[n, rows]`.
#[inline(always)]
pub(super) unsafe fn add_weighted_rows<S: Simd>(
    weights: &[f32],
    rows: &[f32],
    width: usize,
    out: &mut [f32],
) {
    let n = out.len() / width;
    let mut at = 0;
    // SAFETY: the caller's promise; `at` stays below `n`.
    unsafe {
        while at + 2 <= n {
            weighted_rows_of::<S, 2>(weights, rows, width, at, out);
            at += 2;
        }
        if at < n {
            weighted_rows_of::<S, 1>(weights, rows, width, at, out);
        }
    }
}

#[inline(always)]
unsafe fn weighted_rows_of<S: Simd, const N: usize>(
    weights: &[f32],
    rows: &[f32],
    width: usize,
    at: usize,
    out: &mut [f32],
) {
    /// Vectors of a row that are summed together.
    const V: usize = 4;
    let count = rows.len() / width;
    let whole = width / (V * S::ROWS) * (V * S::ROWS);
    // SAFETY: the caller's promise.
    unsafe {
        for c in (0..whole).step_by(V * S::ROWS) {
            let mut sums = [[S::splat(0.0); V]; N];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(out.as_ptr().add((at + i) * width + c + v * S::ROWS));
                }
            }
            for s in 0..count {
                let mut row = [S::splat(0.0); V];
                for (v, values) in row.iter_mut().enumerate() {
                    *values = S::load(rows.as_ptr().add(s * width + c + v * S::ROWS));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.get_unchecked((at + i) * count + s));
                    for (sum, values) in sums.iter_mut().zip(row) {
                        *sum = S::fma(weight, values, *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    S::store(out.as_mut_ptr().add((at + i) * width + c + v * S::ROWS), *sum);
                }
            }
        }
    }
    for i in at..at + N {
        for c in whole..width {
            let terms = weights[i * count..].iter().zip(rows[c..].iter().step_by(width)).take(count);
            out[i * width + c] = terms.fold(out[i * width + c], |sum, (w, v)| w.mul_add(*v, sum));
        }
    }
}

/// [`Isa::delta_rule`](super::Isa::delta_rule).
///
/// # Safety
/// The instruction set is there; sizes agree and the width is a multiple of the lanes.
#[inline(always)]
pub(super) unsafe fn delta_rule<S: Simd>(rule: DeltaRule<'_>) {
    let width = rule.value_dim;
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let mut rule = rule;
        while at + 4 * S::ROWS <= width {
            delta_columns::<S, 4>(&mut rule, at);
            at += 4 * S::ROWS;
        }
        while at < width {
            delta_columns::<S, 1>(&mut rule, at);
            at += S::ROWS;
        }
    }
}

/// `V` vectors of columns over all rows. They lie together in `strip` while the rows go by.
#[inline(always)]
unsafe fn delta_columns<S: Simd, const V: usize>(rule: &mut DeltaRule<'_>, at: usize) {
    let DeltaRule { key_dim, value_dim, queries, keys, values, decay, beta, memory, strip, out } = rule;
    let (dk, dv, columns) = (*key_dim, *value_dim, V * S::ROWS);
    let read_scale = 1.0 / (dk as f32).sqrt();
    strip.clear();
    for row in memory.chunks_exact(dv) {
        strip.extend_from_slice(&row[at..at + columns]);
    }
    let strip = strip.as_mut_ptr();
    // SAFETY: `strip` is `[dk, columns]`; the caller's promise for the others.
    unsafe {
        for t in 0..decay.len() {
            let (q, k) = (queries.as_ptr().add(t * dk), keys.as_ptr().add(t * dk));
            let mut found = [[S::splat(0.0); V]; 2];
            for i in (0..dk).step_by(2) {
                for (j, found) in found.iter_mut().enumerate().take(dk - i) {
                    let k = S::splat(*k.add(i + j));
                    for (v, found) in found.iter_mut().enumerate() {
                        *found = S::fma(k, S::load(strip.add((i + j) * columns + v * S::ROWS)), *found);
                    }
                }
            }
            let (kept, strength) = (S::splat(decay[t]), S::splat(beta[t]));
            let mut error = [S::splat(0.0); V];
            for (v, error) in error.iter_mut().enumerate() {
                let value = S::load(values.as_ptr().add(t * dv + at + v * S::ROWS));
                let found = S::mul(kept, S::add(found[0][v], found[1][v]));
                *error = S::mul(strength, S::sub(value, found));
            }
            let mut read = [S::splat(0.0); V];
            for i in 0..dk {
                let (k, q) = (S::splat(*k.add(i)), S::splat(*q.add(i)));
                for (v, read) in read.iter_mut().enumerate() {
                    let place = strip.add(i * columns + v * S::ROWS);
                    let new = S::fma(k, error[v], S::mul(kept, S::load(place)));
                    S::store(place, new);
                    *read = S::fma(q, new, *read);
                }
            }
            for (v, read) in read.iter().enumerate() {
                let scaled = S::mul(S::splat(read_scale), *read);
                S::store(out.as_mut_ptr().add(t * dv + at + v * S::ROWS), scaled);
            }
        }
        for (i, row) in memory.chunks_exact_mut(dv).enumerate() {
            row[at..at + columns]
                .copy_from_slice(std::slice::from_raw_parts(strip.add(i * columns), columns));
        }
    }
}
