//! Dense products: which kernel, with which bands of weight rows.

use bytemuck::Zeroable;
use shamrock_model::Result;

use super::{Launcher, THREADS};
use crate::abi::{self, Ptr};
use crate::device::Grid;
use crate::upload::Placed;
use crate::workspace::{Activations, MAX_SPLITS};

/// Rows up to which the warps of a block share the columns of a dense product.
const FEW_ROWS: usize = 64;
/// Activation rows of a tile in the products of more rows, weight rows of a block, and its shared memory.
const WIDE_TILE: usize = 64;
const WIDE_BAND: usize = 256;
pub(super) const WIDE_SHARED: usize = 4 * WIDE_TILE * (16 + 4) * 16;
/// Shared memory that the system keeps of every block.
const RESERVED_SHARED: usize = 1 << 10;

/// A product: a matrix, its input and where its output goes.
pub(super) struct Product {
    pub(super) weight: Placed,
    pub(super) input: Activations,
    /// Values between input rows.
    pub(super) stride: usize,
    pub(super) out: Ptr,
    pub(super) out_stride: usize,
}

impl Launcher<'_> {
    /// Products of one input width. With `split`, columns may be shared by several blocks; the
    /// number of partial outputs is returned.
    pub(super) fn dense(&self, rows: usize, products: &[Product], split: bool) -> Result<usize> {
        if rows > FEW_ROWS {
            return self.dense_wide(rows, products, split);
        }
        let tile_rows = match rows {
            0..=8 => 8,
            9..=16 => 16,
            _ => 32,
        };
        let column_tiles = rows.div_ceil(tile_rows);
        // Wide bands read activations least often; narrow ones fill the device.
        let band = match tile_rows {
            8 => self.band_of_few(products, 0),
            32 if split => 64,
            _ => self.band_that_fills(products, column_tiles),
        };
        let (args, bands) = segments(rows, products, band);
        let steps = products.iter().map(|p| p.weight.matrix.steps as usize).min().unwrap_or(1);
        let splits = match split {
            true => {
                (self.enough_blocks() / (bands * column_tiles)).clamp(1, MAX_SPLITS).min((steps / 8).max(1))
            }
            false => 1,
        };
        let name = dense_kernel(band, tile_rows, keeps_remainder(products));
        let slots = if tile_rows == 8 { self.slot_bytes(band) } else { 0 };
        let grid =
            Grid::new((bands, splits, column_tiles), THREADS).shared(handed_over(band, tile_rows).max(slots));
        self.device.launch(name, grid, &args)?;
        Ok(splits)
    }

    /// The same for many rows.
    fn dense_wide(&self, rows: usize, products: &[Product], split: bool) -> Result<usize> {
        let (args, bands) = segments(rows, products, WIDE_BAND);
        let (name, tile) = match keeps_remainder(products) {
            false => ("dense_wide", WIDE_TILE),
            true => ("dense_wide_split", WIDE_TILE / 2),
        };
        let tiles = rows.div_ceil(tile);
        let splits = match split {
            true => (self.device.multiprocessors / (bands * tiles)).clamp(1, MAX_SPLITS),
            false => 1,
        };
        let grid = Grid::new((bands, splits, tiles), THREADS).shared(WIDE_SHARED);
        self.device.launch(name, grid, &args)?;
        Ok(splits)
    }

    /// Blocks that keep all multiprocessors busy.
    fn enough_blocks(&self) -> usize {
        self.device.multiprocessors * 15 / 16
    }

    /// The widest band of weight rows with which a product still fills the device.
    fn band_that_fills(&self, products: &[Product], column_tiles: usize) -> usize {
        let bands = |band| segments(0, products, band).1;
        let fills = |&band: &usize| bands(band) * column_tiles >= self.enough_blocks();
        [96, 64, 32].into_iter().find(fills).unwrap_or(16)
    }

    /// The band for up to 8 rows, whose weights wait in shared memory beside `staged` bytes of input.
    pub(super) fn band_of_few(&self, products: &[Product], staged: usize) -> usize {
        let bands = |band| segments(0, products, band).1;
        let shared = |band| staged + handed_over(band, 8).max(self.slot_bytes(band));
        // Blocks of narrow bands share a multiprocessor: where there are many of them, one works while another
        // loads; and while blocks of the kernel before still run, some find room where one large one would not.
        let many = bands(32) >= 8 * self.device.multiprocessors;
        let early = self.device.slots > 0 && staged > 0;
        if many || early && 3 * (shared(32) + RESERVED_SHARED) <= self.device.shared {
            return 32;
        }
        let fits = |&band: &usize| bands(band) >= self.enough_blocks() && shared(band) <= self.device.shared;
        [96, 64, 32].into_iter().find(fits).unwrap_or(16)
    }

    /// Bytes of shared memory for weights on their way, see `accumulate_deep` in gemm.cu.
    pub(super) fn slot_bytes(&self, band: usize) -> usize {
        8 * self.device.slots * warp_tiles(band).0 * 1024
    }
}

/// Arguments of a dense product, and its bands of `band` weight rows.
pub(super) fn segments(rows: usize, products: &[Product], band: usize) -> (abi::Dense, usize) {
    let mut segments = [abi::Segment::zeroed(); abi::MAX_SEGMENTS];
    let mut first_block = 0;
    for (segment, p) in segments.iter_mut().zip(products) {
        *segment = abi::Segment {
            w: p.weight.matrix,
            hi: p.input.hi,
            lo: p.input.lo,
            out: p.out,
            stride: p.stride as u32,
            out_stride: p.out_stride as u32,
            first_block,
            pad: 0,
        };
        first_block += (p.weight.matrix.row_tiles * 16).div_ceil(band as u32);
    }
    (abi::Dense { segments, count: products.len() as u32, rows: rows as u32 }, first_block as usize)
}

/// Whether all inputs are stored with their rounding remainders.
fn keeps_remainder(products: &[Product]) -> bool {
    products.iter().all(|p| p.input.lo != 0)
}

/// Bytes of shared memory in which the warps of a block add up their products, see `reduce` in gemm.cu.
pub(super) fn handed_over(band: usize, tile_rows: usize) -> usize {
    let (warp_tiles, groups) = warp_tiles(band);
    (8 / groups - 1) * groups * warp_tiles * (tile_rows / 8) * 4 * 32 * 4
}

/// Row tiles of a warp, and warps that share a band's row tiles.
fn warp_tiles(band: usize) -> (usize, usize) {
    match band {
        16 => (1, 1),
        32 => (1, 2),
        64 => (2, 2),
        _ => (3, 2),
    }
}

fn dense_kernel(band: usize, tile_rows: usize, keeps_remainder: bool) -> &'static str {
    macro_rules! names {
        ($($band:literal $rows:literal),*) => {
            match (band, tile_rows, keeps_remainder) {
                $(($band, $rows, false) => concat!("dense_", $band, "_", $rows),
                  ($band, $rows, true) => concat!("dense_", $band, "_", $rows, "_split"),)*
                _ => "dense",
            }
        };
    }
    names!(16 8, 32 8, 64 8, 96 8, 16 16, 32 16, 64 16, 96 16, 16 32, 32 32, 64 32, 96 32)
}
