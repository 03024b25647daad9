//! Making a file: the layout first, then payloads in any order, metadata last.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::directory::{Directory, Entry, MAX_RANK, TENSOR_ALIGN};
use crate::encoding::Encoding;
use crate::envelope::{DATA_ALIGN, ENVELOPE_LEN, Envelope, Features};
use crate::error::{Error, WriteError};
use crate::hash::{Hasher64, hash64};
use crate::index::has_block_diffusion;

/// Payloads of at least this many bytes begin on a page, so that they can be viewed alone.
const PAGED_FROM: u64 = 16 << 10;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Unique name of 1 to 65535 bytes.
    pub name: String,
    /// How the numbers are stored.
    pub encoding: Encoding,
    /// At most 6 dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// Writes a CMF file.
///
/// The layout follows from header, vocabulary and specifications, so it is fixed when the writer
/// is made; payloads then go straight to their places, in any order. The file grows under the
/// name `PATH.partial`. [`Writer::finish`] writes the metadata, the envelope last of all, waits
/// for the disk and renames the file to `PATH`, replacing what was there. Whatever happens before
/// that, no file opens under either name; dropping the writer removes the partial file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    partial: PathBuf,
    /// `None` once the file has its final name.
    file: Option<File>,
    envelope: Envelope,
    header: Vec<u8>,
    vocab: Vec<u8>,
    directory: Directory,
    specs: Vec<TensorSpec>,
    written: Vec<bool>,
}

impl Writer {
    /// Lays out a file and begins `PATH.partial` beside it.
    ///
    /// `header` is a JSON object. Its fields `format`, `version` and `section_hashes.vocab` are
    /// set here, and feature bits are derived: [`Features::TWO_FIELD`] from the encodings,
    /// [`Features::BLOCK_DIFFUSION`] from the header's `arch.block_diffusion`. `vocab` is the
    /// content of a `tokenizer.json`, or nothing.
    ///
    /// # Errors
    /// If the format cannot hold what is asked for, `path` is a folder or a device, somebody else
    /// is writing this file, or the partial file cannot be made.
    pub fn create(
        path: impl AsRef<Path>,
        header: Value,
        vocab: &[u8],
        specs: Vec<TensorSpec>,
    ) -> Result<Writer, Error> {
        let path = path.as_ref().to_path_buf();
        // A rename would fail over a folder, after all the work, and do away with a device.
        if std::fs::metadata(&path).is_ok_and(|existing| !existing.is_file()) {
            let error = io::Error::other("is there and is not a regular file");
            return Err(Error::Io { path, action: "replace", error });
        }
        let layout = Layout::new(header, vocab, &specs)
            .map_err(|problem| Error::Write { path: path.clone(), problem })?;
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = open_partial(&path, &partial)?;
        let Layout { envelope, header, directory } = layout;
        let (vocab, written) = (vocab.to_vec(), vec![false; specs.len()]);
        let file = Some(file);
        let writer = Writer { path, partial, file, envelope, header, vocab, directory, specs, written };
        // Gaps between payloads become zeros, without being written.
        writer.file().set_len(writer.file_len()).map_err(|error| writer.io("reserve", error))?;
        Ok(writer)
    }

    /// The specifications, in the order in which they were given.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Size of the finished file in bytes.
    pub fn file_len(&self) -> u64 {
        self.envelope.vocab.end
    }

    /// Payload size of tensor `index` in bytes.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn payload_len(&self, index: usize) -> u64 {
        self.directory.entries[index].len
    }

    /// Writes the payload of tensor `index`.
    ///
    /// # Errors
    /// If the payload has another size than the specification gives, the tensor was written
    /// before, or the disk refuses.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn write(&mut self, index: usize, payload: &[u8]) -> Result<(), Error> {
        let mut tensor = self.tensor_writer(index)?;
        tensor.write_piece(payload)?;
        tensor.finish()
    }

    /// Writes the payload of tensor `index` in pieces: for payloads that are made as they go.
    /// The pieces are not buffered.
    ///
    /// # Errors
    /// If the tensor was written before or the disk refuses.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn tensor_writer(&mut self, index: usize) -> Result<TensorWriter<'_>, Error> {
        if self.written[index] {
            return Err(self.refuse(WriteError::Twice { name: self.specs[index].name.clone() }));
        }
        let start = self.envelope.data.start + self.directory.entries[index].offset;
        self.file().seek(SeekFrom::Start(start)).map_err(|error| self.io("seek", error))?;
        Ok(TensorWriter { writer: self, index, hasher: Hasher64::new() })
    }

    /// Writes the metadata and gives the file its name.
    ///
    /// # Errors
    /// If a tensor is missing or the disk refuses; the partial file is removed.
    pub fn finish(mut self) -> Result<(), Error> {
        let missing = || self.written.iter().enumerate().filter(|(_, written)| !**written);
        if let Some((index, _)) = missing().next() {
            let (count, first) = (missing().count(), self.specs[index].name.clone());
            return Err(self.refuse(WriteError::Missing { count, first }));
        }
        let directory = self.directory.to_bytes();
        self.envelope.directory_hash = hash64(&directory);
        let sync = |error| self.io("flush", error);
        self.write_at(self.envelope.header.start, &self.header)?;
        self.write_at(self.envelope.directory.start, &directory)?;
        self.write_at(self.envelope.vocab.start, &self.vocab)?;
        // On disk before the envelope is, which makes the file valid.
        self.file().sync_all().map_err(sync)?;
        self.write_at(0, &self.envelope.to_bytes())?;
        self.file().sync_all().map_err(sync)?;
        std::fs::rename(&self.partial, &self.path).map_err(|error| self.io("rename", error))?;
        self.file = None;
        sync_directory(&self.path);
        Ok(())
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("present until `finish` consumes the writer")
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset)).map_err(|error| self.io("seek", error))?;
        file.write_all(bytes).map_err(|error| self.io("write", error))
    }

    fn io(&self, action: &'static str, error: io::Error) -> Error {
        let path = self.partial.clone();
        if error.kind() == io::ErrorKind::StorageFull {
            return Error::DiskFull { path, needed: self.file_len() };
        }
        Error::Io { path, action, error }
    }

    fn refuse(&self, problem: WriteError) -> Error {
        Error::Write { path: self.path.clone(), problem }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nobody is left to report a failure to, and an unfinished file does not open anyway.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Writes one payload in pieces, see [`Writer::tensor_writer`].
///
/// Dropping it without [`TensorWriter::finish`] leaves the tensor unwritten; it can be begun anew.
#[derive(Debug)]
pub struct TensorWriter<'a> {
    writer: &'a mut Writer,
    index: usize,
    hasher: Hasher64,
}

impl TensorWriter<'_> {
    /// Bytes that are still to come.
    pub fn remaining(&self) -> u64 {
        self.writer.payload_len(self.index) - self.hasher.len()
    }

    /// Appends a piece of the payload.
    ///
    /// # Errors
    /// If the payload becomes too long or the disk refuses.
    pub fn write_piece(&mut self, piece: &[u8]) -> Result<(), Error> {
        if piece.len() as u64 > self.remaining() {
            return Err(self.wrong_length(self.hasher.len() + piece.len() as u64));
        }
        self.writer.file().write_all(piece).map_err(|error| self.writer.io("write", error))?;
        self.hasher.update(piece);
        Ok(())
    }

    /// Marks the tensor as written.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn finish(self) -> Result<(), Error> {
        if self.remaining() > 0 {
            return Err(self.wrong_length(self.hasher.len()));
        }
        self.writer.directory.entries[self.index].hash = self.hasher.finish();
        self.writer.written[self.index] = true;
        Ok(())
    }

    fn wrong_length(&self, found: u64) -> Error {
        let name = self.writer.specs[self.index].name.clone();
        let expected = self.writer.payload_len(self.index);
        self.writer.refuse(WriteError::PayloadLength { name, found, expected })
    }
}

impl Write for TensorWriter<'_> {
    /// As [`TensorWriter::write_piece`]; takes the whole piece.
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.write_piece(piece).map_err(io::Error::other)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where everything goes.
struct Layout {
    envelope: Envelope,
    header: Vec<u8>,
    directory: Directory,
}

impl Layout {
    fn new(header: Value, vocab: &[u8], specs: &[TensorSpec]) -> Result<Layout, WriteError> {
        const TOO_LARGE: WriteError = WriteError::TooLarge("the file would exceed 2^63 bytes");
        let end = |start: u64, len: u64| start.checked_add(len).filter(|end| *end < 1 << 63).ok_or(TOO_LARGE);
        let mut features = Features::DIRECTORY;
        if has_block_diffusion(&header) {
            features = features.union(Features::BLOCK_DIFFUSION);
        }
        if specs.iter().any(|spec| spec.encoding == Encoding::Q8TwoField) {
            features = features.union(Features::TWO_FIELD);
        }
        let (directory, data_len) = lay_out_tensors(specs, end)?;
        let header = header_bytes(header, vocab)?;

        let header_end = end(ENVELOPE_LEN, header.len() as u64)?;
        let directory_len =
            Directory::byte_len(directory.entries.len(), directory.names.len()).ok_or(TOO_LARGE)?;
        let directory_end = end(header_end, directory_len)?;
        let data_start = directory_end.next_multiple_of(DATA_ALIGN);
        let data_end = end(data_start, data_len)?;
        let envelope = Envelope {
            features,
            header: ENVELOPE_LEN..header_end,
            directory: header_end..directory_end,
            data: data_start..data_end,
            vocab: data_end..end(data_end, vocab.len() as u64)?,
            header_hash: hash64(&header),
            directory_hash: 0,
        };
        Ok(Layout { envelope, header, directory })
    }
}

/// The directory without hashes, and the length of the data section.
fn lay_out_tensors(
    specs: &[TensorSpec],
    end: impl Fn(u64, u64) -> Result<u64, WriteError>,
) -> Result<(Directory, u64), WriteError> {
    let mut directory = Directory::default();
    let mut at = 0u64;
    for (index, spec) in specs.iter().enumerate() {
        let refuse = |what: String| WriteError::Spec { index, name: spec.name.clone(), what };
        if spec.name.is_empty() || spec.name.len() > usize::from(u16::MAX) {
            return Err(refuse("names have 1 to 65535 bytes".into()));
        }
        if spec.shape.len() > MAX_RANK || spec.shape.iter().any(|dim| u32::try_from(*dim).is_err()) {
            return Err(refuse(format!("shape {:?} exceeds {MAX_RANK} dimensions of 32 bits", spec.shape)));
        }
        let len = spec.encoding.size_of(&spec.shape).map_err(|error| refuse(error.to_string()))?;
        let offset = at.next_multiple_of(if len >= PAGED_FROM { DATA_ALIGN } else { TENSOR_ALIGN });
        at = end(offset, len)?;
        let mut dims = [0; MAX_RANK];
        dims[..spec.shape.len()].copy_from_slice(&spec.shape);
        let start = directory.names.len();
        directory.names.push_str(&spec.name);
        let (name, rank) = (start..directory.names.len(), spec.shape.len() as u8);
        let encoding = spec.encoding;
        directory.entries.push(Entry { name, encoding, rank, dims, offset, len, hash: 0 });
    }
    if u32::try_from(specs.len()).is_err() || u32::try_from(directory.names.len()).is_err() {
        return Err(WriteError::TooLarge("the directory holds 2^32 tensors and bytes of names"));
    }
    let mut seen = std::collections::HashMap::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        if let Some(other) = seen.insert(spec.name.as_str(), index) {
            let (name, what) = (spec.name.clone(), format!("the name is number {other}'s already"));
            return Err(WriteError::Spec { index, name, what });
        }
    }
    Ok((directory, at))
}

/// The header with the fields that are the container's own.
fn header_bytes(mut header: Value, vocab: &[u8]) -> Result<Vec<u8>, WriteError> {
    let describe = |what: &str| WriteError::Header(what.into());
    let object = header.as_object_mut().ok_or_else(|| describe("must be a JSON object"))?;
    for (field, value) in [("format", Value::from("cmf")), ("version", Value::from(2))] {
        let present = object.entry(field).or_insert_with(|| value.clone());
        if *present != value {
            return Err(describe(&format!("field {field} is {present}, expected {value} or none")));
        }
    }
    let hashes = object.entry("section_hashes").or_insert_with(|| Value::Object(Default::default()));
    let hashes = hashes.as_object_mut().ok_or_else(|| describe("section_hashes must be an object"))?;
    hashes.insert("vocab".into(), format!("{:016x}", hash64(vocab)).into());
    let bytes = serde_json::to_vec(&header).map_err(|error| describe(&error.to_string()))?;
    if bytes.len() as u64 > crate::index::MAX_HEADER_LEN {
        return Err(describe(&format!("{} bytes exceed what readers accept", bytes.len())));
    }
    Ok(bytes)
}

/// Opens a new partial file for this process alone.
fn open_partial(path: &Path, partial: &Path) -> Result<File, Error> {
    let io = |action| {
        let path = partial.to_path_buf();
        move |error| Error::Io { path, action, error }
    };
    loop {
        // Not truncated: it may be somebody's work in progress.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let file = options.open(partial).map_err(io("create"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Write { path: path.to_path_buf(), problem: WriteError::Busy });
            }
            // Some network filesystems have no locks; then two writers are their users' business.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io("lock")(error)),
        }
        if file.metadata().map_err(io("inspect"))?.len() == 0 {
            return Ok(file);
        }
        // Left over from a process that was killed; or another writer has just renamed it to its
        // final name, and then it must not be touched: give up the name, not the contents.
        match std::fs::remove_file(partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io("replace")(error));
            }
            _ => {}
        }
    }
}

/// Makes the rename durable where directories can be flushed. The file is complete either way.
fn sync_directory(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Ok(directory) = File::open(parent.unwrap_or(Path::new("."))) {
        let _ = directory.sync_all();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// `/dev/full` answers every write with "no space left on device".
    #[test]
    fn a_full_disk_is_said_and_the_partial_file_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.cmf");
        let encoding = Encoding::F32;
        let spec = TensorSpec { name: "a".into(), encoding, shape: vec![2] };
        let mut writer = Writer::create(&path, Value::Object(Default::default()), b"", vec![spec]).unwrap();
        writer.file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let needed = writer.file_len();
        let error = writer.write(0, &[0; 8]).unwrap_err();
        assert!(matches!(error, Error::DiskFull { needed: n, .. } if n == needed), "{error}");
        assert!(error.to_string().contains("disk full"), "{error}");
        drop(writer);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
