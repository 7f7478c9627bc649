//! What a kernel is asked to be: typed parameters per template, over one interface and one arena of expressions.
//!
//! Every template is a loop nest with holes. The holes are expressions: how an input element is found and prepared
//! (access map and prologue), and what is stored where (epilogue and store map). So movement, casts, activations, masks and
//! residuals cost no template of their own. The numbering of `Axis` and `Arg` is part of each template's contract below.

mod attention;
mod built;
mod coop;
mod spread;

pub use attention::{AttentionSpec, AttentionStaging, CoopAttention, KeyParts, Left, TiledAttention};
pub use built::*;
pub use coop::{Coop, Fill};
pub use spread::Spread;

use crate::dtype::{DType, Storage, Ty};
use crate::expr::{Expr, ExprId, Exprs};

/// A size known to the compiler, or a word of the symbol table read at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Extent {
    /// A literal, baked into the kernel.
    Const(u32),
    /// Word of the symbol table.
    Sym(u16),
}

/// What a kernel does with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// Only loads.
    Read,
    /// Only stores.
    Write,
    /// Both.
    ReadWrite,
}

/// One buffer range that a kernel uses.
///
/// The address is formed from push constants: `bases[base]` (a 64-bit address) plus the operand's 32-bit offset in units of
/// 16 bytes. With `via_table`, `bases[base]` is the address of the slot's I/O table and the operand's offset word is an
/// index into that table of 64-bit addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// How elements lie in memory.
    pub storage: Storage,
    /// Loads, stores or both.
    pub access: Access,
    /// Index of the base address.
    pub base: u8,
    /// The base is a table of addresses.
    pub via_table: bool,
}

/// The operands of a kernel and the shape of its push constants.
///
/// Push-constant block: `n_bases` addresses of 8 bytes (as uvec2), then one u32 per operand. When the kernel reads symbols,
/// the *last* base is the address of the slot's symbol table (u32 words).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface {
    /// Buffers, in the order of `Expr::Load::operand` and `Store::operand`.
    pub operands: Vec<Operand>,
    /// Number of base addresses, the symbol table's included.
    pub n_bases: u8,
    /// True when some extent or expression reads the symbol table.
    pub symbols: bool,
}

impl Interface {
    /// Bytes of the push-constant block.
    pub fn push_bytes(&self) -> u32 {
        u32::from(self.n_bases) * 8 + self.operands.len() as u32 * 4
    }
}

/// One element written: `operand[index] = value`, when `guard` (if any) holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Store {
    /// Position in the operand list.
    pub operand: u16,
    /// Linear element index, i32.
    pub index: ExprId,
    /// Value, of the operand's register type; rounded to its element type by the store.
    pub value: ExprId,
    /// Bool; nothing is written where it is false.
    pub guard: Option<ExprId>,
}

/// How partial results are combined. Every order of combination must give the same bytes in repeated runs: templates fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Combine {
    /// Sum, from 0.
    Sum,
    /// Product, from 1.
    Prod,
    /// Maximum, from −∞ (or the smallest integer); NaN wins.
    Max,
    /// Minimum, from +∞ (or the largest integer); NaN wins.
    Min,
    /// Logical or, from false.
    Any,
    /// Logical and, from true.
    All,
    /// Linear position (i32) within the inner axes of the first maximum; the first NaN counts as maximum.
    ArgMax,
    /// Linear position (i32) of the first minimum; the first NaN counts as minimum.
    ArgMin,
}

/// `for axes in domain: stores`. `Axis(k)` is coordinate k of the domain, row-major, one invocation per element
/// (`per_thread` consecutive elements of the last axis each).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Iteration space.
    pub domain: Vec<Extent>,
    /// What is written per element.
    pub stores: Vec<Store>,
    /// Elements of the linear domain that one invocation handles.
    pub per_thread: u32,
    /// Invocations of a workgroup.
    pub wg: u32,
    /// Loads along another axis than the last pass through shared memory.
    pub turned: Option<Turned>,
}

/// Tiles of a map, of `side` by `side` positions along an axis and the last one, both of literal size: an invocation has `per_thread` of the
/// positions, and `wg · per_thread` are all. Loads that follow one another along the axis, but not along the last, are made by neighbours along
/// the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turned {
    /// Not the last one.
    pub axis: u8,
    /// Divides `wg`.
    pub side: u32,
}

/// One reduction over the inner axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stage {
    /// How values are combined.
    pub combine: Combine,
    /// Value per inner coordinate; may use `Arg(i)` for the result of an earlier stage i.
    pub value: ExprId,
}

/// Rows: `for outer: { s0 = reduce(inner); s1 = reduce(inner, using s0); …; stores }`. Softmax, norms, sums, argmax, sort by rank.
///
/// Axes: `Axis(0..outer.len())` then the inner axes. `Arg(i)` is the result of stage i (i32 for ArgMax/ArgMin, else the
/// value's type). `row_stores` are written once a row (no inner axes), `element_stores` once per inner coordinate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowSpec {
    /// Operands, those of one copy after those of another.
    pub interface: Interface,
    /// How often all of it is done, by other workgroups on other operands: expressions name those of the first copy. At least 1.
    pub copies: u32,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// One row per coordinate.
    pub outer: Vec<Extent>,
    /// The axes reduced.
    pub inner: Vec<Extent>,
    /// Reductions, in order.
    pub stages: Vec<Stage>,
    /// Written once a row.
    pub row_stores: Vec<Store>,
    /// Written once per inner coordinate, after all stages.
    pub element_stores: Vec<Store>,
    /// Invocations that share a row: 1 (each loops alone, no shared memory) or a power of two up to `wg`.
    pub threads_per_row: u32,
    /// Invocations of a workgroup.
    pub wg: u32,
}

impl RowSpec {
    /// Operands of each copy.
    pub fn operands_of_a_copy(&self) -> u16 {
        (self.interface.operands.len() / self.copies.max(1) as usize) as u16
    }
}

/// Where a matmul keeps the operands of its inner loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Staging {
    /// Each invocation computes `rows` × `cols` outputs from loads alone: best on CPU drivers and for tiny or thin problems.
    Registers {
        /// Outputs along m.
        rows: u32,
        /// Outputs along n.
        cols: u32,
    },
    /// Tiles of both operands in shared memory; each invocation computes `rows` × `cols`.
    Shared {
        /// Tile along m.
        bm: u32,
        /// Tile along n.
        bn: u32,
        /// Tile along k.
        bk: u32,
        /// Outputs of an invocation along m.
        rows: u32,
        /// Outputs of an invocation along n.
        cols: u32,
        /// Tiles in shared memory: 1, or 2 in turn, which saves a barrier per tile.
        buffers: u32,
    },
    /// Cooperative matrices (KHR), staged through shared memory; f16 or bf16 operands, f32 accumulators. Both elements must be exact in
    /// the fragment's type ([`crate::is_exact_in`]): nothing is rounded on the way into a fragment.
    Coop(Coop),
    /// One row of workgroup-wide dot products: for m ≤ 8.
    Gemv {
        /// Invocations that share one dot product, a power of two.
        threads_per_dot: u32,
        /// Columns that they compute side by side.
        cols: u32,
    },
}

/// `acc[b,m,n] = Σ_k lhs(b,m,k)·rhs(b,n,k)`, then stores. Matrix products, and convolutions by their access maps.
///
/// Axes: 0 batch, 1 m, 2 n, 3… the k axes. `lhs` uses 0, 1, 3…; `rhs` 0, 2, 3…; stores use 0, 1, 2 and `Arg(0)`, the sum (f32,
/// or f64 for f64, i32/i64 for integers). Outputs beyond m or n are neither computed nor stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatmulSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Batch count.
    pub batch: Extent,
    /// Rows.
    pub m: Extent,
    /// Columns.
    pub n: Extent,
    /// Summed axes, row-major.
    pub k: Vec<Extent>,
    /// Left element, of type `acc`.
    pub lhs: ExprId,
    /// Right element, of type `acc`.
    pub rhs: ExprId,
    /// Accumulator type.
    pub acc: Ty,
    /// What is written per (b, m, n).
    pub stores: Vec<Store>,
    /// Inner-loop shape.
    pub staging: Staging,
    /// Invocations of a workgroup.
    pub wg: u32,
}

/// Cell of a recurrent layer, with PyTorch's gate order (LSTM i f g o; GRU r z n, `n = tanh(x_n + r·(W_hn h + b_hn))`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cell {
    /// Long short-term memory.
    Lstm,
    /// Gated recurrent unit.
    Gru,
    /// Elman cell with tanh.
    RnnTanh,
    /// Elman cell with relu.
    RnnRelu,
}

/// One direction of one recurrent layer: one workgroup per batch element loops over time, state in shared memory.
///
/// Axes: 0 time (in the order of the input, also when reversed), 1 batch, 2 unit (`gates·hidden` for projections, `hidden` for states),
/// 3 the summed hidden unit. `input` uses 0, 1, 2: the input projection, input bias included; `weight` uses 2 (gate row), 3;
/// `bias` uses 2; `h0`, `c0` use 1, 2. `step_stores` use 0, 1, 2 and `Arg(0)` = h; `final_stores` use 1, 2 and `Arg(0)` = h, `Arg(1)` = c.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecurrentSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Kind of cell.
    pub cell: Cell,
    /// Time steps.
    pub steps: Extent,
    /// Batch.
    pub batch: Extent,
    /// Units.
    pub hidden: u32,
    /// Runs from the last step to the first.
    pub reverse: bool,
    /// Input projection element, f32.
    pub input: ExprId,
    /// Recurrent weight element, f32.
    pub weight: ExprId,
    /// Recurrent bias element, f32; none is zero.
    pub bias: Option<ExprId>,
    /// Initial hidden state, f32.
    pub h0: ExprId,
    /// Initial cell state, f32 (LSTM).
    pub c0: Option<ExprId>,
    /// Written at each step.
    pub step_stores: Vec<Store>,
    /// Written after the last step.
    pub final_stores: Vec<Store>,
    /// Invocations of a workgroup.
    pub wg: u32,
}

/// Cumulative operation along one axis: `acc = combine(acc, value)`, stored at each position.
///
/// Axes: the outer ones, then the scanned one. `Arg(0)` in stores is the running result. For `Max`/`Min`, `Arg(1)` is the
/// position (i32) of the last element that equals it (PyTorch's cummax indices).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScanSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Independent lines.
    pub outer: Vec<Extent>,
    /// Length of a line.
    pub len: Extent,
    /// Sum, Prod, Max or Min.
    pub combine: Combine,
    /// Value per position.
    pub value: ExprId,
    /// Written per position.
    pub stores: Vec<Store>,
    /// Invocations that share a line: 1 (each loops alone, no shared memory) or a power of two up to `wg`.
    pub threads_per_line: u32,
    /// Invocations of a workgroup.
    pub wg: u32,
}

/// Stable sort along one axis, a workgroup a line: NaN is the largest, equal values keep their order. Only the first `kept` places are stored.
///
/// Axes: the outer ones, then the sorted one, which is the source's position in `value` and the sorted place in stores. `Arg(0)` in stores
/// is the value at that place, `Arg(1)` the position (i32) that it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SortSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Independent lines.
    pub outer: Vec<Extent>,
    /// Length of a line.
    pub len: Extent,
    /// Places that are stored, at most `len`.
    pub kept: Extent,
    /// Elements that shared memory holds: a power of two, at least `len` and twice `wg`. Of places that are chosen: `kept` times the most
    /// elements of an invocation.
    pub capacity: u32,
    /// The places are chosen, the others left unsorted: `kept` is a literal, at most `wg`.
    pub chosen: bool,
    /// Largest first.
    pub descending: bool,
    /// Value per position: any type but f64.
    pub value: ExprId,
    /// Written per place.
    pub stores: Vec<Store>,
    /// Invocations of a workgroup, a power of two, at least 4.
    pub wg: u32,
}

/// How a scattered element meets what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScatterMode {
    /// The last one written stays.
    Set,
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Larger.
    Max,
    /// Smaller.
    Min,
}

/// Deterministic scatter into a buffer that already holds its base: parallel over `outer` (whose lines never write the same
/// element), serial over `inner` in row-major order: `target[index] = mode(target[index], value)` where `guard` holds.
///
/// Axes: the outer ones, then the inner ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScatterSpec {
    /// Operands; the store's operand is `ReadWrite`.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Independent lines.
    pub outer: Vec<Extent>,
    /// Serial axes.
    pub inner: Vec<Extent>,
    /// Combination.
    pub mode: ScatterMode,
    /// Target, index, value and guard.
    pub store: Store,
    /// Invocations of a workgroup; one a line.
    pub wg: u32,
}

/// A batch of complex discrete Fourier transforms of one length in shared memory (Stockham, radix 2/3/4/5 and generic primes).
///
/// Axes: 0 batch, 1 position. `re`, `im` give the input at (0, 1); stores are written per (0, 1) with `Arg(0)` = re, `Arg(1)` = im of
/// the unnormalised transform `Σ_j x_j exp(±2πi·jk/n)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FftSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Number of transforms.
    pub batch: Extent,
    /// Length.
    pub n: u32,
    /// Positive exponent.
    pub inverse: bool,
    /// Real part, f32.
    pub re: ExprId,
    /// Imaginary part, f32.
    pub im: ExprId,
    /// Written per output position.
    pub stores: Vec<Store>,
    /// Invocations of a workgroup.
    pub wg: u32,
}

/// Any kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelSpec {
    /// Elementwise and movement.
    Map(MapSpec),
    /// Reductions and normalisations.
    Row(RowSpec),
    /// Matrix products and convolutions.
    Matmul(MatmulSpec),
    /// Flash attention.
    Attention(AttentionSpec),
    /// LSTM, GRU, RNN.
    Recurrent(RecurrentSpec),
    /// Cumulative sums and the like.
    Scan(ScanSpec),
    /// Scatter.
    Scatter(ScatterSpec),
    /// Sort of lines in shared memory.
    Sort(SortSpec),
    /// Fourier transform.
    Fft(FftSpec),
}

/// What every kind of kernel has.
impl KernelSpec {
    /// Operands and push constants.
    pub fn interface(&self) -> &Interface {
        match self {
            KernelSpec::Map(s) => &s.interface,
            KernelSpec::Row(s) => &s.interface,
            KernelSpec::Matmul(s) => &s.interface,
            KernelSpec::Attention(s) => &s.interface,
            KernelSpec::Recurrent(s) => &s.interface,
            KernelSpec::Scan(s) => &s.interface,
            KernelSpec::Scatter(s) => &s.interface,
            KernelSpec::Sort(s) => &s.interface,
            KernelSpec::Fft(s) => &s.interface,
        }
    }

    /// As [`KernelSpec::interface`], to fill in bases.
    pub fn interface_mut(&mut self) -> &mut Interface {
        match self {
            KernelSpec::Map(s) => &mut s.interface,
            KernelSpec::Row(s) => &mut s.interface,
            KernelSpec::Matmul(s) => &mut s.interface,
            KernelSpec::Attention(s) => &mut s.interface,
            KernelSpec::Recurrent(s) => &mut s.interface,
            KernelSpec::Scan(s) => &mut s.interface,
            KernelSpec::Scatter(s) => &mut s.interface,
            KernelSpec::Sort(s) => &mut s.interface,
            KernelSpec::Fft(s) => &mut s.interface,
        }
    }

    /// Arena of all expressions.
    pub fn exprs(&self) -> &Exprs {
        match self {
            KernelSpec::Map(s) => &s.exprs,
            KernelSpec::Row(s) => &s.exprs,
            KernelSpec::Matmul(s) => &s.exprs,
            KernelSpec::Attention(s) => &s.exprs,
            KernelSpec::Recurrent(s) => &s.exprs,
            KernelSpec::Scan(s) => &s.exprs,
            KernelSpec::Scatter(s) => &s.exprs,
            KernelSpec::Sort(s) => &s.exprs,
            KernelSpec::Fft(s) => &s.exprs,
        }
    }

    /// Every extent of the iteration space.
    pub fn extents(&self) -> Vec<Extent> {
        match self {
            KernelSpec::Map(s) => s.domain.clone(),
            KernelSpec::Row(s) => [&s.outer[..], &s.inner].concat(),
            KernelSpec::Matmul(s) => [&[s.batch, s.m, s.n][..], &s.k].concat(),
            KernelSpec::Attention(s) => vec![s.batch, s.queries, s.keys],
            KernelSpec::Recurrent(s) => vec![s.steps, s.batch],
            KernelSpec::Scan(s) => [&s.outer[..], &[s.len]].concat(),
            KernelSpec::Scatter(s) => [&s.outer[..], &s.inner].concat(),
            KernelSpec::Sort(s) => [&s.outer[..], &[s.len, s.kept]].concat(),
            KernelSpec::Fft(s) => vec![s.batch],
        }
    }

    /// True when an extent or expression reads the symbol table.
    pub fn reads_symbols(&self) -> bool {
        let in_extents = self.extents().iter().any(|e| matches!(e, Extent::Sym(_)));
        in_extents || self.exprs().iter().any(|(_, e)| matches!(e, Expr::Sym(_)))
    }

    /// Invocations of a workgroup.
    pub fn workgroup(&self) -> u32 {
        match self {
            KernelSpec::Map(s) => s.wg,
            KernelSpec::Row(s) => s.wg,
            KernelSpec::Matmul(s) => s.wg,
            KernelSpec::Attention(s) => s.wg,
            KernelSpec::Recurrent(s) => s.wg,
            KernelSpec::Scan(s) => s.wg,
            KernelSpec::Scatter(s) => s.wg,
            KernelSpec::Sort(s) => s.wg,
            KernelSpec::Fft(s) => s.wg,
        }
    }

    /// The word for its template.
    pub fn template(&self) -> &'static str {
        match self {
            KernelSpec::Map(_) => "map",
            KernelSpec::Row(_) => "row",
            KernelSpec::Matmul(_) => "matmul",
            KernelSpec::Attention(_) => "attention",
            KernelSpec::Recurrent(_) => "recurrent",
            KernelSpec::Scan(_) => "scan",
            KernelSpec::Scatter(_) => "scatter",
            KernelSpec::Sort(_) => "sort",
            KernelSpec::Fft(_) => "fft",
        }
    }
}
