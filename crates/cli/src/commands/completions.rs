//! `shamrock completions`: a script that completes commands and flags in a shell.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::print;

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// Shell to write the script for
    shell: Shell,
}

/// Runs the command.
pub fn run(args: CompletionsArgs, mut program: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "shamrock", &mut script);
    print(script)
}
