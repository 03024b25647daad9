//! What targets share.

use std::panic;

/// llguidance turns its own panics into errors, which libFuzzer, aborting first, would not let it.
pub fn let_the_library_panic() {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let file = info.location().map_or("", |location| location.file());
        if !["/llguidance-", "/derivre-", "/toktrie-"].iter().any(|name| file.contains(name)) {
            abort(info);
        }
    }));
}
