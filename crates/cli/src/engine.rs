//! Opening a model: the file, the executor that runs it, and the text side that goes with it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use shamrock_cpu::{CpuExecutor, CpuOptions, Precision};
use shamrock_cuda::{CudaExecutor, CudaOptions, KvPrecision};
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Executor, ModelFile};
use shamrock_text::{ChatTemplate, Prompter, Tokenizer};

/// Where passes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The fastest one this machine can run.
    Auto,
    /// An NVIDIA device.
    Cuda,
    /// The fast CPU executor.
    Cpu,
    /// The plain f32 executor that defines the numbers.
    Reference,
}

/// Arithmetic of quantised matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arithmetic {
    /// Inputs rounded for speed: to 8-bit integers on a CPU, to half precision on a GPU.
    #[value(alias = "fast")]
    Int8,
    /// Inputs as they are.
    #[value(alias = "exact")]
    F32,
}

/// Flags of every command that runs a model.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Where passes run
    #[arg(long, value_enum, default_value = "auto", help_heading = "Engine")]
    pub backend: Backend,
    /// Arithmetic of quantised matrices; the reference always computes in f32
    #[arg(long, value_enum, default_value = "int8", help_heading = "Engine")]
    pub precision: Arithmetic,
    /// Worker threads; more than cores are no use and count as cores [default: one per core]
    #[arg(long, value_name = "N", help_heading = "Engine", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Which CUDA device
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Engine")]
    pub device: usize,
    /// Measure the stages of every pass on the device, which slows it down
    #[arg(long, help_heading = "Engine")]
    pub profile: bool,
    /// Positions a conversation may reach [default: the model's own limit]
    #[arg(long, value_name = "N", help_heading = "Engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
}

impl EngineArgs {
    /// The executor these flags ask for.
    pub fn executor(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let limit = model.config.max_context;
        if let Some(ctx) = self.ctx.filter(|&ctx| ctx as usize > limit) {
            bail!("--ctx {ctx}: the model was made for at most {limit} positions");
        }
        match self.backend {
            Backend::Cuda => self.cuda(model),
            Backend::Cpu => self.cpu(model),
            Backend::Auto if !shamrock_cuda::available().is_ok_and(|devices| devices > 0) => self.cpu(model),
            Backend::Auto => self.cuda(model.clone()).or_else(|error| {
                // Too little memory on the device, or a shape beyond its kernels.
                eprintln!("{error:#}; running on the CPU");
                self.cpu(model)
            }),
            Backend::Reference => {
                let options = ReferenceOptions { max_context: self.max_context(), threads: self.threads() };
                Ok(Box::new(ReferenceExecutor::new(model, options)?))
            }
        }
    }

    fn cuda(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let (precision, kv) = match self.precision {
            Arithmetic::Int8 => (shamrock_cuda::Precision::Half, KvPrecision::Half),
            Arithmetic::F32 => (shamrock_cuda::Precision::Split, KvPrecision::Full),
        };
        let options = CudaOptions {
            device: self.device,
            precision,
            kv,
            max_context: self.max_context(),
            kernel_cache: kernel_cache(),
            profile: self.profile,
        };
        Ok(Box::new(CudaExecutor::new(model, &options)?))
    }

    fn cpu(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let precision = match self.precision {
            Arithmetic::Int8 => Precision::Int8,
            Arithmetic::F32 => Precision::F32,
        };
        let options = CpuOptions { max_context: self.max_context(), threads: self.threads(), precision };
        Ok(Box::new(CpuExecutor::new(model, options)?))
    }

    fn max_context(&self) -> Option<usize> {
        self.ctx.map(|ctx| ctx as usize)
    }

    /// Hundreds of threads on a few cores take minutes to agree on anything: never more than cores.
    fn threads(&self) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        self.threads.map(|threads| usize::from(threads).min(cores))
    }
}

/// Where compiled kernels are kept, by the platform's convention.
fn kernel_cache() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(base.join("shamrock").join("kernels"))
}

/// Opens a model file with a path in every message.
pub fn open(path: &Path) -> Result<ModelFile> {
    if path.is_dir() {
        bail!(
            "{} is a folder; convert a Hugging Face checkpoint first: shamrock convert {} OUT.cmf",
            path.display(),
            path.display()
        );
    }
    Ok(ModelFile::open(path)?)
}

/// The tokenizer and template that travel in a model file.
pub fn text_side(path: &Path, model: &ModelFile) -> Result<Prompter> {
    if model.tokenizer_json().is_empty() {
        bail!("{}: the file carries no tokenizer; commands on text need one", path.display());
    }
    let tokenizer = Tokenizer::from_bytes(model.tokenizer_json())
        .with_context(|| format!("{}: tokenizer", path.display()))?;
    let template = model
        .chat_template
        .as_deref()
        .map(|source| ChatTemplate::new(source, []))
        .transpose()
        .with_context(|| format!("{}: chat template", path.display()))?;
    Ok(Prompter::new(tokenizer, template))
}

/// The model named on the command line, or the one that comes with the repository.
pub fn path_or_default(path: Option<PathBuf>) -> Result<PathBuf> {
    const DEFAULT: &str = "models/clover-nano.cmf";
    if let Some(path) = path {
        return Ok(path);
    }
    let beside_binary = std::env::current_exe()
        .ok()
        .into_iter()
        .flat_map(|exe| exe.ancestors().skip(1).map(|dir| dir.join(DEFAULT)).collect::<Vec<_>>());
    std::iter::once(PathBuf::from(DEFAULT))
        .chain(beside_binary)
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("no model given and {DEFAULT} is not here: name a model file"))
}
