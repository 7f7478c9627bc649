#!/usr/bin/env python3
"""Makes small.pt2, a program with something of everything that `jvc verify --refs` has to undo, and PyTorch's values at its nodes.

    python make.py && python ../../../../models/dump_refs.py small.pt2 --seed 1 -o small.refs.safetensors

Needs torch 2.11.
"""
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        a = torch.relu(self.norm(self.first(x)))
        b = torch.relu(self.second(a) + a)
        b.mul_(1.5)
        tokens = torch.cat([a, b], 1).flatten(2).transpose(1, 2)
        q, k, v = (f(tokens).view(1, 16, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 16, 16)
        spectrum = torch.fft.rfft(self.out(mixed), dim=1)
        best = tokens.sum(-1).argmax(-1)
        return torch.softmax(spectrum.abs(), -1), best


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Small().eval()
    with torch.no_grad():
        module.norm.running_var.uniform_(0.5, 1.5)
        module.norm.running_mean.uniform_(-0.5, 0.5)
    torch.export.save(torch.export.export(module, (torch.randn(1, 3, 4, 4),)), "small.pt2")
