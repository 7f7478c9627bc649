//! The command line: definitions only. Each flag of `compile` is a field of [`Options`] or of the generator's options.

mod running;

pub use running::{
    BenchArgs, CacheArg, ColdstartArgs, ColdstartProcessArgs, InMemoryArgs, RunArgs, SamplingArgs, TuneArgs,
};

use crate::diff::Limit;
use crate::options::{Half, Mixed, Options, Quantize, QuantizedForm};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Ahead-of-time compiler from PyTorch exports to standalone Vulkan crates.
#[derive(Debug, Parser)]
#[command(
    name = "jvc",
    version,
    about,
    after_help = "Exit codes: 0 fine, 1 a finding (a program that cannot be compiled, a wrong result), 2 misuse."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compile exported programs to a crate
    #[command(after_help = "Examples:
  jvc compile sam2.pt2 --device rtx4000 --out sam2-vulkan
  jvc compile encoder.pt2 decoder.pt2 --name whisper --device auto
  jvc compile llama.pt2 --device rtx4000 --quantize int4
  jvc compile sam2.pt2 --device rtx4000 --precision f16 --keep-f32 'mask_decoder.*'
  jvc compile sam2.pt2 --device rtx4000 --precision f16 --error-budget 1e-3 --samples in.safetensors --out sam2
  jvc compile sam2.pt2 --device h200 --precision f16 --islands sam2/islands.toml
  jvc compile encode.model.json.gz --random-weights 1 --device h200 --no-weights")]
    Compile(CompileArgs),
    /// Compile in memory and run on a GPU, no Rust compiler involved
    #[command(after_help = "Examples:
  jvc run resnet18.pt2 --inputs in.safetensors -o out.safetensors
  jvc run resnet18.pt2 --inputs in.safetensors --repeat 20 --steps
Tensors are called in.N and out.N, in the order of the program's inputs and outputs.")]
    Run(RunArgs),
    /// Measure how long runs and their steps take, of a program or of two in turns, with inputs and outputs on the device
    #[command(after_help = "Examples:
  jvc bench resnet18.pt2 --inputs in.safetensors
  jvc bench old-crate new-crate
  jvc bench resnet18.pt2 --device h200 --other-device h200-tuned.toml --steps 20
  jvc bench matmul.pt2 --inputs in.safetensors --chain 20 --format json
  jvc bench resnet18.pt2 --inputs in.safetensors --serve
Two things are measured in turns. Without --inputs, they are made up. docs/bench.md says how it is measured.
With --serve, each number N on standard input is answered by the times of N runs, so that a script can interleave what it compares.")]
    Bench(BenchArgs),
    /// Measure the tiles that kernels could have, and write a device profile with those that are fastest
    #[command(after_help = "Examples:
  jvc tune resnet18.pt2 -o mine.toml && jvc compile resnet18.pt2 --device mine.toml
  jvc tune encode.model.json.gz decode.model.json.gz --random-weights 1 --precision f16 --device h200 -o h200-tuned.toml
  jvc tune resnet18.pt2 --device mine.toml -o mine.toml
  jvc tune --check --device mine.toml
  jvc tune --check --device mine.toml resnet18.pt2
Entries of a table for other work stay in it. docs/tune.md says how it is measured.")]
    Tune(TuneArgs),
    /// Measure how long fresh processes take from their start to the first result
    #[command(after_help = "Examples:
  jvc coldstart resnet18.pt2
  jvc coldstart resnet18.pt2 --cache own --budget-ms 300
  jvc coldstart encode.model.json.gz --random-weights 1 --runs 9 --format json
  jvc compile resnet18.pt2 --device auto --out crate && jvc coldstart crate
Each process loads what the crate would load, once, on zeros of the largest sizes. Processes with different caches take turns.")]
    Coldstart(ColdstartArgs),
    /// Be the process that `coldstart` measures
    #[command(hide = true)]
    ColdstartProcess(ColdstartProcessArgs),
    /// Compile, run, and compare with PyTorch's results
    #[command(after_help = "Examples:
  jvc verify resnet18.pt2
  jvc verify fixtures/ --device lavapipe --repeat 20 --json report.json
  jvc verify fixtures/ --ranges
  jvc verify fixtures/ --precision f16
  jvc verify ops/ --save-outputs out/
  python models/dump_refs.py model.pt2 -o model.refs.safetensors && jvc verify model.pt2 --refs model.refs.safetensors
Beside NAME.pt2 (or NAME.core.pt2) lies NAME.safetensors with in.N, out.N, out64.N, and further sets under alt.K.")]
    Verify(VerifyArgs),
    /// List operators with what they take and become; for programs, what they need and what is refused
    #[command(after_help = "Examples:
  jvc ops
  jvc ops softmax conv2d
  jvc ops model.pt2 --format json
Types are those of the operand (or result) that decides; of what PyTorch takes beyond them, `refused` lists the rest.")]
    Ops(OpsArgs),
    /// List the bundled device profiles
    #[command(after_help = "Examples:
  jvc devices
  jvc devices h200")]
    Devices(DevicesArgs),
    /// Print a profile of this machine's GPU
    #[command(after_help = "Examples:
  jvc probe
  jvc probe -o mine.toml && jvc compile model.pt2 --device mine.toml")]
    Probe(ProbeArgs),
    /// Explain what a program becomes: kernels, fusions, memory, what is off the fast path
    #[command(after_help = "Examples:
  jvc explain model.pt2 --device h200
  jvc explain model.pt2 --device h200 -o report.html
  jvc run model.pt2 --inputs in.safetensors --steps --format json > times.json
  jvc explain model.pt2 --device auto -o report.html --measured times.json
A file whose name ends in .html becomes a page that needs nothing else; anything else is text.")]
    Explain(ExplainArgs),
    /// Say what changed between two generated crates, or two folders of them
    #[command(after_help = "Examples:
  jvc diff old/sam2-vulkan sam2-vulkan
  jvc diff HEAD~1:target-artifacts target-artifacts
  jvc diff main:models/lut lut --fail-on slower=2%,arena=5%,interface
REVISION:FOLDER is read from git. Exit code 1 where a limit of --fail-on is exceeded.")]
    Diff(DiffArgs),
    /// Compare the files under review in target-artifacts with what the compiler makes, or write them
    #[command(after_help = "Examples:
  jvc golden --check
  jvc golden --bless && git diff target-artifacts docs/walkthrough.md")]
    Golden(GoldenArgs),
}

/// Output form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
}

/// A stage whose text form can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Inputs, outputs and calls as the export has them.
    Program,
    /// The graph after all passes.
    Graph,
    /// The kernels.
    Kernels,
    /// The plan.
    Plan,
}

/// Where programs and weights come from, and how they are compiled.
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Exported programs: .pt2, model.json or model.json.gz; each becomes an entry point
    #[arg(required = true, value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
    #[command(flatten)]
    /// Options of the compilation.
    pub compile: CompileOptions,
}

/// Options that every compiling command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct CompileOptions {
    /// Pin a symbolic size
    #[arg(long, value_name = "SYMBOL=N", value_parser = symbol)]
    pub set: Vec<(String, i64)>,
    /// Upper bound of an open symbolic size
    #[arg(long, value_name = "SYMBOL=N", value_parser = symbol)]
    pub bound: Vec<(String, i64)>,
    /// Tensors that take the place of the archive's, by name
    #[arg(long, value_name = "FILE.safetensors")]
    pub weights: Option<PathBuf>,
    /// Make up the weights that the archive has no bytes for
    #[arg(long, value_name = "SEED", conflicts_with = "weights")]
    pub random_weights: Option<u64>,
    /// Do not compute anything at compile time that the device could compute
    #[arg(long)]
    pub no_fold: bool,
    /// Make the weights of products, convolutions and embeddings integers, decoded where they are read
    #[arg(long, value_name = "FORM")]
    pub quantize: Option<QuantizeArg>,
    /// Compute products, convolutions and attention in a half type; what loses by it, and inputs and outputs, stay in f32
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub precision: PrecisionArg,
    /// With --precision: operations of these modules stay in f32 (repeatable; `*` and `?` as in file names)
    #[arg(long, value_name = "GLOB")]
    pub keep_f32: Vec<String>,
    /// With --precision: these calls stay in f32 too; FILE is the islands.toml that --error-budget wrote
    #[arg(long, value_name = "FILE.toml")]
    pub islands: Option<PathBuf>,
    /// Refuse what would run off its fast path
    #[arg(long, value_name = "WHAT")]
    pub deny: Option<Deny>,
    /// Leave out a pass (repeatable)
    #[arg(long, value_name = "PASS")]
    pub skip: Vec<String>,
}

/// What `--quantize` makes of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantizeArg {
    /// 8 bits, a scale for each output.
    Int8,
    /// 4 bits, a scale and a zero point for each 32 summed elements.
    Int4,
}

/// What `--precision` makes of f32 programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// Nothing: every operation in the type that the export has.
    #[default]
    AsExported,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// What `--deny` refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deny {
    /// Nodes off their fast path.
    Slow,
}

/// `jvc compile`.
#[derive(Debug, Args)]
pub struct CompileArgs {
    #[command(flatten)]
    /// Programs.
    pub input: ProgramArgs,
    /// Device profile: a name of `jvc devices`, a .toml file, or auto
    #[arg(long, value_name = "DEVICE")]
    pub device: String,
    /// Folder of the crate [default: the crate's name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    /// A search for what must stay in f32.
    pub budget: BudgetArgs,
    /// Name of the crate [default: the first program's file name]
    #[arg(long)]
    pub name: Option<String>,
    /// Write no weight file
    #[arg(long)]
    pub no_weights: bool,
    /// Depend on the runtime instead of vendoring it: a path, or `version` for the registry's
    #[arg(long, value_name = "PATH|version")]
    pub external_runtime: Option<String>,
    /// Give the crate a C interface: a header, and the feature `c-api` with which it becomes a library for C
    #[arg(long)]
    pub c_api: bool,
    /// Print a stage instead of writing a crate
    #[arg(long, value_name = "STAGE")]
    pub emit: Option<Stage>,
    /// Print how long each step took
    #[arg(long)]
    pub timings: bool,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// A search for what must stay in f32, beside the rules of `--precision`.
#[derive(Debug, Clone, Default, Args)]
pub struct BudgetArgs {
    /// With --precision: keep more in f32, as little as possible, until the outputs are off by at most this: the root mean square of the
    /// difference over that of the output, the worst of all outputs and samples. What stays is written to islands.toml in the crate
    #[arg(long, value_name = "ERROR", requires = "samples", conflicts_with = "islands", value_parser = positive)]
    pub error_budget: Option<f64>,
    /// Inputs to measure at: in.N, and alt.K.in.N for further sets. With out64.N or out.N errors are measured from these, else from the
    /// program in f32. One file for each program, in their order
    #[arg(long, value_name = "FILE.safetensors", requires = "error_budget")]
    pub samples: Vec<PathBuf>,
    /// Most compilations and runs for each program
    #[arg(long, value_name = "N", default_value_t = 64, requires = "error_budget",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// GPU that the samples run on: part of its name, or its number in the loader's list [default: the best]
    #[arg(long, value_name = "GPU", requires = "error_budget")]
    pub gpu: Option<String>,
}

/// Which GPU to run on, and for which profile to compile.
#[derive(Debug, Clone, Default, Args)]
pub struct DeviceArgs {
    /// Device profile to compile for: a name of `jvc devices`, a .toml file, or auto
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// GPU to run on: part of its name, or its number in the loader's list [default: the best]
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
}

/// Tolerance class of `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LevelArg {
    /// Single operators.
    Op,
    /// Whole models.
    Model,
}

/// `jvc verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Programs, or folders that are searched for them
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    /// Options of the compilation.
    pub compile: CompileOptions,
    #[command(flatten)]
    /// Device.
    pub device: DeviceArgs,
    /// Compare every step with PyTorch's values at the nodes of the only program: FILE is what models/dump_refs.py wrote, inputs included
    #[arg(long, value_name = "FILE.safetensors")]
    pub refs: Option<PathBuf>,
    /// With --refs: other inputs, `in.N`
    #[arg(long, value_name = "FILE.safetensors", requires = "refs")]
    pub inputs: Option<PathBuf>,
    /// With --refs: write the verdict as Markdown
    #[arg(long, value_name = "FILE.md", requires = "refs")]
    pub report: Option<PathBuf>,
    /// Tolerance class [default: op for cases of an index.json, model for everything else]
    #[arg(long)]
    pub level: Option<LevelArg>,
    /// Runs of each input set; all must give the same bytes
    #[arg(long, default_value_t = 2)]
    pub repeat: u32,
    /// Also run every step alone with poison outside the ranges that it declares to read: it must leave the same bytes in what it
    /// declares to write, and change no byte elsewhere
    #[arg(long)]
    pub ranges: bool,
    /// Start Vulkan's validation layer; any message is a failure
    #[arg(long)]
    pub validate: bool,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as DIR/NAME.safetensors
    #[arg(long, value_name = "DIR")]
    pub save_outputs: Option<PathBuf>,
    /// Print only what is wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `jvc ops`.
#[derive(Debug, Args)]
pub struct OpsArgs {
    /// Programs to look into, or parts of the names of operators to list [default: every operator]
    #[arg(value_name = "PROGRAM|NAME")]
    pub what: Vec<PathBuf>,
    /// Device profile for which kernels are listed
    #[arg(long, value_name = "DEVICE", default_value = "generic")]
    pub device: String,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `jvc devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print this profile
    pub name: Option<String>,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `jvc probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// GPU: part of its name, or its number in the loader's list [default: the best]
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Where to write the profile
    #[arg(short, long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// List the GPUs instead
    #[arg(long)]
    pub list: bool,
}

/// `jvc golden`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false, args = ["check", "bless"])]
pub struct GoldenArgs {
    /// Compare, and exit with 1 if a file differs
    #[arg(long)]
    pub check: bool,
    /// Write
    #[arg(long)]
    pub bless: bool,
    /// The repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
}

/// `jvc explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    /// Programs.
    pub input: ProgramArgs,
    /// Device profile: a name of `jvc devices`, a .toml file, or auto
    #[arg(long, value_name = "DEVICE")]
    pub device: String,
    /// Where to write the explanation: text, or a page for FILE.html
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Times of steps for the page: what `jvc run --steps --format json` printed
    #[arg(long, value_name = "FILE.json", requires = "output")]
    pub measured: Option<PathBuf>,
}

/// `jvc diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The crate before: its folder, a folder of crates, or REVISION:FOLDER
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The crate after
    #[arg(value_name = "NEW")]
    pub new: String,
    /// Limits: interface, or a figure with the growth that is allowed: slower, arena, weights, state, spirv, kernels, dispatches, barriers
    #[arg(long, value_name = "LIMIT=PERCENT", value_delimiter = ',')]
    pub fail_on: Vec<Limit>,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: DiffFormat,
}

/// Output form of differences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// For a pull request.
    #[default]
    Markdown,
    /// For scripts.
    Json,
}

impl CompileOptions {
    /// The compiler's options, but for what stands in files.
    pub fn options(&self, name: Option<String>) -> Options {
        Options {
            name,
            set: self.set.iter().cloned().collect(),
            bound: self.bound.iter().cloned().collect(),
            no_fold: self.no_fold,
            deny_slow: self.deny == Some(Deny::Slow),
            quantize: self.quantize.map(|form| {
                Quantize::new(match form {
                    QuantizeArg::Int8 => QuantizedForm::Int8,
                    QuantizeArg::Int4 => QuantizedForm::Int4,
                })
            }),
            mixed: self.mixed(),
            random_weights: self.random_weights,
            skip: self.skip.clone(),
            ..Options::default()
        }
    }
}

impl CompileOptions {
    fn mixed(&self) -> Option<Mixed> {
        let half = match self.precision {
            PrecisionArg::AsExported => return None,
            PrecisionArg::F16 => Half::F16,
            PrecisionArg::Bf16 => Half::BF16,
        };
        Some(Mixed { keep_f32: self.keep_f32.clone(), ..Mixed::new(half) })
    }
}

/// `1e-3`.
fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| format!("{text} is no number: {e}"))?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(format!("{text} is no positive number")) }
}

/// `s0=1152`.
fn symbol(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("write SYMBOL=N")?;
    let value = value.parse::<i64>().map_err(|e| format!("{value} is no integer: {e}"))?;
    if name.is_empty() { Err("the symbol is missing".into()) } else { Ok((name.to_string(), value)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent_and_every_command_has_examples() {
        let command = Cli::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("jvc {}", sub.get_name())), "{}", sub.get_name());
        }
    }

    #[test]
    fn symbols_are_name_and_integer() {
        assert_eq!(symbol("s0=1152"), Ok(("s0".into(), 1152)));
        assert!(symbol("s0").is_err() && symbol("s0=x").is_err() && symbol("=3").is_err());
    }

    #[test]
    fn flags_become_options() {
        let line = "jvc compile a.pt2 --device h200 --set s0=3 --bound s1=9 --deny slow --no-fold --skip fold_constants \
                    --quantize int4 --precision bf16 --keep-f32 a.* --keep-f32 b";
        let cli = Cli::try_parse_from(line.split_whitespace()).expect("a valid line");
        let Command::Compile(args) = cli.command else { panic!("compile") };
        let options = args.input.compile.options(None);
        assert_eq!((options.set["s0"], options.bound["s1"]), (3, 9));
        assert!(options.deny_slow && options.no_fold);
        assert_eq!(options.skip, ["fold_constants"]);
        assert_eq!(options.quantize, Some(Quantize { form: QuantizedForm::Int4, min_elems: 16384 }));
        let keep_f32 = vec!["a.*".to_string(), "b".to_string()];
        assert_eq!(options.mixed, Some(Mixed { keep_f32, ..Mixed::new(Half::BF16) }));
    }
}
