//! Pages of experts that will be read soon, asked for in the background.
//!
//! A view's pages are read from the file when a command buffer that uses it is committed, one after the
//! other. Here the system is told of all of them at once, and of the next layer's likely experts while this
//! layer's are being computed: those that the last pass used there, since a block's previews differ in a few
//! rows.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use shamrock_cmf::Hint;
use shamrock_model::weights::Weights;
use shamrock_model::{ModelFile, Result};

use super::device::failure;

/// A layer and the number of an expert in it.
type Expert = (usize, u32);

/// Requests that may wait; more are dropped, for by then they are late.
const QUEUE: usize = 64;

/// A thread that passes hints on to the system.
pub(crate) struct Prefetch {
    requests: Option<SyncSender<Vec<Expert>>>,
    thread: Option<JoinHandle<()>>,
    /// By layer: what the last pass chose.
    last: Vec<Vec<u32>>,
}

impl Prefetch {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when the system gives none.
    pub(crate) fn new(model: &ModelFile) -> Result<Prefetch> {
        let (requests, received) = sync_channel::<Vec<Expert>>(QUEUE);
        let (weights, layers) = (model.weights.clone(), model.weights.layers.len());
        let thread = Builder::new()
            .name("expert pages".into())
            .spawn(move || received.iter().flatten().for_each(|expert| ask_for(&weights, expert)))
            .map_err(|e| failure(format!("no thread for fetching experts: {e}")))?;
        Ok(Prefetch { requests: Some(requests), thread: Some(thread), last: vec![Vec::new(); layers] })
    }

    /// A layer has chosen `experts`; `viewed` says which the device has.
    pub(crate) fn chosen(&mut self, layer: usize, experts: &[u32], viewed: impl Fn(Expert) -> bool) {
        let request = self.worth_asking(layer, experts, viewed);
        if let Some(requests) = self.requests.as_ref().filter(|_| !request.is_empty()) {
            let _ = requests.try_send(request);
        }
        self.last[layer] = experts.to_vec();
    }

    /// What is missing of a layer's choice, then of the next layer's likely one.
    fn worth_asking(&self, layer: usize, experts: &[u32], viewed: impl Fn(Expert) -> bool) -> Vec<Expert> {
        let next = (layer + 1) % self.last.len();
        let likely = self.last[next].iter().map(|&expert| (next, expert));
        experts
            .iter()
            .map(|&expert| (layer, expert))
            .chain(likely)
            .filter(|&expert| !viewed(expert))
            .collect()
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.requests = None; // ends the thread
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ask_for(weights: &Weights, (layer, expert): Expert) {
    for matrix in weights.layers[layer].moe.experts[expert as usize].matrices() {
        weights.container().hint(matrix.id, Hint::Soon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_what_is_missing_now_and_was_used_next_time() {
        let model = ModelFile::open(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap();
        let layers = model.weights.layers.len();
        let mut prefetch = Prefetch::new(&model).unwrap();
        let none = |_| false;
        assert_eq!(prefetch.worth_asking(0, &[1, 3], none), [(0, 1), (0, 3)], "nothing is known of layer 1");
        prefetch.chosen(0, &[1, 3], none);
        prefetch.chosen(1, &[2, 4], none);
        let viewed = |expert| expert == (0, 1) || expert == (1, 4);
        assert_eq!(prefetch.worth_asking(0, &[0, 1], viewed), [(0, 0), (1, 2)]);
        assert_eq!(
            prefetch.worth_asking(layers - 1, &[5], none),
            [(layers - 1, 5), (0, 1), (0, 3)],
            "the next pass"
        );
    }
}
