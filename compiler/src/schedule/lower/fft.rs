//! Discrete Fourier transforms along the last dimension.

use super::super::inline::Ctx;
use super::super::tile;
use super::{Lowered, finish, literal_size, max_elems};
use crate::ir::Dim;
use crate::ir::graph::Node;
use crate::report::{Code, Diagnostic};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::{FftSpec, KernelSpec};

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, inverse: bool) -> Result<Lowered, Diagnostic> {
    let ty = cx.ty(node.inputs[0]);
    if ty.dtype.ty() != Ty::F32 {
        return Err(Diagnostic::new(
            Code::UnsupportedDType,
            format!("a Fourier transform of {} is not supported", ty.dtype),
        ));
    }
    let (lines, last) = ty.shape.split_at(ty.rank() - 1);
    let n = literal_size(&last[0], "the transform length")?;
    let batch = lines.iter().fold(Dim::from(1), |p, d| &p * d);
    let (line, position) = (cx.ix.axis(0, &batch), cx.ix.axis(1, &last[0]));
    let mut at = cx.ix.delinear(line, lines);
    at.push(position);
    let (re, im) = (cx.at(node.inputs[0], &at), cx.at(node.inputs[1], &at));
    let (out_re, out_im) = (cx.ix.exprs.arg(0, Ty::F32), cx.ix.exprs.arg(1, Ty::F32));
    let mut stores = finish(cx, node.outputs[0], at.clone(), out_re, &[]);
    stores.extend(finish(cx, node.outputs[1], at, out_im, &[]));
    let n_lines = max_elems(cx, std::slice::from_ref(&batch));
    let batch = cx.ix.symtab().extent(&batch);
    let wg = tile::fft(cx.device, n);
    let exprs = std::mem::take(&mut cx.ix.exprs);
    let spec = FftSpec { interface: cx.interface(), exprs, batch, n, inverse, re, im, stores, wg };
    let flops = 5.0 * n_lines * f64::from(n) * f64::from(n.max(2)).log2();
    Ok(Lowered::new(KernelSpec::Fft(spec), flops))
}
