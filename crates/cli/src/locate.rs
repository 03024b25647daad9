//! Which model file a person means.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::hub::{ModelName, models_folder, pulled};

/// The model of commands that need not be told one.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Model file, or a pulled model by its name: OWNER/REPO or OWNER/REPO:FILE
    /// [default: models/clover-nano.cmf]
    #[arg(env = "SHAMROCK_MODEL")]
    model: Option<PathBuf>,
}

impl ModelArgs {
    /// The file that was named, or the one that comes with the repository.
    pub fn path(&self) -> Result<PathBuf> {
        const DEFAULT: &str = "models/clover-nano.cmf";
        if let Some(named) = &self.model {
            return find(named);
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
}

/// The file of that path, or of the pulled model of that name.
pub fn find(named: &Path) -> Result<PathBuf> {
    let name = named.to_str().and_then(|text| text.parse::<ModelName>().ok());
    let Some(name) = name.filter(|_| !named.exists()) else {
        return Ok(named.to_owned());
    };
    match models_folder().and_then(|models| pulled(&name, &models))? {
        Some(file) => Ok(file),
        None => bail!("{name} is neither a file nor a model that has been pulled: shamrock pull {name}"),
    }
}
