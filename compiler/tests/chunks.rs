//! Devices with small allocations: weights and activations spread over chunks, with the results of a device that holds them whole; what
//! is one buffer by itself and too large is refused by name.

use jvc::device::{DeviceProfile, of_gpu};
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::golden::PROGRAMS;
use jvc::import;
use jvc::ir::DType;
use jvc::options::Options;
use jvc::pipeline::{Compiled, compile};
use jvc::report::Diagnostic;
use jvc_runtime::{CacheDir, Gpu, Select};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// ResNet-18 on 16 images of 32 by 32, of a quarter of the width: three activations of exactly 1 MiB live at once, 2.7 MiB of weights.
const PROGRAM: &str = "resnet18_small.model.json.gz";

fn small(profile: &DeviceProfile, limit: u64) -> DeviceProfile {
    let mut small = profile.clone();
    small.limits.max_allocation_bytes = limit;
    small
}

fn compiled(file: &str, profile: &DeviceProfile) -> Result<Compiled, Vec<Diagnostic>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PROGRAMS).join(file);
    let mut programs = import::read(&path).expect("a program under review");
    import::fill_random(&mut programs, 0).expect("weights of a small program");
    compile(&programs, &Options::default(), profile)
}

/// The result for one batch of images, from an arena full of NaNs.
fn run(gpu: &Gpu, compiled: &Compiled) -> Vec<f32> {
    let loaded = Loaded::new(gpu, compiled, &CacheDir::None).expect("it loads");
    let mut session = loaded.session(0).expect("it records");
    let image = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 8) % 1000) as f32 / 500.0 - 1.0;
    let bytes: Vec<u8> = (0..16 * 3 * 32 * 32).flat_map(|i| image(i).to_le_bytes()).collect();
    let images = Value::Tensor(HostTensor { dtype: DType::F32, shape: vec![16, 3, 32, 32], bytes });
    session.poison_arena().expect("memory of the session's own");
    let outputs = session.run(&[images]).expect("it runs");
    outputs[0].bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn a_network_over_chunks_of_1_mib_gives_what_it_gives_in_whole_allocations() {
    let Ok(gpu) = Gpu::open(&Select::Auto) else {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    };
    let profile = of_gpu(gpu.info());
    let whole = compiled(PROGRAM, &profile).expect("it compiles");
    let spread = compiled(PROGRAM, &small(&profile, MIB)).expect("no tensor is larger than 1 MiB");
    assert_eq!((whole.plan.weights.chunk_bytes.len(), whole.plan.entries[0].arena_bytes.len()), (1, 1));
    let (weights, arena) = (&spread.plan.weights.chunk_bytes, &spread.plan.entries[0].arena_bytes);
    assert!(weights.len() >= 3 && arena.len() >= 3, "weights {weights:?}, arena {arena:?}");
    assert!(weights.iter().chain(arena).all(|bytes| *bytes <= MIB), "weights {weights:?}, arena {arena:?}");
    assert!(spread.plan.requirements.max_allocation_bytes <= MIB);
    let (expected, got) = (run(&gpu, &whole), run(&gpu, &spread));
    assert_eq!(expected.len(), 160);
    assert!(expected.iter().all(|x| x.is_finite()) && expected.windows(2).any(|w| w[0] != w[1]), "{expected:?}");
    assert_eq!(expected, got, "the same kernels, elsewhere in memory");
}

#[test]
fn one_tensor_above_the_limit_is_refused_by_name() {
    let lavapipe = jvc::device::find("lavapipe").expect("a bundled profile");
    let refused = |file: &str, limit: u64| {
        let faults = compiled(file, &small(&lavapipe, limit)).map(|_| ()).expect_err("a tensor is too large");
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let activation = refused(PROGRAM, 640 << 10);
    assert!(activation.contains("relu") && activation.contains("1048576"), "{activation}");
    let weight = refused("attention_block.model.json.gz", 32768);
    assert!(weight.contains("fc1") && weight.contains("36864 bytes") && weight.contains("32768"), "{weight}");
    let input = refused("conv_block.pt2", 2304);
    assert!(input.contains("image has 2652 bytes") && input.contains("2304"), "{input}");
}
