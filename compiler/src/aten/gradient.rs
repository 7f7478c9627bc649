//! Derivatives along dimensions, by central differences and one-sided ones at both ends: `torch.gradient`.

use super::promote::{pointwise, promote, to_float};
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{Dim, ValueId};
use jvc_kernels::expr::ExprId;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp {
    names: &[
        "aten.gradient.array",
        "aten.gradient.scalararray",
        "aten.gradient.scalarint",
        "aten.gradient.scalarrayarray",
        "aten.gradient.scalarrayint",
        "aten.gradient.tensorarray",
        "aten.gradient.tensorarrayint",
    ],
    rule: gradient,
}];

type Built = Result<ValueId, Diagnostic>;

/// Where the points of a dimension are.
#[derive(Clone, Copy)]
enum Spacing {
    /// As far as this from each other.
    Even(f64),
    /// At these coordinates.
    At(ValueId),
}

/// A derivative for each dimension asked for. Edges of order 2 fit a parabola to three points, of order 1 a line to two.
fn gradient(cx: &mut Cx, c: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = c.value(cx, "self")?;
    let rank = c.rank(cx)?;
    let dims = if c.opt_ints("dim")?.is_some() { c.dim_indices("dim", rank)? } else { (0..rank).collect() };
    let spacings = match c.target {
        "aten.gradient.array" => vec![Spacing::Even(1.0); dims.len()],
        "aten.gradient.scalararray" | "aten.gradient.scalarint" => {
            vec![Spacing::Even(c.opt_float("spacing")?.unwrap_or(1.0)); dims.len()]
        }
        "aten.gradient.tensorarray" | "aten.gradient.tensorarrayint" => {
            c.tensors(cx, "spacing")?.into_iter().map(Spacing::At).collect()
        }
        _ => c.opt_floats("spacing")?.unwrap_or_default().into_iter().map(Spacing::Even).collect(),
    };
    if spacings.len() != dims.len() {
        return Err(bad_argument(format!("{}: {} spacings for {} dimensions", c.target, spacings.len(), dims.len())));
    }
    let order = c.int("edge_order")?;
    if !(1..=2).contains(&order) {
        return Err(bad_argument(format!("{}: `edge_order` is {order}, neither 1 nor 2", c.target)));
    }
    let along = |(dim, spacing)| {
        cx.each(&x, |cx, x| match spacing {
            Spacing::Even(step) => even(cx, Line::new(cx, x, dim, order)?, step),
            Spacing::At(points) => uneven(cx, Line::new(cx, x, dim, order)?, points),
        })
    };
    let out = dims.into_iter().zip(spacings).map(along).collect::<Result<_, _>>()?;
    Ok(vec![Val::List(out)])
}

/// A tensor as its derivative along a dimension reads it.
struct Line {
    x: ValueId,
    dim: usize,
    n: Dim,
    order: i64,
}

impl Line {
    fn new(cx: &Cx, x: ValueId, dim: usize, order: i64) -> Result<Line, Diagnostic> {
        let n = cx.shape(x).get(dim).cloned().unwrap_or(Dim::from(1));
        match n.as_const() {
            Some(few) if few <= order => {
                Err(bad_argument(format!("a gradient with edges of order {order} over {few} points")))
            }
            _ => Ok(Line { x, dim, n, order }),
        }
    }

    /// All points with one on each side, moved by `by` (−1, 0, 1).
    fn inner(&self, cx: &mut Cx, by: i64) -> Built {
        cx.slice(self.x, self.dim, Dim::from(1 + by), &self.n - &Dim::from(2), 1)
    }

    /// The points next to an end, from it inwards or, at the far one, towards it.
    fn edge<const N: usize>(&self, cx: &mut Cx, far: bool) -> Result<[ValueId; N], Diagnostic> {
        let start = if far { &self.n - &Dim::from(N as i64) } else { Dim::from(0) };
        let mut out = [self.x; N];
        for (i, v) in out.iter_mut().enumerate() {
            *v = cx.slice(self.x, self.dim, &start + &Dim::from(i as i64), Dim::from(1), 1)?;
        }
        Ok(out)
    }

    fn joined(&self, cx: &mut Cx, parts: [ValueId; 3]) -> Built {
        let [first, _, last] = parts;
        if self.n.is(2) { cx.concat(&[first, last], self.dim) } else { cx.concat(&parts, self.dim) }
    }
}

fn even(cx: &mut Cx, line: Line, step: f64) -> Built {
    let dtype = to_float(cx.tensor_dtype(line.x));
    let over = |cx: &mut Cx, v: ValueId, by: f64| {
        pointwise(cx, &[v.into()], dtype, dtype, |b, x| {
            let by = b.like(x[0], by);
            b.div(x[0], by)
        })
    };
    let (before, after) = (line.inner(cx, -1)?, line.inner(cx, 1)?);
    let gap = cx.sub_values(after, before)?;
    let slope = over(cx, gap, step)?;
    let inner = over(cx, slope, 2.0)?;
    let end = |cx: &mut Cx, far: bool| {
        if line.order == 1 {
            let [p, q] = line.edge(cx, far)?;
            let gap = cx.sub_values(q, p)?;
            return over(cx, gap, step);
        }
        let [p, q, r] = line.edge(cx, far)?;
        // In the tensor's own type, where small integers wrap.
        let twice = cx.scale(q, 2.0)?;
        let [p_by, r_by] = if far { [0.5, 1.5] } else { [-1.5, -0.5] };
        let bent = pointwise(cx, &[p.into(), twice.into(), r.into()], dtype, dtype, |b, x| {
            let (p_by, r_by) = (b.like(x[0], p_by), b.like(x[2], r_by));
            let (p, r) = (b.mul(p_by, x[0]), b.mul(r_by, x[2]));
            let near = if far { b.sub(p, x[1]) } else { b.add(p, x[1]) };
            b.add(near, r)
        })?;
        over(cx, bent, step)
    };
    let parts = [end(cx, false)?, inner, end(cx, true)?];
    line.joined(cx, parts)
}

/// Weights of three neighbours, of whom the second is `d` behind the first and the third `e` behind the second.
type Weights = fn(&mut BodyBuilder, ExprId, ExprId) -> [[ExprId; 2]; 3];

fn uneven(cx: &mut Cx, line: Line, points: ValueId) -> Built {
    if cx.rank(points) != 1 {
        return Err(bad_argument(format!("the points of a gradient are {}, not on a line", cx.ty(points))));
    }
    let weight_type = to_float(cx.tensor_dtype(points));
    let dtype = promote(cx.tensor_dtype(line.x), weight_type);
    let rest = &line.n - &Dim::from(1);
    let (left, right) =
        (cx.slice(points, 0, Dim::from(0), rest.clone(), 1)?, cx.slice(points, 0, Dim::from(1), rest.clone(), 1)?);
    let steps = cx.sub_values(right, left)?;
    let mut shape = vec![Dim::from(1); cx.rank(line.x)];
    shape[line.dim] = rest;
    let steps = cx.reshape(steps, shape)?;
    let pick = |cx: &mut Cx, start: Dim, len: Dim| cx.slice(steps, line.dim, start, len, 1);
    let sum = |cx: &mut Cx, v: [ValueId; 3], d: ValueId, e: ValueId, weights: Weights| {
        let mut terms = vec![];
        for (i, v) in v.into_iter().enumerate() {
            // Above and below the line in the points' own type, in which integers wrap.
            let above = cx.map2(d, e, cx.tensor_dtype(d), |b, d, e| weights(b, d, e)[i][0])?;
            let below = cx.map2(d, e, cx.tensor_dtype(d), |b, d, e| weights(b, d, e)[i][1])?;
            let weight =
                pointwise(cx, &[above.into(), below.into()], weight_type, weight_type, |b, x| b.div(x[0], x[1]))?;
            terms.push(pointwise(cx, &[weight.into(), v.into()], dtype, dtype, |b, x| b.mul(x[0], x[1]))?);
        }
        let two = cx.add_values(terms[0], terms[1])?;
        cx.add_values(two, terms[2])
    };
    let m = &line.n - &Dim::from(2);
    let (d, e) = (pick(cx, Dim::from(0), m.clone())?, pick(cx, Dim::from(1), m.clone())?);
    let v = [line.inner(cx, -1)?, line.inner(cx, 0)?, line.inner(cx, 1)?];
    let inner = sum(cx, v, d, e, inner_weights)?;
    let end = |cx: &mut Cx, far: bool| {
        let one = Dim::from(1);
        if line.order == 1 {
            let [p, q] = line.edge(cx, far)?;
            let (gap, step) = (cx.sub_values(q, p)?, pick(cx, if far { m.clone() } else { Dim::from(0) }, one)?);
            return pointwise(cx, &[gap.into(), step.into()], dtype, dtype, |b, x| b.div(x[0], x[1]));
        }
        let start = if far { &m - &one } else { Dim::from(0) };
        let (d, e) = (pick(cx, start.clone(), one.clone())?, pick(cx, &start + &one, one)?);
        let v = line.edge(cx, far)?;
        sum(cx, v, d, e, if far { last_weights } else { first_weights })
    };
    let parts = [end(cx, false)?, inner, end(cx, true)?];
    line.joined(cx, parts)
}

/// The three denominators d·(d + e), d·e, e·(d + e), and d + e.
fn products(b: &mut BodyBuilder, d: ExprId, e: ExprId) -> ([ExprId; 3], ExprId) {
    let both = b.add(d, e);
    ([b.mul(d, both), b.mul(d, e), b.mul(e, both)], both)
}

fn inner_weights(b: &mut BodyBuilder, d: ExprId, e: ExprId) -> [[ExprId; 2]; 3] {
    let ([p, q, r], _) = products(b, d, e);
    [[b.neg(e), p], [b.sub(e, d), q], [d, r]]
}

fn first_weights(b: &mut BodyBuilder, d: ExprId, e: ExprId) -> [[ExprId; 2]; 3] {
    let ([p, q, r], both) = products(b, d, e);
    let far = b.add(d, both);
    [[b.neg(far), p], [both, q], [b.neg(d), r]]
}

fn last_weights(b: &mut BodyBuilder, d: ExprId, e: ExprId) -> [[ExprId; 2]; 3] {
    let ([p, q, r], both) = products(b, d, e);
    let far = b.add(e, both);
    [[e, p], [b.neg(both), q], [far, r]]
}
