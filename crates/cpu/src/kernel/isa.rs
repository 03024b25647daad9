//! Instruction sets, and the way from an operation to its kernel.

use super::{BAND, Band, Columns, DeltaRule, GROUP, NIBBLES, Rounded, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx_vnni, avx2, avx512};
#[cfg(target_arch = "aarch64")]
use super::{neon, neon_i8mm};

/// Instruction set, chosen once per executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the compiler targets.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Proof),
    /// The same with 256-bit VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Proof),
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Proof),
    /// 64-bit Arm with NEON and the dot product extension.
    #[cfg(target_arch = "aarch64")]
    Neon(Proof),
    /// The same with the 8-bit matrix product extension.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(Proof),
}

/// Proof that the processor has what a variant of [`Isa`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(());

/// Plain loops to be compiled for an instruction set. Implementations mark [`Loops::run`]
/// `#[inline(always)]`, so that it takes on the target features of the function it lands in.
pub(crate) trait Loops {
    fn run(self);
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Portable)
    }

    /// All that this processor has, the best last.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                all.push(Isa::Avx2(Proof(())));
                if has!("avxvnni") {
                    all.push(Isa::AvxVnni(Proof(())));
                }
                if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vnni") {
                    all.push(Isa::Avx512(Proof(())));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.push(Isa::Neon(Proof(())));
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                all.push(Isa::NeonI8mm(Proof(())));
            }
        }
        all
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(_) => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "AVX-512 VNNI",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => "NEON",
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm(_) => "NEON i8mm",
        }
    }

    /// Runs plain loops compiled for this instruction set; what they call must be inlined. A closure
    /// is inlined only where it is short: long loops are [`Loops`].
    #[inline]
    pub fn run<R>(self, loops: impl FnOnce() -> R) -> R {
        match self {
            Isa::Portable => loops(),
            #[cfg(target_arch = "aarch64")]
            // NEON is part of the target.
            Isa::Neon(_) | Isa::NeonI8mm(_) => loops(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) | Isa::AvxVnni(_) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn wide<R>(loops: impl FnOnce() -> R) -> R {
                    loops()
                }
                // SAFETY: the variants prove the features.
                unsafe { wide(loops) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
                fn wide<R>(loops: impl FnOnce() -> R) -> R {
                    loops()
                }
                // SAFETY: the variant proves the features.
                unsafe { wide(loops) }
            }
        }
    }

    /// [`Isa::run`] for loops too long for the compiler to inline a closure.
    #[inline]
    pub(crate) fn run_long<L: Loops>(self, loops: L) {
        match self {
            Isa::Portable => loops.run(),
            #[cfg(target_arch = "aarch64")]
            // NEON is part of the target.
            Isa::Neon(_) | Isa::NeonI8mm(_) => loops.run(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) | Isa::AvxVnni(_) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn wide<L: Loops>(loops: L) {
                    loops.run();
                }
                // SAFETY: the variants prove the features.
                unsafe { wide(loops) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
                fn wide<L: Loops>(loops: L) {
                    loops.run();
                }
                // SAFETY: the variant proves the features.
                unsafe { wide(loops) }
            }
        }
    }

    /// Products of a band of 4-bit rows (`nibble − 8`) with the `picked` rows of `x`, whose columns
    /// are [paired](super::Columns::Paired): `out[i][r]` over all groups. `scales` is
    /// `[groups][band row]`.
    ///
    /// # Panics
    /// If the parts do not have the sizes that `scales` and `out` imply.
    pub fn nibbles(
        self,
        w: &Band<'_>,
        scales: &[[f32; BAND]],
        x: &Rounded<'_>,
        picked: &[u32],
        out: &mut [[f32; BAND]],
    ) {
        w.check(scales.len(), NIBBLES);
        x.check(scales.len(), picked);
        assert_eq!(picked.len(), out.len());
        match self {
            Isa::Portable => portable::nibbles(w, scales, x, picked, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features; the sizes were checked.
            Isa::Avx2(_) => unsafe { avx2::nibbles(w, scales, x, picked, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AvxVnni(_) => unsafe { avx_vnni::nibbles(w, scales, x, picked, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) => unsafe { avx512::nibbles(w, scales, x, picked, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) => unsafe { neon::nibbles(w, scales, x, picked, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonI8mm(_) => unsafe { neon_i8mm::nibbles(w, scales, x, picked, out) },
        }
    }

    /// Products of a band of 8-bit rows (two's complement, `cols` bytes each) with the `picked` rows
    /// of `x`, whose columns are in natural order and zero past `cols`: `out[i][r]`, scaled by
    /// `scales`.
    ///
    /// # Panics
    /// If the parts do not have the sizes that `cols` and `out` imply.
    pub fn bytes(
        self,
        w: &Band<'_>,
        cols: usize,
        scales: &[f32; BAND],
        x: &Rounded<'_>,
        picked: &[u32],
        out: &mut [[f32; BAND]],
    ) {
        assert!(w.rows.iter().all(|row| row.len() == cols) && w.stride == GROUP, "a weight row differs");
        x.check(cols.div_ceil(GROUP), picked);
        assert_eq!(picked.len(), out.len());
        match self {
            Isa::Portable => portable::bytes(w, cols, scales, x, picked, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features; the sizes were checked.
            Isa::Avx2(_) => unsafe { avx2::bytes(w, cols, scales, x, picked, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AvxVnni(_) => unsafe { avx_vnni::bytes(w, cols, scales, x, picked, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) => unsafe { avx512::bytes(w, cols, scales, x, picked, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) => unsafe { neon::bytes(w, cols, scales, x, picked, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonI8mm(_) => unsafe { neon_i8mm::bytes(w, cols, scales, x, picked, out) },
        }
    }

    /// Inner products of every row of `w` `[rows, cols]` with every row of `x` `[n, cols]` into
    /// `out` `[rows, n]`.
    ///
    /// # Panics
    /// If `out` has another size.
    pub fn dots(self, w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
        assert!(w.len().is_multiple_of(cols) && x.len().is_multiple_of(cols), "not whole rows");
        assert_eq!(out.len(), (w.len() / cols) * (x.len() / cols));
        match self {
            Isa::Portable => portable::dots(w, x, cols, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features; the sizes were checked.
            Isa::Avx2(_) | Isa::AvxVnni(_) => unsafe { avx2::dots(w, x, cols, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) => unsafe { avx512::dots(w, x, cols, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) | Isa::NeonI8mm(_) => unsafe { neon::dots(w, x, cols, out) },
        }
    }

    /// `out[i] += Σ weights[i][s] · rows[s]`: `rows` is `[count, width]`, `out` `[n, width]` and
    /// `weights` `[n, count]`.
    ///
    /// # Panics
    /// If the parts do not agree in size.
    pub fn add_weighted_rows(self, weights: &[f32], rows: &[f32], width: usize, out: &mut [f32]) {
        assert!(rows.len().is_multiple_of(width) && out.len().is_multiple_of(width), "not whole rows");
        assert_eq!(weights.len(), (rows.len() / width) * (out.len() / width));
        match self {
            Isa::Portable => portable::add_weighted_rows(weights, rows, width, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features; the sizes were checked.
            Isa::Avx2(_) | Isa::AvxVnni(_) => unsafe { avx2::add_weighted_rows(weights, rows, width, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) => unsafe { avx512::add_weighted_rows(weights, rows, width, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) | Isa::NeonI8mm(_) => unsafe { neon::add_weighted_rows(weights, rows, width, out) },
        }
    }

    /// Runs rows through the delta rule: for each row, with error `e = β (v − k·(decay S))`,
    /// `S ← decay S + k ⊗ e` and the row reads `q·S / √key_dim`.
    ///
    /// # Panics
    /// If the parts do not agree in size.
    pub fn delta_rule(self, rule: DeltaRule<'_>) {
        rule.check();
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features; sizes were checked, and columns come in whole vectors.
            Isa::Avx2(_) | Isa::AvxVnni(_) if rule.value_dim.is_multiple_of(8) => unsafe {
                avx2::delta_rule(rule);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) if rule.value_dim.is_multiple_of(16) => unsafe { avx512::delta_rule(rule) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) | Isa::NeonI8mm(_) if rule.value_dim.is_multiple_of(4) => unsafe {
                neon::delta_rule(rule);
            },
            _ => portable::delta_rule(rule),
        }
    }

    /// Does dot products of groups in first-level cache, as fast as they go, and returns the operations
    /// of each of the `rounds`.
    pub(crate) fn peak(self, columns: Columns, rounds: usize) -> f64 {
        match self {
            Isa::Portable => portable::peak(rounds),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variants prove the features.
            Isa::Avx2(_) => unsafe { avx2::peak(columns, rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AvxVnni(_) => unsafe { avx_vnni::peak(columns, rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512(_) => unsafe { avx512::peak(columns, rounds) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon(_) => unsafe { neon::peak(columns, rounds) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonI8mm(_) => unsafe { neon_i8mm::peak(columns, rounds) },
        }
    }
}
