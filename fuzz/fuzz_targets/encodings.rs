//! Any bytes decode, any numbers encode or are refused, and what was encoded decodes to numbers
//! near the source.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use shamrock_cmf::{Encoding, decode, decode_rows, encode, q4_tiled, q4tp, q8_2f, q8_row};

#[derive(Arbitrary, Debug)]
struct Input {
    encoding: u8,
    rows: u8,
    cols: u16,
    /// Bit patterns; used again from the start when they run out.
    values: Vec<u32>,
    payload: Vec<u8>,
}

fuzz_target!(init: one_thread(), |input: Input| {
    let encoding = Encoding::ALL[usize::from(input.encoding) % Encoding::ALL.len()];
    let (rows, cols) = (usize::from(input.rows % 8), usize::from(input.cols % 300));
    decode_anything(encoding, rows, cols, &input.payload);
    encode_anything(encoding, rows, cols, &input.values);
});

fn one_thread() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
}

fn decode_anything(encoding: Encoding, rows: usize, cols: usize, bytes: &[u8]) {
    // Shapes that have nothing to do with the payload, small and huge.
    let fits = |rows, cols| encoding.byte_len(&[rows, cols]).is_ok_and(|len| len == bytes.len() as u64);
    for (rows, cols) in [(rows, cols), (usize::MAX, cols), (rows, usize::MAX), (usize::MAX, usize::MAX)] {
        assert_eq!(views(encoding, rows, cols, bytes), fits(rows, cols));
        // Rows without columns take no bytes in some encodings: nothing to decode, nothing to hold.
        assert_eq!(decode(encoding, rows, cols, bytes).is_ok(), fits(rows, cols));
    }

    // A payload of the right size.
    let Ok(len) = encoding.byte_len(&[rows, cols]) else { return };
    let payload: Vec<u8> = bytes.iter().copied().chain([0x5A]).cycle().take(len as usize).collect();
    assert!(views(encoding, rows, cols, &payload));
    let all = decode(encoding, rows, cols, &payload).unwrap();
    for start in 0..=rows {
        let mut part = vec![0.0; (rows - start) * cols];
        decode_rows(encoding, rows, cols, &payload, start..rows, &mut part).unwrap();
        assert!(part.iter().zip(&all[start * cols..]).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

/// Whether a typed view (or a plain payload) of this size exists.
fn views(encoding: Encoding, rows: usize, cols: usize, bytes: &[u8]) -> bool {
    match encoding {
        Encoding::Q8Row => q8_row::View::new(bytes, rows, cols).is_ok(),
        Encoding::Q8TwoField => q8_2f::View::new(bytes, rows, cols).is_ok(),
        Encoding::Q4Tiled => q4_tiled::View::new(bytes, rows, cols).is_ok(),
        Encoding::Q4tp => q4tp::View::new(bytes, rows, cols).is_ok(),
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 => {
            encoding.byte_len(&[rows, cols]).is_ok_and(|len| len == bytes.len() as u64)
        }
    }
}

fn encode_anything(encoding: Encoding, rows: usize, cols: usize, bits: &[u32]) {
    let bits = bits.iter().copied().chain([0x3E12_3456, 0xBD65_4321]).cycle();
    let values: Vec<f32> = bits.take(rows * cols).map(f32::from_bits).collect();
    let Ok(payload) = encode(encoding, rows, cols, &values) else { return };
    assert_eq!(payload.len() as u64, encoding.byte_len(&[rows, cols]).unwrap());
    let decoded = decode(encoding, rows, cols, &payload).unwrap();
    let quantised = !matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16);
    if quantised {
        assert!(decoded.iter().all(|value| value.is_finite()), "{encoding}: {values:?}");
        // Quantisation never turns a sign around.
        assert!(values.iter().zip(&decoded).all(|(a, b)| *b == 0.0 || (*a > 0.0) == (*b > 0.0)));
    }
    assert_eq!(encode(encoding, rows, cols, &values).unwrap(), payload);
}
