//! `shamrock`: run, make and inspect block-diffusion language models of the Clover family.

#![allow(unreachable_pub, reason = "a binary has no outside: pub marks what its modules share")]

mod commands;
mod config_file;
mod engine;
mod folders;
mod generation;
mod hub;
mod interrupt;
mod locate;
mod output;
mod session_file;
mod values;
mod watch;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::Resettable;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use config_file::ConfigFile;

#[derive(Parser)]
#[command(name = "shamrock", version, about, max_term_width = 100)]
struct Cli {
    /// Log more to standard error (-v, -vv)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    /// Configuration file, in TOML, for what neither flags nor the environment say
    /// [default: ~/.config/shamrock/config.toml]
    #[arg(long, value_name = "FILE", env = "SHAMROCK_CONFIG", global = true)]
    config: Option<PathBuf>,
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
    /// Download a model from a hub
    Pull(commands::pull::PullArgs),
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
    /// Print a script that completes commands and flags in a shell
    Completions(commands::completions::CompletionsArgs),
    /// Print the manual page
    Man(commands::man::ManArgs),
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            output::noteln(&format!("error: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_writer(io::stderr)
        .with_ansi(
            io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        )
        .without_time()
        .init();
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::noteln(&format!("error: {error:#}"));
            if is_stopped(&error) { interrupt::EXIT_CODE.into() } else { ExitCode::FAILURE }
        }
    }
}

/// The command line, completed by the configuration file. A wrong command line ends the program here.
fn parse() -> Result<Cli> {
    let given = command().get_matches();
    let named = given.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let matches = match ConfigFile::read(named)? {
        Some(file) => file.complete(command(), &given)?.get_matches(),
        None => given,
    };
    Ok(Cli::from_arg_matches(&matches)?)
}

/// The command line, for which an environment variable that is empty is one that is not there.
fn command() -> clap::Command {
    let heard =
        |arg: Arg| match arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty()) {
            true => arg.env(Resettable::Reset),
            false => arg,
        };
    let program = Cli::command().mut_args(heard);
    let names: Vec<String> = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(program, |program, name| program.mut_subcommand(name, |command| command.mut_args(heard)))
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Synth(args) => commands::synth::run(args),
        Command::Pull(args) => commands::pull::run(args),
        Command::Info(args) => commands::info::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Ppl(args) => commands::ppl::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Completions(args) => commands::completions::run(args, Cli::command()),
        Command::Man(args) => commands::man::run(args, Cli::command()),
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
