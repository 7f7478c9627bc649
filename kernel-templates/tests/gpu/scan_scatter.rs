//! Cumulative operations and scatters.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{Access, Combine, Extent, KernelSpec, ScanSpec, ScatterMode, ScatterSpec, Store};

const CLOSE: Tolerance = Tolerance { relative: 1e-6, absolute: 1e-6 };
const HALF_ULP: Tolerance = Tolerance { relative: 6.1e-8, absolute: 0.0 };

#[test]
fn running_results_and_positions_match_along_any_line() {
    let Some(gpu) = gpu("scans") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    for (outer, len) in
        [(vec![c(5), c(3)], c(17)), (vec![], c(1)), (vec![s(0)], s(1)), (vec![c(4)], s(2)), (vec![c(2)], c(0))]
    {
        for combine in [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min] {
            for dtype in [DType::F32, DType::I32, DType::F64, DType::I64] {
                scan(&gpu, &outer, len, combine, dtype, (1, 32));
                if outer.len() == 2 || len == s(1) {
                    scan(&gpu, &outer, len, combine, dtype, (4, 32));
                }
            }
        }
    }
}

/// Tiles of 2 · 8 and of 64 · 8 elements: lines of less than one, of exactly some, and of one element more.
#[test]
fn lines_shared_by_invocations_go_on_from_tile_to_tile() {
    let Some(gpu) = gpu("scans") else { return };
    let c = Extent::Const;
    for (outer, len, threads) in [(vec![c(3)], 50, (2, 32)), (vec![c(2)], 1024, (64, 64)), (vec![], 1025, (64, 64))] {
        for combine in [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min] {
            for dtype in [DType::F32, DType::I32] {
                scan(&gpu, &outer, c(len), combine, dtype, threads);
            }
        }
    }
}

/// Ones beside a large start: a sum that forgets what rounding takes would never move. As accurate as the walk along the line.
#[test]
fn long_sums_lose_nothing_that_a_float_can_hold() {
    let Some(gpu) = gpu("scans") else { return };
    let values = (0..3000).map(|at| if at == 0 { 16_777_216.0 } else { 1.0 }).collect();
    line(&gpu, "ones beside 2^24", Combine::Sum, values, 16, HALF_ULP);
}

/// Factors beside 1, whose products are off by a hundred ulp if each is rounded.
#[test]
fn long_products_lose_nothing_that_a_float_can_hold() {
    let Some(gpu) = gpu("scans") else { return };
    let values: Vec<f32> = (0..5000).map(|at| if at % 7 < 3 { 1.000_017_3 } else { 0.999_987_1 }).collect();
    for threads in [1, 16] {
        line(&gpu, "factors beside 1", Combine::Prod, values.clone(), threads, HALF_ULP);
    }
}

/// What a product lost by rounding is no number beside these, and must not make one of them into NaN.
#[test]
fn products_that_leave_the_numbers_stay_what_they_are() {
    let Some(gpu) = gpu("scans") else { return };
    let cases = [
        ("overflow", vec![(5, 3e30), (9, -3e30), (200, 0.5)]),
        ("infinity", vec![(40, f32::INFINITY), (90, -1.0)]),
        ("infinity times zero", vec![(40, f32::INFINITY), (90, 0.0)]),
        ("zero", vec![(40, -0.0), (90, -2.0)]),
        ("underflow", vec![(5, 1e-30), (9, 1e-30), (90, 1e30)]),
        ("large and back", vec![(5, 3e30), (90, 1e-30)]),
        ("no number", vec![(40, f32::NAN)]),
    ];
    for (name, odd) in cases {
        let mut values: Vec<f32> = (0..300).map(|at| if at % 2 == 0 { 1.1 } else { 0.9 }).collect();
        odd.into_iter().for_each(|(at, value)| values[at] = value);
        for threads in [1, 16] {
            line(&gpu, name, Combine::Prod, values.clone(), threads, CLOSE);
        }
    }
}

fn line(
    gpu: &jvc_runtime::Gpu,
    name: &str,
    combine: Combine,
    values: Vec<f32>,
    threads_per_line: u32,
    tolerance: Tolerance,
) {
    let n = values.len();
    let mut e = Exprs::new();
    let i = e.axis(0);
    let value = e.load(0, DType::F32, vec![i]);
    let running = e.arg(0, Ty::F32);
    let stores = vec![Store { operand: 1, index: i, value: running, guard: None }];
    let operands = vec![operand(DType::F32, Access::Read), operand(DType::F32, Access::Write)];
    let mut memory = Memory { operands: operands.iter().map(|o| Random(4).buffer(o, n)).collect(), symbols: vec![] };
    for (at, value) in values.into_iter().enumerate() {
        memory.operands[0].store(at, Value::F32(value));
    }
    let (outer, len) = (vec![], Extent::Const(n as u32));
    let interface = interface(operands, false);
    let spec = ScanSpec { interface, exprs: e, outer, len, combine, value, stores, threads_per_line, wg: 32 };
    check(gpu, name, &KernelSpec::Scan(spec), &memory, tolerance);
}

fn scan(
    gpu: &jvc_runtime::Gpu,
    outer: &[Extent],
    len: Extent,
    combine: Combine,
    dtype: DType,
    (threads_per_line, wg): (u32, u32),
) {
    let mut e = Exprs::new();
    let extents = [outer, &[len]].concat();
    let axes: Vec<(u8, Extent)> = (0u8..).zip(extents.iter().copied()).collect();
    let index = row_major(&mut e, &axes);
    let value = e.load(0, dtype, vec![index]);
    let running = e.arg(0, dtype.ty());
    let mut stores = vec![Store { operand: 1, index, value: running, guard: None }];
    let mut operands = vec![operand(dtype, Access::Read), operand(dtype, Access::Write)];
    if matches!(combine, Combine::Max | Combine::Min) {
        let position = e.arg(1, Ty::I32);
        stores.push(Store { operand: 2, index, value: position, guard: None });
        operands.push(operand(DType::I32, Access::Write));
    }
    let symbols = if symbolic(&extents) { vec![6, 29, 0] } else { vec![] };
    let mut memory = Memory { operands: vec![], symbols };
    let n = elements(&memory, &extents);
    memory.operands = operands.iter().map(|o| Random(4).buffer(o, n)).collect();
    if dtype == DType::F32 && n > 20 {
        memory.operands[0].store(9, Value::F32(f32::NAN));
        memory.operands[0].store(20, Value::F32(0.5));
    }
    let spec = KernelSpec::Scan(ScanSpec {
        interface: interface(operands, symbolic(&extents)),
        exprs: e,
        outer: outer.to_vec(),
        len,
        combine,
        value,
        stores,
        threads_per_line,
        wg,
    });
    let exact = !dtype.is_float() || matches!(combine, Combine::Max | Combine::Min);
    check(
        gpu,
        &format!("{combine:?} {dtype} {extents:?} t{threads_per_line}"),
        &spec,
        &memory,
        if exact { EXACT } else { CLOSE },
    );
}

/// Rows of a [4, 7] target take 10 values each at indices that repeat: serial order decides.
#[test]
fn repeated_targets_are_written_in_order() {
    let Some(gpu) = gpu("scatters") else { return };
    for mode in [ScatterMode::Set, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Max, ScatterMode::Min] {
        for dtype in [DType::F32, DType::I32, DType::F16, DType::I64, DType::Bool] {
            for guarded in [false, true] {
                scatter(&gpu, mode, dtype, guarded);
            }
        }
    }
}

fn scatter(gpu: &jvc_runtime::Gpu, mode: ScatterMode, dtype: DType, guarded: bool) {
    let mut e = Exprs::new();
    let (rows, width, count) = (Extent::Const(4), 7, Extent::Const(10));
    let source = row_major(&mut e, &[(0, rows), (1, count)]);
    let value = e.load(0, dtype, vec![source]);
    let column = e.load(1, DType::I32, vec![source]);
    let (row, w) = (e.axis(0), e.i32(width));
    let base = e.bin(Binary::Mul, row, w);
    let index = e.bin(Binary::Add, base, column);
    let (two, zero) = (e.i32(2), e.i32(0));
    let parity = e.bin(Binary::Rem, source, two);
    let even = e.bin(Binary::Eq, parity, zero);
    let operands =
        vec![operand(dtype, Access::Read), operand(DType::I32, Access::Read), operand(dtype, Access::ReadWrite)];
    let mut buffers: Vec<_> = operands.iter().zip([40, 40, 28]).map(|(o, n)| Random(n as u64).buffer(o, n)).collect();
    let mut random = Random(8);
    for i in 0..40 {
        buffers[1].store(i, Value::I32(random.below(width as u32) as i32));
    }
    let spec = KernelSpec::Scatter(ScatterSpec {
        interface: interface(operands, false),
        exprs: e,
        outer: vec![rows],
        inner: vec![count],
        mode,
        store: Store { operand: 2, index, value, guard: guarded.then_some(even) },
        wg: 32,
    });
    let memory = Memory { operands: buffers, symbols: vec![] };
    check(
        gpu,
        &format!("{mode:?} {dtype} guarded={guarded}"),
        &spec,
        &memory,
        if dtype == DType::F16 { CLOSE } else { EXACT },
    );
}
