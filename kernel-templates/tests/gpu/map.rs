//! The map template: conversions between all types, shapes, symbols, guards.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{EXACT, Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Storage, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, Expr, Exprs, Unary};
use jvc_kernels::host::{HostBuffer, Memory};
use jvc_kernels::spec::{Access, Extent, KernelSpec, MapSpec, Store, Turned};
use jvc_kernels::templates::map::{turned_axis, turned_in_groups};

#[test]
fn every_type_converts_to_every_other_as_the_reference_does() {
    let Some(gpu) = gpu("conversions") else { return };
    let mut ran = 0;
    for from in DType::ALL {
        for to in DType::ALL {
            for storage in [Storage::Native, Storage::Word] {
                ran += usize::from(convert(&gpu, from, to, storage));
            }
        }
    }
    assert!(ran >= 4, "{ran} conversions ran");
}

fn convert(gpu: &jvc_runtime::Gpu, from: DType, to: DType, storage: Storage) -> bool {
    let special = [
        0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        127.0,
        128.0,
        255.0,
        256.0,
        32768.0,
        65504.0,
        65519.0,
        65520.0,
        1e6,
        3e9,
        -3e9,
        1e20,
        -1e20,
        1e-7,
        6e-8,
        1e-6,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let mut random = Random(3);
    let mut values = special.to_vec();
    values.extend((0..500).map(|_| random.between(-300.0, 300.0)));
    values.extend((0..500).map(|_| 2f64.powf(random.between(-26.0, 17.0))));
    let mut e = Exprs::new();
    let n = Extent::Const(values.len() as u32);
    let index = row_major(&mut e, &[(0, n)]);
    let x = e.load(0, from, vec![index]);
    let cast = e.cast(to.ty(), x);
    let rounded = e.add(Expr::Round(to, cast));
    let mut operands = vec![operand(from, Access::Read), operand(to, Access::Write), operand(to, Access::Write)];
    operands.iter_mut().for_each(|o| o.storage = storage);
    let mut input = HostBuffer::zeros(from, storage, values.len());
    for (i, &v) in values.iter().enumerate() {
        input.store(i, Value::from_f64(from.ty(), v));
    }
    let outputs = HostBuffer::zeros(to, storage, values.len());
    let memory = Memory { operands: vec![input, outputs.clone(), outputs], symbols: vec![] };
    let store = |operand, value| Store { operand, index, value, guard: None };
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(operands, false),
        exprs: e,
        domain: vec![n],
        stores: vec![store(1, cast), store(2, rounded)],
        per_thread: 1,
        wg: 64,
        turned: None,
    });
    check(gpu, &format!("{from} to {to} {storage:?}"), &spec, &memory, EXACT)
}

/// GELU of halves, whose error function is an approximation: within a rounding of the result and 10⁻⁶, NaN and infinities included.
#[test]
fn gelu_that_is_rounded_to_halves_is_as_good_as_exact() {
    let Some(gpu) = gpu("gelu") else { return };
    let n = Extent::Const(2048);
    let mut e = Exprs::new();
    let index = row_major(&mut e, &[(0, n)]);
    let x = e.load(0, DType::F16, vec![index]);
    let [half, root, one] = [0.5, std::f32::consts::FRAC_1_SQRT_2, 1.0].map(|v| e.f32(v));
    let (scaled, inner) = (e.bin(Binary::Mul, x, half), e.bin(Binary::Mul, x, root));
    let erf = e.un(Unary::Erf, inner);
    let sum = e.bin(Binary::Add, one, erf);
    let value = e.bin(Binary::Mul, scaled, sum);
    let operands = vec![operand(DType::F16, Access::Read), operand(DType::F16, Access::Write)];
    let mut input = HostBuffer::zeros(DType::F16, Storage::Native, 2048);
    for i in 0..2048 {
        let v = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0].get(i).copied().unwrap_or(i as f64 / 150.0 - 6.8);
        input.store(i, Value::from_f64(Ty::F32, v));
    }
    let memory =
        Memory { operands: vec![input, HostBuffer::zeros(DType::F16, Storage::Native, 2048)], symbols: vec![] };
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(operands, false),
        exprs: e,
        domain: vec![n],
        stores: vec![Store { operand: 1, index, value, guard: None }],
        per_thread: 1,
        wg: 64,
        turned: None,
    });
    check(&gpu, "gelu", &spec, &memory, Tolerance { relative: 1e-3, absolute: 1e-6 });
}

/// An image `[c, place]` turned to `[place, c]`, a block of channels an invocation: read element by element, stored by the block.
#[test]
fn an_axis_of_one_block_is_stored_by_the_block_whatever_it_reads() {
    let Some(gpu) = gpu("turned") else { return };
    let (blocks, places) = (3u32, 37u32);
    let n = (blocks * 8 * places) as usize;
    let mut e = Exprs::new();
    let (block, place, within) = (e.axis(0), e.axis(1), e.axis(2));
    let [eight, width, channels] = [8, places as i32, 8 * blocks as i32].map(|v| e.i32(v));
    let first = e.bin(Binary::Mul, block, eight);
    let channel = e.bin(Binary::Add, first, within);
    let line = e.bin(Binary::Mul, channel, width);
    let from = e.bin(Binary::Add, line, place);
    let start = e.bin(Binary::Mul, place, channels);
    let to = e.bin(Binary::Add, start, channel);
    let value = e.load(0, DType::F16, vec![from]);
    let mut input = HostBuffer::zeros(DType::F16, Storage::Native, n);
    (0..n).for_each(|i| input.store(i, Value::from_f64(Ty::F32, i as f64)));
    let memory = Memory { operands: vec![input, HostBuffer::zeros(DType::F16, Storage::Native, n)], symbols: vec![] };
    let operands = vec![operand(DType::F16, Access::Read), operand(DType::F16, Access::Write)];
    let spec = MapSpec {
        interface: interface(operands, false),
        exprs: e,
        domain: vec![Extent::Const(blocks), Extent::Const(places), Extent::Const(8)],
        stores: vec![Store { operand: 1, index: to, value, guard: None }],
        per_thread: 8,
        wg: 64,
        turned: None,
    };
    assert_eq!(jvc_kernels::templates::map::group_size(&spec), Some(8));
    check(&gpu, "turned", &KernelSpec::Map(spec), &memory, EXACT);
}

#[test]
fn domains_of_any_shape_are_covered_once_and_guards_hold() {
    let Some(gpu) = gpu("domains") else { return };
    let symbols = vec![7, 0, 13, 1];
    let (c, s) = (Extent::Const, Extent::Sym);
    let domains = [
        vec![],
        vec![c(1)],
        vec![c(0)],
        vec![c(5), c(0)],
        vec![c(1009)],
        vec![c(3), c(1), c(64), c(5)],
        vec![c(2), c(31), c(12)],
        vec![s(0), c(6), s(2)],
        vec![s(2), s(3), c(4)],
        vec![s(1), c(4)],
        vec![c(70_000), c(31)],
    ];
    for domain in domains {
        for (per_thread, wg) in [(1, 64), (3, 32), (4, 256), (1, 1)] {
            let total: u64 = domain.iter().map(|e| if let Extent::Const(n) = e { u64::from(*n) } else { 1 }).product();
            if total < 100_000 || wg > 1 {
                shaped(&gpu, &domain, per_thread, wg, &symbols);
            }
        }
    }
}

/// `out[i, j] = x[i, j] · bias[j] + rows[i]`, in groups along j by blocks of 16 bytes, or of 8 where rows of halves start at such; the row is found
/// from the element's number.
#[test]
fn groups_come_and_go_by_blocks() {
    let Some(gpu) = gpu("groups") else { return };
    let types =
        [(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::BF16, DType::F16), (DType::F32, DType::BF16)];
    for ((from, to), length) in types.into_iter().flat_map(|t| [(t, 48), (t, 44)]) {
        let n = 5 * length;
        let domain = [Extent::Const(5), Extent::Const(length)];
        let mut e = Exprs::new();
        let index = row_major(&mut e, &[(0, domain[0]), (1, domain[1])]);
        let (length_of, column) = (e.i32(length as i32), e.axis(1));
        let row = e.bin(Binary::Div, index, length_of);
        let (x, bias, offset) =
            (e.load(0, from, vec![index]), e.load(1, DType::F32, vec![column]), e.load(2, DType::F32, vec![row]));
        let value = e.bin(Binary::Mul, x, bias);
        let value = e.bin(Binary::Add, value, offset);
        let operands = vec![
            operand(from, Access::Read),
            operand(DType::F32, Access::Read),
            operand(DType::F32, Access::Read),
            operand(to, Access::Write),
        ];
        let buffers = operands.iter().zip([n, length, 5, n].map(|n| n as usize));
        let buffers = buffers.map(|(o, n)| Random(n as u64).buffer(o, n)).collect();
        let mut spec = MapSpec {
            interface: interface(operands, false),
            exprs: e,
            domain: domain.to_vec(),
            stores: vec![Store { operand: 3, index, value, guard: None }],
            per_thread: 1,
            wg: 32,
            turned: None,
        };
        spec.per_thread = jvc_kernels::templates::map::group_size(&spec).expect("everything comes by blocks");
        let eight = length == 48 && (from, to) != (DType::F32, DType::F32);
        assert_eq!(spec.per_thread, if eight { 8 } else { 4 }, "{from} to {to}, rows of {length}");
        let memory = Memory { operands: buffers, symbols: vec![] };
        let close = Tolerance { relative: if to == DType::F32 { 1e-6 } else { 8e-3 }, absolute: 1e-6 };
        check(&gpu, &format!("groups {from} to {to}, rows of {length}"), &KernelSpec::Map(spec), &memory, close);
    }
}

/// `out[reversed coordinates] = in[coordinates] · (first axis + 1)` where the element's number is not 2 modulo 3.
fn shaped(gpu: &jvc_runtime::Gpu, domain: &[Extent], per_thread: u32, wg: u32, symbols: &[u32]) {
    let mut e = Exprs::new();
    let axes: Vec<(u8, Extent)> = (0u8..).zip(domain.iter().copied()).collect();
    let reversed: Vec<(u8, Extent)> = axes.iter().rev().copied().collect();
    let index = row_major(&mut e, &axes);
    let target = row_major(&mut e, &reversed);
    let x = e.load(0, DType::F32, vec![index]);
    let first = if domain.is_empty() { e.i32(4) } else { e.axis(0) };
    let one = e.i32(1);
    let factor = e.bin(Binary::Add, first, one);
    let factor = e.cast(Ty::F32, factor);
    let value = e.bin(Binary::Mul, x, factor);
    let (three, two) = (e.i32(3), e.i32(2));
    let rest = e.bin(Binary::Rem, index, three);
    let guard = e.bin(Binary::Ne, rest, two);
    let is_symbolic = symbolic(domain);
    let operands = vec![operand(DType::F32, Access::Read), operand(DType::F32, Access::Write)];
    let mut memory = Memory { operands: vec![], symbols: if is_symbolic { symbols.to_vec() } else { vec![] } };
    let n = elements(&memory, domain);
    memory.operands = operands.iter().map(|o| Random(n as u64).buffer(o, n)).collect();
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(operands, is_symbolic),
        exprs: e,
        domain: domain.to_vec(),
        stores: vec![Store { operand: 1, index: target, value, guard: Some(guard) }],
        per_thread,
        wg,
        turned: None,
    });
    assert!(check(gpu, &format!("{domain:?} by {per_thread}, wg {wg}"), &spec, &memory, EXACT), "f32 is everywhere");
}

#[test]
fn integer_arithmetic_wraps_divides_and_shifts_as_the_reference_does() {
    let Some(gpu) = gpu("integers") else { return };
    let divisors = [1, 2, 3, 5, 7, 10, 641, 1000, 65_537, 1_000_003, i32::MAX, -1, -3, i32::MIN];
    for dtype in [DType::I32, DType::I64] {
        let mut e = Exprs::new();
        let special = [0, 1, -1, 2, 7, -7, i32::MAX, i32::MIN, i32::MAX - 1, 1 << 30];
        let mut random = Random(1);
        let values: Vec<i32> = special.into_iter().chain((0..600).map(|_| random.bits() as i32)).collect();
        let n = Extent::Const(values.len() as u32);
        let index = row_major(&mut e, &[(0, n)]);
        let x = e.load(0, dtype, vec![index]);
        let absolute = e.un(Unary::Abs, x);
        let mut results = vec![absolute, e.un(Unary::Neg, x), e.un(Unary::Not, x)];
        for d in divisors {
            let d = e.lit(dtype.ty(), d.into());
            results.extend([e.bin(Binary::Div, x, d), e.bin(Binary::Rem, x, d)]);
        }
        let five = e.lit(dtype.ty(), 5.0);
        for op in
            [Binary::Shl, Binary::Shr, Binary::And, Binary::Or, Binary::Xor, Binary::Max, Binary::Min, Binary::Mul]
        {
            results.push(e.bin(op, x, five));
        }
        for op in [Binary::Mul, Binary::Add, Binary::Sub] {
            results.push(e.bin(op, x, absolute));
        }
        let count = e.i32(values.len() as i32);
        let stores: Vec<Store> = results
            .iter()
            .enumerate()
            .map(|(k, &value)| {
                let k = e.i32(k as i32);
                let base = e.bin(Binary::Mul, k, count);
                Store { operand: 1, index: e.bin(Binary::Add, base, index), value, guard: None }
            })
            .collect();
        let operands = vec![operand(dtype, Access::Read), operand(dtype, Access::Write)];
        let mut input = HostBuffer::zeros(dtype, Storage::Native, values.len());
        for (i, &v) in values.iter().enumerate() {
            input.store(i, Value::I32(v).cast(dtype.ty()));
        }
        let output = HostBuffer::zeros(dtype, Storage::Native, values.len() * stores.len());
        let memory = Memory { operands: vec![input, output], symbols: vec![] };
        let spec = MapSpec {
            interface: interface(operands, false),
            exprs: e,
            domain: vec![n],
            stores,
            per_thread: 1,
            wg: 64,
            turned: None,
        };
        check(&gpu, &format!("integers {dtype}"), &KernelSpec::Map(spec), &memory, EXACT);
    }
}

#[test]
fn quotients_of_coordinates_by_any_constant_are_exact() {
    let Some(gpu) = gpu("coordinate quotients") else { return };
    // Scaled so that numerators reach 2^31 − 1, where a rounded reciprocal would show.
    let step = 35_791;
    let n = 60_000u32;
    for d in [3, 5, 6, 7, 9, 11, 13, 25, 100, 641, 1023, 4097, 65_535, 1_234_567, 1 << 30, i32::MAX] {
        let mut e = Exprs::new();
        let index = e.axis(0);
        let (scale, d_id) = (e.i32(step), e.i32(d));
        let x = e.bin(Binary::Mul, index, scale);
        let (q, r) = (e.bin(Binary::Div, x, d_id), e.bin(Binary::Rem, x, d_id));
        let store = |operand, value| Store { operand, index, value, guard: None };
        let spec = KernelSpec::Map(MapSpec {
            interface: interface(vec![operand(DType::I32, Access::Write); 2], false),
            stores: vec![store(0, q), store(1, r)],
            exprs: e,
            domain: vec![Extent::Const(n)],
            per_thread: 1,
            wg: 64,
            turned: None,
        });
        let output = HostBuffer::zeros(DType::I32, Storage::Native, n as usize);
        let memory = Memory { operands: vec![output.clone(), output], symbols: vec![] };
        check(&gpu, &format!("by {d}"), &spec, &memory, EXACT);
    }
}

#[test]
fn selections_and_comparisons_with_nan_follow_the_reference() {
    let Some(gpu) = gpu("nan") else { return };
    let mut e = Exprs::new();
    let special = [0.0, -0.0, 1.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let n = special.len() as u32;
    let index = row_major(&mut e, &[(0, Extent::Const(n)), (1, Extent::Const(n))]);
    let (i, j) = (e.axis(0), e.axis(1));
    let (a, b) = (e.load(0, DType::F32, vec![i]), e.load(0, DType::F32, vec![j]));
    let less = e.bin(Binary::Lt, a, b);
    let mut values = vec![e.bin(Binary::Max, a, b), e.bin(Binary::Min, a, b), e.select(less, a, b)];
    for op in [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le] {
        let truth = e.bin(op, a, b);
        values.push(e.cast(Ty::F32, truth));
    }
    let mut operands = vec![operand(DType::F32, Access::Read)];
    operands.extend(values.iter().map(|_| operand(DType::F32, Access::Write)));
    let mut input = HostBuffer::zeros(DType::F32, Storage::Native, special.len());
    for (k, &v) in special.iter().enumerate() {
        input.store(k, Value::F32(v as f32));
    }
    let mut buffers = vec![input];
    buffers.extend(values.iter().map(|_| HostBuffer::zeros(DType::F32, Storage::Native, (n * n) as usize)));
    let stores = (1..).zip(values).map(|(operand, value)| Store { operand, index, value, guard: None }).collect();
    let spec = KernelSpec::Map(MapSpec {
        interface: interface(operands, false),
        exprs: e,
        domain: vec![Extent::Const(n); 2],
        stores,
        per_thread: 1,
        wg: 32,
        turned: None,
    });
    let none = Tolerance { relative: 0.0, absolute: 0.0 };
    assert!(check(&gpu, "nan", &spec, &Memory { operands: buffers, symbols: vec![] }, none), "f32 is everywhere");
}

/// Transposed halves and floats, whole and ragged tiles, beside what lies along the last axis, under a guard, with an axis outside. Halves come in
/// groups of eight, of four, or one by one, under a guard that holds for whole groups, and with a value for each.
#[test]
fn what_lies_along_another_axis_passes_through_tiles() {
    let Some(gpu) = gpu("turned maps") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    let sizes = [
        ([c(1), c(32), c(64)], (32, 128), 8),
        ([c(2), c(136), c(72)], (64, 256), 8),
        ([c(2), c(68), c(76)], (64, 256), 4),
        ([s(0), c(40), c(24)], (32, 64), 8),
        ([c(3), c(37), c(70)], (16, 64), 1),
        ([s(0), c(17), c(33)], (8, 16), 1),
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
        for (domain, (side, wg), group) in sizes {
            let halves = matches!(dtype, DType::F16 | DType::BF16);
            let mut e = Exprs::new();
            let [outer, row, column] = [0, 1, 2];
            let along = row_major(&mut e, &[(outer, domain[0]), (row, domain[1]), (column, domain[2])]);
            let across = row_major(&mut e, &[(outer, domain[0]), (column, domain[2]), (row, domain[1])]);
            let (x, y) = (e.load(0, dtype, vec![across]), e.load(1, dtype, vec![along]));
            let value = e.bin(Binary::Max, x, y);
            let (at, five) = (e.axis(if group > 1 { row } else { column }), e.i32(5));
            let guard = e.bin(Binary::Ne, at, five);
            let read = operand(dtype, Access::Read);
            let operands = vec![read.clone(), read, operand(dtype, Access::Write)];
            let symbols = if symbolic(&domain) { vec![2] } else { vec![] };
            let mut memory = Memory { operands: vec![], symbols };
            let n = elements(&memory, &domain);
            memory.operands = (1..).zip(&operands).map(|(seed, o)| Random(seed).buffer(o, n)).collect();
            let spec = MapSpec {
                interface: interface(operands, symbolic(&domain)),
                exprs: e,
                domain: domain.to_vec(),
                stores: vec![Store { operand: 2, index: along, value, guard: Some(guard) }],
                per_thread: side * side / wg,
                wg,
                turned: Some(Turned { axis: 1, side }),
            };
            assert_eq!(turned_axis(&spec), Some(1));
            assert_eq!(turned_in_groups(&spec, Turned { axis: 1, side }), halves && group > 1, "{dtype} {domain:?}");
            check(&gpu, &format!("turned {dtype} {domain:?}"), &KernelSpec::Map(spec), &memory, EXACT);
        }
    }
}
