//! Modules that are built, not run: SPIRV-Tools accepts them, their text is stable, and bad specs are refused with the reason.

use jvc_kernels::dtype::{DType, Storage, Ty};
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::spec::{Access, Extent, Int64, Interface, InterfaceForm, KernelSpec, MapSpec, Operand, Store, Target};
use jvc_kernels::{BuildError, build};

const FORMS: [InterfaceForm; 2] = [InterfaceForm::Addresses, InterfaceForm::Bindings];

fn operand(dtype: DType, storage: Storage, access: Access, via_table: bool) -> Operand {
    Operand { dtype, storage, access, base: u8::from(via_table), via_table }
}

/// A map over one axis with input `dtype` (operand 0) and output `out` (operand 1), whose body is `body(x)`.
fn map(
    dtype: DType,
    out: DType,
    storage: Storage,
    domain: Vec<Extent>,
    body: impl Fn(&mut Exprs, ExprId) -> ExprId,
) -> MapSpec {
    let mut exprs = Exprs::new();
    let mut index = if domain.is_empty() { exprs.i32(0) } else { exprs.axis(0) };
    for k in 1..domain.len() {
        let n = exprs.i32(7);
        let scaled = exprs.bin(Binary::Mul, index, n);
        let axis = exprs.axis(k as u8);
        index = exprs.bin(Binary::Add, scaled, axis);
    }
    let x = exprs.load(0, dtype, vec![index]);
    let value = body(&mut exprs, x);
    let value = exprs.cast(out.ty(), value);
    let symbols = domain.iter().any(|e| matches!(e, Extent::Sym(_)));
    let interface = Interface {
        operands: vec![operand(dtype, storage, Access::Read, false), operand(out, storage, Access::Write, true)],
        n_bases: 2 + u8::from(symbols),
        symbols,
    };
    MapSpec {
        interface,
        exprs,
        domain,
        stores: vec![Store { operand: 1, index, value, guard: None }],
        per_thread: 1,
        wg: 64,
        turned: None,
    }
}

/// Builds in both forms, with 64-bit integers and without; the validator's word is the oracle where it is compiled in, else that the text can be read back.
fn assert_valid(name: &str, spec: &KernelSpec) {
    for (form, int64) in FORMS.into_iter().flat_map(|f| [(f, Int64::Native), (f, Int64::Words)]) {
        let target = Target { form, int64 };
        let kernel = build(spec, target).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = jvc_kernels::disassemble(&kernel.words).unwrap_or_else(|| panic!("{name}: no module"));
        assert!(text.contains("OpEntryPoint GLCompute"), "{name}: no entry point");
        let native = kernel.needs.int64 || text.contains("OpCapability Int64") || text.contains("OpTypeInt 64");
        assert!(int64 == Int64::Native || !native, "{name}: 64-bit integers in a module that does without");
        #[cfg(feature = "validate")]
        if let Err(e) = jvc_kernels::validate(&kernel.words) {
            panic!("{name} {target:?}: {e}\n{text}");
        }
    }
}

#[test]
fn every_float_function_makes_a_valid_module() {
    for dtype in [DType::F32, DType::F64] {
        for op in Unary::ALL.into_iter().filter(|&op| op != Unary::Not) {
            let spec = map(dtype, dtype, Storage::Native, vec![Extent::Const(1000)], |e, x| e.un(op, x));
            assert_valid(&format!("{op:?} {dtype}"), &KernelSpec::Map(spec));
        }
    }
}

#[test]
fn every_binary_operation_makes_a_valid_module() {
    for dtype in [DType::Bool, DType::I32, DType::I64, DType::F32, DType::F64] {
        for op in Binary::ALL {
            let float_only = matches!(op, Binary::Pow | Binary::Atan2);
            let int_only = matches!(op, Binary::Shl | Binary::Shr);
            let bits = matches!(op, Binary::And | Binary::Or | Binary::Xor);
            let equality = matches!(op, Binary::Eq | Binary::Ne);
            let fits = match dtype {
                DType::Bool => bits || equality,
                DType::I32 | DType::I64 => !float_only,
                _ => !int_only && !bits,
            };
            if fits {
                let spec = map(dtype, dtype, Storage::Native, vec![Extent::Const(999)], |e, x| e.bin(op, x, x));
                assert_valid(&format!("{op:?} {dtype}"), &KernelSpec::Map(spec));
            }
        }
    }
}

#[test]
fn every_conversion_makes_a_valid_module() {
    for from in DType::ALL {
        for to in DType::ALL {
            for storage in [Storage::Native, Storage::Word] {
                let spec = map(from, to, storage, vec![Extent::Const(5)], |e, x| {
                    let x = e.cast(to.ty(), x);
                    e.add(jvc_kernels::expr::Expr::Round(to, x))
                });
                assert_valid(&format!("{from} to {to} {storage:?}"), &KernelSpec::Map(spec));
            }
        }
    }
}

#[test]
fn domains_of_any_rank_and_symbolic_extents_make_valid_modules() {
    let domains = [
        vec![],
        vec![Extent::Const(0)],
        vec![Extent::Const(3), Extent::Const(1), Extent::Const(7)],
        vec![Extent::Sym(3), Extent::Const(7), Extent::Sym(0)],
    ];
    for domain in domains {
        for per_thread in [1, 4] {
            let mut spec = map(DType::F32, DType::F16, Storage::Native, domain.clone(), |_, x| x);
            spec.per_thread = per_thread;
            assert_valid(&format!("{domain:?} by {per_thread}"), &KernelSpec::Map(spec));
        }
    }
}

#[test]
fn specs_that_contradict_themselves_are_refused_with_the_reason() {
    let good = || map(DType::F32, DType::F32, Storage::Native, vec![Extent::Const(8)], |_, x| x);
    let error = |spec: MapSpec| build(&KernelSpec::Map(spec), InterfaceForm::Addresses).err();

    let mut spec = good();
    spec.interface.operands.pop();
    assert_eq!(error(spec), Some(BuildError::NoOperand { operand: 1, count: 1 }));

    let mut spec = good();
    spec.interface.operands[0].dtype = DType::F16;
    assert_eq!(error(spec), Some(BuildError::LoadType { operand: 0, held: DType::F16, loaded: DType::F32 }));

    let mut spec = good();
    spec.stores[0].value = spec.exprs.i32(1);
    let expected = BuildError::Type { what: "a stored value", found: Ty::I32, expected: Ty::F32 };
    assert_eq!(error(spec), Some(expected));

    let mut spec = good();
    spec.stores[0].index = spec.exprs.axis(1);
    assert_eq!(error(spec), Some(BuildError::Axis { what: "a store's index", axis: 1 }));

    let mut spec = good();
    spec.domain = vec![Extent::Sym(4)];
    assert_eq!(error(spec), Some(BuildError::NoSymbols { word: 4 }));

    let mut spec = good();
    spec.interface.n_bases = 1;
    assert_eq!(error(spec), Some(BuildError::NoBase { operand: 1, base: 1, n_bases: 1 }));
}
