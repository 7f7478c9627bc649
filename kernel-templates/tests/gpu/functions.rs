//! Accuracy of elementary functions: within a few units in the last place of the reference, special values exactly.

use crate::spec::{interface, operand, row_major};
use crate::support::{Random, gpu, limits, run};
use jvc_kernels::dtype::DType;
use jvc_kernels::eval::{self, Value};
use jvc_kernels::expr::{Binary, Exprs, Unary};
use jvc_kernels::host::{HostBuffer, Memory};
use jvc_kernels::spec::{Access, Extent, InterfaceForm, KernelSpec, MapSpec, Store};
use jvc_kernels::{build, constraints};

/// Points where functions change their form, and the ends of the number line.
const SPECIAL: [f64; 34] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.0,
    2.5,
    3.0,
    -2.0,
    -3.0,
    4.0,
    8.0,
    16.0,
    0.1,
    0.921_875,
    1e-10,
    -1e-10,
    1e-37,
    88.5,
    89.0,
    -87.0,
    -104.0,
    128.0,
    1e10,
    -1e10,
    3e38,
    -3e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    std::f64::consts::PI,
    12_867.0,
];

fn inputs(low: f64, high: f64, seed: u64) -> Vec<f64> {
    let mut random = Random(seed);
    let mut values = SPECIAL.to_vec();
    values.extend((0..3000).map(|_| random.between(low, high)));
    // Magnitudes of every size.
    values.extend((0..2000).map(|_| {
        let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
        sign * 2f64.powf(random.between(-120.0, 120.0))
    }));
    values
}

/// Units in the last place between a result and the reference in f64.
fn ulps(dtype: DType, got: f64, want: f64) -> f64 {
    let (digits, smallest) = if dtype == DType::F32 { (23, -126.0) } else { (52, -1022.0) };
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    let unit = 2f64.powf(want.abs().log2().floor().max(smallest) - f64::from(digits));
    let flushed = want.abs() < 2f64.powf(smallest) && got == 0.0;
    if flushed { 0.0 } else { (got - want).abs() / unit }
}

fn fill(dtype: DType, values: &[f64]) -> HostBuffer {
    let mut buffer = HostBuffer::zeros(dtype, jvc_kernels::dtype::Storage::Native, values.len());
    for (i, &v) in values.iter().enumerate() {
        buffer.store(i, Value::from_f64(dtype.ty(), v));
    }
    buffer
}

/// Runs `op` of one or two inputs and gives the results.
fn results(gpu: &jvc_runtime::Gpu, dtype: DType, op: Op, x: &[f64], y: &[f64]) -> Option<HostBuffer> {
    let mut e = Exprs::new();
    let n = Extent::Const(x.len() as u32);
    let index = row_major(&mut e, &[(0, n)]);
    let a = e.load(0, dtype, vec![index]);
    let b = e.load(1, dtype, vec![index]);
    let value = match op {
        Op::Unary(op) => e.un(op, a),
        Op::Binary(op) => e.bin(op, a, b),
    };
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(
            vec![operand(dtype, Access::Read), operand(dtype, Access::Read), operand(dtype, Access::Write)],
            false,
        ),
        exprs: e,
        domain: vec![n],
        stores: vec![Store { operand: 2, index, value, guard: None }],
        per_thread: 1,
        wg: 64,
        turned: None,
    });
    constraints(&spec, &limits(gpu)).ok()?;
    let kernel = build(&spec, InterfaceForm::Addresses).expect("the spec is sound");
    let out = fill(dtype, &vec![0.0; x.len()]);
    let memory = Memory { operands: vec![fill(dtype, x), fill(dtype, y), out], symbols: vec![] };
    Some(run(gpu, &kernel, InterfaceForm::Addresses, 1, &memory).operands.swap_remove(2))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Unary(Unary),
    Binary(Binary),
}

/// The worst error in ulps, with its input, over values that the reference function takes in f64.
fn worst(gpu: &jvc_runtime::Gpu, dtype: DType, op: Op, x: &[f64], y: &[f64]) -> Option<(f64, String)> {
    let got = results(gpu, dtype, op, x, y)?;
    let (a, b) = (fill(dtype, x), fill(dtype, y));
    let mut worst = (0.0, String::new());
    for i in 0..x.len() {
        let (a, b) = (Value::F64(a.load(i).to_f64()), Value::F64(b.load(i).to_f64()));
        let want = match op {
            Op::Unary(op) => eval::unary(op, a),
            Op::Binary(op) => eval::binary(op, a, b),
        };
        let want = want.to_f64();
        // A result beyond f32 is its infinity.
        let want = if dtype == DType::F32 && (want as f32).is_infinite() { f64::from(want as f32) } else { want };
        let have = got.load(i).to_f64();
        let error = ulps(dtype, have, want);
        if error > worst.0 {
            worst = (error, format!("{op:?}({a:?}, {b:?}) = {have:e}, {want:e} is right"));
        }
    }
    Some(worst)
}

/// Function, range of dense inputs, allowed error in f32 and f64 ulps.
const UNARY: [(Unary, f64, f64, f64, f64); 26] = [
    (Unary::Floor, -20.0, 20.0, 0.0, 0.0),
    (Unary::Ceil, -20.0, 20.0, 0.0, 0.0),
    (Unary::Trunc, -20.0, 20.0, 0.0, 0.0),
    (Unary::Round, -20.0, 20.0, 0.0, 0.0),
    (Unary::Exp, -90.0, 90.0, 2.0, 4.0),
    (Unary::Exp2, -130.0, 130.0, 2.0, 4.0),
    (Unary::Expm1, -5.0, 5.0, 3.0, 4.0),
    (Unary::Log, 0.0, 10.0, 2.0, 4.0),
    (Unary::Log2, 0.0, 10.0, 3.0, 4.0),
    (Unary::Log1p, -1.0, 5.0, 3.0, 4.0),
    (Unary::Sqrt, 0.0, 100.0, 2.5, 2.0),
    (Unary::Rsqrt, 0.0, 100.0, 4.0, 4.0),
    (Unary::Sin, -20.0, 20.0, 3.0, 4.0),
    (Unary::Cos, -20.0, 20.0, 3.0, 4.0),
    (Unary::Tan, -20.0, 20.0, 5.0, 8.0),
    (Unary::Asin, -1.0, 1.0, 4.0, 8.0),
    (Unary::Acos, -1.0, 1.0, 4.0, 8.0),
    (Unary::Atan, -5.0, 5.0, 4.0, 8.0),
    (Unary::Sinh, -5.0, 5.0, 5.0, 8.0),
    (Unary::Cosh, -5.0, 5.0, 4.0, 8.0),
    (Unary::Tanh, -5.0, 5.0, 5.0, 8.0),
    (Unary::Asinh, -5.0, 5.0, 5.0, 8.0),
    (Unary::Acosh, 1.0, 5.0, 5.0, 8.0),
    (Unary::Atanh, -1.0, 1.0, 5.0, 8.0),
    (Unary::Erf, -4.0, 4.0, 5.0, 100.0),
    (Unary::Abs, -4.0, 4.0, 0.0, 0.0),
];

fn assert_accurate(test: &str, dtype: DType) {
    let Some(gpu) = gpu(test) else { return };
    let mut failures = vec![];
    for (op, low, high, single, double) in UNARY {
        let mut x = inputs(low, high, 7);
        if dtype == DType::F64 && matches!(op, Unary::Sin | Unary::Cos | Unary::Tan) {
            // Angles beyond these are not promised in f64.
            x.retain(|v| v.is_nan() || v.is_infinite() || v.abs() < 1e6);
        }
        let limit = if dtype == DType::F32 { single } else { double };
        match worst(&gpu, dtype, Op::Unary(op), &x, &x) {
            Some((error, case)) if error > limit => failures.push(format!("{error:.2} ulp: {case}")),
            Some(_) => {}
            None => return,
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn functions_are_within_a_few_ulp_in_f32() {
    assert_accurate("functions f32", DType::F32);
}

#[test]
fn functions_are_within_a_few_ulp_in_f64() {
    assert_accurate("functions f64", DType::F64);
}

#[test]
fn lgamma_is_close_absolutely_or_relatively() {
    let Some(gpu) = gpu("lgamma") else { return };
    let mut x = inputs(-10.0, 30.0, 3);
    // Near its poles and its zeros at negative numbers no formula in one precision is close relatively.
    x.retain(|v| !(*v < 0.0 && (v - v.round()).abs() < 0.05 && *v != v.round()));
    for dtype in [DType::F32, DType::F64] {
        let Some(got) = results(&gpu, dtype, Op::Unary(Unary::Lgamma), &x, &x) else { continue };
        let input = fill(dtype, &x);
        let epsilon = if dtype == DType::F32 { 1.2e-7 } else { 2.2e-16 };
        for i in 0..x.len() {
            let at = input.load(i).to_f64();
            let want = eval::unary(Unary::Lgamma, Value::F64(at)).to_f64();
            let want = if dtype == DType::F32 { f64::from(want as f32) } else { want };
            let have = got.load(i).to_f64();
            // The reference itself subtracts numbers around 40.
            let floor = if dtype == DType::F32 { 0.0 } else { 5e-14 };
            let scale = if at > 0.0 { want.abs() } else { want.abs().max(1.0) };
            // For huge negative numbers the fraction that decides is lost before the function is called.
            let close = at < -1e4 || want == have || (want.is_nan() && have.is_nan());
            assert!(
                close || (want - have).abs() <= 12.0 * epsilon * scale + floor,
                "{dtype} lgamma({at:e}) = {have:e}, {want:e} is right"
            );
        }
    }
}

#[test]
fn sine_of_huge_angles_is_accurate_in_f32() {
    let Some(gpu) = gpu("huge angles") else { return };
    let mut random = Random(11);
    let x: Vec<f64> = (0..5000).map(|_| f64::from(2f64.powf(random.between(10.0, 127.9)) as f32)).collect();
    for op in [Unary::Sin, Unary::Cos] {
        let (error, case) = worst(&gpu, DType::F32, Op::Unary(op), &x, &x).expect("f32 is everywhere");
        assert!(error <= 3.0, "{error:.2} ulp: {case}");
    }
}

#[test]
fn powers_are_within_a_few_ulp_and_special_values_are_those_of_c() {
    let Some(gpu) = gpu("powers") else { return };
    let mut random = Random(5);
    let special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 3.0, -3.0, 2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let (mut x, mut y) = (vec![], vec![]);
    for a in special {
        for b in special {
            x.push(a);
            y.push(b);
        }
    }
    for _ in 0..4000 {
        x.push(random.between(0.0, 20.0));
        y.push(random.between(-25.0, 25.0));
        x.push(random.between(-20.0, 0.0));
        y.push(random.between(-20.0, 20.0).round());
        x.push(random.between(0.9, 1.1));
        y.push(random.between(-500.0, 500.0));
    }
    for (dtype, limit) in [(DType::F32, 3.0), (DType::F64, 16.0)] {
        if let Some((error, case)) = worst(&gpu, dtype, Op::Binary(Binary::Pow), &x, &y) {
            assert!(error <= limit, "{dtype} {error:.2} ulp: {case}");
        }
    }
}

#[test]
fn arithmetic_on_pairs_is_exact_where_it_is_defined_so() {
    let Some(gpu) = gpu("pairs") else { return };
    let mut random = Random(9);
    let special = [0.0, -0.0, 1.0, -1.0, 3.0, -7.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let (mut x, mut y) = (vec![], vec![]);
    for a in special {
        for b in special {
            x.push(a);
            y.push(b);
        }
    }
    for _ in 0..3000 {
        x.push(f64::from(random.between(-100.0, 100.0) as f32));
        y.push(f64::from(random.between(-10.0, 10.0) as f32));
        // Whole quotients must come out whole: floor division is built on them.
        let q = f64::from(random.below(1000));
        let d = f64::from(1 + random.below(1000));
        x.push(q * d);
        y.push(d);
    }
    let exact = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min, Binary::Rem];
    for (op, limit) in exact.into_iter().map(|op| (op, 0.5)).chain([(Binary::Div, 0.51), (Binary::Atan2, 5.0)]) {
        let (error, case) = worst(&gpu, DType::F32, Op::Binary(op), &x, &y).expect("f32 is everywhere");
        assert!(error <= limit, "{error:.2} ulp: {case}");
    }
}

#[test]
fn whole_quotients_and_roots_come_out_whole() {
    let Some(gpu) = gpu("whole quotients") else { return };
    let (mut x, mut y, mut squares, mut roots) = (vec![], vec![], vec![], vec![]);
    for d in 1..=64u32 {
        for q in 0..=64u32 {
            x.push(f64::from(q * d));
            y.push(f64::from(d));
        }
    }
    for k in 0..=4095u32 {
        squares.push(f64::from(k * k));
        roots.push(f64::from(k));
    }
    let quotients = results(&gpu, DType::F32, Op::Binary(Binary::Div), &x, &y).expect("f32 is everywhere");
    for i in 0..x.len() {
        assert_eq!(quotients.load(i).to_f64(), x[i] / y[i], "{} / {}", x[i], y[i]);
    }
    let found = results(&gpu, DType::F32, Op::Unary(Unary::Sqrt), &squares, &squares).expect("f32 is everywhere");
    for (i, root) in roots.iter().enumerate() {
        assert_eq!(found.load(i).to_f64(), *root, "root of {}", squares[i]);
    }
}
