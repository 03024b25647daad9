//! States of sequences in a file: a conversation that goes on after a restart.
//!
//! All numbers are little-endian. `hash` is [`shamrock_cmf::hash64`].
//!
//! ```text
//! magic "SHAMSTAT" | u32 version = 1 | u32 records | u64 model | u32 engine bytes | u32 note bytes
//! engine (UTF-8)   | note            | u64 hash of everything before
//! then for each record
//!   u32 n          | u32 storage of keys and values: 0 f32, 1 f16
//!   n u32 ids      | every layer, in order: keys and values of n rows, or ring and memory in f32
//!   u64 hash of the record's bytes before
//! ```
//!
//! How many numbers a layer has follows from the model's configuration and `n`. Half precision is used where
//! it loses nothing, so that what is read is what was written, to the last bit.

use std::io::{self, Read, Write};

use half::f16;
use shamrock_cmf::Hasher64;

use crate::config::{Config, LayerKind};
use crate::state::{LayerState, SequenceState};

const MAGIC: [u8; 8] = *b"SHAMSTAT";
const VERSION: u32 = 1;
/// Numbers that are converted at a time.
const PIECE: usize = 16 << 10;

/// What can be wrong with a file of states.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The system could not read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("this is no file of saved states")]
    Magic,
    /// Another version of the format.
    #[error("saved in version {0} of the format, of which this program knows only 1")]
    Version(u32),
    /// Cut off, or changed since it was written.
    #[error("damaged: {0}")]
    Damaged(&'static str),
}

/// Result of reading and writing states.
pub type Result<T> = std::result::Result<T, StateFileError>;

/// Who made the states of a file. Going on from states of another origin would give other tokens than
/// starting anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// [`ModelFile::fingerprint`](crate::ModelFile::fingerprint).
    pub model: u64,
    /// Everything else that decides about the last bit: version, backend, precision.
    pub engine: String,
}

/// Writes a file of states.
pub struct StateWriter<W> {
    sink: W,
    hasher: Hasher64,
}

impl<W: Write> StateWriter<W> {
    /// Begins a file of exactly `records` states. The note is the caller's.
    ///
    /// # Errors
    /// The sink's.
    pub fn new(sink: W, origin: &Origin, note: &[u8], records: u32) -> Result<StateWriter<W>> {
        let mut writer = StateWriter { sink, hasher: Hasher64::new() };
        writer.put(&MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        writer.put(&records.to_le_bytes())?;
        writer.put(&origin.model.to_le_bytes())?;
        writer.put_len(origin.engine.len())?;
        writer.put_len(note.len())?;
        writer.put(origin.engine.as_bytes())?;
        writer.put(note)?;
        writer.seal()?;
        Ok(writer)
    }

    /// Writes the state of a sequence that holds `ids`.
    ///
    /// # Errors
    /// The sink's; a state of another length than `ids`.
    pub fn push(&mut self, ids: &[u32], state: &SequenceState) -> Result<()> {
        if state.len != ids.len() {
            return Err(io::Error::other("a state of another length than its ids").into());
        }
        let kv = |layer: &LayerState| match layer {
            LayerState::Kv { k, v } => fits_half(k) && fits_half(v),
            LayerState::Gdn { .. } => true,
        };
        let half = state.layers.iter().all(kv);
        self.put_len(ids.len())?;
        self.put(&u32::from(half).to_le_bytes())?;
        for piece in ids.chunks(PIECE) {
            self.put(&piece.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
        }
        for layer in &state.layers {
            match layer {
                LayerState::Kv { k, v } => {
                    self.put_numbers(k, half)?;
                    self.put_numbers(v, half)?;
                }
                LayerState::Gdn { ring, memory } => {
                    self.put_numbers(ring, false)?;
                    self.put_numbers(memory, false)?;
                }
            }
        }
        self.seal()
    }

    /// Hands the sink back, to be flushed and synchronised.
    pub fn into_inner(self) -> W {
        self.sink
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        Ok(self.sink.write_all(bytes)?)
    }

    fn put_len(&mut self, len: usize) -> Result<()> {
        let len = u32::try_from(len).map_err(|_| io::Error::other("more than the format holds"))?;
        self.put(&len.to_le_bytes())
    }

    fn put_numbers(&mut self, numbers: &[f32], half: bool) -> Result<()> {
        for piece in numbers.chunks(PIECE) {
            let bytes: Vec<u8> = if half {
                piece.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()
            } else {
                piece.iter().flat_map(|x| x.to_le_bytes()).collect()
            };
            self.put(&bytes)?;
        }
        Ok(())
    }

    /// Ends a part with its hash.
    fn seal(&mut self) -> Result<()> {
        let hash = std::mem::take(&mut self.hasher).finish();
        Ok(self.sink.write_all(&hash.to_le_bytes())?)
    }
}

/// Whether half precision has all of these numbers.
fn fits_half(numbers: &[f32]) -> bool {
    numbers.iter().all(|&x| f16::from_f32(x).to_f32().to_bits() == x.to_bits())
}

/// Reads a file of states, one after another.
///
/// Nothing is allocated that the file is too short to fill.
#[derive(Debug)]
pub struct StateReader<R> {
    source: R,
    /// Bytes that are left.
    rest: u64,
    hasher: Hasher64,
    origin: Origin,
    note: Vec<u8>,
    records: u32,
}

impl<R: Read> StateReader<R> {
    /// Opens a file of `len` bytes.
    ///
    /// # Errors
    /// [`StateFileError`]: another kind of file, another version, damage before the first state.
    pub fn new(source: R, len: u64) -> Result<StateReader<R>> {
        let origin = Origin { model: 0, engine: String::new() };
        let mut reader =
            StateReader { source, rest: len, hasher: Hasher64::new(), origin, note: Vec::new(), records: 0 };
        if len < 8 || reader.get::<8>()? != MAGIC {
            return Err(StateFileError::Magic);
        }
        let version = reader.get_u32()?;
        if version != VERSION {
            return Err(StateFileError::Version(version));
        }
        reader.records = reader.get_u32()?;
        reader.origin.model = u64::from_le_bytes(reader.get()?);
        let (engine, note) = (reader.get_u32()?, reader.get_u32()?);
        let engine = reader.get_bytes(engine.into())?;
        reader.note = reader.get_bytes(note.into())?;
        reader.check_seal()?;
        reader.origin.engine =
            String::from_utf8(engine).map_err(|_| StateFileError::Damaged("the engine's name is no text"))?;
        Ok(reader)
    }

    /// Who made the states.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What the writer noted.
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// States that are still to come.
    pub fn remaining(&self) -> u32 {
        self.records
    }

    /// The next state and the ids it holds; `None` after the last. The state has the model's shape.
    ///
    /// # Errors
    /// [`StateFileError::Damaged`]; nothing can be read after it.
    pub fn next(&mut self, config: &Config) -> Result<Option<(Vec<u32>, SequenceState)>> {
        if self.records == 0 {
            return match self.rest {
                0 => Ok(None),
                _ => Err(StateFileError::Damaged("there is more behind its end")),
            };
        }
        let (len, storage) = (self.get_u32()?, self.get_u32()?);
        let half = match storage {
            0 => false,
            1 => true,
            _ => return Err(StateFileError::Damaged("an unknown storage of keys and values")),
        };
        let rows = u64::from(len);
        self.check_room(record_bytes(config, rows, half))?;
        // The room is there, so everything below is bounded by the file.
        let ids = self.get_bytes(4 * rows)?;
        let ids = ids.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let kv = len as usize * config.attention.kv_width();
        let ring = config.gdn.ring_rows() * config.gdn.channels();
        let mut layers = Vec::with_capacity(config.layers.len());
        for kind in &config.layers {
            layers.push(match kind {
                LayerKind::Full => {
                    LayerState::Kv { k: self.get_numbers(kv, half)?, v: self.get_numbers(kv, half)? }
                }
                LayerKind::Linear => LayerState::Gdn {
                    ring: self.get_numbers(ring, false)?,
                    memory: self.get_numbers(config.gdn.memory_len(), false)?,
                },
            });
        }
        self.check_seal()?;
        self.records -= 1;
        Ok(Some((ids, SequenceState { len: len as usize, layers })))
    }

    fn check_room(&self, bytes: Option<u64>) -> Result<()> {
        match bytes {
            Some(bytes) if bytes <= self.rest => Ok(()),
            _ => Err(StateFileError::Damaged("it ends too early")),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        self.check_room(Some(into.len() as u64))?;
        self.source.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StateFileError::Damaged("it ends too early"),
            _ => error.into(),
        })?;
        self.rest -= into.len() as u64;
        Ok(())
    }

    fn get<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    fn get_u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.get()?))
    }

    fn get_bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        self.check_room(Some(len))?;
        let mut bytes = vec![0; len as usize];
        self.read(&mut bytes)?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    fn get_numbers(&mut self, count: usize, half: bool) -> Result<Vec<f32>> {
        let mut numbers = Vec::with_capacity(count);
        while numbers.len() < count {
            let piece = (count - numbers.len()).min(PIECE) as u64;
            if half {
                let bytes = self.get_bytes(2 * piece)?;
                numbers.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()));
            } else {
                let bytes = self.get_bytes(4 * piece)?;
                numbers.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
            }
        }
        Ok(numbers)
    }

    fn check_seal(&mut self) -> Result<()> {
        let computed = std::mem::take(&mut self.hasher).finish();
        let mut stored = [0; 8];
        self.read(&mut stored)?;
        match u64::from_le_bytes(stored) == computed {
            true => Ok(()),
            false => Err(StateFileError::Damaged("a hash does not match")),
        }
    }
}

/// Bytes of a record behind its first two numbers.
fn record_bytes(config: &Config, rows: u64, half: bool) -> Option<u64> {
    let full = config.layers.iter().filter(|kind| **kind == LayerKind::Full).count() as u64;
    let width = if half { 2 } else { 4 };
    let per_row = (2 * full).checked_mul(config.attention.kv_width() as u64)?.checked_mul(width)?;
    let (fixed, _) = config.state_bytes();
    rows.checked_mul(per_row.checked_add(4)?)?.checked_add(fixed)?.checked_add(8)
}
