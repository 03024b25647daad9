//! Looking for markers in text that arrives in pieces.

/// Length in bytes of the longest end of `text` that is a beginning, but not the whole, of some
/// marker: what must be held back until more text shows whether it is one.
pub(crate) fn partial_marker(text: &str, markers: &[impl AsRef<str>]) -> usize {
    markers
        .iter()
        .map(|marker| {
            let marker = marker.as_ref();
            let longest = text.len().min(marker.len().saturating_sub(1));
            (1..=longest)
                .rev()
                .find(|&len| marker.is_char_boundary(len) && text.ends_with(&marker[..len]))
                .unwrap_or(0)
        })
        .max()
        .unwrap_or(0)
}
