//! Access maps through the templates: gathers at loaded indices, windows with padding (pools), stores into a part of a buffer.

use crate::spec::{extent, interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use jvc_kernels::host::{HostBuffer, Memory};
use jvc_kernels::spec::{Access, Combine, Extent, KernelSpec, MapSpec, MatmulSpec, RowSpec, Stage, Staging, Store};

const CLOSE: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-5 };
const ROWS: u32 = 11;

/// Row numbers of a table with [`ROWS`] rows.
fn ids(dtype: DType, n: usize) -> HostBuffer {
    let (mut random, mut buffer) = (Random(5), Random(5).buffer(&operand(dtype, Access::Read), n));
    for i in 0..n {
        buffer.store(i, Value::from_f64(dtype.ty(), random.below(ROWS).into()));
    }
    buffer
}

/// Index in the table of the row that operand 1 names at `at`, and this column.
fn table_at(e: &mut Exprs, ids: DType, at: ExprId, column: u8, width: Extent) -> ExprId {
    let id = e.load(1, ids, vec![at]);
    let id = e.cast(Ty::I32, id);
    let width = extent(e, width);
    let first = e.bin(Binary::Mul, id, width);
    let column = e.axis(column);
    e.bin(Binary::Add, first, column)
}

fn memory(operands: &[jvc_kernels::spec::Operand], id_type: DType, sizes: [usize; 3], symbols: &[u32]) -> Memory {
    let mut buffers: Vec<HostBuffer> =
        (1..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
    buffers[1] = ids(id_type, sizes[1]);
    Memory { operands: buffers, symbols: symbols.to_vec() }
}

#[test]
fn rows_are_gathered_by_loaded_numbers() {
    let Some(gpu) = gpu("gathers") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    for (count, width) in [(c(7), c(5)), (c(1), c(1)), (c(40), c(3)), (s(0), s(1)), (c(0), c(4))] {
        for (dtype, id_type) in
            [(DType::F32, DType::I32), (DType::F32, DType::I64), (DType::F16, DType::I32), (DType::I32, DType::U8)]
        {
            let mut e = Exprs::new();
            let at = e.axis(0);
            let from = table_at(&mut e, id_type, at, 1, width);
            let value = e.load(0, dtype, vec![from]);
            let index = row_major(&mut e, &[(0, count), (1, width)]);
            let operands =
                vec![operand(dtype, Access::Read), operand(id_type, Access::Read), operand(dtype, Access::Write)];
            let is_symbolic = symbolic(&[count]);
            let mut sizes = Memory { operands: vec![], symbols: if is_symbolic { vec![23, 6] } else { vec![] } };
            let (n, w) = (elements(&sizes, &[count]), elements(&sizes, &[width]));
            let memory = memory(&operands, id_type, [ROWS as usize * w, n, n * w], &std::mem::take(&mut sizes.symbols));
            let spec = KernelSpec::Map(MapSpec {
                interface: interface(operands, is_symbolic),
                exprs: e,
                domain: vec![count, width],
                stores: vec![Store { operand: 2, index, value, guard: None }],
                per_thread: 1,
                wg: 32,
                turned: None,
            });
            check(&gpu, &format!("gather {dtype} by {id_type} {count:?} {width:?}"), &spec, &memory, EXACT);
        }
    }
}

/// An embedding bag: each row of the result sums the table's rows that a list names.
#[test]
fn gathered_rows_are_summed() {
    let Some(gpu) = gpu("gathered sums") else { return };
    for (bags, len, width) in [(3, 5, 4), (1, 70, 3), (4, 1, 9)] {
        for (threads_per_row, wg) in [(1, 32), (16, 64)] {
            let (bags, len, width) = (Extent::Const(bags), Extent::Const(len), Extent::Const(width));
            let mut e = Exprs::new();
            let at = row_major(&mut e, &[(0, bags), (2, len)]);
            let from = table_at(&mut e, DType::I32, at, 1, width);
            let value = e.load(0, DType::F32, vec![from]);
            let (index, sum) = (row_major(&mut e, &[(0, bags), (1, width)]), e.arg(0, Ty::F32));
            let operands = vec![
                operand(DType::F32, Access::Read),
                operand(DType::I32, Access::Read),
                operand(DType::F32, Access::Write),
            ];
            let none = Memory { operands: vec![], symbols: vec![] };
            let [b, l, w] = [bags, len, width].map(|x| elements(&none, &[x]));
            let memory = memory(&operands, DType::I32, [ROWS as usize * w, b * l, b * w], &[]);
            let spec = KernelSpec::Row(RowSpec {
                interface: interface(operands, false),
                copies: 1,
                exprs: e,
                outer: vec![bags, width],
                inner: vec![len],
                stages: vec![Stage { combine: Combine::Sum, value }],
                row_stores: vec![Store { operand: 2, index, value: sum, guard: None }],
                element_stores: vec![],
                threads_per_row,
                wg,
            });
            assert!(check(&gpu, "embedding bag", &spec, &memory, CLOSE), "f32 is everywhere");
        }
    }
}

#[test]
fn a_product_of_gathered_rows_matches() {
    let Some(gpu) = gpu("gathered product") else { return };
    let (m, n, k) = (Extent::Const(7), Extent::Const(ROWS), Extent::Const(6));
    for (staging, wg) in [
        (Staging::Registers { rows: 4, cols: 2 }, 64),
        (Staging::Shared { bm: 16, bn: 16, bk: 8, rows: 2, cols: 2, buffers: 1 }, 64),
        (Staging::Gemv { threads_per_dot: 16, cols: 2 }, 64),
    ] {
        let mut e = Exprs::new();
        let at = e.axis(1);
        let from = table_at(&mut e, DType::I32, at, 3, k);
        let lhs = e.load(0, DType::F32, vec![from]);
        let right = row_major(&mut e, &[(2, n), (3, k)]);
        let rhs = e.load(0, DType::F32, vec![right]);
        let (index, value) = (row_major(&mut e, &[(1, m), (2, n)]), e.arg(0, Ty::F32));
        let operands = vec![
            operand(DType::F32, Access::Read),
            operand(DType::I32, Access::Read),
            operand(DType::F32, Access::Write),
        ];
        let memory = memory(&operands, DType::I32, [ROWS as usize * 6, 7, 7 * ROWS as usize], &[]);
        let spec = KernelSpec::Matmul(MatmulSpec {
            interface: interface(operands, false),
            exprs: e,
            batch: Extent::Const(1),
            m,
            n,
            k: vec![k],
            lhs,
            rhs,
            acc: Ty::F32,
            stores: vec![Store { operand: 2, index, value, guard: None }],
            staging,
            wg,
        });
        assert!(check(&gpu, &format!("{staging:?}"), &spec, &memory, CLOSE), "f32 is everywhere");
    }
}

/// A window over two axes with stride 2 and padding 1: what lies outside counts as −∞, or as nothing.
#[test]
fn pools_are_rows_over_windows() {
    let Some(gpu) = gpu("pools") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    for (planes, height, width) in [(c(3), c(9), c(7)), (c(1), c(1), c(2)), (s(0), s(1), s(2))] {
        for combine in [Combine::Max, Combine::ArgMax, Combine::Sum] {
            for (threads_per_row, wg) in [(1, 32), (4, 32)] {
                pool(&gpu, [planes, height, width], combine, (threads_per_row, wg));
            }
        }
    }
}

/// Symbols: planes, height, width, and their outputs `(x + 2 − 3) / 2 + 1`.
const SYMBOLS: [u32; 5] = [2, 6, 11, 3, 6];

fn pool(gpu: &jvc_runtime::Gpu, input: [Extent; 3], combine: Combine, (threads_per_row, wg): (u32, u32)) {
    let [planes, height, width] = input;
    let pooled = |x: Extent| match x {
        Extent::Const(n) => Extent::Const((n - 1) / 2 + 1),
        Extent::Sym(word) => Extent::Sym(word + 2),
    };
    let outer = vec![planes, pooled(height), pooled(width)];
    let mut e = Exprs::new();
    let (y, y_inside) = window_at(&mut e, 1, 3, height);
    let (x, x_inside) = window_at(&mut e, 2, 4, width);
    let (plane, rows, columns) = (e.axis(0), extent(&mut e, height), extent(&mut e, width));
    let row = e.bin(Binary::Mul, plane, rows);
    let row = e.bin(Binary::Add, row, y);
    let first = e.bin(Binary::Mul, row, columns);
    let at = e.bin(Binary::Add, first, x);
    let loaded = e.load(0, DType::F32, vec![at]);
    let inside = e.bin(Binary::And, y_inside, x_inside);
    let outside = e.f32(if combine == Combine::Sum { 0.0 } else { f32::NEG_INFINITY });
    let value = e.select(inside, loaded, outside);
    let axes: Vec<(u8, Extent)> = (0..).zip(outer.iter().copied()).collect();
    let index = row_major(&mut e, &axes);
    let result = if combine == Combine::ArgMax { DType::I32 } else { DType::F32 };
    let stored = e.arg(0, result.ty());
    let operands = vec![operand(DType::F32, Access::Read), operand(result, Access::Write)];
    let is_symbolic = symbolic(&input);
    let mut memory = Memory { operands: vec![], symbols: if is_symbolic { SYMBOLS.to_vec() } else { vec![] } };
    let sizes = [elements(&memory, &input), elements(&memory, &outer)];
    memory.operands = operands.iter().zip(sizes).map(|(o, n)| Random(3).buffer(o, n)).collect();
    let spec = KernelSpec::Row(RowSpec {
        interface: interface(operands, is_symbolic),
        copies: 1,
        exprs: e,
        outer,
        inner: vec![Extent::Const(3), Extent::Const(3)],
        stages: vec![Stage { combine, value }],
        row_stores: vec![Store { operand: 1, index, value: stored, guard: None }],
        element_stores: vec![],
        threads_per_row,
        wg,
    });
    let tolerance = if combine == Combine::Sum { CLOSE } else { EXACT };
    assert!(check(gpu, &format!("{combine:?} {input:?}"), &spec, &memory, tolerance), "f32 is everywhere");
}

/// Coordinate `2·outer + inner − 1`, clamped to the input, and whether it was inside.
fn window_at(e: &mut Exprs, outer: u8, inner: u8, size: Extent) -> (ExprId, ExprId) {
    let (outer, inner) = (e.axis(outer), e.axis(inner));
    let (zero, one, two) = (e.i32(0), e.i32(1), e.i32(2));
    let at = e.bin(Binary::Mul, outer, two);
    let at = e.bin(Binary::Add, at, inner);
    let at = e.bin(Binary::Sub, at, one);
    let size = extent(e, size);
    let last = e.bin(Binary::Sub, size, one);
    let (low, high) = (e.bin(Binary::Le, zero, at), e.bin(Binary::Le, at, last));
    let inside = e.bin(Binary::And, low, high);
    let clamped = e.bin(Binary::Max, at, zero);
    (e.bin(Binary::Min, clamped, last), inside)
}
