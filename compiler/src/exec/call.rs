//! One run's sizes: the symbols that its inputs show, the words of the symbol table, and the bytes of its ports.

use super::{ExecError, Value, to_device};
use jvc_codegen::plan::{Entry, Port, PortKind, Size};

/// One run's symbols, table and device-side input bytes.
pub(super) struct Call {
    pub(super) symbols: Vec<i64>,
    pub(super) table: Vec<u32>,
    pub(super) inputs: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new(entry: &Entry, inputs: &[Value]) -> Result<Call, ExecError> {
        if inputs.len() != entry.inputs.len() {
            return Err(ExecError::InputCount { expected: entry.inputs.len(), got: inputs.len() });
        }
        let symbols = bind_symbols(entry, inputs)?;
        let mut device = vec![];
        for (port, value) in entry.inputs.iter().zip(inputs) {
            if let (PortKind::Io(_), Value::Tensor(t)) = (&port.kind, value) {
                device.push(to_device(port, t)?);
            }
        }
        let word = |(i, s): (usize, &Size)| {
            s.eval_u32(&symbols)
                .map_err(|error| ExecError::Size { name: format!("word {i} of the symbol table"), error })
        };
        let table = entry.table.iter().enumerate().map(word).collect::<Result<_, _>>()?;
        let call = Call { symbols, table, inputs: device };
        entry.inputs.iter().zip(inputs).try_for_each(|(port, value)| call.check(port, value))?;
        Ok(call)
    }

    /// Reads the symbols that the device has found.
    pub(super) fn find(&mut self, entry: &Entry, words: &[u32]) -> Result<(), ExecError> {
        for (symbol, value) in entry.symbols.iter().zip(&mut self.symbols) {
            let Some(word) = symbol.found else { continue };
            *value = i64::from(words[usize::from(word)].cast_signed());
            if !(symbol.min..=symbol.max).contains(value) {
                let (name, min, max) = (symbol.name.clone(), symbol.min, symbol.max);
                return Err(ExecError::Found { name, value: *value, min, max });
            }
        }
        Ok(())
    }

    pub(super) fn shape(&self, port: &Port) -> Result<Vec<i64>, ExecError> {
        let eval = |s: &Size| s.eval(&self.symbols).map(|v| v as i64);
        let shape: Result<Vec<i64>, _> = port.shape.iter().map(eval).collect();
        shape.map_err(|error| ExecError::Size { name: port.name.clone(), error })
    }

    fn check(&self, port: &Port, value: &Value) -> Result<(), ExecError> {
        let expected = self.shape(port)?;
        let fits = match (value, &port.kind) {
            (Value::Tensor(t), PortKind::Io(_)) => t.shape == expected && crate::plan::elem(t.dtype) == port.elem,
            (Value::Int(_), PortKind::Symbol(_)) => true,
            (Value::Tensor(_), PortKind::Symbol(_)) | (Value::Int(_), PortKind::Io(_)) => false,
        };
        if fits {
            return Ok(());
        }
        let got = match value {
            Value::Tensor(t) => format!("{}{:?}", t.dtype, t.shape),
            Value::Int(v) => format!("the integer {v}"),
        };
        Err(ExecError::Input { name: port.name.clone(), expected: format!("{}{expected:?}", port.elem.name()), got })
    }

    pub(super) fn input_slices(&self) -> Vec<&[u8]> {
        self.inputs.iter().map(Vec::as_slice).collect()
    }

    pub(super) fn output_bytes(&self, entry: &Entry) -> Result<Vec<u64>, ExecError> {
        let size = |p: &Port| if p.word_storage { 4 } else { p.elem.size_bytes() };
        entry.outputs.iter().map(|p| Ok(self.shape(p)?.iter().product::<i64>() as u64 * size(p))).collect()
    }

    pub(super) fn output_buffers(&self, entry: &Entry) -> Result<Vec<Vec<u8>>, ExecError> {
        Ok(self.output_bytes(entry)?.into_iter().map(|n| vec![0; n as usize]).collect())
    }
}

/// Reads the symbols off the inputs: integers, and dimensions that are a symbol, a multiple of one, or that plus a constant.
fn bind_symbols(entry: &Entry, inputs: &[Value]) -> Result<Vec<i64>, ExecError> {
    let mut found: Vec<Option<i64>> = vec![None; entry.symbols.len()];
    for (port, value) in entry.inputs.iter().zip(inputs) {
        match (value, &port.kind) {
            (Value::Int(v), PortKind::Symbol(s)) => found[*s as usize] = Some(*v),
            (Value::Tensor(t), PortKind::Io(_)) => {
                for (size, &v) in port.shape.iter().zip(&t.shape) {
                    if let Some((symbol, v)) = solve(size, v) {
                        found[symbol as usize].get_or_insert(v);
                    }
                }
            }
            (Value::Tensor(_), PortKind::Symbol(_)) | (Value::Int(_), PortKind::Io(_)) => {}
        }
    }
    let checked = entry.symbols.iter().zip(found).map(|(s, v)| {
        // One that the data decide is at its largest until then. Any other that no input shows has no effect on the program.
        let value = if s.found.is_some() { s.max } else { v.unwrap_or(s.min) };
        let fits = (s.min..=s.max).contains(&value);
        let (name, min, max) = (s.name.clone(), s.min, s.max);
        if fits { Ok(value) } else { Err(ExecError::Symbol { name, value, min, max }) }
    });
    checked.collect()
}

/// The symbol and its value where `size == v` has one unknown: `s`, `c·s`, `… + c`.
fn solve(size: &Size, v: i64) -> Option<(u16, i64)> {
    match size {
        Size::Symbol(s) => Some((*s, v)),
        Size::Mul(factors) => match &factors[..] {
            [Size::Const(c), rest] if *c != 0 && v % c == 0 => solve(rest, v / c),
            _ => None,
        },
        Size::Add(terms) => {
            let (consts, rest): (Vec<&Size>, Vec<&Size>) = terms.iter().partition(|t| matches!(t, Size::Const(_)));
            let total: i64 = consts.iter().filter_map(|c| if let Size::Const(c) = c { Some(*c) } else { None }).sum();
            match rest[..] {
                [one] => solve(one, v - total),
                _ => None,
            }
        }
        Size::Const(_) | Size::FloorDiv(..) | Size::Mod(..) | Size::Max(..) | Size::Min(..) => None,
    }
}
