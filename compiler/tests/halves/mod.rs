//! Halves in the order that matrix units want: channels last between convolutions, packed weights of products. The profile says how the device
//! spreads fragments, as `jvc probe` measures it.

use super::*;
use jvc::ir::Literal;
use std::sync::Arc;

impl Case {
    fn constant(&mut self, shape: &[i64], seed: u64) -> ValueId {
        let ty = TensorType::fixed(DType::F16, shape);
        let bytes = Arc::new(random(&ty, seed).to_bytes());
        self.op(Op::Const(Literal { ty, bytes }), &[])
    }

    fn relu(&mut self, v: ValueId) -> ValueId {
        self.map(&[v], |e, a| {
            let zero = e.f32(0.0);
            e.bin(Binary::Max, a[0], zero)
        })
    }
}

/// Kernels and decisions of a case for a profile that knows fragments, run and compared.
fn with_fragments(mut case: Case, out: ValueId, test: &str) -> Option<(Vec<String>, Vec<String>)> {
    let gpu = gpu()?;
    let profile = device::with_fragments(gpu, matrix_profile(gpu, test)?);
    assert!(profile.cooperative.iter().any(|c| c.left.is_some() && c.right.is_some()), "{:?}", profile.cooperative);
    case.b.graph.outputs = vec![("out_0".to_owned(), UserOutput::Tensor(out))];
    let kernels = check_on(gpu, &profile, &case.b.graph, &[case.inputs], |got, want| compare(0, got, want));
    let decisions = jvc::pipeline::schedule(&case.b.graph, &profile).expect("it was compiled").decisions;
    Some((kernels, decisions))
}

#[test]
fn convolutions_hand_on_halves_with_their_channels_last() {
    let mut c = Case::new();
    let x = c.input(DType::F16, &[1, 3, 9, 7]);
    let (first, second) = (c.constant(&[16, 3, 3, 3], 7), c.constant(&[16, 16, 3, 3], 8));
    let a = c.op(Op::Conv { window: window(2, 1, 1, 1), groups: 1 }, &[x, first]);
    let a = c.relu(a);
    let b = c.op(Op::Conv { window: window(2, 2, 1, 1), groups: 1 }, &[a, second]);
    if let Some((kernels, decisions)) = with_fragments(c, b, "channels last") {
        assert!(decisions.iter().any(|d| d.contains("channels last")), "{decisions:?}");
        assert_eq!(n_cooperative(&kernels), 2, "{kernels:?}");
    }
}

#[test]
fn weights_of_products_are_packed_where_a_kernel_gains_by_it() {
    for (rows, packed) in [(70, true), (7, false)] {
        let mut c = Case::new();
        let x = c.input(DType::F16, &[rows, 128]);
        let w = c.constant(&[40, 128], 7);
        let w = c.op(Op::Permute(vec![1, 0]), &[w]);
        let y = c.op(Op::Matmul, &[x, w]);
        if let Some((kernels, _)) = with_fragments(c, y, "packed weights") {
            assert_eq!(kernels[0].contains(":packed"), packed, "{kernels:?}");
        }
    }
}

#[test]
fn an_activation_before_a_convolution_is_stored_beside_what_it_is_made_of() {
    let mut c = Case::new();
    let x = c.input(DType::F16, &[1, 16, 9, 7]);
    let (first, second) = (c.constant(&[16, 16, 3, 3], 7), c.constant(&[16, 16, 3, 3], 8));
    let a = c.op(Op::Conv { window: window(2, 1, 1, 1), groups: 1 }, &[x, first]);
    let r = c.relu(a);
    let b = c.op(Op::Conv { window: window(2, 1, 1, 1), groups: 1 }, &[r, second]);
    let y = c.map(&[a, b], |e, v| e.bin(Binary::Add, v[0], v[1]));
    if let Some((kernels, decisions)) = with_fragments(c, y, "activations beside") {
        let beside = decisions.iter().filter(|d| d.contains("the kernel of what it is made of stores it")).count();
        assert_eq!((beside, n_cooperative(&kernels)), (1, 2), "{decisions:?}");
    }
}

#[test]
fn parts_of_a_concatenation_and_zeros_behind_them_are_stored_with_the_channels_last() {
    let mut c = Case::new();
    let (x, z) = (c.input(DType::F16, &[1, 8, 9, 7]), c.input(DType::F16, &[1, 4, 9, 7]));
    let w = c.constant(&[16, 16, 3, 3], 7);
    let a = c.relu(x);
    let b = c.relu(z);
    let zeros = Op::Pad { before: vec![0; 4], after: vec![0, 4, 0, 0], value: 0.0 };
    let b = c.op(zeros, &[b]);
    let cat = c.op(Op::Concat { dim: 1 }, &[a, b]);
    let y = c.op(Op::Conv { window: window(2, 2, 1, 1), groups: 1 }, &[cat, w]);
    if let Some((kernels, decisions)) = with_fragments(c, y, "concatenated channels") {
        let last = |d: &&String| d.contains("its parts are stored into it, with its channels last");
        assert_eq!(decisions.iter().filter(last).count(), 1, "{decisions:?}");
        assert_eq!(kernels.iter().filter(|k| k.contains("coop") && k.contains(":fill")).count(), 1, "{kernels:?}");
    }
}
