//! What tests ask of the stand-in for Metal (`tools/metal-linux/FakeMetal.m`); nothing on a Mac.

/// Orders in which threads run: ascending, descending, two seeds; under AddressSanitizer, which looks at
/// addresses, one.
#[cfg(metal_host)]
pub(super) fn orders() -> &'static [u32] {
    unsafe extern "C" {
        safe fn fake_metal_is_sanitized() -> bool;
    }
    if fake_metal_is_sanitized() { &[7] } else { &[0, 1, 2, 7] }
}

/// A device has its own.
#[cfg(not(metal_host))]
pub(super) fn orders() -> &'static [u32] {
    &[0]
}

#[cfg(metal_host)]
pub(super) fn set_order(order: u32) {
    unsafe extern "C" {
        safe fn fake_metal_set_order(order: u32);
    }
    fake_metal_set_order(order);
}

#[cfg(not(metal_host))]
pub(super) fn set_order(_order: u32) {}
