//! Affine quantisation as torchao and PT2E exports write it: `(q − zero point) · scale`, per tensor, channel or block.
//!
//! A dequantisation is one `Map` over the stored integers, so that it fuses into whatever multiplies, looks up or convolves with the
//! weight; nothing stores the floats. Zero points lie in the range of `q`, as every quantiser has them: for integers of 8 bits the
//! difference is then exact in every output type.

use super::cx::{Built, Cx, ir_dtype};
use super::matmul::{multiply, transposed};
use super::promote::{converted, promote};
use super::{
    AtenOp, BodyBuilder, Call, Val, bad_argument, unsupported_attribute, unsupported_dtype, unsupported_shape,
};
use crate::import::program::ScalarType;
use crate::ir::{DType, Dim, Shape, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &[
            "quantized_decomposed.dequantize_per_tensor.default",
            "quantized_decomposed.dequantize_per_tensor.tensor",
            "quantized_decomposed.dequantize_per_tensor.tensor2",
        ],
        rule: |cx, c| {
            let (q, scale, zero) = (stored(cx, c, "dtype")?, c.operand(cx, "scale")?, c.operand(cx, "zero_point")?);
            let grid = Grid::per_tensor(cx, q);
            dequantize(cx, q, (scale, zero), &grid, out_type(c, "out_dtype")?, Domain::Integer)
        },
    },
    AtenOp {
        names: &["quantized_decomposed.dequantize_per_channel.default"],
        rule: |cx, c| {
            let (q, qparams) = (stored(cx, c, "dtype")?, (c.value(cx, "scales")?, c.opt_value(cx, "zero_points")?));
            let grid = Grid::per_channel(cx, q, c.dim_index("axis", cx.rank(q))?);
            dequantize(cx, q, qparams, &grid, out_type(c, "out_dtype")?, Domain::Integer)
        },
    },
    AtenOp {
        names: &["quantized_decomposed.dequantize_per_channel_group.default"],
        rule: dequantize_per_channel_group,
    },
    AtenOp { names: &["torchao.dequantize_affine.default"], rule: dequantize_affine },
    AtenOp {
        names: &["quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor"],
        rule: |cx, c| {
            let (x, scale, zero) = (c.tensor(cx, "input")?, c.operand(cx, "scale")?, c.operand(cx, "zero_point")?);
            let grid = Grid::per_tensor(cx, x);
            quantize(cx, c, x, (scale, zero), &grid, "dtype")
        },
    },
    AtenOp {
        names: &["quantized_decomposed.quantize_per_channel.default"],
        rule: |cx, c| {
            let (x, qparams) = (c.tensor(cx, "input")?, (c.value(cx, "scales")?, c.opt_value(cx, "zero_points")?));
            let grid = Grid::per_channel(cx, x, c.dim_index("axis", cx.rank(x))?);
            quantize(cx, c, x, qparams, &grid, "dtype")
        },
    },
    AtenOp {
        names: &["torchao.quantize_affine.default"],
        rule: |cx, c| {
            let (x, qparams) = (c.tensor(cx, "input")?, (c.value(cx, "scale")?, c.opt_value(cx, "zero_point")?));
            if domain(c, "output_dtype")? == Domain::Float {
                return Err(unsupported_attribute(
                    "zero-point-domain",
                    "quantize_affine with zero_point_domain=FLOAT is not supported",
                ));
            }
            let grid = Grid::blocks(cx, c, x)?;
            quantize(cx, c, x, qparams, &grid, "output_dtype")
        },
    },
    AtenOp { names: &["aten._weight_int8pack_mm.default"], rule: weight_int8pack_mm },
    AtenOp { names: &["aten._int_mm.default"], rule: int_mm },
];

/// How zero points enter the value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Domain {
    /// `(q − zero) · scale`.
    Integer,
    /// `(q − zero) · scale`, the difference in the promoted type of q and zero, the product in that of it and the scale.
    Promoted,
    /// `(q − middle of the range) · scale + zero`.
    Float,
}

/// Which elements share a scale: both shapes have one rank, and the parameters' broadcasts to the elements'.
struct Grid {
    /// The elements, dimensions of several blocks split into (block, place in it).
    elements: Shape,
    /// The parameters.
    params: Shape,
}

impl Grid {
    fn per_tensor(cx: &Cx, q: ValueId) -> Grid {
        let elements = cx.shape(q);
        Grid { params: vec![Dim::from(1); elements.len()], elements }
    }

    fn per_channel(cx: &Cx, q: ValueId, axis: usize) -> Grid {
        let mut grid = Grid::per_tensor(cx, q);
        grid.params[axis] = grid.elements[axis].clone();
        grid
    }

    /// Blocks of the argument `block_size`, one size a dimension.
    fn blocks(cx: &Cx, c: &Call<'_>, q: ValueId) -> Result<Grid, Diagnostic> {
        let (shape, blocks) = (cx.shape(q), c.dims("block_size")?);
        if blocks.len() != shape.len() {
            return Err(bad_argument(format!("block_size of {} sizes for {}", blocks.len(), cx.ty(q))));
        }
        let mut grid = Grid { elements: vec![], params: vec![] };
        for (size, block) in shape.iter().zip(&blocks) {
            grid.split(size, block)?;
        }
        Ok(grid)
    }

    fn split(&mut self, size: &Dim, block: &Dim) -> Result<(), Diagnostic> {
        if size == block || block.is(1) {
            self.elements.push(size.clone());
            self.params.push(if block.is(1) { size.clone() } else { Dim::from(1) });
            return Ok(());
        }
        let (Some(n), Some(b)) = (size.as_const(), block.as_const()) else {
            return Err(unsupported_shape(format!("blocks of {block} elements in a dimension of {size}")));
        };
        if b < 1 || n % b != 0 {
            return Err(bad_argument(format!("blocks of {b} elements do not divide a dimension of {n}")));
        }
        self.elements.extend([Dim::from(n / b), Dim::from(b)]);
        self.params.extend([Dim::from(n / b), Dim::from(1)]);
        Ok(())
    }
}

/// The quantised tensor, whose element type must be the one that the operator names.
fn stored(cx: &mut Cx, c: &Call<'_>, dtype: &str) -> Built {
    let q = if c.has("input") { c.tensor(cx, "input")? } else { c.tensor(cx, c.first())? };
    let (is, says) = (cx.tensor_dtype(q), element_type(c, dtype)?);
    if is.is_float() || is == DType::Bool {
        return Err(unsupported_dtype(format!("{}: quantised values of type {is}", c.target)));
    }
    if is != says {
        return Err(bad_argument(format!("{}: `{dtype}` is {says}, the tensor is of {is}", c.target)));
    }
    Ok(q)
}

fn element_type(c: &Call<'_>, name: &str) -> Result<DType, Diagnostic> {
    ir_dtype(c.dtype(name)?.ok_or_else(|| bad_argument(format!("{}: `{name}` is None", c.target)))?)
}

/// The floating type of a result; f32 if none is given.
fn out_type(c: &Call<'_>, name: &str) -> Result<DType, Diagnostic> {
    // Exports of torch 2.2 and older have no such argument.
    let out = ir_dtype(c.dtype(name)?.unwrap_or(ScalarType::F32))?;
    if out.is_float() { Ok(out) } else { Err(unsupported_dtype(format!("{}: results of type {out}", c.target))) }
}

fn domain(c: &Call<'_>, dtype: &str) -> Result<Domain, Diagnostic> {
    match c.opt_str("zero_point_domain")?.as_deref() {
        None | Some("INT" | "NONE") => Ok(Domain::Integer),
        Some("FLOAT") if matches!(element_type(c, dtype)?, DType::U8 | DType::I8) => Ok(Domain::Float),
        Some(other) => {
            Err(unsupported_attribute("zero-point-domain", format!("{}: zero_point_domain={other}", c.target)))
        }
    }
}

fn dequantize_per_channel_group(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let q = stored(cx, c, "dtype")?;
    let (scales, zeros) = (c.tensor(cx, "scales")?, c.opt_value(cx, "zero_points")?);
    if cx.rank(q) != 2 {
        return Err(bad_argument(format!("{}: {} is no matrix", c.target, cx.ty(q))));
    }
    let (k, group) = (cx.size(q, 1), c.int("group_size")?);
    // One group may be said to be longer than the rows are.
    let one = cx.shape(scales).last().is_some_and(|d| d.is(1)) && k.as_const().is_some_and(|k| group > k);
    let group = if one { k.clone() } else { Dim::from(group) };
    let mut grid = Grid { elements: vec![cx.size(q, 0)], params: vec![cx.size(q, 0)] };
    grid.split(&k, &group)?;
    dequantize(cx, q, (Val::Tensor(scales), zeros), &grid, out_type(c, "output_dtype")?, Domain::Promoted)
}

fn dequantize_affine(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let q = stored(cx, c, "input_dtype")?;
    let (scale, zero) = (c.value(cx, "scale")?, c.opt_value(cx, "zero_point")?);
    let grid = Grid::blocks(cx, c, q)?;
    let unused = c.opt_str("zero_point_domain")?.is_none_or(|d| d == "NONE");
    let zero = if unused { Val::None } else { zero };
    let (out, domain) = (out_type(c, "output_dtype")?, domain(c, "input_dtype")?);
    if domain != Domain::Float {
        return dequantize(cx, q, (scale, zero), &grid, out, domain);
    }
    let (low, high) = limits(c, cx.tensor_dtype(q))?;
    let middle = Val::Float((high + low + 1.0) / 2.0);
    let centred = dequantize(cx, q, (scale, middle), &grid, out, Domain::Float)?;
    let Val::Tensor(zero) = zero else { return Ok(centred) };
    let [Val::Tensor(centred)] = centred[..] else { return Err(bad_argument("a dequantisation gives one tensor")) };
    let zero = cx.reshape(zero, grid.params)?;
    let from = cx.tensor_dtype(zero);
    let split = cx.reshape(centred, grid.elements)?;
    let y = cx.map2(split, zero, out, |b, x, z| {
        let (x, z) = (b.round_to(out, x), converted(b, z, from, out));
        b.add(x, z)
    })?;
    let shape = cx.shape(q);
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}

/// `x @ wᵀ · scales`, summed in f32 and rounded once; the integers have the plain order of `w[n, k]`.
fn weight_int8pack_mm(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (x, w, scales) = (c.tensor(cx, "self")?, c.tensor(cx, "mat2")?, c.tensor(cx, "scales")?);
    let dtype = cx.tensor_dtype(x);
    let wt = transposed(cx, w)?;
    let (x, wt, scales) = (cx.cast(x, DType::F32)?, cx.cast(wt, DType::F32)?, cx.cast(scales, DType::F32)?);
    let sums = multiply(cx, x, wt)?;
    let y = cx.mul_values(sums, scales)?;
    Ok(vec![Val::Tensor(cx.cast(y, dtype)?)])
}

/// A product of 8-bit integers in i32.
fn int_mm(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (a, b) = (c.tensor(cx, "self")?, c.tensor(cx, "mat2")?);
    let (a, b) = (cx.cast(a, DType::I32)?, cx.cast(b, DType::I32)?);
    Ok(vec![Val::Tensor(multiply(cx, a, b)?)])
}

/// `quant_min` and `quant_max`, by default those of the element type.
fn limits(c: &Call<'_>, dtype: DType) -> Result<(f64, f64), Diagnostic> {
    let (low, high) = match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        _ => return Err(unsupported_dtype(format!("{}: quantised values of type {dtype}", c.target))),
    };
    Ok((c.opt_float("quant_min")?.unwrap_or(low), c.opt_float("quant_max")?.unwrap_or(high)))
}

/// A parameter: an operand of the map in the grid's shape, or a number.
fn param(cx: &mut Cx, v: &Val, grid: &Grid) -> Result<Param, Diagnostic> {
    match v {
        Val::Tensor(v) => Ok(Param::Tensor(cx.reshape(*v, grid.params.clone())?, cx.tensor_dtype(*v))),
        Val::None => Ok(Param::None),
        Val::Float(v) => Ok(Param::Number(*v)),
        Val::Int(d) => {
            let number = d.as_const().ok_or_else(|| unsupported_shape(format!("the symbolic zero point {d}")))?;
            Ok(if number == 0 { Param::None } else { Param::Number(number as f64) })
        }
        _ => Err(bad_argument(format!("{v:?} is no scale or zero point"))),
    }
}

fn scale_of(cx: &mut Cx, v: &Val, grid: &Grid) -> Result<Param, Diagnostic> {
    match param(cx, v, grid)? {
        Param::None => Err(bad_argument("a scale of 0")),
        scale => Ok(scale),
    }
}

#[derive(Debug, Clone, Copy)]
enum Param {
    Tensor(ValueId, DType),
    Number(f64),
    /// A zero point of 0.
    None,
}

impl Param {
    fn tensor(self) -> Option<ValueId> {
        match self {
            Param::Tensor(v, _) => Some(v),
            Param::Number(_) | Param::None => None,
        }
    }

    fn dtype(self) -> Option<DType> {
        match self {
            Param::Tensor(_, dtype) => Some(dtype),
            Param::Number(_) | Param::None => None,
        }
    }

    /// As a number of type `to`, taken from the arguments left.
    fn expr(self, b: &mut BodyBuilder, args: &mut impl Iterator<Item = ExprId>, to: DType) -> Option<ExprId> {
        match self {
            Param::Tensor(_, from) => {
                let x = args.next().expect("one argument for each tensor");
                Some(converted(b, x, from, to))
            }
            Param::Number(v) => Some(b.lit(to.ty(), v)),
            Param::None => None,
        }
    }
}

/// The type in which floats of an element type are computed.
fn register(out: DType) -> DType {
    if out == DType::F64 { DType::F64 } else { DType::F32 }
}

fn dequantize(cx: &mut Cx, q: ValueId, (scale, zero): (Val, Val), grid: &Grid, out: DType, how: Domain) -> Vals {
    let (shape, from) = (cx.shape(q), cx.tensor_dtype(q));
    let (scale, zero) = (scale_of(cx, &scale, grid)?, param(cx, &zero, grid)?);
    let work = register(out);
    let split = cx.reshape(q, grid.elements.clone())?;
    let inputs: Vec<ValueId> = [Some(split), zero.tensor(), scale.tensor()].into_iter().flatten().collect();
    let y = cx.map_n(&inputs, out, |b, args| {
        let mut args = args.iter().copied();
        let q = args.next().expect("the integers");
        let integers = zero.dtype().filter(|z| how == Domain::Promoted && !z.is_float());
        let difference = match integers {
            Some(z) => {
                let common = promote(from, z);
                let q = converted(b, q, from, common);
                let z = zero.expr(b, &mut args, common).expect("a tensor");
                let d = b.sub(q, z);
                let d = b.round_to(common, d);
                b.cast(work.ty(), d)
            }
            None => {
                let small = matches!(from, DType::U8 | DType::I8);
                let q = if small { b.cast(work.ty(), q) } else { converted(b, q, from, out) };
                zero.expr(b, &mut args, work).map_or(q, |z| {
                    let d = b.sub(q, z);
                    zero.dtype().filter(|_| how == Domain::Promoted).map_or(d, |z| b.round_to(z, d))
                })
            }
        };
        let y = match scale.expr(b, &mut args, work) {
            Some(s) => b.mul(difference, s),
            None => difference,
        };
        match scale.dtype() {
            // An integer multiplied by halves is a half.
            Some(s) if how == Domain::Promoted && s != out => b.round_to(s, y),
            _ => y,
        }
    })?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}

/// `clamp(round(x · (1 / scale)) + zero, quant_min, quant_max)`; each step is rounded to the type in which PyTorch computes it.
fn quantize(cx: &mut Cx, c: &Call<'_>, x: ValueId, (scale, zero): (Val, Val), grid: &Grid, dtype: &str) -> Vals {
    let out = element_type(c, dtype)?;
    let (low, high) = limits(c, out)?;
    let (shape, from) = (cx.shape(x), cx.tensor_dtype(x));
    if !from.is_float() {
        return Err(unsupported_dtype(format!("{}: input of type {from}", c.target)));
    }
    let (scale, zero) = (scale_of(cx, &scale, grid)?, param(cx, &zero, grid)?);
    // Of `quantized_decomposed` all inputs are widened to f32.
    let work = match scale.dtype() {
        Some(s) if c.target.starts_with("torchao.") => promote(from, s),
        _ => register(from),
    };
    let split = cx.reshape(x, grid.elements.clone())?;
    let inputs: Vec<ValueId> = [Some(split), scale.tensor(), zero.tensor()].into_iter().flatten().collect();
    let y = cx.map_n(&inputs, out, |b, args| {
        let mut args = args.iter().copied();
        let x = converted(b, args.next().expect("the floats"), from, work);
        let inverse = match scale {
            Param::Number(s) => b.lit(work.ty(), 1.0 / s),
            _ => {
                let one = b.lit(work.ty(), 1.0);
                let s = scale.expr(b, &mut args, work).unwrap_or(one);
                let inverse = b.div(one, s);
                b.round_to(work, inverse)
            }
        };
        let scaled = b.mul(x, inverse);
        let scaled = b.round_to(work, scaled);
        let mut y = b.un(Unary::Round, scaled);
        if let Some(z) = zero.expr(b, &mut args, work) {
            let sum = b.add(y, z);
            y = b.round_to(work, sum);
        }
        let (low, high) = (b.lit(work.ty(), low), b.lit(work.ty(), high));
        let y = b.max(y, low);
        let y = b.min(y, high);
        b.cast(Ty::I32, y)
    })?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}
