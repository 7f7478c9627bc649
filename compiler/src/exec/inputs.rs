//! Inputs for an entry point that nobody gave any for: zeros, and made-up numbers for measurements.

use super::{Call, ExecError, HostTensor, Value, dtype};
use crate::import::unit;
use crate::ir::DType;
use half::{bf16, f16};
use jvc_codegen::plan::{Entry, Port, PortKind};

/// Zeros for an entry point, at its largest sizes.
///
/// # Errors
/// A size without a value.
pub fn zeros(entry: &Entry) -> Result<Vec<Value>, ExecError> {
    values(entry, &mut |_, n_bytes| vec![0; n_bytes])
}

/// Floats from −1 to 1 and zeros of all other types, at the largest sizes: hardware takes less power, and so runs faster, on zeros alone.
/// Numbers depend on the seed and the port's position.
///
/// # Errors
/// A size without a value.
pub fn made_up(entry: &Entry, seed: u64) -> Result<Vec<Value>, ExecError> {
    let mut state = seed;
    values(entry, &mut |dtype, n_bytes| {
        let mut next = || 2.0 * unit(&mut state) - 1.0;
        let mut out = vec![0; n_bytes];
        match dtype {
            DType::F32 => out.as_chunks_mut().0.iter_mut().for_each(|x| *x = (next() as f32).to_le_bytes()),
            DType::F64 => out.as_chunks_mut().0.iter_mut().for_each(|x| *x = next().to_le_bytes()),
            DType::F16 => out.as_chunks_mut().0.iter_mut().for_each(|x| *x = f16::from_f64(next()).to_le_bytes()),
            DType::BF16 => out.as_chunks_mut().0.iter_mut().for_each(|x| *x = bf16::from_f64(next()).to_le_bytes()),
            DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {}
        }
        out
    })
}

fn values(entry: &Entry, bytes: &mut dyn FnMut(DType, usize) -> Vec<u8>) -> Result<Vec<Value>, ExecError> {
    let call = Call { symbols: entry.symbols.iter().map(|s| s.max).collect(), table: vec![], inputs: vec![] };
    let value = |port: &Port| {
        if let PortKind::Symbol(symbol) = port.kind {
            return Ok(Value::Int(call.symbols[usize::from(symbol)]));
        }
        let (dtype, shape) = (dtype(port), call.shape(port)?);
        let bytes = bytes(dtype, shape.iter().product::<i64>() as usize * port.elem.size_bytes() as usize);
        Ok(Value::Tensor(HostTensor { dtype, shape, bytes }))
    };
    entry.inputs.iter().map(value).collect()
}
