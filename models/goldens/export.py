#!/usr/bin/env python3
"""Exports the programs whose compilation is under review in target-artifacts/.

    python export.py [RESNET18.pt2]     needs torch 2.11 and safetensors

Beside this file it writes NAME.pt2 and NAME.safetensors of programs that are kept as whole crates (weights and inputs are
seeded; `in.N` are inputs, `out.N` PyTorch's outputs), and NAME.model.json.gz, the graph without weights, of those that are kept
as text (resnet18_small is compiled by compiler/tests/chunks.rs alone). resnet18 is the fixture of that name (models/fixtures).
"""
import gzip
import os
import sys
import zipfile

import torch
from safetensors.torch import save_file
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Mlp(nn.Module):
    """The tiny model of docs/walkthrough.md."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(5, 7)
        self.fc2 = nn.Linear(7, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class ConvBlock(nn.Module):
    """Strided convolution, normalisation, activation, depthwise convolution, residual, pooling."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)

    def forward(self, image):
        x = nn.functional.silu(self.norm(self.down(image)))
        x = x + self.point(torch.relu(self.depthwise(x)))
        return x, x.mean((2, 3))


class AttentionBlock(nn.Module):
    """Pre-norm attention and feed-forward, as in every transformer; two layers, so that they repeat."""

    def __init__(self, width=48, heads=3):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Residual(nn.Module):
    """A basic block of a residual network."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.skip = nn.Identity()
        if stride != 1 or before != width:
            self.skip = nn.Sequential(nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.skip(x))


class ResnetForSmallImages(nn.Module):
    """ResNet-18 as it is used on images of 32 by 32 (no stride and no pooling at its start), of a quarter of the width: no tensor is
    larger than 1 MiB at a batch of 16, all weights together are, and so are three activations."""

    def __init__(self, width=16):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        pairs = [(a, b, i > 0) for i, (a, b) in enumerate(zip(widths, widths[1:]))]
        self.blocks = nn.Sequential(*[
            nn.Sequential(Residual(a, b, 2 if halves else 1), Residual(b, b, 1)) for a, b, halves in pairs])
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, image):
        x = self.blocks(torch.relu(self.norm(self.conv(image))))
        return self.fc(x.mean((2, 3)))


def randomise_statistics(module):
    """Running statistics as after training, so that folding them is seen."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)


CRATES = {
    "mlp": (Mlp, (2, 5)),
    "conv_block": (ConvBlock, (1, 3, 13, 17)),
}
TEXTS = {
    "attention_block": (lambda: nn.Sequential(AttentionBlock(), AttentionBlock()), (1, 37, 48)),
    "resnet18_small": (ResnetForSmallImages, (16, 3, 32, 32)),
}


def path(name):
    return os.path.join(HERE, name)


def write_graph(archive, name):
    """The graph of an archive, without weights."""
    with zipfile.ZipFile(archive) as entries:
        model = next(n for n in entries.namelist() if n.endswith("models/model.json"))
        with open(path(name + ".model.json.gz"), "wb") as out:
            out.write(gzip.compress(entries.read(model), 9, mtime=0))


def main():
    for name, (make, shape) in (CRATES | TEXTS).items():
        torch.manual_seed(0)
        module = make().eval()
        randomise_statistics(module)
        x = torch.randn(shape)
        torch.export.save(torch.export.export(module, (x,)), path(name + ".pt2"))
        if name in TEXTS:
            write_graph(path(name + ".pt2"), name)
            os.remove(path(name + ".pt2"))
            continue
        with torch.no_grad():
            outputs = torch.utils._pytree.tree_leaves(module(x))
        tensors = {"in.0": x} | {f"out.{i}": t.contiguous() for i, t in enumerate(outputs)}
        save_file(tensors, path(name + ".safetensors"))
    for archive in sys.argv[1:]:
        write_graph(archive, os.path.basename(archive).removesuffix(".pt2"))


if __name__ == "__main__":
    main()
