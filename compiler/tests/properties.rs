//! Properties over random graphs: text form, verifier.

mod random_graph;

use jvc::ir::parse::parse;
use jvc::ir::print::{OP_WORDS, print};
use jvc::ir::verify::verify;
use jvc::ir::{Graph, Op};
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
}
