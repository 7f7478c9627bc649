//! 64-bit integers, the device's own and by words, against Rust's arithmetic: every operation on the ends of the range, the ends of words, and
//! random numbers of every length.

use crate::spec::{interface, operand, row_major};
use crate::support::{Random, gpu, limits, run, targets};
use jvc_kernels::dtype::{DType, Storage, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::host::{HostBuffer, Memory};
use jvc_kernels::spec::{Access, Combine, Extent, KernelSpec, MapSpec, RowSpec, Stage, Store};
use jvc_kernels::{build, constraints};

/// 0, ±1, and the neighbours of every power of two that bounds a word, a float's mantissa, or the range.
fn edges() -> Vec<i64> {
    let mut values = vec![0, 1, 2, 3, 5, 7, 10, 0x00ff_00ff_00ff_00ff, i64::MAX, i64::MAX - 1];
    for bit in [8, 16, 23, 24, 25, 31, 32, 33, 40, 47, 48, 53, 54, 62] {
        values.extend([(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    }
    values.extend(values.clone().into_iter().map(|v| -v));
    values.extend([i64::MIN, i64::MIN + 1]);
    values.sort_unstable();
    values.dedup();
    values
}

/// A random number of a random length.
fn of_any_length(random: &mut Random) -> i64 {
    let bits = u64::from(random.bits()) << 32 | u64::from(random.bits());
    (bits as i64) >> random.below(64)
}

/// All pairs of edges, then random ones; the second of a pair is now and then near a divisor of the first.
fn pairs() -> (Vec<i64>, Vec<i64>) {
    let edges = edges();
    let mut pairs: Vec<(i64, i64)> = edges.iter().flat_map(|&a| edges.iter().map(move |&b| (a, b))).collect();
    let mut random = Random(17);
    for _ in 0..2000 {
        let (a, b) = (of_any_length(&mut random), of_any_length(&mut random));
        let product = a.wrapping_mul(b);
        pairs.extend([(a, b), (a, i64::from(b as i32)), (product, b), (product.wrapping_sub(1), b)]);
    }
    pairs.into_iter().unzip()
}

fn buffer(dtype: DType, values: impl ExactSizeIterator<Item = Value>) -> HostBuffer {
    let mut buffer = HostBuffer::zeros(dtype, Storage::Native, values.len());
    values.enumerate().for_each(|(i, v)| buffer.store(i, v));
    buffer
}

fn integers(values: &[i64]) -> HostBuffer {
    buffer(DType::I64, values.iter().map(|&v| Value::I64(v)))
}

/// Runs `body` of the inputs' elements for every target, and hands each element of each result, with its place, to `judge`.
fn elementwise(
    gpu: &jvc_runtime::Gpu,
    inputs: &[HostBuffer],
    out: DType,
    body: impl FnOnce(&mut Exprs, &[ExprId]) -> Vec<ExprId>,
    judge: impl Fn(usize, usize, Value),
) {
    let n = inputs[0].len();
    let mut e = Exprs::new();
    let index = row_major(&mut e, &[(0, Extent::Const(n as u32))]);
    let loads: Vec<ExprId> = (0..).zip(inputs).map(|(i, b)| e.load(i, b.dtype, vec![index])).collect();
    let results = body(&mut e, &loads);
    let count = e.i32(n as i32);
    let mut place = |k: usize| {
        let k = e.i32(k as i32);
        let base = e.bin(Binary::Mul, k, count);
        e.bin(Binary::Add, base, index)
    };
    let target = inputs.len() as u16;
    let store = |(k, &value)| Store { operand: target, index: place(k), value, guard: None };
    let stores: Vec<Store> = results.iter().enumerate().map(store).collect();
    let mut operands: Vec<_> = inputs.iter().map(|b| operand(b.dtype, Access::Read)).collect();
    operands.push(operand(out, Access::Write));
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(operands, false),
        exprs: e,
        domain: vec![Extent::Const(n as u32)],
        stores,
        per_thread: 1,
        wg: 64,
        turned: None,
    });
    let mut buffers = inputs.to_vec();
    buffers.push(HostBuffer::zeros(out, Storage::Native, n * results.len()));
    let memory = Memory { operands: buffers, symbols: vec![] };
    on_every_target(gpu, &spec, &memory, |have| {
        (0..n * results.len()).for_each(|i| judge(i / n, i % n, have.load(i)));
    });
}

/// Runs for every target and hands the last operand to `judge`.
fn on_every_target(gpu: &jvc_runtime::Gpu, spec: &KernelSpec, memory: &Memory, judge: impl Fn(&HostBuffer)) {
    if constraints(spec, &limits(gpu)).is_err() {
        return;
    }
    for target in targets(gpu, spec) {
        let kernel = build(spec, target).expect("the spec is sound");
        #[cfg(feature = "validate")]
        jvc_kernels::validate(&kernel.words).expect("the module is valid");
        let after = run(gpu, &kernel, target.form, 1, memory);
        judge(after.operands.last().expect("a result"));
    }
}

type BinaryCase = (Binary, fn(i64, i64) -> i64);

/// Division by zero is left out: its value is not promised.
const ARITHMETIC: [BinaryCase; 10] = [
    (Binary::Add, i64::wrapping_add),
    (Binary::Sub, i64::wrapping_sub),
    (Binary::Mul, i64::wrapping_mul),
    (Binary::Max, |a, b| a.max(b)),
    (Binary::Min, |a, b| a.min(b)),
    (Binary::And, |a, b| a & b),
    (Binary::Or, |a, b| a | b),
    (Binary::Xor, |a, b| a ^ b),
    (Binary::Div, |a, b| a.wrapping_div(if b == 0 { 1 } else { b })),
    (Binary::Rem, |a, b| a.wrapping_rem(if b == 0 { 1 } else { b })),
];

#[test]
fn arithmetic_on_pairs_is_that_of_64_bits() {
    let Some(gpu) = gpu("64-bit arithmetic") else { return };
    let (a, b) = pairs();
    let inputs = [integers(&a), integers(&b)];
    let body = |e: &mut Exprs, x: &[ExprId]| ARITHMETIC.iter().map(|(op, _)| e.bin(*op, x[0], x[1])).collect();
    elementwise(&gpu, &inputs, DType::I64, body, |k, i, have| {
        let (op, want) = ARITHMETIC[k];
        let undefined = b[i] == 0 && matches!(op, Binary::Div | Binary::Rem);
        assert!(undefined || have == Value::I64(want(a[i], b[i])), "{op:?}({}, {}) = {have:?}", a[i], b[i]);
    });
}

#[test]
fn comparisons_of_pairs_are_those_of_64_bits() {
    let Some(gpu) = gpu("64-bit comparisons") else { return };
    type Case = (Binary, fn(&i64, &i64) -> bool);
    let cases: [Case; 4] = [(Binary::Eq, i64::eq), (Binary::Ne, i64::ne), (Binary::Lt, i64::lt), (Binary::Le, i64::le)];
    let (a, b) = pairs();
    let inputs = [integers(&a), integers(&b)];
    let body = |e: &mut Exprs, x: &[ExprId]| {
        let truth = cases.iter().map(|(op, _)| e.bin(*op, x[0], x[1])).collect::<Vec<_>>();
        truth.into_iter().map(|t| e.cast(Ty::I32, t)).collect()
    };
    elementwise(&gpu, &inputs, DType::I32, body, |k, i, have| {
        let (op, want) = cases[k];
        assert_eq!(have, Value::I32(want(&a[i], &b[i]).into()), "{op:?}({}, {})", a[i], b[i]);
    });
}

#[test]
fn selections_take_all_64_bits() {
    let Some(gpu) = gpu("64-bit selections") else { return };
    let (a, b) = pairs();
    let conditions: Vec<bool> = (0..a.len()).map(|i| i % 3 == 0).collect();
    let words = buffer(DType::I32, conditions.iter().map(|&c| Value::I32(c.into())));
    let body = |e: &mut Exprs, x: &[ExprId]| {
        let condition = e.cast(Ty::Bool, x[2]);
        vec![e.select(condition, x[0], x[1])]
    };
    elementwise(&gpu, &[integers(&a), integers(&b), words], DType::I64, body, |_, i, have| {
        assert_eq!(have, Value::I64(if conditions[i] { a[i] } else { b[i] }), "{} or {}", a[i], b[i]);
    });
}

#[test]
fn one_operand_and_constant_operations_are_those_of_64_bits() {
    let Some(gpu) = gpu("64-bit constants") else { return };
    let (a, _) = pairs();
    let constants = [1, -1, 2, 3, -7, 1000, 65_537, 1 << 31, 1 << 32, (1 << 32) + 1, i64::MAX, i64::MIN];
    let body = |e: &mut Exprs, x: &[ExprId]| {
        let mut results = vec![e.un(Unary::Neg, x[0]), e.un(Unary::Abs, x[0]), e.un(Unary::Not, x[0])];
        for c in constants {
            let c = e.add(jvc_kernels::expr::Expr::Lit(jvc_kernels::expr::Lit::I64(c)));
            results.extend(ARITHMETIC.map(|(op, _)| e.bin(op, x[0], c)));
        }
        results
    };
    elementwise(&gpu, &[integers(&a)], DType::I64, body, |k, i, have| {
        let v = a[i];
        let (name, want) = match k {
            0 => ("neg".to_owned(), v.wrapping_neg()),
            1 => ("abs".to_owned(), v.wrapping_abs()),
            2 => ("not".to_owned(), !v),
            _ => {
                let (c, (op, of)) = (constants[(k - 3) / ARITHMETIC.len()], ARITHMETIC[(k - 3) % ARITHMETIC.len()]);
                (format!("{op:?} {c}"), of(v, c))
            }
        };
        assert_eq!(have, Value::I64(want), "{name} of {v}");
    });
}

#[test]
fn shifts_by_every_amount_move_bits_across_words() {
    let Some(gpu) = gpu("64-bit shifts") else { return };
    let mut random = Random(23);
    let values = edges().into_iter().chain((0..50).map(|_| of_any_length(&mut random)));
    let (a, n): (Vec<i64>, Vec<i64>) = values.flat_map(|v| (0..64).map(move |n| (v, n))).unzip();
    let fixed = [0, 1, 31, 32, 33, 63];
    let body = |e: &mut Exprs, x: &[ExprId]| {
        let mut results = vec![e.bin(Binary::Shl, x[0], x[1]), e.bin(Binary::Shr, x[0], x[1])];
        for by in fixed {
            let by = e.lit(Ty::I64, f64::from(by));
            results.extend([e.bin(Binary::Shl, x[0], by), e.bin(Binary::Shr, x[0], by)]);
        }
        results
    };
    elementwise(&gpu, &[integers(&a), integers(&n)], DType::I64, body, |k, i, have| {
        let by = if k < 2 { n[i] as i32 } else { fixed[k / 2 - 1] };
        let want = if k % 2 == 0 { a[i] << by } else { a[i] >> by };
        assert_eq!(have, Value::I64(want), "{} shifted by {by} ({k})", a[i]);
    });
}

#[test]
fn conversions_from_64_bits_round_once_and_wrap() {
    let Some(gpu) = gpu("64-bit conversions") else { return };
    let mut a = pairs().0;
    // Halves of the last place of an f32, and their neighbours, at every size.
    for shift in 0..38 {
        for odd in [0, 1] {
            let tie = ((1 << 24 | odd) << 1 | 1) << shift;
            a.extend([tie - 1, tie, tie + 1, 1 - tie, -tie, -1 - tie]);
        }
    }
    type Case = (DType, fn(i64) -> Value);
    let cases: [Case; 6] = [
        (DType::F32, |v| Value::F32(v as f32)),
        (DType::F64, |v| Value::F64(v as f64)),
        (DType::I32, |v| Value::I32(v as i32)),
        (DType::U8, |v| Value::I32((v as u8).into())),
        (DType::Bool, |v| Value::Bool(v != 0)),
        (DType::F16, |v| Value::F32(half::f16::from_f32(v as f32).to_f32())),
    ];
    for (to, want) in cases {
        elementwise(
            &gpu,
            &[integers(&a)],
            to,
            |e, x| vec![e.cast(to.ty(), x[0])],
            |_, i, have| {
                assert_eq!(have, want(a[i]), "{} to {to}", a[i]);
            },
        );
    }
}

#[test]
fn conversions_to_64_bits_truncate_and_give_the_least_for_what_does_not_fit() {
    let Some(gpu) = gpu("conversions to 64 bits") else { return };
    let mut random = Random(29);
    let mut floats =
        vec![0.0, -0.0, 0.5, 0.99, -0.99, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30, 1e-40];
    for exponent in 20..66 {
        let power = 2f64.powi(exponent);
        floats.extend([power, power * (1.0 - 2f64.powi(-24)), power * (1.0 + 2f64.powi(-23)), power - 0.5]);
    }
    floats.extend((0..2000).map(|_| 2f64.powf(random.between(-3.0, 65.0))));
    floats.extend(floats.clone().into_iter().map(|v| -v));
    for from in [DType::F32, DType::F64] {
        let input = buffer(from, floats.iter().map(|&v| Value::from_f64(from.ty(), v)));
        let values = input.clone();
        elementwise(
            &gpu,
            &[input],
            DType::I64,
            |e, x| vec![e.cast(Ty::I64, x[0])],
            |_, i, have| {
                let v = values.load(i).to_f64();
                let want = if v.abs() < 2f64.powi(63) { v as i64 } else { i64::MIN };
                assert_eq!(have, Value::I64(want), "{v:e} from {from}");
            },
        );
    }
    let words = buffer(DType::I32, edges().into_iter().map(|v| Value::I32(v as i32)).collect::<Vec<_>>().into_iter());
    let values = words.clone();
    let body = |e: &mut Exprs, x: &[ExprId]| {
        let truth = e.cast(Ty::Bool, x[0]);
        vec![e.cast(Ty::I64, x[0]), e.cast(Ty::I64, truth)]
    };
    elementwise(&gpu, &[words], DType::I64, body, |k, i, have| {
        let v = values.load(i).to_i64();
        assert_eq!(have, Value::I64(if k == 0 { v } else { (v != 0).into() }), "{v}");
    });
}

#[test]
fn reductions_keep_64_bits_in_registers_and_shared_memory() {
    let Some(gpu) = gpu("64-bit reductions") else { return };
    let (rows, len) = (5usize, 150usize);
    let mut random = Random(31);
    let mut values: Vec<i64> = (0..rows * len).map(|_| of_any_length(&mut random) | 1).collect();
    // Extremes that differ in the low word only, and ties.
    values[..5].copy_from_slice(&[i64::MAX - 1, i64::MAX, i64::MIN, i64::MIN + 1, i64::MAX]);
    values[len + 3] = i64::MIN;
    values[len + 9] = i64::MIN;
    type Case = (Combine, fn(&[i64]) -> i64);
    let first = |row: &[i64], best: i64| row.iter().position(|&v| v == best).expect("it is there") as i64;
    let cases: [Case; 6] = [
        (Combine::Sum, |r| r.iter().fold(0, |a, &b| a.wrapping_add(b))),
        (Combine::Prod, |r| r.iter().fold(1, |a, &b| a.wrapping_mul(b))),
        (Combine::Max, |r| *r.iter().max().expect("not empty")),
        (Combine::Min, |r| *r.iter().min().expect("not empty")),
        (Combine::ArgMax, |r| *r.iter().max().expect("not empty")),
        (Combine::ArgMin, |r| *r.iter().min().expect("not empty")),
    ];
    for (combine, of) in cases {
        let position = matches!(combine, Combine::ArgMax | Combine::ArgMin);
        for (threads_per_row, wg) in [(1, 32), (8, 32), (64, 64)] {
            let spec =
                reduction(combine, position, [rows, len].map(|n| Extent::Const(n as u32)), (threads_per_row, wg));
            let result = if position { DType::I32 } else { DType::I64 };
            let memory = Memory {
                operands: vec![integers(&values), HostBuffer::zeros(result, Storage::Native, rows)],
                symbols: vec![],
            };
            on_every_target(&gpu, &spec, &memory, |have| {
                for (r, row) in values.chunks(len).enumerate() {
                    let want = if position { first(row, of(row)) } else { of(row) };
                    assert_eq!(have.load(r).to_i64(), want, "{combine:?} of row {r} by {threads_per_row}");
                }
            });
        }
    }
}

fn reduction(combine: Combine, position: bool, [rows, len]: [Extent; 2], sharing: (u32, u32)) -> KernelSpec {
    let mut e = Exprs::new();
    let index = row_major(&mut e, &[(0, rows), (1, len)]);
    let value = e.load(0, DType::I64, vec![index]);
    let result = if position { DType::I32 } else { DType::I64 };
    let (row, stored) = (e.axis(0), e.arg(0, result.ty()));
    KernelSpec::Row(RowSpec {
        interface: interface(vec![operand(DType::I64, Access::Read), operand(result, Access::Write)], false),
        copies: 1,
        exprs: e,
        outer: vec![rows],
        inner: vec![len],
        stages: vec![Stage { combine, value }],
        row_stores: vec![Store { operand: 1, index: row, value: stored, guard: None }],
        element_stores: vec![],
        threads_per_row: sharing.0,
        wg: sharing.1,
    })
}
