//! Conversions, copies, and operators that change nothing at inference.

use super::args::Call;
use super::complex;
use super::cx::Cx;
use super::view::shape_of;
use super::{AtenOp, Val, bad_argument, unsupported_attribute};
use crate::import::program::ScalarType;
use crate::report::Diagnostic;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &[
            "aten.to.dtype",
            "aten.to.dtype_layout",
            "aten.to.device",
            "aten.to.prim_Device",
            "aten.to.prim_dtype",
            "aten._to_copy.default",
        ],
        rule: |cx, c| {
            let to = if c.has("dtype") { c.dtype("dtype")? } else { None };
            to_type(cx, c, to)
        },
    },
    AtenOp {
        names: &["aten.to.other", "aten.to.prim_other", "aten.type_as.default"],
        rule: |cx, c| {
            let to = c.meta(0).map(|m| m.dtype);
            to_type(cx, c, to)
        },
    },
    AtenOp {
        names: &[
            "aten.clone.default",
            "aten.contiguous.default",
            "aten.detach.default",
            "aten.detach_copy.default",
            "aten.alias.default",
            "aten.alias_copy.default",
            "aten.lift.default",
            "aten.lift_fresh.default",
            "aten.lift_fresh_copy.default",
            "aten.positive.default",
            "aten.requires_grad.default",
            "aten.pin_memory.default",
        ],
        rule: |cx, c| Ok(vec![c.value(cx, c.first())?]),
    },
    AtenOp { names: &["aten.copy.default"], rule: copy },
    AtenOp { names: &["aten.fill.Tensor"], rule: fill_tensor },
    AtenOp { names: &["aten.view.dtype"], rule: view_dtype },
    AtenOp {
        names: &[
            "aten._assert_tensor_metadata.default",
            "aten._assert_scalar.default",
            "aten._assert_async.default",
            "aten._assert_async.msg",
            "aten._functional_assert_async.msg",
            "aten._functional_assert_scalar.default",
            "aten.sym_constrain_range.default",
            "aten.sym_constrain_range_for_size.default",
            "aten._functional_sym_constrain_range.default",
        ],
        rule: checked,
    },
];

/// Checks of the export's own: none at run time. The functional ones pass a token on.
fn checked(cx: &mut Cx, c: &Call<'_>) -> Vals {
    if c.given("dep_token").is_some() { Ok(vec![c.value(cx, "dep_token")?]) } else { Ok(vec![]) }
}

fn to_type(cx: &mut Cx, c: &Call<'_>, to: Option<ScalarType>) -> Vals {
    let v = c.value(cx, c.first())?;
    Ok(vec![match to {
        Some(to) => complex::convert(cx, &v, to)?,
        None => v,
    }])
}

/// `src` in the type and shape of `self`.
fn copy(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (base, src) = (c.value(cx, "self")?, c.value(cx, "src")?);
    let shape = shape_of(cx, &base)?;
    let to = |cx: &mut Cx, v: &Val, like| -> Result<Val, Diagnostic> {
        let dtype = cx.tensor_dtype(like);
        cx.each(v, |cx, x| {
            let x = cx.cast(x, dtype)?;
            cx.broadcast_to(x, &shape)
        })
    };
    match (&base, src) {
        (Val::Tensor(b), Val::Complex { re, .. }) => Ok(vec![to(cx, &Val::Tensor(re), *b)?]),
        (Val::Complex { re, .. }, src) => {
            let dtype = cx.tensor_dtype(*re);
            let src = complex::to_complex(cx, &src, dtype)?;
            Ok(vec![to(cx, &src, *re)?])
        }
        (Val::Tensor(b), src) => Ok(vec![to(cx, &src, *b)?]),
        _ => Err(bad_argument("copy to a number")),
    }
}

fn fill_tensor(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (base, value) = (c.tensor(cx, "self")?, c.tensor(cx, "value")?);
    let ty = cx.ty(base).clone();
    let value = cx.cast(value, ty.dtype)?;
    Ok(vec![cx.broadcast_to(value, &ty.shape)?.into()])
}

/// Reinterpreted bits: only where the type stays.
fn view_dtype(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let same = c.dtype("dtype")? == c.arg_meta("self").map(|m| m.dtype);
    if !same {
        return Err(unsupported_attribute(
            "bit-view",
            "reinterpreting the bits of elements as another type is not supported",
        ));
    }
    Ok(vec![c.value(cx, "self")?])
}
