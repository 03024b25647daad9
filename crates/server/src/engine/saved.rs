//! Kept states over a restart: written when the engine ends, read when it starts.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use shamrock_model::{Executor, Origin, StateFileError, StateReader, StateWriter};

use crate::engine::prefix::PrefixCache;

/// Where states are kept while the server is down, and who makes them. States of another origin are not
/// used: answers would not be those of a cold start.
#[derive(Clone, Debug)]
pub struct SavedStates {
    /// The file. It need not exist, and is replaced.
    pub path: PathBuf,
    /// Model and engine.
    pub origin: Origin,
}

/// Why states were not saved, or not all of them read.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    File(#[from] StateFileError),
    #[error(transparent)]
    Executor(#[from] shamrock_model::Error),
    #[error("states of {0:?}")]
    Origin(String),
}

impl SavedStates {
    /// Fills a cache with what was saved. Whatever is wrong with the file only costs time.
    pub(super) fn load(&self, executor: &mut dyn Executor, cache: &mut PrefixCache) {
        if !self.path.exists() {
            return;
        }
        let result = self.read(executor, cache);
        let (path, states) = (self.path.display(), cache.len());
        match result {
            Ok(()) => tracing::info!("{path}: {states} states of earlier prompts"),
            Err(trouble) => tracing::warn!("{path}: {trouble}; going on with {states} states"),
        }
    }

    fn read(&self, executor: &mut dyn Executor, cache: &mut PrefixCache) -> Result<(), Trouble> {
        let file = File::open(&self.path)?;
        let len = file.metadata()?.len();
        let mut reader = StateReader::new(BufReader::new(file), len)?;
        if *reader.origin() != self.origin {
            return Err(Trouble::Origin(reader.origin().engine.clone()));
        }
        while let Some((ids, state)) = reader.next(executor.config())? {
            let snapshot = executor.import_snapshot(&state)?;
            cache.insert(executor, ids, snapshot);
        }
        Ok(())
    }

    /// Writes what a cache holds, in place of what was saved before.
    pub(super) fn save(&self, executor: &mut dyn Executor, cache: &PrefixCache) {
        let path = self.path.display();
        match self.write(executor, cache) {
            Ok(()) => tracing::info!("{path}: {} states saved", cache.len()),
            Err(trouble) => tracing::warn!("{path}: states are not saved: {trouble}"),
        }
    }

    fn write(&self, executor: &mut dyn Executor, cache: &PrefixCache) -> Result<(), Trouble> {
        let mut partial = self.path.clone().into_os_string();
        partial.push(".partial");
        let written = create(partial.as_ref()).map_err(Trouble::from).and_then(|file| {
            let records = cache.len() as u32;
            let mut writer = StateWriter::new(BufWriter::new(file), &self.origin, &[], records)?;
            for (ids, snapshot) in cache.states() {
                writer.push(ids, &executor.export_snapshot(snapshot)?)?;
            }
            let mut file = writer.into_inner();
            file.flush()?;
            file.get_ref().sync_all()?;
            Ok(fs::rename(&partial, &self.path)?)
        });
        written.inspect_err(|_| drop(fs::remove_file(&partial)))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        StateFileError::from(error).into()
    }
}

/// A file for nobody else's eyes: its ids are what people wrote.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
