//! All metadata of a file, as a pure function of its bytes.

use std::ops::Range;

use serde_json::Value;

use crate::directory::Directory;
use crate::envelope::{Envelope, Features};
use crate::error::{FormatError, TensorProblem};
use crate::hash::hash64;

/// JSON grows when parsed (a two-byte array element becomes a 32-byte value), so a hostile
/// header must not be as large as a hostile file. Real headers have some kilobytes.
pub(crate) const MAX_HEADER_LEN: u64 = 16 << 20;

/// Checked metadata of a file. Ranges are inside the file.
#[derive(Debug)]
pub(crate) struct Index {
    pub envelope: Envelope,
    pub header: Value,
    pub directory: Directory,
    /// Positions in the directory, ordered by name.
    pub by_name: Box<[u32]>,
}

impl Index {
    /// Reads envelope, header and directory of a whole file and checks them, reading no byte of
    /// the data and vocabulary sections.
    pub(crate) fn parse(file: &[u8]) -> Result<Index, FormatError> {
        let envelope = Envelope::parse(file)?;
        let header = parse_header(section(file, &envelope.header), envelope.header_hash)?;
        let bit = envelope.features.contains(Features::BLOCK_DIFFUSION);
        if bit != has_block_diffusion(&header) {
            return Err(FormatError::BlockDiffusion { bit });
        }
        let bytes = section(file, &envelope.directory);
        check_hash("directory", bytes, envelope.directory_hash)?;
        let directory = Directory::parse(bytes, envelope.data.end - envelope.data.start)?;
        let by_name = order_by_name(&directory)?;
        Ok(Index { envelope, header, directory, by_name })
    }

    /// Position of the tensor called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let name_of = |&id: &u32| self.directory.name(&self.directory.entries[id as usize]);
        let at = self.by_name.binary_search_by(|id| name_of(id).cmp(name)).ok()?;
        Some(self.by_name[at])
    }
}

/// Whether the header describes a block-diffusion model: the one model fact that the container
/// itself looks at, because a feature bit stands for it. A null is as good as no field.
pub(crate) fn has_block_diffusion(header: &Value) -> bool {
    header.pointer("/arch/block_diffusion").is_some_and(|record| !record.is_null())
}

/// The bytes of a section that [`Envelope::parse`] accepted for this file.
pub(crate) fn section<'a>(file: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    // In bounds of a slice, hence of `usize`.
    &file[range.start as usize..range.end as usize]
}

fn check_hash(section: &'static str, bytes: &[u8], stored: u64) -> Result<(), FormatError> {
    let computed = hash64(bytes);
    // Zero stands for "not hashed".
    if stored != 0 && stored != computed {
        return Err(FormatError::SectionHash { section, stored, computed });
    }
    Ok(())
}

fn parse_header(bytes: &[u8], stored_hash: u64) -> Result<Value, FormatError> {
    let len = bytes.len() as u64;
    if len > MAX_HEADER_LEN {
        return Err(FormatError::HeaderSize { len, limit: MAX_HEADER_LEN });
    }
    check_hash("header", bytes, stored_hash)?;
    let header: Value = serde_json::from_slice(bytes)
        .map_err(|error| FormatError::HeaderJson { message: error.to_string() })?;
    let field = |field, value: Option<&Value>, expected| {
        let mut found = value.map_or("missing".into(), Value::to_string);
        if let Some((cut, _)) = found.char_indices().nth(40) {
            found.truncate(cut);
            found.push('…');
        }
        FormatError::HeaderField { field, found, expected }
    };
    let Some(object) = header.as_object() else {
        return Err(field("(root)", Some(&header), "a JSON object"));
    };
    let format = object.get("format");
    if format.and_then(Value::as_str) != Some("cmf") {
        return Err(field("format", format, "\"cmf\""));
    }
    Ok(header)
}

fn order_by_name(directory: &Directory) -> Result<Box<[u32]>, FormatError> {
    let entries = &directory.entries;
    let name = |id: u32| directory.name(&entries[id as usize]);
    let count = u32::try_from(entries.len()).map_err(|_| FormatError::Directory {
        what: "more than 2^32 tensors",
        count: entries.len() as u64,
        pool: 0,
        len: 0,
    })?;
    let mut order: Box<[u32]> = (0..count).collect();
    order.sort_by(|&a, &b| name(a).cmp(name(b)));
    for pair in order.windows(2) {
        if name(pair[0]) == name(pair[1]) {
            return Err(FormatError::Tensor {
                index: pair[1].into(),
                name: name(pair[1]).into(),
                problem: TensorProblem::Duplicate { other: pair[0].into() },
            });
        }
    }
    Ok(order)
}
