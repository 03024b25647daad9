//! Random numbers for ids and seeds.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A number that nobody can guess cheaply: the standard library keys its hash maps with the system's
/// randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// An id as APIs give them: `chatcmpl-` and 24 hexadecimal digits.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}
