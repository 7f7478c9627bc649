//! Weights in element types that the IR does not compute in: 8-bit floats and u16. They are read as their bits and decoded by an
//! expression, exactly, so that a program may hold them and convert them.

use super::BodyBuilder;
use super::cx::{Built, Cx};
use crate::import::program::ScalarType;
use crate::ir::{DType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId};

/// An 8-bit float: sign, `exponent` bits, the rest mantissa.
struct Format {
    mantissa: u32,
    bias: i32,
    /// The largest exponent means infinity and NaN, as in IEEE 754.
    infinities: bool,
    /// The only NaN is the bit pattern of −0.
    nan_is_minus_zero: bool,
}

fn format(t: ScalarType) -> Option<Format> {
    let f =
        |mantissa, bias, infinities, nan_is_minus_zero| Some(Format { mantissa, bias, infinities, nan_is_minus_zero });
    match t {
        ScalarType::F8E4M3Fn => f(3, 7, false, false),
        ScalarType::F8E5M2 => f(2, 15, true, false),
        ScalarType::F8E4M3Fnuz => f(3, 8, false, true),
        ScalarType::F8E5M2Fnuz => f(2, 16, false, true),
        _ => None,
    }
}

/// The element type whose bits stand for the given one, for types that need decoding.
pub(super) fn storage(t: ScalarType) -> Option<DType> {
    match t {
        ScalarType::U16 => Some(DType::I16),
        _ => format(t).map(|_| DType::U8),
    }
}

/// The values: f32 for 8-bit floats, i32 for u16.
pub(super) fn decode(cx: &mut Cx, raw: ValueId, t: ScalarType) -> Built {
    match format(t) {
        Some(f) => cx.map_n(&[raw], DType::F32, |b, a| decode_float(b, a[0], &f)),
        None => cx.map_n(&[raw], DType::I32, |b, a| {
            let mask = b.int(0xffff);
            b.and(a[0], mask)
        }),
    }
}

fn decode_float(b: &mut BodyBuilder, bits: ExprId, f: &Format) -> ExprId {
    let n = f.mantissa;
    let field = |b: &mut BodyBuilder, shift: u32, mask: i64| {
        let (by, mask) = (b.int(i64::from(shift)), b.int(mask));
        let moved = b.bin(Binary::Shr, bits, by);
        b.and(moved, mask)
    };
    let exponent_mask = (1i64 << (7 - n)) - 1;
    let (m, e) = (field(b, 0, (1 << n) - 1), field(b, n, exponent_mask));
    let zero = b.int(0);
    let subnormal = b.eq(e, zero);
    let lead = b.int(1 << n);
    let with_lead = b.add(m, lead);
    let digits = b.select(subnormal, m, with_lead);
    let one = b.int(1);
    let e_least = b.max(e, one);
    let scale = power_of_two(b, e_least, 7 - n);
    let unit = b.lit(Ty::F32, 2f64.powi(-f.bias - n as i32));
    let digits = b.cast(Ty::F32, digits);
    let scaled = b.mul(digits, scale);
    let size = b.mul(scaled, unit);
    let size = specials(b, size, (bits, m, e), f);
    let sign = field(b, 7, 1);
    let negative = b.eq(sign, one);
    let minus = b.neg(size);
    b.select(negative, minus, size)
}

/// 2ᵉ for e of a few bits, as a product, which every device computes exactly.
fn power_of_two(b: &mut BodyBuilder, e: ExprId, bits: u32) -> ExprId {
    let mut out = b.lit(Ty::F32, 1.0);
    let zero = b.int(0);
    for k in 0..bits {
        let mask = b.int(1 << k);
        let bit = b.and(e, mask);
        let set = b.ne(bit, zero);
        let (factor, one) = (b.lit(Ty::F32, 2f64.powi(1 << k)), b.lit(Ty::F32, 1.0));
        let f = b.select(set, factor, one);
        out = b.mul(out, f);
    }
    out
}

fn specials(b: &mut BodyBuilder, size: ExprId, (bits, m, e): (ExprId, ExprId, ExprId), f: &Format) -> ExprId {
    let nan = b.lit(Ty::F32, f64::NAN);
    if f.nan_is_minus_zero {
        let pattern = b.int(0x80);
        let is_nan = b.eq(bits, pattern);
        return b.select(is_nan, nan, size);
    }
    let last = b.int((1 << (7 - f.mantissa)) - 1);
    let top = b.eq(e, last);
    if f.infinities {
        let (inf, zero) = (b.lit(Ty::F32, f64::INFINITY), b.int(0));
        let whole = b.eq(m, zero);
        let special = b.select(whole, inf, nan);
        return b.select(top, special, size);
    }
    let ones = b.int((1 << f.mantissa) - 1);
    let full = b.eq(m, ones);
    let is_nan = b.and(top, full);
    b.select(is_nan, nan, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::{Output, Symbols, Tensor, eval};
    use crate::ir::{TensorType, UserOutput};

    fn decoded(t: ScalarType, bits: &[u8]) -> Vec<f64> {
        let mut cx = Cx::new("t");
        let ty = TensorType::fixed(DType::U8, &[bits.len() as i64]);
        let raw = cx.const_bytes(ty, bits.to_vec()).expect("a constant");
        let v = decode(&mut cx, raw, t).expect("decodes");
        cx.b.graph.outputs.push(("out".into(), UserOutput::Tensor(v)));
        let out = eval(&cx.b.graph, &|_| None::<Tensor>, &[], &Symbols::new()).expect("evaluates");
        let Output::Tensor(t) = &out.outputs[0] else { panic!("a tensor") };
        t.floats().to_vec()
    }

    // Values by the formats' definitions (OCP 8-bit floating point, and the fnuz variants of ONNX).
    #[test]
    fn eight_bit_floats_decode_by_their_format() {
        let e4m3 = decoded(ScalarType::F8E4M3Fn, &[0x00, 0x01, 0x08, 0x38, 0xb8, 0x7e, 0x7f]);
        assert_eq!(e4m3[..6], [0.0, 0.001953125, 0.015625, 1.0, -1.0, 448.0]);
        assert!(e4m3[6].is_nan(), "all ones is NaN");
        let e5m2 = decoded(ScalarType::F8E5M2, &[0x01, 0x04, 0x3c, 0x7b, 0x7c, 0xfc]);
        assert_eq!(e5m2, [2f64.powi(-16), 2f64.powi(-14), 1.0, 57344.0, f64::INFINITY, f64::NEG_INFINITY]);
        let fnuz = decoded(ScalarType::F8E4M3Fnuz, &[0x40, 0x7f, 0x01, 0x80]);
        assert_eq!(fnuz[..3], [1.0, 240.0, 2f64.powi(-10)]);
        assert!(fnuz[3].is_nan(), "minus zero is NaN");
        let fnuz5 = decoded(ScalarType::F8E5M2Fnuz, &[0x40, 0x7f]);
        assert_eq!(fnuz5, [1.0, 57344.0]);
    }
}
