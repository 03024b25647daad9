//! The format's 64-bit checksum.
//!
//! ```text
//! mix(x): x ^= x >> 33; x *= FF51AFD7ED558CCD; x ^= x >> 33; x *= C4CEB9FE1A85EC53; x ^= x >> 33
//! acc   = XOR over 8-byte little-endian words w_i (the last one zero padded) of
//!         mix(w_i) XOR (i * 9E3779B97F4A7C15)
//! hash  = mix(acc XOR byte_length)
//! ```
//!
//! It guards against accidents, not against forgery: the fold is a plain XOR.

const POSITION: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x ^= x >> 33;
    x = x.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

/// XOR of the mixed words of `bytes`, whose first word has position `first`. A last partial word
/// is zero padded, so only the final piece of a message may have one.
pub(crate) fn fold(bytes: &[u8], first: u64) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut acc = 0;
    let mut position = first.wrapping_mul(POSITION);
    for word in words {
        acc ^= mix(u64::from_le_bytes(*word)) ^ position;
        position = position.wrapping_add(POSITION);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        acc ^= mix(u64::from_le_bytes(last)) ^ position;
    }
    acc
}

/// Turns the folded words of a message of `len` bytes into its hash.
pub(crate) fn finish(acc: u64, len: u64) -> u64 {
    mix(acc ^ len)
}

/// The format's checksum of `bytes`.
pub fn hash64(bytes: &[u8]) -> u64 {
    finish(fold(bytes, 0), bytes.len() as u64)
}

/// [`hash64`] of a message that arrives in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct Hasher64 {
    acc: u64,
    len: u64,
    /// The first `len % 8` bytes hold the word in progress.
    partial: [u8; 8],
}

impl Hasher64 {
    /// A hasher of the empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `bytes` to the message.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let filled = (self.len % 8) as usize;
        if filled > 0 {
            let take = bytes.len().min(8 - filled);
            self.partial[filled..filled + take].copy_from_slice(&bytes[..take]);
            self.len += take as u64;
            bytes = &bytes[take..];
            if filled + take < 8 {
                return;
            }
            self.acc ^= fold(&self.partial, self.len / 8 - 1);
        }
        let whole = bytes.len() & !7;
        self.acc ^= fold(&bytes[..whole], self.len / 8);
        self.partial[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        self.len += bytes.len() as u64;
    }

    /// Bytes hashed so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing has been hashed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hash of everything appended so far.
    pub fn finish(&self) -> u64 {
        let tail = &self.partial[..(self.len % 8) as usize];
        finish(self.acc ^ fold(tail, self.len / 8), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values of the specification's Python function, computed with arbitrary-precision integers.
    #[test]
    fn known_values() {
        for (message, want) in KNOWN {
            assert_eq!(hash64(message), *want, "{message:?}");
        }
    }

    const KNOWN: &[(&[u8], u64)] = &[
        (b"", 0),
        (b"\0", 0xb456_bcfc_34c2_cb2c),
        (b"shamrock", 0x6d0e_c03e_9786_a806),
        (b"a clover with three leaves", 0x496a_aa33_8c89_c824),
    ];

    proptest! {
        #[test]
        fn streaming_equals_whole(
            message in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0usize..20, 0..40),
        ) {
            let mut hasher = Hasher64::new();
            let mut rest = &message[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                hasher.update(piece);
                rest = after;
            }
            hasher.update(rest);
            prop_assert_eq!(hasher.finish(), hash64(&message));
            prop_assert_eq!(hasher.len(), message.len() as u64);
        }
    }
}
