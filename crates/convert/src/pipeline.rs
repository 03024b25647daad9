//! Making and writing payloads, a batch at a time.

use std::borrow::Cow;
use std::ops::ControlFlow;

use rayon::prelude::*;
use shamrock_cmf::Writer;

use crate::error::{Error, Result};

/// Working memory that a batch of tensors may take, in bytes; a larger tensor is a batch alone.
const BATCH: u64 = 64 << 20;

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Payload bytes written so far.
    pub done_bytes: u64,
    /// Payload bytes of the whole file.
    pub total_bytes: u64,
    /// The tensor that was written last.
    pub tensor: &'a str,
}

/// Told after every tensor how far a run has come; a break stops it, and nothing of the file stays.
pub type OnProgress<'a> = dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send + 'a;

/// What a run made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tensors in the file.
    pub tensors: usize,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Tensors of the source that the configuration does not call for (vision, MTP): left out.
    pub skipped: usize,
    /// Tensors taken over byte for byte because they had the wanted encoding already.
    pub copied: usize,
    /// What a person should know, one line each.
    pub warnings: Vec<String>,
}

/// Makes the payload of every tensor of `writer` on the threads of the current `rayon` pool and
/// finishes the file. One batch is written while the next is being made.
///
/// `cost` tells the bytes that making a tensor takes, its payload included; `make` makes it.
pub(crate) fn write_all<'a>(
    mut writer: Writer,
    cost: &dyn Fn(usize) -> u64,
    make: &(dyn Fn(usize) -> Result<Cow<'a, [u8]>> + Sync),
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let batches = batches(writer.specs().len(), cost);
    let make_batch = |batch: Option<&std::ops::Range<usize>>| -> Result<Vec<Cow<'a, [u8]>>> {
        batch.map_or(Ok(Vec::new()), |batch| batch.clone().into_par_iter().map(make).collect())
    };
    let total_bytes = (0..writer.specs().len()).map(|i| writer.payload_len(i)).sum();
    let mut done_bytes = 0;
    let mut payloads = make_batch(batches.first())?;
    for (i, batch) in batches.iter().enumerate() {
        let write_batch = || -> Result<()> {
            for (index, payload) in batch.clone().zip(&payloads) {
                writer.write(index, payload)?;
                done_bytes += payload.len() as u64;
                let tensor = &writer.specs()[index].name;
                if progress(Progress { done_bytes, total_bytes, tensor }).is_break() {
                    return Err(Error::Stopped { done_bytes, total_bytes });
                }
            }
            Ok(())
        };
        let (written, next) = rayon::join(write_batch, || make_batch(batches.get(i + 1)));
        written?;
        payloads = next?;
    }
    Ok(writer.finish()?)
}

/// Runs of consecutive tensors that fit into [`BATCH`].
fn batches(count: usize, cost: &dyn Fn(usize) -> u64) -> Vec<std::ops::Range<usize>> {
    let (mut batches, mut start, mut taken) = (Vec::new(), 0, 0u64);
    for index in 0..count {
        let cost = cost(index);
        if index > start && taken.saturating_add(cost) > BATCH {
            batches.push(start..index);
            (start, taken) = (index, 0);
        }
        taken = taken.saturating_add(cost);
    }
    if start < count {
        batches.push(start..count);
    }
    batches
}
