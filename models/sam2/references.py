#!/usr/bin/env python3
"""The small twin of SAM 2.1 with what PyTorch computes with it: everything that the tests of this folder compare with.

    python references.py --meta FOLDER [--out DIR]
    python references.py --long-video [--out DIR]      only the long video

--meta  the folder that holds the package `sam2` of sam2 1.1.0 (Meta's own code; imported, not copied)
Needs what export.py needs, torchvision 0.26, Pillow and safetensors. Deterministic. Writes into DIR
    NAME.pt2, NAME.safetensors   the entry points; inputs `in.N`, outputs `out.N`, in f64 `out64.N`, further sets `alt.K.…`
    picture.png, square.png      pictures
    frames/                      a video of 8 frames
    expected.safetensors         masks, scores and logits of whole requests, by upstream's own classes:
        segment.K.*              Sam2Model (transformers) on picture.png
        automatic.*, crops.*     Meta's SAM2AutomaticMaskGenerator on square.png, and with one layer of crops on picture.png
        parts.*                  boxes: suppression, crops, edges
        video.*                  Sam2VideoModel over the 8 frames, two objects; see `video`
    long/, long.safetensors      20 frames in which two objects pass each other, and Sam2VideoModel's masks of both; see `followed`
    pack.sh packs the folder.
"""
import argparse
import copy
import os
import sys
import types

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from transformers import Sam2Config, Sam2ImageProcessor, Sam2Model, Sam2VideoModel, Sam2VideoProcessor, Sam2VideoVideoProcessor
from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoInferenceSession

import export as ex
from checkpoint import from_meta, renamed

SIDE, MAX_SIDE = 128, 1024


# ------------------------------------------------------------------------------------------------ pictures
def draw(width, height, shift=0, seed=0):
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    base = np.stack([90 + 80 * x, 120 + 60 * y, 150 - 70 * x * y], -1)
    image = Image.fromarray(base.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    s = min(width, height)
    pen.ellipse([width * .2 + shift, height * .25, width * .2 + shift + s * .4, height * .25 + s * .45], fill=(220, 60, 40))
    pen.rectangle([width * .6 - shift, height * .45, width * .6 - shift + s * .3, height * .45 + s * .35], fill=(40, 70, 200))
    pen.polygon([(width * .5, height * .05), (width * .62, height * .3), (width * .42, height * .28)], fill=(240, 220, 60))
    noisy = np.asarray(image).astype(np.int16) + rng.integers(-2, 3, size=(height, width, 3))
    return Image.fromarray((np.clip(noisy, 0, 255) // 4 * 4).astype(np.uint8))


def pixels(picture, side=SIDE):
    """Meta's SAM2Transforms."""
    from torchvision.transforms import Normalize, Resize, ToTensor
    x = Resize((side, side))(ToTensor()(picture))
    return Normalize(ex.MEAN, ex.STD)(x).unsqueeze(0)


# ------------------------------------------------------------------------------------------------ entry points
def alternatives(name, args):
    g = torch.Generator().manual_seed(11)
    rand = lambda *shape: torch.round(torch.randn(*shape, generator=g) * 8) / 8
    if name == "encode":
        small = torch.randint(0, 256, (1, 1, 3), generator=g, dtype=torch.uint8)
        tall = torch.from_numpy(np.asarray(draw(61, 307)).copy())
        return [(small,), (tall,)]
    if name == "decode":
        none = torch.tensor([[-1], [0], [1], [-1], [1], [0]], dtype=torch.int32)
        places = torch.rand(6, 1, 2, generator=g) * SIDE
        many = (torch.rand(4, 16, 2, generator=g) * SIDE, torch.randint(0, 2, (4, 16), generator=g, dtype=torch.int32))
        off = torch.zeros(1)
        return [args[:3] + (places, none, args[5], off, off), args[:3] + many + (args[5], off, torch.ones(1))]
    if name == "upscale":
        z = lambda n: torch.zeros(n, dtype=torch.uint8)
        return [(args[0][:1], z(1), z(1), args[3], args[4]), (rand(4, SIDE // 4, SIDE // 4), z(40), z(31), torch.full((1,), .5), torch.full((1,), .25))]
    if name == "memory_encoder":
        return [args[:3] + (torch.ones(1), torch.ones(1), torch.ones(1, 1))]
    if name == "memory_attention":
        f2, memory, times, pointers, offsets = args
        return [(f2, memory[:1], times[:1], pointers[:1], offsets[:1]), (f2, memory[:1], times[:1], pointers[:2], offsets[:2]),
                (f2, rand(10, *memory.shape[1:]), torch.arange(10, dtype=torch.int32) % 7, rand(20, pointers.shape[1]), torch.rand(20, generator=g))]
    return []


def floats64(args):
    return tuple(a.double() if a.is_floating_point() else a for a in args)


def entry_references(model, out):
    exact_model = copy.deepcopy(model).double()
    exact = ex.entry_points(exact_model, MAX_SIDE)
    for name, (module, args, dims) in ex.entry_points(model, MAX_SIDE).items():
        path = os.path.join(out, name)
        if name == "encode":
            args = (torch.from_numpy(np.asarray(draw(150, 90)).copy()),)
        ex.export(module, args, dims, path + ".pt2")
        tensors = {}
        for k, inputs in enumerate([args] + alternatives(name, args)):
            prefix = f"alt.{k - 1}." if k else ""
            with torch.no_grad():
                if name == "encode":   # upstream's own resizing
                    picture = Image.fromarray(inputs[0].numpy())
                    x = pixels(picture)
                    own = module.pixels(inputs[0])
                    assert float((own - x).abs().max()) < 2e-5, f"resizing differs by {float((own - x).abs().max())}"
                    maps = lambda m, x: tuple(f.permute(1, 2, 0).view(1, -1, *s) for f, s in zip(m.get_image_features(x, return_dict=True).fpn_hidden_states, m.backbone_feature_sizes))
                    outs, outs64 = maps(model, x), maps(exact_model, x.double())
                else:
                    outs, outs64 = module(*inputs), exact[name][0](*floats64(inputs))
            as_tuple = lambda o: o if isinstance(o, tuple) else (o,)
            for kind, values in (("in", inputs), ("out", as_tuple(outs)), ("out64", as_tuple(outs64))):
                tensors.update({f"{prefix}{kind}.{i}": v.contiguous().clone() for i, v in enumerate(values)})
        save_file(tensors, path + ".safetensors")
        print(name, os.path.getsize(path + ".pt2"), os.path.getsize(path + ".safetensors"), flush=True)


# ------------------------------------------------------------------------------------------------ whole requests
def image_model(model):
    c = model.config
    config = Sam2Config(vision_config=c.vision_config, prompt_encoder_config=c.prompt_encoder_config.to_dict(), mask_decoder_config=c.mask_decoder_config.to_dict())
    image = Sam2Model(config).eval()
    missing, _ = image.load_state_dict(model.state_dict(), strict=False)
    assert not missing, missing
    return image


# Clicks and boxes in pixels of picture.png (150 x 90), whether three masks are wanted, whether the first request's mask is a prompt.
SEGMENT = [
    dict(points=[[75, 45]], labels=[1], box=None, multi=True, mask=False),
    dict(points=[[40.5, 41.25], [100, 60]], labels=[1, 0], box=None, multi=False, mask=False),
    dict(points=[], labels=[], box=[88, 38, 122, 74], multi=False, mask=False),
    dict(points=[[48, 40]], labels=[1], box=[30, 20, 70, 66], multi=False, mask=False),
    dict(points=[[75, 45], [20, 10]], labels=[1, 0], box=None, multi=False, mask=True),
]


def segment(model, picture, expected):
    image = image_model(model)
    w, h = picture.size
    with torch.no_grad():
        embeddings = image.get_image_embeddings(pixels(picture))
    scale = torch.tensor([SIDE / w, SIDE / h])
    first = None
    for k, case in enumerate(SEGMENT):
        # As Meta's SAM2ImagePredictor: a box is two points with the labels 2 and 3, before the clicks.
        box = [] if case["box"] is None else [case["box"][:2], case["box"][2:]]
        points = torch.tensor(box + case["points"], dtype=torch.float32)
        labels = torch.tensor([2, 3][:len(box)] + case["labels"], dtype=torch.int32)
        prompt = dict(input_points=(points * scale)[None, None], input_labels=labels[None, None])
        if case["mask"]:
            prompt["input_masks"] = first
        with torch.no_grad():
            o = image(image_embeddings=list(embeddings), multimask_output=case["multi"], **prompt)
            low = o.pred_masks[0, 0]
            full = torch.nn.functional.interpolate(low[None], (h, w), mode="bilinear", align_corners=False)[0]
        if first is None:
            best = int(o.iou_scores[0, 0].argmax())
            first = low[None, best:best + 1].clamp(-32, 32)
            expected["segment.mask_prompt"] = first.clone()
        expected.update({f"segment.{k}.low": low.clone(), f"segment.{k}.masks": (full > 0).to(torch.uint8), f"segment.{k}.iou": o.iou_scores[0, 0].clone(),
                         f"segment.{k}.score": o.object_score_logits[0, 0].clone()})
        print("segment", k, "iou", o.iou_scores.flatten().tolist(), "share", (full > 0).float().mean((1, 2)).tolist())


def import_meta(folder):
    for name, path in (("sam2", "sam2"), ("sam2.modeling", "sam2/modeling")):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, path)]
        sys.modules[name] = module


def meta_model(model):
    """Meta's model of the same sizes with the same weights."""
    from sam2.modeling.backbones.hieradet import Hiera
    from sam2.modeling.backbones.image_encoder import FpnNeck, ImageEncoder
    from sam2.modeling.memory_attention import MemoryAttention, MemoryAttentionLayer
    from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler, MemoryEncoder
    from sam2.modeling.position_encoding import PositionEmbeddingSine
    from sam2.modeling.sam.transformer import RoPEAttention
    from sam2.modeling.sam2_base import SAM2Base
    c = model.config
    b, width = c.vision_config.backbone_config, c.vision_config.fpn_hidden_size
    sine = lambda n: PositionEmbeddingSine(num_pos_feats=n, normalize=True, scale=None, temperature=10000)
    trunk = Hiera(embed_dim=b.hidden_size, num_heads=b.num_attention_heads, stages=b.blocks_per_stage, global_att_blocks=b.global_attention_blocks,
                  window_pos_embed_bkg_spatial_size=b.window_positional_embedding_background_size, window_spec=b.window_size_per_stage)
    neck = FpnNeck(position_encoding=sine(width), d_model=width, backbone_channel_list=c.vision_config.backbone_channel_list, fpn_top_down_levels=[2, 3], fpn_interp_model="nearest")
    rope = lambda **k: RoPEAttention(rope_theta=10000.0, feat_sizes=c.memory_attention_rope_feat_sizes, embedding_dim=width, num_heads=1, downsample_rate=1, dropout=0.1, **k)
    layer = MemoryAttentionLayer(activation="relu", dim_feedforward=c.memory_attention_feed_forward_hidden_size, dropout=0.1, pos_enc_at_attn=False, self_attention=rope(), d_model=width,
                                 pos_enc_at_cross_attn_keys=True, pos_enc_at_cross_attn_queries=False, cross_attention=rope(rope_k_repeat=True, kv_in_dim=64))
    attention = MemoryAttention(d_model=width, pos_enc_at_input=True, layer=layer, num_layers=c.memory_attention_num_layers)
    encoder = MemoryEncoder(out_dim=64, in_dim=width, position_encoding=sine(64), mask_downsampler=MaskDownSampler(embed_dim=width, kernel_size=3, stride=2, padding=1),
                            fuser=Fuser(CXBlock(dim=width, kernel_size=7, padding=3, layer_scale_init_value=1e-6, use_dwconv=True), num_layers=c.memory_fuser_num_layers))
    # Meta's file fixes widths of the decoder that the twin has smaller.
    import sam2.modeling.sam2_base as base
    kept = base.MaskDecoder, base.TwoWayTransformer
    base.TwoWayTransformer = lambda **k: kept[1](**{**k, "mlp_dim": c.mask_decoder_config.mlp_dim})
    base.MaskDecoder = lambda **k: kept[0](**{**k, "iou_head_hidden_dim": c.mask_decoder_config.iou_head_hidden_dim})
    meta = SAM2Base(
        image_encoder=ImageEncoder(scalp=1, trunk=trunk, neck=neck), memory_attention=attention, memory_encoder=encoder, num_maskmem=7, image_size=c.image_size, sigmoid_scale_for_mem_enc=20.0,
        sigmoid_bias_for_mem_enc=-10.0, use_mask_input_as_output_without_sam=True, directly_add_no_mem_embed=True, no_obj_embed_spatial=True, use_high_res_features_in_sam=True,
        multimask_output_in_sam=True, iou_prediction_use_sigmoid=True, use_obj_ptrs_in_encoder=True, add_tpos_enc_to_obj_ptrs=True, proj_tpos_enc_in_obj_ptrs=True,
        use_signed_tpos_enc_to_obj_ptrs=True, only_obj_ptrs_in_the_past_for_eval=True, pred_obj_scores=True, pred_obj_scores_mlp=True, fixed_no_obj_ptr=True, multimask_output_for_tracking=True,
        use_multimask_token_for_obj_ptr=True, multimask_min_pt_num=0, multimask_max_pt_num=1, use_mlp_for_obj_ptr_proj=True,
        sam_mask_decoder_extra_args=dict(dynamic_multimask_via_stability=True, dynamic_multimask_stability_delta=0.05, dynamic_multimask_stability_thresh=0.98))
    base.MaskDecoder, base.TwoWayTransformer = kept
    state = meta.state_dict()
    ours = model.state_dict()
    for name in state:
        if "point_embeddings" in name:
            state[name] = ours["prompt_encoder.point_embed.weight"][int(name.split(".")[2])][None]
        else:
            assert ours[renamed(name)].shape == state[name].shape, name
            state[name] = ours[renamed(name)]
    meta.load_state_dict(state)
    # The way back that export.py takes names every tensor, and nothing else.
    back = from_meta(meta.state_dict())
    assert back.keys() == ours.keys() and all(torch.equal(back[k], ours[k]) for k in ours), "the names of Meta's checkpoint do not fit"
    return meta.eval()


def automatic(meta, picture, prefix, expected, **options):
    from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator
    generator = SAM2AutomaticMaskGenerator(meta, output_mode="binary_mask", **options)
    generator.predictor._bb_feat_sizes = [(SIDE // k, SIDE // k) for k in (4, 8, 16)]
    masks = generator.generate(np.asarray(picture))
    expected[f"{prefix}.masks"] = torch.from_numpy(np.stack([m["segmentation"] for m in masks])).to(torch.uint8)
    for key, name in (("predicted_iou", "iou"), ("stability_score", "stability"), ("bbox", "box"), ("crop_box", "crop")):
        expected[f"{prefix}.{name}"] = torch.tensor([m[key] for m in masks], dtype=torch.float32)
    expected[f"{prefix}.point"] = torch.tensor([m["point_coords"][0] for m in masks], dtype=torch.float32)
    print(prefix, len(masks), "masks")


def parts(expected):
    """Functions of Meta's generator and of torchvision by themselves, on boxes that a network with made-up weights does not give."""
    from sam2.utils.amg import generate_crop_boxes, is_box_near_crop_edge
    from torchvision.ops import batched_nms
    g = torch.Generator().manual_seed(5)
    corners = torch.randint(0, 300, (200, 2), generator=g)
    boxes = torch.cat([corners, corners + torch.randint(1, 120, (200, 2), generator=g)], 1).float()
    scores = torch.randint(0, 50, (200,), generator=g).float() / 50   # with ties
    expected.update({"parts.boxes": boxes, "parts.scores": scores})
    for name, limit in (("loose", 0.7), ("tight", 0.2)):
        # The order of equal scores is not defined there: made distinct by their place.
        distinct = scores - torch.arange(200) * 1e-5
        expected[f"parts.nms_{name}"] = batched_nms(boxes, distinct, torch.zeros(200), limit).to(torch.int32)
    for h, w in ((90, 150), (400, 300), (1080, 1920)):
        crops, layers = generate_crop_boxes((h, w), 2, 512 / 1500)
        expected[f"parts.crops.{w}x{h}"] = torch.tensor([c + [k] for c, k in zip(crops, layers)], dtype=torch.int32)
    near = is_box_near_crop_edge(boxes, [100, 50, 350, 260], [0, 0, 420, 260])
    expected["parts.near_edge"] = near.to(torch.uint8)


def video_session(frames, side=SIDE, device="cpu", dtype=torch.float32):
    """Upstream's session and processor of a video."""
    size = dict(height=side, width=side)
    processor = Sam2VideoProcessor(Sam2ImageProcessor(size=size), Sam2VideoVideoProcessor(size=size), target_size=side)
    w, h = frames[0].size
    stack = torch.cat([pixels(f, side) for f in frames])
    return lambda: Sam2VideoInferenceSession(
        video=stack, video_height=h, video_width=w, dtype=dtype, inference_device=device, video_storage_device=device), processor


def enlarged(out, size):
    """A frame's masks at the video's size."""
    w, h = size
    return (torch.nn.functional.interpolate(out.pred_masks.float(), (h, w), mode="bilinear", align_corners=False)[:, 0] > 0).cpu()


def keep_frames(expected, size, prefix, outs):
    """Masks of a video's size, and scores, by frame."""
    for o in outs:
        masks = enlarged(o, size)
        expected[f"{prefix}.{o.frame_idx}"] = masks.to(torch.uint8)
        expected[f"{prefix}.{o.frame_idx}.score"] = o.object_score_logits.flatten().clone()
        print(prefix, o.frame_idx, [round(v, 3) for v in masks.float().mean((1, 2)).tolist()], o.object_score_logits.flatten().tolist())


def video(model, frames, expected):
    """Object 1: two clicks on frame 0, one more on frame 5 after the first pass. Object 2: a box on frame 2. Then frames 0 to 7 forwards,
    and from 5 backwards. Last a session with a mask as the prompt."""
    new_session, processor = video_session(frames)
    session = new_session()
    keep = lambda prefix, outs: keep_frames(expected, frames[0].size, prefix, outs)
    with torch.no_grad():
        processor.add_inputs_to_inference_session(session, 0, 1, input_points=[[[[35, 40], [80, 20]]]], input_labels=[[[1, 0]]])
        keep("video.click", [model(session, frame_idx=0)])
        processor.add_inputs_to_inference_session(session, 2, 2, input_boxes=[[[70, 40, 110, 80]]])
        keep("video.box", [model(session, frame_idx=2)])
        keep("video.forward", model.propagate_in_video_iterator(session, start_frame_idx=0))
        processor.add_inputs_to_inference_session(session, 5, 1, input_points=[[[[50, 45]]]], input_labels=[[[1]]])
        keep("video.again", [model(session, frame_idx=5)])
        keep("video.backward", model.propagate_in_video_iterator(session, start_frame_idx=5, reverse=True))
        session = new_session()
        given = expected["video.forward.0"][:1].clone()
        expected["video.given"] = given
        processor.add_inputs_to_inference_session(session, 0, 1, input_masks=given[0].bool())
        keep("video.mask", [model(session, frame_idx=0)])
        keep("video.from_mask", model.propagate_in_video_iterator(session, start_frame_idx=0, max_frame_num_to_track=3))


# Frames of the long video, and what is said on its first: a click on object 1, a box around object 2, in pixels of 140 x 96.
LONG, CLICK, BOX = 20, [48, 45], [80, 40, 116, 80]


def long_frames(times=1):
    """A red disc that goes right and a blue square that goes left, through each other's columns; three pixels a frame, all `times` as large."""
    return [draw(140 * times, 96 * times, shift=3 * t * times, seed=10 + t) for t in range(LONG)]


def followed(model, frames, times=1, side=SIDE, device="cpu", dtype=torch.float32):
    """What Sam2VideoModel says of each frame of the long video. All frames forwards: the memory is full from frame 6 on, and pointers
    of the first frames are forgotten from frame 16 on."""
    new_session, processor = video_session(frames, side, device, dtype)
    session = new_session()
    scaled = lambda values: [v * times for v in values]
    processor.add_inputs_to_inference_session(session, 0, 1, input_points=[[[scaled(CLICK)]]], input_labels=[[[1]]])
    model(session, frame_idx=0)
    processor.add_inputs_to_inference_session(session, 0, 2, input_boxes=[[scaled(BOX)]])
    model(session, frame_idx=0)
    yield from model.propagate_in_video_iterator(session, start_frame_idx=0)


def long_video(model, out):
    frames, expected = long_frames(), {}
    os.makedirs(os.path.join(out, "long"), exist_ok=True)
    for t, frame in enumerate(frames):
        frame.save(os.path.join(out, "long", f"{t:02}.png"), optimize=True)
    with torch.no_grad():
        keep_frames(expected, frames[0].size, "long", followed(model, frames))
    save_file({k: v.contiguous().clone() for k, v in expected.items()}, os.path.join(out, "long.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meta")
    parser.add_argument("--long-video", action="store_true")
    parser.add_argument("--out", default="twin")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not (args.meta or args.long_video):
        parser.error("--meta or --long-video")
    torch.manual_seed(0)
    torch.set_num_threads(2)
    os.makedirs(args.out, exist_ok=True)
    model = ex.made_up(Sam2VideoModel(ex.configuration("twin")), args.seed, 7).eval()
    model.shared_image_embedding.positional_embedding.copy_(model.prompt_encoder.shared_embedding.positional_embedding)
    long_video(model, args.out)
    if args.long_video:
        return
    import_meta(args.meta)
    meta = meta_model(model)
    entry_references(model, args.out)
    picture, square, frames = draw(150, 90), draw(110, 110, seed=1), [draw(140, 96, shift=3 * t, seed=10 + t) for t in range(8)]
    os.makedirs(os.path.join(args.out, "frames"), exist_ok=True)
    picture.save(os.path.join(args.out, "picture.png"), optimize=True)
    square.save(os.path.join(args.out, "square.png"), optimize=True)
    for t, frame in enumerate(frames):
        frame.save(os.path.join(args.out, "frames", f"{t:02}.png"), optimize=True)
    expected = {}
    segment(model, picture, expected)
    limits = dict(points_per_side=6, points_per_batch=16, pred_iou_thresh=0.5, stability_score_thresh=0.55)
    automatic(meta, square, "automatic", expected, box_nms_thresh=1.0, **limits)
    automatic(meta, picture, "crops", expected, crop_n_layers=1, crop_n_points_downscale_factor=2, box_nms_thresh=0.995, crop_nms_thresh=0.9, **limits)
    parts(expected)
    video(model, frames, expected)
    save_file({k: v.contiguous().clone() for k, v in expected.items()}, os.path.join(args.out, "expected.safetensors"))


if __name__ == "__main__":
    main()
