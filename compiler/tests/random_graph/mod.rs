//! Random small graphs for property tests: every operation, odd sizes, a symbol, shared values; values stay moderate so that they compare.

use jvc::ir::infer::infer;
use jvc::ir::{
    Body, Builder, DType, Dim, Graph, Literal, Op, Range, TensorType, UserInput, UserOutput, ValueId, WeightRef, Window,
};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Unary};
use jvc_kernels::spec::{Cell, Combine, ScatterMode};
use std::sync::Arc;

/// splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    fn flip(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// A graph of about `n_ops` operations.
pub(crate) fn random_graph(seed: u64, n_ops: usize) -> Graph {
    let mut g = Gen { rng: Rng(seed), b: Builder::new("random"), pool: vec![] };
    g.leaves();
    for _ in 0..n_ops {
        g.any_op();
    }
    g.finish()
}

struct Gen {
    rng: Rng,
    b: Builder,
    pool: Vec<ValueId>,
}

impl Gen {
    fn leaves(&mut self) {
        self.b.graph.ranges.insert("s0".into(), Range { min: 1, max: 5 });
        let shapes = [
            vec![Dim::symbol("s0"), Dim::from(3), Dim::from(4)],
            vec![Dim::from(2), Dim::from(4), Dim::from(5)],
            vec![Dim::from(1), Dim::from(2), Dim::from(3), Dim::from(4)],
        ];
        for (i, shape) in shapes.into_iter().enumerate() {
            let dtype = [DType::F32, DType::F32, DType::F16][self.rng.below(3)];
            let v = self.b.push(Op::Input { index: i as u32 }, vec![], vec![TensorType::new(dtype, shape)])[0];
            self.b.graph.inputs.push((format!("x.{i}"), UserInput::Tensor(v)));
            self.pool.push(v);
        }
        self.b.graph.inputs.push(("n".into(), UserInput::Symbol("s0".into())));
        let w = Op::Weight(WeightRef::new("layer 0.\"w\""));
        let ty = TensorType::fixed(DType::F32, &[2, 4, 3]);
        let v = self.b.push(w, vec![], vec![ty])[0];
        self.pool.push(v);
        let s = Op::State(WeightRef::new("cache"));
        let v = self.b.push(s, vec![], vec![TensorType::fixed(DType::F32, &[3, 4])])[0];
        self.pool.push(v);
        for n in [3, 20] {
            let bytes = (0..n * 4).flat_map(|i: i64| (i as f32 / 7.0).to_le_bytes()).collect();
            let lit = Literal { ty: TensorType::fixed(DType::F32, &[n, 4]), bytes: Arc::new(bytes) };
            let v = self.b.add1(Op::Const(lit), vec![]).expect("a constant");
            self.pool.push(v);
        }
    }

    fn value(&mut self) -> ValueId {
        self.rng.pick(&self.pool)
    }

    fn float_value(&mut self) -> ValueId {
        loop {
            let v = self.value();
            if self.b.ty(v).dtype.is_float() {
                return v;
            }
        }
    }

    /// Adds the op if it fits its operands and its results are neither empty nor large.
    fn add(&mut self, op: Op, inputs: Vec<ValueId>) {
        let tys: Vec<&TensorType> = inputs.iter().map(|&v| self.b.ty(v)).collect();
        let Ok(out) = infer(&op, &tys) else { return };
        let sizes = |t: &TensorType| t.shape.iter().map(|d| d.as_const().unwrap_or(5)).collect::<Vec<_>>();
        if out.iter().map(sizes).all(|s| s.iter().all(|&d| d >= 1) && s.iter().product::<i64>() < 3000) {
            let out = self.b.push(op, inputs, out);
            self.pool.extend(out);
        }
    }

    fn any_op(&mut self) {
        let v = self.float_value();
        let ty = self.b.ty(v).clone();
        let (rank, shape) = (ty.rank(), ty.shape.clone());
        let dim = if rank == 0 { return } else { self.rng.below(rank) };
        match self.rng.below(22) {
            0..=4 => self.map(v),
            5 => self.compute(v),
            6 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.rotate_left(self.rng.below(rank));
                self.add(Op::Permute(perm), vec![v]);
            }
            7 => {
                let mut new = shape.clone();
                if self.rng.flip() {
                    new.insert(dim, Dim::from(1));
                } else if dim + 1 < rank {
                    let merged = &new[dim] * &new[dim + 1];
                    new.splice(dim..dim + 2, [merged]);
                }
                self.add(Op::Reshape(new), vec![v]);
            }
            8 => {
                let step = 1 + self.rng.below(2) as i64;
                let Some(size) = shape[dim].as_const() else { return };
                let start = self.rng.below(size as usize) as i64;
                let len = (size - start + step - 1) / step;
                self.add(Op::Slice { dim, start: Dim::from(start), len: Dim::from(len), step }, vec![v]);
            }
            9 => {
                let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
                before[dim] = self.rng.below(3) as i64;
                after[dim] = self.rng.below(3) as i64;
                let value = [0.0, 1.5][self.rng.below(2)];
                self.add(Op::Pad { before, after, value }, vec![v]);
            }
            10 => {
                let other = self.float_value();
                self.add(Op::Concat { dim }, vec![v, other]);
                self.add(Op::Concat { dim }, vec![v, v]);
            }
            11 => {
                let one = if let Some(d) = shape.iter().position(|d| d.is(1)) { d } else { return };
                let mut new = shape.clone();
                new[one] = Dim::from(3);
                self.add(Op::Broadcast(new), vec![v]);
            }
            12 => self.add(Op::Flip(vec![dim]), vec![v]),
            13 => self.reduction(v, dim, ty.dtype),
            14 => self.add(Op::Softmax { dim, log: self.rng.0 & 2 == 0 }, vec![v]),
            15 => self.add(Op::Norm { dims: vec![dim], eps: 1e-5, rms: self.rng.0 & 2 == 0 }, vec![v]),
            16 => {
                let other = self.float_value();
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.reverse();
                self.add(Op::Matmul, vec![v, other]);
                if let Ok(t) = self.b.add1(Op::Permute(perm), vec![v]) {
                    self.add(Op::Matmul, vec![v, t]);
                }
            }
            17 => self.windows(v),
            18 => self.scans(v, dim),
            19 => self.attention(v),
            20 => self.recurrent(),
            _ => self.add(Op::Fft { inverse: self.rng.0 & 2 == 0 }, vec![v, v]),
        }
    }

    fn reduction(&mut self, v: ValueId, dim: usize, dtype: DType) {
        let combine = self.rng.pick(&[Combine::Sum, Combine::Max, Combine::Min, Combine::ArgMax, Combine::ArgMin]);
        let arg = matches!(combine, Combine::ArgMax | Combine::ArgMin);
        self.add(Op::Reduce { combine, dims: vec![dim], dtype: if arg { DType::I64 } else { dtype } }, vec![v]);
        if self.rng.flip() {
            self.add(Op::Variance { dims: vec![dim], correction: 0.0 }, vec![v]);
        }
    }

    fn windows(&mut self, v: ValueId) {
        let one = |n: i64| vec![n];
        let (k, stride) = (1 + self.rng.below(3) as i64, 1 + self.rng.below(2) as i64);
        let window = Window { stride: one(stride), padding: one(self.rng.below(2) as i64), dilation: one(1) };
        let w = self.float_value();
        self.add(Op::Conv { window: window.clone(), groups: 1 }, vec![v, w]);
        self.add(Op::ConvTranspose { window: window.clone(), groups: 1, output_padding: one(0) }, vec![v, w]);
        let ty = self.b.ty(v).clone();
        let Some(size) = ty.shape.last().and_then(Dim::as_const).filter(|_| ty.rank() == 3) else { return };
        let n = (size + 2 * window.padding[0] - k) / stride + 1;
        if n < 1 || window.padding[0] > k / 2 {
            return;
        }
        let max = self.rng.flip();
        let op = Op::Pool {
            kernel: one(k),
            window,
            out: vec![Dim::from(n)],
            max,
            count_include_pad: self.rng.flip(),
            divisor: self.rng.flip().then_some(3),
            indices: max && self.rng.flip(),
        };
        self.add(op, vec![v]);
    }

    fn scans(&mut self, v: ValueId, dim: usize) {
        let combine = self.rng.pick(&[Combine::Sum, Combine::Max, Combine::Min]);
        self.add(Op::Scan { combine, dim, skip: 0 }, vec![v]);
        if let Ok(out) = self.b.add(Op::Sort { dim, descending: self.rng.flip(), keep: None }, vec![v]) {
            let mode = self.rng.pick(&[ScatterMode::Set, ScatterMode::Add, ScatterMode::Max]);
            self.add(Op::Scatter { dims: vec![dim], mode }, vec![v, out[1], out[0]]);
            self.pool.extend(out);
        }
    }

    fn attention(&mut self, v: ValueId) {
        let op = |scale| Op::Attention { scale, causal: scale > 0.5, zero_masked_rows: true, masked: false };
        let scale = [0.5, std::f64::consts::FRAC_1_SQRT_2][self.rng.below(2)];
        self.add(op(scale), vec![v, v, v]);
    }

    fn recurrent(&mut self) {
        let t = |b: &mut Builder, shape: &[i64]| {
            let n = shape.iter().product::<i64>();
            let bytes = (0..n).flat_map(|i| ((i % 5) as f32 / 5.0 - 0.4).to_le_bytes()).collect();
            let lit = Literal { ty: TensorType::fixed(DType::F32, shape), bytes: Arc::new(bytes) };
            b.add1(Op::Const(lit), vec![]).expect("a constant")
        };
        let cell = self.rng.pick(&[Cell::Lstm, Cell::Gru, Cell::RnnTanh]);
        let gates = jvc::ir::infer::gates(cell);
        let b = &mut self.b;
        let mut inputs = vec![t(b, &[3, 1, gates * 2]), t(b, &[gates * 2, 2]), t(b, &[1, 2])];
        if cell == Cell::Lstm {
            inputs.push(t(b, &[1, 2]));
        }
        let reverse = self.rng.flip();
        self.add(Op::Recurrent { cell, reverse, bias: false }, inputs);
    }

    fn map(&mut self, v: ValueId) {
        let ty = self.b.ty(v).clone();
        let partners: Vec<ValueId> = self
            .pool
            .iter()
            .copied()
            .filter(|&p| {
                let t = self.b.ty(p);
                t.rank() == ty.rank() && t.shape.iter().zip(&ty.shape).all(|(a, b)| a == b || a.is(1))
            })
            .collect();
        let inputs = vec![v, self.rng.pick(&partners)];
        let mut body = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
        let tys: Vec<Ty> = inputs.iter().map(|&i| self.b.ty(i).dtype.ty()).collect();
        let value = self.expr(&mut body, &tys, 3);
        let out = self.rng.pick(&[DType::F32, DType::F32, DType::F16, DType::I64, DType::Bool]);
        body.root = match out {
            DType::Bool => {
                let zero = body.exprs.f32(0.0);
                body.exprs.bin(Binary::Lt, zero, value)
            }
            _ => body.exprs.cast(out.ty(), value),
        };
        let out = self.b.map(body, inputs, TensorType::new(out, ty.shape)).expect("partners broadcast");
        self.pool.push(out);
    }

    /// A bounded f32 expression.
    fn expr(&mut self, body: &mut Body, tys: &[Ty], depth: u32) -> ExprId {
        let e = &mut body.exprs;
        if depth == 0 || self.rng.below(4) == 0 {
            return match self.rng.below(5) {
                0 => e.f32([0.25, -1.5, 3.0][self.rng.below(3)]),
                1 => {
                    let n = body.sym(&Dim::symbol("s0"));
                    body.exprs.cast(Ty::F32, n)
                }
                2 => {
                    let i = e.axis(0);
                    e.cast(Ty::F32, i)
                }
                _ => {
                    let k = self.rng.below(tys.len());
                    let a = e.arg(k as u16, tys[k]);
                    e.cast(Ty::F32, a)
                }
            };
        }
        let a = self.expr(body, tys, depth - 1);
        let b = self.expr(body, tys, depth - 1);
        let e = &mut body.exprs;
        match self.rng.below(7) {
            0 => e.bin(Binary::Add, a, b),
            1 => e.bin(Binary::Sub, a, b),
            2 => {
                let t = e.un(Unary::Tanh, a);
                e.bin(Binary::Mul, t, b)
            }
            3 => e.bin(Binary::Max, a, b),
            4 => {
                let c = e.bin(Binary::Lt, a, b);
                e.select(c, a, b)
            }
            5 => e.un(Unary::Sin, a),
            _ => e.add(Expr::Round(DType::F32, a)),
        }
    }

    /// Reads its operand backwards along the first dimension.
    fn compute(&mut self, v: ValueId) {
        let ty = self.b.ty(v).clone();
        let mut body = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
        let first = ty.shape[0].clone();
        let n = body.sym(&first);
        let e = &mut body.exprs;
        let (i, one) = (e.axis(0), e.i32(1));
        let last = e.bin(Binary::Sub, n, one);
        let back = e.bin(Binary::Sub, last, i);
        let mut index = vec![back];
        index.extend((1..ty.rank()).map(|d| e.axis(d as u8)));
        body.root = e.load(0, ty.dtype, index);
        let out = self.b.compute(body, vec![v], ty).expect("loads fit");
        self.pool.push(out);
    }

    fn finish(mut self) -> Graph {
        let n = self.pool.len();
        for (i, &v) in self.pool[n.saturating_sub(4)..].iter().enumerate() {
            self.b.graph.outputs.push((format!("y{i}"), UserOutput::Tensor(v)));
        }
        self.b.graph.outputs.push(("n".into(), UserOutput::Int(&Dim::symbol("s0") * &Dim::from(2))));
        self.b.graph.outputs.push(("none".into(), UserOutput::Constant("None".into())));
        let state = self.pool[self.rng.below(n)];
        self.b.graph.state_updates.push(("cache".into(), state));
        self.b.graph
    }
}
