//! What every instruction set spells alike, written once: the vector operations that are one intrinsic
//! each, and the functions that the loops are compiled into.

/// The operations of [`Simd`](super::shape::Simd) that are one intrinsic each.
macro_rules! vector_operations {
    (
        $floats:ty, splat: $splat:ident, load: $load:ident, store: $store:ident,
        add: $add:ident, sub: $sub:ident, mul: $mul:ident
    ) => {
        type Floats = $floats;

        #[inline(always)]
        unsafe fn splat(value: f32) -> $floats {
            // SAFETY: the caller has the instruction set.
            unsafe { $splat(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> $floats {
            // SAFETY: as above, and `from` is valid for a vector.
            unsafe { $load(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, value: $floats) {
            // SAFETY: as above, for `to`.
            unsafe { $store(to, value) }
        }

        #[inline(always)]
        unsafe fn add(a: $floats, b: $floats) -> $floats {
            // SAFETY: the caller has the instruction set.
            unsafe { $add(a, b) }
        }

        #[inline(always)]
        unsafe fn sub(a: $floats, b: $floats) -> $floats {
            // SAFETY: as above.
            unsafe { $sub(a, b) }
        }

        #[inline(always)]
        unsafe fn mul(a: $floats, b: $floats) -> $floats {
            // SAFETY: as above.
            unsafe { $mul(a, b) }
        }
    };
}

/// The integer products of an instruction set: the loops of [`shape`](super::shape) compiled with its
/// features.
macro_rules! integer_products {
    ($features:literal, $simd:ty, nibbles: $nibbles:ty, bytes: $bytes:ty) => {
        /// # Safety
        /// The processor has the features; sizes agree.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn nibbles(
            w: &super::Band<'_>,
            scales: &[[f32; super::BAND]],
            x: &super::Rounded<'_>,
            picked: &[u32],
            out: &mut [[f32; super::BAND]],
        ) {
            // SAFETY: the caller's promise.
            unsafe { super::shape::nibbles::<$simd, $nibbles>(w, scales, x, picked, out) }
        }

        /// # Safety
        /// The processor has the features; sizes agree.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn bytes(
            w: &super::Band<'_>,
            cols: usize,
            scales: &[f32; super::BAND],
            x: &super::Rounded<'_>,
            picked: &[u32],
            out: &mut [[f32; super::BAND]],
        ) {
            // SAFETY: the caller's promise.
            unsafe { super::shape::bytes::<$simd, $bytes>(w, cols, scales, x, picked, out) }
        }

        /// # Safety
        /// The processor has the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn peak(columns: super::Columns, rounds: usize) -> f64 {
            // SAFETY: the caller's promise.
            unsafe {
                match columns {
                    super::Columns::Natural => super::shape::peak::<$simd, $bytes>(rounds),
                    super::Columns::Paired => super::shape::peak::<$simd, $nibbles>(rounds),
                }
            }
        }
    };
}

/// The loops over f32 of an instruction set: those of [`floats`](super::floats) compiled with its
/// features.
macro_rules! float_loops {
    ($features:literal, $simd:ty) => {
        /// # Safety
        /// The processor has the features; sizes agree.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn dots(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
            // SAFETY: the caller's promise.
            unsafe { super::floats::dots::<$simd>(w, x, cols, out) }
        }

        /// # Safety
        /// The processor has the features; sizes agree.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn add_weighted_rows(weights: &[f32], rows: &[f32], width: usize, out: &mut [f32]) {
            // SAFETY: the caller's promise.
            unsafe { super::floats::add_weighted_rows::<$simd>(weights, rows, width, out) }
        }

        /// # Safety
        /// The processor has the features; sizes agree.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn delta_rule(rule: super::DeltaRule<'_>) {
            // SAFETY: the caller's promise.
            unsafe { super::floats::delta_rule::<$simd>(rule) }
        }
    };
}

pub(super) use {float_loops, integer_products, vector_operations};
