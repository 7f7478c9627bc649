//! How large a file may be before it is refused: bounds on time and memory that a hostile file can cost. Each is far above any
//! real model.

/// One bound per thing that is counted.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Entries of a ZIP archive.
    pub entries: u64,
    /// Bytes of an entry's or value's name.
    pub name_bytes: u64,
    /// Bytes of one JSON text, after decompression.
    pub json_bytes: u64,
    /// Values in one JSON text.
    pub json_values: u64,
    /// Nesting of one JSON text (sub-graphs nest, too).
    pub json_depth: u64,
    /// Bytes that may come out of decompression in one archive, those inside it included; torch itself stores everything.
    pub inflated_bytes: u64,
    /// Of these, bytes per byte of the file, above a floor of 64 MiB.
    pub inflation: u64,
    /// Nodes in a program, sub-graphs included.
    pub nodes: u64,
    /// Tensors in a program, sub-graphs included.
    pub values: u64,
    /// Elements in one list argument.
    pub list: u64,
    /// Dimensions of a tensor (PyTorch's own limit).
    pub rank: u64,
    /// Elements of a tensor, at literal sizes.
    pub elems: u64,
    /// Bytes of a size expression.
    pub expr_bytes: u64,
    /// Nesting of a size expression.
    pub expr_depth: u64,
    /// Terms of a size expression after multiplying out.
    pub expr_terms: u64,
    /// Bytes of a pickled state dictionary (without the storages).
    pub pickle_bytes: u64,
    /// Tensors of a checkpoint.
    pub weights: u64,
    /// Bytes that a view may address per byte of its storage (expanded tensors), above a floor of 64 MiB.
    pub expansion: u64,
    /// Bytes of all tensors of a checkpoint per byte of the file (views of one storage count each), above a floor of 1 GiB.
    pub view_bytes: u64,
    /// Bytes of weights that are made up where a program comes without.
    pub made_up_bytes: u64,
}

/// The bounds that [`super::read`] applies.
pub const LIMITS: Limits = Limits {
    entries: 1 << 20,
    name_bytes: 4096,
    json_bytes: 256 << 20,
    json_values: 1 << 25,
    json_depth: 100,
    inflated_bytes: 2 << 30,
    inflation: 64,
    nodes: 1 << 20,
    values: 1 << 22,
    list: 1 << 20,
    rank: 64,
    elems: 1 << 48,
    expr_bytes: 1 << 14,
    expr_depth: 48,
    expr_terms: 256,
    pickle_bytes: 256 << 20,
    weights: 1 << 20,
    expansion: 1024,
    view_bytes: 16,
    made_up_bytes: 64 << 30,
};
