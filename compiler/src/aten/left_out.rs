//! What is left out on purpose, and why: the second half of `jvc ops`, and the help of the diagnostic for an operator without a rule.

/// Operators that have no rule for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// Names with `*` for any characters.
    pub patterns: &'static [&'static str],
    /// Why, and what to do instead.
    pub reason: &'static str,
}

/// The table. Operators of the aten namespace that are neither here nor in [`super::supported`] are not known to occur in inference.
pub const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        patterns: &["aten.*_backward.*", "aten.*_backward_*", "aten.*_jvp.*"],
        reason: "training only: export the model in eval mode, under torch.no_grad()",
    },
    LeftOut {
        patterns: &["aten.*_out", "aten.*.out", "aten.*.out_*", "aten.*.*_out"],
        reason: "writes into a tensor that the caller passes; exported programs call the functional form",
    },
    LeftOut {
        patterns: &[
            "aten.linalg_lu*",
            "aten.linalg_ldl*",
            "aten.lu_*",
            "aten._lu_*",
            "aten.linalg_qr*",
            "aten.qr.*",
            "aten.linalg_householder*",
            "aten.geqrf.*",
            "aten.ormqr.*",
            "aten.orgqr.*",
            "aten.linalg_svd*",
            "aten.svd.*",
            "aten._linalg_svd*",
            "aten.linalg_eig*",
            "aten._linalg_eig*",
            "aten._linalg_check_errors.*",
            "aten.linalg_lstsq*",
            "aten.linalg_pinv*",
            "aten.pinverse.*",
            "aten.linalg_cond.*",
            "aten.linalg_matrix_rank*",
            "aten.linalg_matrix_exp*",
            "aten.matrix_exp.*",
            "aten.nuclear_norm.*",
            "aten.linalg_tensor*",
        ],
        reason: "factorisations and singular values of matrices have no kernel (inverse, solve, det and cholesky of small ones have): compute \
                 the factor on the host and pass it as an input",
    },
    LeftOut {
        patterns: &["aten.*sparse*", "aten.to_dense.*", "aten._coalesce*", "aten.*_csr*", "aten.*_coo*"],
        reason: "sparse tensors have no storage here: convert to dense before the export",
    },
    LeftOut {
        patterns: &["aten.quantize_per_*", "aten.*fake_quant*", "aten.q_*", "aten.int_repr.*", "quantized.*"],
        reason: "the legacy quantised tensor types are not supported: quantise weights with torchao",
    },
    LeftOut {
        patterns: &[
            "quantized_decomposed.choose_qparams*",
            "quantized_decomposed.*per_token*",
            "quantized_decomposed.fake_quant*",
            "torchao.choose_*",
            "torchao.*fake_quant*",
        ],
        reason: "activations quantised by their own range at run time gain nothing here: products are computed in floats. Export the \
                 model with weight-only quantisation",
    },
    LeftOut {
        patterns: &[
            "aten.*int4pack*",
            "aten._dyn_quant*",
            "quantized_decomposed.embedding_*",
            "quantized_decomposed.*_mm.*",
            "torchao.*_mm*",
            "torchao.*pack*",
            "torchao.*float8*",
            "torchao.*gguf*",
            "torchao.*linear*",
        ],
        reason: "a kernel of one backend with its own packing: export before that backend's passes, with dequantize_affine or \
                 dequantize_per_channel and the plain operator behind it",
    },
    LeftOut {
        patterns: &["aten.*embedding_renorm*"],
        reason: "changes the embedding table while it reads it (max_norm): renormalise the table before the export",
    },
    LeftOut {
        patterns: &["export.access_subclass_inner_tensor.*"],
        reason: "the weight is a tensor subclass, which the archive holds as a pickled object: export after \
                 torchao.utils.unwrap_tensor_subclass(model), or save exported.run_decompositions()",
    },
    LeftOut {
        patterns: &[
            "aten.lstm.data",
            "aten.gru.data",
            "aten.rnn_tanh.data",
            "aten.rnn_relu.data",
            "aten._pack_padded_*",
        ],
        reason: "packed sequences have no storage here: export with batch-first padded tensors instead of pack_padded_sequence",
    },
    LeftOut {
        patterns: &["aten.equal.default", "aten.allclose.*", "aten.is_nonzero.*"],
        reason: "gives a Python bool that the data decide: keep the comparison a tensor (torch.eq, torch.isclose, all)",
    },
    LeftOut {
        patterns: &[
            "aten.special_airy_*",
            "aten.special_bessel_*",
            "aten.special_modified_bessel_k*",
            "aten.special_scaled_modified_bessel_*",
            "aten.special_*chebyshev_*",
            "aten.special_hermite_*",
            "aten.special_laguerre_*",
            "aten.special_legendre_*",
            "aten.special_zeta.*",
            "aten.igamma*",
            "aten.special_gammainc*",
        ],
        reason: "no inference graph is known to compute this special function: tabulate it, or spell it out with supported ones",
    },
    LeftOut {
        patterns: &[
            "aten.rrelu_with_noise*",
            "aten.poisson.*",
            "aten.binomial.*",
            "aten._standard_gamma*",
            "aten.geometric*",
            "aten.cauchy*",
        ],
        reason: "draws random numbers of a distribution that inference graphs do not use: export the model in eval mode",
    },
    LeftOut {
        patterns: &[
            "aten.bincount.*",
            "aten.gradient.*",
            "aten.logspace.Tensor_*",
            "aten.logspace.Scalar_Tensor",
            "aten.chalf.*",
            "aten.nextafter.*",
            "aten._unsafe_masked_index_put_accumulate.*",
        ],
        reason: "rare and spelled out by others: save exported.run_decompositions(), or write it with supported operators",
    },
    LeftOut {
        patterns: &["aten.unique_dim*"],
        reason: "rows that repeat are not found: only torch.unique of all elements is supported",
    },
    LeftOut {
        patterns: &[
            "aten.resize_*",
            "aten.set_*",
            "aten.fractional_max_pool*",
            "aten._batch_norm_with_update*",
            "aten.multilabel_margin_loss*",
        ],
        reason: "changes storage, draws random windows, or is for training: no inference graph needs it",
    },
    LeftOut {
        patterns: &["torchvision.ps_roi_*"],
        reason: "position-sensitive pooling is superseded by torchvision.roi_align, which is supported",
    },
    LeftOut {
        patterns: &["aten.*nested*", "aten._jagged_*"],
        reason: "nested tensors have no storage here: pad and mask",
    },
];

/// Why an operator is left out, if it is in the table.
pub fn reason(target: &str) -> Option<&'static str> {
    let listed = |entry: &&LeftOut| entry.patterns.iter().any(|pattern| matches(pattern, target));
    LEFT_OUT.iter().find(listed).map(|entry| entry.reason)
}

/// `*` stands for any characters, also none.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text, want) in [
            ("aten.*_backward.*", "aten.convolution_backward.default", true),
            ("aten.*_backward.*", "aten.convolution.default", false),
            ("aten.q_*", "aten.q_scale.default", true),
            ("aten.q_*", "aten.eq_.Scalar", false),
            ("aten.a.b", "aten.a.b", true),
            ("aten.a.b", "aten.a.bc", false),
            ("aten.*.out", "aten.out", false),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn nothing_is_both_supported_and_left_out() {
        let both: Vec<&str> = super::super::supported().into_iter().filter(|name| reason(name).is_some()).collect();
        assert_eq!(both, Vec::<&str>::new());
    }
}
