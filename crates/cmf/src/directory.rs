//! The binary tensor directory: `u64 count, u64 pool`, 56-byte records, name pool.

use std::ops::Range;

use crate::encoding::{Encoding, foreign_name};
use crate::error::{FormatError, TensorProblem};

pub(crate) const MAX_RANK: usize = 6;
pub(crate) const TENSOR_ALIGN: u64 = 64;
const HEAD_LEN: u64 = 16;
const RECORD_LEN: u64 = 56;

/// One tensor. `name` is a range of [`Directory::names`]; `offset` counts from the data section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: Range<usize>,
    pub encoding: Encoding,
    pub rank: u8,
    pub dims: [usize; MAX_RANK],
    pub offset: u64,
    pub len: u64,
    pub hash: u64,
}

impl Entry {
    pub(crate) fn shape(&self) -> &[usize] {
        &self.dims[..usize::from(self.rank)]
    }
}

/// All tensors in file order, with their names in one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directory {
    pub entries: Vec<Entry>,
    pub names: String,
}

impl Directory {
    pub(crate) fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.clone()]
    }

    /// Bytes that a directory of `count` tensors with `names` bytes of names takes.
    pub(crate) fn byte_len(count: usize, names: usize) -> Option<u64> {
        (count as u64).checked_mul(RECORD_LEN)?.checked_add(HEAD_LEN + names as u64)
    }

    /// Reads and checks a directory over a data section of `data_len` bytes. Names are not
    /// compared with each other here.
    pub(crate) fn parse(bytes: &[u8], data_len: u64) -> Result<Directory, FormatError> {
        let len = bytes.len() as u64;
        let fail = |what, count, pool| FormatError::Directory { what, count, pool, len };
        let Some(head) = bytes.first_chunk::<{ HEAD_LEN as usize }>() else {
            return Err(fail("shorter than its 16-byte head", 0, 0));
        };
        let (count, pool) = (u64_at(head, 0), u64_at(head, 8));
        let records_end = count.checked_mul(RECORD_LEN).and_then(|n| n.checked_add(HEAD_LEN));
        if records_end.is_none_or(|end| end > len) {
            return Err(fail("more tensors than its length holds", count, pool));
        }
        if records_end.is_none_or(|end| pool < end) || pool > len {
            return Err(fail("name pool outside the bytes after the records", count, pool));
        }
        // Everything is inside `bytes` from here on: `count` is bounded by its length.
        let names = &bytes[pool as usize..];
        let records = bytes[HEAD_LEN as usize..].chunks_exact(RECORD_LEN as usize);
        let mut directory = Directory { entries: Vec::with_capacity(count as usize), names: String::new() };
        for (index, record) in (0..count).zip(records) {
            directory.push_record(index, record, names, data_len)?;
        }
        Ok(directory)
    }

    fn push_record(
        &mut self,
        index: u64,
        record: &[u8],
        pool: &[u8],
        data_len: u64,
    ) -> Result<(), FormatError> {
        let name = record_name(index, record, pool)?;
        // Records that share pool bytes could ask for far more memory than the file has.
        if self.names.len() + name.len() > pool.len() {
            let what = "names are longer in all than the name pool".into();
            return Err(FormatError::TensorName { index, what });
        }
        let start = self.names.len();
        self.names.push_str(name);
        let entry = parse_record(record, start..self.names.len(), data_len)
            .map_err(|problem| FormatError::Tensor { index, name: name.into(), problem })?;
        self.entries.push(entry);
        Ok(())
    }

    /// The bytes that [`Directory::parse`] reads. The caller has checked that names, ranks and
    /// dimensions fit their fields.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let count = self.entries.len() as u64;
        let mut bytes = Vec::new();
        bytes.extend(count.to_le_bytes());
        bytes.extend((HEAD_LEN + RECORD_LEN * count).to_le_bytes());
        for entry in &self.entries {
            bytes.extend((entry.name.start as u32).to_le_bytes());
            bytes.extend((entry.name.len() as u16).to_le_bytes());
            bytes.extend([entry.encoding.id(), entry.rank]);
            for dim in entry.dims {
                bytes.extend((dim as u32).to_le_bytes());
            }
            for field in [entry.offset, entry.len, entry.hash] {
                bytes.extend(field.to_le_bytes());
            }
        }
        bytes.extend(self.names.as_bytes());
        bytes
    }
}

fn record_name<'a>(index: u64, record: &[u8], pool: &'a [u8]) -> Result<&'a str, FormatError> {
    let fail = |what| FormatError::TensorName { index, what };
    let at = u32_at(record, 0) as usize;
    let len = usize::from(u16::from_le_bytes([record[4], record[5]]));
    let bytes = at.checked_add(len).and_then(|end| pool.get(at..end)).ok_or_else(|| {
        let size = pool.len();
        fail(format!("name (offset {at}, {len} bytes) passes the end of the name pool at {size}"))
    })?;
    if bytes.is_empty() {
        return Err(fail("name is empty".into()));
    }
    std::str::from_utf8(bytes).map_err(|error| fail(format!("name is not UTF-8: {error}")))
}

fn parse_record(record: &[u8], name: Range<usize>, data_len: u64) -> Result<Entry, TensorProblem> {
    let (id, rank) = (record[6], record[7]);
    let encoding =
        Encoding::from_id(id).ok_or_else(|| TensorProblem::Encoding { id, name: foreign_name(id) })?;
    if usize::from(rank) > MAX_RANK {
        return Err(TensorProblem::Rank { found: rank });
    }
    let mut dims = [0; MAX_RANK];
    for (dim, slot) in dims.iter_mut().enumerate() {
        let value = u32_at(record, 8 + 4 * dim);
        if dim >= usize::from(rank) && value != 0 {
            return Err(TensorProblem::TrailingDim { dim, value, rank });
        }
        *slot = value as usize;
    }
    let (offset, len, hash) = (u64_at(record, 32), u64_at(record, 40), u64_at(record, 48));
    let entry = Entry { name, encoding, rank, dims, offset, len, hash };
    let expected = encoding.size_of(entry.shape()).map_err(TensorProblem::Shape)?;
    if len != expected {
        let shape = entry.shape().to_vec();
        return Err(TensorProblem::Length { found: len, expected, encoding, shape });
    }
    if !offset.is_multiple_of(TENSOR_ALIGN) {
        return Err(TensorProblem::Alignment { offset });
    }
    if offset.checked_add(len).is_none_or(|end| end > data_len) {
        return Err(TensorProblem::Range { offset, len, data_len });
    }
    Ok(entry)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
