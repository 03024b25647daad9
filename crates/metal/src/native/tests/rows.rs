//! Kernels over rows: norms, gathering, activation, combination, copies.

use super::super::abi;
use super::super::device::Grid;
use super::super::kernel::Kernel;
use super::{U, close, in_all_orders, noise, sigmoid, silu};

#[test]
fn norms_with_and_without_addition() {
    let eps = 1e-5f32;
    in_all_orders(|device| {
        for (rows, width, threads) in [(1, 32, 32), (5, 96, 32), (3, 1000, 256), (2, 260, 96)] {
            let (hidden, added, weight) = (noise(1, rows * width), noise(2, rows * width), noise(3, width));
            for add in [false, true] {
                let index: Vec<u32> = (0..rows as u32).rev().collect();
                let stream = device.filled(&hidden).unwrap();
                let (a, w, i) = (
                    device.filled(&added).unwrap(),
                    device.filled(&weight).unwrap(),
                    device.filled(&index).unwrap(),
                );
                let out = device.alloc(rows * width * 4).unwrap();
                let arguments = abi::Norm { width: width as u32, eps, add: add.into() };
                let buffers = [(&stream).into(), (&a).into(), (&w).into(), (&i).into(), (&out).into()];
                let mut work = device.work(false);
                work.dispatch(Kernel::Norm, Grid::new((rows, 1, 1), threads), &arguments, &buffers).unwrap();
                work.wait().unwrap();
                let sum: Vec<f64> = (hidden.iter().zip(&added))
                    .map(|(h, a)| f64::from(if add { h + a } else { *h }))
                    .collect();
                close("stream", stream.read(0, rows * width), &sum, 0.0);
                for (r, got) in index.iter().zip(out.read::<f32>(0, rows * width).chunks_exact(width)) {
                    let x = &sum[*r as usize * width..][..width];
                    let rms = (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + f64::from(eps)).sqrt();
                    let want: Vec<f64> =
                        x.iter().zip(&weight).map(|(x, w)| x / rms * f64::from(1.0 + w)).collect();
                    // Values up to 8; a sum of `width` squares in pieces, a root, four more operations.
                    close("norm", got, &want, 8.0 * (width as f64 / 32.0 + 16.0) * U);
                }
            }
        }
    });
}

#[test]
fn activations_and_combination() {
    let (rows, width) = (5, 97);
    // Row 1 has no routed expert, row 3 has three.
    let starts = [0u32, 2, 2, 3, 6, 7];
    let slots = [1u32, 4, 0, 2, 3, 6, 5];
    in_all_orders(|device| {
        let (gate, up) = (noise(1, rows * width), noise(2, rows * width));
        let (g, u) = (device.filled(&gate).unwrap(), device.filled(&up).unwrap());
        let count = rows * width - 1;
        let mut work = device.work(false);
        let arguments = abi::Elements { count: count as u32 };
        work.dispatch(Kernel::SiluUp, Grid::flat(count), &arguments, &[(&g).into(), (&u).into()]).unwrap();
        work.wait().unwrap();
        let mut want: Vec<f64> =
            gate.iter().zip(&up).map(|(g, u)| silu(f64::from(*g)) * f64::from(*u)).collect();
        want[count] = f64::from(gate[count]); // past the count: untouched
        close("silu(gate) up", g.read(0, rows * width), &want, 8.0 * U);

        let (hidden, shared, gates) = (noise(3, rows * width), noise(4, rows * width), noise(5, rows));
        let (routed, weights) = (noise(6, slots.len() * width), noise(7, slots.len()));
        let h = device.filled(&hidden).unwrap();
        let fixed = [&shared, &gates, &routed].map(|values| device.filled(values).unwrap());
        let (s, n, w) = (
            device.filled(&starts).unwrap(),
            device.filled(&slots).unwrap(),
            device.filled(&weights).unwrap(),
        );
        let buffers = [
            (&h).into(),
            (&fixed[0]).into(),
            (&fixed[1]).into(),
            (&fixed[2]).into(),
            (&s).into(),
            (&n).into(),
            (&w).into(),
        ];
        let arguments = abi::Combine { width: width as u32 };
        let grid = Grid::new((width.div_ceil(64), rows, 1), 64);
        work.dispatch(Kernel::Combine, grid, &arguments, &buffers).unwrap();
        work.wait().unwrap();
        let want: Vec<f64> = (0..rows * width)
            .map(|i| {
                let (r, c) = (i / width, i % width);
                let experts = (starts[r] as usize..starts[r + 1] as usize)
                    .map(|p| f64::from(weights[p]) * f64::from(routed[slots[p] as usize * width + c]));
                f64::from(hidden[i])
                    + f64::from(shared[i]) * sigmoid(f64::from(gates[r]))
                    + experts.sum::<f64>()
            })
            .collect();
        close("stream", h.read(0, rows * width), &want, 16.0 * U * 4.0);
    });
}

#[test]
fn rows_are_gathered_as_they_are() {
    in_all_orders(|device| {
        for (width, index) in [(1, vec![0u32]), (97, vec![4, 0, 4, 2]), (64, vec![1; 9]), (130, vec![])] {
            let x = noise(width as u64, 5 * width);
            let (from, rows) =
                (device.filled(&x).unwrap(), device.filled(&[&index[..], &[0]].concat()).unwrap());
            // A row more, to stay as it is.
            let to = device.filled(&vec![9f32; (index.len() + 1) * width]).unwrap();
            let mut work = device.work(false);
            let arguments = abi::Gather { width: width as u32 };
            let grid = Grid::new((width.div_ceil(64), index.len(), 1), 64);
            let buffers = [(&from).into(), (&rows).into(), (&to).into()];
            work.dispatch(Kernel::Gather, grid, &arguments, &buffers).unwrap();
            work.wait().unwrap();
            let mut want: Vec<f32> =
                index.iter().flat_map(|&r| &x[r as usize * width..][..width]).copied().collect();
            want.resize(want.len() + width, 9.0);
            assert_eq!(to.read::<f32>(0, want.len()), want, "{width} {index:?}");
        }
    });
}

#[test]
fn copies_stop_at_their_end() {
    in_all_orders(|device| {
        let from = device.filled(&[1u32, 2, 3, 4]).unwrap();
        let to = device.filled(&[9u32; 4]).unwrap();
        let mut work = device.work(false);
        let copy = abi::Copy { words: 3 };
        work.dispatch(Kernel::CopyWords, Grid::flat(3), &copy, &[(&from).into(), (&to).into()]).unwrap();
        work.wait().unwrap();
        assert_eq!(to.read::<u32>(0, 4), [1, 2, 3, 9]);
    });
}
