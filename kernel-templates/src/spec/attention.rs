//! Attention, and where its parts are kept.

use super::{Extent, Interface, Store};
use crate::dtype::DType;
use crate::expr::{ExprId, Exprs};

/// Flash attention: `out[b,i,:] = softmax_j(score(q[b,i]·k[b,j])) · v[b,j,:]`, keys streamed, softmax in f32.
///
/// Axes: 0 batch (heads included), 1 query i, 2 key j, 3 channel e. `query` uses 0, 1, 3; `key` and `value` 0, 2, 3; `score` uses
/// 0, 1, 2 and `Arg(0)`, the dot product (scale, bias, masks by −∞); stores use 0, 1, 3 and `Arg(0)`, the output element.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttentionSpec {
    /// Operands.
    pub interface: Interface,
    /// Arena of all expressions.
    pub exprs: Exprs,
    /// Batch × heads.
    pub batch: Extent,
    /// Queries.
    pub queries: Extent,
    /// Keys.
    pub keys: Extent,
    /// Channels of query and key.
    pub qk_dim: u32,
    /// Channels of value and output.
    pub v_dim: u32,
    /// Query element, f32.
    pub query: ExprId,
    /// Key element, f32.
    pub key: ExprId,
    /// Value element, f32.
    pub value: ExprId,
    /// Final score, f32.
    pub score: ExprId,
    /// The score is −∞ wherever the key comes after the query: such keys need not be looked at.
    pub causal: bool,
    /// A row whose scores are all −∞ gives 0 (PyTorch's scaled_dot_product_attention) instead of NaN (explicit softmax).
    pub zero_masked_rows: bool,
    /// What is written per (b, i, e).
    pub stores: Vec<Store>,
    /// How queries and keys are shared out.
    pub staging: AttentionStaging,
    /// Invocations of a workgroup.
    pub wg: u32,
}

/// Keys cut into parts, each query and part a workgroup's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyParts {
    /// Parts, whatever the number of keys; some may have none.
    pub count: u32,
    /// Keys of a part: `count · len` are at least all.
    pub len: u32,
}

/// How an attention kernel shares out queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttentionStaging {
    /// A query in the registers of an invocation (or of several), keys one after another: CPU drivers, and heads of any size.
    Stream {
        /// Keys of a block held in shared memory; 0: each invocation streams keys alone (CPU drivers).
        block_keys: u32,
        /// Invocations that share a query, each with its part of every block: a divisor of `block_keys` and `wg`. 1 without blocks.
        lanes: u32,
    },
    /// Both products on cooperative matrices (KHR), the softmax between them on their components. Elements of query, key and value must be
    /// exact in the fragment's type ([`crate::is_exact_in`]); probabilities are rounded to it.
    Coop(CoopAttention),
    /// Register tiles of scores and outputs, operands in shared memory, all in f32.
    Tiled(TiledAttention),
    /// Results of parts of the keys, to be combined by another kernel. Stores use axis 2, too, as the number of the part, and one more channel
    /// than `v_dim`: `Arg(0)` there is the logarithm of the sum of the part's exp(score), −∞ where no key is visible (the others are 0
    /// then). Not for causal scores; `zero_masked_rows` is for who combines.
    Parts(KeyParts),
}

/// Parameters of attention in register tiles: an invocation has `rows` queries, with `cols` keys of each block and its part of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TiledAttention {
    /// Queries of an invocation: the workgroup has `wg / across · rows`.
    pub rows: u32,
    /// Keys of an invocation in a block of `across · cols` keys, which is a multiple of 4.
    pub cols: u32,
    /// Invocations that share queries, a divisor of `wg`.
    pub across: u32,
    /// Turns of the inner loops that are laid out, where their number divides all of them.
    pub unroll: u32,
}

/// How components of a sum become a left operand, of which a lane has as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Left {
    /// Through shared memory: right on every driver.
    Memory,
    /// As they are. The kernel sees for itself whether a lane has the same elements of both; where it has not, each output is computed alone:
    /// slow, and right on every driver.
    Components,
    /// As `Components` where they differ: for tests of the slow way.
    Differing,
}

/// Parameters of attention on cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoopAttention {
    /// Fragment sizes (m, n, k) from the device profile, with n = k; a lane has m·n / subgroup elements of a sum.
    pub frag: (u32, u32, u32),
    /// Fragment element type: F16 or BF16.
    pub elem: DType,
    /// Invocations of a subgroup; the pipeline demands it, and full subgroups.
    pub subgroup: u32,
    /// Subgroups of a workgroup; `wg` is their count times `subgroup`.
    pub warps: u32,
    /// Fragments of queries that a subgroup has: the workgroup has `warps · rows · m` queries.
    pub rows: u32,
    /// Keys of a block in shared memory, a multiple of the fragment's.
    pub block_keys: u32,
    /// How probabilities become a left operand.
    pub left: Left,
    /// Bits of the number of a component of a sum that move its row; those alike in them have one row, and keep one base and one sum. All bits:
    /// nothing is known. The kernel looks whether it is so where it looks at `left`.
    pub row_bits: u32,
    /// The next block is loaded to registers before the present one is used.
    pub ahead: bool,
}
