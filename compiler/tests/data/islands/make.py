#!/usr/bin/env python3
"""Makes hopeless.pt2, a program with two branches that halves ruin and two that they do not, and hopeless.safetensors, inputs with what
PyTorch computes of them in f32 and f64.

    python make.py

Needs torch 2.11 and safetensors.
"""
import copy

import torch
from safetensors.torch import save_file
from torch import nn


class Hopeless(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        # Two large results that are almost the same, what their difference is, and what their sum.
        self.wide, self.near, self.last = nn.Linear(32, 24), nn.Linear(32, 24), nn.Linear(24, 8)
        self.mean = nn.Linear(24, 8)
        # The argument of an exponential, which halves move a little.
        self.score = nn.Linear(32, 16)
        # Beyond 65504, and back.
        self.up, self.act, self.down = nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)
        self.calm, self.quiet = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        wide, near = self.wide(h), self.near(h)
        difference = self.last(wide - near) + self.mean(torch.sigmoid((wide + near) * 0.001))
        score = self.score(h)
        weights = torch.exp(score - score.amax(-1, keepdim=True))
        large = self.down(self.act(self.up(h)))
        return difference, weights, large, self.quiet(torch.sigmoid(self.calm(h)))


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Hopeless().eval()
    with torch.no_grad():
        module.wide.weight.mul_(20)
        module.wide.bias.add_(300)
        module.near.weight.copy_(module.wide.weight + 0.3 * torch.randn(24, 32))
        module.near.bias.copy_(module.wide.bias + torch.randn(24))
        module.score.weight.mul_(60)
        module.up.weight.mul_(1e6)
        module.down.weight.mul_(1e-5)
        samples = {}
        for prefix in ("", "alt.0."):
            x = torch.randn(12, 16)
            samples[prefix + "in.0"] = x
            for i, (own, exact) in enumerate(zip(module(x), copy.deepcopy(module).double()(x.double()))):
                samples[f"{prefix}out.{i}"], samples[f"{prefix}out64.{i}"] = own, exact
        torch.export.save(torch.export.export(module, (samples["in.0"],)), "hopeless.pt2")
    save_file(samples, "hopeless.safetensors")
