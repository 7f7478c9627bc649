//! Damaged archives at large: every length, random bits, each limit by itself. Single files with what is said of them are the table of
//! `tests/hostile.rs`.

use crate::archives::{Entries, ZipText, fixture, gzip, read_bytes, read_with};
use jvc::device;
use jvc::import::ImportError;
use jvc::import::limits::{LIMITS, Limits};
use jvc::import::program::{Arg, InputSpec, NamedArg, Node, OutputSpec, Program, ProgramGraph, ScalarType, TensorMeta};
use jvc::import::weights::WeightStore;
use jvc::ir::{Builder, DType, Dim, Op, TensorType, UserInput, UserOutput};
use jvc::options::Options;
use jvc::pipeline::{compile, plan_graphs};
use jvc_kernels::expr::{Exprs, Unary};

const JSON: &str = "models/model.json";
const WEIGHTS: &str = "data/weights/model_weights_config.json";

fn small() -> Entries {
    Entries::of("small_2.11.0.pt2")
}

fn error(bytes: Vec<u8>) -> ImportError {
    match read_bytes("hostile.pt2", bytes) {
        Ok(_) => panic!("the archive is accepted"),
        Err(e) => e,
    }
}

fn text(bytes: Vec<u8>) -> String {
    error(bytes).to_string()
}

#[test]
fn an_archive_put_together_again_reads_the_same_stored_and_deflated() {
    let original = crate::archives::read("small_2.11.0.pt2");
    for bytes in [small().zip(), small().deflated()] {
        let again = read_bytes("small.pt2", bytes).expect("a valid archive").remove(0);
        assert_eq!(again.graph, original.graph);
        for (name, view) in &original.weights {
            assert_eq!(again.weights[name].contiguous(), view.contiguous(), "{name}");
        }
    }
}

#[test]
fn truncated_archives_are_errors_at_every_length() {
    for name in ["small_2.11.0.pt2", "small_2.5.1.pt2"] {
        let whole = fixture(name);
        for n in (0..whole.len()).step_by(61).chain(whole.len() - 70..whole.len()) {
            error(whole[..n].to_vec());
        }
    }
}

#[test]
fn truncated_structures_are_errors() {
    for entry in [JSON, WEIGHTS, "data/constants/model_constants_config.json"] {
        let whole = small().get(entry).to_vec();
        for n in (0..whole.len() - 1).step_by(whole.len() / 97) {
            error(small().with(entry, whole[..n].to_vec()).zip());
        }
    }
    for k in 0..10 {
        let entry = format!("data/weights/weight_{k}");
        let bytes = small().get(&entry).to_vec();
        let cut = small().with(&entry, bytes[..bytes.len() - 1].to_vec()).zip();
        assert!(matches!(error(cut), ImportError::Weight { .. }), "{entry}");
    }
}

#[test]
fn flipped_bits_are_errors_or_other_values_but_never_panics() {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let old = Entries::of("small_2.5.1.pt2");
    let new = small();
    let (mut refused, mut total) = (0, 0);
    let old_names = ["serialized_exported_program.json", "serialized_state_dict.pt", "serialized_constants.pt"];
    let new_names = [JSON, WEIGHTS, "data/constants/model_constants_config.json"];
    for round in 0..600 {
        // The checksums are made anew, so that what is read is the damage and not its detection.
        let (entries, name) =
            if round % 2 == 0 { (&old, old_names[round / 2 % 3]) } else { (&new, new_names[round / 2 % 3]) };
        let mut bytes = entries.get(name).to_vec();
        for _ in 0..1 + next(3) {
            let at = next(bytes.len());
            bytes[at] ^= 1 << next(8);
        }
        let changed = entries.clone().with(name, bytes);
        let zip =
            if round % 2 == 0 { changed.0.iter().fold(ZipText::default(), plain).finish() } else { changed.zip() };
        refused += usize::from(read_bytes("flipped.pt2", zip).is_err());
        total += 1;
    }
    assert!(refused > total / 2, "{refused} of {total} refused");
    let whole = fixture("small_2.11.0.pt2");
    for _ in 0..600 {
        let mut bytes = whole.clone();
        let at = next(bytes.len());
        bytes[at] = next(256) as u8;
        let _ = read_bytes("flipped.pt2", bytes);
    }
}

fn plain(mut zip: ZipText, (name, data): &(String, Vec<u8>)) -> ZipText {
    zip.add(name, data, data, 0);
    zip
}

#[test]
fn compression_bombs_stop_at_the_declared_size_and_the_budget() {
    let zeros = vec![b' '; 40 << 20];
    let bomb = small().with(JSON, zeros.clone());
    let tight = Limits { json_bytes: 1 << 20, ..LIMITS };
    let refuse = |bytes, limits: &Limits| read_with("bomb.pt2", bytes, limits).map(|_| ()).expect_err("refused");
    assert!(matches!(refuse(bomb.deflated(), &tight), ImportError::Limit { .. }));
    let budget = Limits { inflated_bytes: 1 << 20, ..LIMITS };
    assert!(refuse(bomb.deflated(), &budget).to_string().contains("that are left to this file"));
    assert!(matches!(refuse(gzip(&zeros), &tight), ImportError::Limit { .. }));
}

#[test]
fn counts_and_nesting_are_limited() {
    let refuse =
        |limits: Limits| read_with("small.pt2", small().zip(), &limits).map(|_| ()).expect_err("refused").to_string();
    assert!(refuse(Limits { entries: 5, ..LIMITS }).contains("archive entries"));
    assert!(refuse(Limits { nodes: 5, ..LIMITS }).contains("nodes"));
    assert!(refuse(Limits { values: 5, ..LIMITS }).contains("tensors"));
    assert!(
        refuse(Limits { rank: 1, ..LIMITS }).contains("dimensions")
            || refuse(Limits { rank: 1, ..LIMITS }).contains("sizes")
    );
    assert!(refuse(Limits { elems: 3, ..LIMITS }).contains("elements"));
    assert!(refuse(Limits { name_bytes: 3, ..LIMITS }).contains("name"));
    assert!(refuse(Limits { weights: 3, ..LIMITS }).contains("tensors of a checkpoint"));
    let deep = "[".repeat(100_000);
    assert!(text(small().with(JSON, deep.into_bytes()).zip()).contains("nesting"));
    let pickle = Entries::of("small_2.5.1.pt2");
    let zip = pickle.0.iter().fold(ZipText::default(), plain).finish();
    let limits = Limits { pickle_bytes: 16, ..LIMITS };
    assert!(matches!(read_with("old.pt2", zip, &limits), Err(ImportError::Limit { .. })));
}

#[test]
fn what_a_newer_minor_or_an_unknown_formula_means_is_noted() {
    let minor = small().edit(JSON, r#""minor": 17"#, r#""minor": 18"#).edit(
        JSON,
        r#""is_hop_single_tensor_return""#,
        r#""new_field""#,
    );
    let warnings = read_bytes("newer.pt2", minor.zip()).expect("tolerated").remove(0).warnings;
    assert!(
        warnings.iter().any(|w| w.contains("8.18")) && warnings.iter().any(|w| w.contains("new_field")),
        "{warnings:?}"
    );
    let power = small().edit(JSON, "Symbol('s77', positive=True, integer=True)", "Pow(Symbol('s77'), Integer(99999))");
    let warnings = read_bytes("opaque.pt2", power.zip()).expect("tolerated").remove(0).warnings;
    assert!(warnings.iter().any(|w| w.contains("opaque")), "{warnings:?}");
}

#[test]
fn several_models_of_one_archive_are_several_programs() {
    let mut entries = small();
    for (name, data) in small().0 {
        if name.contains("model") && !name.contains("sample_inputs") {
            let other = name.replace("models/model", "models/second").replace("/model_", "/second_");
            entries.0.push((other, data));
        }
    }
    let programs = read_bytes("two.pt2", entries.zip()).expect("two programs");
    let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["model", "second"]);
    assert_eq!(programs[0].graph, programs[1].graph);
}

#[test]
fn element_types_that_contradict_each_other_are_diagnostics() {
    use ScalarType as T;
    let program = crate::archives::read("small_2.11.0.pt2");
    let lavapipe = device::find("lavapipe").expect("bundled");
    // What weights are declared to be is compared with what they are while the archive is read.
    let weights: Vec<&Arg> = program.graph.inputs.iter().zip(&program.inputs).filter_map(not_given_by_user).collect();
    let names: Vec<&String> =
        program.graph.tensors.keys().filter(|n| !weights.contains(&&Arg::Tensor((*n).clone()))).collect();
    let mut refused = 0;
    for &name in &names {
        for dtype in [T::I64, T::F16, T::Bool, T::F64, T::C64, T::U8, T::F8E4M3Fn] {
            let mut changed = crate::archives::read("small_2.11.0.pt2");
            changed.graph.tensors.get_mut(name).expect("its own name").dtype = dtype;
            refused += usize::from(compile(&[changed], &Options::default(), &lavapipe).is_err());
        }
    }
    let all = 7 * names.len();
    assert!(refused > all / 2 && refused < all, "{refused} of {all} refused");
}

fn not_given_by_user<'p>((arg, spec): (&'p Arg, &InputSpec)) -> Option<&'p Arg> {
    (!matches!(spec, InputSpec::User(_))).then_some(arg)
}

#[test]
fn a_long_chain_behind_a_matrix_product_becomes_several_kernels() {
    let mut b = Builder::new("chain");
    let ty = TensorType::fixed(DType::F32, &[4, 4]);
    let x = b.push(Op::Input { index: 0 }, vec![], vec![ty.clone()])[0];
    b.graph.inputs.push(("x".into(), UserInput::Tensor(x)));
    let mut v = b.add1(Op::Matmul, vec![x, x]).expect("two matrices");
    for _ in 0..2000 {
        let mut exprs = Exprs::new();
        let a = exprs.arg(0, DType::F32.ty());
        let root = exprs.un(Unary::Abs, a);
        v = b.map(jvc::ir::Body { exprs, root, syms: vec![] }, vec![v], ty.clone()).expect("fits");
    }
    b.graph.outputs.push(("y".into(), UserOutput::Tensor(v)));
    let lavapipe = device::find("lavapipe").expect("bundled");
    let compiled = plan_graphs(vec![b.graph], &[&WeightStore::new()], &Options::default(), &lavapipe);
    let kernels = &compiled.expect("compiles").plan.kernels;
    let longest = kernels.iter().map(|k| k.spec.len()).max();
    assert!(longest.is_some_and(|n| n < 4000), "{longest:?} characters");
}

/// A program of one call with the inputs t0, t1, … of the given f32 or (where the name ends so) i64 shapes.
fn one_call(target: &str, tensors: &[(&str, &[i64])], args: Vec<(&str, Arg)>) -> Program {
    let mut graph = ProgramGraph::default();
    for (name, sizes) in tensors.iter().copied().chain([("y", tensors[0].1)]) {
        let dtype = if name.ends_with("i64") { ScalarType::I64 } else { ScalarType::F32 };
        let sizes: Vec<Dim> = sizes.iter().map(|&d| Dim::from(d)).collect();
        let strides = vec![Dim::from(1); sizes.len()];
        graph.tensors.insert(name.into(), TensorMeta { dtype, sizes, strides, storage_offset: Dim::from(0) });
    }
    graph.inputs = tensors.iter().map(|(n, _)| Arg::Tensor((*n).into())).collect();
    graph.outputs = vec![Arg::Tensor("y".into())];
    let given = args.into_iter().map(|(name, arg)| NamedArg { name: name.into(), arg });
    graph.nodes.push(Node {
        name: "y".into(),
        target: target.into(),
        inputs: given.collect(),
        outputs: graph.outputs.clone(),
        module: String::new(),
        line: String::new(),
    });
    Program {
        name: "model".into(),
        inputs: graph.inputs.iter().cloned().map(InputSpec::User).collect(),
        input_names: tensors.iter().map(|(n, _)| (*n).into()).collect(),
        outputs: graph.outputs.iter().cloned().map(OutputSpec::User).collect(),
        output_names: vec!["y".into()],
        graph,
        ranges: Default::default(),
        functional: true,
        torch_version: "2.11.0".into(),
        weights: WeightStore::new(),
        warnings: vec![],
    }
}

#[test]
fn arguments_that_no_tensor_can_meet_are_diagnostics_in_no_time() {
    let lavapipe = device::find("lavapipe").expect("bundled");
    let x = || ("self", Arg::Tensor("x".into()));
    let image: &[(&str, &[i64])] = &[("x", &[1, 3, 8, 8])];
    let far = 1 << 62;
    let pool = vec![x(), ("kernel_size", Arg::Ints(vec![2, 2])), ("padding", Arg::Ints(vec![1, far]))];
    let size = || ("output_size", Arg::Ints(vec![3, 1 << 31]));
    let smooth = vec![x(), size(), ("align_corners", Arg::Bool(false))];
    let index: &[(&str, &[i64])] = &[("x", &[8, 5]), ("index_i64", &[5, 5]), ("src", &[5, 2])];
    let steps = vec![("start", Arg::Int(0)), ("end", Arg::Int(1)), ("steps", Arg::Int(1 << 31))];
    let tensor = |name: &str| Arg::Tensor(name.into());
    let scatter = vec![x(), ("dim", Arg::Int(1)), ("index", tensor("index_i64")), ("src", tensor("src"))];
    for (target, tensors, args, what) in [
        ("aten.avg_pool2d.default", image, pool, "beyond 32 bits"),
        ("aten._upsample_bilinear2d_aa.default", image, smooth, "at most"),
        ("aten._upsample_nearest_exact2d.default", image, vec![x(), size()], "at most"),
        ("aten.scatter.src", index, scatter, "contradictory"),
        ("aten.group_norm.default", image, vec![("input", Arg::Tensor("x".into())), ("num_groups", Arg::Int(far))], ""),
        ("aten.linspace.default", image, steps, "steps=2147483648"),
    ] {
        let program = one_call(target, tensors, args);
        let Err(found) = compile(&[program], &Options::default(), &lavapipe) else { panic!("{target} is accepted") };
        assert!(found[0].message.contains(what), "{target}: {}", found[0].message);
    }
}
