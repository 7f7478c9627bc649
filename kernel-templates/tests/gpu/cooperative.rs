//! The matmul template on cooperative matrices: shapes, layouts, types, symbols, epilogues and access maps; refusals where they cannot be used.

use crate::matmul::{Problem, convolution, problem};
use crate::support::{FORMS, Tolerance, check, gpu, limits};
use jvc_kernels::dtype::DType;
use jvc_kernels::expr::{Binary, Expr};
use jvc_kernels::spec::{Coop, Extent, InterfaceForm, KernelSpec, MatmulSpec, Staging};
use jvc_kernels::{BuildError, Limits, Reject, build, constraints};
use jvc_runtime::Gpu;

/// Operands are exact halves and products exact in f32, so only the order of k sums of values up to 4·√k or so differs: a few units of
/// f32's last place each. One rounding of a sum or an operand to half precision would be a hundred times as far off.
fn tolerance(k: u32) -> Tolerance {
    Tolerance { relative: 1e-5, absolute: f64::from(k.max(8)) * 32.0 * 2f64.powi(-23) }
}

/// Stagings in fragments of the device: one subgroup and several, one buffer and two, loads ahead or not, more groups than invocations.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
fn stagings(limits: &Limits, elem: DType) -> Vec<(Staging, u32)> {
    let Some(&(m, n, k, _)) = limits.cooperative.iter().find(|f| f.3 == elem) else {
        eprintln!("SKIPPED {elem}: the device has no cooperative matrices of it");
        return vec![];
    };
    let subgroup = limits.subgroup;
    let one = |tile: [u32; 3], warps: (u32, u32), buffers: u32, ahead: bool| {
        let [bm, bn, bk] = [tile[0] * m, tile[1] * n, tile[2] * k.max(8)];
        let coop = Coop { bm, bn, bk, frag: (m, n, k), warps, elem, subgroup, buffers, ahead, fill: None };
        (Staging::Coop(coop), warps.0 * warps.1 * subgroup)
    };
    vec![
        one([1, 1, 1], (1, 1), 1, false),
        one([2, 4, 2], (2, 1), 1, true),
        one([4, 2, 4], (2, 2), 2, true),
        one([4, 6, 1], (2, 3), 2, false),
    ]
}

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Right side by columns or by rows, left side by rows or by columns.
const LAYOUTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

fn run(gpu: &Gpu, p: &Problem, k: u32) {
    run_some(gpu, p, k, 0, 1);
}

/// Every `step`-th staging from `first` on.
fn run_some(gpu: &Gpu, p: &Problem, k: u32, first: usize, step: usize) {
    for (staging, wg) in stagings(&limits(gpu), p.dtype).into_iter().skip(first).step_by(step) {
        let spec = KernelSpec::Matmul(p.spec(staging, wg));
        let ran = check(gpu, &format!("{p:?} {staging:?}"), &spec, &p.memory(), tolerance(k));
        assert!(ran, "a staging made of the device's fragments runs on it");
    }
}

#[test]
fn products_of_any_shape_match_in_every_layout() {
    let Some(gpu) = gpu("cooperative shapes") else { return };
    let shapes: [(u32, u32, u32, u32, &[u32]); 12] = [
        (1, 1, 1, 1, &[1]),
        (1, 1, 1, 7, &[7]),
        (2, 17, 13, 19, &[19]),
        (3, 7, 65, 15, &[5, 3]),
        (1, 33, 31, 64, &[64]),
        (1, 5, 3, 0, &[0]),
        (0, 5, 3, 4, &[4]),
        (1, 40, 8, 1, &[]),
        (1, 129, 16, 24, &[24]),
        (1, 16, 129, 40, &[2, 20]),
        (2, 17, 24, 48, &[3, 16, 1]),
        (1, 16, 17, 131, &[131]),
    ];
    for (i, (batch, m, n, total, k)) in shapes.into_iter().enumerate() {
        for dtype in HALVES {
            let (transposed, turned) = LAYOUTS[i % 4];
            let p = Problem { dtype, transposed, turned, ..problem(batch, m, n, k) };
            // Half of the stagings each: the other half at the next shapes.
            run_some(&gpu, &p, total, i % 2, 2);
        }
    }
    // Whole blocks along every axis.
    for (i, (transposed, turned)) in LAYOUTS.into_iter().enumerate() {
        let p = Problem { dtype: DType::F16, transposed, turned, ..problem(1, 24, 40, &[3, 16, 1]) };
        run_some(&gpu, &p, 48, i, 4);
    }
}

#[test]
fn symbolic_sizes_match() {
    let Some(gpu) = gpu("cooperative symbols") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    // The values behind the symbols are 2, 19, 35, 21 and 0.
    for (batch, m, n, k, total) in [
        (s(0), s(1), s(2), vec![s(3)], 21),
        (c(1), s(1), c(16), vec![c(24)], 24),
        (c(1), c(16), s(2), vec![s(4)], 0),
        (c(1), s(4), c(8), vec![c(8)], 8),
    ] {
        for dtype in HALVES {
            let p = Problem { batch, m, n, k: k.clone(), dtype, transposed: true, ..problem(1, 1, 1, &[]) };
            run(&gpu, &p, total);
        }
    }
}

#[test]
fn results_in_halves_are_rounded_once() {
    let Some(gpu) = gpu("cooperative halves") else { return };
    for dtype in HALVES {
        run(&gpu, &Problem { dtype, out: dtype, ..problem(2, 24, 40, &[32]) }, 32);
    }
}

#[test]
fn a_padded_strided_convolution_is_a_product_by_access_maps() {
    let Some(gpu) = gpu("cooperative convolution") else { return };
    for dtype in HALVES {
        for (staging, wg) in stagings(&limits(&gpu), dtype) {
            let (spec, memory) = convolution(dtype, [5, 11, 6], staging, wg);
            let name = format!("convolution {staging:?}");
            assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &memory, tolerance(45)), "{name}");
        }
    }
}

/// `spec` with its left element through `change`.
fn with_left(mut spec: MatmulSpec, change: impl Fn(&mut MatmulSpec)) -> MatmulSpec {
    change(&mut spec);
    spec
}

#[test]
fn prologues_that_choose_elements_match() {
    let Some(gpu) = gpu("cooperative prologues") else { return };
    for (staging, wg) in stagings(&limits(&gpu), DType::F16) {
        let p = Problem { dtype: DType::F16, ..problem(1, 24, 16, &[40]) };
        let relu = with_left(p.spec(staging, wg), |s| {
            let zero = s.exprs.f32(0.0);
            s.lhs = s.exprs.bin(Binary::Max, s.lhs, zero);
        });
        // The same for a whole block of eight, so the block's load is guarded.
        let masked = with_left(p.spec(staging, wg), |s| {
            let (k, sixteen) = (s.exprs.axis(3), s.exprs.i32(16));
            let place = s.exprs.bin(Binary::Div, k, sixteen);
            let one = s.exprs.i32(1);
            let first = s.exprs.bin(Binary::Lt, place, one);
            let zero = s.exprs.f32(0.0);
            s.lhs = s.exprs.select(first, s.lhs, zero);
        });
        for (what, spec) in [("relu", relu), ("masked", masked)] {
            let name = format!("{what} {staging:?}");
            assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &p.memory(), tolerance(40)), "{name}");
        }
    }
}

fn any_coop(elem: DType) -> (Staging, u32) {
    let frag = (16, 16, 16);
    let coop =
        Coop { bm: 128, bn: 128, bk: 64, frag, warps: (2, 2), elem, subgroup: 32, buffers: 1, ahead: true, fill: None };
    (Staging::Coop(coop), 128)
}

#[test]
fn large_tiles_of_either_type_make_valid_modules_with_their_needs() {
    for dtype in HALVES {
        for (transposed, out) in [(true, dtype), (false, DType::F32)] {
            let (staging, wg) = any_coop(dtype);
            let spec = KernelSpec::Matmul(
                Problem { dtype, transposed, out, ..problem(1, 256, 136, &[128]) }.spec(staging, wg),
            );
            for form in FORMS {
                let kernel = build(&spec, form).expect("a spec without contradictions");
                assert!(kernel.needs.cooperative_matrix && kernel.needs.subgroup == 32, "{:?}", kernel.needs);
                assert!(kernel.shared_bytes <= 48 * 1024, "{} bytes", kernel.shared_bytes);
                let text = jvc_kernels::disassemble(&kernel.words).expect("a module");
                assert_eq!(text.matches("OpCooperativeMatrixMulAddKHR").count(), 4 * 4 * 4, "fragments of 64x64 by 64");
                assert_eq!(text.contains("BFloat16TypeKHR"), dtype == DType::BF16);
                #[cfg(feature = "validate")]
                jvc_kernels::validate(&kernel.words).unwrap_or_else(|e| panic!("{dtype} {form:?}: {e}"));
            }
        }
    }
}

#[test]
fn elements_that_would_be_rounded_are_refused() {
    let (staging, wg) = any_coop(DType::F16);
    let f32s = KernelSpec::Matmul(problem(1, 16, 16, &[16]).spec(staging, wg));
    assert!(
        matches!(build(&f32s, InterfaceForm::Addresses), Err(BuildError::Shape { reason }) if reason.contains("not exact in f16"))
    );
    let p = Problem { dtype: DType::F16, ..problem(1, 16, 16, &[16]) };
    let scaled = with_left(p.spec(staging, wg), |s| {
        let third = s.exprs.f32(1.0 / 3.0);
        s.lhs = s.exprs.bin(Binary::Mul, s.lhs, third);
    });
    assert!(build(&KernelSpec::Matmul(scaled.clone()), InterfaceForm::Addresses).is_err(), "a computed f32");
    let rounded = with_left(scaled, |s| s.lhs = s.exprs.add(Expr::Round(DType::F16, s.lhs)));
    assert!(build(&KernelSpec::Matmul(rounded), InterfaceForm::Addresses).is_ok(), "the graph itself rounds");
}

#[test]
fn a_device_without_the_fragment_is_told_so() {
    let (staging, wg) = any_coop(DType::F16);
    let p = Problem { dtype: DType::F16, ..problem(1, 16, 16, &[16]) };
    let spec = KernelSpec::Matmul(p.spec(staging, wg));
    let mut limits = Limits { float16: true, subgroup: 32, shared_bytes: 48 * 1024, ..Limits::portable() };
    let refusal = constraints(&spec, &limits).expect_err("no cooperative matrices");
    assert!(
        matches!(&refusal, Reject::Shape { reason } if reason.contains("no cooperative matrices 16x16x16 f16")),
        "{refusal}"
    );
    limits.cooperative.push((16, 16, 16, DType::F16));
    assert_eq!(constraints(&spec, &limits), Ok(()));
    limits.subgroup = 64;
    assert!(constraints(&spec, &limits).is_err(), "other subgroups");
}
