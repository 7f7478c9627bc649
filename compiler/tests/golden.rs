//! The goldens are what the compiler makes, and the whole crates among them give the results that running in memory gives.

use jvc::exec::{HostTensor, Loaded, Value};
use jvc::golden::{self, CASES, Form};
use jvc::ir::DType;
use jvc::pipeline::Compiled;
use jvc_runtime::{CacheDir, Gpu, Select};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn goldens_are_what_the_compiler_makes() {
    let differences = golden::check(&root()).expect("every golden compiles");
    assert!(differences.is_empty(), "`jvc golden --bless` writes these: {differences:#?}");
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    for case in CASES.iter().filter(|c| c.form == Form::Crate) {
        let once = case.artifact(&root()).expect("it compiles");
        assert_eq!(once, case.artifact(&root()).expect("it compiles"), "{}", case.folder());
    }
}

/// A program that runs a generated crate once: inputs from `in.N`, outputs to `out.N`, raw bytes.
fn runner(case: &golden::Case, compiled: &Compiled) -> String {
    let entry = &compiled.plan.entries[0];
    let (package, module) = (&compiled.plan.name, &entry.name);
    let camel: String = package.split('_').map(|w| w[..1].to_uppercase() + &w[1..]).collect();
    assert_eq!(package, module, "{} names its entry point like the crate", case.program);
    let inputs = entry.inputs.iter().enumerate();
    let reads: String = inputs.map(|(i, port)| format!("    let {} = floats(\"in.{i}\");\n", port.name)).collect();
    let fields: Vec<String> = entry.inputs.iter().map(|port| format!("{0}: &{0}", port.name)).collect();
    let outputs = entry.outputs.iter().enumerate();
    let writes: String = outputs
        .map(|(i, p)| format!("    std::fs::write(\"out.{i}\", bytes_of(&outputs.{})).unwrap();\n", p.name))
        .collect();
    format!(
        "use {package}::jvc_runtime::{{CacheDir, Gpu, Select, WeightSource, bytes_of}};\n\
         fn floats(path: &str) -> Vec<f32> {{\n    \
             let bytes = std::fs::read(path).unwrap();\n    \
             bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()\n}}\n\
         fn main() {{\n    \
             let weights = std::env::args().nth(1).unwrap();\n    \
             let gpu = Gpu::open(&Select::Auto).unwrap();\n    \
             let source = WeightSource::Path(weights.as_ref());\n    \
             let model = {package}::{camel}::load_with(&gpu, source, &CacheDir::None).unwrap();\n    \
             let mut session = model.{module}_session().unwrap();\n\
         {reads}    \
             let outputs = session.run(&{package}::{camel}Inputs {{ {} }}).unwrap();\n\
         {writes}}}\n",
        fields.join(", ")
    )
}

/// Builds and runs the runner of a crate in `target-artifacts`, in a scratch folder.
fn run_crate(case: &golden::Case, compiled: &Compiled, inputs: &[HostTensor]) -> Vec<Vec<u8>> {
    let folder = root().join(golden::ARTIFACTS).join(case.folder());
    let folder = folder.canonicalize().expect("the golden is there");
    let dir = tempfile::tempdir().expect("a scratch folder");
    let name = &compiled.plan.name;
    let manifest = format!(
        "[package]\nname = \"runner\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\n{name} = {{ path = {folder:?} }}\n"
    );
    std::fs::create_dir(dir.path().join("src")).expect("writable");
    std::fs::write(dir.path().join("Cargo.toml"), manifest).expect("writable");
    std::fs::write(dir.path().join("src/main.rs"), runner(case, compiled)).expect("writable");
    std::fs::copy(root().join("Cargo.lock"), dir.path().join("Cargo.lock")).expect("writable");
    for (i, input) in inputs.iter().enumerate() {
        std::fs::write(dir.path().join(format!("in.{i}")), &input.bytes).expect("writable");
    }
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "--"])
        .arg(folder.join("weights.jvcw"))
        .current_dir(dir.path())
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("goldens"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}: {}", case.folder(), String::from_utf8_lossy(&output.stderr));
    let outputs = 0..compiled.plan.entries[0].outputs.len();
    outputs.map(|i| std::fs::read(dir.path().join(format!("out.{i}"))).expect("the runner wrote it")).collect()
}

/// Tensors `PREFIX.0`, `PREFIX.1`, … of a case's file.
fn tensors(case: &golden::Case, prefix: &str) -> Vec<HostTensor> {
    let path = root().join(golden::PROGRAMS).join(format!("{}.safetensors", case.program));
    let file = std::fs::read(path).expect("crates have references");
    let file = safetensors::SafeTensors::deserialize(&file).expect("written by safetensors");
    let tensor = |i: usize| {
        let view = file.tensor(&format!("{prefix}.{i}")).ok()?;
        let shape = view.shape().iter().map(|n| *n as i64).collect();
        Some(HostTensor { dtype: DType::F32, shape, bytes: view.data().to_vec() })
    };
    (0..).map_while(tensor).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("4 bytes"))).collect()
}

#[test]
fn crates_give_the_bytes_of_a_run_in_memory_and_the_values_of_pytorch() {
    let Ok(gpu) = Gpu::open(&Select::Auto) else {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    };
    for case in CASES.iter().filter(|c| c.form == Form::Crate) {
        let compiled = case.compile(&root()).expect("it compiles");
        let inputs = tensors(case, "in");
        let loaded = Loaded::new(&gpu, &compiled, &CacheDir::None).expect("it loads");
        let values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
        let in_memory = loaded.session(0).expect("it records").run(&values).expect("it runs");
        let from_crate = run_crate(case, &compiled, &inputs);
        let reference = tensors(case, "out");
        assert_eq!(from_crate.len(), reference.len(), "{}", case.folder());
        for ((bytes, tensor), expected) in from_crate.iter().zip(&in_memory).zip(&reference) {
            assert_eq!(bytes, &tensor.bytes, "{}: the crate and the run in memory differ", case.folder());
            for (got, want) in floats(bytes).iter().zip(floats(&expected.bytes)) {
                assert!((got - want).abs() < 1e-5, "{}: {got} instead of {want}", case.folder());
            }
        }
    }
}
