#!/usr/bin/env python3
"""Exports the program of this example: a picture of bytes, softened.

    python export.py     needs torch 2.11

The input is `u8[H, W, 4]`, red, green, blue and opacity as VK_FORMAT_R8G8B8A8 has them, so that a `VkImage` is copied to it and
from the output without any conversion. Weights are multiples of 1/16 and bytes are small integers: every sum is exact in f32, so
that anyone's result is the same to the byte.
"""
import os

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Soften(nn.Module):
    """[1 2 1] x [1 2 1] / 16, edges repeated, opacity left alone."""

    def __init__(self):
        super().__init__()
        line = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("weight", (line[:, None] * line / 16).expand(3, 1, 3, 3).contiguous())

    def forward(self, image):
        planes = image[:, :, :3].permute(2, 0, 1).unsqueeze(0).to(torch.float32)
        planes = nn.functional.pad(planes, (1, 1, 1, 1), mode="replicate")
        soft = nn.functional.conv2d(planes, self.weight, groups=3)
        colours = soft.round()[0].permute(1, 2, 0).to(torch.uint8)
        return torch.cat([colours, image[:, :, 3:]], dim=2)


if __name__ == "__main__":
    height, width = torch.export.Dim("height", min=1, max=512), torch.export.Dim("width", min=1, max=512)
    example = torch.zeros(48, 64, 4, dtype=torch.uint8)
    program = torch.export.export(Soften(), (example,), dynamic_shapes={"image": {0: height, 1: width}})
    for node in program.graph.nodes:
        if "stack_trace" in node.meta:
            node.meta["stack_trace"] = node.meta["stack_trace"].replace(HERE + os.sep, "")
    torch.export.save(program, os.path.join(HERE, "soften.pt2"))
