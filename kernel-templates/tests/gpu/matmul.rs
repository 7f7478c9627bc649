//! The matmul template: every staging on ragged and exact shapes, types, symbols, and a convolution by access maps.

use crate::spec::{extent, interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, Tolerance, check, elements, gpu, run, targets};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{Access, Extent, KernelSpec, MatmulSpec, Staging, Store};
use jvc_kernels::{build, disassemble};

const CLOSE: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-4 };

#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) batch: Extent,
    pub(crate) m: Extent,
    pub(crate) n: Extent,
    pub(crate) k: Vec<Extent>,
    pub(crate) dtype: DType,
    /// The right side as [batch, n, k] instead of [batch, k, n].
    pub(crate) transposed: bool,
    /// The left side as [batch, k, m] instead of [batch, m, k].
    pub(crate) turned: bool,
    /// Element type of the result and the bias.
    pub(crate) out: DType,
}

const SYMBOLS: [u32; 5] = [2, 19, 35, 21, 0];

fn stagings() -> Vec<(Staging, u32)> {
    vec![
        (Staging::Registers { rows: 1, cols: 1 }, 32),
        (Staging::Registers { rows: 4, cols: 2 }, 64),
        (Staging::Registers { rows: 8, cols: 8 }, 8),
        (Staging::Shared { bm: 16, bn: 16, bk: 8, rows: 2, cols: 2, buffers: 1 }, 64),
        (Staging::Shared { bm: 32, bn: 64, bk: 16, rows: 4, cols: 4, buffers: 1 }, 128),
        (Staging::Shared { bm: 8, bn: 32, bk: 4, rows: 1, cols: 8, buffers: 1 }, 32),
        (Staging::Shared { bm: 64, bn: 32, bk: 4, rows: 8, cols: 8, buffers: 1 }, 32),
        (Staging::Shared { bm: 32, bn: 64, bk: 4, rows: 8, cols: 8, buffers: 2 }, 32),
        (Staging::Shared { bm: 64, bn: 64, bk: 8, rows: 8, cols: 4, buffers: 2 }, 128),
    ]
}

impl Problem {
    fn extents(&self) -> Vec<Extent> {
        [self.batch, self.m, self.n].into_iter().chain(self.k.iter().copied()).collect()
    }

    /// `out[b, m, n] = 2·Σ lhs[b, m, k]·rhs + bias[n]`.
    pub(crate) fn spec(&self, staging: Staging, wg: u32) -> MatmulSpec {
        let mut e = Exprs::new();
        let acc = self.dtype.ty();
        let k: Vec<(u8, Extent)> = (3u8..).zip(self.k.iter().copied()).collect();
        let lhs_axes = if self.turned {
            [&[(0, self.batch)], k.as_slice(), &[(1, self.m)]].concat()
        } else {
            [&[(0, self.batch), (1, self.m)], k.as_slice()].concat()
        };
        let rhs_axes = if self.transposed {
            [&[(0, self.batch), (2, self.n)], k.as_slice()].concat()
        } else {
            [&[(0, self.batch)], k.as_slice(), &[(2, self.n)]].concat()
        };
        let (i, j) = (row_major(&mut e, &lhs_axes), row_major(&mut e, &rhs_axes));
        let (lhs, rhs) = (e.load(0, self.dtype, vec![i]), e.load(1, self.dtype, vec![j]));
        let index = row_major(&mut e, &[(0, self.batch), (1, self.m), (2, self.n)]);
        let column = e.axis(2);
        let bias = e.load(2, self.out, vec![column]);
        let (sum, two) = (e.arg(0, acc), e.lit(acc, 2.0));
        let value = e.bin(Binary::Mul, sum, two);
        let value = e.bin(Binary::Add, value, bias);
        MatmulSpec {
            interface: interface(self.operands(), symbolic(&self.extents())),
            exprs: e,
            batch: self.batch,
            m: self.m,
            n: self.n,
            k: self.k.clone(),
            lhs,
            rhs,
            acc,
            stores: vec![Store { operand: 3, index, value, guard: None }],
            staging,
            wg,
        }
    }

    fn operands(&self) -> Vec<jvc_kernels::spec::Operand> {
        let mut operands = vec![operand(self.dtype, Access::Read); 2];
        operands.extend([operand(self.out, Access::Read), operand(self.out, Access::Write)]);
        operands
    }

    pub(crate) fn memory(&self) -> Memory {
        let symbols = if symbolic(&self.extents()) { SYMBOLS.to_vec() } else { vec![] };
        let mut memory = Memory { operands: vec![], symbols };
        let (batch, m, n) = (self.batch, self.m, self.n);
        let k = elements(&memory, &self.k);
        let sizes = [
            elements(&memory, &[batch, m]) * k,
            elements(&memory, &[batch, n]) * k,
            elements(&memory, &[n]),
            elements(&memory, &[batch, m, n]),
        ];
        let operands = self.operands();
        memory.operands = (1u64..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
        memory
    }

    fn check(&self, gpu: &jvc_runtime::Gpu, staging: Staging, wg: u32) {
        let name = format!("{:?} {} {staging:?}", self.extents(), self.dtype);
        let tolerance = if self.dtype.is_float() { CLOSE } else { EXACT };
        check(gpu, &name, &KernelSpec::Matmul(self.spec(staging, wg)), &self.memory(), tolerance);
    }
}

pub(crate) fn problem(batch: u32, m: u32, n: u32, k: &[u32]) -> Problem {
    let k = k.iter().map(|&k| Extent::Const(k)).collect();
    let c = Extent::Const;
    let dtype = DType::F32;
    Problem { batch: c(batch), m: c(m), n: c(n), k, dtype, transposed: false, turned: false, out: dtype }
}

#[test]
fn products_of_any_shape_match_in_every_staging() {
    let Some(gpu) = gpu("matmul shapes") else { return };
    let problems = [
        problem(1, 1, 1, &[1]),
        problem(1, 32, 64, &[32]),
        problem(2, 17, 13, &[19]),
        problem(3, 7, 65, &[5, 3]),
        problem(1, 33, 31, &[64]),
        problem(1, 5, 3, &[0]),
        problem(0, 5, 3, &[4]),
        problem(1, 40, 8, &[]),
        problem(1, 9, 40, &[131]),
        problem(1, 4, 16, &[3, 200]),
    ];
    for p in problems {
        for transposed in [false, true] {
            for (staging, wg) in stagings() {
                Problem { transposed, ..p.clone() }.check(&gpu, staging, wg);
            }
        }
    }
}

#[test]
fn outputs_stored_by_columns_match_in_every_staging() {
    let Some(gpu) = gpu("matmul by columns") else { return };
    let p = problem(2, 37, 29, &[50]);
    for (staging, wg) in stagings() {
        let mut spec = p.spec(staging, wg);
        let turned = [(0, p.batch), (2, p.n), (1, p.m)];
        spec.stores[0].index = row_major(&mut spec.exprs, &turned);
        check(&gpu, &format!("by columns {staging:?}"), &KernelSpec::Matmul(spec), &p.memory(), CLOSE);
    }
}

#[test]
fn symbolic_sizes_match_in_every_staging() {
    let Some(gpu) = gpu("matmul symbols") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    let base = problem(1, 1, 1, &[]);
    for (batch, m, n, k) in [
        (s(0), s(1), s(2), vec![s(3)]),
        (c(1), s(1), c(16), vec![c(24)]),
        (c(1), c(16), s(2), vec![s(4)]),
        (c(1), s(4), c(8), vec![c(8)]),
    ] {
        for (staging, wg) in stagings() {
            Problem { batch, m, n, k: k.clone(), transposed: true, ..base.clone() }.check(&gpu, staging, wg);
        }
    }
}

/// Fours along k and across, ends of tiles, a line among other k axes, one tile, and sums longer than a chain.
#[test]
fn shared_tiles_load_and_store_fours_where_memory_has_them() {
    let Some(gpu) = gpu("matmul fours") else { return };
    // Rows and columns; whether the left side has its rows last, and the right its columns first.
    let shapes = [(68, 36, false, false), (64, 64, true, true), (66, 31, false, true), (37, 72, true, false)];
    let ks = [vec![20], vec![3, 16], vec![2, 5, 24], vec![1, 8, 1], vec![1100], vec![3, 352]];
    for (k, (m, n, turned, transposed)) in ks.iter().zip(shapes.into_iter().cycle()) {
        for (staging, wg) in stagings().into_iter().rev().take(2) {
            let p = Problem { turned, transposed, ..problem(2, m, n, k) };
            // Sums of a thousand products of numbers up to 4, in chains of 512.
            let close = Tolerance { relative: 1e-5, absolute: 1e-3 };
            let spec = KernelSpec::Matmul(p.spec(staging, wg));
            check(&gpu, &format!("{k:?} {m}x{n} {staging:?}"), &spec, &p.memory(), close);
        }
    }
}

/// Chains of 512 products, then chains of their sums, in every tile: few outputs of an invocation keep the latter in registers, many in memory.
#[test]
fn sums_are_the_same_to_the_last_bit_wherever_totals_wait() {
    let Some(gpu) = gpu("matmul totals") else { return };
    let p = Problem { transposed: true, ..problem(1, 64, 128, &[2600]) };
    let memory = p.memory();
    let mut in_registers = None;
    for (rows, cols) in [(8, 4), (4, 8), (8, 8), (16, 4)] {
        let staging = Staging::Shared { bm: 64, bn: 64, bk: 16, rows, cols, buffers: 2 };
        let spec = KernelSpec::Matmul(p.spec(staging, 64 * 64 / (rows * cols)));
        for target in targets(&gpu, &spec) {
            let kernel = build(&spec, target).unwrap_or_else(|e| panic!("{rows}x{cols}: {e}"));
            #[cfg(feature = "validate")]
            jvc_kernels::validate(&kernel.words).unwrap_or_else(|e| panic!("{rows}x{cols}: {e}"));
            let text = disassemble(&kernel.words).expect("a module");
            assert_eq!(text.contains("OpTypePointer Function"), rows * cols > 32, "{rows}x{cols}: an array of its own");
            let sums = run(&gpu, &kernel, target.form, 1, &memory).operands[3].bytes.clone();
            assert!(*in_registers.get_or_insert_with(|| sums.clone()) == sums, "{rows}x{cols} {target:?}");
        }
    }
}

#[test]
fn every_type_multiplies() {
    let Some(gpu) = gpu("matmul types") else { return };
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64] {
        for (staging, wg) in [stagings()[1], stagings()[3]] {
            Problem { dtype, out: dtype, ..problem(2, 9, 21, &[18]) }.typed_check(&gpu, staging, wg);
        }
    }
}

impl Problem {
    /// Halves may be off by one unit of their last place, which the comparison allows relative to the result only; sums here are not small.
    fn typed_check(&self, gpu: &jvc_runtime::Gpu, staging: Staging, wg: u32) {
        let name = format!("{:?} {} {staging:?}", self.extents(), self.dtype);
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        let tolerance = match self.dtype {
            d if !d.is_float() => EXACT,
            _ if half => Tolerance { relative: 1e-5, absolute: 1e-2 },
            _ => CLOSE,
        };
        check(gpu, &name, &KernelSpec::Matmul(self.spec(staging, wg)), &self.memory(), tolerance);
    }
}

#[test]
fn thin_products_match_with_any_number_of_lanes() {
    let Some(gpu) = gpu("gemv") else { return };
    for m in [1, 3, 8] {
        for (threads, cols, wg) in [(8, 1, 64), (16, 2, 64), (64, 3, 64), (256, 1, 256)] {
            for (n, k) in [(5, vec![300]), (64, vec![64]), (1, vec![7, 9]), (9, vec![0])] {
                let p = Problem { transposed: true, ..problem(2, m, n, &k) };
                p.check(&gpu, Staging::Gemv { threads_per_dot: threads, cols }, wg);
            }
        }
    }
    // Blocks of 16 bytes: whole turns of all lanes, and what is left.
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (m, n, k, cols) in [(1, 5, vec![520], 2), (2, 7, vec![2, 256], 4), (4, 3, vec![1024], 1)] {
            let p = Problem { transposed: true, dtype, ..problem(2, m, n, &k) };
            p.check(&gpu, Staging::Gemv { threads_per_dot: 16, cols }, 64);
        }
    }
    let p = Problem { n: Extent::Sym(2), k: vec![Extent::Sym(3)], ..problem(1, 2, 1, &[]) };
    p.check(&gpu, Staging::Gemv { threads_per_dot: 32, cols: 3 }, 128);
}

#[test]
fn a_padded_strided_convolution_is_a_product_by_access_maps() {
    let Some(gpu) = gpu("convolution") else { return };
    for (staging, wg) in stagings() {
        let (spec, memory) = convolution(DType::F32, [5, 11, 6], staging, wg);
        let name = format!("convolution {staging:?}");
        assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &memory, CLOSE), "f32 is everywhere");
    }
}

/// A 3×3 convolution with padding 1, stride 2 and relu, NCHW, as a product: m = output channels, n = output positions, k = (channel, ky, kx).
pub(crate) fn convolution(
    dtype: DType,
    [channels, size, outputs]: [u32; 3],
    staging: Staging,
    wg: u32,
) -> (MatmulSpec, Memory) {
    let batch = 2;
    let out = (size + 2 - 3) / 2 + 1;
    let mut e = Exprs::new();
    let k = [Extent::Const(channels), Extent::Const(3), Extent::Const(3)];
    let weight_axes = [(1, Extent::Const(outputs)), (3, k[0]), (4, k[1]), (5, k[2])];
    let weight = row_major(&mut e, &weight_axes);
    let lhs = e.load(0, dtype, vec![weight]);
    let rhs = padded_input(&mut e, dtype, channels, size, out);
    let positions = Extent::Const(out * out);
    let index = row_major(&mut e, &[(0, Extent::Const(batch)), (1, Extent::Const(outputs)), (2, positions)]);
    let zero = e.f32(0.0);
    let sum = e.arg(0, Ty::F32);
    let value = e.bin(Binary::Max, sum, zero);
    let operands = vec![operand(dtype, Access::Read), operand(dtype, Access::Read), operand(DType::F32, Access::Write)];
    let sizes = [outputs * channels * 9, batch * channels * size * size, batch * outputs * out * out];
    let buffers = (1u64..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n as usize));
    let memory = Memory { operands: buffers.collect(), symbols: vec![] };
    let spec = MatmulSpec {
        interface: interface(operands, false),
        exprs: e,
        batch: Extent::Const(batch),
        m: Extent::Const(outputs),
        n: positions,
        k: k.to_vec(),
        lhs,
        rhs,
        acc: Ty::F32,
        stores: vec![Store { operand: 2, index, value, guard: None }],
        staging,
        wg,
    };
    (spec, memory)
}

/// `x[b, c, 2·oy + ky − 1, 2·ox + kx − 1]`, zero outside; n = oy·out + ox.
fn padded_input(e: &mut Exprs, dtype: DType, channels: u32, size: u32, out: u32) -> jvc_kernels::expr::ExprId {
    let (n, width, two, one) = (e.axis(2), e.i32(out as i32), e.i32(2), e.i32(1));
    let (oy, ox) = (e.bin(Binary::Div, n, width), e.bin(Binary::Rem, n, width));
    let (zero, last) = (e.i32(0), e.i32(size as i32 - 1));
    let place = |e: &mut Exprs, o, tap: u8| {
        let scaled = e.bin(Binary::Mul, o, two);
        let tap = e.axis(tap);
        let at = e.bin(Binary::Add, scaled, tap);
        let at = e.bin(Binary::Sub, at, one);
        let low = e.bin(Binary::Le, zero, at);
        let high = e.bin(Binary::Le, at, last);
        let inside = e.bin(Binary::And, low, high);
        let clamped = e.bin(Binary::Max, at, zero);
        (e.bin(Binary::Min, clamped, last), inside)
    };
    let (y, y_inside) = place(e, oy, 4);
    let (x, x_inside) = place(e, ox, 5);
    let inside = e.bin(Binary::And, y_inside, x_inside);
    let plane = row_major(e, &[(0, Extent::Const(2)), (3, Extent::Const(channels))]);
    let size = extent(e, Extent::Const(size));
    let row = e.bin(Binary::Mul, plane, size);
    let row = e.bin(Binary::Add, row, y);
    let at = e.bin(Binary::Mul, row, size);
    let at = e.bin(Binary::Add, at, x);
    let value = e.load(1, dtype, vec![at]);
    let nothing = e.f32(0.0);
    e.select(inside, value, nothing)
}
