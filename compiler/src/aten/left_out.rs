//! What is left out on purpose, and why: the second half of `jvc ops`, and the help of the diagnostic for an operator without a rule.

/// Operators that have no rule for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// Names with `*` for any characters.
    pub patterns: &'static [&'static str],
    /// Why, and what to do instead.
    pub reason: &'static str,
}

/// The table. Each operator of PyTorch that takes a tensor is here or in [`super::supported`]; of two rows that name one, the first says why.
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
            "aten.special_bessel_y*",
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
            "aten.logspace.Tensor_*",
            "aten.logspace.Scalar_Tensor",
            "aten.chalf.*",
            "aten.nextafter*",
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
        patterns: &["aten.*nested*", "aten._jagged_*", "aten._padded_dense_to_jagged*", "aten.to_padded_tensor.*"],
        reason: "nested tensors have no storage here: pad and mask",
    },
    LeftOut {
        patterns: &[
            "aten.*.*imname*",
            "aten.*.*names*",
            "aten.*named_out_dim",
            "aten.align_*",
            "aten.rename*",
            "aten.refine_names.*",
        ],
        reason: "dimensions have no names in an exported program: name them by number",
    },
    LeftOut {
        patterns: &[
            "aten.Bool.*",
            "aten.Complex*",
            "aten.Float*",
            "aten.Int.*",
            "aten.IntImplicit.*",
            "aten.ScalarImplicit.*",
            "aten.as_tensor.*",
            "aten.tensor.*",
            "aten._list_to_tensor.*",
            "aten._tensor_to_list.*",
            "aten._shape_as_tensor.*",
            "aten._reshape_from_tensor.*",
            "aten.count.*",
            "aten.dict.*",
            "aten.len.*",
            "aten.remove.*",
            "aten.sort.Tensor",
            "aten.sorted.*",
            "aten.*.Tensor_list",
            "aten.*hacked_twin",
            "aten.index.list_Tensor",
            "aten.copy_.float",
            "aten.copy_.int",
            "aten.copy_.Tensor",
            "aten.*.a",
            "aten.einsum.sublist",
            "aten.__interpolate.*",
            "aten.__upsample*",
            "aten._pad_enum.*",
            "aten._ncf_*",
            "aten.random.default",
            "aten.tensor_split.tensor_indices_or_sections",
        ],
        reason: "TorchScript's own: torch.export writes Python numbers and lists, or another form of the operator",
    },
    LeftOut {
        patterns: &[
            "aten.__i*__.*",
            "aten.is_*",
            "aten._is_*",
            "aten.sym_is_contiguous.*",
            "aten.dim.*",
            "aten.size.*",
            "aten.stride.*",
            "aten.sym_size.default",
            "aten.sym_stride.default",
            "aten.storage_offset.*",
            "aten.element_size.*",
            "aten.data.*",
            "aten.grad.*",
            "aten.get_*",
            "aten.retain*_grad.*",
            "aten.output_nr.*",
            "aten._version.*",
            "aten.qscheme.*",
            "aten.record_stream.*",
            "aten._pin_memory.*",
            "aten._has_*",
            "aten._debug_*",
            "aten.cpu.*",
            "aten.cuda.*",
            "aten._to_cpu.*",
            "aten.from_file.*",
            "aten.cudnn_is_acceptable.*",
            "aten._fused_sdp_choice.*",
            "aten._functional_sym_constrain_range_for_size.*",
            "aten._make_dep_token.*",
            "aten._propagate_xla_data.*",
        ],
        reason: "asks or changes what a tensor is, not what it holds: export answers it while it traces",
    },
    LeftOut {
        patterns: &[
            "aten._add_batch_dim.*",
            "aten._remove_batch_dim.*",
            "aten.*_dual*",
            "aten._fw_primal*",
            "aten._new_zeros_with_same_feature_meta.*",
            "aten._lazy_clone.*",
            "aten._efficientzerotensor.*",
            "aten._copy_from*",
            "aten._resize_output*",
            "aten.resize.*",
            "aten.set.*",
            "aten.slice_inverse.*",
            "aten._reshape_copy.*",
            "aten._reshape_alias_copy.*",
            "aten._no_grad_*",
            "aten._autocast_to_*",
            "aten._cast_*",
            "aten._batch_norm_impl_index.*",
            "aten._batch_norm_no_update.*",
            "aten._grad_sum_to_size.*",
            "aten._index_put_impl_.*",
            "aten._dim_arange.*",
            "aten._foobar.*",
            "aten._test_*",
            "aten.*flatten_dense_tensors.*",
            "aten.linalg__powsum.*",
            "aten.native_norm.*",
            "aten._compute_linear_combination.*",
            "aten._cummax_helper.*",
            "aten._cummin_helper.*",
            "aten._logcumsumexp.*",
            "aten._unique.*",
            "aten.result_type.*",
            "aten._histogramdd_*",
            "aten._euclidean_dist.*",
            "aten._cholesky_solve_helper.*",
            "aten._convolution.deprecated",
            "aten._convolution_mode.*",
            "aten.convolution_overrideable.*",
            "aten.quantile.*",
            "aten.nanquantile.*",
            "aten.view_copy.dtype",
            "aten.randint_like.Tensor*",
        ],
        reason: "a step of PyTorch's own below what is exported, or split into others by the export: export with torch.export",
    },
    LeftOut {
        patterns: &[
            "aten.cudnn_*",
            "aten.slow_conv*",
            "aten._slow_conv*",
            "aten.thnn_*",
            "aten._thnn_*",
            "aten._nnpack_*",
            "aten._conv_depthwise2d.*",
            "aten.conv_depthwise3d.*",
            "aten.batch_norm_*",
            "aten._triton_*",
            "aten._flash_attention_*",
            "aten._efficient_attention_*",
            "aten._scaled_dot_product_attention_math.*",
            "aten._scaled_dot_product_flash_attention.quantized",
            "aten._fill_mem_eff_dropout_mask*",
            "aten._grid_sampler_2d_cpu_fallback.*",
            "aten._mixed_dtypes_linear.*",
            "aten._addmm_activation.*",
            "aten._add_relu*",
            "aten.conv_tbc.*",
            "aten._wrapped_*",
            "aten.*mm.dtype",
            "aten._masked_softmax.*",
            "aten._native_multi_head_attention.*",
            "aten._transformer_encoder_layer_fwd.*",
            "aten._transform_bias_rescale_qkv.*",
            "aten._scaled_mm*",
            "aten._grouped_mm.*",
            "aten._scaled_grouped_mm*",
            "aten._rowwise_prune.*",
        ],
        reason: "a kernel of one backend, chosen below the exported operator: export the plain module (torch.export does), in eval mode",
    },
    LeftOut {
        patterns: &[
            "aten.quantized_*",
            "aten._quantized_*",
            "aten.dequantize.*",
            "aten.empty_quantized.*",
            "aten._empty_*_quantized.*",
            "aten._make_per_*",
            "aten.choose_qparams*",
            "aten._choose_qparams*",
            "aten._saturate_weight_to_fp16.*",
        ],
        reason: "the legacy quantised tensor types are not supported: quantise weights with torchao",
    },
    LeftOut {
        patterns: &[
            "aten.coalesce.*",
            "aten.indices.*",
            "aten._indices.*",
            "aten.*ol_indices.*",
            "aten.*ow_indices.*",
            "aten.*indices_copy.default",
            "aten.values.*",
            "aten._values.*",
            "aten.*values_copy.default",
            "aten._dimI.*",
            "aten._dimV.*",
            "aten.dense_dim.*",
            "aten._nnz.*",
            "aten._to_dense.*",
            "aten._sp*",
            "aten.smm.*",
            "aten.sspaddmm.*",
            "aten._cslt_compress.*",
        ],
        reason: "sparse tensors have no storage here: convert to dense before the export",
    },
    LeftOut {
        patterns: &[
            "aten.*ctc_loss.*",
            "aten._amp_*",
            "aten._fused_dropout.*",
            "aten._fused_moving_avg_*",
            "aten._masked_scale.*",
            "aten._dirichlet_grad.*",
        ],
        reason: "training only: export the model in eval mode, under torch.no_grad()",
    },
    LeftOut {
        patterns: &["aten._pack_sequence.*", "aten._pad_packed_*"],
        reason: "packed sequences have no storage here: export with batch-first padded tensors instead of pack_padded_sequence",
    },
    LeftOut {
        patterns: &["aten.random_.*", "aten._sample_dirichlet.*", "aten._sobol_engine_*"],
        reason: "draws random numbers of a distribution that inference graphs do not use: export the model in eval mode",
    },
    LeftOut {
        patterns: &[
            "aten.histogram.*",
            "aten.*histogramdd*",
            "aten.segment_reduce.*",
            "aten.hash_tensor.*",
            "aten.frexp.*",
        ],
        reason: "rare and spelled out by others (histc, scatter_reduce, searchsorted): write it with supported operators",
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

    /// The schemas are PyTorch's, so a new version of it shows here what it adds.
    #[test]
    fn each_operator_is_supported_or_left_out_for_a_reason() {
        let names = include_str!("schemas.txt").lines().filter_map(|line| line.split_whitespace().next());
        let neither: Vec<&str> =
            names.filter(|name| !super::super::is_supported(name) && reason(name).is_none()).collect();
        assert_eq!(neither, Vec::<&str>::new());
    }

    #[test]
    fn nothing_is_both_supported_and_left_out() {
        let both: Vec<&str> = super::super::supported().into_iter().filter(|name| reason(name).is_some()).collect();
        assert_eq!(both, Vec::<&str>::new());
    }
}
