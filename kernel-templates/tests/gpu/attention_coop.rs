//! The attention template on cooperative matrices: head sizes, lengths, masks, types and symbols against the reference; refusals where they
//! cannot be used.

use crate::attention::{Mask, Problem, Staged};
use crate::support::{Tolerance, check, gpu, limits};
use jvc_kernels::dtype::DType;
use jvc_kernels::eval::Value;
use jvc_kernels::expr::Binary;
use jvc_kernels::spec::{AttentionStaging, CoopAttention, Extent, InterfaceForm, KernelSpec, Left};
use jvc_kernels::{BuildError, Limits, build, constraints};
use jvc_runtime::Gpu;

/// Probabilities are rounded to the half type, each on its own: results of values up to 4 are off by a few parts in its last place.
fn tolerance(elem: DType) -> Tolerance {
    let unit = if elem == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
    Tolerance { relative: 3.0 * unit, absolute: 8.0 * unit }
}

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Stagings in fragments of the device: one subgroup and several, one fragment of queries and two, blocks of keys of one fragment and more.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
fn stagings(limits: &Limits, elem: DType) -> Vec<Staged> {
    let Some(&(m, n, k, _)) = limits.cooperative.iter().find(|f| f.3 == elem && f.1 == f.2) else {
        eprintln!("SKIPPED {elem}: the device has no cooperative matrices of it");
        return vec![];
    };
    let one = |warps, rows, blocks: u32, (left, row_bits), ahead| {
        let subgroup = limits.subgroup;
        let frag = (m, n, k);
        let c = CoopAttention { frag, elem, subgroup, warps, rows, block_keys: blocks * n, left, row_bits, ahead };
        (AttentionStaging::Coop(c), warps * subgroup)
    };
    vec![
        one(1, 1, 1, (Left::Memory, 0), false),
        one(1, 2, 2, (Left::Components, u32::MAX), true),
        // Wrong wherever a lane has several rows, which the kernel sees.
        one(3, 1, 2, (Left::Components, 0), false),
        one(2, 1, 1, (Left::Differing, u32::MAX), true),
    ]
}

/// Every `step`-th staging from `first` on.
fn run_some(gpu: &Gpu, p: &Problem, first: usize, step: usize) {
    for staged in stagings(&limits(gpu), p.dtype).into_iter().skip(first).step_by(step) {
        assert!(p.check_staged(gpu, staged, tolerance(p.dtype)), "a staging made of the device's fragments runs on it");
    }
}

#[test]
fn heads_and_lengths_of_any_size_match() {
    let Some(gpu) = gpu("cooperative attention") else { return };
    for (i, (sizes, dims)) in [
        ([1, 1, 1], (1, 1)),
        ([2, 3, 5], (4, 4)),
        ([3, 33, 17], (5, 3)),
        ([2, 40, 48], (24, 40)),
        ([1, 65, 31], (33, 2)),
        ([1, 35, 70], (8, 8)),
        ([1, 20, 12], (136, 8)),
        ([1, 20, 12], (8, 136)),
        ([0, 4, 4], (2, 2)),
        ([2, 0, 4], (2, 2)),
        ([2, 3, 0], (8, 8)),
    ]
    .into_iter()
    .enumerate()
    {
        // A CPU driver's time for a kernel goes by the square of its matrices, minutes for heads of 256: one side large at a time, in one type.
        let types = if dims.0.max(dims.1) > 64 { &HALVES[..1] } else { &HALVES };
        for &dtype in types {
            run_some(&gpu, &Problem { dtype, ..Problem::of(sizes, dims) }, i % 4, 4);
        }
    }
}

#[test]
fn masks_and_fully_hidden_rows_match() {
    let Some(gpu) = gpu("cooperative attention masks") else { return };
    for (i, mask) in [Mask::Causal, Mask::Added, Mask::Shown].into_iter().enumerate() {
        for zero_masked_rows in [false, true] {
            let dtype = DType::F16;
            let plain = Problem::of([2, 19, 23], (8, 16));
            let first = (i + 2 * usize::from(zero_masked_rows)) % 4;
            run_some(&gpu, &Problem { mask, zero_masked_rows, dtype, ..plain }, first, 4);
        }
    }
}

#[test]
fn symbolic_sizes_match_from_one_module() {
    let Some(gpu) = gpu("cooperative attention symbols") else { return };
    let s = Extent::Sym;
    for symbols in [vec![1, 1, 1], vec![3, 34, 29], vec![2, 5, 0], vec![0, 5, 3], vec![2, 0, 3]] {
        let plain = Problem::of([1, 1, 1], (16, 8));
        let (batch, queries, keys, dtype, mask) = (s(0), s(1), s(2), DType::F16, Mask::Shown);
        run_some(&gpu, &Problem { batch, queries, keys, mask, dtype, symbols, ..plain }, 1, 2);
    }
}

/// Scores far beyond what exp takes, rising along the keys, so that the base moves at every block; and the least number of f32 instead of −∞.
/// One subgroup: Mesa's lavapipe takes a subgroup's barrier for one of the workgroup, so there, subgroups must not move their bases apart.
#[test]
fn huge_scores_stay_finite() {
    let Some(gpu) = gpu("huge cooperative scores") else { return };
    for staged in stagings(&limits(&gpu), DType::F16).into_iter().take(2) {
        let problem = Problem { mask: Mask::Added, dtype: DType::F16, ..Problem::of([1, 9, 40], (8, 8)) };
        let spec = problem.spec(staged);
        let mut memory = problem.memory(&spec);
        for at in 0..memory.operands[4].len() {
            let (query, key) = (at / 40, at % 40);
            let bias = match query % 3 {
                0 => key as f32 * 90.0,
                1 => -90.0 * key as f32,
                _ => f32::MIN,
            };
            memory.operands[4].store(at, Value::F32(bias));
        }
        check(&gpu, &format!("huge scores {staged:?}"), &spec, &memory, tolerance(DType::F16));
    }
}

/// Scores that fall by less than the slack: the base stays where the first block put it.
#[test]
fn one_base_serves_scores_of_any_block() {
    let Some(gpu) = gpu("cooperative attention base") else { return };
    run_some(&gpu, &Problem { dtype: DType::F16, ..Problem::of([1, 17, 48], (16, 16)) }, 1, 1);
}

fn any_coop(elem: DType) -> Staged {
    large_coop(elem, 4, 2, 64)
}

fn large_coop(elem: DType, warps: u32, rows: u32, block_keys: u32) -> Staged {
    let frag = (16, 16, 16);
    let left = Left::Components;
    let c = CoopAttention { frag, elem, subgroup: 32, warps, rows, block_keys, left, row_bits: 4, ahead: true };
    (AttentionStaging::Coop(c), warps * 32)
}

#[test]
fn large_tiles_of_either_type_make_valid_modules_with_their_needs() {
    for dtype in HALVES {
        let staged = any_coop(dtype);
        let wide = large_coop(dtype, 2, 1, 32);
        for (dims, mask, staged) in
            [((64, 64), Mask::None, staged), ((72, 72), Mask::Added, staged), ((256, 256), Mask::None, wide)]
        {
            let p = Problem { dtype, mask, ..Problem::of([2, 300, 200], dims) };
            let spec = p.spec(staged);
            for form in crate::support::FORMS {
                let kernel = build(&spec, form).expect("a spec without contradictions");
                assert!(kernel.needs.cooperative_matrix && kernel.needs.subgroup == 32, "{:?}", kernel.needs);
                assert!(kernel.shared_bytes <= 48 * 1024, "{} bytes", kernel.shared_bytes);
                #[cfg(feature = "validate")]
                jvc_kernels::validate(&kernel.words).unwrap_or_else(|e| panic!("{dtype} {form:?}: {e}"));
            }
        }
    }
}

#[test]
fn elements_that_would_be_rounded_are_refused() {
    let f32s = Problem::of([1, 16, 16], (16, 16)).spec(any_coop(DType::F16));
    let refused = build(&f32s, InterfaceForm::Addresses);
    assert!(matches!(refused, Err(BuildError::Shape { reason }) if reason.contains("not exact in f16")));
    let halves = Problem { dtype: DType::F16, ..Problem::of([1, 16, 16], (16, 16)) }.spec(any_coop(DType::F16));
    assert!(build(&halves, InterfaceForm::Addresses).is_ok());
    let KernelSpec::Attention(mut scaled) = halves else { panic!("an attention") };
    let third = scaled.exprs.f32(1.0 / 3.0);
    scaled.key = scaled.exprs.bin(Binary::Mul, scaled.key, third);
    assert!(build(&KernelSpec::Attention(scaled), InterfaceForm::Addresses).is_err(), "a computed f32");
}

#[test]
fn a_device_without_the_fragment_is_told_so() {
    let spec = Problem { dtype: DType::F16, ..Problem::of([1, 16, 16], (16, 16)) }.spec(any_coop(DType::F16));
    let mut limits = Limits { float16: true, subgroup: 32, shared_bytes: 48 * 1024, ..Limits::portable() };
    assert!(constraints(&spec, &limits).expect_err("none").to_string().contains("no cooperative matrices 16x16x16"));
    limits.cooperative.push((16, 16, 16, DType::F16));
    assert_eq!(constraints(&spec, &limits), Ok(()));
    limits.subgroup = 64;
    assert!(constraints(&spec, &limits).is_err(), "other subgroups");
}
