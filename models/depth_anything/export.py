#!/usr/bin/env python3
"""Depth Anything V2 (Small) -> depth_anything_v2.pt2: a picture's bytes in, inverse depth out, at any size in steps of 14.

    python export.py --checkpoint DIR|FILE|NAME [--half] [--out DIR]     the trained weights
    python export.py --random SEED [--half] [--out DIR]                  random ones, for benchmarks and tests
    python export.py --twin --random SEED [--out DIR]                    a tiny model of the same kind

--checkpoint  a folder in the format of transformers (config.json and model.safetensors), its model.safetensors alone,
              or a name that transformers can download, as depth-anything/Depth-Anything-V2-Small-hf
--half        everything but the normalisation of pictures in float16, as `model.half()` does
--max-side    largest side in pixels, a multiple of 14: it decides how much memory the compiled program takes
--references  also writes depth_anything_v2.safetensors: pictures of several sizes and PyTorch's depth (in.N, out.N in the
              program's type, out64.N in float64; further sizes as alt.K.), and depth_anything_v2.f16.safetensors, what
              float16 gives; for `jvc verify`. And depth_anything_v2.pictures.safetensors: pictures, what upstream's
              image processor makes of them, and upstream's depth at their size
Needs torch 2.11, transformers 5.17, safetensors, numpy, pillow. On the CPU, deterministic.

The program takes pixels u8[1, 14h, 14w, 3] and gives inverse depth f32[1, 14h, 14w] (f16 with --half). Normalisation is
a part of it. Upstream's code is imported from transformers.
"""
import argparse
import copy
import os
import unittest.mock

import numpy as np
import PIL.Image
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config
from transformers.models.depth_anything import modeling_depth_anything
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil, get_resize_output_image_size

HERE = os.path.dirname(os.path.abspath(__file__))
PATCH = 14
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)     # of the checkpoint's preprocessor_config.json


def small_config():
    """The architecture of Depth Anything V2 Small."""
    backbone = Dinov2Config(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=PATCH,
                            out_features=["stage3", "stage6", "stage9", "stage12"], reshape_hidden_states=False,
                            apply_layernorm=True)
    return DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=384, patch_size=PATCH,
                               neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64, head_hidden_size=32)


def twin_config():
    """The same kind of network, as small as it gets; its positions are a grid of 7 x 7."""
    backbone = Dinov2Config(hidden_size=24, num_hidden_layers=4, num_attention_heads=2, image_size=98, patch_size=PATCH,
                            out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False,
                            apply_layernorm=True)
    return DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=24, patch_size=PATCH,
                               neck_hidden_sizes=[8, 12, 16, 24], fusion_hidden_size=16, head_hidden_size=8)


def random_model(config, seed):
    """Weights that keep values at their size from layer to layer, so that the result varies over the picture."""
    torch.manual_seed(seed)
    model = DepthAnythingForDepthEstimation(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 and "embeddings.position" not in name and "token" not in name:
                p.normal_(std=(p.numel() // p.shape[0]) ** -0.5 * 1.2)
            elif "position" in name or "token" in name:
                p.normal_(std=0.3)
            elif "bias" in name:
                p.normal_(std=0.1)
        model.head.conv3.bias.fill_(0.0)
        relu, model.head.activation2 = model.head.activation2, nn.Identity()
        raw = model((picture(280, 280, 0).permute(0, 3, 1, 2) / 255.0 - 0.45) / 0.226).predicted_depth
        model.head.activation2 = relu
        model.head.conv3.bias.fill_(2.0 * raw.std() - raw.mean())      # few zeros: depth is what this leaves above zero
    return model


def trained_model(checkpoint):
    if os.path.isfile(checkpoint):
        model = DepthAnythingForDepthEstimation(small_config())
        missing, unexpected = model.load_state_dict(load_file(checkpoint), strict=False)
        wrong = [name for name in missing if not name.endswith("mask_token")] + unexpected      # the mask is for training
        assert not wrong, f"{checkpoint} is no Depth Anything V2 Small in the format of transformers: {wrong[:5]}"
        return model
    return DepthAnythingForDepthEstimation.from_pretrained(checkpoint, dtype=torch.float32)


class Depth(nn.Module):
    """Normalisation and the network, in the type of its weights."""
    def __init__(self, model, wide=torch.float32):
        super().__init__()
        self.model, self.wide = model, wide
        self.register_buffer("mean", torch.tensor(MEAN, dtype=wide).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD, dtype=wide).view(1, 3, 1, 1))

    def forward(self, pixels):
        x = (pixels.permute(0, 3, 1, 2).to(self.wide) * (1 / 255) - self.mean) / self.std
        return self.model(x.to(self.model.dtype)).predicted_depth


def export(module, max_side, path):
    """Exports with symbolic sizes."""
    h, w = (torch.export.Dim(name, min=4, max=max_side // PATCH) for name in "hw")
    pixels = torch.zeros(1, 5 * PATCH, 6 * PATCH, 3, dtype=torch.uint8)
    # Two places of upstream would fix the sizes. Positions stay as they are where the picture has their size; upstream
    # always interpolates while it is traced, which gives the same. And the head takes `int` of a size, a fixed number.
    traced = unittest.mock.patch("torch.jit.is_tracing", return_value=True)
    as_is = unittest.mock.patch.object(modeling_depth_anything, "int", lambda size: size, create=True)
    with torch.no_grad(), traced, as_is:
        program = torch.export.export(module, (pixels,), dynamic_shapes={"pixels": {1: PATCH * h, 2: PATCH * w}}, strict=False)
    torch.export.save(program, path)
    print(f"{path}: {os.path.getsize(path)} bytes")


def picture(height, width, seed):
    """Waves and steps; of few levels, so that it compresses."""
    y, x = np.mgrid[0:height, 0:width] / 28.0
    waves = [np.sin(x * (c + 1) + seed) + np.cos(y * (3 - c)) + (x > y) for c in range(3)]
    return torch.from_numpy((np.stack(waves, -1) * 8 + 24).round().clip(0, 63).astype(np.uint8) * 4)[None]


def references(model, half, patches, path):
    """PyTorch's results at these sizes, in the model's own type, in float64 and in float16."""
    runs = {"out": Depth(copy.deepcopy(model).half() if half else model),
            "out64": Depth(copy.deepcopy(model).double(), torch.float64),
            "f16": Depth(copy.deepcopy(model).half())}
    tensors, f16 = {}, {}
    for k, (h, w) in enumerate(patches):
        prefix = f"alt.{k - 1}." if k else ""
        pixels = picture(PATCH * h, PATCH * w, k)
        tensors[prefix + "in.0"] = pixels
        with torch.no_grad():
            out = {name: module(pixels) for name, module in runs.items()}
        tensors[prefix + "out.0"], tensors[prefix + "out64.0"] = out["out"], out["out64"]
        f16[prefix + "out.0"] = out["f16"].float()
        spread = out["out64"].std() / out["out64"].mean()
        print(f"{PATCH * h} x {PATCH * w}: mean {out['out64'].mean():.3f}, spread {spread:.3f}")
    save_file(tensors, path + ".safetensors")
    save_file(f16, path + ".f16.safetensors")


def whole_pictures(model, path):
    """Upstream's own way from a picture to depth of its size: image processor, network, post-processing."""
    tensors = {}
    for k, (height, width) in enumerate([(90, 120), (151, 97), (70, 131)]):
        pixels = picture(height, width, k)[0].numpy()
        pixels[::7, ::5] = 255 - pixels[::7, ::5]                             # fine detail, which resampling smears
        processor = DPTImageProcessorPil(size={"height": 70, "width": 70}, ensure_multiple_of=PATCH, keep_aspect_ratio=True,
                                         image_mean=MEAN, image_std=STD)
        values = processor(PIL.Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        resized = (values * torch.tensor(STD).view(1, 3, 1, 1) + torch.tensor(MEAN).view(1, 3, 1, 1)) * 255
        with torch.no_grad():
            out = model(values)
        depth = processor.post_process_depth_estimation(out, target_sizes=[(height, width)])[0]["predicted_depth"]
        assert float((resized - resized.round()).abs().max()) < 1e-3, "the processor resamples bytes"
        tensors[f"{k}.picture"] = torch.from_numpy(pixels)
        tensors[f"{k}.resized"] = resized.round()[0].permute(1, 2, 0).to(torch.uint8).contiguous()
        tensors[f"{k}.network"], tensors[f"{k}.depth"] = out.predicted_depth[0], depth
    sizes = [(480, 640), (640, 480), (3024, 4032), (100, 100), (37, 1000), (519, 517), (1080, 1920), (300, 200), (518, 518), (1000, 531)]
    size = lambda s: get_resize_output_image_size(np.zeros((1, *s), bool), (518, 518), True, PATCH)
    tensors["sizes"] = torch.tensor([[*s, size(s).height, size(s).width] for s in sizes], dtype=torch.int32)
    save_file(tensors, path + ".pictures.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--checkpoint")
    weights.add_argument("--random", type=int, metavar="SEED")
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--max-side", type=int, default=1036)
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.checkpoint:
        model = trained_model(args.checkpoint)
    else:
        model = random_model(twin_config() if args.twin else small_config(), args.random)
    model.eval().requires_grad_(False)
    path = os.path.join(args.out, "depth_anything_v2")
    if args.references:
        references(model, args.half, [(5, 6), (4, 4), (4, 11)], path)
        whole_pictures(model, path)
    export(Depth(model.half() if args.half else model).eval(), args.max_side, path + ".pt2")


if __name__ == "__main__":
    main()
