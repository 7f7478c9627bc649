//! The random stream: Philox4x32-10 as an expression, and what uniform and normal numbers are made of.
//!
//! A program that draws random numbers has two further integer inputs, [`SEED`] and [`OFFSET`]. Element `i` (row-major) of the k-th draw
//! of the program is a function of both alone, whatever device runs it and however its kernels are cut:
//!
//! ```text
//! words = philox4x32_10(counter = (i, offset, k, 0), key = (seed, 0))
//! uniform in [0, 1):   the upper 24 bits of word 0, over 2²⁴   (f16: 11 bits, bf16: 8 bits, f64: 53 bits of words 0 and 1)
//! normal:              √(−2 ln u) · cos(2π v),   u in (0, 1] from word 0, v in [0, 1) from word 1 (f64: words 0 and 1, 2 and 3)
//! ```
//!
//! Nothing is kept between runs: the same seed and offset give the same numbers, and a caller who wants new ones raises the offset by one.
//! PyTorch's CUDA generator is the same function, but cuts its stream by the card's number of threads, so its numbers are not these.

use super::BodyBuilder;
use crate::ir::{DType, Dim};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};

/// Name of the input, and of the symbol, that is the key.
pub const SEED: &str = "rng_seed";
/// Name of the input, and of the symbol, that numbers the runs.
pub const OFFSET: &str = "rng_offset";

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// The 32 bits as the i32 that has them.
fn bits(b: &mut BodyBuilder, v: u32) -> ExprId {
    b.lit_int(Ty::I32, i64::from(v as i32))
}

/// Logical shift right of 32 bits by 1 to 31.
fn shift_right(b: &mut BodyBuilder, x: ExprId, by: u32) -> ExprId {
    let by_expr = b.int(i64::from(by));
    let shifted = b.bin(Binary::Shr, x, by_expr);
    let mask = bits(b, u32::MAX >> by);
    b.and(shifted, mask)
}

fn low_half(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let mask = bits(b, 0xFFFF);
    b.and(x, mask)
}

/// Upper and lower word of the 64-bit product of two unsigned words given in halves `(upper, lower)`; there are 32-bit integers only.
fn wide_product(b: &mut BodyBuilder, x: (ExprId, ExprId), m: (ExprId, ExprId)) -> (ExprId, ExprId) {
    let (low, cross, other, high) = (b.mul(x.1, m.1), b.mul(x.0, m.1), b.mul(x.1, m.0), b.mul(x.0, m.0));
    let (low_top, cross_low, other_low) = (shift_right(b, low, 16), low_half(b, cross), low_half(b, other));
    let middle = b.add(low_top, cross_low);
    let middle = b.add(middle, other_low);
    let sixteen = b.int(16);
    let (middle_up, low_low) = (b.bin(Binary::Shl, middle, sixteen), low_half(b, low));
    let lower = b.bin(Binary::Or, middle_up, low_low);
    let (cross_top, other_top, carry) =
        (shift_right(b, cross, 16), shift_right(b, other, 16), shift_right(b, middle, 16));
    let upper = b.add(high, cross_top);
    let upper = b.add(upper, other_top);
    (b.add(upper, carry), lower)
}

fn halves(b: &mut BodyBuilder, x: ExprId) -> (ExprId, ExprId) {
    (shift_right(b, x, 16), low_half(b, x))
}

/// Four words for a counter; the key's second word is 0.
fn philox(b: &mut BodyBuilder, counter: [ExprId; 4], key: ExprId) -> [ExprId; 4] {
    let mut c = counter;
    for round in 0..ROUNDS {
        let step = bits(b, WEYL[0].wrapping_mul(round));
        let keys = [b.add(key, step), bits(b, WEYL[1].wrapping_mul(round))];
        let mut products = [(c[0], c[0]); 2];
        for (k, product) in products.iter_mut().enumerate() {
            let x = halves(b, c[2 * k]);
            let m = (bits(b, MULTIPLIERS[k] >> 16), bits(b, MULTIPLIERS[k] & 0xFFFF));
            *product = wide_product(b, x, m);
        }
        let [(high0, low0), (high1, low1)] = products;
        let (first, third) = (b.xor(high1, c[1]), b.xor(high0, c[3]));
        c = [b.xor(first, keys[0]), low1, b.xor(third, keys[1]), low0];
    }
    c
}

/// The four words of element `axes` of a draw over `shape`.
pub(super) fn words(b: &mut BodyBuilder, shape: &[Dim], axes: &[ExprId], draw: u32) -> [ExprId; 4] {
    let mut at = b.int(0);
    for (size, &axis) in shape.iter().zip(axes) {
        let n = b.dim(size);
        at = b.mul(at, n);
        at = b.add(at, axis);
    }
    let (seed, offset) = (b.dim(&Dim::symbol(SEED)), b.dim(&Dim::symbol(OFFSET)));
    let (draw, zero) = (bits(b, draw), b.int(0));
    philox(b, [at, offset, draw, zero], seed)
}

/// Significant bits of an element type.
fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// A uniform number in [0, 1), in the register type of an element type, from words `2·pair` (and the next in f64).
pub(super) fn uniform(b: &mut BodyBuilder, words: [ExprId; 4], pair: usize, dtype: DType) -> ExprId {
    if dtype == DType::F64 {
        let (top, rest) = (shift_right(b, words[2 * pair], 5), shift_right(b, words[2 * pair + 1], 6));
        let (top, rest) = (b.cast(Ty::F64, top), b.cast(Ty::F64, rest));
        let (step, ulp) = (b.lit(Ty::F64, f64::from(1u32 << 26)), b.lit(Ty::F64, 2f64.powi(-53)));
        let whole = b.mul(top, step);
        let whole = b.add(whole, rest);
        return b.mul(whole, ulp);
    }
    let n = digits(dtype);
    scaled(b, words[pair], n, 0)
}

/// `(upper n bits of a word + plus) / 2ⁿ` in f32, n ≤ 24.
fn scaled(b: &mut BodyBuilder, word: ExprId, n: u32, plus: i64) -> ExprId {
    let top = shift_right(b, word, 32 - n);
    let plus = b.int(plus);
    let top = b.add(top, plus);
    let top = b.cast(Ty::F32, top);
    let ulp = b.lit(Ty::F32, 2f64.powi(-(n as i32)));
    b.mul(top, ulp)
}

/// A uniform number in (0, 1], whose logarithm is finite: in f32, or f64 for f64.
pub(super) fn uniform_above_zero(b: &mut BodyBuilder, words: [ExprId; 4], dtype: DType) -> ExprId {
    if dtype == DType::F64 {
        let u = uniform(b, words, 0, dtype);
        let one = b.lit(Ty::F64, 1.0);
        return b.sub(one, u);
    }
    scaled(b, words[0], 24, 1)
}

/// A standard normal number by Box and Muller.
pub(super) fn normal(b: &mut BodyBuilder, words: [ExprId; 4], dtype: DType) -> ExprId {
    let ty = dtype.ty();
    let u = uniform_above_zero(b, words, dtype);
    let v = if dtype == DType::F64 { uniform(b, words, 1, dtype) } else { scaled(b, words[1], 24, 0) };
    let (ln, minus_two) = (b.un(Unary::Log, u), b.lit(ty, -2.0));
    let square = b.mul(ln, minus_two);
    let radius = b.un(Unary::Sqrt, square);
    let turn = b.lit(ty, std::f64::consts::TAU);
    let angle = b.mul(v, turn);
    let cos = b.un(Unary::Cos, angle);
    b.mul(radius, cos)
}

/// A whole number in `0 .. n` as i32, n not negative: the upper word of the product of n and word 0, biased by less than n / 2³².
pub(super) fn below(b: &mut BodyBuilder, words: [ExprId; 4], n: ExprId) -> ExprId {
    let (x, m) = (halves(b, words[0]), halves(b, n));
    wide_product(b, x, m).0
}

/// 31 random bits: an i32 that is not negative.
pub(super) fn whole(b: &mut BodyBuilder, words: [ExprId; 4]) -> ExprId {
    shift_right(b, words[0], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::{Data, Precision, eval_with};
    use crate::ir::{TensorType, UserOutput};
    use std::collections::BTreeMap;

    /// The generator as its authors write it, with 64-bit integers.
    fn reference(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
        for _ in 0..10 {
            let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
            let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
            c = [(p1 >> 32) as u32 ^ c[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ key[1], p0 as u32];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        c
    }

    #[test]
    fn the_reference_gives_the_published_answer() {
        assert_eq!(reference([0; 4], [0; 2]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        let ones = reference([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
    }

    /// What a draw of 4096 numbers of one kind gives.
    fn sample(dtype: DType, number: fn(&mut BodyBuilder, [ExprId; 4]) -> ExprId) -> Vec<f64> {
        let mut cx = crate::aten::Cx::new("philox");
        let shape = vec![Dim::from(4096)];
        let build = |b: &mut BodyBuilder, axes: &[ExprId]| {
            let words = words(b, &shape, axes, 0);
            number(b, words)
        };
        let v = cx.compute(shape.clone(), dtype, &[], build).expect("a well-typed body");
        cx.b.graph.outputs.push(("y".into(), UserOutput::Tensor(v)));
        let symbols: BTreeMap<String, i64> = [(SEED.to_string(), 0), (OFFSET.to_string(), 0)].into();
        let out = eval_with(&cx.b.graph, &|_| None, &[], &symbols, Precision::Working).expect("evaluates");
        match &out.tensors()[0].data {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v.iter().map(|&v| v as f64).collect(),
        }
    }

    /// Mean and variance, which lie within four standard errors of what the distribution has.
    fn holds_moments(values: &[f64], mean: f64, variance: f64) {
        let n = values.len() as f64;
        let m = values.iter().sum::<f64>() / n;
        let v = values.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n;
        assert!((m - mean).abs() < 4.0 * (variance / n).sqrt(), "mean {m} instead of {mean}");
        assert!((v - variance).abs() < 8.0 * variance / n.sqrt(), "variance {v} instead of {variance}");
    }

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let number = match dtype {
                DType::F64 => |b: &mut BodyBuilder, w| uniform(b, w, 0, DType::F64),
                DType::F16 => |b: &mut BodyBuilder, w| uniform(b, w, 0, DType::F16),
                DType::BF16 => |b: &mut BodyBuilder, w| uniform(b, w, 0, DType::BF16),
                _ => |b: &mut BodyBuilder, w| uniform(b, w, 0, DType::F32),
            };
            let values = sample(dtype, number);
            assert!(values.iter().all(|v| (0.0..1.0).contains(v)), "{dtype} leaves [0, 1)");
            holds_moments(&values, 0.5, 1.0 / 12.0);
        }
        holds_moments(&sample(DType::F32, |b, w| normal(b, w, DType::F32)), 0.0, 1.0);
        holds_moments(&sample(DType::F64, |b, w| normal(b, w, DType::F64)), 0.0, 1.0);
        let six = sample(DType::I32, |b, w| {
            let n = b.int(6);
            below(b, w, n)
        });
        assert!((0..6).all(|k| six.contains(&f64::from(k))) && six.iter().all(|v| (0.0..6.0).contains(v)));
        holds_moments(&six, 2.5, 35.0 / 12.0);
    }

    #[test]
    fn every_word_of_the_expression_is_that_of_the_reference() {
        let (seed, offset, draw) = (0x1234_5678, 9, 3);
        for word in 0..4 {
            let mut cx = crate::aten::Cx::new("philox");
            let shape = vec![Dim::from(3), Dim::from(5)];
            let v = cx
                .compute(shape.clone(), DType::I32, &[], |b, axes| words(b, &shape, axes, draw)[word])
                .expect("a well-typed body");
            cx.b.graph.outputs.push(("y".into(), UserOutput::Tensor(v)));
            assert_eq!(cx.b.ty(v), &TensorType::fixed(DType::I32, &[3, 5]));
            let symbols: BTreeMap<String, i64> = [(SEED.to_string(), seed), (OFFSET.to_string(), offset)].into();
            let out = eval_with(&cx.b.graph, &|_| None, &[], &symbols, Precision::Working).expect("evaluates");
            let Data::Int(got) = &out.tensors()[0].data else { panic!("integers") };
            for (i, &got) in got.iter().enumerate() {
                let want = reference([i as u32, offset as u32, draw, 0], [seed as u32, 0]);
                assert_eq!(got as u32, want[word], "word {word} of element {i}");
            }
        }
    }
}
