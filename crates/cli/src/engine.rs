//! Opening a model: the file, the executor that runs it, and the text side that goes with it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use shamrock_cpu::{CpuExecutor, CpuOptions, Memory, Precision, available_memory};
use shamrock_cuda::{CudaExecutor, CudaOptions, Placement};
use shamrock_metal::MetalOptions;
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Executor, ModelFile, Origin};
use shamrock_text::{ChatTemplate, Prompter, Tokenizer};

use crate::folders;
use crate::output::{byte_bar, bytes, noteln};

/// Where passes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The fastest one this machine can run.
    Auto,
    /// An NVIDIA device.
    Cuda,
    /// The GPU of a Mac with Apple silicon.
    Metal,
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

/// Storage of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storage {
    /// Half precision.
    F16,
    /// Single precision, twice the memory.
    F32,
}

/// Where a Mac's GPU has its experts chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Routing {
    /// By the processor, layer by layer, which views the experts that are missing.
    Host,
    /// By the GPU, which then waits for no one: all experts must fit --expert-views.
    Device,
}

/// Flags of every command that runs a model.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Where passes run
    #[arg(long, value_enum, default_value = "auto", env = "SHAMROCK_BACKEND", help_heading = "Engine")]
    pub backend: Backend,
    /// Arithmetic of quantised matrices; the reference always computes in f32
    #[arg(long, value_enum, default_value = "int8", help_heading = "Engine")]
    pub precision: Arithmetic,
    /// Storage of keys and values of the context; the reference always keeps f32 [default: f16, with
    /// exact arithmetic f32]
    #[arg(long, value_enum, help_heading = "Engine")]
    pub kv: Option<Storage>,
    /// Worker threads; more than cores are no use and count as cores [default: one per physical core]
    #[arg(
        long,
        value_name = "N",
        env = "SHAMROCK_THREADS",
        help_heading = "Engine",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub threads: Option<u16>,
    /// Keep each worker thread on a core of its own (Linux): steadier on a machine that does other work
    #[arg(long, env = "SHAMROCK_PIN", help_heading = "Engine")]
    pub pin: bool,
    /// Memory for weights on the CPU, like 12G: experts beyond it are fetched when they are needed
    /// [default: what is free, if that is less than the weights]
    #[arg(long, value_name = "BYTES", help_heading = "Engine", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
    /// Memory for experts in use on a Mac's GPU: views of the file beyond it are let go of
    #[arg(long, value_name = "BYTES", default_value = "6GiB", help_heading = "Engine", value_parser = parse_bytes)]
    pub expert_views: u64,
    /// Who chooses experts for a Mac's GPU
    #[arg(long, value_enum, default_value = "host", help_heading = "Engine")]
    pub routing: Routing,
    /// Leave the experts that a Mac's GPU will likely want next to be fetched when it does
    #[arg(long, help_heading = "Engine")]
    pub no_prefetch: bool,
    /// Device memory for routed experts, like 6GiB, where they do not all fit: others come from the file
    /// when they are needed [default: what is free]
    #[arg(long, value_name = "BYTES", help_heading = "Engine", value_parser = parse_bytes)]
    pub vram: Option<u64>,
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
            Backend::Metal => self.metal(model),
            Backend::Cpu => self.cpu(model),
            Backend::Auto => self.fastest(model),
            Backend::Reference => {
                let options = ReferenceOptions { max_context: self.max_context(), threads: self.threads() };
                Ok(Box::new(ReferenceExecutor::new(model, options)?))
            }
        }
    }

    /// The fastest backend that this machine has and that takes the model.
    fn fastest(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let device = if shamrock_metal::available().is_ok() {
            self.metal(model.clone())
        } else if shamrock_cuda::available().is_ok_and(|devices| devices > 0) {
            self.cuda(model.clone())
        } else {
            return self.cpu(model);
        };
        device.or_else(|error| {
            // Too little memory on the device, or a shape beyond its kernels.
            eprintln!("{error:#}; running on the CPU");
            self.cpu(model)
        })
    }

    fn metal(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let kv = match self.storage() {
            Storage::F16 => shamrock_metal::KvPrecision::Half,
            Storage::F32 => shamrock_metal::KvPrecision::Full,
        };
        let precision = match self.precision {
            Arithmetic::Int8 => shamrock_metal::Precision::Half,
            Arithmetic::F32 => shamrock_metal::Precision::Full,
        };
        let routing = match self.routing {
            Routing::Host => shamrock_metal::Routing::Host,
            Routing::Device => shamrock_metal::Routing::Device,
        };
        let options = MetalOptions {
            max_context: self.max_context(),
            precision,
            kv,
            routing,
            prefetch: !self.no_prefetch,
            expert_views: self.expert_views,
            profile: self.profile,
        };
        Ok(shamrock_metal::open(model, &options)?)
    }

    /// What states that an executor of these flags makes depend on, to the last bit.
    pub fn origin(&self, model: u64, executor: &dyn Executor) -> Origin {
        let name = |value: Option<PossibleValue>| value.map(|v| v.get_name().to_owned()).unwrap_or_default();
        let (precision, kv) = (self.precision.to_possible_value(), self.storage().to_possible_value());
        let version = env!("CARGO_PKG_VERSION");
        let engine = format!("shamrock {version} {} {} {}", executor.backend(), name(precision), name(kv));
        Origin { model, engine }
    }

    fn cuda(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let precision = match self.precision {
            Arithmetic::Int8 => shamrock_cuda::Precision::Half,
            Arithmetic::F32 => shamrock_cuda::Precision::Split,
        };
        let kv = match self.storage() {
            Storage::F16 => shamrock_cuda::KvPrecision::Half,
            Storage::F32 => shamrock_cuda::KvPrecision::Full,
        };
        let options = CudaOptions {
            device: self.device,
            precision,
            kv,
            max_context: self.max_context(),
            expert_memory: self.vram,
            kernel_cache: folders::cache().map(|cache| cache.join("kernels")),
            profile: self.profile,
        };
        let bar = byte_bar(0, "uploading");
        let executor = CudaExecutor::with_progress(model, &options, &mut |placed, total| {
            bar.set_length(total);
            bar.set_position(placed);
        })?;
        bar.finish_and_clear();
        tell(&executor.placement());
        Ok(Box::new(executor))
    }

    fn cpu(&self, model: ModelFile) -> Result<Box<dyn Executor>> {
        let precision = match self.precision {
            Arithmetic::Int8 => Precision::Int8,
            Arithmetic::F32 => Precision::F32,
        };
        let kv = match self.storage() {
            Storage::F16 => shamrock_cpu::KvPrecision::F16,
            Storage::F32 => shamrock_cpu::KvPrecision::F32,
        };
        let memory_budget = self.memory_budget(&Memory::of(&model, kv));
        let (max_context, threads) = (self.max_context(), self.threads());
        let options = CpuOptions { max_context, threads, pin: self.pin, precision, kv, memory_budget };
        Ok(Box::new(CpuExecutor::new(model, options)?))
    }

    fn storage(&self) -> Storage {
        self.kv.unwrap_or(match self.precision {
            Arithmetic::Int8 => Storage::F16,
            Arithmetic::F32 => Storage::F32,
        })
    }

    /// Memory for weights, and a word about it where not all of them fit.
    fn memory_budget(&self, memory: &Memory) -> Option<u64> {
        let fits = |available: &u64| memory.weights() <= *available;
        let budget =
            self.memory_budget.or_else(|| available_memory().filter(|a| !fits(a)).map(|a| a / 10 * 9))?;
        if !fits(&budget) {
            let held = memory.experts_within(budget);
            eprintln!(
                "note: {} of weights, {} of memory for them: {}",
                bytes(memory.weights()),
                bytes(budget),
                if held == 0 {
                    "even the weights that every pass reads do not fit, expect to wait for the disk".into()
                } else {
                    let share = 100 * held / memory.experts.max(1);
                    format!("{share} % of the experts stay in memory, others are read when they are needed")
                }
            );
        }
        Some(budget)
    }

    fn max_context(&self) -> Option<usize> {
        self.ctx.map(|ctx| ctx as usize)
    }

    /// Hundreds of threads on a few cores take minutes to agree on anything: never more than cores.
    pub fn threads(&self) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        self.threads.map(|threads| usize::from(threads).min(cores))
    }
}

/// What a person should know about weights on a device: that not all are there, or how long they took.
fn tell(placement: &Placement) {
    let Placement { bytes: held, experts: (room, all), time } = *placement;
    if room < all {
        noteln(&format!(
            "note: {} of weights on the device, {} % of the experts among them; others are sent when they are needed",
            bytes(held),
            100 * room / all.max(1)
        ));
    } else if time.as_secs_f64() >= 1.0 {
        noteln(&format!("{} of weights on the device in {:.1} s", bytes(held), time.as_secs_f64()));
    }
}

/// A number of bytes with an optional unit, decimal or binary: `500M`, `12G`, `12GB`, `6GiB`.
fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let number = text.trim_end_matches(['b', 'B']);
    let (number, step) = match number.strip_suffix('i') {
        Some(number) if number.ends_with(|c: char| c.is_ascii_alphabetic()) => (number, 1024.0),
        _ => (number, 1000.0f64),
    };
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &number[digits.len()..] {
        "" => Some(1.0),
        "k" | "K" => Some(step),
        "m" | "M" => Some(step.powi(2)),
        "g" | "G" => Some(step.powi(3)),
        _ => None,
    };
    match (digits.parse::<f64>(), unit) {
        (Ok(n), Some(unit)) if n > 0.0 && n.is_finite() => Ok((n * unit) as u64),
        _ => Err("expected a size like 500M or 12GiB".into()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of a library and of its flags are one.
    #[test]
    fn flags_say_what_the_library_does() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            engine: EngineArgs,
        }
        let flags = <Flags as clap::Parser>::parse_from(["shamrock"]).engine;
        let options = MetalOptions::default();
        assert_eq!((flags.expert_views, !flags.no_prefetch), (options.expert_views, options.prefetch));
        assert_eq!(options.routing == shamrock_metal::Routing::Host, flags.routing == Routing::Host);
    }

    #[test]
    fn sizes_are_decimal_unless_they_say_binary() {
        for (text, bytes) in
            [("6GiB", 6 << 30), ("6G", 6_000_000_000), ("1.5k", 1500), ("2Kib", 2048), ("7", 7)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "6X", "6i", "6GiGi", "nan"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
