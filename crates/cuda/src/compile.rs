//! Kernels: from source to machine code, kept on disk.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::Path;

use cudarc::nvrtc::{result, sys};
use shamrock_cmf::hash64;
use shamrock_model::{Error, ModelFile, Result};

use crate::geometry::Geometry;
use crate::{BACKEND, KvPrecision, Precision};

const PTX: &str = include_str!("../kernels/ptx.cuh");
const COMMON: &str = include_str!("../kernels/common.cuh");
const LAYOUT: &str = include_str!("../kernels/layout.cuh");
const PRODUCTS: &str = include_str!("../kernels/products.cuh");

const NORM: &str = include_str!("../kernels/norm.cuh");
const ROUTING: &str = include_str!("../kernels/routing.cuh");
const CHOOSE: &str = include_str!("../kernels/choose.cuh");

/// Name and sources of each module, beside what all begin with.
pub(crate) const MODULES: [(&str, &[&str]); 8] = [
    ("repack", &[include_str!("../kernels/repack.cu")]),
    ("norm", &[NORM, include_str!("../kernels/norm.cu")]),
    (
        "gemm",
        &[
            NORM,
            ROUTING,
            CHOOSE,
            PRODUCTS,
            include_str!("../kernels/gemm.cu"),
            include_str!("../kernels/few.cu"),
            include_str!("../kernels/digits.cuh"),
            include_str!("../kernels/one.cu"),
        ],
    ),
    ("wide", &[PRODUCTS, include_str!("../kernels/wide.cu")]),
    (
        "gdn",
        &[
            include_str!("../kernels/gdn.cu"),
            include_str!("../kernels/gdn_step.cu"),
            include_str!("../kernels/gdn_chunk.cu"),
        ],
    ),
    ("attention", &[include_str!("../kernels/attention.cu")]),
    ("routing", &[ROUTING, CHOOSE, include_str!("../kernels/routing.cu")]),
    ("head", &[include_str!("../kernels/head.cu")]),
];

/// Whether NVRTC can be loaded here.
pub fn available() -> bool {
    // SAFETY: only tries to load the library.
    unsafe { sys::is_culib_present() }
}

/// Compiles all kernels for a model and an architecture such as 90 (`sm_90`), without a device.
/// Returns the bytes of machine code of each module.
///
/// # Errors
/// [`Error::Device`] when NVRTC is missing, the model's shape is beyond the kernels, or a kernel
/// does not compile (the compiler's log is in the message).
pub fn check(
    model: &ModelFile,
    arch: u32,
    precision: Precision,
    kv: KvPrecision,
) -> Result<Vec<(&'static str, usize)>> {
    let geometry = Geometry::new(model, precision, kv)?;
    MODULES.iter().map(|&(name, _)| Ok((name, module(&geometry, name, arch, None)?.len()))).collect()
}

/// Steps of weights that a warp has in shared memory in products of few rows: none where a block cannot have
/// the 227 KB of Hopper's and Blackwell's large chips.
pub(crate) fn slots(arch: u32) -> usize {
    if matches!(arch, 90 | 100 | 103) { 8 } else { 0 }
}

/// Machine code of one module, from `cache` if it is there.
pub(crate) fn module(geometry: &Geometry, name: &str, arch: u32, cache: Option<&Path>) -> Result<Vec<u8>> {
    let own = MODULES.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, sources)| sources);
    let program = [&[PTX, COMMON, LAYOUT], own].concat().join("\n");
    let mut options = vec![
        format!("--gpu-architecture=sm_{arch}"),
        "--std=c++17".to_owned(),
        "--diag-suppress=177".to_owned(),
    ];
    options.push(format!("-DSHAMROCK_SLOTS={}", slots(arch)));
    options.extend(geometry.defines().into_iter().map(|(name, value)| format!("-DSHAMROCK_{name}={value}")));

    let key = hash64(format!("{program}\0{}", options.join(" ")).as_bytes());
    let kept = cache.map(|dir| dir.join(format!("{name}-sm{arch}-{key:016x}.cubin")));
    if let Some(code) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
        return Ok(code);
    }
    let code = compile(name, &program, &options)?;
    if let Some(path) = kept
        && let Err(error) = keep(&path, &code)
    {
        // The next start compiles again; nothing is lost but seconds.
        tracing::warn!("{}: compiled kernels are not kept: {error}", path.display());
    }
    Ok(code)
}

/// Writes beside the target and renames, so that no reader sees half a file.
fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, code)?;
    fs::rename(partial, path)
}

fn problem(text: impl Into<String>) -> Error {
    Error::Device { backend: BACKEND, problem: text.into() }
}

fn compile(name: &str, program: &str, options: &[String]) -> Result<Vec<u8>> {
    if !available() {
        return Err(problem(
            "libnvrtc was not found: install NVIDIA's CUDA runtime compiler and make sure the loader finds it",
        ));
    }
    let failed = |e: result::NvrtcError| problem(format!("NVRTC, module {name}: {e:?}"));
    let source = CString::new(program).map_err(|e| problem(e.to_string()))?;
    let file = CString::new(format!("{name}.cu")).map_err(|e| problem(e.to_string()))?;
    let program = Program(result::create_program(&source, Some(&file)).map_err(failed)?);
    // SAFETY: the program is alive until the end of this function.
    let compiled = unsafe { result::compile_program(program.0, options) };
    if compiled.is_err() {
        return Err(problem(format!("kernel module {name} does not compile:\n{}", program.log())));
    }
    program.machine_code().map_err(failed)
}

/// An NVRTC program, destroyed when it goes out of scope.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is alive; the log ends with a zero byte.
        unsafe {
            result::get_program_log(self.0)
                .map(|log| CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned())
                .unwrap_or_default()
        }
    }

    fn machine_code(&self) -> std::result::Result<Vec<u8>, result::NvrtcError> {
        let mut len = 0;
        // SAFETY: the program is alive and compiled, `len` is where the size goes.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut len) }.result()?;
        let mut code = vec![0u8; len];
        // SAFETY: the buffer has the size that was asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) }.result()?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: destroyed once; a failure leaves nothing to do.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
