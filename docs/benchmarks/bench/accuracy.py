"""Errors against a reference in f64, beside PyTorch's own: a figure counts only if the result is right."""

import copy

import torch

# Bounds on our error, in PyTorch's own of the same precision: RMS and largest. From the accuracy gates of the project.
GATES = {torch.float32: (2.0, 4.0), torch.float16: (1.25, 3.0), torch.bfloat16: (1.25, 3.0)}
# What is forgiven where PyTorch happens to be exact: this many roundings of a value of the output's own size.
FLOOR_ROUNDINGS = 2.0
REAL = (torch.float16, torch.bfloat16, torch.float32)


def flat(outputs):
    """The floating-point tensors of a result, in order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [t for o in outputs for t in flat(o)] if isinstance(outputs, (tuple, list)) else []


def in_double(module):
    """A copy that computes in f64: weights, and the element types that the graph names."""
    module = copy.deepcopy(module).double()
    widen = lambda value: torch.float64 if value in REAL else value
    for part in module.modules():
        for name, value in list(vars(part).items()):  # Constants of a program are no buffers.
            if isinstance(value, torch.Tensor) and value.dtype in REAL:
                setattr(part, name, value.double())
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.args = torch.fx.node.map_aggregate(node.args, widen)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, widen)
            part.recompile()
    return module


def _errors(got, want, where):
    """RMS and largest error where a value is expected."""
    difference = (got.double() - want)[where].abs()
    return (difference.square().mean().sqrt().item(), difference.max().item()) if difference.numel() else (0.0, 0.0)


def judge(ours, theirs, exact, precision):
    """The worst ratios of our RMS and largest error to PyTorch's, over all outputs, and whether they keep the gate.

    Made-up inputs may overflow in the precision at hand: where PyTorch's own result is not finite, nothing is expected.
    """
    rms_gate, max_gate = GATES[precision]
    worst = {"rms": 0.0, "max": 0.0, "relative": 0.0, "passed": True}
    for got, peer, want in zip(ours, theirs, exact, strict=True):
        if not want.dtype.is_floating_point or not want.numel():
            worst["passed"] &= got.shape == want.shape
            continue
        got = got.to(want.device)
        where = torch.isfinite(peer) & torch.isfinite(want)
        size = want[where].square().mean().sqrt().item() if where.any() else 0.0
        floor = FLOOR_ROUNDINGS * torch.finfo(precision).eps * size + 1e-30
        (rms, largest), (peer_rms, peer_largest) = _errors(got, want, where), _errors(peer, want, where)
        finite = torch.isfinite(got[where]).all().item()
        worst["rms"] = max(worst["rms"], rms / max(peer_rms, floor / 100))
        worst["max"] = max(worst["max"], largest / max(peer_largest, floor / 100))
        worst["relative"] = max(worst["relative"], rms / (size + 1e-30))
        worst["passed"] &= finite and rms <= rms_gate * peer_rms + floor and largest <= max_gate * peer_largest + 4 * floor
    return worst
