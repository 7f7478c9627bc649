//! Arguments of the commands that run programs on a GPU and measure them: `run`, `bench`, `coldstart`, `tune`.

use super::{CompileOptions, DeviceArgs, Format};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A program that is compiled in memory, and its inputs.
#[derive(Debug, Args)]
pub struct InMemoryArgs {
    /// Exported program
    pub program: PathBuf,
    #[command(flatten)]
    /// Options of the compilation.
    pub compile: CompileOptions,
    #[command(flatten)]
    /// Device.
    pub device: DeviceArgs,
    /// Inputs: in.N; not needed by a program without inputs
    #[arg(long, value_name = "FILE.safetensors")]
    pub inputs: Option<PathBuf>,
}

/// `jvc run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    /// What runs.
    pub what: InMemoryArgs,
    /// Where to write the outputs: out.N
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub output: Option<PathBuf>,
    /// Run several times, from the initial state each time, and compare the bytes
    #[arg(long, default_value_t = 1)]
    pub repeat: u32,
    /// Print the time of every step, by timestamps
    #[arg(long)]
    pub steps: bool,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `jvc bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    /// What runs: a program, or the folder of a crate that `jvc compile` wrote with its weights.
    pub what: InMemoryArgs,
    /// Another program or crate, to be measured in turns with the first
    #[arg(value_name = "OTHER")]
    pub other: Option<PathBuf>,
    /// Compile OTHER, or the same program once more, for this device profile
    #[arg(long, value_name = "DEVICE")]
    pub other_device: Option<String>,
    /// Where to write the outputs of the first run: out.N
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub output: Option<PathBuf>,
    /// Runs that are timed
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Time steps by themselves, too, and print the N longest beside the least that they can take; 0: only whole runs
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: u32,
    #[command(flatten)]
    /// Samples.
    pub sampling: SamplingArgs,
    /// Record the program so often, with barriers between: times are those of one repetition
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub chain: u32,
    /// Record each dispatch so often between the same barriers: times are those of one copy
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub side_by_side: u32,
    /// Time as many runs as each number on standard input says, and print them as a line of JSON
    #[arg(long)]
    pub serve: bool,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// How samples are taken.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Discard samples beside which a fixed load takes so much more or less than it mostly does: the clock was off
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub slack: f64,
    /// Milliseconds of that load before everything, for the clocks to rise
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub warmup: u64,
}

/// `jvc tune`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("task").required(true).args(["output", "check"])))]
pub struct TuneArgs {
    /// Exported programs whose products, convolutions and attentions are measured; with --check, those that the table should serve
    #[arg(value_name = "PROGRAM", required_unless_present = "check")]
    pub programs: Vec<PathBuf>,
    #[command(flatten)]
    /// Options of the compilation.
    pub compile: CompileOptions,
    #[command(flatten)]
    /// Device.
    pub device: DeviceArgs,
    /// Where to write the profile with its table
    #[arg(short, long, value_name = "FILE.toml", requires = "programs")]
    pub output: Option<PathBuf>,
    /// Measure nothing: say where the table of --device and the cost model disagree by more than 20 %, and exit with 1 if choices do
    #[arg(long)]
    pub check: bool,
    /// Candidates of each piece of work, at most: those that the cost model likes best
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..))]
    pub most: u32,
    /// Samples of each candidate
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Runs of a sample
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Candidates count as equally fast within so much of the fastest: the cost model chooses among them
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    pub tie: f64,
    #[command(flatten)]
    /// Samples.
    pub sampling: SamplingArgs,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What a measured process finds from the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum CacheArg {
    /// Nothing: the first start ever. It writes caches, as the first start does.
    None,
    /// The driver's cache of compiled kernels (NVIDIA's and Mesa's), and none of ours.
    Driver,
    /// The crate's own cache, and none of the driver's.
    Own,
    /// Binaries of each kernel (VK_KHR_pipeline_binary), kept by an application that owns the device, and none of the caches above. Left out
    /// where the driver hands out none.
    Binaries,
}

impl CacheArg {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CacheArg::None => "none",
            CacheArg::Driver => "driver",
            CacheArg::Own => "own",
            CacheArg::Binaries => "binaries",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            CacheArg::None => "first ever",
            CacheArg::Driver => "driver's cache",
            CacheArg::Own => "own cache",
            CacheArg::Binaries => "binaries",
        }
    }
}

/// `jvc coldstart`.
#[derive(Debug, Args)]
pub struct ColdstartArgs {
    /// Exported program, or the folder of a crate that `jvc compile` wrote with its weights
    #[arg(value_name = "PROGRAM|CRATE")]
    pub program: PathBuf,
    #[command(flatten)]
    /// Options of the compilation.
    pub compile: CompileOptions,
    #[command(flatten)]
    /// Device.
    pub device: DeviceArgs,
    /// Which caches the processes find; several with commas between
    #[arg(
        long = "cache",
        value_enum,
        value_name = "CACHE",
        value_delimiter = ',',
        default_value = "none,driver,own,binaries"
    )]
    pub caches: Vec<CacheArg>,
    /// Processes for each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Exit with 1 if the median of any of them takes longer to its first result
    #[arg(long, value_name = "MS")]
    pub budget_ms: Option<f64>,
    /// Start the processes by this program, which gets their command line as arguments
    #[arg(long, value_name = "PROGRAM")]
    pub runner: Option<PathBuf>,
    /// Output form
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// A process that `jvc coldstart` starts.
#[derive(Debug, Args)]
pub struct ColdstartProcessArgs {
    /// Folder of the crate
    pub folder: PathBuf,
    /// As of `coldstart`
    #[arg(long)]
    pub gpu: Option<String>,
    /// Folder of the pipeline cache [default: no cache]
    #[arg(long, value_name = "DIR")]
    pub pipelines: Option<PathBuf>,
    /// Keep the driver's binaries in that folder, and not the data of Vulkan's pipeline cache
    #[arg(long, requires = "pipelines")]
    pub binaries: bool,
}
