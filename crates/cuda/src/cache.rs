//! Routed experts in a bounded part of the device's memory, where not all of them fit.
//!
//! Which experts a layer needs is known once its router has run. The host then reads the device's list
//! of work, sends the missing experts to places of those that were not used for longest, never of the
//! layer in hand, and has the device compute the work in batches: first what is there, then, while
//! further experts are on their way, those that have arrived. A row's result from one expert does not
//! depend on the others, so that the numbers are those of a model that is resident, to the bit.

use std::collections::{BTreeSet, HashMap};

use shamrock_model::{Error, ModelFile, Result};

use crate::BACKEND;
use crate::abi::{Ptr, WORK_WORDS};
use crate::device::{Buffer, Device};
use crate::geometry::Geometry;
use crate::upload::{STAGING_SLACK, Stager, Staging, expert_frame, measure_expert, send_expert};

/// Bytes of experts that travel together: enough for the bus to run at speed, few enough for the
/// device to begin early.
const BATCH: usize = 8 << 20;

/// What the cache has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// Experts that were there.
    pub(crate) hits: u64,
    /// Experts that had to be sent.
    pub(crate) misses: u64,
    /// Bytes of those, as the device holds them.
    pub(crate) bytes: u64,
}

/// Experts of one launch: a list of work on the device, and which of them are to be sent first.
pub(crate) struct Batch {
    pub(crate) list: Ptr,
    /// Entries.
    pub(crate) len: usize,
    missing: Vec<(u32, usize)>,
}

/// The cache.
pub(crate) struct ExpertCache {
    model: ModelFile,
    /// The device through the stream on which experts travel.
    copies: Device,
    staging: Staging,
    places: Places,
    place_bytes: usize,
    memory: Buffer,
    /// An [`Expert`](crate::abi::Expert) for every place.
    table: Buffer,
    /// Lists of work.
    lists: Buffer,
    found: Found,
}

impl ExpertCache {
    /// Bytes that hold the experts of one layer: the least that a cache can have.
    pub(crate) fn least(geometry: &Geometry, model: &ModelFile) -> Result<usize> {
        Ok(place_bytes(geometry, model)? * geometry.config.moe.experts)
    }

    /// Room for as many experts as `budget` bytes hold.
    ///
    /// # Errors
    /// [`Error::Device`] when they cannot hold one layer's.
    pub(crate) fn new(
        device: &Device,
        geometry: &Geometry,
        model: &ModelFile,
        budget: u64,
    ) -> Result<ExpertCache> {
        let (place_bytes, experts) = (place_bytes(geometry, model)?, geometry.config.moe.experts);
        let all = experts * model.weights.layers.len();
        let count = usize::try_from(budget / place_bytes.max(1) as u64).unwrap_or(usize::MAX).min(all);
        if count < experts {
            return Err(Error::Device {
                backend: BACKEND,
                problem: format!(
                    "{budget} bytes hold {count} experts, but one layer may need {experts}; give --vram at least {}",
                    place_bytes * experts
                ),
            });
        }
        let memory = device.uninit(count * place_bytes)?;
        let Some(ffn) = model.weights.layers.first().and_then(|layer| layer.moe.experts.first()) else {
            return Err(Error::Device { backend: BACKEND, problem: "the model has no experts".into() });
        };
        let frames = (0..count)
            .map(|place| {
                expert_frame(geometry, &model.weights, ffn, memory.ptr() + (place * place_bytes) as Ptr)
            })
            .collect::<Result<Vec<_>>>()?;
        let table = device.uninit(size_of_val(&frames[..]))?;
        device.upload(&frames, table.ptr())?;
        let lists = device.uninit(experts * WORK_WORDS * 4)?;
        device.wait()?;
        let copies = device.other_stream()?;
        // The file's form of an expert is not larger than the device's but for alignment.
        let staging = Staging::new(&copies, BATCH.min(count * place_bytes).max(place_bytes) + STAGING_SLACK)?;
        let places = Places::new(count);
        let found = Found::default();
        Ok(ExpertCache {
            model: model.clone(),
            copies,
            staging,
            places,
            place_bytes,
            memory,
            table,
            lists,
            found,
        })
    }

    /// Experts there is room for.
    pub(crate) fn room(&self) -> usize {
        self.places.owner.len()
    }

    /// Bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The table that lists of work count in.
    pub(crate) fn table(&self) -> Ptr {
        self.table.ptr()
    }

    /// What has been found since the last call.
    pub(crate) fn take_found(&mut self) -> Found {
        std::mem::take(&mut self.found)
    }

    /// Waits for the router of `layer`, whose list of work is at `work`, and cuts the work into
    /// batches: the experts that are here, then those that are not.
    pub(crate) fn batches(
        &mut self,
        device: &Device,
        experts: usize,
        layer: usize,
        work: Ptr,
    ) -> Result<Vec<Batch>> {
        let mut list = vec![[0u32; WORK_WORDS]; experts];
        device.download(work, list.as_flattened_mut())?;
        list.truncate(list.iter().position(|entry| entry[2] == 0).unwrap_or(experts));
        // Everything before has been computed: places of other layers may be written to.
        let wanted: Vec<u32> = list.iter().map(|entry| entry[0]).collect();
        let taken = self.places.take(layer, &wanted);
        let (mut lists, mut batches) = (Vec::new(), Vec::new());
        let mut batch = |entries: &[usize]| {
            let list_at = self.lists.ptr() + size_of_val(&lists[..]) as Ptr;
            lists.extend(entries.iter().map(|&i| {
                let [_, first, rows, rest] = list[i];
                [taken[i].place as u32, first, rows, rest]
            }));
            let missing = entries.iter().filter(|&&i| taken[i].missing).map(|&i| (wanted[i], taken[i].place));
            batches.push(Batch { list: list_at, len: entries.len(), missing: missing.collect() });
        };
        let (missing, here): (Vec<usize>, Vec<usize>) = (0..list.len()).partition(|&i| taken[i].missing);
        batch(&here);
        missing.chunks((BATCH / self.place_bytes).max(1)).for_each(&mut batch);
        self.found.hits += here.len() as u64;
        self.found.misses += missing.len() as u64;
        self.found.bytes += (missing.len() * self.place_bytes) as u64;
        device.upload(&lists, self.lists.ptr())?;
        Ok(batches)
    }

    /// Sends the experts of a batch that are missing, and has `device` wait for them.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        geometry: &Geometry,
        layer: usize,
        batch: &Batch,
    ) -> Result<()> {
        if batch.missing.is_empty() {
            return Ok(());
        }
        let weights = &*self.model.weights;
        let mut stager = Stager::new(&mut self.staging);
        for &(expert, place) in &batch.missing {
            let ffn = &weights.layers[layer].moe.experts[expert as usize];
            let at = self.memory.ptr() + (place * self.place_bytes) as Ptr;
            stager = send_expert(stager, geometry, weights, ffn, at)?;
        }
        stager.flush()?;
        device.after(&self.copies.mark()?)
    }
}

fn place_bytes(geometry: &Geometry, model: &ModelFile) -> Result<usize> {
    measure_expert(geometry, model)
}

/// An expert's place, and whether the expert is yet to be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    place: usize,
    missing: bool,
}

/// Which expert, layer and number, is in which place.
struct Places {
    owner: Vec<Option<(usize, u32)>>,
    place_of: HashMap<(usize, u32), usize>,
    last_use: Vec<u64>,
    by_use: BTreeSet<(u64, usize)>,
    /// Counts uses of layers.
    now: u64,
}

impl Places {
    fn new(count: usize) -> Places {
        Places {
            owner: vec![None; count],
            place_of: HashMap::new(),
            last_use: vec![0; count],
            by_use: (0..count).map(|place| (0, place)).collect(),
            now: 0,
        }
    }

    /// Places for `experts` of a layer, distinct and at most as many as there are places. The least
    /// recently used make way.
    fn take(&mut self, layer: usize, experts: &[u32]) -> Vec<Taken> {
        self.now += 1;
        // First those that are here, so that none of them makes way for another.
        let here: Vec<Option<usize>> =
            experts.iter().map(|&expert| self.place_of.get(&(layer, expert)).copied()).collect();
        here.iter().flatten().for_each(|&place| self.touch(place));
        let each = experts.iter().zip(here).map(|(&expert, here)| match here {
            Some(place) => Taken { place, missing: false },
            None => {
                let &(used, place) = self.by_use.first().expect("there are places");
                assert!(used < self.now, "a layer needs more experts than there are places");
                if let Some(before) = self.owner[place].replace((layer, expert)) {
                    self.place_of.remove(&before);
                }
                self.place_of.insert((layer, expert), place);
                self.touch(place);
                Taken { place, missing: true }
            }
        });
        each.collect()
    }

    fn touch(&mut self, place: usize) {
        self.by_use.remove(&(self.last_use[place], place));
        self.last_use[place] = self.now;
        self.by_use.insert((self.now, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(place, missing)` of every expert.
    fn take(places: &mut Places, layer: usize, experts: &[u32]) -> Vec<(usize, bool)> {
        places.take(layer, experts).into_iter().map(|t| (t.place, t.missing)).collect()
    }

    #[test]
    fn the_least_recently_used_make_way_and_the_layer_in_hand_stays() {
        let mut places = Places::new(3);
        assert_eq!(take(&mut places, 0, &[4, 7]), [(0, true), (1, true)]);
        assert_eq!(take(&mut places, 1, &[4]), [(2, true)], "another layer's expert of that number");
        assert_eq!(take(&mut places, 0, &[4]), [(0, false)]);
        assert_eq!(take(&mut places, 1, &[5, 4]), [(1, true), (2, false)], "7 of layer 0 was the oldest");
        assert_eq!(
            take(&mut places, 0, &[1, 2, 4]),
            [(1, true), (2, true), (0, false)],
            "4 is here and stays, though it is the oldest"
        );
        assert_eq!(take(&mut places, 2, &[0, 1, 2]), [(0, true), (1, true), (2, true)]);
        assert_eq!(places.place_of.len(), 3);
    }
}
