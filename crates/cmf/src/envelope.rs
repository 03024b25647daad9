//! The 128-byte envelope: magic, version, required features, sections, metadata hashes.

use std::fmt;
use std::ops::Range;

use crate::error::FormatError;

pub(crate) const ENVELOPE_LEN: u64 = 128;
pub(crate) const DATA_ALIGN: u64 = 4096;
const MAGIC: [u8; 4] = *b"CMF\x01";
const VERSION: u32 = 2;

/// The feature bits that a reader of a file must support.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features(u32);

impl Features {
    /// Bit 0: there is a tensor directory. Always set.
    pub const DIRECTORY: Features = Features(1);
    /// Bit 2: some tensor has two scale fields (`q8_2f`).
    pub const TWO_FIELD: Features = Features(1 << 2);
    /// Bit 15: a block-diffusion model. Set exactly when the header has `arch.block_diffusion`.
    pub const BLOCK_DIFFUSION: Features = Features(1 << 15);

    const SUPPORTED: u32 = Self::DIRECTORY.0 | Self::TWO_FIELD.0 | Self::BLOCK_DIFFUSION.0;

    /// The bits as the envelope stores them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// All bits of both.
    #[must_use]
    pub const fn union(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// What CMF writers mean by a bit, where that is known.
    fn meaning(bit: u32) -> &'static str {
        match bit {
            0 => "tensor directory",
            1 => "task masks",
            2 => "two-field quantisation",
            3 => "delta masks",
            4 => "hot packs",
            5 => "loop masks",
            6 => "standalone skill",
            7 | 8 => "Hadamard-transformed weights",
            9 => "skill records",
            10 => "skill router",
            11 => "decision profile",
            12 => "bounded-state attention",
            13 => "frozen genome",
            15 => "block diffusion",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for bit in (0..32).filter(|bit| self.0 >> bit & 1 == 1) {
            write!(f, "{separator}bit {bit} ({})", Self::meaning(bit))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Where the sections lie: byte ranges from the start of the file, in bounds and disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub features: Features,
    pub header: Range<u64>,
    pub directory: Range<u64>,
    pub data: Range<u64>,
    pub vocab: Range<u64>,
    /// 0 means that the writer left no hash.
    pub header_hash: u64,
    pub directory_hash: u64,
}

impl Envelope {
    /// Reads and checks the envelope of a whole file.
    pub(crate) fn parse(file: &[u8]) -> Result<Envelope, FormatError> {
        let file_len = file.len() as u64;
        let bytes: &[u8; ENVELOPE_LEN as usize] =
            file.first_chunk().ok_or(FormatError::TooShort { len: file_len })?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;

        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(FormatError::Magic { found: magic });
        }
        if u32_at(4) != VERSION {
            return Err(FormatError::Version { found: u32_at(4) });
        }
        if u32_at(8) != 0 {
            return Err(FormatError::Flags { found: u32_at(8) });
        }
        let features = Features(u32_at(12));
        let missing = features.0 & !Features::SUPPORTED;
        if missing != 0 {
            let missing = Features(missing);
            return Err(FormatError::Features { missing, required: features.0 });
        }
        if !features.contains(Features::DIRECTORY) {
            return Err(FormatError::NoDirectoryBit { found: features.0 });
        }

        let section = |section, at| {
            let (offset, len) = (u64_at(at), u64_at(at + 8));
            match offset.checked_add(len) {
                Some(end) if offset >= ENVELOPE_LEN && end <= file_len => Ok(offset..end),
                _ => Err(FormatError::Section { section, offset, len, file_len }),
            }
        };
        let absent = |section, at| match (u64_at(at), u64_at(at + 8)) {
            (0, 0) => Ok(()),
            (offset, len) => Err(FormatError::ForeignSection { section, offset, len }),
        };
        let header = section("header", 0x10)?;
        let directory = section("directory", 0x20)?;
        let data = section("data", 0x30)?;
        absent("masks", 0x40)?;
        // A file without a vocabulary may say (0, 0).
        let vocab = match (u64_at(0x50), u64_at(0x58)) {
            (0, 0) => ENVELOPE_LEN..ENVELOPE_LEN,
            _ => section("vocabulary", 0x50)?,
        };
        absent("sparse index", 0x60)?;
        if data.start % DATA_ALIGN != 0 {
            return Err(FormatError::DataAlignment { offset: data.start });
        }
        refuse_overlap([
            ("header", &header),
            ("directory", &directory),
            ("data", &data),
            ("vocabulary", &vocab),
        ])?;
        Ok(Envelope {
            features,
            header,
            directory,
            data,
            vocab,
            header_hash: u64_at(0x70),
            directory_hash: u64_at(0x78),
        })
    }

    /// The bytes that [`Envelope::parse`] reads.
    pub(crate) fn to_bytes(&self) -> [u8; ENVELOPE_LEN as usize] {
        let mut bytes = [0; ENVELOPE_LEN as usize];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(4, &VERSION.to_le_bytes());
        put(12, &self.features.0.to_le_bytes());
        let sections =
            [(0x10, &self.header), (0x20, &self.directory), (0x30, &self.data), (0x50, &self.vocab)];
        for (at, range) in sections {
            put(at, &range.start.to_le_bytes());
            put(at + 8, &(range.end - range.start).to_le_bytes());
        }
        put(0x70, &self.header_hash.to_le_bytes());
        put(0x78, &self.directory_hash.to_le_bytes());
        bytes
    }
}

fn refuse_overlap(mut sections: [(&'static str, &Range<u64>); 4]) -> Result<(), FormatError> {
    sections.sort_by_key(|(_, range)| range.start);
    let mut nonempty = sections.into_iter().filter(|(_, range)| !range.is_empty());
    let Some(mut before) = nonempty.next() else {
        return Ok(());
    };
    for section in nonempty {
        if section.1.start < before.1.end {
            let at = section.1.start;
            return Err(FormatError::Overlap { first: before.0, second: section.0, at });
        }
        before = section;
    }
    Ok(())
}
