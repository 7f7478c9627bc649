#!/usr/bin/env python3
"""SAM 2.1 -> the .pt2 programs that jvc compiles into one crate with six entry points.

    python export.py --checkpoint FILE_OR_FOLDER [--size large] [--out DIR]
    python export.py --random SEED [--apart] --size tiny|small|base_plus|large|twin [--out DIR]

--checkpoint  a folder in the form of transformers (facebook/sam2.1-hiera-large: config.json and model.safetensors), or Meta's
              own file (sam2.1_hiera_large.pt; then --size names its size)
--random      made-up weights instead, for benchmarks and tests
--apart       made-up weights by which the objects of a video stay apart, for follow.py
Needs torch 2.11 and transformers 5.17 (the model's code is imported from there), no GPU and no network. Deterministic.

Writes into DIR (S: side of the network's picture, 1024; h = S/4; t = S/16; C = 256 channels; `?`: symbolic):
    encode.pt2            picture u8[?H, ?W, 3]                      -> f0 [1, C/8, h, h], f1 [1, C/4, h/2, h/2], f2 [1, C, t, t]
    decode.pt2            f0, f1, f2, points [?B, ?P, 2], labels,    -> masks [B, 3, h, h], ious [B, 3], single [B, 1, h, h],
                          mask [1, 1, h, h], use_mask, no_memory        single_iou [B, 1], object_score [B, 1], pointers [B, 4, C]
    upscale.pt2           low [?N, h, h], rows, columns, threshold,  -> level u8[N, H, W], above i32[N], below i32[N]
                          offset
    mask_prompt.pt2       given u8[1, 1, S, S]                       -> low [1, 1, h, h], prompt [1, 1, h, h], no_pointer [1, C]
    memory_encoder.pt2    f2, low, given, use_given, binarize, score -> memory [t*t, 64]
    memory_attention.pt2  f2, memory [?M, t*t, 64], times i32[M],    -> f2 that remembers
                          pointers [?Q+1, C], offsets [Q+1]
Halves are made by the compiler: `jvc compile --precision f16`.
"""
import argparse
import os

import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind
from torch.nn import functional as F
from transformers import Sam2HieraDetConfig, Sam2VideoConfig, Sam2VideoModel, Sam2VisionConfig
from transformers.models.sam2_video import modeling_sam2_video as upstream

from checkpoint import from_meta

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Limits of the symbolic sizes: sides of a picture, prompts in one run, points of a prompt, masks enlarged in one run.
MAX_SIDE, MAX_PROMPTS, MAX_POINTS, MAX_MASKS = 4096, 64, 16, 4
# Frames with prompts that the memory looks at: 4 of these (the closest), 6 tracked ones, and pointers of 15 tracked ones.
MAX_PROMPTED = 4

# ------------------------------------------------------------------------------------------------ configurations
BACKBONES = {
    "tiny": dict(width=96, heads=1, blocks=[1, 2, 7, 2], whole=[5, 7, 9], windows=[8, 4, 14, 7], background=7),
    "small": dict(width=96, heads=1, blocks=[1, 2, 11, 2], whole=[7, 10, 13], windows=[8, 4, 14, 7], background=7),
    "base_plus": dict(width=112, heads=2, blocks=[2, 3, 16, 3], whole=[12, 16, 20], windows=[8, 4, 14, 7], background=14),
    "large": dict(width=144, heads=2, blocks=[2, 6, 36, 4], whole=[23, 33, 43], windows=[8, 4, 16, 8], background=7),
    "twin": dict(width=16, heads=1, blocks=[1, 1, 3, 1], whole=[3], windows=[8, 4, 14, 7], background=7),
}


def configuration(size):
    b = BACKBONES[size]
    widths = [b["width"] << i for i in range(4)]
    side, hidden = (128, 128) if size == "twin" else (1024, 256)
    feature_sizes = [[side // k] * 2 for k in (4, 8, 16)]
    backbone = Sam2HieraDetConfig(
        hidden_size=b["width"], num_attention_heads=b["heads"], image_size=[side, side], embed_dim_per_stage=widths,
        num_attention_heads_per_stage=[b["heads"] << i for i in range(4)], blocks_per_stage=b["blocks"],
        global_attention_blocks=b["whole"], window_size_per_stage=b["windows"],
        window_positional_embedding_background_size=[b["background"]] * 2)
    vision = Sam2VisionConfig(backbone_config=backbone, backbone_channel_list=widths[::-1], backbone_feature_sizes=feature_sizes, fpn_hidden_size=hidden)
    small = {}
    if size == "twin":
        small = dict(
            prompt_encoder_config=dict(hidden_size=hidden, image_size=side), image_size=side, memory_attention_hidden_size=hidden,
            memory_attention_num_layers=2, memory_attention_feed_forward_hidden_size=256, memory_attention_rope_feat_sizes=[8, 8],
            memory_encoder_hidden_size=hidden, mask_downsampler_embed_dim=hidden, memory_fuser_embed_dim=hidden, memory_fuser_intermediate_dim=512)
    config = Sam2VideoConfig(vision_config=vision, max_cond_frame_num=MAX_PROMPTED, **small)
    if size == "twin":
        from transformers import Sam2VideoMaskDecoderConfig
        config.mask_decoder_config = Sam2VideoMaskDecoderConfig(hidden_size=hidden, mlp_dim=256, iou_head_hidden_dim=hidden)
    return config


def made_up(model, seed, levels=None):
    """Weights by which signals keep their size from layer to layer. With `levels` each is one of that many multiples of a step to
    either side, so that the archive packs well."""
    g = torch.Generator().manual_seed(seed)
    # Inputs that each output of a product or convolution sums over.
    sums = {f"{n}.weight": m.weight.numel() // (m.in_channels if m.transposed else m.out_channels) if isinstance(m, nn.modules.conv._ConvNd) else m.in_features
            for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))}
    for name, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "positional_embedding" in n]:
        w = torch.randn(p.shape, generator=g)
        if name in sums:
            w = w / sums[name] ** 0.5
        elif "norm" in name:
            w = w * 0.05 + (1.0 if name.endswith("weight") else 0.0)
        elif name == "mask_decoder.pred_obj_score_head.proj_out.bias":
            w = w * 0 + 1   # there is an object, mostly
        elif name.endswith("bias"):
            w = w * 0.05
        elif name.endswith("scale"):
            w = w * 0.3
        elif "pos_embed" in name or "embedding" in name and "positional_embedding" not in name:
            w = w * 0.1
        if levels:
            step = w.abs().max() / levels
            step = 2.0 ** torch.floor(torch.log2(step)) if step > 0 else step
            w = torch.round(w / step).clamp(-levels, levels) * step
        p.data.copy_(w)
    return model


# By `made_up` alone a memory says little of its mask, and memories change little of what is seen: two objects soon get the same mask.
APART = {"mask_downsampler.final_conv": 6, "cross_attn_image.o_proj": 4}


def apart(model):
    """Changes made-up weights such that two objects of a video keep masks of their own; and the second of three masks is thought the best by far, so that
    rounding does not choose."""
    for name, p in model.named_parameters():
        p.data.mul_(next((factor for part, factor in APART.items() if part in name), 1))
    model.mask_decoder.iou_prediction_head.proj_out.bias.data[2] += 2
    return model


def load(checkpoint, size):
    """A model with the weights of a checkpoint."""
    if os.path.isdir(checkpoint):
        return Sam2VideoModel.from_pretrained(checkpoint, dtype=torch.float32, max_cond_frame_num=MAX_PROMPTED).eval()
    model = Sam2VideoModel(configuration(size))
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(from_meta(state.get("model", state)), strict=True)
    return model.eval()


def add_source(parser):
    """Options that say which weights."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint")
    source.add_argument("--random", type=int, metavar="SEED")
    parser.add_argument("--apart", action="store_true", help="with --random: objects of a video stay apart")
    parser.add_argument("--size", choices=BACKBONES, default="large")


def model_of(args):
    """The model that these options name."""
    if args.checkpoint:
        return load(args.checkpoint, args.size)
    model = made_up(Sam2VideoModel(configuration(args.size)), args.random, 7 if args.size == "twin" else None).eval()
    # One matrix in upstream's checkpoints.
    model.shared_image_embedding.positional_embedding.copy_(model.prompt_encoder.shared_embedding.positional_embedding)
    return apart(model) if args.apart else model


# ------------------------------------------------------------------------------------------------ entry points
def resampled(x, dim, out, taps):
    """One dimension of `F.interpolate(…, mode="bilinear", antialias=True)`, with the weights computed from a symbolic size."""
    n = x.shape[dim]
    size = torch.full((), n, dtype=torch.float32)
    step = size / out
    stretch = step.clamp(min=1.0)
    centre = (torch.arange(out, dtype=torch.float32) + 0.5) * step
    first = (centre - stretch + 0.5).long().clamp(min=0)
    last = torch.minimum((centre + stretch + 0.5).long(), size.long())
    at = first[:, None] + torch.arange(taps)
    weight = (1 - ((at - centre[:, None] + 0.5) / stretch).abs()).clamp(min=0) * (at < last[:, None])
    weight = weight / weight.sum(1, keepdim=True)
    at = torch.minimum(at, size.long() - 1)
    shape = [1] * dim + [out, taps] + [1] * (x.dim() - dim - 1)
    picked = x[(slice(None),) * dim + (at,)]
    return (picked * weight.view(shape)).sum(dim + 1)


class Encode(nn.Module):
    """8-bit picture → features; resized as Meta's transforms do it (floats, antialiased bilinear, both sides to S)."""
    def __init__(self, m, max_side=MAX_SIDE):
        super().__init__()
        self.m = m
        self.side = m.config.image_size
        self.taps = 2 * -(-max(max_side, self.side) // self.side) + 1
        self.register_buffer("mean", torch.tensor(MEAN), persistent=False)
        self.register_buffer("std", torch.tensor(STD), persistent=False)

    def pixels(self, picture):
        x = resampled(picture, 1, self.side, self.taps)
        x = resampled(x, 0, self.side, self.taps)
        return ((x / 255 - self.mean) / self.std).permute(2, 0, 1).unsqueeze(0)

    def forward(self, picture):
        seen = self.m.get_image_features(self.pixels(picture), return_dict=True).fpn_hidden_states
        sizes = self.m.backbone_feature_sizes
        return tuple(f.permute(1, 2, 0).view(1, -1, *s) for f, s in zip(seen, sizes))


class Decode(nn.Module):
    """Features and prompts → masks. All four mask tokens are kept: three masks, the one of `multimask_output=False` (which is one
    of the three where the first token's is not stable), and pointers of all, first that of the single mask."""
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, f0, f1, f2, points, labels, mask, use_mask, no_memory):
        m, decoder = self.m, self.m.mask_decoder
        f2 = f2 + no_memory * m.no_memory_embedding.view(1, -1, 1, 1)
        sparse, dense = m.prompt_encoder(points.unsqueeze(0), labels.unsqueeze(0), None, None)
        dense = torch.where(use_mask > 0, m.prompt_encoder.mask_embed(mask), dense)
        tokens = []
        hook = decoder.transformer.register_forward_hook(lambda _m, _i, out: tokens.append(out[0]))
        select, decoder._dynamic_multimask_via_stability = decoder._dynamic_multimask_via_stability, lambda masks, ious: (masks, ious)
        try:
            masks, ious, _, score = decoder(
                image_embeddings=f2, image_positional_embeddings=m.get_image_wide_positional_embeddings(), sparse_prompt_embeddings=sparse,
                dense_prompt_embeddings=dense, multimask_output=False, high_resolution_features=[f0, f1])
        finally:
            hook.remove()
            del decoder._dynamic_multimask_via_stability
        single, single_iou = select(masks, ious)
        pointers = m.object_pointer_proj(tokens[0][:, :, 2:2 + decoder.num_mask_tokens])
        appears = (score > 0).to(pointers.dtype).unsqueeze(-1)
        pointers = appears * pointers + (1 - appears) * m.no_object_pointer
        return masks[0, :, 1:], ious[0, :, 1:], single[0], single_iou[0], score[0], pointers[0]


class Upscale(nn.Module):
    """Low-resolution logits → masks of a picture's size, as levels: how many of threshold − offset, threshold and threshold + offset
    each pixel's logit is above. Their counts give the stability score."""
    def forward(self, low, rows, columns, threshold, offset):
        y = F.interpolate(low.unsqueeze(1), size=(rows.shape[0], columns.shape[0]), mode="bilinear", align_corners=False)[:, 0]
        # One use of y, so that it is not stored: rounded up, -1 < s ≤ 0 is 0 and 0 < s ≤ 1 is 1.
        level = (torch.ceil((y - threshold) / offset).clamp(-1, 2) + 1).to(torch.uint8)
        count = lambda least: (level >= least).sum((1, 2), dtype=torch.int32)
        return level, count(3), count(1)


class MaskPrompt(nn.Module):
    """A mask given for a frame of a video → its logits, and the mask prompt by which the decoder finds its pointer."""
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, given):
        mask = given.to(self.m.mask_downsample.weight.dtype)
        low = F.interpolate(mask * 20.0 - 10.0, size=self.m.prompt_encoder.mask_input_size, align_corners=False, mode="bilinear", antialias=True)
        return low, self.m.mask_downsample(mask), self.m.no_object_pointer.clone()


class MemoryEncoder(nn.Module):
    """A frame and its mask → its memory, which upstream then rounds to bfloat16. `given` takes the place of the mask's logits where `use_given` is set; `binarize` for
    masks that come from prompts."""
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, f2, low, given, use_given, binarize, score):
        m = self.m
        side = m.config.image_size
        high = F.interpolate(low, size=(side, side), mode="bilinear", align_corners=False)
        high = torch.where(use_given > 0, given.to(low.dtype) * 20.0 - 10.0, high)
        mask = torch.where(binarize > 0, (high > 0).to(low.dtype), torch.sigmoid(high))
        mask = mask * m.config.sigmoid_scale_for_mem_enc + m.config.sigmoid_bias_for_mem_enc
        memory, _ = m.memory_encoder(f2, mask)
        appears = (score > 0).to(low.dtype).view(1, 1, 1, 1)
        memory = memory + (1 - appears) * m.occlusion_spatial_embedding_parameter[..., None, None]
        return memory.flatten(2)[0].transpose(0, 1)


def rope(q, k, cos, sin, num_k_exclude_rope=0, repeat_freqs_k=False):
    """Upstream's apply_rotary_pos_emb_2d for symbolic numbers of memories and pointers: it does not ask whether the keys are as many
    as the queries (to repeat once changes nothing), and turns the excluded keys by an angle of zero instead of cutting them off."""
    wide = lambda x: x if x.dtype == torch.float64 else x.float()
    turn = lambda x, c, s: wide(x) * c + upstream.rotate_pairwise(wide(x)) * s
    cos_k, sin_k = cos, sin
    if repeat_freqs_k:
        keys = k.shape[-2]
        times = (keys - num_k_exclude_rope) // q.shape[-2]
        rest = cos.new_zeros(1, 1, num_k_exclude_rope + 1, cos.shape[-1])   # never empty
        extended = lambda x, value: torch.cat([x.unsqueeze(0).repeat(1, 1, times, 1), rest + value], 2)[:, :, :keys]
        cos_k, sin_k = extended(cos, 1), extended(sin, 0)
    return turn(q, cos, sin).type_as(q), turn(k, cos_k, sin_k).type_as(k)


class MemoryAttention(nn.Module):
    """A frame's features after it has looked at memories of other frames and at pointers to the object. `times`: row of the temporal
    embedding of each memory; `offsets`: frames since each pointer, over the most that there can be. The last pointer is not looked
    at: symbolic sizes begin at 1, and there may be no pointer."""
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, f2, memory, times, pointers, offsets):
        m = self.m
        count, n, width = memory.shape
        place = lambda like: like.flatten(2).permute(2, 0, 1)
        where = m.vision_encoder.neck.position_encoding(f2.shape, f2.device, f2.dtype)
        spatial = m.memory_encoder.position_encoding((1, width, *f2.shape[2:]), f2.device, f2.dtype)
        when = m.memory_temporal_positional_encoding.view(-1, width)[times.long()]
        memory_pos = (place(spatial).view(1, n, width) + when.unsqueeze(1)).view(count * n, 1, width)
        splits = pointers.shape[1] // width
        age = m.temporal_positional_encoding_projection_layer(upstream.get_1d_sine_pe(offsets, dim=pointers.shape[1]))
        pointer_pos = age.unsqueeze(1).expand(-1, splits, -1).reshape(-1, 1, width)
        kept, upstream.apply_rotary_pos_emb_2d = upstream.apply_rotary_pos_emb_2d, rope
        try:
            everything = count * n + pointers.shape[0] * splits - splits
            seen = m.memory_attention(
                current_vision_features=place(f2), current_vision_position_embeddings=place(where),
                memory=torch.cat([memory.view(count * n, 1, width), pointers.view(-1, 1, width)])[:everything],
                memory_posision_embeddings=torch.cat([memory_pos, pointer_pos])[:everything], num_object_pointer_tokens=everything - count * n)
        finally:
            upstream.apply_rotary_pos_emb_2d = kept
        return seen.squeeze(1).transpose(1, 2).view(f2.shape)


def entry_points(m, max_side=MAX_SIDE):
    """Name → module, example inputs, symbolic sizes."""
    side, width = m.config.image_size, m.hidden_dim
    h, t = side // 4, side // 16
    mem = m.mem_dim
    g = torch.Generator().manual_seed(7)
    # Multiples of 1/8, which pack well.
    rand = lambda *shape: torch.round(torch.randn(*shape, generator=g) * 8) / 8
    flag = lambda on: torch.tensor([float(on)])
    f0, f1, f2 = rand(1, width // 8, h, h), rand(1, width // 4, h // 2, h // 2), rand(1, width, t, t)
    picture = torch.randint(0, 256, (side * 3 // 4 - 5, side + 37, 3), generator=g, dtype=torch.uint8)
    points, labels = torch.rand(4, 2, 2, generator=g) * side, torch.tensor([[1, 0], [2, 3], [1, -1], [0, 1]], dtype=torch.int32)
    given = (rand(1, 1, side // 8, side // 8) > 0).repeat_interleave(8, 2).repeat_interleave(8, 3).to(torch.uint8)
    many = MAX_PROMPTED + m.config.num_maskmem - 1
    most = MAX_PROMPTED + m.config.max_object_pointers_in_encoder - 1
    rows, columns = torch.zeros(side * 3 // 4 - 5, dtype=torch.uint8), torch.zeros(side + 37, dtype=torch.uint8)
    height, across = Dim("height", min=1, max=max_side), Dim("width", min=1, max=max_side)
    prompts, count = Dim("prompts", min=1, max=MAX_PROMPTS), Dim("points", min=1, max=MAX_POINTS)
    masks = Dim("masks", min=1, max=MAX_MASKS)
    memories, pointers = Dim("memories", min=1, max=many), Dim("pointers", min=1, max=most + 1)
    return {
        "encode": (Encode(m, max_side), (picture,), ({0: height, 1: across},)),
        "decode": (Decode(m), (f0, f1, f2, points, labels, rand(1, 1, h, h) * 5, flag(1), flag(1)),
                   (None, None, None, {0: prompts, 1: count}, {0: prompts, 1: count}, None, None, None)),
        "upscale": (Upscale(), (rand(2, h, h) * 5, rows, columns, flag(0), flag(1)), ({0: masks}, {0: height}, {0: across}, None, None)),
        "mask_prompt": (MaskPrompt(m), (given,), (None,)),
        "memory_encoder": (MemoryEncoder(m), (f2, rand(1, 1, h, h) * 5, given, flag(0), flag(0), rand(1, 1)), (None,) * 6),
        "memory_attention": (MemoryAttention(m), (f2, rand(3, t * t, mem), torch.tensor([6, 1, 0], dtype=torch.int32), rand(5, width), torch.rand(5, generator=g)),
                             (None, {0: memories}, {0: memories}, {0: pointers}, {0: pointers})),
    }


def prune(program):
    """Drops the weights that an entry point does not use: its module holds the whole model."""
    graph, signature = program.graph_module.graph, program.graph_signature
    nodes, kept = [n for n in graph.nodes if n.op == "placeholder"], []
    for node, spec in zip(nodes, signature.input_specs):
        if node.users or spec.kind == InputKind.USER_INPUT:
            kept.append(spec)
            continue
        graph.erase_node(node)
        program.state_dict.pop(spec.target, None)
        program.constants.pop(spec.target, None)
    signature.input_specs[:] = kept
    program.graph_module.recompile()


def export(module, args, dims, path):
    with torch.no_grad():
        program = torch.export.export(module.eval(), args, dynamic_shapes=dims, strict=False)
    prune(program)
    torch.export.save(program, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser)
    parser.add_argument("--max-side", type=int, default=MAX_SIDE, help="largest side of a picture: inputs and masks take memory by it")
    parser.add_argument("--only", nargs="*", help="names of entry points")
    parser.add_argument("--out", default="programs")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = model_of(args)
    os.makedirs(args.out, exist_ok=True)
    for name, (module, inputs, dims) in entry_points(model, args.max_side).items():
        if args.only and name not in args.only:
            continue
        path = os.path.join(args.out, name + ".pt2")
        export(module, inputs, dims, path)
        print(f"{path}: {os.path.getsize(path)} bytes", flush=True)


if __name__ == "__main__":
    main()
