//! The plan: a fully resolved program, the last waist before files. Plain data, filled in by the compiler, turned into a crate by
//! [`crate::generate`], and run directly by `jvc run`.
//!
//! Meaning: an entry point is a list of steps in order. A dispatch reads and writes byte ranges of buffers; a barrier makes all writes
//! before it visible to all reads and writes (and indirect arguments) after it. Nothing else orders two dispatches.

mod parse;
mod print;
mod scan;
mod simplify;
mod size;
mod verify;
mod walk;

pub use parse::{FindKernel, KernelFile, Outline, Pinned};
pub use print::DisplaySize;
pub use scan::ParseError;
pub use size::SizeError;
pub use verify::{ALIGNMENT, Fault, PlanError};

/// A whole program: entry points over shared kernels and weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Crate and type name, snake case.
    pub name: String,
    /// Canonical device name that the tiles were chosen for.
    pub device: String,
    /// What the device must offer.
    pub requirements: Requirements,
    /// Distinct kernels, in order of first use.
    pub kernels: Vec<PlanKernel>,
    /// The weight file.
    pub weights: Weights,
    /// Entry points.
    pub entries: Vec<Entry>,
    /// Why things are as they are: one line each, for `decisions.txt`.
    pub decisions: Vec<String>,
}

/// Limits and features, checked when a device is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    /// 8-bit storage and arithmetic.
    pub int8: bool,
    /// 16-bit integer storage and arithmetic.
    pub int16: bool,
    /// 16-bit float storage and arithmetic.
    pub float16: bool,
    /// 64-bit integers.
    pub int64: bool,
    /// 64-bit floats.
    pub float64: bool,
    /// KHR cooperative matrices; the (m, n, k, elem) fragments used.
    pub cooperative: Vec<(u32, u32, u32, Elem)>,
    /// Subgroup size that some kernel assumes; 0 for none.
    pub subgroup: u32,
    /// Largest workgroup.
    pub max_workgroup: u32,
    /// Largest shared memory of a workgroup.
    pub shared_bytes: u32,
    /// Largest push-constant block.
    pub push_bytes: u32,
    /// Largest single allocation.
    pub max_allocation_bytes: u64,
}

/// Element types of public signatures and of the weight file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Elem {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl Elem {
    /// Every element type, in declaration order.
    pub const ALL: [Elem; 10] =
        [Elem::Bool, Elem::U8, Elem::I8, Elem::I16, Elem::I32, Elem::I64, Elem::F16, Elem::BF16, Elem::F32, Elem::F64];

    /// Bytes of one element in its own width.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Elem::Bool | Elem::U8 | Elem::I8 => 1,
            Elem::I16 | Elem::F16 | Elem::BF16 => 2,
            Elem::I32 | Elem::F32 => 4,
            Elem::I64 | Elem::F64 => 8,
        }
    }

    /// The word of the text form (`f32`, `bf16`, …).
    pub const fn name(self) -> &'static str {
        match self {
            Elem::Bool => "bool",
            Elem::U8 => "u8",
            Elem::I8 => "i8",
            Elem::I16 => "i16",
            Elem::I32 => "i32",
            Elem::I64 => "i64",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
        }
    }
}

/// One pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanKernel {
    /// File-name form of its spec, unique and stable: an unrelated change elsewhere in the model does not rename it.
    pub name: String,
    /// The spec's one-line text form.
    pub spec: String,
    /// SPIR-V.
    pub words: Vec<u32>,
    /// Disassembly, for review.
    pub disassembly: String,
    /// Number of base addresses in its push constants.
    pub n_bases: u8,
    /// Per operand of its push constants, the base that its offset is relative to (or whose table it indexes).
    pub operand_bases: Vec<u8>,
    /// Subgroup size that must be forced at pipeline creation; 0 for none.
    pub subgroup: u32,
}

/// Layout of the weight file: tensors at offsets in chunks, each chunk one allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Weights {
    /// Bytes of each chunk.
    pub chunk_bytes: Vec<u64>,
    /// Tensors, by chunk and offset.
    pub tensors: Vec<WeightTensor>,
    /// Hash of the file's payload ([`jvc_files::content_hash`]); 0 when there is no weight.
    pub content_hash: u64,
}

/// One tensor of the weight file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightTensor {
    /// Name in the checkpoint, with a suffix for a packed form.
    pub name: String,
    /// Element type as stored.
    pub elem: Elem,
    /// Shape as stored.
    pub shape: Vec<u64>,
    /// Chunk.
    pub chunk: u32,
    /// Byte offset in the chunk, a multiple of 256.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A size: a number or a formula over the entry's symbols.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// A literal.
    Const(i64),
    /// Symbol by index in [`Entry::symbols`].
    Symbol(u16),
    /// Sum.
    Add(Vec<Size>),
    /// Product.
    Mul(Vec<Size>),
    /// Floor division.
    FloorDiv(Box<Size>, Box<Size>),
    /// Remainder of floor division.
    Mod(Box<Size>, Box<Size>),
    /// Larger.
    Max(Box<Size>, Box<Size>),
    /// Smaller.
    Min(Box<Size>, Box<Size>),
}

/// A symbolic size: the caller chooses it by the shapes (or integers) that it passes, or the device finds it in the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name in the export (`s77`).
    pub name: String,
    /// Smallest value.
    pub min: i64,
    /// Largest value; the arena is planned for it.
    pub max: i64,
    /// Of a size that the data decide: the word of the table in which a step leaves the value that it has found, whatever it is. Sizes
    /// and group counts that depend on it are computed from the nearest value in range. Before the run its value is `max`.
    pub found: Option<u16>,
}

/// A tensor (or integer) that crosses the public interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Rust-safe name.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Each element takes a 32-bit word on the device (see `Storage::Word` of the kernels).
    pub word_storage: bool,
    /// Shape; contiguous row-major.
    pub shape: Vec<Size>,
    /// Bytes on the device at the symbols' upper bounds.
    pub max_bytes: u64,
    /// What it is.
    pub kind: PortKind,
}

/// Where a port's bytes live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortKind {
    /// Slot of the I/O table.
    Io(u32),
    /// A Python integer of the program: it is this symbol, and has no buffer.
    Symbol(u16),
}

/// Persistent state of a session: mutated buffers. Lives in its own allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Name in the checkpoint.
    pub name: String,
    /// Byte offset in the state buffer, a multiple of 256.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Weight that it starts from, by index in [`Weights::tensors`]; zeros if none.
    pub init: Option<u32>,
}

/// One entry point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// Function name.
    pub name: String,
    /// Symbols, by index.
    pub symbols: Vec<Symbol>,
    /// Inputs in the caller's order.
    pub inputs: Vec<Port>,
    /// Outputs in the caller's order. An output that is an input or a weight unchanged is written by a copy step all the same.
    pub outputs: Vec<Port>,
    /// Bytes of the slot's arena chunks.
    pub arena_bytes: Vec<u64>,
    /// Lower bound of the arena: most bytes live at one step.
    pub live_bytes: u64,
    /// Tensors in the arena, for `memory.txt` and the verifier.
    pub buffers: Vec<ArenaBuffer>,
    /// Persistent state.
    pub states: Vec<State>,
    /// Words of the symbol table, each a u32 computed on the host: sizes first, then triples of workgroup counts.
    pub table: Vec<Size>,
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// A range of the arena with a lifetime. Two buffers that live together are disjoint, with one exception: the last step of the
/// one may be the first step of the other when that step works in place, on exactly the bytes of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// Name of the value (its node in the export).
    pub name: String,
    /// Arena chunk.
    pub chunk: u32,
    /// Byte offset, a multiple of 256.
    pub offset: u64,
    /// Bytes at the symbols' upper bounds.
    pub bytes: u64,
    /// First and last step (index in [`Entry::steps`]) that touches it.
    pub live: (u32, u32),
}

/// A region of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Arena chunk of the slot.
    Arena(u32),
    /// Weight chunk.
    Weights(u32),
    /// Buffer bound to a slot of the I/O table.
    Io(u32),
    /// State buffer of the session.
    State,
    /// The slot's symbol table.
    Symbols,
}

/// Address that a push-constant base holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Base {
    /// Start of an arena chunk.
    Arena(u32),
    /// Start of a weight chunk.
    Weights(u32),
    /// The slot's I/O table.
    IoTable,
    /// The state buffer.
    State,
    /// The slot's symbol table.
    Symbols,
}

/// Bytes that a step touches: `offset .. offset + bytes` of a region, at the symbols' upper bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    /// Where.
    pub region: Region,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// One command of a recording.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Memory barrier between all dispatches before and all after it; see [`Entry::orders_groups`].
    Barrier,
}

/// One kernel run.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// Index in [`Plan::kernels`].
    pub kernel: u32,
    /// Base addresses, as many as the kernel has.
    pub bases: Vec<Base>,
    /// Per operand: offset from its base in units of 16 bytes, or slot of the I/O table.
    pub offsets: Vec<u32>,
    /// Workgroups.
    pub groups: Groups,
    /// Ranges read, by operand order. A table grid's three words need not be named: they are always read.
    pub reads: Vec<ByteRange>,
    /// Ranges that may be written, also several of one operand. Where a kernel works in place, the range read and the range written are the same one: every other
    /// overlap within a dispatch would be a race.
    pub writes: Vec<ByteRange>,
    /// Name of the main value that it computes.
    pub label: String,
    /// ATen nodes, module path and Python line that it stands for.
    pub origin: Vec<String>,
    /// Floating-point operations and bytes moved, predicted, at the upper bounds.
    pub cost: Cost,
}

/// Workgroup counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// Known at compile time.
    Fixed([u32; 3]),
    /// Three words of the symbol table, from this word on.
    Table(u16),
}

/// Predicted work of a dispatch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}
