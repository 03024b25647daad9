//! The loops of an integer product, for any instruction set with vectors of [`Simd::ROWS`] 32-bit
//! lanes.

use std::mem::MaybeUninit;

use super::{BAND, Band, GROUP, Group, LINE, NIBBLES, Rounded, prefetch};

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

    /// Exact dot products with groups of activations.
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [S::Floats; N];
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
    let band = Groups::of::<S>(w, scales.len());
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
    let band = Groups::of::<S>(w, cols / GROUP);
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
        let band = Groups { rows, stride: GROUP, count: 1, first: band.count, next: &[], share: 0 };
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
    stride: usize,
    count: usize,
    first: usize,
    /// As for [`Band`].
    next: &'a [u8],
    /// Bytes of it to ask for with each tile.
    share: usize,
}

impl<'a> Groups<'a> {
    /// All groups of a band.
    #[inline(always)]
    fn of<S: Simd>(w: &Band<'a>, count: usize) -> Self {
        let tiles = (count * (BAND / S::ROWS)).max(1);
        let share = w.next.len().div_ceil(LINE * tiles) * LINE;
        Groups { rows: w.rows.map(<[u8]>::as_ptr), stride: w.stride, count, first: 0, next: w.next, share }
    }

    /// Group `g` of the weight rows from `first` on. Asks for its share of what is read next: weights come from
    /// memory, and in order, while the loads of a tile go to many places at once.
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Tile<S>>(&self, first: usize, g: usize) -> T {
        let from = (first / S::ROWS * self.count + g) * self.share;
        if let Some(rest) = self.next.get(from..) {
            prefetch(&rest[..rest.len().min(self.share)]);
        }
        // SAFETY: the caller's promise.
        unsafe { T::load(&self.rows[first..first + S::ROWS], g * self.stride) }
    }
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

/// Up to four activation rows, which meet each tile as it is loaded.
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
        let mut at = [std::ptr::null(); N];
        for (at, &row) in at.iter_mut().zip(picked) {
            *at = x.groups.as_ptr().add(row as usize * x.width + band.first);
        }
        let mut sums = [S::splat(0.0); N];
        for g in 0..band.count {
            let tile = band.tile::<S, T>(first, g);
            step::<S, T, SCALED, N>(&tile, scale::<S, SCALED>(scales, g, first), &mut at, &mut sums);
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            S::store(out[first..].as_mut_ptr(), sum);
        }
    }
}

/// Groups whose tiles are kept in first-level cache while activation rows go by.
const KEPT: usize = 16;

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
    // SAFETY: the caller's promise; tiles are read after they were written.
    unsafe {
        let mut kept = [const { MaybeUninit::<T>::uninit() }; KEPT];
        for start in (0..band.count).step_by(KEPT) {
            let count = KEPT.min(band.count - start);
            for (g, tile) in (start..).zip(&mut kept[..count]) {
                tile.write(band.tile::<S, T>(first, g));
            }
            let tiles = std::slice::from_raw_parts(kept.as_ptr().cast::<T>(), count);
            let part = Part { first: band.first + start, tiles, scales: scales.get(start..).unwrap_or(&[]) };
            let (eights, out_eights) = (picked.as_chunks::<8>(), out.as_chunks_mut::<8>());
            for (picked, out) in eights.0.iter().zip(out_eights.0) {
                part.add::<S, SCALED, 8>(first, x, picked, out);
            }
            let (fours, out_fours) = (eights.1.as_chunks::<4>(), out_eights.1.as_chunks_mut::<4>());
            for (picked, out) in fours.0.iter().zip(out_fours.0) {
                part.add::<S, SCALED, 4>(first, x, picked, out);
            }
            let (ones, out_ones) = (fours.1.as_chunks::<1>(), out_fours.1.as_chunks_mut::<1>());
            for (picked, out) in ones.0.iter().zip(out_ones.0) {
                part.add::<S, SCALED, 1>(first, x, picked, out);
            }
        }
    }
}

/// Some groups of a band, turned.
struct Part<'a, T> {
    /// Place of the first among those of the activations.
    first: usize,
    tiles: &'a [T],
    /// From the first of them on, if groups have scales.
    scales: &'a [[f32; BAND]],
}

impl<T> Part<'_, T> {
    /// Products with `N` activation rows, added to `out` in registers.
    #[inline(always)]
    unsafe fn add<S: Simd, const SCALED: bool, const N: usize>(
        &self,
        first: usize,
        x: &Rounded<'_>,
        picked: &[u32; N],
        out: &mut [[f32; BAND]; N],
    ) where
        T: Tile<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let mut at = [std::ptr::null(); N];
            let mut sums = [S::splat(0.0); N];
            for i in 0..N {
                at[i] = x.groups.as_ptr().add(picked[i] as usize * x.width + self.first);
                sums[i] = S::load(out[i][first..].as_ptr());
            }
            for (g, tile) in self.tiles.iter().enumerate() {
                let scale = scale::<S, SCALED>(self.scales, g, first);
                step::<S, T, SCALED, N>(tile, scale, &mut at, &mut sums);
            }
            for i in 0..N {
                S::store(out[i][first..].as_mut_ptr(), sums[i]);
            }
        }
    }
}

/// Scales of group `g` for the weight rows from `first` on.
#[inline(always)]
unsafe fn scale<S: Simd, const SCALED: bool>(scales: &[[f32; BAND]], g: usize, first: usize) -> S::Floats {
    // SAFETY: the caller's promise.
    unsafe {
        match SCALED {
            true => S::load(scales.get_unchecked(g)[first..].as_ptr()),
            false => S::splat(1.0),
        }
    }
}

/// Adds one group's products to `sums`, and goes on to the next group of the activations.
#[inline(always)]
unsafe fn step<S: Simd, T: Tile<S>, const SCALED: bool, const N: usize>(
    tile: &T,
    scale: S::Floats,
    at: &mut [*const Group; N],
    sums: &mut [S::Floats; N],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let dots = tile.dots(*at);
        for i in 0..N {
            let x_scale = S::splat((*at[i]).scale);
            let factor = if SCALED { S::mul(scale, x_scale) } else { x_scale };
            sums[i] = S::fma(factor, dots[i], sums[i]);
            at[i] = at[i].wrapping_add(1);
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
    let x = [Group { quants: [3; GROUP], ..Group::default() }; X];
    // SAFETY: rows and activations are whole groups.
    unsafe {
        let tile = T::load(&weights.each_ref().map(|row| row.as_ptr()), 0);
        let mut sums = [S::splat(0.0); X];
        for _ in 0..rounds {
            let x = std::hint::black_box(&x).each_ref().map(std::ptr::from_ref);
            for (sum, dots) in sums.iter_mut().zip(tile.dots(x)) {
                *sum = S::add(*sum, dots);
            }
        }
        std::hint::black_box(S::totals(sums));
    }
    (2 * GROUP * S::ROWS * X) as f64
}
