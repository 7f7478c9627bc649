//! Runs one kernel over host memory on the GPU, and compares.

use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::host::{HostBuffer, Memory};
use jvc_kernels::spec::{Extent, Grid, Int64, InterfaceForm, Kernel, KernelSpec, Target, folded};
use jvc_kernels::{Limits, build, constraints, reference};
use jvc_lab::{Bound, Lab, LabError, Options, Validation};
use jvc_runtime::{
    Base, CacheDir, EntryDesc, Gpu, Groups, KernelDesc, Model, ProgramDesc, Requirements, Select, WeightSource,
    WeightsDesc,
};
use std::sync::Arc;

/// Both interface forms.
pub(crate) const FORMS: [InterfaceForm; 2] = [InterfaceForm::Addresses, InterfaceForm::Bindings];

/// What to build a kernel for on this device: both forms, and 64-bit integers by words as well as its own, where they matter.
pub(crate) fn targets(gpu: &Gpu, spec: &KernelSpec) -> Vec<Target> {
    let in_memory = spec.interface().operands.iter().any(|o| o.dtype == DType::I64);
    let computed = spec.exprs().iter().any(|(id, _)| spec.exprs().ty(id) == Ty::I64);
    let of = |int64: Int64| FORMS.map(|form| Target { form, int64 });
    let mut all = match (in_memory || computed, gpu.info().features.int64) {
        (false, _) => of(Int64::Native).to_vec(),
        (true, false) => of(Int64::Words).to_vec(),
        (true, true) => [of(Int64::Native), of(Int64::Words)].concat(),
    };
    // Copies choose among addresses.
    all.retain(|t| !matches!(spec, KernelSpec::Row(s) if s.copies > 1) || t.form == InterfaceForm::Addresses);
    all
}

/// Bytes around each operand that no kernel may touch.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// The GPU, under the validation layer where that is installed; or none: then the test says that it is skipped.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
pub(crate) fn gpu(test: &str) -> Option<Gpu> {
    let lab = lab();
    if lab.is_none() {
        eprintln!("SKIPPED {test}: no Vulkan device");
    }
    lab.map(|lab| lab.gpu().clone())
}

thread_local! {
    /// A device for each test, as an application owns it: kernels in bindings form are not the runtime's. CPU drivers compile kernels on
    /// the one thread of a device's queue, so that tests which share a device take turns.
    static LAB: Option<Arc<Lab>> = open();
}

#[allow(clippy::print_stderr, reason = "a missing layer must be seen")]
fn open() -> Option<Arc<Lab>> {
    let info = Gpu::open(&Select::Auto).ok()?.info().clone();
    let validated = Options { validation: Some(Validation { sync: true }), ..Options::default() };
    let without = |e: LabError| {
        eprintln!("no validation layer: {e}");
        Lab::open(&info, &Options::default())
    };
    Lab::open(&info, &validated).or_else(without).ok().map(Arc::new)
}

fn lab() -> Option<Arc<Lab>> {
    LAB.with(Clone::clone)
}

/// What the templates may ask of it.
pub(crate) fn limits(gpu: &Gpu) -> Limits {
    let info = gpu.info();
    Limits {
        max_workgroup: info.max_workgroup,
        shared_bytes: info.shared_bytes,
        push_bytes: info.push_bytes,
        subgroup: info.subgroup,
        int8: info.features.int8,
        int16: info.features.int16,
        float16: info.features.float16,
        int64: info.features.int64,
        float64: info.features.float64,
        cooperative: fragments(info),
    }
}

/// Its cooperative matrices with f32 sums, where the driver has one subgroup size.
fn fragments(info: &jvc_runtime::GpuInfo) -> Vec<(u32, u32, u32, DType)> {
    let summed = info.cooperative.iter().filter(|s| s.accumulator == "f32");
    summed.filter_map(|s| Some((s.m, s.n, s.k, DType::parse(s.operand)?))).collect()
}

/// Workgroups of a grid for these symbols, folded as the recorder does.
pub(crate) fn groups(grid: &Grid, memory: &Memory) -> [u32; 3] {
    let factor = |f: &jvc_kernels::spec::GridFactor| {
        let product: u64 = f.extents.iter().map(|&e| u64::from(memory.extent(e))).product();
        product.div_ceil(u64::from(f.divisor))
    };
    let count: u64 = grid.dims[0].iter().map(factor).product();
    let (x, y) = folded(count);
    [x as u32, y as u32, 1]
}

/// Where each operand lies in the arena, and the arena's size.
fn layout(memory: &Memory) -> (Vec<usize>, usize) {
    let mut end = GUARD;
    let mut offsets = vec![];
    for operand in &memory.operands {
        offsets.push(end);
        end += operand.bytes.len().next_multiple_of(GUARD) + GUARD;
    }
    (offsets, end)
}

/// Runs a kernel; the memory afterwards. Panics when a byte outside the operands changed.
pub(crate) fn run(gpu: &Gpu, kernel: &Kernel, form: InterfaceForm, n_bases: u8, memory: &Memory) -> Memory {
    let (offsets, arena_bytes) = layout(memory);
    let mut image = vec![GUARD_BYTE; arena_bytes];
    for (operand, &at) in memory.operands.iter().zip(&offsets) {
        image[at..at + operand.bytes.len()].copy_from_slice(&operand.bytes);
    }
    let symbolic = !memory.symbols.is_empty();
    let bound = form == InterfaceForm::Bindings;
    let n_operands = memory.operands.len() + usize::from(bound && symbolic);
    let code: Vec<u8> = kernel.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let subgroup = kernel.needs.subgroup;
    let desc = KernelDesc { name: "kernel", code: &code, n_bases, n_operands: n_operands as u8, subgroup };
    let bound = bound.then(|| {
        let lab = lab().expect("the device is the lab's");
        let bound = lab.bound_kernel(&kernel.words, n_operands as u32, subgroup);
        (lab, bound.expect("the kernel makes a pipeline"))
    });
    let program = ProgramDesc {
        name: "test",
        requirements: Requirements::NONE,
        kernels: if bound.is_some() { &[] } else { &[desc] },
        weights: WeightsDesc::default(),
    };
    let model = Model::load(gpu, &program, WeightSource::None, &CacheDir::None).expect("the kernel makes a pipeline");
    let groups = Groups::Fixed(groups(&kernel.grid, memory));
    let mut bases = vec![Base::Arena(0); n_bases.into()];
    if symbolic {
        bases[usize::from(n_bases) - 1] = Base::Symbols;
    }
    let units: Vec<u32> = offsets.iter().map(|&o| o as u32 / 16).collect();
    let mut ranges: Vec<Bound> = memory
        .operands
        .iter()
        .zip(&offsets)
        .map(|(o, &at)| Bound {
            base: Base::Arena(0),
            offset: at as u64,
            // An empty range cannot be bound; the guard stands in, and is checked.
            bytes: o.bytes.len().next_multiple_of(16).max(16) as u64,
        })
        .collect();
    if symbolic {
        ranges.push(Bound { base: Base::Symbols, offset: 0, bytes: memory.symbols.len() as u64 * 4 });
    }
    let record = |r: &mut jvc_runtime::Recorder<'_>| match &bound {
        Some((lab, kernel)) => lab.dispatch(r, kernel, &ranges, groups),
        None => r.dispatch(0, &bases, &units, groups),
    };
    let entry = EntryDesc {
        name: "main",
        arena_bytes: &[arena_bytes as u64],
        io: &[],
        table_words: memory.symbols.len() as u32,
        state_bytes: 0,
        state_init: &[],
        record: &record,
    };
    let mut session = model.session(&entry).expect("the step records");
    session
        .buffer(0, Base::Arena(0))
        .expect("the entry has an arena")
        .write(0, &image)
        .expect("the arena takes its image");
    session.run(&memory.symbols, &[], &mut []).expect("the kernel runs");
    let mut after = vec![0; arena_bytes];
    session.buffer(0, Base::Arena(0)).expect("the entry has an arena").read(0, &mut after).expect("the arena is read");
    let mut result = memory.clone();
    for (operand, &at) in result.operands.iter_mut().zip(&offsets) {
        let end = at + operand.bytes.len();
        operand.bytes.copy_from_slice(&after[at..end]);
        after[at..end].copy_from_slice(&image[at..end]);
    }
    let touched = after.iter().zip(&image).position(|(a, b)| a != b);
    assert_eq!(touched, None, "a byte outside the operands was written (operands at {offsets:?})");
    let messages = lab().map_or_else(Vec::new, |lab| lab.log().messages());
    assert_eq!(messages, Vec::<String>::new(), "the validation layer has something to say");
    result
}

/// How far a float may be from its reference.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    /// Relative to the reference.
    pub(crate) relative: f64,
    /// Absolute.
    pub(crate) absolute: f64,
}

/// Bits must agree (but NaN's payload, and flushed subnormals).
pub(crate) const EXACT: Tolerance = Tolerance { relative: 0.0, absolute: 0.0 };

/// Whether the case of this name runs with bound buffers, too: half of them do, or all where `JVC_ALL_FORMS` says so. A CPU driver compiles each kernel
/// for a second, and the forms differ in how an operand is found only.
fn runs_bound(name: &str) -> bool {
    let sum = name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    std::env::var_os("JVC_ALL_FORMS").is_some() || sum.is_multiple_of(2)
}

/// Builds, runs for every target, and compares with the reference; says whether the device can run it at all.
pub(crate) fn check(gpu: &Gpu, name: &str, spec: &KernelSpec, memory: &Memory, tolerance: Tolerance) -> bool {
    if constraints(spec, &limits(gpu)).is_err() {
        return false;
    }
    let mut expected = memory.clone();
    reference(spec, &mut expected);
    for target in targets(gpu, spec) {
        let kernel = build(spec, target).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(target.int64 == Int64::Native || !kernel.needs.int64, "{name}: words need no 64-bit integers");
        #[cfg(feature = "validate")]
        if let Err(e) = jvc_kernels::validate(&kernel.words) {
            panic!("{name} {target:?}: {e}");
        }
        if target.form == InterfaceForm::Bindings && !runs_bound(name) {
            continue;
        }
        let got = run(gpu, &kernel, target.form, spec.interface().n_bases, memory);
        for (i, (want, have)) in expected.operands.iter().zip(&got.operands).enumerate() {
            if let Some(message) = difference(want, have, tolerance) {
                panic!("{name} {target:?}: operand {i}: {message}");
            }
        }
    }
    true
}

/// The first element that is too far off. Halves may differ by one unit in the last place of theirs, where an f32 result near the middle
/// of two is rounded the other way.
pub(crate) fn difference(want: &HostBuffer, have: &HostBuffer, tolerance: Tolerance) -> Option<String> {
    let last_place = match want.dtype {
        DType::F16 if tolerance.relative > 0.0 => 2f64.powi(-10),
        DType::BF16 if tolerance.relative > 0.0 => 2f64.powi(-7),
        _ => 0.0,
    };
    let smallest = if want.dtype.ty() == Ty::F32 { 1.2e-38 } else { 0.0 };
    for i in 0..want.len() {
        let (w, h) = (want.load(i), have.load(i));
        if !want.dtype.is_float() {
            if w != h {
                return Some(format!("element {i} is {h:?}, {w:?} is right"));
            }
            continue;
        }
        let (w, h) = (w.to_f64(), h.to_f64());
        let close = w == h
            || (w.is_nan() && h.is_nan())
            || (w - h).abs() <= tolerance.absolute.max(smallest) + (tolerance.relative + last_place) * w.abs();
        if !close {
            return Some(format!("element {i} is {h:e}, {w:e} is right"));
        }
    }
    None
}

/// A small generator of test values.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// 32 random bits.
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Uniform in [0, n).
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(n)) >> 32) as u32
    }

    /// Uniform in [low, high).
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * f64::from(self.bits()) / 4_294_967_296.0
    }

    /// A buffer of small values that the type holds.
    pub(crate) fn buffer(&mut self, operand: &jvc_kernels::spec::Operand, elements: usize) -> HostBuffer {
        let mut buffer = HostBuffer::zeros(operand.dtype, operand.storage, elements);
        for i in 0..elements {
            let v = match operand.dtype {
                DType::Bool => f64::from(self.below(2)),
                DType::U8 => f64::from(self.below(256)),
                d if d.is_float() => self.between(-2.0, 2.0),
                _ => f64::from(self.below(200)) - 100.0,
            };
            buffer.store(i, jvc_kernels::eval::Value::from_f64(operand.dtype.ty(), v));
        }
        buffer
    }
}

/// Product of sizes.
pub(crate) fn elements(memory: &Memory, extents: &[Extent]) -> usize {
    extents.iter().map(|&e| memory.extent(e) as usize).product()
}
