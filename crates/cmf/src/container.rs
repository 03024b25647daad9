//! A mapped file and its tensors.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::Value;

use crate::directory::Entry;
use crate::encoding::{self, Encoding};
use crate::envelope::Features;
use crate::error::{Error, FormatError};
use crate::hash::Hasher64;
use crate::index::{Index, section};
use crate::verify::{self, VerifyReport};

/// An open CMF file: checked metadata over a read-only mapping.
///
/// Opening reads the metadata only; the operating system fetches weight pages when somebody looks
/// at them and drops them when memory is short. A container is `Send` and `Sync`; share it in an
/// `Arc`.
///
/// # The file must not change while it is open
///
/// A mapping shows what the file holds now, not what it held at opening. If another process
/// truncates the file, touching a page past the new end raises `SIGBUS` (on Windows, an access
/// violation), which ends this process; if it writes to the file, weights change under running
/// computations. Replace a model file by renaming a new one over it, as [`crate::Writer`] does:
/// an open container then keeps the old contents.
pub struct Container {
    path: PathBuf,
    source: Source,
    index: Index,
}

enum Source {
    File { map: Mmap, file: File },
    Memory(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::File { map, .. } => map,
            Source::Memory(bytes) => bytes,
        }
    }
}

/// What to tell the system about the pages of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// They will be read soon: fetch them now, in the background.
    Soon,
    /// They will not be read for a while: this process lets go of them, so that the system may give
    /// their memory to others. Reading them again is allowed, and fetches them again.
    Later,
}

/// Names a tensor of one [`Container`]: its position in the directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorId(u32);

impl TensorId {
    /// Position in the directory, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Container {
    /// Maps a file and checks its envelope, header and directory. Reads no weight byte.
    ///
    /// # Errors
    /// If the file cannot be read, is not a valid CMF file, or requires a feature or holds an
    /// encoding that this crate does not support.
    pub fn open(path: impl AsRef<Path>) -> Result<Container, Error> {
        let path = path.as_ref().to_path_buf();
        let io = |action| {
            let path = path.clone();
            move |error| Error::Io { path, action, error }
        };
        // Asked before opening, which would wait at a pipe for a writer.
        if std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            let error = std::io::Error::other("not a regular file");
            return Err(io("map")(error));
        }
        let file = File::open(&path).map_err(io("open"))?;
        let metadata = file.metadata().map_err(io("inspect"))?;
        if metadata.len() == 0 {
            // Not every system can map an empty file.
            return Err(Error::Invalid { path, problem: FormatError::TooShort { len: 0 } });
        }
        // SAFETY: the mapping is read-only. That nobody else changes the file is the documented
        // condition of this type; there is no way to enforce it.
        let map = unsafe { Mmap::map(&file) }.map_err(io("map"))?;
        Self::new(path, Source::File { map, file })
    }

    /// A container over bytes in memory, with the path `<memory>`.
    ///
    /// # Errors
    /// As [`Container::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Container, Error> {
        Self::new("<memory>".into(), Source::Memory(bytes))
    }

    fn new(path: PathBuf, source: Source) -> Result<Container, Error> {
        match Index::parse(source.bytes()) {
            Ok(index) => Ok(Container { path, source, index }),
            Err(problem) => Err(Error::Invalid { path, problem }),
        }
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Features that the file requires of its reader.
    pub fn features(&self) -> Features {
        self.index.envelope.features
    }

    /// The header, a JSON object.
    pub fn header(&self) -> &Value {
        &self.index.header
    }

    /// The vocabulary section: the bytes of a `tokenizer.json`, or nothing.
    pub fn vocab(&self) -> &[u8] {
        section(self.bytes(), &self.index.envelope.vocab)
    }

    /// Tells the system what to expect of a tensor's pages. Only a hint: what the system makes of it is
    /// not known, and on some it does nothing.
    pub fn hint(&self, id: TensorId, hint: Hint) {
        let Source::File { map, .. } = &self.source else { return };
        let range = self.payload(&self.index.directory.entries[id.index()]);
        let (offset, len) = (range.start as usize, (range.end - range.start) as usize);
        #[cfg(unix)]
        {
            // A system that does not know the advice refuses it.
            let _ = match hint {
                Hint::Soon => map.advise_range(memmap2::Advice::WillNeed, offset, len),
                // SAFETY: the mapping is read-only and of a file, from which dropped pages are read again.
                Hint::Later => unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len)
                },
            };
        }
        #[cfg(not(unix))]
        let _ = (map, hint, offset, len);
    }

    /// A number that names the contents: the hash of header, directory and vocabulary. The directory has
    /// the hash of every payload, so no weight is read.
    pub fn fingerprint(&self) -> u64 {
        let (envelope, mut hasher) = (&self.index.envelope, Hasher64::new());
        for range in [&envelope.header, &envelope.directory, &envelope.vocab] {
            hasher.update(&(range.end - range.start).to_le_bytes());
            hasher.update(section(self.bytes(), range));
        }
        hasher.finish()
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The whole file. For an opened one this is the mapping: it begins on a page boundary, so
    /// [`Tensor::offset`] tells the alignment of a payload in memory.
    pub fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    /// All tensors, in the order of the directory.
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors { container: self, ids: 0..self.index.by_name.len() as u32 }
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        self.index.find(name).map(|id| self.tensor(TensorId(id)))
    }

    /// The tensor with an id that this container gave out.
    ///
    /// # Panics
    /// May panic if the id is another container's, or return an unrelated tensor.
    pub fn tensor(&self, id: TensorId) -> Tensor<'_> {
        let entry = &self.index.directory.entries[id.index()];
        let range = self.payload(entry);
        Tensor {
            id,
            name: self.index.directory.name(entry),
            encoding: entry.encoding,
            shape: entry.shape(),
            bytes: section(self.bytes(), &range),
            offset: range.start,
            hash: entry.hash,
        }
    }

    /// Where a payload lies in the file; [`Index::parse`] has checked it.
    fn payload(&self, entry: &Entry) -> Range<u64> {
        let start = self.index.envelope.data.start + entry.offset;
        start..start + entry.len
    }

    /// Reads the whole file and compares every hash: header, directory, vocabulary and tensors.
    ///
    /// `progress` is called now and then with the number of payload and vocabulary bytes checked
    /// so far, at the end with [`VerifyReport::bytes`].
    ///
    /// # Errors
    /// If the file has changed its length since it was opened. Hashes that do not match are no
    /// error but entries of the report.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<VerifyReport, Error> {
        if let Source::File { file, .. } = &self.source {
            let metadata = file.metadata().map_err(|error| Error::Io {
                path: self.path.clone(),
                action: "inspect",
                error,
            })?;
            let (mapped, now) = (self.file_len(), metadata.len());
            if mapped != now {
                return Err(Error::Changed { path: self.path.clone(), mapped, now });
            }
        }
        Ok(verify::verify(self, &self.index, progress))
    }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container")
            .field("path", &self.path)
            .field("features", &self.features())
            .field("file_len", &self.file_len())
            .field("tensors", &self.tensors().len())
            .finish_non_exhaustive()
    }
}

/// The tensors of a container, see [`Container::tensors`].
#[derive(Clone, Debug)]
pub struct Tensors<'a> {
    container: &'a Container,
    ids: Range<u32>,
}

impl<'a> Iterator for Tensors<'a> {
    type Item = Tensor<'a>;

    fn next(&mut self) -> Option<Tensor<'a>> {
        self.ids.next().map(|id| self.container.tensor(TensorId(id)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ids.size_hint()
    }
}

impl ExactSizeIterator for Tensors<'_> {}

/// A tensor of a container. Its payload has the size of its encoding and shape.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// Position in the directory.
    pub id: TensorId,
    /// Unique name.
    pub name: &'a str,
    /// How the numbers are stored.
    pub encoding: Encoding,
    /// Dimensions, outermost first; none for a scalar.
    pub shape: &'a [usize],
    /// The payload, in the mapping.
    pub bytes: &'a [u8],
    /// Offset of the payload from the start of the file, in bytes; a multiple of 64.
    pub offset: u64,
    /// Stored [`crate::hash64`] of the payload. Not compared at opening.
    pub hash: u64,
}

impl Tensor<'_> {
    /// Rows of the tensor seen as a matrix: all dimensions but the last, folded. A vector is one
    /// row, and so is a scalar.
    pub fn rows(&self) -> usize {
        match self.shape {
            [] => 1,
            // Without columns there may be more rows than memory could hold.
            [leading @ .., _] => leading.iter().fold(1, |n: usize, &dim| n.saturating_mul(dim)),
        }
    }

    /// Columns of the tensor seen as a matrix: the last dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// All values, row-major, on all threads of the current `rayon` pool.
    ///
    /// # Errors
    /// None for a tensor that a container gave out.
    pub fn decode(&self) -> Result<Vec<f32>, Error> {
        encoding::decode(self.encoding, self.rows(), self.cols(), self.bytes)
    }

    /// The values of some [rows](Tensor::rows), row-major, on this thread.
    ///
    /// # Errors
    /// If `rows` passes the end or `out` does not hold `rows.len() * cols` values.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        encoding::decode_rows(self.encoding, self.rows(), self.cols(), self.bytes, rows, out)
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} {:?} at {})", self.name, self.encoding, self.shape, self.offset)
    }
}
