//! Cooperative matrices whose fragments are filled by component: the same results as the reference in every shape and from every memory layout
//! that allows it, wherever the driver spreads fragments as the spec says, and where it does not.

use crate::matmul::{Problem, problem};
use crate::spec::{interface, operand};
use crate::support::{Random, Tolerance, check, gpu, limits, run};
use jvc_kernels::build;
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{Access, Coop, Extent, Fill, InterfaceForm, KernelSpec, MatmulSpec, Spread, Staging, Store};
use jvc_kernels::templates::fragments::{Fragment, Part};
use jvc_kernels::templates::matmul::packed_place;
use jvc_runtime::Gpu;

fn tolerance(k: u32) -> Tolerance {
    Tolerance { relative: 1e-5, absolute: f64::from(k.max(8)) * 32.0 * 2f64.powi(-23) }
}

/// What the device says of one fragment.
fn spread(gpu: &Gpu, part: Part, elem: DType, (rows, columns): (u32, u32)) -> Spread {
    let fragment = Fragment { part, elem, rows, columns, subgroup: limits(gpu).subgroup };
    let kernel = fragment.kernel().expect("the matrix is small");
    let buffer = Random(1).buffer(&operand(DType::F32, Access::Write), rows as usize * columns as usize);
    let memory = Memory { operands: vec![buffer], symbols: vec![] };
    let after = run(gpu, &kernel, InterfaceForm::Addresses, 1, &memory);
    let numbers: Vec<f32> =
        after.operands[0].bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut all: Vec<u32> = numbers.iter().map(|v| *v as u32).collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..rows * columns), "every element is in one place: {all:?}");
    fragment.spread(&numbers).expect("bits move elements independently")
}

/// The device's f16 fragment and its spreads.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
fn fragments(gpu: &Gpu) -> Option<((u32, u32, u32), Spread, Spread)> {
    let limits = limits(gpu);
    let Some(&(m, n, k, _)) = limits.cooperative.iter().find(|f| f.3 == DType::F16) else {
        eprintln!("SKIPPED: the device has no cooperative matrices of f16");
        return None;
    };
    let (left, right) = (spread(gpu, Part::Left, DType::F16, (m, k)), spread(gpu, Part::Right, DType::F16, (k, n)));
    Some(((m, n, k), left, right))
}

/// One subgroup and several; the left tile staged in one buffer or two, or read by each; blocks read ahead or not.
fn stagings(gpu: &Gpu) -> Vec<(Staging, u32)> {
    let Some((frag, left, right)) = fragments(gpu) else { return vec![] };
    let subgroup = limits(gpu).subgroup;
    let one = |tile: [u32; 2],
               (warps, parts): ((u32, u32), u32),
               buffers: u32,
               (staged, ahead, reads): (bool, bool, (bool, bool))| {
        let fill = Some(Fill { left, right, staged, ahead: reads, packed: 0, parts });
        let (bm, bn, elem) = (tile[0] * frag.0, tile[1] * frag.1, DType::F16);
        let coop = Coop { bm, bn, bk: 64, frag, warps, elem, subgroup, buffers, ahead, fill };
        (Staging::Coop(coop), coop.subgroups() * subgroup)
    };
    // Few fragments a subgroup: where each is small, a step fills many, and a CPU driver compiles all of them into one block.
    vec![
        one([1, 1], ((1, 1), 1), 1, (false, false, (false, false))),
        one([1, 2], ((1, 1), 1), 1, (false, false, (true, true))),
        one([2, 1], ((2, 1), 1), 1, (false, false, (false, true))),
        one([2, 2], ((2, 2), 1), 1, (true, false, (false, false))),
        one([2, 1], ((1, 1), 1), 2, (true, true, (false, true))),
        one([1, 1], ((1, 1), 3), 1, (false, false, (true, true))),
        one([2, 1], ((2, 1), 2), 1, (false, false, (true, false))),
    ]
}

#[test]
fn filled_products_of_any_shape_match() {
    let Some(gpu) = gpu("filled shapes") else { return };
    let problems = [
        (problem(2, 17, 13, &[24]), 24),
        (problem(1, 41, 35, &[8, 16]), 128),
        (problem(1, 9, 17, &[72]), 72),
        (problem(1, 16, 24, &[0]), 0),
    ];
    for (i, (p, k)) in problems.into_iter().enumerate() {
        let out = if i % 2 == 0 { DType::F16 } else { DType::F32 };
        let p = Problem { dtype: DType::F16, transposed: true, out, ..p };
        // Another staging at each shape: a CPU driver takes seconds to compile one.
        for (staging, wg) in stagings(&gpu).into_iter().skip((i + 1) % 7).take(1) {
            let name = format!("{p:?} {staging:?}");
            assert!(check(&gpu, &name, &KernelSpec::Matmul(p.spec(staging, wg)), &p.memory(), tolerance(k)), "{name}");
        }
    }
}

#[test]
fn filled_products_of_symbolic_sizes_match() {
    let Some(gpu) = gpu("filled symbols") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    // The values behind the symbols are 2, 19 and 35.
    for (i, (batch, m, n)) in [(s(0), s(1), s(2))].into_iter().enumerate() {
        let k = vec![c(24)];
        let p = Problem { batch, m, n, k, dtype: DType::F16, transposed: true, ..problem(1, 1, 1, &[]) };
        for (staging, wg) in stagings(&gpu).into_iter().skip(i + 3).take(1) {
            let name = format!("{p:?} {staging:?}");
            assert!(check(&gpu, &name, &KernelSpec::Matmul(p.spec(staging, wg)), &p.memory(), tolerance(24)), "{name}");
        }
    }
}

/// A 3 × 3 convolution with a border of zeros over an image of 8 × 8 with 16 channels last; k goes through rows, columns, channels.
fn convolution(staging: Staging, wg: u32) -> (MatmulSpec, Memory) {
    let mut e = Exprs::new();
    let [row, eight, zero, seven, one, channels] = [e.axis(1), e.i32(8), e.i32(0), e.i32(7), e.i32(1), e.i32(16)];
    let (y, x) = (e.bin(Binary::Div, row, eight), e.bin(Binary::Rem, row, eight));
    let place = |e: &mut Exprs, at: ExprId, axis: u8| {
        let tap = e.axis(axis);
        let at = e.bin(Binary::Add, at, tap);
        let at = e.bin(Binary::Sub, at, one);
        let (low, high) = (e.bin(Binary::Le, zero, at), e.bin(Binary::Le, at, seven));
        let clamped = e.bin(Binary::Max, at, zero);
        (e.bin(Binary::Min, clamped, seven), e.bin(Binary::And, low, high))
    };
    let ((y, y_in), (x, x_in)) = (place(&mut e, y, 3), place(&mut e, x, 4));
    let line = e.bin(Binary::Mul, y, eight);
    let pixel = e.bin(Binary::Add, line, x);
    let start = e.bin(Binary::Mul, pixel, channels);
    let channel = e.axis(5);
    let index = e.bin(Binary::Add, start, channel);
    let (value, nothing, inside) = (e.load(0, DType::F16, vec![index]), e.f32(0.0), e.bin(Binary::And, y_in, x_in));
    let lhs = e.select(inside, value, nothing);
    let axes = [(2, 24), (3, 3), (4, 3), (5, 16)];
    let weight = axes.into_iter().fold(zero, |sum, (axis, size)| {
        let (size, at) = (e.i32(size), e.axis(axis));
        let sum = e.bin(Binary::Mul, sum, size);
        e.bin(Binary::Add, sum, at)
    });
    let rhs = e.load(1, DType::F16, vec![weight]);
    let (column, width) = (e.axis(2), e.i32(24));
    let out = e.bin(Binary::Mul, row, width);
    let index = e.bin(Binary::Add, out, column);
    let value = e.arg(0, Ty::F32);
    let operands =
        vec![operand(DType::F16, Access::Read), operand(DType::F16, Access::Read), operand(DType::F16, Access::Write)];
    let sizes = [64 * 16, 24 * 144, 64 * 24];
    let buffers = (1u64..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
    let spec = MatmulSpec {
        interface: interface(operands, false),
        exprs: e,
        batch: Extent::Const(1),
        m: Extent::Const(64),
        n: Extent::Const(24),
        k: [3, 3, 16].map(Extent::Const).to_vec(),
        lhs,
        rhs,
        acc: Ty::F32,
        stores: vec![Store { operand: 2, index, value, guard: None }],
        staging,
        wg,
    };
    (spec, Memory { operands: buffers, symbols: vec![] })
}

#[test]
fn products_with_packed_right_operands_match() {
    let Some(gpu) = gpu("packed") else { return };
    let Some((frag, left, right)) = fragments(&gpu) else { return };
    let subgroup = limits(&gpu).subgroup;
    let (m, bk) = (41, 4 * frag.2);
    for (buffers, ahead, packed, parts) in [(2, true, 3, 1), (2, true, 2, 2), (1, false, 1, 4)] {
        let fill = Some(Fill { left, right, staged: true, ahead: (false, false), packed, parts });
        let (bm, bn) = (2 * frag.0, 2 * frag.1);
        let coop = Coop { bm, bn, bk, frag, warps: (1, 2), elem: DType::F16, subgroup, buffers, ahead, fill };
        let (n, k) = (3 * frag.1, 2 * bk);
        let p = Problem { dtype: DType::F16, transposed: true, ..problem(1, m, n, &[k]) };
        let mut spec = p.spec(Staging::Coop(coop), coop.subgroups() * subgroup);
        assert!(build(&KernelSpec::Matmul(spec.clone()), InterfaceForm::Addresses).is_err(), "rows are not packed");
        let (row, column) = (spec.exprs.axis(2), spec.exprs.axis(3));
        let place = packed_place(&mut spec.exprs, &right, (frag.1, frag.2), (row, column), k);
        spec.rhs = spec.exprs.load(1, DType::F16, vec![place]);
        let name = format!("packed {coop:?}");
        assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &p.memory(), tolerance(k)), "{name}");
    }
}

/// Parts of a sum: more than there are tiles of k, a rest that is no tile, and none at all.
#[test]
fn subgroups_that_share_sums_match() {
    let Some(gpu) = gpu("filled parts") else { return };
    let problems =
        [(problem(2, 17, 13, &[24]), 24), (problem(1, 41, 35, &[25, 16]), 400), (problem(1, 9, 17, &[0]), 0)];
    for (i, (p, k)) in problems.into_iter().enumerate() {
        let p = Problem { dtype: DType::F16, transposed: true, out: DType::F32, ..p };
        for (staging, wg) in stagings(&gpu).into_iter().skip(5 + i % 2).take(1) {
            let name = format!("{p:?} {staging:?}");
            assert!(check(&gpu, &name, &KernelSpec::Matmul(p.spec(staging, wg)), &p.memory(), tolerance(k)), "{name}");
        }
    }
    for (staging, wg) in stagings(&gpu).into_iter().skip(5) {
        let (spec, memory) = convolution(staging, wg);
        let name = format!("convolution {staging:?}");
        assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &memory, tolerance(144)), "{name}");
    }
}

#[test]
fn a_convolution_over_channels_last_matches() {
    let Some(gpu) = gpu("filled convolution") else { return };
    for (staging, wg) in stagings(&gpu).into_iter().skip(2).take(1) {
        let (spec, memory) = convolution(staging, wg);
        let name = format!("convolution {staging:?}");
        assert!(check(&gpu, &name, &KernelSpec::Matmul(spec), &memory, tolerance(144)), "{name}");
    }
}

#[test]
fn a_driver_that_spreads_otherwise_than_said_still_gives_right_results() {
    let Some(gpu) = gpu("filled in doubt") else { return };
    for (staging, wg) in stagings(&gpu).into_iter().skip(3).take(1) {
        let Staging::Coop(mut coop) = staging else { unreachable!("all are cooperative") };
        let fill = coop.fill.as_mut().expect("all are filled");
        fill.left.lanes.swap(0, 1);
        fill.right.lanes.swap(0, 1);
        let p = Problem { dtype: DType::F16, transposed: true, ..problem(2, 17, 19, &[24]) };
        let spec = KernelSpec::Matmul(p.spec(Staging::Coop(coop), wg));
        assert!(check(&gpu, &format!("other {coop:?}"), &spec, &p.memory(), tolerance(24)), "it runs");
    }
}
