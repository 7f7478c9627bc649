//! What the steps of a plan take at best, by the rates of a device profile.

use crate::device::DeviceProfile;
use jvc_codegen::plan::{Dispatch, Entry, PlanKernel, Step};

/// Microseconds that a dispatch takes at best: the slower of arithmetic (on matrix units, where its kernel uses them) and memory.
pub fn dispatch_us(d: &Dispatch, kernel: &PlanKernel, device: &DeviceProfile) -> f64 {
    let rates = &device.rates;
    let on_matrix_units = kernel.spec.contains(" coop") && rates.f16_matrix_tflop_per_s > 0.0;
    let tflop_per_s = if on_matrix_units { rates.f16_matrix_tflop_per_s } else { rates.f32_tflop_per_s };
    let arithmetic = d.cost.flops / (tflop_per_s * 1e6);
    let memory = d.cost.bytes / (rates.peak_gb_per_s * 1e3);
    arithmetic.max(memory)
}

/// Microseconds of an entry's dispatches at best, and of the drains at its barriers.
pub fn entry_us(entry: &Entry, kernels: &[PlanKernel], device: &DeviceProfile) -> (f64, f64) {
    let work = entry.steps.iter().filter_map(Step::dispatch);
    let work = work.map(|d| dispatch_us(d, &kernels[d.kernel as usize], device)).sum();
    let barriers = entry.steps.iter().filter(|step| matches!(step, Step::Barrier)).count();
    (work, barriers as f64 * device.rates.dispatch_us)
}
