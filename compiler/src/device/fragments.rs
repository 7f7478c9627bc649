//! How the GPU at hand spreads the elements of cooperative matrices over a subgroup: Vulkan does not tell, so it is measured.

use super::{CoopShape, DeviceProfile, Spread};
use jvc_kernels::dtype::DType;
use jvc_kernels::templates::fragments::{Fragment, Part};
use jvc_runtime as rt;

/// The profile of a GPU, with what only running kernels on it tells, where any tile wants to know it: none on CPU drivers does.
pub fn of_open_gpu(gpu: &rt::Gpu) -> DeviceProfile {
    let profile = super::of_gpu(gpu.info());
    if profile.rates.cpu { profile } else { with_fragments(gpu, profile) }
}

/// A profile of a GPU with how that spreads fragments. What cannot be measured is left out: kernels that need it are not chosen.
pub fn with_fragments(gpu: &rt::Gpu, mut profile: DeviceProfile) -> DeviceProfile {
    let subgroup = profile.limits.subgroup_size;
    if subgroup > 0 && profile.features.vulkan_memory_model {
        profile.cooperative.iter_mut().filter(|c| c.result == "f32").for_each(|c| measure(gpu, c, subgroup));
    }
    profile
}

fn measure(gpu: &rt::Gpu, shape: &mut CoopShape, subgroup: u32) {
    let Some(elem) = DType::parse(&shape.operand) else { return };
    let ask = |part, rows, columns| {
        let fragment = Fragment { part, elem, rows, columns, subgroup };
        let kernel = fragment.kernel()?;
        let len = fragment.components() * subgroup;
        let answer = jvc_lab::answer(gpu, &kernel.words, kernel.needs.subgroup, len).ok()?;
        fragment.spread(&answer).map(|s| Spread::of(&s))
    };
    shape.left = ask(Part::Left, shape.m, shape.k);
    shape.right = ask(Part::Right, shape.k, shape.n);
}
