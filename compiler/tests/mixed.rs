//! `--precision`: by which call and module operations stay in f32, and that weights stored as halves are the checkpoint's tensors rounded,
//! on the device at hand against the interpreter.

use jvc::device;
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::import::program::ScalarType;
use jvc::import::weights::{Storage, WeightStore, WeightView};
use jvc::ir::eval::{Symbols, Tensor, eval};
use jvc::ir::graph::Origin;
use jvc::ir::op::WeightRef;
use jvc::ir::{Body, Builder, DType, Graph, Op, TensorType, UserInput, UserOutput, ValueId};
use jvc::islands::{Denominator, Island, Islands, ProgramIslands};
use jvc::options::{Half, Mixed, Options};
use jvc::passes::mix_precision::{Call, Report, Why};
use jvc::passes::semantics::random_tensor;
use jvc::passes::{self, checkpoint_tensor};
use jvc::pipeline::plan_graphs;
use jvc::schedule::inline::storage_of;
use jvc_kernels::dtype::{Storage as Form, Ty};
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_runtime::{CacheDir, Gpu, Select};

/// Layers `x · wᵀ` in modules of their own, with pointwise calls between.
struct Net {
    b: Builder,
    weights: WeightStore,
    at: ValueId,
}

impl Net {
    fn new(rows: i64, features: i64) -> Net {
        let mut b = Builder::new("net");
        let at = b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(DType::F32, &[rows, features])])[0];
        b.graph.inputs.push(("x".into(), UserInput::Tensor(at)));
        Net { b, weights: WeightStore::new(), at }
    }

    fn from(mut self, target: &str, module: &str) -> Net {
        let node = format!("n{}", self.b.graph.nodes.len());
        self.b.set_origin(Origin { node, target: target.into(), module: module.into(), line: String::new() });
        self
    }

    fn linear(self, module: &str, out: i64) -> Net {
        let mut net = self.from("aten.linear.default", module);
        let k = net.b.ty(net.at).shape[1].as_const().expect("a literal");
        let name = format!("{module}.weight");
        let t = random_tensor(DType::F32, &[out as usize, k as usize], name.len() as u64);
        let storage = Some(Storage::owned(t.to_bytes()));
        let view = WeightView { dtype: ScalarType::F32, sizes: vec![out, k], strides: vec![k, 1], offset: 0, storage };
        net.weights.insert(name.clone(), view);
        let w =
            net.b.push(Op::Weight(WeightRef::new(&name)), vec![], vec![TensorType::fixed(DType::F32, &[out, k])])[0];
        let w = net.b.add1(Op::Permute(vec![1, 0]), vec![w]).expect("a matrix");
        net.at = net.b.add1(Op::Matmul, vec![net.at, w]).expect("sizes fit");
        net
    }

    fn map(self, target: &str, module: &str, f: impl FnOnce(&mut Exprs, ExprId) -> ExprId) -> Net {
        let mut net = self.from(target, module);
        let mut exprs = Exprs::new();
        let a = exprs.arg(0, Ty::F32);
        let root = f(&mut exprs, a);
        let ty = net.b.ty(net.at).clone();
        net.at = net.b.map(Body { exprs, root, syms: vec![] }, vec![net.at], ty).expect("a map");
        net
    }

    fn mixed(self, half: Half, keep: &[&str]) -> (Graph, WeightStore, Report) {
        let keep_f32 = keep.iter().map(ToString::to_string).collect();
        self.mixed_by(Mixed { keep_f32, ..Mixed::new(half) })
    }

    fn mixed_by(mut self, mixed: Mixed) -> (Graph, WeightStore, Report) {
        self.b.graph.outputs.push(("y".into(), UserOutput::Tensor(self.at)));
        let options = Options { mixed: Some(mixed), ..Options::default() };
        let weights = self.weights;
        let mut graph = self.b.graph;
        let done =
            passes::run(&mut graph, &|n| checkpoint_tensor(&weights, n), &options, None).expect("the passes run");
        (graph, weights, done.mixed.expect("asked for"))
    }
}

fn sigmoid(e: &mut Exprs, a: ExprId) -> ExprId {
    let n = e.un(Unary::Neg, a);
    let x = e.un(Unary::Exp, n);
    let one = e.f32(1.0);
    let d = e.bin(Binary::Add, one, x);
    e.bin(Binary::Div, one, d)
}

fn products(graph: &Graph) -> Vec<DType> {
    let products = graph.nodes.iter().filter(|n| matches!(n.op, Op::Matmul));
    products.map(|n| graph.ty(n.outputs[0]).dtype).collect()
}

fn three_layers() -> Net {
    let net = Net::new(4, 32).linear("enc.fc1", 48).map("aten.sigmoid.default", "enc.act", sigmoid);
    net.linear("enc.fc2", 32).map("aten.exp.default", "enc.exp", |e, a| e.un(Unary::Exp, a)).linear("head", 8)
}

#[test]
fn the_call_decides_and_not_what_it_is_made_of() {
    let (graph, _, report) = three_layers().mixed(Half::F16, &[]);
    assert_eq!(products(&graph), [DType::F16; 3]);
    // A sigmoid is an exponential too, but no call that autocast keeps in f32.
    let kept: Vec<(&str, &Why)> = report.kept.iter().map(|k| (k.module.as_str(), &k.why)).collect();
    assert_eq!(kept, [("enc.exp", &Why::Function)]);
    assert!(report.summary().contains("3 products"), "{}", report.summary());
}

#[test]
fn named_modules_stay_in_f32() {
    let (graph, _, report) = three_layers().mixed(Half::BF16, &["enc.fc?", "nothing*"]);
    assert_eq!(products(&graph), [DType::F32, DType::F32, DType::BF16]);
    let asked = report.kept.iter().filter(|k| k.why == Why::Asked("enc.fc?".into()));
    assert_eq!(asked.map(|k| k.module.as_str()).collect::<Vec<_>>(), ["enc.fc1", "enc.fc2"]);
    let follower = report.kept.iter().find(|k| k.module == "enc.act").expect("it follows the first layer");
    assert!(matches!(&follower.why, Why::Operand(_)), "{:?}", follower.why);
}

#[test]
fn islands_stay_in_f32_and_nothing_with_them() {
    let (_, _, rules) = three_layers().mixed(Half::F16, &[]);
    let call = |m: &str| rules.calls.iter().find(|c| c.module == m).expect("it computes in halves");
    let [first, second] = ["enc.fc1", "enc.fc2"].map(call);
    let island = |c: &Call| Island {
        node: c.node.clone(),
        target: c.target.clone(),
        module: c.module.clone(),
        cost: 0.25,
        measured_with: 1,
    };
    for islands in [vec![island(first)], vec![island(second)], vec![island(first), island(second)]] {
        let n = islands.len();
        let is = |c: &&Call| islands.iter().any(|i| i.node == c.node);
        let types = [first, second].map(|c| if is(&c) { DType::F32 } else { DType::F16 });
        let program = ProgramIslands {
            name: "net".into(),
            reference: Denominator::Full,
            without: 0.25,
            with: 0.0,
            calls: rules.calls.len(),
            islands,
        };
        let islands = Some(Islands { precision: Half::F16, budget: 0.1, programs: vec![program] });
        let (graph, _, report) = three_layers().mixed_by(Mixed { islands, ..Mixed::new(Half::F16) });
        assert_eq!(products(&graph), [types[0], types[1], DType::F16]);
        // A follower that the rules make a half stays one, and what the rules alone keep is kept as before.
        let (budget, others): (Vec<_>, Vec<_>) =
            report.kept.into_iter().partition(|k| matches!(k.why, Why::Budget { .. }));
        assert_eq!((budget.len(), others), (n, rules.kept.clone()));
        assert_eq!(report.calls, rules.calls);
        assert!(report.unknown.is_empty());
    }
}

#[test]
fn weights_are_stored_rounded() {
    let Ok(gpu) = Gpu::open(&Select::Auto) else { return };
    for (half, steps) in [(Half::F16, 1024.0), (Half::BF16, 128.0)] {
        let net = Net::new(4, 32).linear("a", 48).map("aten.sigmoid.default", "b", sigmoid).linear("c", 32);
        let elements = 32 * 48 + 48 * 32;
        let (graph, weights, _) = net.mixed(half, &[]);
        let x = random_tensor(DType::F32, &[4, 32], 5);
        let want = eval(&graph, &|n| checkpoint_tensor(&weights, n), std::slice::from_ref(&x), &Symbols::new());
        let want = want.expect("evaluates").tensors()[0].floats().to_vec();
        let profile = device::of_gpu(gpu.info());
        let compiled = plan_graphs(vec![graph], &[&weights], &Options::default(), &profile).expect("plans");
        let bytes: u64 = compiled.plan.weights.tensors.iter().map(|t| t.bytes).sum();
        let size = match storage_of(half.dtype(), &profile) {
            Form::Native => 2,
            Form::Word => 4,
        };
        assert_eq!(bytes, size * elements);
        let loaded = Loaded::new(&gpu, &compiled, &CacheDir::None).expect("loads");
        let input = Value::Tensor(HostTensor { dtype: DType::F32, shape: vec![4, 32], bytes: x.to_bytes() });
        let got = loaded.session(0).expect("a session").run(&[input]).expect("runs").remove(0);
        assert_eq!(got.dtype, DType::F32, "outputs keep their type");
        let got = Tensor::from_bytes(got.dtype, vec![4, 32], &got.bytes).expect("128 floats");
        let largest = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        for (g, w) in got.floats().iter().zip(&want) {
            assert!((g - w).abs() <= 2.0 * largest / steps, "{half:?}: {g} instead of {w}");
        }
    }
}
