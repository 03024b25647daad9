//! Single kernels, timed on the device: what the benches of this crate measure.

use std::time::Duration;

use objc2::rc::autoreleasepool;
use shamrock_cmf::Encoding;
use shamrock_model::Result;

use super::device::{Buffer, Device};
use super::kernel::{self, Kernel, Rows};
use super::views::View;
use crate::Precision;

/// Products encoded into one command buffer, at most.
const AT_ONCE: usize = 1024;

/// The product of some rows with one of several equal matrices.
pub struct Product {
    device: Device,
    matrices: Vec<View>,
    x: Buffer,
    index: Buffer,
    y: Buffer,
    rows: usize,
}

impl Product {
    /// `rows` rows of ones, and `copies` matrices of `outs` by `cols` with this payload.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when there is no device or too little memory.
    pub fn new(
        encoding: Encoding,
        (outs, cols): (usize, usize),
        payload: &[u8],
        copies: usize,
        rows: usize,
        precision: Precision,
    ) -> Result<Product> {
        autoreleasepool(|_| {
            let kernel = Kernel::Gemm(kernel::Product::new(Rows::of(rows), encoding, precision));
            let device = Device::open(&[kernel], precision)?;
            let matrices = (0..copies)
                .map(|_| View::of(&device, encoding, outs, cols, payload))
                .collect::<Result<_>>()?;
            let index: Vec<u32> = (0..rows as u32).collect();
            let x = device.filled(&vec![1f32; rows * cols])?;
            let (index, y) = (device.filled(&index)?, device.alloc(rows * outs * 4)?);
            Ok(Product { device, matrices, x, index, y, rows })
        })
    }

    /// Computes it `times` times, with one matrix after the other, and returns the device's time.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when the device fails.
    pub fn run(&mut self, times: usize) -> Result<Duration> {
        autoreleasepool(|_| {
            let mut work = self.device.work(false);
            for i in 0..times {
                let matrix = &self.matrices[i % self.matrices.len()];
                work.gemm(matrix, &self.x, &self.index, &self.y, self.rows)?;
                work.barrier();
                if (i + 1) % AT_ONCE == 0 {
                    work.wait()?;
                }
            }
            work.wait()?;
            Ok(work.times.device)
        })
    }
}
