//! One direction of one recurrent layer, step by step.

use super::tensor::{Data, Tensor};
use jvc_kernels::spec::Cell;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Operands in the order of the op's documentation; results `y, h_n (, c_n)`.
pub(super) fn recurrent(args: &[&Tensor], cell: Cell, reverse: bool, bias: bool) -> Vec<Data> {
    let (x, w) = (args[0], args[1]);
    let (steps, batch, rows, hidden) = (x.shape[0], x.shape[1], x.shape[2], w.shape[1]);
    let b_hh: Vec<f64> = if bias { args[2].floats().to_vec() } else { vec![0.0; rows] };
    let h0 = 2 + usize::from(bias);
    let mut h = args[h0].floats().to_vec();
    let mut c = if cell == Cell::Lstm { args[h0 + 1].floats().to_vec() } else { vec![] };
    let mut y = vec![0.0; steps * batch * hidden];
    for s in 0..steps {
        let t = if reverse { steps - 1 - s } else { s };
        for n in 0..batch {
            let input = &x.floats()[(t * batch + n) * rows..][..rows];
            let state = &mut h[n * hidden..(n + 1) * hidden];
            let inner: Vec<f64> = (0..rows)
                .map(|r| {
                    let weight = &w.floats()[r * hidden..(r + 1) * hidden];
                    b_hh[r] + weight.iter().zip(state.iter()).map(|(a, b)| a * b).sum::<f64>()
                })
                .collect();
            let memory = if cell == Cell::Lstm { &mut c[n * hidden..(n + 1) * hidden] } else { &mut [][..] };
            step(cell, input, &inner, state, memory);
            y[(t * batch + n) * hidden..][..hidden].copy_from_slice(state);
        }
    }
    let mut out = vec![Data::Float(y), Data::Float(h)];
    if cell == Cell::Lstm {
        out.push(Data::Float(c));
    }
    out
}

/// Updates the state of one batch element: `input` from below, `inner` from the previous state, both gate by gate.
fn step(cell: Cell, input: &[f64], inner: &[f64], h: &mut [f64], c: &mut [f64]) {
    let n = h.len();
    let gate = |g: usize, i: usize| input[g * n + i] + inner[g * n + i];
    for i in 0..n {
        match cell {
            Cell::Lstm => {
                c[i] = sigmoid(gate(1, i)) * c[i] + sigmoid(gate(0, i)) * gate(2, i).tanh();
                h[i] = sigmoid(gate(3, i)) * c[i].tanh();
            }
            Cell::Gru => {
                let (r, z) = (sigmoid(gate(0, i)), sigmoid(gate(1, i)));
                let new = (input[2 * n + i] + r * inner[2 * n + i]).tanh();
                h[i] = (1.0 - z) * new + z * h[i];
            }
            Cell::RnnTanh => h[i] = gate(0, i).tanh(),
            Cell::RnnRelu => h[i] = gate(0, i).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn reverse_runs_from_the_last_step() {
        let t = |shape: &[usize], v: &[f64]| Tensor::from_f64(DType::F64, shape, v.to_vec());
        let (x, w, h0) = (t(&[2, 1, 1], &[1.0, 2.0]), t(&[1, 1], &[10.0]), t(&[1, 1], &[0.0]));
        let out = recurrent(&[&x, &w, &h0], Cell::RnnRelu, true, false);
        assert_eq!(out, vec![Data::Float(vec![21.0, 2.0]), Data::Float(vec![21.0])]);
    }
}
