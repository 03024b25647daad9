//! The loops of an integer product, for any instruction set with vectors of [`Simd::ROWS`] 32-bit
//! lanes.

use super::{AHEAD, BAND, Band, GROUP, LINE, NIBBLES, Rounded};

/// What the loops need of an instruction set. Everything is inlined into functions that enable it.
///
/// # Safety
/// Callers have the instruction set; pointers are valid for a vector, at any alignment.
pub(super) trait Simd: Copy {
    /// Weight rows in a vector; divides [`BAND`].
    const ROWS: usize;
    /// As many numbers as rows.
    type Floats: Copy;

    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn load(from: *const f32) -> Self::Floats;
    unsafe fn store(to: *mut f32, value: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Sums over the lanes of each, all in one order.
    unsafe fn totals(values: [Self::Floats; 4]) -> [f32; 4];
    /// Asks for the cache line at `at`, which need not be valid.
    unsafe fn prefetch(at: *const u8);
}

/// One group of [`Simd::ROWS`] weight rows in registers, turned so that a vector holds four columns
/// of each row.
///
/// # Safety
/// As for [`Simd`].
pub(super) trait Tile<S: Simd>: Copy {
    /// Bytes of a row's group.
    const BYTES: usize;

    /// Loads from the first [`Simd::ROWS`] rows of `rows`, `at` bytes into each.
    unsafe fn load(rows: &[*const u8], at: usize) -> Self;

    /// Exact dot products with the groups at `x`, whose corrections are `biases`.
    unsafe fn dots<const N: usize>(&self, x: [*const i8; N], biases: [i32; N]) -> [S::Floats; N];
}

/// [`Isa::nibbles`](super::Isa::nibbles).
///
/// # Safety
/// The instruction set is there and sizes agree.
#[inline(always)]
pub(super) unsafe fn nibbles<S: Simd, T: Tile<S>>(
    w: &Band<'_>,
    scales: &[[f32; BAND]],
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    const { assert!(T::BYTES == NIBBLES) };
    let band = Groups { rows: w.rows.map(<[u8]>::as_ptr), w, count: scales.len(), first: 0 };
    // SAFETY: the caller's promise.
    unsafe { all::<S, T, true>(&band, scales, x, picked, out) }
}

/// [`Isa::bytes`](super::Isa::bytes).
///
/// # Safety
/// The instruction set is there and sizes agree.
#[inline(always)]
pub(super) unsafe fn bytes<S: Simd, T: Tile<S>>(
    w: &Band<'_>,
    cols: usize,
    scales: &[f32; BAND],
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    const { assert!(T::BYTES == GROUP) };
    let band = Groups { rows: w.rows.map(<[u8]>::as_ptr), w, count: cols / GROUP, first: 0 };
    // SAFETY: the caller's promise.
    unsafe { all::<S, T, false>(&band, &[], x, picked, out) };
    if !cols.is_multiple_of(GROUP) {
        // Activations past the last column are zero: any weight will do.
        let mut padded = [[0; GROUP]; BAND];
        for (to, from) in padded.iter_mut().zip(w.rows) {
            let rest = &from[band.count * GROUP..];
            to[..rest.len()].copy_from_slice(rest);
        }
        let rows = padded.each_ref().map(|row| row.as_ptr());
        let band = Groups { rows, w: &Band { ahead: 0, ..*w }, count: 1, first: band.count };
        for first in (0..BAND).step_by(S::ROWS) {
            // SAFETY: the caller's promise; a padded row is a whole group.
            unsafe { many::<S, T, false>(&band, &[], first, x, picked, out) };
        }
    }
    for out in out {
        for (out, scale) in out.iter_mut().zip(scales) {
            *out *= scale;
        }
    }
}

/// Groups of a band, the first of which is group `first` of the activations.
struct Groups<'a> {
    rows: [*const u8; BAND],
    w: &'a Band<'a>,
    count: usize,
    first: usize,
}

#[inline(always)]
unsafe fn all<S: Simd, T: Tile<S>, const SCALED: bool>(
    band: &Groups<'_>,
    scales: &[[f32; BAND]],
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    for first in (0..BAND).step_by(S::ROWS) {
        // SAFETY: the caller's promise.
        unsafe {
            match picked.len() {
                0 => {}
                1 => few::<S, T, SCALED, 1>(band, scales, first, x, picked, out),
                2 => few::<S, T, SCALED, 2>(band, scales, first, x, picked, out),
                3 => few::<S, T, SCALED, 3>(band, scales, first, x, picked, out),
                4 => few::<S, T, SCALED, 4>(band, scales, first, x, picked, out),
                _ => {
                    out.iter_mut().for_each(|out| out[first..first + S::ROWS].fill(0.0));
                    many::<S, T, SCALED>(band, scales, first, x, picked, out);
                }
            }
        }
    }
}

/// Asks for what `rows` will read some groups after group `g`; past their end for the rows after the band.
/// Weights come from memory, in many short runs side by side that the processor does not foresee.
#[inline(always)]
unsafe fn ask_ahead<S: Simd, T: Tile<S>>(band: &Groups<'_>, rows: &[*const u8], g: usize) {
    if band.w.ahead == 0 || !g.is_multiple_of(LINE / T::BYTES) {
        return;
    }
    let (to, len) = (g * band.w.stride + AHEAD, band.count * band.w.stride);
    let to = if to < len { to } else { to - len + band.w.ahead };
    for row in rows {
        // SAFETY: the caller has the instruction set; the address need not be valid.
        unsafe { S::prefetch(row.wrapping_add(to)) };
    }
}

/// `N` activation rows, their sums in registers.
#[inline(always)]
unsafe fn few<S: Simd, T: Tile<S>, const SCALED: bool, const N: usize>(
    band: &Groups<'_>,
    scales: &[[f32; BAND]],
    first: usize,
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let rows = &band.rows[first..first + S::ROWS];
        let mut places = [0; N];
        for (place, &row) in places.iter_mut().zip(picked) {
            *place = band.first * x.rows + row as usize;
        }
        let mut sums = [S::splat(0.0); N];
        for g in 0..band.count {
            let at = g * band.w.stride;
            ask_ahead::<S, T>(band, rows, g);
            let tile = T::load(rows, at);
            let scale =
                if SCALED { S::load(scales.get_unchecked(g)[first..].as_ptr()) } else { S::splat(1.0) };
            step::<S, T, SCALED, N>(&tile, scale, x, places, &mut sums);
            for place in &mut places {
                *place += x.rows;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            S::store(out[first..].as_mut_ptr(), sum);
        }
    }
}

/// Any number of activation rows, added to their sums in `out`.
#[inline(always)]
unsafe fn many<S: Simd, T: Tile<S>, const SCALED: bool>(
    band: &Groups<'_>,
    scales: &[[f32; BAND]],
    first: usize,
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let rows = &band.rows[first..first + S::ROWS];
        for g in 0..band.count {
            ask_ahead::<S, T>(band, rows, g);
            let tile = T::load(rows, g * band.w.stride);
            let scale =
                if SCALED { S::load(scales.get_unchecked(g)[first..].as_ptr()) } else { S::splat(1.0) };
            let group = (band.first + g) * x.rows;
            let (fours, rest) = picked.as_chunks::<4>();
            let (out_fours, out_rest) = out.as_chunks_mut::<4>();
            for (picked, out) in fours.iter().zip(out_fours) {
                some::<S, T, SCALED, 4>(&tile, scale, x, group, first, picked, out);
            }
            for (picked, out) in rest.as_chunks::<1>().0.iter().zip(out_rest.as_chunks_mut::<1>().0) {
                some::<S, T, SCALED, 1>(&tile, scale, x, group, first, picked, out);
            }
        }
    }
}

/// One group for `N` rows, their sums in memory.
#[inline(always)]
unsafe fn some<S: Simd, T: Tile<S>, const SCALED: bool, const N: usize>(
    tile: &T,
    scale: S::Floats,
    x: &Rounded<'_>,
    group: usize,
    first: usize,
    picked: &[u32; N],
    out: &mut [[f32; BAND]; N],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut places = [0; N];
        let mut sums = [S::splat(0.0); N];
        for i in 0..N {
            places[i] = group + picked[i] as usize;
            sums[i] = S::load(out[i][first..].as_ptr());
        }
        step::<S, T, SCALED, N>(tile, scale, x, places, &mut sums);
        for i in 0..N {
            S::store(out[i][first..].as_mut_ptr(), sums[i]);
        }
    }
}

/// Adds one group's products to `sums`; `places` are its groups among those of the activations.
#[inline(always)]
unsafe fn step<S: Simd, T: Tile<S>, const SCALED: bool, const N: usize>(
    tile: &T,
    scale: S::Floats,
    x: &Rounded<'_>,
    places: [usize; N],
    sums: &mut [S::Floats; N],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut quants = [std::ptr::null(); N];
        let mut biases = [0; N];
        for i in 0..N {
            quants[i] = x.quants.as_ptr().add(places[i]).cast();
            biases[i] = *x.biases.get_unchecked(places[i]);
        }
        let dots = tile.dots(quants, biases);
        for i in 0..N {
            let x_scale = S::splat(*x.scales.get_unchecked(places[i]));
            let factor = if SCALED { S::mul(scale, x_scale) } else { x_scale };
            sums[i] = S::fma(factor, dots[i], sums[i]);
        }
    }
}

/// Dot products of one tile with four activation rows, all in first-level cache, `rounds` times: what the
/// integer units do at best. Returns the operations of a round.
///
/// # Safety
/// The instruction set is there.
#[inline(always)]
pub(super) unsafe fn peak<S: Simd, T: Tile<S>>(rounds: usize) -> f64 {
    const X: usize = 4;
    let weights = [[0x57u8; GROUP]; BAND];
    let x = [[3i8; GROUP]; X];
    // SAFETY: rows and activations are whole groups.
    unsafe {
        let tile = T::load(&weights.each_ref().map(|row| row.as_ptr()), 0);
        let mut sums = [S::splat(0.0); X];
        for _ in 0..rounds {
            let x = std::hint::black_box(&x).each_ref().map(|row| row.as_ptr());
            for (sum, dots) in sums.iter_mut().zip(tile.dots(x, [0; X])) {
                *sum = S::add(*sum, dots);
            }
        }
        std::hint::black_box(S::totals(sums));
    }
    (2 * GROUP * S::ROWS * X) as f64
}
