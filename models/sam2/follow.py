#!/usr/bin/env python3
"""Whether the program `sam2` follows two objects through a video of 20 frames as PyTorch does: the masks of every frame beside each other.

    python export.py --random 1 --apart --size large --out programs      # then `jvc compile` and `cargo build`, as README.md says
    python follow.py --program runner/target/release/sam2 --random 1 --apart --size large [--cuda] [--half]

--program     the program, with what stands before it where something does: "drivers/run runner/target/release/sam2";
              or several, of several crates
--weights     its weight file, where that is not beside the program or the crate; or as many as there are programs
--checkpoint, --random, --apart, --size    the weights, as export.py was told
--cuda        PyTorch computes on the GPU
--half        also PyTorch's masks with everything in float16, as a yardstick for a crate of `--precision f16`
--work        a folder for frames and masks (default: one that is removed)
Needs what references.py needs without --meta.

The video is that of the twin's references, seven times as large for the other sizes (980 x 672): a disc and a square that pass each other. Object 1
is clicked on and object 2 gets a box, both on frame 0; then all frames forwards. PyTorch is transformers' Sam2VideoModel in float32 without
TF32. Ends with 1 where the IoU of a mask with PyTorch's is under 0.99, or where the masks say too little: a mask of under 5 % or over 95 %
of the picture, or the same mask for both objects (IoU over 0.95) on every frame but the first.
"""
import argparse
import copy
import os
import shlex
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from PIL import Image

import export as ex
import references

LEAST, SMALL, LARGE, SAME = 0.99, 0.05, 0.95, 0.95


def by_program(command, weights, frames, times, work):
    """The program's masks, `[frame][object]`, and the seconds of its process."""
    pictures, masks = os.path.join(work, "frames"), os.path.join(work, "masks")
    os.makedirs(pictures, exist_ok=True)
    for t, frame in enumerate(frames):
        frame.save(os.path.join(pictures, f"{t:02}.png"), compress_level=1)
    prompt = lambda values: ",".join(str(v * times) for v in values)
    started = time.time()
    subprocess.run([*shlex.split(command), "video", pictures, "--click", "0:1:" + prompt(references.CLICK), "--box", "0:2:" + prompt(references.BOX),
                    "-o", masks, "--cold-start", *(["--weights", weights] if weights else [])], check=True)
    took = time.time() - started
    read = lambda t, object: torch.from_numpy(np.asarray(Image.open(os.path.join(masks, f"{t:05}-{object}.png")).convert("L")) > 127)
    return [[read(t, object) for object in (1, 2)] for t in range(len(frames))], took


def by_pytorch(model, frames, times, device, dtype=torch.float32):
    """PyTorch's masks, `[frame][object]`, and the seconds that it took."""
    started = time.time()
    model = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        found = references.followed(model, frames, times, model.config.image_size, device, dtype)
        masks = [list(references.enlarged(out, frames[0].size)) for out in found]
    return masks, time.time() - started


def iou(a, b):
    return float((a & b).sum()) / max(float((a | b).sum()), 1.0)


def telling(masks):
    """Whether it says something that two agree in these masks: all are regions, and the objects' are not the same."""
    shares = [float(mask.float().mean()) for frame in masks for mask in frame]
    return all(SMALL <= share <= LARGE for share in shares) and min(iou(*frame) for frame in masks[1:]) <= SAME


def compare(exact, others):
    """Prints a line a frame; the least IoU with PyTorch's masks, of each of the others."""
    columns = [f"{name}, object {n}" for name in others for n in (1, 2)]
    print("IoU with PyTorch's masks in float32; shares are those of the picture.")
    print("| frame | share of object 1 | of object 2 | IoU of both | " + " | ".join(columns) + " |\n" + "| --- " * (4 + len(columns)) + "|")
    least = [1.0] * len(columns)
    for t, frame in enumerate(exact):
        found = [iou(masks[t][n], frame[n]) for masks in others.values() for n in (0, 1)]
        least = [min(pair) for pair in zip(least, found)]
        facts = [float(frame[0].float().mean()), float(frame[1].float().mean()), iou(*frame)]
        print(f"| {t} | " + " | ".join(f"{v:.3f}" for v in facts) + " | " + " | ".join(f"{v:.5f}" for v in found) + " |")
    print("| least | | | | " + " | ".join(f"{v:.5f}" for v in least) + " |", flush=True)
    return {name: min(least[2 * i:2 * i + 2]) for i, name in enumerate(others)}


def check(model, programs, weights, times, device, half, work):
    """Whether every program's masks are PyTorch's, and say something."""
    frames = references.long_frames(times)
    names = ["sam2"] if len(programs) == 1 else [os.path.basename(shlex.split(program)[-1]) for program in programs]
    others = {}
    for name, program, file in zip(names, programs, weights):
        others[name], took = by_program(program, file, frames, times, os.path.join(work, name))
        print(f"{name}: {took:.2f} s", flush=True)
    model = model.to(device)
    exact, took = by_pytorch(model, frames, times, device)
    print(f"PyTorch, float32: {took:.2f} s", flush=True)
    if half:
        others["PyTorch in float16"], took = by_pytorch(model, frames, times, device, torch.float16)
        print(f"PyTorch, float16: {took:.2f} s", flush=True)
    least = compare(exact, others)
    good = telling(exact)
    if not good:
        print("these masks say little: one is nearly empty or full, or both objects have the same")
    for name in names:
        agrees = least[name] >= LEAST
        print(f"{name}: least IoU {least[name]:.5f}, {'as' if agrees else 'NOT as'} PyTorch")
        good = good and agrees
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", nargs="+", required=True)
    parser.add_argument("--weights", nargs="+")
    ex.add_source(parser)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--work")
    args = parser.parse_args()
    weights = args.weights or [None] * len(args.program)
    if len(weights) != len(args.program):
        parser.error("as many weight files as programs")
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as temporary:
        good = check(ex.model_of(args), args.program, weights, 1 if args.size == "twin" else 7, "cuda" if args.cuda else "cpu", args.half, args.work or temporary)
    sys.exit(not good)


if __name__ == "__main__":
    main()
