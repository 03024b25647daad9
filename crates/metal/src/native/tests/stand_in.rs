//! What tests ask of the stand-in for Metal (`tools/metal-linux/FakeMetal.m`); nothing on a Mac.

/// Orders in which threads run: ascending, descending, two seeds.
#[cfg(metal_host)]
pub(super) const ORDERS: [u32; 4] = [0, 1, 2, 7];
/// A device has its own.
#[cfg(not(metal_host))]
pub(super) const ORDERS: [u32; 1] = [0];

#[cfg(metal_host)]
pub(super) fn set_order(order: u32) {
    unsafe extern "C" {
        safe fn fake_metal_set_order(order: u32);
    }
    fake_metal_set_order(order);
}

#[cfg(not(metal_host))]
pub(super) fn set_order(_order: u32) {}
