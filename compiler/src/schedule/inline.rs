//! Builds one kernel's expressions: a value at given coordinates becomes a load where it is materialised, and otherwise the expression of
//! the operation that defines it, over its operands at *their* coordinates. This is where movement turns into access maps.

use super::fuse::Fusion;
use super::index::Ix;
use super::layout::{Order, channels_last, first_last};
use super::symtab::SymTable;
use crate::device::DeviceProfile;
use crate::ir::{Body, DType, Dim, Graph, Literal, Op, TensorType, ValueId};
use jvc_kernels::dtype::{Storage, Ty};
use jvc_kernels::expr::{Binary, Expr, ExprId, Lit, Unary};
use jvc_kernels::spec::{Access, Extent, Interface, Operand, Store};
use std::collections::BTreeMap;

/// What an operand of a kernel stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A value: in the arena, or a leaf where that lives (input, weight, constant, state).
    Value(ValueId),
    /// Slot of the I/O table that holds an output.
    Output(u32),
    /// New value of the n-th state.
    StateUpdate(u32),
    /// The symbol table.
    Table,
}

/// One operand of a kernel under construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// What it is.
    pub place: Place,
    /// Element type.
    pub dtype: DType,
    /// Loads, stores or both.
    pub access: Access,
}

/// A kernel under construction.
pub struct Ctx<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What is materialised.
    pub fusion: &'a Fusion,
    /// The device.
    pub device: &'a DeviceProfile,
    /// Its expressions.
    pub ix: Ix<'a>,
    /// Its operands.
    pub uses: Vec<Use>,
    memo: BTreeMap<(ValueId, Vec<ExprId>), ExprId>,
}

impl<'a> Ctx<'a> {
    /// An empty kernel.
    pub fn new(graph: &'a Graph, fusion: &'a Fusion, device: &'a DeviceProfile, symtab: &'a mut SymTable) -> Ctx<'a> {
        Ctx { graph, fusion, device, ix: Ix::new(symtab), uses: vec![], memo: BTreeMap::new() }
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &'a TensorType {
        self.graph.ty(v)
    }

    /// Axes `first…` over a shape.
    pub fn axes(&mut self, first: usize, shape: &[Dim]) -> Vec<ExprId> {
        shape.iter().enumerate().map(|(k, d)| self.ix.axis(first + k, d)).collect()
    }

    /// Extents of a shape.
    pub fn extents(&mut self, shape: &[Dim]) -> Vec<Extent> {
        shape.iter().map(|d| self.ix.symtab().extent(d)).collect()
    }

    /// The operand for a place, added at first use; a later use of another kind widens it to `ReadWrite`.
    pub fn operand(&mut self, place: Place, dtype: DType, access: Access) -> u16 {
        if let Some(at) = self.uses.iter().position(|u| u.place == place) {
            let u = &mut self.uses[at];
            if u.access != access {
                u.access = Access::ReadWrite;
            }
            return at as u16;
        }
        self.operand_apart(place, dtype, access)
    }

    /// An operand of its own, though the place may be one already: parts of it that are found apart.
    pub fn operand_apart(&mut self, place: Place, dtype: DType, access: Access) -> u16 {
        self.uses.push(Use { place, dtype, access });
        self.uses.len() as u16 - 1
    }

    /// The interface, with one base per operand until memory is planned.
    pub fn interface(&self) -> Interface {
        let operands = self.uses.iter().map(|u| Operand {
            dtype: u.dtype,
            storage: storage_of(u.dtype, self.device),
            access: u.access,
            base: 0,
            via_table: false,
        });
        Interface { operands: operands.collect(), n_bases: 0, symbols: false }
    }

    /// The element of a value at coordinates (one i32 per dimension, in range), in the value's register type.
    pub fn at(&mut self, v: ValueId, idx: &[ExprId]) -> ExprId {
        let key = (v, idx.to_vec());
        if let Some(&e) = self.memo.get(&key) {
            return e;
        }
        let e = self.build_at(v, idx);
        self.memo.insert(key, e);
        e
    }

    fn build_at(&mut self, v: ValueId, idx: &[ExprId]) -> ExprId {
        let node = self.graph.def(v);
        if let Op::Const(lit) = &node.op
            && let Some(value) = uniform(lit)
        {
            return self.ix.exprs.add(Expr::Lit(value));
        }
        if self.fusion.in_memory(self.graph, v) {
            return self.load(v, idx);
        }
        self.inline_at(v, idx)
    }

    /// The element of a value by the operation that defines it, even if it has a buffer: what its own kernel computes. Leaves are loaded.
    pub fn definition_at(&mut self, v: ValueId, idx: &[ExprId]) -> ExprId {
        if super::fuse::is_pointwise(&self.graph.def(v).op) { self.inline_at(v, idx) } else { self.at(v, idx) }
    }

    fn inline_at(&mut self, v: ValueId, idx: &[ExprId]) -> ExprId {
        let node = self.graph.def(v);
        let inputs = &node.inputs;
        match &node.op {
            Op::Map(body) => self.map_at(body, inputs, idx, self.graph.ty(v).dtype),
            Op::Compute(body) => self.compute_at(body, inputs, idx),
            Op::Reshape(shape) => {
                let linear = self.ix.linear(idx, shape);
                let from = self.ix.delinear(linear, &self.graph.ty(inputs[0]).shape);
                self.at(inputs[0], &from)
            }
            Op::Permute(perm) => {
                let mut from = idx.to_vec();
                for (d, &p) in perm.iter().enumerate() {
                    from[p] = idx[d];
                }
                self.at(inputs[0], &from)
            }
            Op::Slice { dim, start, step, .. } => {
                let mut from = idx.to_vec();
                let (start, step) = (self.ix.dim(start), self.ix.int(*step));
                let scaled = self.ix.mul(idx[*dim], step);
                from[*dim] = self.ix.add(start, scaled);
                self.at(inputs[0], &from)
            }
            Op::Pad { before, value, .. } => self.pad_at(inputs[0], before, *value, idx),
            Op::Concat { dim } => self.concat_at(inputs, *dim, idx),
            Op::Broadcast(_) => {
                let from = self.broadcast_coords(inputs[0], idx);
                self.at(inputs[0], &from)
            }
            Op::Flip(dims) => {
                let mut from = idx.to_vec();
                for &d in dims {
                    let last = self.ix.dim(&(&self.graph.ty(inputs[0]).shape[d] - &Dim::from(1)));
                    from[d] = self.ix.sub(last, idx[d]);
                }
                self.at(inputs[0], &from)
            }
            op => panic!("{} is neither in memory nor inlinable: {op:?}", self.graph.value(v).name),
        }
    }

    fn load(&mut self, v: ValueId, idx: &[ExprId]) -> ExprId {
        let ty = self.graph.ty(v);
        let linear = self.place_in(Place::Value(v), v, idx);
        let operand = self.operand(Place::Value(v), ty.dtype, Access::Read);
        self.ix.exprs.load(operand, ty.dtype, vec![linear])
    }

    /// The place of an element: row-major, or in a value's own memory as that is ordered.
    fn place_in(&mut self, place: Place, v: ValueId, idx: &[ExprId]) -> ExprId {
        let shape = &self.graph.ty(v).shape;
        let order = if place == Place::Value(v) { self.fusion.order(v) } else { Order::Rows };
        match order {
            Order::Rows => self.ix.linear(idx, shape),
            Order::ChannelsLast => self.ix.linear(&channels_last(idx), &channels_last(shape)),
            Order::FirstLast => self.ix.linear(&first_last(idx), &first_last(shape)),
            Order::Fragments(f) => f.place(&mut self.ix.exprs, (idx[0], idx[1]), shape),
        }
    }

    /// Coordinates of an operand that broadcasts (size 1) to where `idx` points.
    pub fn broadcast_coords(&mut self, v: ValueId, idx: &[ExprId]) -> Vec<ExprId> {
        let zero = self.ix.int(0);
        self.graph.ty(v).shape.iter().zip(idx).map(|(d, &i)| if d.is(1) { zero } else { i }).collect()
    }

    fn map_at(&mut self, body: &Body, inputs: &[ValueId], idx: &[ExprId], out: DType) -> ExprId {
        let args: Vec<ExprId> = inputs.iter().map(|&v| self.map_arg(v, idx, out)).collect();
        self.substitute(body, &args, inputs, idx)
    }

    /// An operand of a `Map` at the coordinates of its result.
    pub fn map_arg(&mut self, v: ValueId, idx: &[ExprId], out: DType) -> ExprId {
        let from = self.broadcast_coords(v, idx);
        let value = self.at(v, &from);
        if self.fusion.in_memory(self.graph, v) { value } else { self.widened(value, self.graph.ty(v).dtype, out) }
    }

    /// A half that a `Map` turns into a wider type is rounded first: the program converts the half, not what it was computed from. Between
    /// halves no rounding happens, which is closer to the exact result than PyTorch's own.
    pub fn widened(&mut self, value: ExprId, from: DType, to: DType) -> ExprId {
        let half = matches!(from, DType::F16 | DType::BF16);
        if half && to != from { self.round(from, value) } else { value }
    }

    /// A `Map`'s body with given scalars for its arguments.
    pub fn map_body(&mut self, body: &Body, args: &[ExprId]) -> ExprId {
        self.substitute(body, args, &[], &[])
    }

    fn compute_at(&mut self, body: &Body, inputs: &[ValueId], idx: &[ExprId]) -> ExprId {
        self.substitute(body, &[], inputs, idx)
    }

    /// Copies a body into the kernel's arena: arguments, axes, sizes and loads become what they stand for here.
    fn substitute(&mut self, body: &Body, args: &[ExprId], inputs: &[ValueId], idx: &[ExprId]) -> ExprId {
        let mut new: BTreeMap<ExprId, ExprId> = BTreeMap::new();
        for id in body.exprs.reachable(&[body.root]) {
            let ops: Vec<ExprId> = body.exprs.operands(id).iter().map(|o| new[o]).collect();
            let e = match body.exprs.get(id) {
                Expr::Lit(Lit::I32(v)) => self.ix.int(i64::from(*v)),
                Expr::Arg(i, _) => args[*i as usize],
                Expr::Axis(k) => idx[*k as usize],
                Expr::Sym(w) => self.ix.dim(&body.syms[*w as usize]),
                Expr::Load { operand, .. } => self.at(inputs[*operand as usize], &ops),
                Expr::Unary(op, _) => self.ix.un(*op, ops[0]),
                Expr::Binary(op, ..) => self.ix.bin(*op, ops[0], ops[1]),
                Expr::Select(..) => self.ix.select(ops[0], ops[1], ops[2]),
                Expr::Cast(ty, _) => self.cast(*ty, ops[0]),
                Expr::Round(dtype, _) => self.round(*dtype, ops[0]),
                lit @ Expr::Lit(_) => self.ix.exprs.add(lit.clone()),
            };
            new.insert(id, e);
        }
        new[&body.root]
    }

    /// A conversion; literals are converted here, and `i32 → i64 → i32` is dropped (indices that came through PyTorch's i64).
    pub fn cast(&mut self, ty: Ty, a: ExprId) -> ExprId {
        if let (Ty::I32, Expr::Lit(Lit::I64(v))) = (ty, self.ix.exprs.get(a)) {
            let v = *v;
            if i32::try_from(v).is_ok() {
                return self.ix.int(v);
            }
        }
        if let (Ty::I32, &Expr::Cast(Ty::I64, inner)) = (ty, self.ix.exprs.get(a))
            && self.ix.exprs.ty(inner) == Ty::I32
        {
            return inner;
        }
        self.ix.exprs.cast(ty, a)
    }

    /// A rounding to an element type; none where the value is known to be of it.
    fn round(&mut self, dtype: DType, a: ExprId) -> ExprId {
        if self.holds(dtype, a) { a } else { self.ix.exprs.add(Expr::Round(dtype, a)) }
    }

    /// True for elements of such an operand, rounded values, and choices between such.
    fn holds(&self, dtype: DType, e: ExprId) -> bool {
        match self.ix.exprs.get(e) {
            Expr::Load { dtype: d, .. } | Expr::Round(d, _) => *d == dtype,
            Expr::Select(_, a, b) => self.holds(dtype, *a) && self.holds(dtype, *b),
            _ => false,
        }
    }

    /// A literal in a register type.
    pub fn lit(&mut self, ty: Ty, v: f64) -> ExprId {
        self.ix.exprs.lit(ty, v)
    }

    /// A size as a number of a floating register type.
    pub fn dim_as(&mut self, ty: Ty, d: &Dim) -> ExprId {
        match d.as_const() {
            Some(v) => self.lit(ty, v as f64),
            None => {
                let d = self.ix.dim(d);
                self.cast(ty, d)
            }
        }
    }

    /// `0 ≤ i < n`.
    pub fn in_range(&mut self, i: ExprId, n: &Dim) -> ExprId {
        let low = self.ix.is_nonneg(i);
        let n = self.ix.dim(n);
        let high = self.ix.lt(i, n);
        self.ix.and(low, high)
    }

    /// An element where all coordinates are inside, else `fill`; coordinates outside are replaced by 0 before the load.
    pub fn at_or(&mut self, v: ValueId, idx: &[ExprId], fill: ExprId) -> ExprId {
        let shape = &self.graph.ty(v).shape;
        let mut inside = self.ix.exprs.bool(true);
        let mut safe = Vec::with_capacity(idx.len());
        let zero = self.ix.int(0);
        for (&i, n) in idx.iter().zip(shape) {
            let ok = self.in_range(i, n);
            inside = self.ix.and(inside, ok);
            let clamped = self.ix.select(ok, i, zero);
            self.ix.assume_below(clamped, n);
            safe.push(clamped);
        }
        if shape.iter().any(|d| d.is(0)) {
            return fill;
        }
        let value = self.at(v, &safe);
        self.ix.select(inside, value, fill)
    }

    fn pad_at(&mut self, v: ValueId, before: &[i64], value: f64, idx: &[ExprId]) -> ExprId {
        let from: Vec<ExprId> = idx
            .iter()
            .zip(before)
            .map(|(&i, &b)| {
                let b = self.ix.int(b);
                self.ix.sub(i, b)
            })
            .collect();
        let fill = self.lit(self.graph.ty(v).dtype.ty(), value);
        self.at_or(v, &from, fill)
    }

    fn concat_at(&mut self, inputs: &[ValueId], dim: usize, idx: &[ExprId]) -> ExprId {
        let mut start = Dim::from(0);
        let mut arms = vec![];
        for &v in inputs {
            let size = self.graph.ty(v).shape[dim].clone();
            if !size.is(0) {
                arms.push((v, start.clone()));
            }
            start = &start + &size;
        }
        let mut result = None;
        for (v, start) in arms.into_iter().rev() {
            let size = &self.graph.ty(v).shape[dim];
            let offset = self.ix.dim(&start);
            let local = self.ix.sub(idx[dim], offset);
            let mut from = idx.to_vec();
            let inside = self.in_range(local, size);
            let zero = self.ix.int(0);
            let safe = self.ix.select(inside, local, zero);
            self.ix.assume_below(safe, size);
            from[dim] = safe;
            let here = self.at(v, &from);
            result = Some(match result {
                None => here,
                Some(rest) => {
                    let end = self.ix.dim(&(&start + size));
                    let before_end = self.ix.lt(idx[dim], end);
                    self.ix.select(before_end, here, rest)
                }
            });
        }
        result.expect("a concat of empty tensors is empty and never evaluated")
    }

    /// Stores an element of `v` wherever the value must go: its buffer, outputs, and the concatenations that it is a part of.
    pub fn store(&mut self, v: ValueId, idx: &[ExprId], value: ExprId) -> Vec<Store> {
        let mut stores = self.store_into(self.fusion.places(v), v, idx, value);
        stores.extend(self.store_maps(v, idx, value));
        stores
    }

    /// As [`Ctx::store`], but for the value's own buffer.
    pub fn store_beside(&mut self, v: ValueId, idx: &[ExprId], value: ExprId) -> Vec<Store> {
        let places = self.fusion.places(v).into_iter().filter(|p| *p != Place::Value(v));
        self.store_into(places.collect(), v, idx, value)
    }

    fn store_into(&mut self, places: Vec<Place>, v: ValueId, idx: &[ExprId], value: ExprId) -> Vec<Store> {
        let ty = self.graph.ty(v);
        let mut stores = vec![];
        for place in places {
            let index = self.place_in(place, v, idx);
            let operand = self.operand(place, ty.dtype, Access::Write);
            stores.push(Store { operand, index, value, guard: None });
        }
        if let Some((concat, dim, start)) = self.fusion.part_of(v) {
            let mut into = idx.to_vec();
            let offset = self.ix.dim(&start);
            into[dim] = self.ix.add(idx[dim], offset);
            stores.extend(self.store(concat, &into, value));
        }
        stores
    }

    /// What maps make of a value, stored beside it.
    fn store_maps(&mut self, v: ValueId, idx: &[ExprId], value: ExprId) -> Vec<Store> {
        let graph = self.graph;
        let mut stores = vec![];
        for &n in self.fusion.beside(v) {
            let node = graph.node(n);
            let Op::Map(body) = &node.op else { panic!("{:?} is stored beside what it reads", node.op) };
            let result = node.outputs[0];
            let value = self.widened(value, graph.ty(v).dtype, graph.ty(result).dtype);
            let value = self.map_body(body, &[value]);
            stores.extend(self.store(result, idx, value));
        }
        stores
    }

    /// Shorthand for a two-operand operation.
    pub fn bin(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        self.ix.bin(op, a, b)
    }

    /// Shorthand for a one-operand operation.
    pub fn un(&mut self, op: Unary, a: ExprId) -> ExprId {
        self.ix.un(op, a)
    }
}

/// How elements of a type lie in memory on a device.
pub fn storage_of(dtype: DType, device: &DeviceProfile) -> Storage {
    let f = &device.features;
    let native = match dtype {
        DType::Bool | DType::U8 | DType::I8 => f.int8,
        DType::I16 => f.int16,
        DType::F16 | DType::BF16 => f.float16 && f.int16,
        DType::I32 | DType::I64 | DType::F32 | DType::F64 => true,
    };
    if native { Storage::Native } else { Storage::Word }
}

/// The one value of a constant all of whose elements are equal.
fn uniform(lit: &Literal) -> Option<Lit> {
    let size = lit.ty.dtype.size_bytes() as usize;
    let first = lit.bytes.get(..size)?;
    if !lit.bytes.chunks_exact(size).all(|c| c == first) {
        return None;
    }
    Some(decode(lit.ty.dtype, first))
}

fn decode(dtype: DType, b: &[u8]) -> Lit {
    let two = || u16::from_le_bytes([b[0], b[1]]);
    let four = || [b[0], b[1], b[2], b[3]];
    let eight = || [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
    match dtype {
        DType::Bool => Lit::Bool(b[0] != 0),
        DType::U8 => Lit::I32(i32::from(b[0])),
        DType::I8 => Lit::I32(i32::from(b[0] as i8)),
        DType::I16 => Lit::I32(i32::from(two() as i16)),
        DType::I32 => Lit::I32(i32::from_le_bytes(four())),
        DType::I64 => Lit::I64(i64::from_le_bytes(eight())),
        DType::F16 => Lit::F32(half::f16::from_bits(two()).to_f32().to_bits()),
        DType::BF16 => Lit::F32(half::bf16::from_bits(two()).to_f32().to_bits()),
        DType::F32 => Lit::F32(u32::from_le_bytes(four())),
        DType::F64 => Lit::F64(u64::from_le_bytes(eight())),
    }
}
