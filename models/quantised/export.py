"""Quantised archives of torchao and PT2E, each a few KB, with references from PyTorch on the CPU.

python export.py FOLDER     (torch 2.11.0, torchao 0.18.0, safetensors 0.6; seed 0)

Writes NAME.pt2, where PyTorch can decompose it NAME.core.pt2, and NAME.safetensors with in.N and out.N. Names say the form: w8
(int8 weights, a scale for each output), w4g32 (4 bits, a scale for each 32 inputs, asym with zero points), dyn8 (activations
quantised by their range at run time), pt2e (quantise and dequantise pairs that convert_pt2e leaves), subclass (weights that are
still tensor subclasses, which jvc refuses).

compiler/tests/data/torchao.tar.gz holds those that tests/torchao.rs names:

    tar --sort=name --mtime=@0 --owner=0 --group=0 -c NAME… | gzip -9n
"""

import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

warnings.filterwarnings("ignore")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 32)
        self.down = nn.Linear(32, 32, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def weight_only(config, unwrap=True):
    from torchao.quantization import quantize_
    from torchao.utils import unwrap_tensor_subclass

    model = Mlp().eval()
    quantize_(model, config, lambda module, name: isinstance(module, nn.Linear))
    # Otherwise the archive holds pickled tensor subclasses instead of their integers and scales.
    return unwrap_tensor_subclass(model) if unwrap else model, (torch.randn(5, 64),)


def pt2e(model, inputs, per_channel=True):
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    config = get_symmetric_quantization_config(is_per_channel=per_channel)
    quantizer = XNNPACKQuantizer().set_global(config)
    prepared = prepare_pt2e(torch.export.export(model.eval(), inputs).module(), quantizer)
    for _ in range(4):
        prepared(*[torch.randn_like(i) for i in inputs])
    return convert_pt2e(prepared), inputs


def forms():
    from torchao.quantization import (
        Int4WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerAxis,
        PerGroup,
    )
    from torchao.quantization.quant_primitives import MappingType

    return {
        "w8": lambda: weight_only(Int8WeightOnlyConfig()),
        "intx8": lambda: weight_only(IntxWeightOnlyConfig(torch.int8, PerAxis(0))),
        "w4g32": lambda: weight_only(IntxWeightOnlyConfig(torch.int4, PerGroup(32))),
        "w4g32_asym": lambda: weight_only(IntxWeightOnlyConfig(torch.int4, PerGroup(32), mapping_type=MappingType.ASYMMETRIC)),
        "w2g16": lambda: weight_only(IntxWeightOnlyConfig(torch.int2, PerGroup(16))),
        "int4_tiled": lambda: weight_only(Int4WeightOnlyConfig(group_size=32)),
        "subclass": lambda: weight_only(IntxWeightOnlyConfig(torch.int8, PerAxis(0)), unwrap=False),
        "dyn8": lambda: weight_only(Int8DynamicActivationInt8WeightConfig()),
        "pt2e_linear": lambda: pt2e(Mlp(), (torch.randn(5, 64),)),
        "pt2e_linear_tensor": lambda: pt2e(Mlp(), (torch.randn(5, 64),), per_channel=False),
        "pt2e_conv": lambda: pt2e(Conv(), (torch.randn(2, 8, 9, 9),)),
    }


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in forms().items():
        torch.manual_seed(0)
        try:
            model, inputs = make()
            with torch.no_grad():
                outputs = flat(model(*inputs))
                program = torch.export.export(model, inputs)
                torch.export.save(program, folder / f"{name}.pt2")
        except Exception as e:  # noqa: BLE001: what cannot be exported is part of the result
            print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0][:150]}")
            continue
        tensors = {f"in.{i}": t.contiguous() for i, t in enumerate(inputs)}
        tensors |= {f"out.{i}": t.contiguous().clone() for i, t in enumerate(outputs)}
        save_file(tensors, folder / f"{name}.safetensors")
        targets = sorted({str(n.target) for n in program.graph.nodes if n.op == "call_function"})
        print(f"{name}: {' '.join(targets)}")
        try:
            torch.export.save(program.run_decompositions(), folder / f"{name}.core.pt2")
        except Exception as e:  # noqa: BLE001
            print(f"{name}.core: {type(e).__name__}: {str(e).splitlines()[0][:150]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
