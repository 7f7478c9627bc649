"""What is measured beside whole models: single kernels at the shapes of the models, as PyTorch modules with their inputs."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional

HALF, FLOAT = torch.float16, torch.float32


@dataclasses.dataclass
class Case:
    """One kernel: inputs are drawn from the normal distribution in `dtype`."""

    family: str
    name: str
    module: nn.Module
    shapes: list
    dtype: torch.dtype
    # What one run computes (floating-point operations) and at least moves (bytes), for the columns of rates.
    flops: float = 0.0
    bytes: float = 0.0
    # Copies of each dispatch between two barriers.
    side_by_side: int = 1
    # Repetitions in one submission: a barrier, or a graph's edge, lies between each two.
    chain: int = 20


class Attention(nn.Module):
    """Scaled dot-product attention over (batch, heads, length, E) tensors."""

    def __init__(self, masked=False):
        super().__init__()
        self.masked = masked

    def forward(self, q, k, v, *mask):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[0] if self.masked else None)


class Recurrent(nn.Module):
    """A stack of GRU layers over (batch, steps, features): all outputs, without the last state."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.GRU(width, width, layers, batch_first=True)

    def forward(self, x):
        return self.layers(x)[0]


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def _size(dtype):
    return torch.empty((), dtype=dtype).element_size()


def _gemm(m, n, k, dtype, side_by_side=1):
    name = f"{m}×{n}×{k}" + (f", {side_by_side} between barriers" if side_by_side > 1 else "")
    moved = (m * k + n * k + m * n) * _size(dtype)
    family = "GEMV" if m <= 8 else "GEMM"
    return Case(family, name, nn.Linear(k, n), [(m, k)], dtype, 2.0 * m * n * k, moved, side_by_side)


def _attention(name, batch, heads, queries, keys, e, dtype, masked=False):
    shapes = [(batch, heads, queries, e), (batch, heads, keys, e), (batch, heads, keys, e)]
    moved = 2.0 * batch * heads * (queries + keys) * e * _size(dtype)
    if masked:
        shapes.append((1, 1, queries, keys))
    flops = 4.0 * batch * heads * queries * keys * e
    return Case("attention", name, Attention(masked), shapes, dtype, flops, moved)


def _conv(name, module, shape, dtype):
    """The number of operations follows from the output's size, by a run on the `meta` device."""
    out = module.to("meta")(torch.empty(shape, device="meta"))
    module = module.to_empty(device="cpu")
    _fill(module)
    weight = module.weight.numel()
    positions = out[0, 0].numel() if not isinstance(module, nn.ConvTranspose2d) else torch.empty(shape, device="meta")[0, 0].numel()
    moved = (torch.empty(shape, device="meta").numel() + out.numel() + weight) * _size(dtype)
    return Case("convolution", name, module, [shape], dtype, 2.0 * shape[0] * positions * weight, moved)


def _fill(module):
    for parameter in module.parameters():
        bound = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
        nn.init.uniform_(parameter, -bound, bound)


def _row(name, module, shapes, dtype, n_passes=2):
    elements = torch.empty(shapes[0], device="meta").numel()
    return Case("rows and movement", name, module, shapes, dtype, 0.0, n_passes * elements * _size(dtype))


def _gemms():
    shapes = [
        (4096, 4096, 4096), (8192, 8192, 8192), (1500, 1280, 1280), (4096, 1152, 4608), (16384, 144, 576), (256, 256, 4096),
    ]
    for shape in shapes:
        for dtype in (HALF, torch.bfloat16, FLOAT):
            if dtype != torch.bfloat16 or shape[0] == 4096:
                yield _gemm(*shape, dtype)
        if shape[0] < 8192:
            yield _gemm(*shape, HALF, side_by_side=4)
    for m, n, k in [(1, 1280, 5120), (1, 5120, 1280), (4, 1280, 1280), (1, 16384, 4096)]:
        for dtype in (HALF, FLOAT):
            yield _gemm(m, n, k, dtype)


def _attentions():
    for dtype in (HALF, FLOAT):
        yield _attention("SAM 2 global", 1, 8, 4096, 4096, 72, dtype)
        yield _attention("SAM 2 windows of 64", 256, 2, 64, 64, 72, dtype)
        yield _attention("SAM 2 windows of 256", 16, 8, 256, 256, 72, dtype)
        yield _attention("Whisper encoder", 1, 20, 1500, 1500, 64, dtype)
        yield _attention("Depth Anything", 1, 6, 1370, 1370, 64, dtype)
        yield _attention("decode, 448 keys", 1, 20, 1, 448, 64, dtype)
        yield _attention("decode, 1500 keys", 1, 20, 1, 1500, 64, dtype)
        yield _attention("Depth Anything with a mask", 1, 6, 1370, 1370, 64, dtype, masked=True)


def _convolutions():
    for dtype in (HALF, FLOAT):
        yield _conv("RIFE 3×3, 192 channels, 36×60", nn.Conv2d(192, 192, 3, padding=1), (1, 192, 36, 60), dtype)
        yield _conv("RIFE 3×3, 64 channels, 144×240", nn.Conv2d(64, 64, 3, padding=1), (1, 64, 144, 240), dtype)
        yield _conv("RIFE first, 3×3/2, 15 to 32", nn.Conv2d(15, 32, 3, stride=2, padding=1), (1, 15, 288, 480), dtype)
        yield _conv("RIFE transposed 4×4/2", nn.ConvTranspose2d(192, 52, 4, 2, 1), (1, 192, 36, 60), dtype)
        yield _conv("BasicVSR++ 3×3, 64 channels, 180×320", nn.Conv2d(64, 64, 3, padding=1), (1, 64, 180, 320), dtype)
        yield _conv("Depth head 3×3, 64 to 32, 296×296", nn.Conv2d(64, 32, 3, padding=1), (1, 64, 296, 296), dtype)
        yield _conv("ResNet 7×7/2, 3 to 64", nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 224, 224), dtype)
        yield _conv("ResNet 3×3, 128 channels, 28×28", nn.Conv2d(128, 128, 3, padding=1), (1, 128, 28, 28), dtype)
        yield _conv("ResNet 1×1, 256 to 64, 56×56", nn.Conv2d(256, 64, 1), (1, 256, 56, 56), dtype)
        yield _conv("SAM 2 neck 1×1, 576 to 256, 128×128", nn.Conv2d(576, 256, 1), (1, 576, 128, 128), dtype)
        yield _conv("depthwise 7×7, 96 channels, 128×128", nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 128, 128), dtype)
        yield _conv("HTDemucs 1-D, 8/4, 48 to 96", nn.Conv1d(48, 96, 8, 4, 2), (1, 48, 85996), dtype)


def _rows():
    big = (8192, 8192)
    for dtype in (HALF, FLOAT):
        yield _row("copy", Apply(lambda x: x.clone()), [big], dtype)
        yield _row("GELU", nn.GELU(), [big], dtype)
        yield _row("add", Apply(torch.add), [big, big], dtype, n_passes=3)
        yield _row("transpose", Apply(lambda x: x.t().contiguous()), [big], dtype)
        yield _row("LayerNorm, rows of 1,280", nn.LayerNorm(1280), [(48000, 1280)], dtype)
        yield _row("softmax, rows of 1,500", nn.Softmax(-1), [(30000, 1500)], dtype)
        yield _row("GroupNorm, 32 groups", nn.GroupNorm(32, 256), [(4, 256, 256, 256)], dtype)
        yield _row("sum, rows of 8,192", Apply(lambda x: x.sum(-1)), [big], dtype, n_passes=1)


def _recurrent():
    for name, layers in (("GRU", 1), ("GRU, 3 layers", 3)):
        yield Case("recurrent", f"{name}, 256, 200 steps", Recurrent(256, layers), [(1, 200, 256)], FLOAT)


def _others():
    yield Case("sort", "topk 30 of 2,880, 9,216 rows", Apply(lambda x: torch.topk(x, 30)[0]), [(9216, 2880)], FLOAT)
    yield Case("sort", "cumsum of 211,211", Apply(lambda x: torch.cumsum(x, -1)), [(1, 211211)], FLOAT)


def _networks():
    """Classical networks, with the weights that they are made with: whole models, but small enough to be exported here."""
    try:
        from torchvision import models
    except ImportError:
        return
    for name in ("resnet18", "resnet50", "vit_b_16", "swin_t"):
        network = models.get_model(name, weights=None)
        for weight in network.parameters():
            if weight.dim() > 1 and not weight.any():  # A head of zeros would hide every error.
                nn.init.normal_(weight, std=0.02)
        yield Case("networks", name, network, [(1, 3, 224, 224)], HALF, chain=1)


def all_cases():
    """Every kernel, in the order of the table. Weights are the same in each process."""
    torch.manual_seed(0)
    for make in (_attentions, _gemms, _convolutions, _rows, _recurrent, _others, _networks):
        yield from make()
