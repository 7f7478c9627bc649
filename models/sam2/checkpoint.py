"""Meta's checkpoints of SAM 2.1 under the names that transformers gives to the same tensors."""
import re

import torch

# In this order; each rule sees what the ones before it left.
RULES = [
    (r"^image_encoder\.trunk\.", "vision_encoder.backbone."),
    (r"^image_encoder\.neck\.convs\.(\d+)\.conv\.", r"vision_encoder.neck.convs.\1."),
    (r"patch_embed\.proj\.", "patch_embed.projection."),
    (r"^sam_prompt_encoder\.", "prompt_encoder."),
    (r"^sam_mask_decoder\.", "mask_decoder."),
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix", "prompt_encoder.shared_embedding.positional_embedding"),
    (r"^prompt_encoder\.mask_downscaling\.0\.", "prompt_encoder.mask_embed.conv1."),
    (r"^prompt_encoder\.mask_downscaling\.1\.", "prompt_encoder.mask_embed.layer_norm1."),
    (r"^prompt_encoder\.mask_downscaling\.3\.", "prompt_encoder.mask_embed.conv2."),
    (r"^prompt_encoder\.mask_downscaling\.4\.", "prompt_encoder.mask_embed.layer_norm2."),
    (r"^prompt_encoder\.mask_downscaling\.6\.", "prompt_encoder.mask_embed.conv3."),
    (r"^mask_decoder\.output_upscaling\.0\.", "mask_decoder.upscale_conv1."),
    (r"^mask_decoder\.output_upscaling\.1\.", "mask_decoder.upscale_layer_norm."),
    (r"^mask_decoder\.output_upscaling\.3\.", "mask_decoder.upscale_conv2."),
    # Two-layer perceptrons.
    (r"(backbone\.blocks\.\d+|transformer\.layers\.\d+)\.mlp\.layers\.0\.", r"\1.mlp.proj_in."),
    (r"(backbone\.blocks\.\d+|transformer\.layers\.\d+)\.mlp\.layers\.1\.", r"\1.mlp.proj_out."),
    # Three-layer ones.
    (r"^obj_ptr_proj\.", "object_pointer_proj."),
    (r"(hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head|^object_pointer_proj)\.layers\.0\.", r"\1.proj_in."),
    (r"(hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head|^object_pointer_proj)\.layers\.2\.", r"\1.proj_out."),
    (r"(hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head|^object_pointer_proj)\.layers\.1\.", r"\1.layers.0."),
    (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
    (r"^memory_encoder\.out_proj\.", "memory_encoder.projection."),
    (r"^memory_encoder\.fuser\.", "memory_encoder.memory_fuser."),
    (r"dwconv\.", "depthwise_conv."),
    (r"pwconv(\d)\.", r"pointwise_conv\1."),
    (r"\.gamma$", ".scale"),
    (r"\.out_proj\.", ".o_proj."),
    (r"norm_final_attn\.", "layer_norm_final_attn."),
    (r"\.norm(\d*)\.", r".layer_norm\1."),
    (r"^maskmem_tpos_enc$", "memory_temporal_positional_encoding"),
    (r"^no_mem_embed$", "no_memory_embedding"),
    (r"^no_mem_pos_enc$", "no_memory_positional_encoding"),
    (r"^no_obj_ptr$", "no_object_pointer"),
    (r"^no_obj_embed_spatial$", "occlusion_spatial_embedding_parameter"),
    (r"^obj_ptr_tpos_proj\.", "temporal_positional_encoding_projection_layer."),
]


def renamed(name):
    layer = re.match(r"^memory_encoder\.mask_downsampler\.encoder\.(\d+)\.(.*)$", name)
    if layer:
        at, rest = int(layer[1]), layer[2]
        kind = {0: f"layers.{at // 3}.conv", 1: f"layers.{at // 3}.layer_norm"}
        return f"memory_encoder.mask_downsampler.{'final_conv' if at == 12 else kind[at % 3]}.{rest}"
    for pattern, new in RULES:
        name = re.sub(pattern, new, name)
    return name


def from_meta(state):
    """The state of `Sam2VideoModel` from that of Meta's `SAM2Base`."""
    points = sorted(k for k in state if k.startswith("sam_prompt_encoder.point_embeddings."))
    out = {renamed(name): value for name, value in state.items() if name not in points}
    out["prompt_encoder.point_embed.weight"] = torch.cat([state[k] for k in points])
    out["shared_image_embedding.positional_embedding"] = out["prompt_encoder.shared_embedding.positional_embedding"]
    return out
