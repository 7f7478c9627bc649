//! What a kernel says of its device: one workgroup, one operand, one run.

use jvc_runtime::{
    Base, CacheDir, EntryDesc, Error, Gpu, Groups, KernelDesc, Model, ProgramDesc, Recorder, Requirements,
    WeightSource, WeightsDesc, bytes_of, bytes_of_mut,
};

/// The `len` numbers that a kernel in address form writes into its only operand, run as one workgroup. A subgroup size that is not 0 is
/// forced.
///
/// # Errors
/// Those of loading and running it.
pub fn answer(gpu: &Gpu, words: &[u32], subgroup: u32, len: u32) -> Result<Vec<f32>, Error> {
    let desc = KernelDesc { name: "answer", code: bytes_of(words), n_bases: 1, n_operands: 1, subgroup };
    let (requirements, weights) = (Requirements::NONE, WeightsDesc::default());
    let program = ProgramDesc { name: "answer", requirements, kernels: &[desc], weights };
    let model = Model::load(gpu, &program, WeightSource::None, &CacheDir::None)?;
    let mut session = model.session(&EntryDesc {
        name: "main",
        arena_bytes: &[u64::from(len) * 4],
        io: &[],
        table_words: 0,
        state_bytes: 0,
        state_init: &[],
        record: &|r: &mut Recorder<'_>| r.dispatch(0, &[Base::Arena(0)], &[0], Groups::Fixed([1, 1, 1])),
    })?;
    session.run(&[], &[], &mut [])?;
    let mut numbers = vec![0.0; len as usize];
    session.buffer(0, Base::Arena(0)).expect("the entry has an arena").read(0, bytes_of_mut(&mut numbers))?;
    Ok(numbers)
}
