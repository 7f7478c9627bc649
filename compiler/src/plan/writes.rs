//! What a dispatch declares to write: the part of a buffer that its kernel's stores reach.

use jvc_codegen::plan::ByteRange;
use jvc_kernels::footprint;
use jvc_kernels::host::element_bytes;
use jvc_kernels::spec::KernelSpec;
use std::ops::Range;

/// The parts of `whole` that a kernel may write through an operand; all of it where the kernel does not say.
pub(super) fn written_ranges(spec: &KernelSpec, operand: u16, whole: ByteRange) -> Vec<ByteRange> {
    let Some(spans) = footprint::written(spec, operand) else { return vec![whole] };
    let held = &spec.interface().operands[usize::from(operand)];
    let size = element_bytes(held.dtype, held.storage) as u64;
    let part = |span: Range<u64>| {
        let start = (span.start * size).min(whole.bytes);
        ByteRange { offset: whole.offset + start, bytes: (span.end * size).min(whole.bytes) - start, ..whole }
    };
    let parts: Vec<ByteRange> = spans.into_iter().map(part).collect();
    if parts.is_empty() { vec![ByteRange { bytes: 0, ..whole }] } else { parts }
}
