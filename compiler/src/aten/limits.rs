//! Values of attributes that rules refuse although PyTorch takes them: a part of `jvc ops`, and the code behind each such diagnostic. A
//! rule can refuse an attribute only by a code of this table; tests hold every entry to a call that it refuses.

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Stable code, shown with the diagnostic.
    pub code: &'static str,
    /// Operators that have it, with `*` for any characters.
    pub operators: &'static [&'static str],
    /// What is supported, or what is not.
    pub text: &'static str,
    /// A refused call in the form of `examples.txt`; empty where one call is no program (writes through views, sub-graphs).
    pub example: &'static str,
}

/// The table.
pub const LIMITS: &[Limit] = &[
    Limit {
        code: "aliased-write",
        operators: &["aten.*_.*", "aten.copy*", "aten.*"],
        text: "in-place writes into an expanded tensor, or into memory that is also seen through a view that computes, are refused",
        example: "",
    },
    Limit {
        code: "bincount-weights",
        operators: &["aten.bincount.default"],
        text: "weights must be None: torch.export records integers for what are sums of floats",
        example: "aten.bincount.default self=i64[6] weights=T[6] | f32 i64[u0]",
    },
    Limit {
        code: "bit-view",
        operators: &["aten.view.dtype"],
        text: "an element type of the same width, or of half or twice as many bits, and no other",
        example: "aten.view.dtype self=T[2,3] dtype=@i32 | f32 i32[2,3]",
    },
    Limit { code: "branch-operands", operators: &["higher_order.*"], text: "tensors and numbers", example: "" },
    Limit {
        code: "branch-writes",
        operators: &["higher_order.*"],
        text: "a branch or loop body may not write one of its operands in place",
        example: "",
    },
    Limit {
        code: "cov-weights",
        operators: &["aten.cov.default"],
        text: "fweights and aweights must be None",
        example: "aten.cov.default self=T[2,3] fweights=i64[3] | f32 T[2,2]",
    },
    Limit {
        code: "generator",
        operators: &[
            "aten.rand*",
            "aten.normal*",
            "aten.uniform*",
            "aten.bernoulli*",
            "aten.exponential*",
            "aten.*normal*",
        ],
        text: "no generator object: numbers are a function of the inputs rng_seed and rng_offset",
        example: "",
    },
    Limit {
        code: "lstm-projection",
        operators: &["aten.lstm.input"],
        text: "proj_size must be 0",
        example: "aten.lstm.input input=T[1,3,4] hx=(T[1,1,2],T[1,1,5]) params=(T[20,4],T[20,2],T[20],T[20],T[2,5]) has_biases=true num_layers=1 \
                  dropout=0.0 train=false bidirectional=false batch_first=true | f32 T[1,3,2] T[1,1,2] T[1,1,5]",
    },
    Limit {
        code: "mask-beside-indices",
        operators: &[
            "aten.index.Tensor",
            "aten.index_put.default",
            "aten._unsafe_index*",
            "aten._index_put_impl.default",
        ],
        text: "one mask alone, or any number of integer indices; a mask beside other indices is refused",
        example: "aten.index.Tensor self=T[3,4] indices=(bool[3],i64[2]) | f32 T[2]",
    },
    Limit {
        code: "matrix-order",
        operators: &["aten.linalg_matrix_norm*", "aten.linalg_norm*"],
        text: "fro, ±1 and ±inf: the others need singular values",
        example: "aten.linalg_matrix_norm.default self=T[2,2] ord=2 dim=[-2,-1] keepdim=false | f32 T[]",
    },
    Limit {
        code: "matrix-size",
        operators: &[
            "aten.linalg_inv*",
            "aten.inverse.default",
            "aten.*det.default",
            "aten.*linalg_solve*",
            "aten.*cholesky*",
            "aten.triangular_solve.default",
            "aten.matrix_power.default",
            "aten.linalg_matrix_power.default",
        ],
        text: "square matrices of at most 64 rows, in f32 and f64; singular ones give infinities and NaN (PyTorch: an error), factors and \
               pivots are no results",
        example: "aten.linalg_inv.default A=T[65,65] | f32 T[65,65]",
    },
    Limit {
        code: "order",
        operators: &[
            "aten.polygamma.default",
            "aten.special_polygamma.default",
            "aten.mvlgamma.default",
            "aten.special_multigammaln.default",
            "aten.multi_margin_loss.default",
        ],
        text: "polygamma: n = 0 to 8; mvlgamma: p = 1 to 64; multi_margin_loss: p = 1 and 2",
        example: "aten.polygamma.default n=9 self=T[2,3] | f32 T[2,3]",
    },
    Limit {
        code: "random-range",
        operators: &["aten.randint*", "aten.random.*"],
        text: "ranges of 1 to 2³¹ − 1 integers, with both ends given",
        example: "aten.random.from self=T[2,3] from=0 to=null | i64 T[2,3]",
    },
    Limit {
        code: "training",
        operators: &[
            "aten.lstm.input",
            "aten.gru.input",
            "aten.rnn_tanh.input",
            "aten.rnn_relu.input",
            "aten.*scaled_dot_product*",
            "aten.rrelu.default",
        ],
        text: "dropout and random slopes of training mode are refused: export the model after model.eval()",
        example: "aten.rrelu.default self=T[2,3] lower=0.1 upper=0.3 training=true | f32 T[2,3]",
    },
    Limit {
        code: "unique-dim",
        operators: &["aten.unique_consecutive.default"],
        text: "all elements in a row: dim must be None",
        example: "aten.unique_consecutive.default self=T[2,3] return_inverse=false return_counts=false dim=0 | f32 T[u0,3] i64[0] i64[0]",
    },
    Limit {
        code: "vander-powers",
        operators: &["aten.vander.default", "aten.linalg_vander.default"],
        text: "at most 64 powers",
        example: "aten.vander.default x=T[3] N=65 | f32 T[3,65]",
    },
    Limit {
        code: "zero-point-domain",
        operators: &["torchao.quantize_affine.default", "torchao.dequantize_affine.default"],
        text: "INT and NONE; dequantising also FLOAT of 8-bit values",
        example: "torchao.quantize_affine.default input=T[2,4] block_size=[1,4] scale=f32[2] zero_point=i8[2] output_dtype=@i8 quant_min=-128 quant_max=127 zero_point_domain=\"FLOAT\" | f32 i8[2,4]",
    },
];

/// Limits of an operator, beside those of sizes and element types. In-place writes are a matter of the program, not of one operator.
pub fn of(target: &str) -> impl Iterator<Item = &'static Limit> {
    LIMITS.iter().filter(move |l| l.code != "aliased-write" && applies(l, target))
}

/// True if the table says that the operator has the limit.
pub fn applies(limit: &Limit, target: &str) -> bool {
    limit.operators.iter().any(|p| super::left_out::matches(p, target))
}
