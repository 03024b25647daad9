//! Weights: from the mapping to the device, repacked on the way.
//!
//! The file's bytes go through two page-locked buffers in turn: while one is being copied and
//! repacked by the device, all host threads fill the other from the mapping.

use std::borrow::Cow;
use std::ops::Range;

use bytemuck::Pod;
use cudarc::driver::CudaEvent;
use half::f16;
use rayon::prelude::*;
use shamrock_cmf::{Encoding, q4tp, q8_2f, q8_row};
use shamrock_model::weights::{Ffn, Matrix, MixerWeights};
use shamrock_model::{Error, ModelFile, Result, Weights};

use crate::BACKEND;
use crate::abi::{self, Ptr};
use crate::device::{Buffer, Device, Grid, Pinned, driver};
use crate::geometry::{Geometry, padded};

/// Bytes of one of the two staging buffers when a model is loaded.
const STAGING: usize = 64 << 20;
/// Most bytes of a matrix that go through staging at once.
const CHUNK: usize = 16 << 20;
const ALIGN: usize = 256;
/// Alignment in a staging buffer that a matrix's place on the device may not have, at most.
pub(crate) const STAGING_SLACK: usize = 64 << 10;

/// A matrix on the device and the column factors of its input.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) matrix: abi::Matrix,
    /// f32 factors, 0 for none.
    pub(crate) cols: Ptr,
}

/// A full-attention layer.
pub(crate) struct AttentionLayer {
    pub(crate) q: Placed,
    pub(crate) k: Placed,
    pub(crate) v: Placed,
    pub(crate) o: Placed,
    pub(crate) q_norm: Ptr,
    pub(crate) k_norm: Ptr,
}

/// A Gated DeltaNet layer.
pub(crate) struct GdnLayer {
    pub(crate) qkv: Placed,
    pub(crate) z: Placed,
    /// Decay rows, then write-strength rows.
    pub(crate) ab: Placed,
    pub(crate) out: Placed,
    pub(crate) small: abi::Gdn,
}

/// How a layer mixes rows.
pub(crate) enum MixerLayer {
    /// Full attention.
    Full(AttentionLayer),
    /// Gated DeltaNet.
    Linear(GdnLayer),
}

/// One layer.
pub(crate) struct Layer {
    pub(crate) input_norm: Ptr,
    pub(crate) mixer: MixerLayer,
    pub(crate) post_norm: Ptr,
    /// Router rows, then the shared expert's gate.
    pub(crate) router: Placed,
    /// Table of [`abi::Expert`]: the routed ones, unless they are cached.
    pub(crate) experts: Ptr,
    /// The shared expert's entry.
    pub(crate) shared: Ptr,
    /// Row tiles of a routed and of the shared expert's gate.
    pub(crate) expert_tiles: (u32, u32),
}

/// All weights on the device.
pub(crate) struct DeviceWeights {
    pub(crate) embed: Placed,
    pub(crate) head: Placed,
    pub(crate) norm: Ptr,
    /// Rotary frequencies, f64.
    pub(crate) frequency: Ptr,
    pub(crate) layers: Vec<Layer>,
    /// Everything above lies in here.
    arena: Buffer,
}

impl DeviceWeights {
    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Uploads a model, without its routed experts unless `routed`. Bytes placed so far are reported
    /// to `progress`.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] when memory runs out, [`Error::Device`] when a copy fails.
    pub(crate) fn upload(
        device: &Device,
        geometry: &Geometry,
        model: &ModelFile,
        routed: bool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<DeviceWeights> {
        // The same walk twice: once to measure, once to place.
        let bytes = measure(geometry, model, routed)?;
        let arena = device.uninit(bytes)?;
        let mut staging = Staging::new(device, STAGING.min(bytes + STAGING_SLACK))?;
        let stager = Some(Stager::new(&mut staging));
        let mut place = Uploader { base: arena.ptr(), stager, ..Uploader::new(geometry, &model.weights) };
        let Parts { embed, head, norm, frequency, layers } = place.model(routed, progress)?;
        if let Some(mut stager) = place.stager {
            stager.flush()?;
        }
        device.wait()?;
        Ok(DeviceWeights { embed, head, norm, frequency, layers, arena })
    }
}

/// Bytes of a model on the device, with or without its routed experts.
pub(crate) fn measure(geometry: &Geometry, model: &ModelFile, routed: bool) -> Result<usize> {
    let mut walk = Uploader::new(geometry, &model.weights);
    walk.model(routed, &mut |_| {})?;
    Ok(walk.at)
}

/// Bytes of one routed expert on the device.
pub(crate) fn measure_expert(geometry: &Geometry, model: &ModelFile) -> Result<usize> {
    let mut walk = Uploader::new(geometry, &model.weights);
    if let Some(ffn) = model.weights.layers.first().and_then(|layer| layer.moe.experts.first()) {
        walk.expert(ffn)?;
    }
    Ok(walk.at)
}

/// Where the matrices of a routed expert lie that is kept at `at`.
pub(crate) fn expert_frame(
    geometry: &Geometry,
    weights: &Weights,
    ffn: &Ffn,
    at: Ptr,
) -> Result<abi::Expert> {
    Uploader { base: at, ..Uploader::new(geometry, weights) }.expert(ffn)
}

/// Sends one expert to its place at `at`. It is there when the staging's stream has come past the
/// stager's next flush.
pub(crate) fn send_expert<'a>(
    stager: Stager<'a>,
    geometry: &'a Geometry,
    weights: &'a Weights,
    ffn: &Ffn,
    at: Ptr,
) -> Result<Stager<'a>> {
    let mut send = Uploader { base: at, stager: Some(stager), ..Uploader::new(geometry, weights) };
    send.expert(ffn)?;
    Ok(send.stager.expect("it was there before"))
}

/// A kernel that repacks a chunk once it has arrived.
struct Job {
    kernel: &'static str,
    args: abi::Repack,
    /// Threads.
    units: usize,
}

/// Two staging buffers in turn: page-locked memory and its counterpart on the device.
pub(crate) struct Staging {
    device: Device,
    bytes: usize,
    buffers: [(Pinned, Buffer); 2],
    /// End of the last work on each.
    done: [Option<CudaEvent>; 2],
    turn: usize,
}

impl Staging {
    /// Buffers of `bytes` bytes each, used in the order of `device`'s stream.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Staging> {
        let buffer = || -> Result<(Pinned, Buffer)> { Ok((device.pinned(bytes)?, device.uninit(bytes)?)) };
        Ok(Staging {
            device: device.clone(),
            bytes,
            buffers: [buffer()?, buffer()?],
            done: [None, None],
            turn: 0,
        })
    }
}

/// What is to go through a staging buffer next.
pub(crate) struct Stager<'a> {
    staging: &'a mut Staging,
    filled: usize,
    copies: Vec<(Cow<'a, [u8]>, usize)>,
    jobs: Vec<Job>,
    /// Plain copies: staged address, target, length.
    moves: Vec<(Ptr, Ptr, usize)>,
}

impl<'a> Stager<'a> {
    pub(crate) fn new(staging: &'a mut Staging) -> Stager<'a> {
        Stager { staging, filled: 0, copies: Vec::new(), jobs: Vec::new(), moves: Vec::new() }
    }

    /// Sends what is planned unless `bytes` more fit.
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.filled + bytes > self.staging.bytes { self.flush() } else { Ok(()) }
    }

    /// Plans a copy into staging and returns its address there.
    fn stage(&mut self, source: Cow<'a, [u8]>) -> Ptr {
        let at = self.filled;
        self.filled = (at + source.len()).next_multiple_of(ALIGN);
        self.copies.push((source, at));
        self.staging.buffers[self.staging.turn].1.ptr() + at as Ptr
    }

    /// Sends what is planned and turns to the other buffer.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let Staging { device, bytes: room, buffers, done, turn } = &mut *self.staging;
        if let Some(done) = done[*turn].take() {
            done.synchronize().map_err(driver)?;
        }
        let (pinned, staged) = &mut buffers[*turn];
        let bytes = pinned.bytes()?;
        // Disjoint ascending ranges, which threads fill side by side.
        let (mut rest, mut start) = (&mut bytes[..], 0);
        let mut ranges = Vec::with_capacity(self.copies.len());
        for (source, at) in &self.copies {
            let (range, tail) = rest[at - start..].split_at_mut(source.len());
            ranges.push((range, &source[..]));
            (rest, start) = (tail, at + source.len());
        }
        ranges.into_par_iter().for_each(|(to, from)| to.copy_from_slice(from));
        device.upload(&bytes[..self.filled.min(*room)], staged.ptr())?;
        for (from, to, len) in self.moves.drain(..) {
            device.copy(from, to, len)?;
        }
        for job in self.jobs.drain(..) {
            device.launch(job.kernel, Grid::new((job.units.div_ceil(256), 1, 1), 256), &job.args)?;
        }
        self.copies.clear();
        self.filled = 0;
        done[*turn] = Some(device.mark()?);
        *turn = 1 - *turn;
        Ok(())
    }
}

/// Walks a model's weights in a fixed order and gives each its place in the arena. Without a stager
/// it only measures.
struct Uploader<'a> {
    geometry: &'a Geometry,
    weights: &'a Weights,
    base: Ptr,
    at: usize,
    stager: Option<Stager<'a>>,
}

impl<'a> Uploader<'a> {
    /// A walk that only measures.
    fn new(geometry: &'a Geometry, weights: &'a Weights) -> Uploader<'a> {
        Uploader { geometry, weights, base: 0, at: 0, stager: None }
    }

    fn place(&mut self, bytes: usize) -> Ptr {
        let ptr = self.base + self.at as Ptr;
        self.at = (self.at + bytes).next_multiple_of(ALIGN);
        ptr
    }

    /// A small table as it is.
    fn table<T: Pod>(&mut self, values: &[T]) -> Result<Ptr> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let to = self.place(bytes.len());
        if let Some(stager) = &mut self.stager {
            stager.reserve(bytes.len())?;
            let from = stager.stage(Cow::Owned(bytes.to_vec()));
            stager.moves.push((from, to, bytes.len()));
        }
        Ok(to)
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<Placed> {
        let tensor = self.weights.tensor(matrix);
        let (rows, cols) = (matrix.rows, matrix.cols);
        let view = |e: shamrock_cmf::EncodingError| problem(tensor.name, &e.to_string());
        match tensor.encoding {
            Encoding::Q4tp => {
                let v = q4tp::View::new(tensor.bytes, rows, cols).map_err(view)?;
                self.q4(v)
            }
            Encoding::Q8TwoField => {
                let v = q8_2f::View::new(tensor.bytes, rows, cols).map_err(view)?;
                let factors: Vec<f32> = halves(v.col_scales).collect();
                let cols_at = self.table(&factors)?;
                Ok(Placed { cols: cols_at, ..self.q8(v.by_row.quants, v.by_row.scales, rows, cols)? })
            }
            Encoding::Q8Row => {
                let v = q8_row::View::new(tensor.bytes, rows, cols).map_err(view)?;
                self.q8(v.quants, v.scales, rows, cols)
            }
            _ => self.stack(&[matrix]),
        }
    }

    /// An empty place for a matrix.
    fn frame(&mut self, encoding: u32, rows: usize, cols: usize) -> abi::Matrix {
        let (row_tiles, steps) = (rows.div_ceil(16), padded(cols) / 64);
        let units = row_tiles * steps * 32;
        let (tile_bytes, scale_bytes) = match encoding {
            abi::Q4 => (units * 16, row_tiles * 16 * 8),
            abi::Q8 => (units * 32, row_tiles * 16 * 4),
            _ => (units * 64, 0),
        };
        abi::Matrix {
            tiles: self.place(tile_bytes),
            codes: if encoding == abi::Q4 { self.place(units) } else { 0 },
            scales: if scale_bytes > 0 { self.place(scale_bytes) } else { 0 },
            encoding,
            rows: rows as u32,
            row_tiles: row_tiles as u32,
            steps: steps as u32,
        }
    }

    fn q4(&mut self, v: q4tp::View<'a>) -> Result<Placed> {
        let (groups, stride) = (v.groups(), v.code_stride());
        let matrix = self.frame(abi::Q4, v.rows(), v.cols());
        for rows in chunks(v.rows(), groups * 16) {
            let Some(stager) = &mut self.stager else { break };
            let nibbles = v.nibbles[rows.start * groups..rows.end * groups].as_flattened();
            let params = v.params[rows.clone()].as_flattened();
            let codes = &v.codes[rows.start * stride..rows.end * stride];
            stager.reserve(nibbles.len() + params.len() + codes.len() + 3 * ALIGN)?;
            let args = abi::Repack {
                source: stager.stage(nibbles.into()),
                params: stager.stage(params.into()),
                codes: stager.stage(codes.into()),
                ..repack(&matrix, &rows, v.cols())
            };
            stager.jobs.push(Job { kernel: "repack_q4", args, units: units(&matrix, &rows) });
        }
        Ok(Placed { matrix, cols: 0 })
    }

    fn q8(&mut self, quants: &'a [u8], scales: &'a [u8], rows: usize, cols: usize) -> Result<Placed> {
        let matrix = self.frame(abi::Q8, rows, cols);
        for rows in chunks(rows, cols) {
            let Some(stager) = &mut self.stager else { break };
            let quants = &quants[rows.start * cols..rows.end * cols];
            let scales = &scales[rows.start * 2..rows.end * 2];
            stager.reserve(quants.len() + scales.len() + 2 * ALIGN)?;
            let args = abi::Repack {
                source: stager.stage(quants.into()),
                params: stager.stage(scales.into()),
                ..repack(&matrix, &rows, cols)
            };
            stager.jobs.push(Job { kernel: "repack_q8", args, units: 2 * units(&matrix, &rows) });
        }
        Ok(Placed { matrix, cols: 0 })
    }

    /// Matrices of one width, one above the other, as halves.
    fn stack(&mut self, parts: &[Matrix]) -> Result<Placed> {
        let cols = parts.first().map_or(0, |m| m.cols);
        let total: usize = parts.iter().map(|m| m.rows).sum();
        let matrix = self.frame(abi::F16, total, cols);
        if self.stager.is_none() {
            return Ok(Placed { matrix, cols: 0 });
        }
        for rows in chunks(total, 2 * cols) {
            let mut bytes = Vec::with_capacity(2 * rows.len() * cols);
            let mut first = 0;
            for &part in parts {
                let own = rows.start.max(first)..rows.end.min(first + part.rows);
                if own.start < own.end {
                    self.append_halves(part, own.start - first..own.end - first, &mut bytes)?;
                }
                first += part.rows;
            }
            let Some(stager) = &mut self.stager else { break };
            stager.reserve(bytes.len() + ALIGN)?;
            let args = abi::Repack { source: stager.stage(bytes.into()), ..repack(&matrix, &rows, cols) };
            stager.jobs.push(Job { kernel: "repack_f16", args, units: 4 * units(&matrix, &rows) });
        }
        Ok(Placed { matrix, cols: 0 })
    }

    /// Rows of a matrix as halves. Other encodings are rounded to half.
    fn append_halves(&self, matrix: Matrix, rows: Range<usize>, to: &mut Vec<u8>) -> Result<()> {
        let tensor = self.weights.tensor(matrix);
        let cols = matrix.cols;
        if tensor.encoding == Encoding::F16 {
            to.extend_from_slice(&tensor.bytes[2 * rows.start * cols..2 * rows.end * cols]);
            return Ok(());
        }
        let mut values = vec![0.0; rows.len() * cols];
        tensor.decode_rows(rows, &mut values)?;
        for value in values {
            let half = f16::from_f32(value);
            if !half.is_finite() {
                return Err(problem(tensor.name, &format!("holds {value}, which half precision cannot")));
            }
            to.extend_from_slice(&half.to_le_bytes());
        }
        Ok(())
    }

    fn expert_matrix(&mut self, matrix: Matrix) -> Result<abi::Matrix> {
        let placed = match self.geometry.experts {
            abi::F16 => self.stack(&[matrix])?,
            _ => self.matrix(matrix)?,
        };
        Ok(placed.matrix)
    }

    fn expert(&mut self, ffn: &Ffn) -> Result<abi::Expert> {
        Ok(abi::Expert {
            gate: self.expert_matrix(ffn.gate)?,
            up: self.expert_matrix(ffn.up)?,
            down: self.expert_matrix(ffn.down)?,
        })
    }

    fn mixer(&mut self, mixer: &MixerWeights) -> Result<MixerLayer> {
        Ok(match mixer {
            MixerWeights::Full(w) => MixerLayer::Full(AttentionLayer {
                q: self.matrix(w.q)?,
                k: self.matrix(w.k)?,
                v: self.matrix(w.v)?,
                o: self.matrix(w.o)?,
                q_norm: self.table(&w.q_norm)?,
                k_norm: self.table(&w.k_norm)?,
            }),
            MixerWeights::Linear(w) => {
                let out = self.matrix(w.out)?;
                let mut block = [0; 4];
                if let Some(b) = &w.block {
                    let tables = [&b.conv_right, &b.logit_scale, &b.history_bias, &b.history_c];
                    for (at, table) in block.iter_mut().zip(tables) {
                        *at = self.table(table)?;
                    }
                }
                MixerLayer::Linear(GdnLayer {
                    qkv: self.matrix(w.qkv)?,
                    z: self.matrix(w.z)?,
                    ab: self.stack(&[w.a, w.b])?,
                    out,
                    small: abi::Gdn {
                        conv: self.table(&w.conv)?,
                        right: block[0],
                        a_log: self.table(&w.a_log)?,
                        dt_bias: self.table(&w.dt_bias)?,
                        logit_scale: block[1],
                        history_bias: block[2],
                        history_c: block[3],
                        norm: self.table(&w.norm)?,
                        out_cols: out.cols,
                    },
                })
            }
        })
    }

    fn model(&mut self, routed: bool, progress: &mut dyn FnMut(usize)) -> Result<Parts> {
        let weights = self.weights;
        let embed = self.matrix(weights.embed)?;
        let head = if weights.head.id == weights.embed.id { embed } else { self.matrix(weights.head)? };
        let norm = self.table(&weights.norm)?;
        let a = &self.geometry.config.attention;
        let frequency: Vec<f64> =
            (0..a.rotary_dim / 2).map(|i| a.rope_theta.powf(-2.0 * i as f64 / a.rotary_dim as f64)).collect();
        let frequency = self.table(&frequency)?;
        let mut layers = Vec::with_capacity(weights.layers.len());
        for w in &weights.layers {
            let moe = &w.moe;
            let each = moe.experts.iter().filter(|_| routed).chain([&moe.shared]);
            let experts = each.map(|ffn| self.expert(ffn)).collect::<Result<Vec<_>>>()?;
            let tiles = |ffn: &Ffn| ffn.gate.rows.div_ceil(16) as u32;
            let table = self.table(&experts)?;
            layers.push(Layer {
                input_norm: self.table(&w.input_norm)?,
                mixer: self.mixer(&w.mixer)?,
                post_norm: self.table(&w.post_norm)?,
                router: self.stack(&[moe.router, moe.shared_gate])?,
                expert_tiles: (moe.experts.first().map_or(0, tiles), tiles(&moe.shared)),
                experts: table,
                shared: table + ((experts.len() - 1) * size_of::<abi::Expert>()) as Ptr,
            });
            progress(self.at);
        }
        Ok(Parts { embed, head, norm, frequency, layers })
    }
}

/// What a walk returns.
struct Parts {
    embed: Placed,
    head: Placed,
    norm: Ptr,
    frequency: Ptr,
    layers: Vec<Layer>,
}

/// Ranges of rows, whole row tiles, of at most [`CHUNK`] bytes.
fn chunks(rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (CHUNK / row_bytes.max(1) / 16 * 16).max(16);
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

fn repack(matrix: &abi::Matrix, rows: &Range<usize>, cols: usize) -> abi::Repack {
    abi::Repack {
        source: 0,
        params: 0,
        codes: 0,
        tiles: matrix.tiles,
        tile_codes: matrix.codes,
        scales: matrix.scales,
        row0: rows.start as u32,
        rows: rows.len() as u32,
        cols: cols as u32,
        steps: matrix.steps,
    }
}

/// Lanes of the steps of a chunk's row tiles.
fn units(matrix: &abi::Matrix, rows: &Range<usize>) -> usize {
    rows.len().div_ceil(16) * matrix.steps as usize * 32
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())
}

fn problem(tensor: &str, text: &str) -> Error {
    Error::Device { backend: BACKEND, problem: format!("tensor {tensor}: {text}") }
}
