//! Square linear systems: inverse, determinant, solving, Cholesky factors, triangular substitution.
//!
//! An elimination is laid out step by step, two kernels each: the pivot (largest entry of the column, as LAPACK picks it), then the
//! exchange and elimination of all rows of all matrices of a batch at once. So sizes are literals up to [`MOST_ROWS`]. PyTorch raises an
//! error for a singular matrix; a program of ours gives infinities and NaN there, and the `info` of the `_ex` forms.

use super::cx::Built;
use super::matmul::multiply;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument, unsupported_attribute, unsupported_dtype};
use crate::ir::{DType, Dim, Shape, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Combine;

/// Rows of the largest matrix.
const MOST_ROWS: i64 = 64;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.linalg_inv.default", "aten.inverse.default", "aten.linalg_inv_ex.default"], rule: inverse },
    AtenOp {
        names: &["aten.linalg_det.default", "aten.det.default", "aten._linalg_det.default"],
        rule: |cx, c| {
            let done = eliminated(cx, c, "A")?;
            Ok(vec![done.determinant(cx)?.into(), Val::None, Val::None])
        },
    },
    AtenOp {
        names: &["aten.linalg_slogdet.default", "aten.slogdet.default", "aten._linalg_slogdet.default"],
        rule: |cx, c| {
            let (sign, log) = eliminated(cx, c, "A")?.sign_and_log(cx)?;
            Ok(vec![sign.into(), log.into(), Val::None, Val::None])
        },
    },
    AtenOp { names: &["aten.logdet.default"], rule: logdet },
    AtenOp {
        names: &["aten.linalg_solve.default", "aten.linalg_solve_ex.default", "aten._linalg_solve_ex.default"],
        rule: solve,
    },
    AtenOp {
        names: &["aten.linalg_cholesky.default", "aten.linalg_cholesky_ex.default", "aten.cholesky.default"],
        rule: cholesky,
    },
    AtenOp { names: &["aten.cholesky_solve.default", "aten.cholesky_inverse.default"], rule: cholesky_solve },
    AtenOp { names: &["aten.triangular_solve.default"], rule: triangular_solve },
    AtenOp { names: &["aten.linalg_solve_triangular.default"], rule: solve_triangular },
];

/// A square matrix or a batch of them as `[batch, n, n]`.
struct Matrices {
    v: ValueId,
    lead: Shape,
    n: i64,
}

impl Matrices {
    fn of(cx: &mut Cx, c: &Call<'_>, v: ValueId) -> Result<Matrices, Diagnostic> {
        let (shape, dtype) = (cx.shape(v), cx.tensor_dtype(v));
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(unsupported_dtype(format!("{} of {dtype} is not supported (only f32 and f64)", c.target)));
        }
        let [lead @ .., rows, columns] = &shape[..] else {
            return Err(bad_argument(format!("{} of {}", c.target, cx.ty(v))));
        };
        let n = rows.as_const().filter(|n| *n <= MOST_ROWS && columns == rows).ok_or_else(|| {
            let text = format!("{} of {}: only square matrices of at most {MOST_ROWS} rows", c.target, cx.ty(v));
            unsupported_attribute("matrix-size", text)
        })?;
        if n > 8 {
            let text = format!("{} of {n} rows takes {n} steps of two kernels, one after another", c.target);
            cx.b.graph.slow.push((c.node.name.clone(), text));
        }
        let v = cx.reshape(v, vec![product(lead), n.into(), n.into()])?;
        Ok(Matrices { v, lead: lead.to_vec(), n })
    }

    /// Restores the batch dimensions of `[batch, rest…]`.
    fn unflatten(&self, cx: &mut Cx, v: ValueId) -> Built {
        let shape = [&self.lead[..], &cx.shape(v)[1..]].concat();
        cx.reshape(v, shape)
    }
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::from(1), |p, d| &p * d)
}

/// Pivots found on the way, each `[batch]`, and the matrices with what stood beside them.
struct Eliminated {
    of: Matrices,
    rest: ValueId,
    pivots: Vec<ValueId>,
    /// i64 rows that the pivots came from.
    rows: Vec<ValueId>,
}

/// Gauss-Jordan elimination of `[a | beside]`: `beside` becomes a⁻¹·beside.
fn eliminate(cx: &mut Cx, of: Matrices, beside: Option<ValueId>) -> Result<Eliminated, Diagnostic> {
    let mut m = match beside {
        Some(b) => cx.concat(&[of.v, b], 2)?,
        None => of.v,
    };
    let (mut pivots, mut rows) = (vec![], vec![]);
    for k in 0..of.n {
        let row = pivot_row(cx, m, k)?;
        let dtype = cx.tensor_dtype(m);
        pivots.push(cx.compute(vec![cx.size(m, 0)], dtype, &[m, row], |b, at| {
            let (p, k) = (pivot(b, at[0]), b.int(k));
            b.load(0, &[at[0], p, k])
        })?);
        m = step(cx, m, row, k)?;
        rows.push(row);
    }
    Ok(Eliminated { of, rest: m, pivots, rows })
}

/// Position `[batch]` of the largest entry of column k from row k on.
fn pivot_row(cx: &mut Cx, m: ValueId, k: i64) -> Built {
    let (shape, dtype) = (cx.shape(m), cx.tensor_dtype(m));
    let sizes = cx.compute(vec![shape[0].clone(), shape[1].clone()], dtype, &[m], |b, at| {
        let (column, none) = (b.int(k), b.lit(dtype.ty(), -1.0));
        let v = b.load(0, &[at[0], at[1], column]);
        let (size, done) = (b.un(Unary::Abs, v), b.lt(at[1], column));
        b.select(done, none, size)
    })?;
    cx.reduce(sizes, Combine::ArgMax, &[1], false, DType::I64)
}

/// The pivot's row (operand 1) as an index.
fn pivot(b: &mut BodyBuilder, batch: ExprId) -> ExprId {
    let p = b.load(1, &[batch]);
    b.cast(Ty::I32, p)
}

/// Exchanges row k and the pivot's, scales row k, and takes its multiples from all others. A column of zeros stays.
fn step(cx: &mut Cx, m: ValueId, row: ValueId, k: i64) -> Built {
    let (shape, dtype) = (cx.shape(m), cx.tensor_dtype(m));
    cx.compute(shape, dtype, &[m, row], |b, at| {
        let (batch, i, j) = (at[0], at[1], at[2]);
        let (p, k) = (pivot(b, batch), b.int(k));
        let (is_k, is_p) = (b.eq(i, k), b.eq(i, p));
        let other = b.select(is_p, k, i);
        let source = b.select(is_k, p, other);
        let (x, top) = (b.load(0, &[batch, source, j]), b.load(0, &[batch, p, j]));
        let (left, pivot) = (b.load(0, &[batch, source, k]), b.load(0, &[batch, p, k]));
        let zero = b.like(x, 0.0);
        let scaled = b.div(top, pivot);
        let product = b.mul(left, scaled);
        let value = b.sub(x, product);
        let (nothing, clear) = (b.eq(left, zero), b.eq(j, k));
        let value = b.select(clear, zero, value);
        let value = b.select(nothing, x, value);
        b.select(is_k, scaled, value)
    })
}

fn eliminated(cx: &mut Cx, c: &Call<'_>, name: &str) -> Result<Eliminated, Diagnostic> {
    let name = if c.given(name).is_some() { name } else { c.first() };
    let v = c.tensor(cx, name)?;
    let of = Matrices::of(cx, c, v)?;
    eliminate(cx, of, None)
}

impl Eliminated {
    /// 1 or −1 for an even or odd number of exchanges, times the product of `f(pivot)`.
    fn product(&self, cx: &mut Cx, f: impl Fn(&mut BodyBuilder, ExprId) -> ExprId) -> Built {
        let dtype = cx.tensor_dtype(self.rest);
        let batch = cx.size(self.rest, 0);
        let mut total = cx.full(vec![batch], dtype, 1.0)?;
        for (k, (&pivot, &row)) in self.pivots.iter().zip(&self.rows).enumerate() {
            total = cx.map_n(&[total, pivot, row], dtype, |b, x| {
                let here = b.like(x[2], k as f64);
                let factor = f(b, x[1]);
                let (stays, minus) = (b.eq(x[2], here), b.neg(factor));
                let factor = b.select(stays, factor, minus);
                b.mul(x[0], factor)
            })?;
        }
        self.of.unflatten(cx, total)
    }

    fn determinant(&self, cx: &mut Cx) -> Built {
        self.product(cx, |_, p| p)
    }

    fn sign_and_log(&self, cx: &mut Cx) -> Result<(ValueId, ValueId), Diagnostic> {
        let sign = self.product(cx, |b, p| {
            let (zero, one, minus) = (b.like(p, 0.0), b.like(p, 1.0), b.like(p, -1.0));
            let (below, above) = (b.lt(p, zero), b.lt(zero, p));
            let none = b.select(below, minus, p);
            b.select(above, one, none)
        })?;
        let dtype = cx.tensor_dtype(self.rest);
        let batch = cx.size(self.rest, 0);
        let mut total = cx.full(vec![batch], dtype, 0.0)?;
        for &pivot in &self.pivots {
            total = cx.map2(total, pivot, dtype, |b, sum, p| {
                let size = b.un(Unary::Abs, p);
                let log = b.un(Unary::Log, size);
                b.add(sum, log)
            })?;
        }
        Ok((sign, self.of.unflatten(cx, total)?))
    }

    /// Position (from 1) of the first pivot that is 0, else 0.
    fn info(&self, cx: &mut Cx) -> Built {
        let bad = |b: &mut BodyBuilder, p: ExprId| {
            let zero = b.like(p, 0.0);
            b.eq(p, zero)
        };
        first_bad(cx, &self.of, &self.pivots, bad)
    }
}

fn first_bad(
    cx: &mut Cx,
    of: &Matrices,
    pivots: &[ValueId],
    bad: impl Fn(&mut BodyBuilder, ExprId) -> ExprId,
) -> Built {
    let batch = cx.size(of.v, 0);
    let mut info = cx.full(vec![batch], DType::I32, 0.0)?;
    for (k, &pivot) in pivots.iter().enumerate().rev() {
        info = cx.map2(info, pivot, DType::I32, |b, later, p| {
            let (here, is_bad) = (b.like(later, (k + 1) as f64), bad(b, p));
            b.select(is_bad, here, later)
        })?;
    }
    of.unflatten(cx, info)
}

fn logdet(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (sign, log) = eliminated(cx, c, "self")?.sign_and_log(cx)?;
    let out = cx.map2(sign, log, cx.tensor_dtype(log), |b, sign, log| {
        let (zero, nan) = (b.like(sign, 0.0), b.like(sign, f64::NAN));
        let negative = b.lt(sign, zero);
        b.select(negative, nan, log)
    })?;
    Ok(vec![out.into()])
}

/// Ones on the diagonal, in the shape of `like`.
fn unit(cx: &mut Cx, like: ValueId) -> Built {
    let (shape, dtype) = (cx.shape(like), cx.tensor_dtype(like));
    cx.compute(shape, dtype, &[], |b, at| {
        let same = b.eq(at[1], at[2]);
        b.cast(dtype.ty(), same)
    })
}

fn inverse(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.tensor(cx, c.first())?;
    let (inverse, info) = inverted(cx, c, v)?;
    Ok(vec![inverse.into(), info.into()])
}

/// a⁻¹, and the `info` of `inv_ex`.
pub(super) fn inverted(cx: &mut Cx, c: &Call<'_>, v: ValueId) -> Result<(ValueId, ValueId), Diagnostic> {
    let of = Matrices::of(cx, c, v)?;
    let n = of.n;
    let unit = unit(cx, of.v)?;
    let done = eliminate(cx, of, Some(unit))?;
    let right = cx.slice(done.rest, 2, n.into(), n.into(), 1)?;
    Ok((done.of.unflatten(cx, right)?, done.info(cx)?))
}

/// `a` and `b` with the same batch dimensions, flattened to one; columns of `b` as its last dimension.
fn paired(cx: &mut Cx, c: &Call<'_>, a: ValueId, b: ValueId) -> Result<(Matrices, ValueId), Diagnostic> {
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    if shape_a.len() < 2 || shape_b.len() < 2 {
        return Err(bad_argument(format!("{} of {} and {}", c.target, cx.ty(a), cx.ty(b))));
    }
    let (rank_a, rank_b) = (shape_a.len() - 2, shape_b.len() - 2);
    let lead = super::cx::broadcast_shapes(&shape_a[..rank_a].to_vec(), &shape_b[..rank_b].to_vec())?;
    let a = cx.broadcast_to(a, &[&lead[..], &shape_a[rank_a..]].concat())?;
    let b = cx.broadcast_to(b, &[&lead[..], &shape_b[rank_b..]].concat())?;
    let of = Matrices::of(cx, c, a)?;
    let flat = vec![product(&lead), shape_b[rank_b].clone(), shape_b[rank_b + 1].clone()];
    Ok((of, cx.reshape(b, flat)?))
}

fn transposed(cx: &mut Cx, v: ValueId) -> Built {
    let rank = cx.rank(v);
    cx.transpose(v, rank - 2, rank - 1)
}

/// Ax = B, or with `left` false xA = B. A B of one dimension less than A, in the shape of its rows, is a batch of vectors.
fn solve(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (a, b, left) = (c.tensor(cx, "A")?, c.tensor(cx, "B")?, c.bool("left")?);
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    let vector = shape_b.len() == 1 || (shape_b.len() + 1 == shape_a.len() && shape_a[..shape_b.len()] == shape_b[..]);
    let b = if vector { cx.unsqueeze(b, shape_b.len())? } else { b };
    let (a, b) = if left { (a, b) } else { (transposed(cx, a)?, if vector { b } else { transposed(cx, b)? }) };
    let (of, b) = paired(cx, c, a, b)?;
    let (n, columns) = (of.n, cx.size(b, 2));
    let done = eliminate(cx, of, Some(b))?;
    let x = cx.slice(done.rest, 2, n.into(), columns, 1)?;
    let x = done.of.unflatten(cx, x)?;
    let x = match (vector, left) {
        (true, _) => cx.squeeze(x, cx.rank(x) - 1)?,
        (false, false) => transposed(cx, x)?,
        (false, true) => x,
    };
    let info = done.info(cx)?;
    // The factors are not kept; a program that reads them is refused where it does.
    Ok(match c.target {
        "aten._linalg_solve_ex.default" => vec![x.into(), Val::None, Val::None, info.into()],
        _ => vec![x.into(), info.into()],
    })
}

/// L of A = L·Lᵀ, column by column; `upper` reads and gives the other triangle.
fn cholesky(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (v, upper) = (c.tensor(cx, "self")?, c.bool("upper")?);
    let v = if upper { transposed(cx, v)? } else { v };
    let of = Matrices::of(cx, c, v)?;
    let (mut m, mut pivots) = (of.v, vec![]);
    let (shape, dtype) = (cx.shape(m), cx.tensor_dtype(m));
    for k in 0..of.n {
        pivots.push(cx.compute(vec![shape[0].clone()], dtype, &[m], |b, at| {
            let k = b.int(k);
            b.load(0, &[at[0], k, k])
        })?);
        m = cx.compute(shape.clone(), dtype, &[m], |b, at| column_step(b, at, k))?;
    }
    let info = first_bad(cx, &of, &pivots, |b, p| {
        let zero = b.like(p, 0.0);
        let fine = b.lt(zero, p);
        b.not(fine)
    })?;
    let l = triangle(cx, m, false)?;
    let l = of.unflatten(cx, l)?;
    let l = if upper { transposed(cx, l)? } else { l };
    Ok(vec![l.into(), info.into()])
}

fn column_step(b: &mut BodyBuilder, at: &[ExprId], k: i64) -> ExprId {
    let (batch, i, j, k) = (at[0], at[1], at[2], b.int(k));
    let (x, d) = (b.load(0, &[batch, i, j]), b.load(0, &[batch, k, k]));
    let (p, q) = (b.load(0, &[batch, i, k]), b.load(0, &[batch, j, k]));
    let root = b.un(Unary::Sqrt, d);
    let scaled = b.div(x, root);
    let (p, q) = (b.div(p, root), b.div(q, root));
    let product = b.mul(p, q);
    let rest = b.sub(x, product);
    let (row_k, column_k) = (b.eq(i, k), b.eq(j, k));
    let (below, right) = (b.lt(k, i), b.lt(k, j));
    let (diagonal, inner) = (b.and(row_k, column_k), b.and(below, right));
    let first = b.and(below, column_k);
    let value = b.select(inner, rest, x);
    let value = b.select(first, scaled, value);
    b.select(diagonal, root, value)
}

/// The lower or upper triangle of `[batch, n, n]`; zeros elsewhere.
fn triangle(cx: &mut Cx, m: ValueId, upper: bool) -> Built {
    let (shape, dtype) = (cx.shape(m), cx.tensor_dtype(m));
    cx.compute(shape, dtype, &[m], |b, at| {
        let (x, keep) = (b.load(0, at), if upper { b.le(at[1], at[2]) } else { b.le(at[2], at[1]) });
        let zero = b.like(x, 0.0);
        b.select(keep, x, zero)
    })
}

/// Substitution: `b` becomes the solution of a·x = b, from the first row (lower) or the last (upper). What is beyond the triangle of `a`
/// is not read.
fn substitute(cx: &mut Cx, of: &Matrices, b: ValueId, upper: bool, unit_diagonal: bool) -> Built {
    let (shape, dtype) = (cx.shape(b), cx.tensor_dtype(b));
    let order: Vec<i64> = if upper { (0..of.n).rev().collect() } else { (0..of.n).collect() };
    order.into_iter().try_fold(b, |x, k| {
        cx.compute(shape.clone(), dtype, &[of.v, x], |b, at| {
            let (batch, i, j, k) = (at[0], at[1], at[2], b.int(k));
            let (x, top) = (b.load(1, at), b.load(1, &[batch, k, j]));
            let (factor, d) = (b.load(0, &[batch, i, k]), b.load(0, &[batch, k, k]));
            let solved = if unit_diagonal { top } else { b.div(top, d) };
            let product = b.mul(factor, solved);
            let rest = b.sub(x, product);
            let (is_k, later) = (b.eq(i, k), if upper { b.lt(i, k) } else { b.lt(k, i) });
            let value = b.select(later, rest, x);
            b.select(is_k, solved, value)
        })
    })
}

fn triangular_solve(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (b, given) = (c.tensor(cx, "self")?, c.tensor(cx, "A")?);
    let (upper, transpose, unit) = (c.bool("upper")?, c.bool("transpose")?, c.bool("unitriangular")?);
    let a = if transpose { transposed(cx, given)? } else { given };
    let (of, b) = paired(cx, c, a, b)?;
    let x = substitute(cx, &of, b, upper != transpose, unit)?;
    let copy = [&of.lead[..], &cx.shape(given)[cx.rank(given) - 2..]].concat();
    let copy = cx.broadcast_to(given, &copy)?;
    Ok(vec![of.unflatten(cx, x)?.into(), copy.into()])
}

fn solve_triangular(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (a, b) = (c.tensor(cx, "self")?, c.tensor(cx, "B")?);
    let (upper, left, unit) = (c.bool("upper")?, c.bool("left")?, c.bool("unitriangular")?);
    let (a, b) = if left { (a, b) } else { (transposed(cx, a)?, transposed(cx, b)?) };
    let (of, b) = paired(cx, c, a, b)?;
    let x = substitute(cx, &of, b, upper == left, unit)?;
    let x = of.unflatten(cx, x)?;
    Ok(vec![if left { x } else { transposed(cx, x)? }.into()])
}

/// A·x = b, or A⁻¹, of a Cholesky factor of A.
fn cholesky_solve(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (first, upper) = (c.tensor(cx, "self")?, c.bool("upper")?);
    let (factor, b) = match c.has("input2") {
        true => (c.tensor(cx, "input2")?, first),
        false => {
            let of = Matrices::of(cx, c, first)?;
            let one = unit(cx, of.v)?;
            (first, of.unflatten(cx, one)?)
        }
    };
    let lower = if upper { transposed(cx, factor)? } else { factor };
    let (of, b) = paired(cx, c, lower, b)?;
    let y = substitute(cx, &of, b, false, false)?;
    let turned = Matrices { v: transposed(cx, of.v)?, lead: of.lead.clone(), n: of.n };
    let x = substitute(cx, &turned, y, true, false)?;
    Ok(vec![of.unflatten(cx, x)?.into()])
}

/// aⁿ for n ≥ 1 by repeated squaring.
pub(super) fn power(cx: &mut Cx, a: ValueId, n: i64) -> Built {
    let (mut result, mut square, mut left) = (None, a, n);
    loop {
        if left & 1 == 1 {
            result = Some(match result {
                Some(r) => multiply(cx, r, square)?,
                None => square,
            });
        }
        left >>= 1;
        match result {
            Some(r) if left == 0 => return Ok(r),
            _ => square = multiply(cx, square, square)?,
        }
    }
}
