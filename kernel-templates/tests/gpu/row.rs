//! The row template: every combination, several stages, serial and cooperative, odd shapes.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{Access, Combine, Extent, KernelSpec, RowSpec, Stage, Store};

const CLOSE: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-5 };

const COMBINES: [Combine; 8] = [
    Combine::Sum,
    Combine::Prod,
    Combine::Max,
    Combine::Min,
    Combine::Any,
    Combine::All,
    Combine::ArgMax,
    Combine::ArgMin,
];

/// (threads per row, workgroup).
const SHARINGS: [(u32, u32); 4] = [(1, 64), (8, 32), (64, 64), (256, 256)];

fn shapes() -> Vec<(Vec<Extent>, Vec<Extent>)> {
    let (c, s) = (Extent::Const, Extent::Sym);
    vec![
        (vec![c(5)], vec![c(1)]),
        (vec![c(37)], vec![c(13)]),
        (vec![c(5)], vec![c(3), c(40)]),
        (vec![], vec![c(300)]),
        (vec![c(2), c(3)], vec![c(7), c(11)]),
        (vec![s(0), c(2)], vec![s(1)]),
        (vec![c(4)], vec![s(2), c(5)]),
        (vec![c(3)], vec![c(0)]),
        (vec![c(0)], vec![c(4)]),
        (vec![s(3)], vec![c(4)]),
        (vec![c(6)], vec![s(3)]),
    ]
}

const SYMBOLS: [u32; 4] = [3, 129, 17, 0];

struct Shape {
    outer: Vec<Extent>,
    inner: Vec<Extent>,
}

impl Shape {
    fn extents(&self) -> Vec<Extent> {
        self.outer.iter().chain(&self.inner).copied().collect()
    }

    fn index(&self, e: &mut Exprs) -> ExprId {
        let axes: Vec<(u8, Extent)> = (0u8..).zip(self.extents()).collect();
        row_major(e, &axes)
    }

    fn row(&self, e: &mut Exprs) -> ExprId {
        let axes: Vec<(u8, Extent)> = (0u8..).zip(self.outer.iter().copied()).collect();
        row_major(e, &axes)
    }

    fn memory(&self) -> Memory {
        let symbols = if symbolic(&self.extents()) { SYMBOLS.to_vec() } else { vec![] };
        Memory { operands: vec![], symbols }
    }
}

#[test]
fn every_combination_of_every_type_reduces_rows_of_any_shape() {
    let Some(gpu) = gpu("reductions") else { return };
    for (outer, inner) in shapes() {
        let shape = Shape { outer, inner };
        for combine in COMBINES {
            let types: &[DType] = match combine {
                Combine::Any | Combine::All => &[DType::Bool],
                _ => &[DType::F32, DType::I32],
            };
            for &dtype in types {
                for (k, sharing) in SHARINGS.into_iter().enumerate() {
                    // Every sharing on two shapes, one in turn on the others.
                    let all = shape.inner == [Extent::Const(13)] || shape.inner == [Extent::Const(300)];
                    if all || k == shape.outer.len() % SHARINGS.len() || k == 0 {
                        reduce(&gpu, &shape, combine, dtype, sharing);
                    }
                }
            }
        }
    }
}

#[test]
fn wide_types_reduce_where_the_device_has_them() {
    let Some(gpu) = gpu("wide reductions") else { return };
    let shape = Shape { outer: vec![Extent::Const(3)], inner: vec![Extent::Const(77)] };
    for dtype in [DType::I64, DType::F64, DType::F16, DType::BF16, DType::U8] {
        for combine in [Combine::Sum, Combine::Max, Combine::ArgMin] {
            for sharing in [(1, 32), (32, 64)] {
                reduce(&gpu, &shape, combine, dtype, sharing);
            }
        }
    }
}

fn reduce(gpu: &jvc_runtime::Gpu, shape: &Shape, combine: Combine, dtype: DType, (threads, wg): (u32, u32)) {
    let mut e = Exprs::new();
    let (index, row) = (shape.index(&mut e), shape.row(&mut e));
    let value = e.load(0, dtype, vec![index]);
    let position = matches!(combine, Combine::ArgMax | Combine::ArgMin);
    let result = if position { DType::I32 } else { dtype };
    let stored = e.arg(0, result.ty());
    let operands = vec![operand(dtype, Access::Read), operand(result, Access::Write)];
    let mut memory = shape.memory();
    let (n, rows) = (elements(&memory, &shape.extents()), elements(&memory, &shape.outer));
    memory.operands = vec![Random(n as u64).buffer(&operands[0], n), Random(1).buffer(&operands[1], rows)];
    if combine == Combine::Prod {
        // Products of many numbers around 1 stay in range.
        for i in 0..n {
            let v = memory.operands[0].load(i).to_f64();
            let v = if dtype.is_float() { 1.0 + v / 20.0 } else { 1.0 - 2.0 * (v.abs() % 2.0) };
            memory.operands[0].store(i, Value::from_f64(dtype.ty(), v));
        }
    }
    let spec = KernelSpec::Row(RowSpec {
        interface: interface(operands, symbolic(&shape.extents())),
        copies: 1,
        exprs: e,
        outer: shape.outer.clone(),
        inner: shape.inner.clone(),
        stages: vec![Stage { combine, value }],
        row_stores: vec![Store { operand: 1, index: row, value: stored, guard: None }],
        element_stores: vec![],
        threads_per_row: threads,
        wg,
    });
    let exact = !dtype.is_float() || matches!(combine, Combine::Max | Combine::Min) || position;
    let tolerance = if exact { EXACT } else { CLOSE };
    let name = format!("{combine:?} {dtype} {:?} {:?} {threads}/{wg}", shape.outer, shape.inner);
    check(gpu, &name, &spec, &memory, tolerance);
}

#[test]
fn the_first_of_equal_extremes_and_the_first_nan_win() {
    let Some(gpu) = gpu("ties") else { return };
    let rows: [[f32; 6]; 6] = [
        [1.0, 3.0, 3.0, 0.0, 0.0, 3.0],
        [f32::NEG_INFINITY; 6],
        [f32::INFINITY; 6],
        [2.0, f32::NAN, 9.0, f32::NAN, -9.0, 1.0],
        [0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
        [f32::NAN; 6],
    ];
    for combine in [Combine::ArgMax, Combine::ArgMin, Combine::Max, Combine::Min] {
        for (threads_per_row, wg) in [(1, 32), (2, 32), (8, 8)] {
            let mut e = Exprs::new();
            let index = row_major(&mut e, &[(0, Extent::Const(6)), (1, Extent::Const(6))]);
            let value = e.load(0, DType::F32, vec![index]);
            let row = e.axis(0);
            let position = matches!(combine, Combine::ArgMax | Combine::ArgMin);
            let result = if position { DType::I32 } else { DType::F32 };
            let stored = e.arg(0, result.ty());
            let operands = vec![operand(DType::F32, Access::Read), operand(result, Access::Write)];
            let mut buffers: Vec<_> = operands.iter().map(|o| Random(1).buffer(o, 36)).collect();
            for (i, v) in rows.iter().flatten().enumerate() {
                buffers[0].store(i, Value::F32(*v));
            }
            let spec = KernelSpec::Row(RowSpec {
                interface: interface(operands, false),
                copies: 1,
                exprs: e,
                outer: vec![Extent::Const(6)],
                inner: vec![Extent::Const(6)],
                stages: vec![Stage { combine, value }],
                row_stores: vec![Store { operand: 1, index: row, value: stored, guard: None }],
                element_stores: vec![],
                threads_per_row,
                wg,
            });
            let memory = Memory { operands: buffers, symbols: vec![] };
            check(&gpu, &format!("{combine:?} by {threads_per_row}"), &spec, &memory, EXACT);
        }
    }
}

#[test]
fn long_sums_keep_their_digits_and_infinite_ones_stay_infinite() {
    let Some(gpu) = gpu("long sums") else { return };
    // All of one sign: a plain sum loses digits, and nothing cancels.
    let first = |i: usize| 1.0 + (i % 7) as f32 * 0.013;
    long_rows(&gpu, Combine::Sum, &first, [f32::INFINITY, 3e38, 3e38], 2e-7);
}

/// Factors beside 1, whose products are off by fifty ulp if each is rounded, in whatever order.
#[test]
fn long_products_keep_their_digits_and_infinite_ones_stay_infinite() {
    let Some(gpu) = gpu("long products") else { return };
    let first = |i: usize| if i % 7 < 3 { 1.000_017_3 } else { 0.999_987_1 };
    long_rows(&gpu, Combine::Prod, &first, [f32::INFINITY, 3e38, -3e38], 6.1e-8);
}

/// Three rows: one of the `first` values, one with an odd one, and one with two of them side by side; the others of a sum are random.
fn long_rows(gpu: &jvc_runtime::Gpu, combine: Combine, first: &dyn Fn(usize) -> f32, odd: [f32; 3], relative: f64) {
    let (rows, len) = (Extent::Const(3), 20_000);
    for (threads_per_row, wg) in [(1, 8), (64, 64)] {
        let mut e = Exprs::new();
        let index = row_major(&mut e, &[(0, rows), (1, Extent::Const(len))]);
        let value = e.load(0, DType::F32, vec![index]);
        let (row, stored) = (e.axis(0), e.arg(0, Ty::F32));
        let operands = vec![operand(DType::F32, Access::Read), operand(DType::F32, Access::Write)];
        let sizes = [3 * len as usize, 3];
        let mut buffers: Vec<_> = operands.iter().zip(sizes).map(|(o, n)| Random(6).buffer(o, n)).collect();
        for i in 0..3 * len as usize {
            if i < len as usize || combine == Combine::Prod {
                buffers[0].store(i, Value::F32(first(i)));
            }
        }
        buffers[0].store(len as usize + 5, Value::F32(odd[0]));
        buffers[0].store(2 * len as usize + 5, Value::F32(odd[1]));
        buffers[0].store(2 * len as usize + 6, Value::F32(odd[2]));
        let spec = KernelSpec::Row(RowSpec {
            interface: interface(operands, false),
            copies: 1,
            exprs: e,
            outer: vec![rows],
            inner: vec![Extent::Const(len)],
            stages: vec![Stage { combine, value }],
            row_stores: vec![Store { operand: 1, index: row, value: stored, guard: None }],
            element_stores: vec![],
            threads_per_row,
            wg,
        });
        let memory = Memory { operands: buffers, symbols: vec![] };
        let close = Tolerance { relative, absolute: 0.0 };
        assert!(check(gpu, &format!("{combine:?} by {threads_per_row}"), &spec, &memory, close), "f32 is everywhere");
    }
}

#[test]
fn softmax_and_layer_norm_are_rows_of_stages() {
    let Some(gpu) = gpu("softmax") else { return };
    // Halves come by single ones, 16 bytes and 8 bytes.
    for (outer, inner) in [
        (vec![Extent::Const(7)], 33),
        (vec![Extent::Sym(0), Extent::Const(5)], 200),
        (vec![Extent::Const(3)], 1000),
        (vec![Extent::Const(5)], 1500),
        (vec![Extent::Const(3)], 2 * 2052),
    ] {
        let shape = Shape { outer, inner: vec![Extent::Const(inner)] };
        for (threads, wg) in SHARINGS {
            for dtype in [DType::F32, DType::F16] {
                let softmax = softmax(&shape, dtype, threads, wg);
                check_rows(&gpu, &format!("softmax {dtype} {threads}/{wg}"), &shape, softmax, dtype);
                let norm = layer_norm(&shape, dtype, inner, threads, wg);
                check_rows(&gpu, &format!("norm {dtype} {threads}/{wg}"), &shape, norm, dtype);
            }
        }
    }
}

#[test]
fn a_nan_reaches_all_of_its_row_in_a_softmax_and_no_other() {
    let Some(gpu) = gpu("softmax with NaN") else { return };
    let shape = Shape { outer: vec![Extent::Const(4)], inner: vec![Extent::Const(1500)] };
    for (threads, wg) in SHARINGS {
        for dtype in [DType::F32, DType::F16] {
            let operands = [operand(dtype, Access::Read), operand(dtype, Access::Write)];
            let mut memory = shape.memory();
            memory.operands = operands.iter().map(|o| Random(2).buffer(o, 6000)).collect();
            memory.operands[0].store(700, Value::F32(f32::NAN));
            (1500..3000).for_each(|i| memory.operands[0].store(i, Value::F32(f32::NAN)));
            memory.operands[0].store(3001, Value::F32(f32::NEG_INFINITY));
            let spec = KernelSpec::Row(softmax(&shape, dtype, threads, wg));
            check(&gpu, &format!("softmax with NaN {dtype} {threads}/{wg}"), &spec, &memory, CLOSE);
        }
    }
}

#[test]
fn copies_of_a_kernel_have_operands_of_their_own() {
    let Some(gpu) = gpu("copies") else { return };
    let shape = Shape { outer: vec![Extent::Const(3), Extent::Const(7)], inner: vec![Extent::Const(100)] };
    let of_a_copy = [operand(DType::F32, Access::Read), operand(DType::F32, Access::Write)];
    for (copies, (threads, wg)) in [(2, (32, 64)), (3, (64, 64)), (4, (8, 32))] {
        let mut spec = softmax(&shape, DType::F32, threads, wg);
        let operands: Vec<_> = (0..copies).flat_map(|_| of_a_copy.clone()).collect();
        spec.copies = copies;
        spec.interface = interface(operands.clone(), false);
        let mut memory = shape.memory();
        memory.operands = (0..).zip(&operands).map(|(i, o)| Random(i).buffer(o, 2100)).collect();
        check(&gpu, &format!("{copies} copies"), &KernelSpec::Row(spec), &memory, CLOSE);
    }
}

fn check_rows(gpu: &jvc_runtime::Gpu, name: &str, shape: &Shape, spec: RowSpec, dtype: DType) {
    let mut memory = shape.memory();
    let n = elements(&memory, &shape.extents());
    let operands = [operand(dtype, Access::Read), operand(dtype, Access::Write)];
    memory.operands = operands.iter().map(|o| Random(2).buffer(o, n)).collect();
    check(gpu, name, &KernelSpec::Row(spec), &memory, CLOSE);
}

fn rows_of(
    shape: &Shape,
    dtype: DType,
    exprs: Exprs,
    stages: Vec<Stage>,
    store: Store,
    sharing: (u32, u32),
) -> RowSpec {
    let operands = vec![operand(dtype, Access::Read), operand(dtype, Access::Write)];
    RowSpec {
        interface: interface(operands, symbolic(&shape.extents())),
        copies: 1,
        exprs,
        outer: shape.outer.clone(),
        inner: shape.inner.clone(),
        stages,
        row_stores: vec![],
        element_stores: vec![store],
        threads_per_row: sharing.0,
        wg: sharing.1,
    }
}

fn softmax(shape: &Shape, dtype: DType, threads: u32, wg: u32) -> RowSpec {
    let mut e = Exprs::new();
    let index = shape.index(&mut e);
    let x = e.load(0, dtype, vec![index]);
    let (max, sum) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
    let shifted = e.bin(Binary::Sub, x, max);
    let exp = e.un(Unary::Exp, shifted);
    let value = e.bin(Binary::Div, exp, sum);
    let stages = vec![Stage { combine: Combine::Max, value: x }, Stage { combine: Combine::Sum, value: exp }];
    rows_of(shape, dtype, e, stages, Store { operand: 1, index, value, guard: None }, (threads, wg))
}

fn layer_norm(shape: &Shape, dtype: DType, n: u32, threads: u32, wg: u32) -> RowSpec {
    let mut e = Exprs::new();
    let index = shape.index(&mut e);
    let x = e.load(0, dtype, vec![index]);
    let (sum, squares) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
    let count = e.f32(n as f32);
    let mean = e.bin(Binary::Div, sum, count);
    let centred = e.bin(Binary::Sub, x, mean);
    let square = e.bin(Binary::Mul, centred, centred);
    let variance = e.bin(Binary::Div, squares, count);
    let eps = e.f32(1e-5);
    let variance = e.bin(Binary::Add, variance, eps);
    let scale = e.un(Unary::Rsqrt, variance);
    let value = e.bin(Binary::Mul, centred, scale);
    let stages = vec![Stage { combine: Combine::Sum, value: x }, Stage { combine: Combine::Sum, value: square }];
    rows_of(shape, dtype, e, stages, Store { operand: 1, index, value, guard: None }, (threads, wg))
}
