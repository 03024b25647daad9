//! `shamrock`: run, make and inspect block-diffusion language models of the Clover family.

#![allow(unreachable_pub, reason = "a binary has no outside: pub marks what its modules share")]

mod commands;
mod engine;
mod generation;
mod interrupt;
mod output;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "shamrock", version, about, max_term_width = 100)]
struct Cli {
    /// Log more to standard error (-v, -vv)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Chat with a model, or answer one prompt
    Run(commands::run::RunArgs),
    /// Serve an OpenAI-compatible API
    Serve(commands::serve::ServeArgs),
    /// Make a model file from a Hugging Face checkpoint
    Convert(commands::convert::ConvertArgs),
    /// Re-encode a model file
    Quantize(commands::quantize::QuantizeArgs),
    /// Write a random model of any geometry
    Synth(commands::synth::SynthArgs),
    /// Show what is in a model file and the memory it needs
    Info(commands::info::InfoArgs),
    /// Check every hash of a model file
    Verify(commands::verify::VerifyArgs),
    /// Score a text: perplexity under causal decoding
    Ppl(commands::ppl::PplArgs),
    /// Write the logits of a prompt and a block to a file
    Logits(commands::logits::LogitsArgs),
    /// Measure passes, commits and decoding
    Bench(commands::bench::BenchArgs),
    /// Run held-out tasks and count right answers
    Eval(commands::eval::EvalArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    tracing_subscriber::fmt().with_env_filter(level).with_writer(io::stderr).without_time().init();
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::noteln(&format!("error: {error:#}"));
            if is_stopped(&error) { interrupt::EXIT_CODE.into() } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Synth(args) => commands::synth::run(args),
        Command::Info(args) => commands::info::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Ppl(args) => commands::ppl::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Eval(args) => commands::eval::run(args),
    }
}

/// The reader of our output has gone away: nothing is wrong with us.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A person stopped what we were making.
fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(shamrock_convert::Error::Stopped { .. }))
}
