//! Two graphs on the same random inputs: do they compute the same?

use crate::ir::eval::{Data, Output, Precision, Symbols, Tensor, Weights, bind_symbols, eval_with};
use crate::ir::{DType, Graph, Op, UserInput};

/// Compares all results of two graphs with the same interface in working precision. `Err` says where they differ.
///
/// Folding and movement then agree to the bit (a truncation to an integer would make a step of the smallest difference); what may remain
/// is the rounding of rewritten arithmetic: 1e-4 of the largest element, 2e-2 when a graph holds half types. Elements below 1 count
/// as 1: with inputs of that size, less is what cancellation left.
pub fn compare(before: &Graph, after: &Graph, weights: &Weights<'_>) -> Result<(), String> {
    let (inputs, symbols) = random_inputs(before);
    let run = |g| eval_with(g, weights, &inputs, &symbols, Precision::Working).map_err(|e| e.to_string());
    let (x, y) = (run(before)?, run(after)?);
    let half = before.values.iter().chain(&after.values).any(|v| matches!(v.ty.dtype, DType::F16 | DType::BF16));
    let tolerance = if half { 2e-2 } else { 1e-4 };
    if x.outputs.len() != y.outputs.len() || x.state_updates.len() != y.state_updates.len() {
        return Err("the number of results differs".to_string());
    }
    for (i, (a, b)) in x.outputs.iter().zip(&y.outputs).enumerate() {
        match (a, b) {
            (Output::Tensor(a), Output::Tensor(b)) => close(a, b, tolerance).map_err(|d| format!("output {i}: {d}"))?,
            _ if a == b => {}
            _ => return Err(format!("output {i}: {a:?} became {b:?}")),
        }
    }
    for ((name, a), (_, b)) in x.state_updates.iter().zip(&y.state_updates) {
        close(a, b, tolerance).map_err(|d| format!("state {name}: {d}"))?;
    }
    for ((i, a), (_, b)) in x.input_updates.iter().zip(&y.input_updates) {
        close(a, b, tolerance).map_err(|d| format!("update of input {i}: {d}"))?;
    }
    Ok(())
}

/// Inputs for a graph: floats in (−1, 1), integers 0 or 1, symbols one above their minimum where the range allows; always the same ones.
pub fn random_inputs(graph: &Graph) -> (Vec<Tensor>, Symbols) {
    let symbols: Symbols = graph.ranges.iter().map(|(s, r)| (s.clone(), r.max.min(r.min.max(1) + 1))).collect();
    let n_nodes =
        graph.nodes.iter().filter_map(|n| if let Op::Input { index } = n.op { Some(index + 1) } else { None });
    let n = n_nodes.max().unwrap_or(0).max(graph.inputs.len() as u32);
    let none = Tensor::from_i64(DType::I64, &[], vec![0]);
    let mut inputs = vec![none; n as usize];
    for (i, (_, input)) in graph.inputs.iter().enumerate() {
        if let UserInput::Symbol(s) = input {
            inputs[i] = Tensor::from_i64(DType::I64, &[], vec![symbols.get(s).copied().unwrap_or(1)]);
        }
    }
    for node in &graph.nodes {
        let Op::Input { index } = node.op else { continue };
        let ty = graph.ty(node.outputs[0]);
        let shape = ty.shape.iter().map(|d| d.eval(&symbols).unwrap_or(1) as usize);
        inputs[index as usize] = random_tensor(ty.dtype, &shape.collect::<Vec<_>>(), u64::from(index));
    }
    let bound = bind_symbols(graph, &inputs);
    (inputs, bound.into_iter().chain(symbols).collect())
}

/// A tensor of small values that depend on the seed alone.
pub fn random_tensor(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let n: usize = shape.iter().product();
    let unit = |i: usize| {
        let mut z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd6e8_feb8_6659_fd93);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    if dtype.is_float() {
        Tensor::from_f64(dtype, shape, (0..n).map(|i| 2.0 * unit(i) - 1.0).collect())
    } else {
        Tensor::from_i64(dtype, shape, (0..n).map(|i| i64::from(unit(i) > 0.5)).collect())
    }
}

fn close(a: &Tensor, b: &Tensor, tolerance: f64) -> Result<(), String> {
    if a.dtype != b.dtype || a.shape != b.shape {
        return Err(format!("{}{:?} became {}{:?}", a.dtype, a.shape, b.dtype, b.shape));
    }
    match (&a.data, &b.data) {
        (Data::Int(x), Data::Int(y)) => match x.iter().zip(y).position(|(x, y)| x != y) {
            None => Ok(()),
            Some(i) => Err(format!("element {i} was {}, is {}", x[i], y[i])),
        },
        (Data::Float(x), Data::Float(y)) => {
            let top = x.iter().filter(|v| v.is_finite()).fold(1f64, |m, v| m.max(v.abs()));
            let same = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * top;
            match x.iter().zip(y).position(|(&x, &y)| !same(x, y)) {
                None => Ok(()),
                Some(i) => Err(format!("element {i} was {}, is {} (largest {top})", x[i], y[i])),
            }
        }
        _ => Err("floats became integers".to_string()),
    }
}
