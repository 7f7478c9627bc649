//! The recurrent template: every cell, both directions, with and without bias, more units than invocations, one step, none.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::reference;
use jvc_kernels::spec::{Access, Cell, Extent, KernelSpec, RecurrentSpec, Store};

const CLOSE: Tolerance = Tolerance { relative: 2e-5, absolute: 2e-5 };

const CELLS: [(Cell, u32); 4] = [(Cell::Lstm, 4), (Cell::Gru, 3), (Cell::RnnTanh, 1), (Cell::RnnRelu, 1)];

#[derive(Debug, Clone, Copy)]
struct Layer {
    cell: Cell,
    gates: u32,
    steps: Extent,
    batch: Extent,
    hidden: u32,
    reverse: bool,
    bias: bool,
    dtype: DType,
    wg: u32,
}

/// Operands: input projection, weight, bias, h0, c0, all h, last h, last c.
const N_OPERANDS: usize = 8;

impl Layer {
    fn of((cell, gates): (Cell, u32), [steps, batch]: [Extent; 2], hidden: u32, wg: u32) -> Layer {
        Layer { cell, gates, steps, batch, hidden, reverse: false, bias: true, dtype: DType::F32, wg }
    }

    fn spec(&self) -> KernelSpec {
        let mut e = Exprs::new();
        let (steps, batch) = ((0, self.steps), (1, self.batch));
        let (row, unit) = ((2, Extent::Const(self.gates * self.hidden)), (2, Extent::Const(self.hidden)));
        let input_at = row_major(&mut e, &[steps, batch, row]);
        let weight_at = row_major(&mut e, &[row, (3, Extent::Const(self.hidden))]);
        let (bias_at, state_at) = (e.axis(2), row_major(&mut e, &[batch, unit]));
        let step_at = row_major(&mut e, &[steps, batch, unit]);
        let [input, weight, bias, h0, c0] = [(0, input_at), (1, weight_at), (2, bias_at), (3, state_at), (4, state_at)]
            .map(|(operand, at)| e.load(operand, self.dtype, vec![at]));
        // Sums of many products around 1 would only ever saturate the gates.
        let small = e.f32(0.6 / (self.hidden as f32).sqrt());
        let weight = e.bin(Binary::Mul, weight, small);
        let (h, c) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
        let store = |operand, index, value| Store { operand, index, value, guard: None };
        let is_lstm = self.cell == Cell::Lstm;
        let mut final_stores = vec![store(6, state_at, h)];
        final_stores.extend(is_lstm.then(|| store(7, state_at, c)));
        let mut operands = vec![operand(self.dtype, Access::Read); 5];
        operands.extend(vec![operand(self.dtype, Access::Write); 3]);
        KernelSpec::Recurrent(RecurrentSpec {
            interface: interface(operands, symbolic(&[self.steps, self.batch])),
            exprs: e,
            cell: self.cell,
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            reverse: self.reverse,
            input,
            weight,
            bias: self.bias.then_some(bias),
            h0,
            c0: is_lstm.then_some(c0),
            step_stores: vec![store(5, step_at, h)],
            final_stores,
            wg: self.wg,
        })
    }

    fn memory(&self, spec: &KernelSpec, symbols: &[u32]) -> Memory {
        let mut memory = Memory { operands: vec![], symbols: symbols.to_vec() };
        let (hidden, rows) = (self.hidden as usize, (self.gates * self.hidden) as usize);
        let (steps, batch) = (elements(&memory, &[self.steps]), elements(&memory, &[self.batch]));
        let states = batch * hidden;
        let sizes: [usize; N_OPERANDS] =
            [steps * batch * rows, rows * hidden, rows, states, states, steps * states, states, states];
        let operands = &spec.interface().operands;
        memory.operands = (1..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
        memory
    }

    fn check(&self, gpu: &jvc_runtime::Gpu, symbols: &[u32]) {
        let spec = self.spec();
        check(gpu, &format!("{self:?} {symbols:?}"), &spec, &self.memory(&spec, symbols), CLOSE);
    }
}

#[test]
fn every_cell_matches_in_both_directions_with_and_without_bias() {
    let Some(gpu) = gpu("recurrent cells") else { return };
    for cell in CELLS {
        for reverse in [false, true] {
            for bias in [false, true] {
                // Fewer units than invocations, as many, one more, and several per invocation.
                for (hidden, wg) in [(1, 32), (32, 32), (33, 32), (40, 16), (12, 5)] {
                    let plain = Layer::of(cell, [Extent::Const(6), Extent::Const(3)], hidden, wg);
                    Layer { reverse, bias, ..plain }.check(&gpu, &[]);
                }
            }
        }
    }
}

#[test]
fn one_step_and_no_step_leave_the_right_states() {
    let Some(gpu) = gpu("few steps") else { return };
    for cell in CELLS {
        for [steps, batch] in [[1, 1], [1, 4], [0, 2], [3, 0]] {
            for reverse in [false, true] {
                let plain = Layer::of(cell, [steps, batch].map(Extent::Const), 9, 32);
                Layer { reverse, ..plain }.check(&gpu, &[]);
            }
        }
    }
}

#[test]
fn symbolic_steps_and_batches_match() {
    let Some(gpu) = gpu("recurrent symbols") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    for cell in CELLS {
        for extents in [[s(0), s(1)], [s(0), c(2)], [c(3), s(1)]] {
            for symbols in [[1, 1], [7, 3], [0, 2], [13, 0]] {
                for reverse in [false, true] {
                    Layer { reverse, ..Layer::of(cell, extents, 11, 32) }.check(&gpu, &symbols);
                }
            }
        }
    }
}

#[test]
fn narrow_types_match_where_the_device_has_them() {
    let Some(gpu) = gpu("narrow recurrent") else { return };
    for cell in CELLS {
        for dtype in [DType::F16, DType::BF16] {
            Layer { dtype, ..Layer::of(cell, [Extent::Const(5), Extent::Const(2)], 10, 32) }.check(&gpu, &[]);
        }
    }
}

/// One unit, one step, weight 0: each cell by hand.
#[test]
fn the_reference_is_the_formula_of_each_cell() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for cell in CELLS {
        let layer = Layer { bias: false, ..Layer::of(cell, [Extent::Const(1), Extent::Const(1)], 1, 32) };
        let spec = layer.spec();
        let mut memory = layer.memory(&spec, &[]);
        for gate in 0..layer.gates as usize {
            memory.operands[0].store(gate, Value::F32(0.25 * (gate + 1) as f32));
            memory.operands[1].store(gate, Value::F32(0.0));
        }
        memory.operands[3].store(0, Value::F32(0.5));
        memory.operands[4].store(0, Value::F32(-0.75));
        reference(&spec, &mut memory);
        let c = sigmoid(0.5) * -0.75 + sigmoid(0.25) * 0.75f64.tanh();
        let h = match layer.cell {
            Cell::Lstm => sigmoid(1.0) * c.tanh(),
            Cell::Gru => (1.0 - sigmoid(0.5)) * 0.75f64.tanh() + sigmoid(0.5) * 0.5,
            Cell::RnnTanh => 0.25f64.tanh(),
            Cell::RnnRelu => 0.25,
        };
        for at in [5, 6] {
            assert!((memory.operands[at].load(0).to_f64() - h).abs() < 1e-6, "{:?}: h", layer.cell);
        }
        if layer.cell == Cell::Lstm {
            assert!((memory.operands[7].load(0).to_f64() - c).abs() < 1e-6, "c");
        }
    }
}
