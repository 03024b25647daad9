//! Random bytes at memory speed, the same on any number of threads.

use shamrock_cmf::hash64;

/// Increment of the splitmix64 sequence.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A random sequence of 64-bit words that can be entered anywhere: word `i` is the splitmix64
/// output for counter `i`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    /// The sequence of one tensor of one model.
    pub(super) fn new(seed: u64, name: &str) -> Stream {
        Stream { key: mix(mix(seed.wrapping_add(GAMMA)) ^ hash64(name.as_bytes())) }
    }

    /// An independent sequence for another part of the same tensor.
    pub(super) fn part(self, part: u64) -> Stream {
        Stream { key: mix(self.key ^ mix(part.wrapping_add(1).wrapping_mul(GAMMA))) }
    }

    pub(super) fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GAMMA)))
    }

    /// Byte `index` of the sequence.
    pub(super) fn byte(self, index: u64) -> u8 {
        self.word(index / 8).to_le_bytes()[(index % 8) as usize]
    }

    /// A number of 0..1, of 53 bits.
    pub(super) fn unit(self, index: u64) -> f64 {
        (self.word(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `out` with the sequence's bytes from `first_word` on, each mapped through `table`.
    pub(super) fn fill(self, first_word: u64, out: &mut [u8], table: &[u8; 256]) {
        let (words, tail) = out.as_chunks_mut::<8>();
        let mut index = first_word;
        for word in words {
            *word = self.word(index).to_le_bytes().map(|byte| table[usize::from(byte)]);
            index += 1;
        }
        for (byte, random) in tail.iter_mut().zip(self.word(index).to_le_bytes()) {
            *byte = table[usize::from(random)];
        }
    }
}

/// The finaliser of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The `N` values that split a normal distribution evenly, ascending, of mean 0 and deviation 1.
pub(super) fn normal_quantiles<const N: usize>() -> [f64; N] {
    // Midpoint sums of the density; 1/2048 is far finer than any table made from this.
    const STEP: f64 = 1.0 / 2048.0;
    let density = |z: f64| (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    let (mut z, mut below) = (-6.0, 0.0);
    let mut quantiles = [0.0; N];
    // The lower half, mirrored, so that the mean is exactly zero.
    for i in 0..N / 2 {
        while below < (i as f64 + 0.5) / N as f64 {
            below += density(z + STEP / 2.0) * STEP;
            z += STEP;
        }
        (quantiles[i], quantiles[N - 1 - i]) = (z, -z);
    }
    let deviation = (quantiles.iter().map(|q| q * q).sum::<f64>() / N as f64).sqrt();
    quantiles.map(|q| q / deviation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_in_pieces_equals_filling_at_once() {
        let (stream, table) = (Stream::new(7, "w"), std::array::from_fn(|i| 255 - i as u8));
        let mut whole = [0; 61];
        stream.fill(0, &mut whole, &table);
        let mut pieces = [0; 61];
        stream.fill(0, &mut pieces[..24], &table);
        stream.fill(3, &mut pieces[24..], &table);
        assert_eq!(whole, pieces);
        assert!(whole.iter().enumerate().all(|(i, byte)| *byte == 255 - stream.byte(i as u64)));
    }

    #[test]
    fn sequences_of_seeds_names_and_parts_differ() {
        let first = |stream: Stream| stream.word(0);
        let words = [
            first(Stream::new(1, "a")),
            first(Stream::new(2, "a")),
            first(Stream::new(1, "b")),
            first(Stream::new(1, "a").part(0)),
            first(Stream::new(1, "a").part(1)),
        ];
        for (i, word) in words.iter().enumerate() {
            assert!(!words[..i].contains(word));
        }
    }

    #[test]
    fn quantiles_are_those_of_a_normal_distribution() {
        let q = normal_quantiles::<256>();
        assert!(q.is_sorted());
        // Known points of the normal distribution; the table's own rescaling to deviation 1 moves
        // them by under 1 %, so 0.03 at the tail is close.
        for (at, expected) in [(0, -2.886), (40, -1.003), (127, -0.0049), (215, 1.003), (255, 2.886)] {
            assert!((q[at] - expected).abs() < 0.03, "quantile {at} is {}", q[at]);
        }
    }
}
