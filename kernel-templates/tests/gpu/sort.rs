//! Sorts in shared memory, with ties, zeros of both signs, infinities and NaN.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::Exprs;
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{Access, Extent, KernelSpec, SortSpec, Store};

#[test]
fn lines_are_sorted_with_ties_in_order() {
    let Some(gpu) = gpu("sorts") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    let shapes = [
        (vec![c(3)], c(17), (32, 8)),
        (vec![], c(64), (64, 32)),
        (vec![s(0)], s(1), (64, 16)),
        (vec![c(2)], c(1), (32, 16)),
    ];
    for (outer, len, tile) in shapes {
        for dtype in [DType::F32, DType::F16, DType::I32, DType::I64, DType::Bool] {
            for descending in [false, true] {
                sort(&gpu, &outer, (len, len), dtype, descending, (tile.0, tile.1, false));
            }
        }
    }
    sort(&gpu, &[s(0)], (s(2), s(2)), DType::F32, false, (32, 16, false));
    sort(&gpu, &[c(1)], (c(1025), c(1025)), DType::F32, true, (2048, 64, false));
}

#[test]
fn the_first_places_come_without_the_others() {
    let Some(gpu) = gpu("sorts of first places") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    let others = [DType::F16, DType::I64, DType::I32, DType::Bool, DType::BF16];
    let mut types = others.into_iter().flat_map(|t| [(t, true), (t, false)]).cycle().step_by(3);
    // Lines longer and shorter than a workgroup, of a turn and of many, one place and as many as invocations.
    for (outer, len, kept, wg) in [
        (vec![c(3)], c(200), 16, 32),
        (vec![c(2)], c(3000), 11, 64),
        (vec![c(2)], c(64), 64, 64),
        (vec![c(2)], c(65), 64, 64),
        (vec![], c(31), 1, 32),
        (vec![], c(30), 30, 64),
        (vec![s(0)], s(1), 29, 32),
        (vec![s(0)], s(2), 5, 32),
    ] {
        let longest = if let Extent::Const(n) = len { n } else { 200 };
        let tile = (kept * longest.div_ceil(wg), wg, true);
        for (dtype, descending) in [(DType::F32, true), (DType::F32, false), types.next().expect("a cycle")] {
            sort(&gpu, &outer, (len, c(kept)), dtype, descending, tile);
        }
    }
    sort(&gpu, &[c(2)], (c(1025), c(64)), DType::F32, true, (2048, 64, false));
    sort(&gpu, &[c(1)], (c(5000), c(100)), DType::F32, true, (100 * 20, 256, true));
}

fn sort(
    gpu: &jvc_runtime::Gpu,
    outer: &[Extent],
    (len, kept): (Extent, Extent),
    dtype: DType,
    descending: bool,
    (capacity, wg, chosen): (u32, u32, bool),
) {
    let mut e = Exprs::new();
    let extents = [outer, &[len]].concat();
    let axes: Vec<(u8, Extent)> = (0u8..).zip(extents.iter().copied()).collect();
    let index = row_major(&mut e, &axes);
    let value = e.load(0, dtype, vec![index]);
    let (sorted, from) = (e.arg(0, dtype.ty()), e.arg(1, Ty::I32));
    let store = |operand, value| Store { operand, index, value, guard: None };
    let stores = vec![store(1, sorted), store(2, from)];
    let operands =
        vec![operand(dtype, Access::Read), operand(dtype, Access::Write), operand(DType::I32, Access::Write)];
    let symbols = if symbolic(&extents) { vec![5, 29, 0] } else { vec![] };
    let mut memory = Memory { operands: vec![], symbols };
    let n = elements(&memory, &extents);
    memory.operands = operands.iter().map(|o| Random(7).buffer(o, n)).collect();
    let mut random = Random(8);
    // Every other element is one of a few values, so that there are ties.
    let few = [-1.5f32, 0.0, -0.0, 2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3.0];
    for i in (0..n).step_by(2) {
        let pick = few[random.below(few.len() as u32) as usize];
        let value = if dtype.is_float() { Value::F32(pick) } else { Value::I32(pick as i32 % 100) };
        memory.operands[0].store(i, value.cast(dtype.ty()));
    }
    let spec = KernelSpec::Sort(SortSpec {
        interface: interface(operands, symbolic(&extents)),
        exprs: e,
        outer: outer.to_vec(),
        len,
        kept,
        capacity,
        chosen,
        descending,
        value,
        stores,
        wg,
    });
    check(gpu, &format!("sort {dtype} {extents:?} descending={descending}, the first {kept:?}"), &spec, &memory, EXACT);
}
