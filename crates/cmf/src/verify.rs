//! Comparing every hash of a file.

use std::fmt;

use rayon::prelude::*;
use serde_json::Value;

use crate::container::Container;
use crate::hash;
use crate::index::Index;

/// What [`Container::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Payload and vocabulary bytes that were read.
    pub bytes: u64,
    /// Tensors that were compared with their hashes.
    pub tensors: usize,
    /// What does not match. A clean file has none.
    pub problems: Vec<Problem>,
    /// Sections for which the file has no hash, so that nothing can be said about them.
    pub unhashed: Vec<&'static str>,
}

impl VerifyReport {
    /// Whether every hash that the file has matches.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A part of a file that does not match its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes of a section or tensor hash to something else.
    Hash {
        /// `tensor NAME` or the section's name.
        what: String,
        /// Offset from the start of the file, in bytes.
        offset: u64,
        /// The hash in the file.
        stored: u64,
        /// The hash of the bytes.
        computed: u64,
    },
    /// A hash in the header is not 16 hexadecimal digits.
    HashField {
        /// Path of the header field.
        field: &'static str,
        /// What is there.
        found: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Hash { what, offset, stored, computed } => write!(
                f,
                "{what} at offset {offset}: bytes hash to {computed:016x}, the file says {stored:016x}"
            ),
            Problem::HashField { field, found } => {
                write!(f, "header field {field} is {found}, expected 16 hexadecimal digits")
            }
        }
    }
}

const VOCAB_HASH: &str = "section_hashes.vocab";

pub(crate) fn verify(container: &Container, index: &Index, progress: &mut dyn FnMut(u64)) -> VerifyReport {
    let envelope = &index.envelope;
    let mut report = VerifyReport::default();
    // Opening has compared these two wherever they exist.
    for (section, hash) in [("header", envelope.header_hash), ("directory", envelope.directory_hash)] {
        if hash == 0 {
            report.unhashed.push(section);
        }
    }

    for tensor in container.tensors() {
        let computed = hash_with_progress(tensor.bytes, &mut report.bytes, progress);
        report.tensors += 1;
        if computed != tensor.hash {
            let (what, offset) = (format!("tensor {}", tensor.name), tensor.offset);
            report.problems.push(Problem::Hash { what, offset, stored: tensor.hash, computed });
        }
    }

    match index.header.pointer("/section_hashes/vocab") {
        None | Some(Value::Null) => report.unhashed.push("vocabulary"),
        Some(field) => {
            let computed = hash_with_progress(container.vocab(), &mut report.bytes, progress);
            let parsed = field.as_str().and_then(|digits| u64::from_str_radix(digits, 16).ok());
            match parsed {
                Some(stored) if stored == computed => {}
                Some(stored) => {
                    let (what, offset) = ("vocabulary".into(), envelope.vocab.start);
                    report.problems.push(Problem::Hash { what, offset, stored, computed });
                }
                None => {
                    let found = field.to_string();
                    report.problems.push(Problem::HashField { field: VOCAB_HASH, found });
                }
            }
        }
    }
    progress(report.bytes);
    report
}

/// Bytes between two calls of the progress function.
const STRIDE: usize = 64 << 20;
/// Bytes that a thread takes at once.
const TASK: usize = 1 << 20;

/// [`hash::hash64`] on all threads: the fold is a XOR, so pieces can be folded in any order.
fn hash_with_progress(bytes: &[u8], done: &mut u64, progress: &mut dyn FnMut(u64)) -> u64 {
    let mut acc = 0;
    let mut at = 0;
    for stride in bytes.chunks(STRIDE) {
        let fold = |(task, piece): (usize, &[u8])| hash::fold(piece, ((at + task * TASK) / 8) as u64);
        acc ^= stride.par_chunks(TASK).enumerate().map(fold).reduce(|| 0, |a, b| a ^ b);
        at += stride.len();
        *done += stride.len() as u64;
        progress(*done);
    }
    hash::finish(acc, bytes.len() as u64)
}
