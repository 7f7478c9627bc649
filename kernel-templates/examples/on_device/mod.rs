//! What the examples `products` and `attention` share: operands full of noise, kernels as a program of the runtime, and what more of the same
//! adds to a run.

use jvc_kernels::dtype::{DType, Storage, Ty};
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::spec::{
    Access, Extent, Grid, GridFactor, Interface, InterfaceForm, Kernel, KernelSpec, MapSpec, Operand, Store, folded,
};
use jvc_runtime::{
    CacheDir, EntryDesc, Error, Gpu, Groups, KernelDesc, Model, ProgramDesc, Recorder, Requirements, Select, Session,
    WeightSource, WeightsDesc,
};
use std::time::Instant;

/// Work before anything is timed, in seconds: a GPU that idled while pipelines were created needs some tenths for its full clock.
const WARM_S: f64 = 0.12;
/// Rounds of runs in turn; the first are not counted.
const ROUNDS: usize = 7;
const SKIPPED: usize = 2;

/// An operand in the arena.
pub(crate) fn operand(dtype: DType, access: Access) -> Operand {
    Operand { dtype, storage: Storage::Native, access, base: 0, via_table: false }
}

/// All operands in one buffer.
pub(crate) fn interface(operands: Vec<Operand>) -> Interface {
    Interface { operands, n_bases: 1, symbols: false }
}

/// `out[i]` = noise in [−`largest`, `largest`).
pub(crate) fn fill(elem: DType, n: u32, seed: i32, largest: f32) -> KernelSpec {
    let mut e = Exprs::new();
    let index = e.axis(0);
    let mut x = index;
    for factor in [0x3c6e_f35f + seed, 0x1b87_3593] {
        let (factor, by) = (e.i32(factor), e.i32(15));
        x = e.bin(Binary::Mul, x, factor);
        let high = e.bin(Binary::Shr, x, by);
        x = e.bin(Binary::Xor, x, high);
    }
    let (mask, scale, largest) = (e.i32(0xffff), e.f32(largest / 32768.0), e.f32(largest));
    let x = e.bin(Binary::And, x, mask);
    let x = e.cast(Ty::F32, x);
    let x = e.bin(Binary::Mul, x, scale);
    let value = e.bin(Binary::Sub, x, largest);
    KernelSpec::Map(MapSpec {
        interface: interface(vec![operand(elem, Access::Write)]),
        exprs: e,
        domain: vec![Extent::Const(n)],
        stores: vec![Store { operand: 0, index, value, guard: None }],
        per_thread: 1,
        wg: 256,
        turned: None,
    })
}

/// Workgroups of a kernel without symbolic sizes.
pub(crate) fn groups(grid: &Grid) -> Groups {
    let none = Memory { operands: vec![], symbols: vec![] };
    let factor = |f: &GridFactor| {
        let product: u64 = f.extents.iter().map(|&e| u64::from(none.extent(e))).product();
        product.div_ceil(u64::from(f.divisor))
    };
    let count: u64 = grid.dims[0].iter().map(factor).product();
    let (x, y) = folded(count);
    Groups::Fixed([x as u32, y as u32, 1])
}

/// SPIR-V as bytes.
pub(crate) fn code(kernel: &Kernel) -> Vec<u8> {
    kernel.words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Builds the kernels and loads them as one program; also the milliseconds that the device took to create them.
pub(crate) fn load(gpu: &Gpu, name: &str, specs: &[KernelSpec]) -> Result<(Model, Vec<Kernel>, f64), String> {
    let built: Result<Vec<Kernel>, _> = specs.iter().map(|s| jvc_kernels::build(s, InterfaceForm::Addresses)).collect();
    let kernels = built.map_err(|e| e.to_string())?;
    let codes: Vec<Vec<u8>> = kernels.iter().map(code).collect();
    let desc = |((spec, kernel), code): ((&KernelSpec, &Kernel), _)| KernelDesc {
        name: spec.template(),
        code,
        n_bases: 1,
        n_operands: spec.interface().operands.len() as u8,
        subgroup: kernel.needs.subgroup,
    };
    let kernel_descs: Vec<KernelDesc<'_>> =
        specs.iter().zip(&kernels).zip(codes.iter().map(Vec::as_slice)).map(desc).collect();
    let program =
        ProgramDesc { name, requirements: Requirements::NONE, kernels: &kernel_descs, weights: WeightsDesc::default() };
    let started = Instant::now();
    let model = Model::load(gpu, &program, WeightSource::None, &CacheDir::None).map_err(|e| e.to_string())?;
    Ok((model, kernels, started.elapsed().as_secs_f64() * 1e3))
}

/// What `record` records, over an arena of so many bytes.
pub(crate) fn session(
    model: &Model,
    bytes: u64,
    record: &(dyn Fn(&mut Recorder<'_>) + Sync),
) -> Result<Session, Error> {
    model.session(&EntryDesc {
        name: "main",
        arena_bytes: &[bytes],
        io: &[],
        table_words: 0,
        state_bytes: 0,
        state_init: &[],
        record,
    })
}

/// Seconds of one of what two sessions repeat `counts` times: what more of them add to a run. The median of several runs in turn, and with
/// the least and the most of the longer session's.
pub(crate) fn added(mut sessions: [Session; 2], counts: [u32; 2]) -> Result<[f64; 3], Error> {
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < WARM_S {
        sessions[1].run(&[], &[], &mut [])?;
    }
    let mut samples = [vec![], vec![]];
    for round in 0..ROUNDS {
        for (session, samples) in sessions.iter_mut().zip(&mut samples) {
            let started = Instant::now();
            session.run(&[], &[], &mut [])?;
            if round >= SKIPPED {
                samples.push(started.elapsed().as_secs_f64());
            }
        }
    }
    let [few, many] = samples.map(|mut s| {
        s.sort_by(f64::total_cmp);
        s
    });
    let middle = few.len() / 2;
    Ok([middle, 0, many.len() - 1].map(|at| (many[at] - few[middle]) / f64::from(counts[1] - counts[0])))
}

/// What follows `flag` on the command line.
pub(crate) fn value_of(args: &[String], flag: &str) -> Option<String> {
    args.iter().position(|a| a == flag).and_then(|at| args.get(at + 1)).cloned()
}

/// The GPU at hand, whose name is printed; without one the process ends with exit code 2.
#[expect(clippy::print_stdout, reason = "a command that prints its findings")]
pub(crate) fn open() -> Gpu {
    let gpu = Gpu::open(&Select::Auto).unwrap_or_else(|e| {
        println!("no GPU: {e}");
        std::process::exit(2)
    });
    println!("{} ({})", gpu.info().name, gpu.info().driver);
    gpu
}
