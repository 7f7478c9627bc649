//! Properties over random graphs: text form, verifier, and that passes keep what a graph computes.

mod random_graph;

use jvc::ir::parse::parse;
use jvc::ir::print::{OP_WORDS, print};
use jvc::ir::verify::verify;
use jvc::ir::{Builder, DType, TensorType, UserInput, UserOutput};
use jvc::ir::{Graph, Op};
use jvc::options::Options;
use jvc::passes::semantics::random_tensor;
use jvc::passes::{Cx, PASSES, run, run_one};
use proptest::prelude::*;
use random_graph::{Rng, random_graph};

const PUNCTUATION: &[u8] = b"(){}[]%#0123456789abci;:,=*+-\"\\\n";

/// The graph with every body in normal form, as the parser gives it.
fn normalized(mut g: Graph) -> Graph {
    for node in &mut g.nodes {
        node.op = match &node.op {
            Op::Map(b) => Op::Map(b.normalize()),
            Op::Compute(b) => Op::Compute(b.normalize()),
            op => op.clone(),
        };
    }
    g
}

#[test]
fn random_graphs_hold_every_operation() {
    let text: String = (0..300).map(|seed| print(&random_graph(seed, 25))).collect();
    let missing = OP_WORDS.iter().filter(|w| !text.contains(&format!(" = {w}")));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// Checkpoint of the random graphs.
fn weight(name: &str) -> Option<jvc::ir::eval::Tensor> {
    let shape: &[usize] = if name == "cache" { &[3, 4] } else { &[2, 4, 3] };
    Some(random_tensor(DType::F32, shape, name.len() as u64))
}

/// `x → norm → softmax → attention`, with the given attributes.
fn attributed(eps: f64, scale: f64, correction: f64) -> Graph {
    let mut b = Builder::new("attributed");
    let ty = TensorType::fixed(DType::F32, &[1, 2, 3, 4]);
    let x = b.push(Op::Input { index: 0 }, vec![], vec![ty])[0];
    b.graph.inputs.push(("x".into(), UserInput::Tensor(x)));
    let n = b.add1(Op::Norm { dims: vec![3], eps, rms: false }, vec![x]).expect("fits");
    let op = Op::Attention { scale, causal: true, zero_masked_rows: false, masked: false };
    let a = b.add1(op, vec![n, x, n]).expect("fits");
    let v = b.add1(Op::Variance { dims: vec![2], correction }, vec![a]).expect("fits");
    b.graph.outputs.push(("y".into(), UserOutput::Tensor(v)));
    b.graph
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printed_graphs_parse_back_to_themselves(seed: u64, n in 0usize..25) {
        let g = normalized(random_graph(seed, n));
        let text = print(&g);
        let back = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(print(&back), text);
        prop_assert_eq!(back, g);
    }

    #[test]
    fn built_graphs_verify(seed: u64, n in 0usize..40) {
        if let Err(e) = verify(&random_graph(seed, n)) {
            panic!("{e}");
        }
    }

    #[test]
    fn damaged_text_never_panics_the_parser_nor_the_verifier(seed: u64, n in 0usize..10, hits in 1usize..6) {
        let mut text = print(&random_graph(seed, n)).into_bytes();
        let mut rng = Rng(seed);
        for _ in 0..hits {
            let at = rng.below(text.len());
            match rng.below(3) {
                0 => { text.remove(at); }
                1 => text[at] = PUNCTUATION[rng.below(PUNCTUATION.len())],
                _ => {
                    let to = rng.below(text.len());
                    let part = text[at.min(to)..at.max(to)].to_vec();
                    text.splice(at..at, part.into_iter().take(12));
                }
            }
        }
        if let Ok(g) = parse(&String::from_utf8_lossy(&text)) {
            let _ = verify(&g);
        }
    }

    #[test]
    fn every_pass_keeps_what_the_graph_computes(seed: u64, n in 0usize..25) {
        let cx = Cx::new(&weight, false, u32::MAX);
        for pass in PASSES {
            let mut g = random_graph(seed, n);
            run_one(pass, &mut g, &cx, true).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    #[test]
    fn the_pipeline_keeps_what_the_graph_computes(seed: u64, n in 0usize..40) {
        let mut g = random_graph(seed, n);
        let options = Options { check_semantics: true, ..Options::default() };
        run(&mut g, &weight, &options, None).unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    fn attributes_keep_their_bits(eps in 1e-30f64..1.0, scale in -4.0f64..4.0, correction in -1.0f64..1.0) {
        let mut g = attributed(eps, scale, correction);
        run(&mut g, &weight, &Options::default(), None).unwrap_or_else(|e| panic!("{e}"));
        let ops: Vec<Op> = parse(&print(&g)).expect("parses back").nodes.into_iter().map(|n| n.op).collect();
        let found = |wanted: Op| ops.iter().any(|op| format!("{op:?}") == format!("{wanted:?}"));
        let ok = found(Op::Norm { dims: vec![3], eps, rms: false })
            && found(Op::Attention { scale, causal: true, zero_masked_rows: false, masked: false })
            && found(Op::Variance { dims: vec![2], correction });
        prop_assert!(ok, "{}", print(&g));
    }
}

#[test]
fn bisection_stops_after_so_many_patches_and_unknown_passes_are_errors() {
    let patches = |limit| {
        let mut g = random_graph(5, 40);
        let options = Options { bisect: Some(limit), ..Options::default() };
        run(&mut g, &weight, &options, None).expect("runs").applied.iter().map(|a| a.patches).sum::<u32>()
    };
    assert!(patches(u32::MAX) > 5, "the graph has something to rewrite");
    assert_eq!(patches(0), 0);
    let options = Options { skip: vec!["fold_cosntants".into()], ..Options::default() };
    let e = run(&mut random_graph(5, 3), &weight, &options, None).expect_err("a misspelled name");
    assert!(e.to_string().contains("fold_constants"), "{e}");
}
