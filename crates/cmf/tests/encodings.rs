//! What encodings promise: error bounds, stability, equality of all ways to decode.

use std::path::Path;

use half::f16;
use proptest::prelude::*;
use serde::Deserialize;
use shamrock_cmf::{
    Encoding, EncodingError, Error, decode, decode_rows, encode, q4_tiled, q4tp, q8_2f, q8_row,
};

/// Scales are at least the smallest normal half.
const MIN_SCALE: f32 = 1.0 / 16384.0;

/// A matrix with rows and columns of different sizes, as weights have them, and some zeros.
#[derive(Clone, Debug)]
struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

fn matrix(col_step: usize) -> impl Strategy<Value = Matrix> {
    (1usize..6, 1usize..7, any::<u64>(), -8f32..3.0, 0f32..4.0).prop_map(
        move |(rows, col_steps, seed, size, spread)| {
            let cols = col_steps * col_step;
            let mut random = SplitMix(seed);
            let row_sizes: Vec<f32> = (0..rows).map(|_| (size + spread * random.unit()).exp2()).collect();
            let col_sizes: Vec<f32> = (0..cols).map(|_| (spread * random.unit()).exp2()).collect();
            let group_is_zero: Vec<bool> =
                (0..rows * cols.div_ceil(32)).map(|_| random.unit() > 0.8).collect();
            let values = (0..rows * cols).map(|i| {
                let (row, col) = (i / cols, i % cols);
                let live = !group_is_zero[row * cols.div_ceil(32) + col / 32];
                f32::from(u8::from(live)) * row_sizes[row] * col_sizes[col] * random.unit()
            });
            Matrix { rows, cols, values: values.collect() }
        },
    )
}

/// Steele, Lea and Flood's SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Encodes and decodes; `bound(row, col)` is the largest error allowed, besides rounding.
fn round_trip(
    encoding: Encoding,
    matrix: &Matrix,
    bound: impl Fn(&[u8], usize, usize) -> f32,
) -> Result<Vec<f32>, TestCaseError> {
    let payload = encode(encoding, matrix.rows, matrix.cols, &matrix.values).unwrap();
    prop_assert_eq!(payload.len() as u64, encoding.byte_len(&[matrix.rows, matrix.cols]).unwrap());
    let decoded = decode(encoding, matrix.rows, matrix.cols, &payload).unwrap();
    for (i, (value, decoded)) in matrix.values.iter().zip(&decoded).enumerate() {
        let (row, col) = (i / matrix.cols, i % matrix.cols);
        let bound = bound(&payload, row, col);
        let error = (value - decoded).abs();
        // A few single-precision roundings of numbers of the value's size come on top.
        let slack = 4.0 * f32::EPSILON * value.abs();
        prop_assert!(
            error <= bound + slack,
            "{encoding} [{row}, {col}]: {value} became {decoded}, bound {bound}"
        );
    }
    Ok(decoded)
}

/// Half a step, or a step where a scale was rounded down to half precision and the largest
/// integer falls short: relative 2^-11 of 127 steps is far below that.
const HALF_STEP: f32 = 0.5;

proptest! {
    #[test]
    fn plain_encodings_are_exact(matrix in matrix(1)) {
        let decoded = round_trip(Encoding::F32, &matrix, |_, _, _| 0.0)?;
        prop_assert_eq!(&decoded, &matrix.values);
        let half: Vec<f32> = matrix.values.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
        let bf: Vec<f32> = matrix.values.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect();
        for (encoding, want) in [(Encoding::F16, half), (Encoding::Bf16, bf)] {
            let payload = encode(encoding, matrix.rows, matrix.cols, &matrix.values).unwrap();
            let decoded = decode(encoding, matrix.rows, matrix.cols, &payload).unwrap();
            prop_assert_eq!(&decoded, &want);
            // Numbers that are exact in the encoding come back as the same bytes.
            let again = encode(encoding, matrix.rows, matrix.cols, &decoded).unwrap();
            prop_assert_eq!(again, payload);
        }
    }

    #[test]
    fn q8_row_errs_by_half_a_step(matrix in matrix(3)) {
        round_trip(Encoding::Q8Row, &matrix, |payload, row, _| {
            let view = q8_row::View::new(payload, matrix.rows, matrix.cols).unwrap();
            HALF_STEP * view.scale(row)
        })?;
    }

    #[test]
    fn q8_2f_errs_by_half_a_step(matrix in matrix(3)) {
        round_trip(Encoding::Q8TwoField, &matrix, |payload, row, col| {
            let view = q8_2f::View::new(payload, matrix.rows, matrix.cols).unwrap();
            HALF_STEP * view.row_scale(row) * view.col_scales()[col]
        })?;
    }

    #[test]
    fn q4_tiled_errs_by_half_a_step(matrix in matrix(32)) {
        round_trip(Encoding::Q4Tiled, &matrix, |_, row, col| {
            HALF_STEP * (group_peak(&matrix, row, col) / 7.0 * (1.0 + 2f32.powi(-11))).max(MIN_SCALE)
        })?;
    }

    /// The search minimises a group's sum of squares, so that is what can be bounded. Among the
    /// candidates is the rung next above the group's level, which clips nothing and errs by at
    /// most half of itself in each element.
    #[test]
    fn q4tp_errs_by_no_more_than_the_rung_above(matrix in matrix(32)) {
        let (rows, cols) = (matrix.rows, matrix.cols);
        let payload = encode(Encoding::Q4tp, rows, cols, &matrix.values).unwrap();
        let decoded = decode(Encoding::Q4tp, rows, cols, &payload).unwrap();
        let view = q4tp::View::new(&payload, rows, cols).unwrap();
        for row in 0..rows {
            let ladder = view.ladder(row);
            for group in 0..view.groups() {
                let at = row * cols + 32 * group;
                let (values, decoded) = (&matrix.values[at..at + 32], &decoded[at..at + 32]);
                let peak = group_peak(&matrix, row, 32 * group);
                let error: f64 = values.iter().zip(decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                // The level is rounded to half precision; the last rung reaches it.
                let reaches = |rung: &f32| 7.0 * rung >= peak * (1.0 + 2f32.powi(-10));
                let above = ladder.iter().copied().find(reaches).unwrap_or(ladder[31]);
                let bound = 32.0 * f64::from(above / 2.0).powi(2);
                // Ladders finer than that rounding have many rungs there, all within 1%.
                prop_assert!(error <= bound * 1.02, "row {row} group {group}: {error} > {bound}");
            }
        }
    }

    /// With one scale to a row or tile, decoded numbers sit on a grid that the encoder finds again.
    #[test]
    fn encoding_decoded_numbers_changes_nothing(matrix in matrix(32)) {
        let (rows, cols) = (matrix.rows, matrix.cols);
        for encoding in [Encoding::Q8Row, Encoding::Q4Tiled] {
            let payload = encode(encoding, rows, cols, &matrix.values).unwrap();
            let decoded = decode(encoding, rows, cols, &payload).unwrap();
            prop_assert_eq!(encode(encoding, rows, cols, &decoded).unwrap(), payload, "{}", encoding);
        }
    }

    /// Any range of rows decodes to that part of the whole, from any payload bytes.
    #[test]
    fn decode_rows_is_a_part_of_decode(
        which in 0usize..7,
        rows in 1usize..6,
        groups in 0usize..5,
        seed in any::<u64>(),
        cut in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let (encoding, cols) = (Encoding::ALL[which], 32 * groups);
        let mut random = SplitMix(seed);
        let size = encoding.byte_len(&[rows, cols]).unwrap() as usize;
        let payload: Vec<u8> = (0..size).map(|_| (random.unit() * 127.0) as i8 as u8).collect();
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let whole = decode(encoding, rows, cols, &payload).unwrap();
        let (a, b) = (cut.0.index(rows + 1), cut.1.index(rows + 1));
        let range = a.min(b)..a.max(b);
        let mut part = vec![0.0; range.len() * cols];
        decode_rows(encoding, rows, cols, &payload, range.clone(), &mut part).unwrap();
        prop_assert_eq!(bits(&part), bits(&whole[range.start * cols..range.end * cols]));

        prop_assert!(decode_rows(encoding, rows, cols, &payload, 0..rows + 1, &mut part).is_err());
        part.push(0.0);
        prop_assert!(decode_rows(encoding, rows, cols, &payload, range, &mut part).is_err());
    }

    /// Threads do not change a payload.
    #[test]
    fn encoding_is_deterministic(matrix in matrix(32), which in 0usize..7) {
        let encoding = Encoding::ALL[which];
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| encode(encoding, matrix.rows, matrix.cols, &matrix.values).unwrap())
        };
        prop_assert_eq!(run(1), run(3));
    }
}

fn group_peak(matrix: &Matrix, row: usize, col: usize) -> f32 {
    let at = row * matrix.cols + col / 32 * 32;
    matrix.values[at..at + 32].iter().fold(0.0, |a, b| b.abs().max(a))
}

/// Numbers that the specification's own Python encoder and decoder gave, see `vectors/make.py`.
#[derive(Deserialize)]
struct Vector {
    encoding: String,
    shape: [usize; 2],
    /// Bit patterns of the source values; absent where the payload is not an encoder's.
    values: Option<Vec<u32>>,
    payload: String,
    /// Bit patterns of the decoded values.
    decoded: Vec<u32>,
}

#[test]
fn specification_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/encodings.json");
    let vectors: Vec<Vector> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(vectors.len() >= 7);
    for (index, vector) in vectors.iter().enumerate() {
        let encoding: Encoding = vector.encoding.parse().unwrap();
        let payload: Vec<u8> = (0..vector.payload.len() / 2)
            .map(|i| u8::from_str_radix(&vector.payload[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let [rows, cols] = vector.shape;
        let decoded = decode(encoding, rows, cols, &payload).unwrap();
        let bits: Vec<u32> = decoded.iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, vector.decoded, "decoding vector {index} ({encoding})");
        if let Some(values) = &vector.values {
            let values: Vec<f32> = values.iter().map(|bits| f32::from_bits(*bits)).collect();
            let ours = encode(encoding, rows, cols, &values).unwrap();
            assert!(ours == payload, "encoding vector {index} ({encoding})");
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for encoding in Encoding::ALL {
        assert_eq!(encoding.name().parse::<Encoding>().unwrap(), encoding);
        assert_eq!(Encoding::from_id(encoding.id()), Some(encoding));
        assert!(encoding.byte_len(&[usize::MAX, usize::MAX & !31]).is_err());
    }
    for encoding in [Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4Tiled, Encoding::Q4tp] {
        for shape in [&[32][..], &[2, 2, 32], &[]] {
            let error = encoding.byte_len(shape).unwrap_err();
            assert!(matches!(error, Error::Encoding(EncodingError::NotMatrix { .. })), "{error}");
        }
    }
    for encoding in [Encoding::Q4Tiled, Encoding::Q4tp] {
        let error = encoding.byte_len(&[2, 33]).unwrap_err();
        assert!(error.to_string().contains("multiple of 32 columns, not 33"), "{error}");
    }
    assert_eq!(Encoding::F16.byte_len(&[]).unwrap(), 2);
    assert_eq!(Encoding::F32.byte_len(&[3, 0, 5]).unwrap(), 0);
    assert_eq!(Encoding::F32.byte_len(&[usize::MAX, usize::MAX, 0]).unwrap(), 0);
    assert_eq!(Encoding::Q4tp.byte_len(&[3, 96]).unwrap(), 3 * (3 * 16 + 4 + 2));
    assert!("q4_block".parse::<Encoding>().unwrap_err().to_string().contains("q4_block"));
}

#[test]
fn values_that_do_not_fit_are_refused_by_place() {
    let mut values = vec![0.25f32; 3 * 64];
    for (bad, refusing) in [
        (
            f32::NAN,
            &[Encoding::F16, Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4Tiled, Encoding::Q4tp][..],
        ),
        (
            f32::NEG_INFINITY,
            &[Encoding::F16, Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4Tiled, Encoding::Q4tp],
        ),
        (65520.0, &[Encoding::F16]),
    ] {
        values[2 * 64 + 7] = bad;
        for encoding in Encoding::ALL {
            let result = encode(encoding, 3, 64, &values);
            assert_eq!(result.is_err(), refusing.contains(&encoding), "{bad} in {encoding}");
            if let Err(error) = result {
                assert!(error.to_string().contains("row 2, column 7"), "{error}");
            }
        }
    }
    assert!(encode(Encoding::F32, 3, 64, &values[1..]).is_err());
}

/// Huge and tiny numbers lose precision, never finiteness.
#[test]
fn extreme_values_decode_to_finite_numbers() {
    for size in [f32::MAX, 1e20, 1e-20, f32::MIN_POSITIVE / 8.0, 0.0] {
        let values: Vec<f32> = (0..128).map(|i| if i % 3 == 0 { -size } else { size / 3.0 }).collect();
        let matrix = Matrix { rows: 2, cols: 64, values };
        for encoding in [Encoding::Q8Row, Encoding::Q8TwoField, Encoding::Q4Tiled, Encoding::Q4tp] {
            let payload = encode(encoding, 2, 64, &matrix.values).unwrap();
            let decoded = decode(encoding, matrix.rows, matrix.cols, &payload).unwrap();
            assert!(decoded.iter().all(|value| value.is_finite()), "{encoding} of {size}");
            assert!(size > 0.0 || decoded.iter().all(|value| *value == 0.0), "{encoding}");
        }
    }
}

#[test]
fn views_check_their_payload() {
    let payload = vec![0; 2 * 64 + 4 + 128];
    assert!(q8_2f::View::new(&payload, 2, 64).is_ok());
    assert!(q8_2f::View::new(&payload[1..], 2, 64).is_err());
    assert!(q8_row::View::new(&payload, 2, 64).is_err());
    assert!(q4_tiled::View::new(&payload, 2, 63).is_err());
    assert!(q4tp::View::new(&payload, usize::MAX, 64).is_err());
}
