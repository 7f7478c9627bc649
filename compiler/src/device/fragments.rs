//! How the GPU at hand spreads the elements of cooperative matrices over a subgroup: Vulkan does not tell, so it is measured.

use super::{CoopShape, DeviceProfile, Spread};
use jvc_kernels::dtype::DType;
use jvc_kernels::spec::Kernel;
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
        let answer = answer(gpu, &kernel, fragment.components() * subgroup).ok()?;
        fragment.spread(&answer).map(|s| Spread::of(&s))
    };
    shape.left = ask(Part::Left, shape.m, shape.k);
    shape.right = ask(Part::Right, shape.k, shape.n);
}

/// What a kernel of one workgroup writes into its only operand.
fn answer(gpu: &rt::Gpu, kernel: &Kernel, len: u32) -> Result<Vec<f32>, rt::Error> {
    let code: Vec<u8> = kernel.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let subgroup = kernel.needs.subgroup;
    let desc = rt::KernelDesc { name: "fragment", code: &code, n_bases: 1, n_operands: 1, subgroup };
    let (requirements, weights) = (rt::Requirements::NONE, rt::WeightsDesc::default());
    let program = rt::ProgramDesc { name: "fragment", requirements, kernels: &[desc], weights };
    let model = rt::Model::load(gpu, &program, rt::WeightSource::None, &rt::CacheDir::None)?;
    let once = |r: &mut rt::Recorder<'_>| r.dispatch(0, &[rt::Base::Arena(0)], &[0], rt::Groups::Fixed([1, 1, 1]));
    let mut session = model.session(&rt::EntryDesc {
        name: "main",
        arena_bytes: &[u64::from(len) * 4],
        io: &[],
        table_words: 0,
        state_bytes: 0,
        state_init: &[],
        record: &once,
    })?;
    session.run(&[], &[], &mut [])?;
    let mut bytes = vec![0; len as usize * 4];
    session.buffer(0, rt::Base::Arena(0)).expect("the entry has an arena").read(0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
