//! The weights of a checkpoint: one or more mapped safetensors files under one set of names.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::{bad_json, parse_json, read_if_present};
use crate::error::{Error, Result};
use crate::plan::FamilyTensor;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The safetensors files of a checkpoint folder, mapped.
///
/// The files must not change while this lives: like any mapping, it shows what is done to them.
pub(crate) struct Checkpoint {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// By name without wrapper prefix.
    tensors: HashMap<String, Stored>,
}

struct Shard {
    path: PathBuf,
    map: Mmap,
}

/// A tensor where it lies.
struct Stored {
    /// Name in the file.
    name: String,
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The values of one family tensor: a run of bytes of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    shard: usize,
    format: Format,
    bytes: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    F32,
    F16,
    Bf16,
}

impl Format {
    fn width(self) -> usize {
        if self == Format::F32 { 4 } else { 2 }
    }
}

impl Checkpoint {
    /// Maps the files of a folder and reads their headers, but no weight.
    pub(crate) fn open(dir: &Path) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { dir: dir.into(), shards: Vec::new(), tensors: HashMap::new() };
        for name in shard_names(dir)? {
            checkpoint.add_shard(dir.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<()> {
        let map = map_file(&path)?;
        let damaged = |error| Error::Safetensors { path: path.clone(), error: Box::new(error) };
        let (header_len, metadata) = SafeTensors::read_metadata(&map).map_err(damaged)?;
        let data_start = 8 + header_len;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let stored = Stored {
                name: name.clone(),
                shard,
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: data_start + start..data_start + end,
            };
            if let Some(first) = self.tensors.insert(plain_name(&name), stored) {
                let first_file = self.shards.get(first.shard).map_or(&path, |shard| &shard.path).clone();
                return Err(Error::Duplicate {
                    first: first.name,
                    first_file,
                    second: name,
                    second_file: path,
                });
            }
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    /// Finds the values of a family tensor and checks their shape and type.
    pub(crate) fn locate(&self, tensor: &FamilyTensor) -> Result<Slice> {
        if let Some(stored) = self.tensors.get(&tensor.name) {
            let same_count = || count(&stored.shape) == count(&tensor.shape);
            let fits = stored.shape == tensor.shape || (tensor.kind.any_shape() && same_count());
            return self.slice(stored, fits, &tensor.shape, 0..count(&tensor.shape).unwrap_or(0));
        }
        if let Some(packed) = &tensor.packed
            && let Some(stored) = self.tensors.get(&packed.name)
        {
            let first = packed.first_row * packed.shape[2];
            let values = first..first + tensor.shape[0] * tensor.shape[1];
            return self.slice(stored, stored.shape == packed.shape, &packed.shape, values);
        }
        Err(Error::MissingTensor {
            dir: self.dir.clone(),
            tensor: tensor.name.clone(),
            expected: tensor.shape.clone(),
        })
    }

    fn slice(&self, stored: &Stored, fits: bool, expected: &[usize], values: Range<usize>) -> Result<Slice> {
        let (path, tensor) = (self.shards[stored.shard].path.clone(), stored.name.clone());
        if !fits {
            let (found, expected) = (stored.shape.clone(), expected.to_vec());
            return Err(Error::TensorShape { path, tensor, found, expected });
        }
        let format = match stored.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            other => return Err(Error::TensorType { path, tensor, found: other.to_string() }),
        };
        let at = |value: usize| stored.bytes.start + value * format.width();
        Ok(Slice { shard: stored.shard, format, bytes: at(values.start)..at(values.end) })
    }

    /// Names, as stored, of the tensors that none of `used` reads; sorted.
    pub(crate) fn unused<'a>(&self, used: impl Iterator<Item = &'a FamilyTensor>) -> Vec<&str> {
        let mut known = BTreeSet::new();
        for tensor in used {
            match &tensor.packed {
                Some(packed) if !self.tensors.contains_key(&tensor.name) => {
                    known.insert(packed.name.as_str())
                }
                _ => known.insert(tensor.name.as_str()),
            };
        }
        let unused = self.tensors.iter().filter(|(plain, _)| !known.contains(plain.as_str()));
        let mut names: Vec<&str> = unused.map(|(_, stored)| stored.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The file that a slice lies in.
    pub(crate) fn path(&self, slice: &Slice) -> &Path {
        &self.shards[slice.shard].path
    }

    /// The values of a slice, on all threads of the current `rayon` pool.
    pub(crate) fn values(&self, slice: &Slice) -> Vec<f32> {
        const CHUNK: usize = 1 << 15;
        let width = slice.format.width();
        let bytes = &self.shards[slice.shard].map[slice.bytes.clone()];
        let mut values = vec![0.0; bytes.len() / width];
        let chunks = values.par_chunks_mut(CHUNK).zip(bytes.par_chunks(CHUNK * width));
        chunks.for_each(|(values, bytes)| widen(slice.format, bytes, values));
        values
    }
}

/// Reads little-endian numbers of any alignment.
fn widen(format: Format, bytes: &[u8], values: &mut [f32]) {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
    match format {
        Format::F32 => {
            for (value, word) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*word);
            }
        }
        Format::Bf16 => {
            for (value, bits) in values.iter_mut().zip(halves()) {
                *value = bf16::from_bits(bits).to_f32();
            }
        }
        Format::F16 => {
            let halves: Vec<f16> = halves().map(f16::from_bits).collect();
            halves.convert_to_f32_slice(values);
        }
    }
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1, |n: usize, dim| n.checked_mul(*dim))
}

/// The name as a text-only checkpoint has it.
fn plain_name(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.into(),
    }
}

/// The safetensors files of a folder: the single one, or those that the index lists.
fn shard_names(dir: &Path) -> Result<Vec<String>> {
    if dir.join(SINGLE).exists() {
        return Ok(vec![SINGLE.into()]);
    }
    let path = dir.join(INDEX);
    let Some(bytes) = read_if_present(&path)? else {
        return Err(Error::NoWeights { dir: dir.into() });
    };
    let index = parse_json(&path, &bytes)?;
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let map =
        map.ok_or_else(|| bad_json(&path, "weight_map must be an object of tensor names to file names"))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().filter(|name| is_plain_file_name(name));
        let name = name.ok_or_else(|| {
            bad_json(
                &path,
                format!("weight_map.{tensor} is {file}, expected the name of a file in the same folder"),
            )
        })?;
        names.insert(name);
    }
    if names.is_empty() {
        return Err(bad_json(&path, "weight_map is empty"));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// An index may not lead out of its folder.
fn is_plain_file_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name) && !name.contains(['/', '\\'])
}

fn map_file(path: &Path) -> Result<Mmap> {
    let io = |action| move |error| Error::Io { path: path.into(), action, error };
    let file = File::open(path).map_err(io("open"))?;
    let metadata = file.metadata().map_err(io("inspect"))?;
    if !metadata.is_file() {
        return Err(io("map")(std::io::Error::other("not a regular file")));
    }
    if metadata.len() == 0 {
        // Not every system can map an empty file.
        let error = Box::new(SafeTensorError::HeaderTooSmall);
        return Err(Error::Safetensors { path: path.into(), error });
    }
    // SAFETY: the mapping is read-only, and what is read from it is only ever taken as numbers,
    // for which every bit pattern is valid. That nobody truncates the file meanwhile is the
    // documented condition of `Checkpoint`.
    unsafe { Mmap::map(&file) }.map_err(io("map"))
}
