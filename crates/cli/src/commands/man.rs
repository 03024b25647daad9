//! `shamrock man`: the manual pages, made from the same words as `--help`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};

use crate::output::print;

/// Arguments of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write the pages of all commands into this folder [default: print the page of shamrock]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: ManArgs, program: Command) -> Result<()> {
    if let Some(dir) = args.dir {
        return std::fs::create_dir_all(&dir)
            .and_then(|()| clap_mangen::generate_to(program, &dir))
            .with_context(|| format!("writing manual pages into {}", dir.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(program).render(&mut page)?;
    print(page)
}
