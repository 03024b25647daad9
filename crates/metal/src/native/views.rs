//! The file's matrices as buffers, without a copy.

use std::collections::HashMap;
use std::sync::Arc;

use shamrock_cmf::{Container, Encoding, TensorId};
use shamrock_model::weights::{Ffn, Matrix};
use shamrock_model::{ModelFile, Result};

use super::device::{At, Buffer, Device, PAGE, failure};
use super::geometry::{dense_matrices, matrices};
use super::lru::{Found, Lru};

/// A matrix where kernels find it.
pub(crate) struct View {
    buffer: Buffer,
    /// Of its first byte, behind the beginning of a page.
    offset: usize,
    pub(crate) encoding: Encoding,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl View {
    pub(crate) fn new(device: &Device, container: &Arc<Container>, matrix: Matrix) -> Result<View> {
        let tensor = container.tensor(matrix.id);
        let (start, len) = span_of(container, matrix);
        Ok(View {
            buffer: device.view(container, start, len)?,
            offset: tensor.offset as usize - start,
            encoding: tensor.encoding,
            rows: matrix.rows,
            cols: matrix.cols,
        })
    }

    pub(crate) fn at(&self) -> At<'_> {
        self.buffer.at(self.offset)
    }

    /// Where it begins on the device.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }

    /// A matrix in a buffer of its own that ends with it.
    pub(crate) fn of(
        device: &Device,
        encoding: Encoding,
        rows: usize,
        cols: usize,
        payload: &[u8],
    ) -> Result<View> {
        Ok(View { buffer: device.filled(payload)?, offset: 0, encoding, rows, cols })
    }
}

/// The pages that hold `len` bytes from `offset` on: where they begin, and their bytes.
fn span(offset: usize, len: usize) -> (usize, usize) {
    let start = offset / PAGE * PAGE;
    (start, (offset + len.max(1)).next_multiple_of(PAGE) - start)
}

/// Of a matrix.
fn span_of(container: &Container, matrix: Matrix) -> (usize, usize) {
    let tensor = container.tensor(matrix.id);
    span(tensor.offset as usize, tensor.bytes.len())
}

/// Bytes that views of an expert have.
fn ffn_bytes(container: &Container, ffn: &Ffn) -> usize {
    ffn.matrices().map(|matrix| span_of(container, matrix).1).iter().sum()
}

/// Checks that the device has buffers of `limit` bytes for every matrix, whenever it will be viewed.
fn check_spans(model: &ModelFile, limit: usize) -> Result<()> {
    let container = model.container();
    for matrix in matrices(&model.weights) {
        let bytes = span_of(container, matrix).1;
        if bytes > limit {
            let name = container.tensor(matrix.id).name;
            return Err(failure(format!(
                "{name} needs a buffer of {bytes} bytes, and this device's have up to {limit}; use --backend cpu"
            )));
        }
    }
    Ok(())
}

/// A routed expert.
pub(crate) struct Expert {
    pub(crate) gate: View,
    pub(crate) up: View,
    pub(crate) down: View,
}

/// All views of a model.
pub(crate) struct Views {
    model: ModelFile,
    dense: HashMap<TensorId, View>,
    /// By layer and expert.
    experts: Lru<(usize, u32), Expert>,
}

impl Views {
    /// Views every matrix but the routed experts', of which up to `expert_bytes` will be viewed.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when a tensor, also an expert's, is larger than the device's buffers.
    pub(crate) fn new(device: &Device, model: &ModelFile, expert_bytes: usize) -> Result<Views> {
        check_spans(model, device.max_buffer())?;
        let weights = &model.weights;
        let mut dense = HashMap::new();
        for matrix in weights.layers.iter().flat_map(dense_matrices).chain([weights.head]) {
            dense.insert(matrix.id, View::new(device, model.container(), matrix)?);
        }
        Ok(Views { model: model.clone(), dense, experts: Lru::new(expert_bytes) })
    }

    /// A matrix that every pass reads.
    pub(crate) fn dense(&self, matrix: Matrix) -> Result<&View> {
        self.dense.get(&matrix.id).ok_or_else(|| failure("a dense matrix was not viewed"))
    }

    /// An expert that [`acquire`](Self::acquire) has at hand.
    pub(crate) fn expert(&self, layer: usize, expert: u32) -> Result<&Expert> {
        self.experts.get((layer, expert)).ok_or_else(|| failure("an expert was not viewed"))
    }

    /// Views a layer's experts, letting go of others to stay within the bound. The device is idle.
    pub(crate) fn acquire(&mut self, device: &Device, layer: usize, wanted: &[u32]) -> Result<Found> {
        let container = self.model.container();
        let ffn = |(layer, expert): (usize, u32)| -> Ffn {
            self.model.weights.layers[layer].moe.experts[expert as usize]
        };
        let bytes = |key| ffn_bytes(container, &ffn(key));
        let keys: Vec<(usize, u32)> = wanted.iter().map(|&expert| (layer, expert)).collect();
        self.experts.acquire(&keys, bytes, |key| {
            let Ffn { gate, up, down } = ffn(key);
            let view = |matrix| View::new(device, container, matrix);
            Ok(Expert { gate: view(gate)?, up: view(up)?, down: view(down)? })
        })
    }

    /// Whether an expert is viewed.
    pub(crate) fn has(&self, expert: (usize, u32)) -> bool {
        self.experts.get(expert).is_some()
    }

    /// The buffers of the experts that are viewed.
    pub(crate) fn expert_buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.experts.values().flat_map(|e| [&e.gate, &e.up, &e.down]).map(|view| &view.buffer)
    }

    /// Bytes that views of all experts have.
    pub(crate) fn all_expert_bytes(&self) -> usize {
        let layers = self.model.weights.layers.iter();
        layers.flat_map(|layer| &layer.moe.experts).map(|ffn| ffn_bytes(self.model.container(), ffn)).sum()
    }

    /// Bytes of the matrices that every pass reads.
    pub(crate) fn dense_bytes(&self) -> usize {
        self.dense.values().map(|view| view.buffer.len()).sum()
    }

    /// Bytes of the experts that are viewed.
    pub(crate) fn expert_bytes(&self) -> usize {
        self.experts.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_pages_around_the_bytes() {
        assert_eq!(span(0, 1), (0, PAGE));
        assert_eq!(span(PAGE - 64, 64), (0, PAGE));
        assert_eq!(span(PAGE - 64, 65), (0, 2 * PAGE));
        assert_eq!(span(3 * PAGE + 64, 2 * PAGE), (3 * PAGE, 3 * PAGE));
    }
}
