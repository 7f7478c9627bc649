//! Devices that are not at hand: what the kernels of the programs under review ask of them, read from the SPIR-V itself, and runs of the
//! same tiles on the device at hand, as far as that has what they need.

#[path = "portability/module.rs"]
mod module;

use jvc::device::{DeviceProfile, find, of_open_gpu};
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::golden::{self, CASES, Case};
use jvc::ir::DType;
use jvc::options::{Half, Mixed, Options};
use jvc::pipeline::{Compiled, compile};
use jvc_codegen::plan::{Groups, PlanKernel, Step};
use jvc_runtime::{CacheDir, Gpu, Select};
use std::path::{Path, PathBuf};

const DEVICES: [&str; 3] = ["rtx4000-ada", "radeon-8060s", "generic"];

/// Capabilities that need no feature of a profile: shaders, addresses, and the two kinds of float controls.
const ALWAYS: [u32; 4] = [1, 5347, 4466, 4467];
const GROUP_NON_UNIFORM: u32 = 61;
const COOPERATIVE_MATRIX: u32 = 6022;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One case a program of the goldens.
fn programs() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.device == "lavapipe")
}

fn compiled(case: &Case, profile: &DeviceProfile, mixed: Option<Mixed>) -> Compiled {
    let options = Options { name: Some(case.program.to_string()), mixed, ..Options::default() };
    compile(&case.programs(&root()).expect("it is read"), &options, profile).unwrap_or_else(|all| {
        panic!("{} for {}: {:?}", case.program, profile.name, all.first().map(ToString::to_string))
    })
}

fn halves(half: Half) -> Option<Mixed> {
    Some(Mixed::new(half))
}

/// Whether a device has what a capability stands for; false for those that no kernel should use.
fn allows(profile: &DeviceProfile, capability: u32) -> bool {
    let (has, pinned) = (&profile.features, profile.limits.subgroup_size > 0);
    let matrices = |operand: &str| profile.cooperative.iter().any(|shape| shape.operand == operand);
    match capability {
        9 => has.float16,
        10 => has.float64,
        11 => has.int64,
        22 => has.int16,
        39 | 4448 => has.int8,
        4433 => has.int16 || has.float16,
        GROUP_NON_UNIFORM | 62 => pinned || !profile.cooperative.is_empty(),
        5345 => has.vulkan_memory_model,
        COOPERATIVE_MATRIX => !profile.cooperative.is_empty(),
        5116 | 5118 => matrices("bf16"),
        other => ALWAYS.contains(&other),
    }
}

fn allows_extension(profile: &DeviceProfile, extension: &str) -> bool {
    match extension {
        "SPV_KHR_cooperative_matrix" => !profile.cooperative.is_empty(),
        "SPV_KHR_bfloat16" => profile.cooperative.iter().any(|shape| shape.operand == "bf16"),
        // All of them are part of Vulkan 1.2 or of the feature whose capability is checked.
        other => ["physical_storage_buffer", "16bit_storage", "8bit_storage", "vulkan_memory_model", "float_controls"]
            .iter()
            .any(|known| other == format!("SPV_KHR_{known}")),
    }
}

/// What is wrong with a kernel for a device.
fn faults(profile: &DeviceProfile, kernel: &PlanKernel) -> Vec<String> {
    let (limits, has, m) = (&profile.limits, &profile.features, module::read(&kernel.words));
    let mut faults = vec![];
    let mut need = |holds: bool, fault: String| {
        if !holds {
            faults.push(format!("{}: {fault}", kernel.name))
        }
    };
    let [x, y, z] = m.local_size;
    let (most, n) = (limits.max_workgroup_invocations, x * y * z);
    need(n > 0 && n <= most && x <= most && y <= most && z <= 64, format!("{x}x{y}x{z} invocations"));
    need(m.shared_bytes <= limits.shared_bytes_per_workgroup.into(), format!("{} shared bytes", m.shared_bytes));
    need(m.push_bytes <= limits.push_constant_bytes.into(), format!("{} push bytes", m.push_bytes));
    need(m.version <= (1, 5), format!("SPIR-V {:?} is not of Vulkan 1.2", m.version));
    m.capabilities.iter().for_each(|c| need(allows(profile, *c), format!("capability {c}")));
    m.extensions.iter().for_each(|e| need(allows_extension(profile, e), format!("extension {e}")));
    for width in &m.ints {
        need(
            [*width == 32, has.int8 && *width == 8, has.int16 && *width == 16, has.int64 && *width == 64]
                .contains(&true),
            format!("{width}-bit integers"),
        );
    }
    for (width, bf16) in &m.floats {
        let bf16_here = *bf16 && allows(profile, 5116);
        let plain = !bf16 && (*width == 32 || (*width == 16 && has.float16) || (*width == 64 && has.float64));
        need(bf16_here || plain, format!("{width}-bit floats, bfloat16: {bf16}"));
    }
    for (rows, columns, _, _) in &m.matrices {
        let sides = |s: &jvc::device::CoopShape| [(s.m, s.k), (s.k, s.n), (s.m, s.n)];
        let known = profile.cooperative.iter().flat_map(sides).any(|side| side == (*rows, *columns));
        need(known, format!("matrices of {rows}x{columns}"));
    }
    // What counts on a subgroup's size is pinned to it, and its workgroups are whole subgroups.
    let counts = m.capabilities.contains(&COOPERATIVE_MATRIX) || m.capabilities.contains(&GROUP_NON_UNIFORM);
    need(
        !counts || limits.subgroup_size == 0 || kernel.subgroup == limits.subgroup_size,
        "no subgroup size is pinned".into(),
    );
    let whole = kernel.subgroup == 0 || (kernel.subgroup == limits.subgroup_size && x % kernel.subgroup == 0);
    need(whole, format!("{x} invocations in subgroups of {}", kernel.subgroup));
    #[cfg(feature = "validate")]
    if let Err(message) = jvc_kernels::validate(&kernel.words) {
        faults.push(format!("{}: {message}", kernel.name));
    }
    faults
}

/// Group counts above the limit of x, or the least that Vulkan grants y and z.
fn large_grids(profile: &DeviceProfile, compiled: &Compiled) -> Vec<[u32; 3]> {
    let fixed = |step: &Step| match step {
        Step::Dispatch(d) => {
            if let Groups::Fixed(grid) = d.groups {
                Some(grid)
            } else {
                None
            }
        }
        Step::Barrier => None,
    };
    let too_large = |[x, y, z]: &[u32; 3]| *x > profile.limits.max_groups_x || *y > 65535 || *z > 65535;
    compiled.plan.entries.iter().flat_map(|e| &e.steps).filter_map(fixed).filter(too_large).collect()
}

#[test]
fn every_module_asks_only_for_what_the_profile_grants() {
    let mut with_matrices = 0;
    for device in DEVICES {
        let profile = find(device).expect("a bundled profile");
        let kinds: &[Option<Mixed>] = &if device == "generic" { vec![None] } else { vec![None, halves(Half::F16)] };
        for (case, mixed) in programs().flat_map(|case| kinds.iter().map(move |mixed| (case, mixed))) {
            let compiled = compiled(case, &profile, mixed.clone());
            let faults: Vec<String> = compiled.plan.kernels.iter().flat_map(|k| faults(&profile, k)).collect();
            assert!(faults.is_empty(), "{} for {device}: {faults:#?}", case.program);
            assert_eq!(large_grids(&profile, &compiled), Vec::<[u32; 3]>::new(), "{} for {device}", case.program);
            let modules = compiled.plan.kernels.iter().map(|k| module::read(&k.words));
            with_matrices += modules.filter(|m| !m.matrices.is_empty()).count();
        }
    }
    assert!(with_matrices > 0, "some kernel uses matrix units");
}

#[test]
fn a_smaller_device_is_seen_to_be_too_small() {
    let profile = find("rtx4000-ada").expect("a bundled profile");
    let case = programs().find(|case| case.program == "attention_block").expect("a golden");
    let kernels = compiled(case, &profile, halves(Half::F16)).plan.kernels;
    let found = |change: fn(&mut DeviceProfile)| {
        let mut less = profile.clone();
        change(&mut less);
        kernels.iter().flat_map(|k| faults(&less, k)).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(found(|_| ()), "");
    assert!(found(|d| d.limits.max_workgroup_invocations = 16).contains("invocations"));
    assert!(found(|d| d.limits.shared_bytes_per_workgroup = 64).contains("shared bytes"));
    assert!(found(|d| d.limits.push_constant_bytes = 8).contains("push bytes"));
    assert!(found(|d| d.features.float16 = false).contains("16-bit floats"));
    assert!(found(|d| d.cooperative.clear()).contains("matrices of"));
    assert!(found(|d| d.limits.subgroup_size = 64).contains("subgroup"));
}

/// A device's limits and tiles, with what the GPU at hand has less of, its matrices and its subgroups.
fn on(gpu: &Gpu, profile: &DeviceProfile) -> DeviceProfile {
    let (here, mut out) = (of_open_gpu(gpu), profile.clone());
    let (to, from) = (&mut out.limits, &here.limits);
    to.max_workgroup_invocations = to.max_workgroup_invocations.min(from.max_workgroup_invocations);
    to.shared_bytes_per_workgroup = to.shared_bytes_per_workgroup.min(from.shared_bytes_per_workgroup);
    to.push_constant_bytes = to.push_constant_bytes.min(from.push_constant_bytes);
    to.max_groups_x = to.max_groups_x.min(from.max_groups_x);
    to.max_allocation_bytes = to.max_allocation_bytes.min(from.max_allocation_bytes);
    to.max_loop_iterations = from.max_loop_iterations;
    to.subgroup_size = if to.subgroup_size == 0 { 0 } else { from.subgroup_size };
    let (to, from) = (&mut out.features, &here.features);
    to.int8 &= from.int8;
    to.int16 &= from.int16;
    to.float16 &= from.float16;
    to.int64 &= from.int64;
    to.float64 &= from.float64;
    to.vulkan_memory_model &= from.vulkan_memory_model;
    out.cooperative = if profile.cooperative.is_empty() { vec![] } else { here.cooperative };
    if here.rates.cpu && !out.cooperative.is_empty() {
        // A driver that spells matrices out takes time by the square of how many a kernel has, minutes for 64 to load and 128 to
        // multiply: less shared memory leads to tiles of a few.
        let bytes = &mut out.limits.shared_bytes_per_workgroup;
        *bytes = (*bytes).min(8 << 10);
    }
    out
}

/// Seeded values for a port of constant shape.
fn input(compiled: &Compiled) -> Vec<Value> {
    let tensor = |port: &jvc_codegen::plan::Port| {
        let n = port.max_bytes as u32 / 4;
        let value = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 8) % 1000) as f32 / 500.0 - 1.0;
        let bytes = (0..n).flat_map(|i| value(i).to_le_bytes()).collect();
        let shape = port.shape.iter().map(|size| i64::from(size.eval_u32(&[]).expect("a constant"))).collect();
        Value::Tensor(HostTensor { dtype: DType::F32, shape, bytes })
    };
    compiled.plan.entries[0].inputs.iter().map(tensor).collect()
}

fn run(gpu: &Gpu, compiled: &Compiled) -> Vec<f32> {
    let loaded = Loaded::new(gpu, compiled, &CacheDir::None).expect("it loads");
    let mut session = loaded.session(0).expect("it records");
    session.poison_arena().expect("memory of the session's own");
    let outputs = session.run(&input(compiled)).expect("it runs");
    outputs.iter().flat_map(|o| o.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))).collect()
}

#[test]
fn tiles_of_devices_elsewhere_give_the_results_of_the_device_at_hand() {
    let Ok(gpu) = Gpu::open(&Select::Auto) else {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    };
    let mut with_matrices = 0;
    for case in programs() {
        let expected = run(&gpu, &compiled(case, &of_open_gpu(&gpu), None));
        let scale = expected.iter().fold(0_f32, |most, x| most.max(x.abs()));
        assert!(scale > 0.0 && scale.is_finite(), "{}", case.program);
        for device in DEVICES {
            let profile = on(&gpu, &find(device).expect("a bundled profile"));
            let in_halves = profile.features.float16.then(|| (halves(Half::F16), 2e-2));
            for (mixed, tolerance) in [(None, 1e-5)].into_iter().chain(in_halves) {
                let compiled = compiled(case, &profile, mixed);
                let modules = compiled.plan.kernels.iter().map(|k| module::read(&k.words));
                with_matrices += modules.filter(|m| !m.matrices.is_empty()).count();
                let got = run(&gpu, &compiled);
                let worst = got.iter().zip(&expected).fold(0_f32, |most, (a, b)| most.max((a - b).abs()));
                assert_eq!(got.len(), expected.len());
                assert!(worst <= tolerance * scale, "{} for {device}: {worst} of {scale}", case.program);
            }
        }
    }
    assert_eq!(
        with_matrices > 0,
        !of_open_gpu(&gpu).cooperative.is_empty(),
        "matrix units are used where there are any"
    );
}

/// Here for the devices that the goldens are for; the modules above are validated for the others.
#[test]
#[cfg(feature = "validate")]
fn every_kernel_under_review_is_valid() {
    for case in CASES {
        let compiled = compiled(&case, &find(case.device).expect("a bundled profile"), None);
        let validated = compiled.plan.kernels.iter().map(|k| jvc_kernels::validate(&k.words).map_err(|e| (&k.name, e)));
        let wrong: Vec<_> = validated.filter_map(Result::err).collect();
        assert!(
            wrong.is_empty() && !compiled.plan.kernels.is_empty(),
            "{} for {}: {wrong:?}",
            case.program,
            case.device
        );
    }
}

/// The programs are those of the goldens; a new golden is checked here too.
#[test]
fn every_golden_program_is_checked() {
    let mut all: Vec<&str> = CASES.iter().map(|case| case.program).collect();
    all.dedup();
    assert_eq!(programs().map(|case| case.program).collect::<Vec<_>>(), all);
    assert!(root().join(golden::PROGRAMS).is_dir());
}
