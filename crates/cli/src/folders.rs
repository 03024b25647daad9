//! Where a person's files of this program are, by the XDG base directory convention.

use std::env;
use std::path::PathBuf;

/// Folder of the configuration file: `$XDG_CONFIG_HOME/shamrock`, else `~/.config/shamrock`.
pub fn config() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config")
}

/// Folder of what can be made again: `$XDG_CACHE_HOME/shamrock`, else `~/.cache/shamrock`.
pub fn cache() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// Folder of what a person keeps: `$XDG_DATA_HOME/shamrock`, else `~/.local/share/shamrock`.
pub fn data() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share")
}

/// The convention has relative paths ignored.
fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))?;
    Some(base.join("shamrock"))
}
