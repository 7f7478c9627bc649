//! Elementwise operators of two or three operands: arithmetic, comparisons, logic, selection.

use super::args::Call;
use super::body::BodyBuilder;
use super::complex::{self, Arithmetic};
use super::cx::Cx;
use super::promote::{number_expr, pointwise, real_type, result_type, to_float};
use super::unary::{is_nan, ln2, sign_bit};
use super::{AtenOp, Val, bad_argument};
use crate::ir::{DType, Dim};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};

type Vals = Result<Vec<Val>, Diagnostic>;
type F2 = fn(&mut BodyBuilder, ExprId, ExprId) -> ExprId;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.add.Tensor", "aten.add.Scalar"], rule: |cx, c| sum(cx, c, false, false) },
    AtenOp {
        names: &["aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", "aten.subtract.Scalar"],
        rule: |cx, c| sum(cx, c, true, false),
    },
    AtenOp { names: &["aten.rsub.Tensor", "aten.rsub.Scalar"], rule: |cx, c| sum(cx, c, true, true) },
    AtenOp {
        names: &["aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar"],
        rule: mul,
    },
    AtenOp {
        names: &[
            "aten.div.Tensor",
            "aten.div.Scalar",
            "aten.divide.Tensor",
            "aten.divide.Scalar",
            "aten.true_divide.Tensor",
            "aten.true_divide.Scalar",
        ],
        rule: true_div,
    },
    AtenOp {
        names: &["aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.divide.Tensor_mode", "aten.divide.Scalar_mode"],
        rule: div_mode,
    },
    AtenOp {
        names: &["aten.floor_divide.default", "aten.floor_divide.Scalar"],
        rule: |cx, c| same2(cx, c, BodyBuilder::floor_div),
    },
    AtenOp {
        names: &["aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"],
        rule: |cx, c| same2(cx, c, BodyBuilder::floor_mod),
    },
    AtenOp { names: &["aten.fmod.Tensor", "aten.fmod.Scalar"], rule: |cx, c| same2(cx, c, BodyBuilder::rem) },
    AtenOp {
        names: &["aten.maximum.default", "aten.max.other"],
        rule: |cx, c| same2(cx, c, |b, x, y| if b.ty(x) == Ty::Bool { b.or(x, y) } else { b.max(x, y) }),
    },
    AtenOp {
        names: &["aten.minimum.default", "aten.min.other"],
        rule: |cx, c| same2(cx, c, |b, x, y| if b.ty(x) == Ty::Bool { b.and(x, y) } else { b.min(x, y) }),
    },
    AtenOp { names: &["aten.fmax.default"], rule: |cx, c| same2(cx, c, |b, x, y| numeric(b, x, y, BodyBuilder::max)) },
    AtenOp { names: &["aten.fmin.default"], rule: |cx, c| same2(cx, c, |b, x, y| numeric(b, x, y, BodyBuilder::min)) },
    AtenOp {
        names: &["aten.atan2.default", "aten.arctan2.default"],
        rule: |cx, c| float2(cx, c, |b, x, y| b.bin(Binary::Atan2, x, y)),
    },
    AtenOp { names: &["aten.hypot.default"], rule: |cx, c| float2(cx, c, complex::hypot) },
    AtenOp { names: &["aten.copysign.Tensor", "aten.copysign.Scalar"], rule: |cx, c| float2(cx, c, copysign) },
    AtenOp { names: &["aten.logaddexp.default"], rule: |cx, c| float2(cx, c, |b, x, y| log_add(b, x, y, false)) },
    AtenOp { names: &["aten.logaddexp2.default"], rule: |cx, c| float2(cx, c, |b, x, y| log_add(b, x, y, true)) },
    AtenOp {
        names: &[
            "aten.xlogy.Tensor",
            "aten.xlogy.Scalar_Self",
            "aten.xlogy.Scalar_Other",
            "aten.special_xlogy.default",
            "aten.special_xlogy.self_scalar",
            "aten.special_xlogy.other_scalar",
        ],
        rule: |cx, c| float2(cx, c, |b, x, y| x_times_log(b, x, y, Unary::Log)),
    },
    AtenOp {
        names: &[
            "aten.special_xlog1py.default",
            "aten.special_xlog1py.self_scalar",
            "aten.special_xlog1py.other_scalar",
        ],
        rule: |cx, c| float2(cx, c, |b, x, y| x_times_log(b, x, y, Unary::Log1p)),
    },
    AtenOp { names: &["aten.gcd.default"], rule: |cx, c| same2(cx, c, gcd) },
    AtenOp {
        names: &["aten.lcm.default"],
        rule: |cx, c| {
            same2(cx, c, |b, x, y| {
                let (g, zero, one) = (gcd(b, x, y), b.like(x, 0.0), b.like(x, 1.0));
                let none = b.eq(g, zero);
                let divisor = b.select(none, one, g);
                let q = b.div(x, divisor);
                let m = b.mul(q, y);
                let m = b.un(Unary::Abs, m);
                b.select(none, zero, m)
            })
        },
    },
    AtenOp { names: &["aten.heaviside.default"], rule: |cx, c| same2(cx, c, heaviside) },
    AtenOp {
        names: &["aten.ldexp.Tensor"],
        rule: |cx, c| {
            float2(cx, c, |b, x, y| {
                let p = b.un(Unary::Exp2, y);
                b.mul(x, p)
            })
        },
    },
    AtenOp { names: &["aten.eq.Tensor", "aten.eq.Scalar"], rule: |cx, c| equal(cx, c, false) },
    AtenOp {
        names: &["aten.ne.Tensor", "aten.ne.Scalar", "aten.not_equal.Tensor", "aten.not_equal.Scalar"],
        rule: |cx, c| equal(cx, c, true),
    },
    AtenOp {
        names: &["aten.lt.Tensor", "aten.lt.Scalar", "aten.less.Tensor", "aten.less.Scalar"],
        rule: |cx, c| compare(cx, c, BodyBuilder::lt),
    },
    AtenOp {
        names: &["aten.le.Tensor", "aten.le.Scalar", "aten.less_equal.Tensor", "aten.less_equal.Scalar"],
        rule: |cx, c| compare(cx, c, BodyBuilder::le),
    },
    AtenOp {
        names: &["aten.gt.Tensor", "aten.gt.Scalar", "aten.greater.Tensor", "aten.greater.Scalar"],
        rule: |cx, c| compare(cx, c, BodyBuilder::gt),
    },
    AtenOp {
        names: &["aten.ge.Tensor", "aten.ge.Scalar", "aten.greater_equal.Tensor", "aten.greater_equal.Scalar"],
        rule: |cx, c| compare(cx, c, BodyBuilder::ge),
    },
    AtenOp { names: &["aten.isclose.default"], rule: is_close },
    AtenOp { names: &["aten.logical_and.default"], rule: |cx, c| logical(cx, c, BodyBuilder::and) },
    AtenOp { names: &["aten.logical_or.default"], rule: |cx, c| logical(cx, c, BodyBuilder::or) },
    AtenOp { names: &["aten.logical_xor.default"], rule: |cx, c| logical(cx, c, BodyBuilder::xor) },
    AtenOp {
        names: &[
            "aten.bitwise_and.Tensor",
            "aten.bitwise_and.Scalar",
            "aten.bitwise_and.Scalar_Tensor",
            "aten.__and__.Tensor",
            "aten.__and__.Scalar",
        ],
        rule: |cx, c| same2(cx, c, BodyBuilder::and),
    },
    AtenOp {
        names: &[
            "aten.bitwise_or.Tensor",
            "aten.bitwise_or.Scalar",
            "aten.bitwise_or.Scalar_Tensor",
            "aten.__or__.Tensor",
            "aten.__or__.Scalar",
        ],
        rule: |cx, c| same2(cx, c, BodyBuilder::or),
    },
    AtenOp {
        names: &[
            "aten.bitwise_xor.Tensor",
            "aten.bitwise_xor.Scalar",
            "aten.bitwise_xor.Scalar_Tensor",
            "aten.__xor__.Tensor",
            "aten.__xor__.Scalar",
        ],
        rule: |cx, c| same2(cx, c, BodyBuilder::xor),
    },
    AtenOp {
        names: &[
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.bitwise_left_shift.Scalar_Tensor",
            "aten.__lshift__.Tensor",
            "aten.__lshift__.Scalar",
        ],
        rule: |cx, c| shift(cx, c, true),
    },
    AtenOp {
        names: &[
            "aten.bitwise_right_shift.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
            "aten.bitwise_right_shift.Scalar_Tensor",
            "aten.__rshift__.Tensor",
            "aten.__rshift__.Scalar",
        ],
        rule: |cx, c| shift(cx, c, false),
    },
    AtenOp {
        names: &["aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar"],
        rule: where_,
    },
    AtenOp {
        names: &["aten.clamp.default", "aten.clip.default", "aten.clamp.Tensor", "aten.clip.Tensor"],
        rule: clamp,
    },
    AtenOp { names: &["aten.clamp_min.default", "aten.clamp_min.Tensor"], rule: clamp },
    AtenOp { names: &["aten.clamp_max.default", "aten.clamp_max.Tensor"], rule: clamp },
    AtenOp { names: &["aten.lerp.Scalar", "aten.lerp.Tensor"], rule: lerp },
    AtenOp { names: &["aten.addcmul.default"], rule: |cx, c| addc(cx, c, BodyBuilder::mul) },
    AtenOp { names: &["aten.addcdiv.default"], rule: |cx, c| addc(cx, c, BodyBuilder::div) },
];

pub(super) fn operands(cx: &mut Cx, c: &Call<'_>) -> Result<[Val; 2], Diagnostic> {
    let [Some(a), Some(b)] = [0, 1].map(|i| c.node.inputs.get(i).map(|n| n.name.as_str())) else {
        return Err(bad_argument(format!("{} with less than two arguments", c.target)));
    };
    Ok([c.operand(cx, a)?, c.operand(cx, b)?])
}

/// Two operands in their common type.
fn same2(cx: &mut Cx, c: &Call<'_>, f: F2) -> Vals {
    let ab = operands(cx, c)?;
    let dtype = real_type(cx, c.target, &ab)?;
    Ok(vec![pointwise(cx, &ab, dtype, dtype, |b, x| f(b, x[0], x[1]))?.into()])
}

/// Two operands in their common floating type.
fn float2(cx: &mut Cx, c: &Call<'_>, f: F2) -> Vals {
    let ab = operands(cx, c)?;
    let dtype = to_float(real_type(cx, c.target, &ab)?);
    Ok(vec![pointwise(cx, &ab, dtype, dtype, |b, x| f(b, x[0], x[1]))?.into()])
}

fn compare(cx: &mut Cx, c: &Call<'_>, f: F2) -> Vals {
    let ab = operands(cx, c)?;
    let dtype = real_type(cx, c.target, &ab)?;
    // Order of truth values is that of 0 and 1.
    let compute = if dtype == DType::Bool { DType::U8 } else { dtype };
    Ok(vec![pointwise(cx, &ab, compute, DType::Bool, |b, x| f(b, x[0], x[1]))?.into()])
}

fn equal(cx: &mut Cx, c: &Call<'_>, negate: bool) -> Vals {
    let [a, b] = operands(cx, c)?;
    if result_type(cx, &[a.clone(), b.clone()])?.complex {
        return Ok(vec![complex::equal(cx, &a, &b, negate)?.into()]);
    }
    compare(cx, c, if negate { BodyBuilder::ne } else { BodyBuilder::eq })
}

/// `self ± alpha·other`, or `other − alpha·self`.
fn sum(cx: &mut Cx, c: &Call<'_>, minus: bool, reversed: bool) -> Vals {
    let [mut a, mut b] = operands(cx, c)?;
    let alpha = if c.has("alpha") { c.scalar("alpha")? } else { Val::Int(Dim::from(1)) };
    if reversed {
        std::mem::swap(&mut a, &mut b);
    }
    let common = result_type(cx, &[a.clone(), b.clone()])?;
    let plain = matches!(&alpha, Val::Int(d) if d.is(1)) || alpha == Val::Float(1.0);
    if common.complex {
        let b = if plain { b } else { complex::arithmetic(cx, Arithmetic::Mul, &b, &alpha)? };
        let op = if minus { Arithmetic::Sub } else { Arithmetic::Add };
        return Ok(vec![complex::arithmetic(cx, op, &a, &b)?]);
    }
    let out = pointwise(cx, &[a, b], common.dtype, common.dtype, |b, x| {
        let y = if plain {
            x[1]
        } else {
            let k = number_expr(b, &alpha, common.dtype.ty());
            if common.dtype == DType::Bool { b.and(x[1], k) } else { b.mul(x[1], k) }
        };
        match (common.dtype, minus) {
            (DType::Bool, _) => b.or(x[0], y),
            (_, true) => b.sub(x[0], y),
            (_, false) => b.add(x[0], y),
        }
    })?;
    Ok(vec![out.into()])
}

fn mul(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let [a, b] = operands(cx, c)?;
    if result_type(cx, &[a.clone(), b.clone()])?.complex {
        return Ok(vec![complex::arithmetic(cx, Arithmetic::Mul, &a, &b)?]);
    }
    same2(cx, c, |b, x, y| if b.ty(x) == Ty::Bool { b.and(x, y) } else { b.mul(x, y) })
}

fn true_div(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let [a, b] = operands(cx, c)?;
    if result_type(cx, &[a.clone(), b.clone()])?.complex {
        return Ok(vec![complex::arithmetic(cx, Arithmetic::Div, &a, &b)?]);
    }
    float2(cx, c, BodyBuilder::div)
}

fn div_mode(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.opt_str("rounding_mode")?.as_deref() {
        None => true_div(cx, c),
        Some("floor") => same2(cx, c, BodyBuilder::floor_div),
        Some("trunc") => same2(cx, c, |b, x, y| {
            let q = b.div(x, y);
            if b.ty(q).is_float() { b.un(Unary::Trunc, q) } else { q }
        }),
        Some(other) => Err(bad_argument(format!("rounding_mode=`{other}` is not supported"))),
    }
}

/// The other operand where one is NaN.
fn numeric(b: &mut BodyBuilder, x: ExprId, y: ExprId, f: F2) -> ExprId {
    if b.ty(x) == Ty::Bool {
        return f(b, x, y);
    }
    let (nan_x, nan_y, both) = (is_nan(b, x), is_nan(b, y), f(b, x, y));
    let v = b.select(nan_y, x, both);
    b.select(nan_x, y, v)
}

fn copysign(b: &mut BodyBuilder, x: ExprId, y: ExprId) -> ExprId {
    let size = b.un(Unary::Abs, x);
    let (minus, negative) = (b.neg(size), sign_bit(b, y));
    b.select(negative, minus, size)
}

/// ln(eˣ + eʸ), or with base 2.
fn log_add(b: &mut BodyBuilder, x: ExprId, y: ExprId, base2: bool) -> ExprId {
    let (large, small) = (b.max(x, y), b.min(x, y));
    let gap = b.sub(small, large);
    let e = b.un(if base2 { Unary::Exp2 } else { Unary::Exp }, gap);
    let log = b.un(Unary::Log1p, e);
    let log = if base2 {
        let k = ln2(b, x);
        b.div(log, k)
    } else {
        log
    };
    let sum = b.add(large, log);
    // Equal infinities have no gap.
    let (equal, inf) = (b.eq(x, y), b.un(Unary::IsInf, x));
    let edge = b.and(equal, inf);
    b.select(edge, x, sum)
}

fn x_times_log(b: &mut BodyBuilder, x: ExprId, y: ExprId, log: Unary) -> ExprId {
    let zero = b.like(x, 0.0);
    let (log, is_zero, nan) = (b.un(log, y), b.eq(x, zero), b.un(Unary::IsNan, y));
    let product = b.mul(x, log);
    let v = b.select(is_zero, zero, product);
    b.select(nan, y, v)
}

/// Euclid's algorithm, with as many steps as the largest numbers of the type need (Fibonacci neighbours).
fn gcd(b: &mut BodyBuilder, x: ExprId, y: ExprId) -> ExprId {
    let steps = if b.ty(x) == Ty::I64 { 91 } else { 46 };
    let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
    let (mut p, mut q) = (b.un(Unary::Abs, x), b.un(Unary::Abs, y));
    for _ in 0..steps {
        let done = b.eq(q, zero);
        let divisor = b.select(done, one, q);
        let r = b.rem(p, divisor);
        let next = b.select(done, p, q);
        (p, q) = (next, r);
    }
    p
}

fn heaviside(b: &mut BodyBuilder, x: ExprId, at_zero: ExprId) -> ExprId {
    if b.ty(x) == Ty::Bool {
        return b.or(x, at_zero);
    }
    let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
    let (is_zero, positive) = (b.eq(x, zero), b.lt(zero, x));
    let step = b.select(positive, one, zero);
    b.select(is_zero, at_zero, step)
}

fn is_close(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let ab = operands(cx, c)?;
    let (rtol, atol, nan_equal) = (c.float("rtol")?, c.float("atol")?, c.bool("equal_nan")?);
    let dtype = real_type(cx, c.target, &ab)?;
    let narrow = matches!(dtype, DType::Bool | DType::U8 | DType::I8 | DType::I16);
    let compute = match dtype.is_float() {
        true => dtype,
        false if narrow => DType::F32,
        false => DType::F64,
    };
    let out = pointwise(cx, &ab, compute, DType::Bool, |b, x| {
        let (gap, size) = (b.sub(x[0], x[1]), b.un(Unary::Abs, x[1]));
        let gap = b.un(Unary::Abs, gap);
        let (r, a) = (b.like(size, rtol), b.like(size, atol));
        let room = b.mul(r, size);
        let room = b.add(a, room);
        let (near, same) = (b.le(gap, room), b.eq(x[0], x[1]));
        let inf = b.un(Unary::IsInf, gap);
        let finite = b.not(inf);
        let near = b.and(near, finite);
        let close = b.or(near, same);
        if !nan_equal {
            return close;
        }
        let (p, q) = (b.un(Unary::IsNan, x[0]), b.un(Unary::IsNan, x[1]));
        let both = b.and(p, q);
        b.or(close, both)
    })?;
    Ok(vec![out.into()])
}

fn logical(cx: &mut Cx, c: &Call<'_>, f: F2) -> Vals {
    let truth = |cx: &mut Cx, v: Val| -> Result<Val, Diagnostic> {
        match v {
            Val::Complex { re, im } => {
                let not_zero = |b: &mut BodyBuilder, x: ExprId| {
                    let zero = b.like(x, 0.0);
                    b.ne(x, zero)
                };
                Ok(complex::test(cx, c.target, re, im, not_zero)?.swap_remove(0))
            }
            other => Ok(other),
        }
    };
    let [a, b] = operands(cx, c)?;
    let ab = [truth(cx, a)?, truth(cx, b)?];
    Ok(vec![pointwise(cx, &ab, DType::Bool, DType::Bool, |b, x| f(b, x[0], x[1]))?.into()])
}

/// Shifts by the width or more give 0, or −1 for negative numbers shifted right.
fn shift(cx: &mut Cx, c: &Call<'_>, left: bool) -> Vals {
    let ab = operands(cx, c)?;
    let dtype = real_type(cx, c.target, &ab)?;
    let bits = f64::from(dtype.size_bytes() * 8);
    let out = pointwise(cx, &ab, dtype, dtype, |b, x| {
        let (zero, last, width) = (b.like(x[0], 0.0), b.like(x[0], bits - 1.0), b.like(x[0], bits));
        let (low, high) = (b.le(zero, x[1]), b.lt(x[1], width));
        let fits = b.and(low, high);
        let by = b.select(fits, x[1], last);
        if left {
            let v = b.bin(Binary::Shl, x[0], by);
            b.select(fits, v, zero)
        } else {
            b.bin(Binary::Shr, x[0], by)
        }
    })?;
    Ok(vec![out.into()])
}

fn where_(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let cond = c.tensor(cx, "condition")?;
    let (a, b) = (c.operand(cx, "self")?, c.operand(cx, "other")?);
    let common = result_type(cx, &[a.clone(), b.clone()])?;
    let mask = cx.cast(cond, DType::Bool)?;
    if common.complex {
        let (ar, ai) = complex::parts_of(cx, &a, common.dtype)?;
        let (br, bi) = complex::parts_of(cx, &b, common.dtype)?;
        let pick = |cx: &mut Cx, x, y| cx.map3([mask, x, y], common.dtype, |b, x| b.select(x[0], x[1], x[2]));
        return Ok(vec![Val::Complex { re: pick(cx, ar, br)?, im: pick(cx, ai, bi)? }]);
    }
    let out = choose(cx, mask, &a, &b, common.dtype)?;
    Ok(vec![out.into()])
}

/// `mask ? a : b` in a type.
pub(super) fn choose(cx: &mut Cx, mask: crate::ir::ValueId, a: &Val, b: &Val, dtype: DType) -> super::cx::Built {
    let mut inputs = vec![mask];
    inputs.extend([a, b].into_iter().filter_map(|v| match v {
        Val::Tensor(x) => Some(*x),
        _ => None,
    }));
    let dtypes: Vec<DType> = inputs.iter().map(|&v| cx.tensor_dtype(v)).collect();
    cx.map_n(&inputs, dtype, |body, args| {
        let mut next = 1;
        let mut side = |body: &mut BodyBuilder, v: &Val| match v {
            Val::Tensor(_) => {
                next += 1;
                super::promote::converted(body, args[next - 1], dtypes[next - 1], dtype)
            }
            number => number_expr(body, number, dtype.ty()),
        };
        let (x, y) = (side(body, a), side(body, b));
        body.select(args[0], x, y)
    })
}

fn clamp(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.value(cx, "self")?;
    let bound = |cx: &mut Cx, name: &str| {
        let given = c.given(name).is_some_and(|a| *a != crate::import::program::Arg::None);
        if given { c.operand(cx, name).map(Some) } else { Ok(None) }
    };
    let (low, high) = (bound(cx, "min")?, bound(cx, "max")?);
    let mut all = vec![x];
    all.extend(low.iter().chain(&high).cloned());
    let dtype = real_type(cx, c.target, &all)?;
    let (has_low, has_high) = (low.is_some(), high.is_some());
    let out = pointwise(cx, &all, dtype, dtype, |b, x| {
        let v = if has_low { b.max(x[0], x[1]) } else { x[0] };
        if has_high { b.min(v, x[x.len() - 1]) } else { v }
    })?;
    Ok(vec![out.into()])
}

/// From the nearer end, as PyTorch does, so that both ends are exact.
fn lerp(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let all = [c.value(cx, "self")?, c.value(cx, "end")?, c.operand(cx, "weight")?];
    if result_type(cx, &all)?.complex {
        let gap = complex::arithmetic(cx, Arithmetic::Sub, &all[1], &all[0])?;
        let step = complex::arithmetic(cx, Arithmetic::Mul, &gap, &all[2])?;
        return Ok(vec![complex::arithmetic(cx, Arithmetic::Add, &all[0], &step)?]);
    }
    let dtype = real_type(cx, c.target, &all[..2])?;
    let out = pointwise(cx, &all, dtype, dtype, |b, x| {
        let (half, one) = (b.like(x[0], 0.5), b.like(x[0], 1.0));
        let gap = b.sub(x[1], x[0]);
        let step = b.mul(x[2], gap);
        let from_start = b.add(x[0], step);
        let rest = b.sub(one, x[2]);
        let back = b.mul(gap, rest);
        let from_end = b.sub(x[1], back);
        let size = b.un(Unary::Abs, x[2]);
        let near = b.lt(size, half);
        b.select(near, from_start, from_end)
    })?;
    Ok(vec![out.into()])
}

/// `self + value·(tensor1 op tensor2)`.
fn addc(cx: &mut Cx, c: &Call<'_>, f: F2) -> Vals {
    let all = [c.value(cx, "self")?, c.value(cx, "tensor1")?, c.value(cx, "tensor2")?];
    let value = c.scalar("value")?;
    let common = result_type(cx, &all)?;
    if common.complex {
        let op = if c.target.contains("div") { Arithmetic::Div } else { Arithmetic::Mul };
        let scaled = complex::arithmetic(cx, Arithmetic::Mul, &all[1], &value)?;
        let term = complex::arithmetic(cx, op, &scaled, &all[2])?;
        return Ok(vec![complex::arithmetic(cx, Arithmetic::Add, &all[0], &term)?]);
    }
    let dtype = common.dtype;
    let out = pointwise(cx, &all, dtype, dtype, |b, x| {
        let k = number_expr(b, &value, dtype.ty());
        let scaled = b.mul(k, x[1]);
        let term = f(b, scaled, x[2]);
        b.add(x[0], term)
    })?;
    Ok(vec![out.into()])
}
