//! A Hugging Face checkpoint folder: its weights and its metadata.

mod checkpoint;
mod metadata;

pub(crate) use checkpoint::{Checkpoint, Slice};
pub(crate) use metadata::{Metadata, Origin, Text, header};

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// The content of a file, or `None` if there is no such file.
fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::Io { path: path.into(), action: "read", error }),
    }
}

fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| bad_json(path, format!("not valid JSON: {error}")))
}

fn bad_json(path: &Path, problem: impl Into<String>) -> Error {
    Error::Json { path: path.into(), problem: problem.into() }
}
