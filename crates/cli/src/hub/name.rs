//! `OWNER/REPO[:FILE]`, and the place of such a model on this machine.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::folders;

/// A repository of a hub, and perhaps a file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// `OWNER/REPO`.
    pub repo: String,
    /// Path in the repository.
    pub file: Option<String>,
}

impl FromStr for ModelName {
    type Err = String;

    fn from_str(text: &str) -> Result<ModelName, String> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let parts: Vec<&str> = repo.split('/').collect();
        let is_name = |part: &&str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && part.chars().all(plain) && !part.starts_with('.') && !part.contains("..")
        };
        if parts.len() != 2 || !parts.iter().all(is_name) {
            return Err("expected OWNER/REPO or OWNER/REPO:FILE".into());
        }
        let file = file.map(|file| local_path(file).map(|_| file.to_owned()));
        Ok(ModelName { repo: repo.to_owned(), file: file.transpose()? })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// The path of a repository's file below a folder of ours; names that would lead out of it are refused.
pub fn local_path(file: &str) -> Result<PathBuf, String> {
    let path = Path::new(file);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || file.is_empty() || file.contains(['\\', '\0']) {
        return Err(format!("{file:?} is no name of a file in a repository"));
    }
    Ok(path.to_owned())
}

/// Where pulled models are kept: `$XDG_DATA_HOME/shamrock/models`, else below `~/.local/share`.
pub fn models_folder() -> Result<PathBuf> {
    let data = folders::data().context("no home folder: say where models are with --dir")?;
    Ok(data.join("models"))
}

/// The file of a pulled model; `None` if there is none.
///
/// # Errors
/// When the name does not say which of several.
pub fn pulled(name: &ModelName, models: &Path) -> Result<Option<PathBuf>> {
    let folder = models.join(&name.repo);
    if let Some(file) = &name.file {
        return Ok(Some(folder.join(file)).filter(|path| path.is_file()));
    }
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "cmf") && path.is_file()).collect();
    files.sort();
    match &files[..] {
        [] => Ok(None),
        [file] => Ok(Some(file.clone())),
        _ => {
            let names: Vec<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
            bail!("{} has several models, name one: {name}:FILE with {}", name.repo, names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        let parse = |text: &str| text.parse::<ModelName>();
        let name = parse("a-b/c.d_1:sub/e.cmf").unwrap();
        assert_eq!((name.repo.as_str(), name.file.as_deref()), ("a-b/c.d_1", Some("sub/e.cmf")));
        assert_eq!(name.to_string(), "a-b/c.d_1:sub/e.cmf");
        assert_eq!(parse("a/b").unwrap().file, None);
        for wrong in
            ["a", "a/b/c", "/a/b", "../b", "a/..", "a/b:", "a/b:../c", "a/b:/c", "a b/c", "./b", "a/b:c\\d"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
