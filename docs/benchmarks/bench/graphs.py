"""Real-size exported graphs as PyTorch modules: `model.json.gz` files come without weights, so both sides get the same made-up ones."""

import contextlib
import gzip
import json
import math

import torch
from torch.utils import _pytree
from torch._export.serde import serialize
from torch._export.serde.schema import ExportedProgram
from torch.export.passes import move_to_device_pass

with contextlib.suppress(ImportError):
    import torchvision  # noqa: F401 (deformable convolutions are its operators)

WEIGHT_KINDS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
DTYPES = serialize._SERIALIZE_TO_TORCH_DTYPE


def _literal(numbers):
    """Serialised sizes or strides as integers, or None."""
    values = [number.value for number in numbers]
    return values if all(isinstance(value, int) for value in values) else None


def _sizes(meta):
    return _literal(meta.sizes)


def _weight(name, meta, generator):
    """Values that keep activations finite, by what the name suggests: as `jvc --random-weights` chooses them."""
    sizes, dtype = _sizes(meta), DTYPES[meta.dtype]
    if not dtype.is_floating_point:
        return torch.zeros(sizes, dtype=dtype)
    unit = torch.rand(sizes, generator=generator) * 2 - 1
    if len(sizes) >= 2:
        reach = math.sqrt(3 / max(1, math.prod(sizes[1:])))
        return (unit * reach).to(dtype)
    if name.endswith("running_var"):
        return (1 + unit / 2).to(dtype)
    if name.endswith(("weight", "weight_g", "gamma", "scale")):
        return (1 + unit / 10).to(dtype)
    return (unit / 50).to(dtype)


def _input(meta, generator):
    """Values of an input, laid out as the program was exported with it: views of it depend on that."""
    sizes, dtype = _sizes(meta), DTYPES[meta.dtype]
    if dtype == torch.bool:
        values = torch.ones(sizes, dtype=dtype)
    elif not dtype.is_floating_point:
        values = torch.randint(0, 2, sizes, dtype=dtype, generator=generator)
    else:
        values = (torch.randn(sizes, generator=generator) * 0.5).to(dtype)
    return torch.empty_strided(sizes, _literal(meta.strides), dtype=dtype).copy_(values)


class Flat(torch.nn.Module):
    """A program that takes its inputs one by one, whatever containers it was exported with."""

    def __init__(self, program, constants):
        super().__init__()
        self.inner, self.containers, self.constants = program.module(), program.call_spec.in_spec, constants
        # torchvision starts the kernels of deformable convolutions on the default stream, whatever the current one is.
        self.capturable = not any("deform_conv2d" in str(node.target) for node in program.graph.nodes if node.op == "call_function")

    def forward(self, *inputs):
        leaves = list(inputs)
        for place, value in self.constants:
            leaves.insert(place, value)
        args, kwargs = _pytree.tree_unflatten(leaves, self.containers)
        return self.inner(*args, **kwargs)


def check_deformable(graph, device):
    """An error if the device's deformable convolution is wrong: torchvision goes on when its kernel could not start, and its kernels do not
    wait for what other streams still compute.

    Each shape of the graph is convolved with made-up values in f32 and f64 and compared with the CPU.
    """
    generator, checked = torch.Generator().manual_seed(2), set()
    for node in graph.nodes:
        if node.op != "call_function" or "deform_conv2d" not in str(node.target):
            continue
        metas = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
        shapes = tuple(tuple(meta.shape) for meta in metas if isinstance(meta, torch.Tensor))
        if shapes in checked:
            continue
        checked.add(shapes)
        args = [torch.randn(meta.shape, generator=generator) if isinstance(meta, torch.Tensor) else meta for meta in metas]
        want = node.target(*args)
        for dtype in (torch.float32, torch.float64):
            got = node.target(*(arg.to(device, dtype) if isinstance(arg, torch.Tensor) else arg for arg in args))
            off = (got.cpu().float() - want).norm() / want.norm()
            if not off < 1e-4:
                raise RuntimeError(f"torchvision's deform_conv2d of {dtype} is off by {off:.2g} of its result on this GPU: nothing to compare with")


def load(path, device):
    """The program as a module on a device, its weights by name, and its inputs; None where input sizes are symbolic."""
    program = serialize._dict_to_dataclass(ExportedProgram, json.loads(gzip.open(path).read()))
    values, generator = program.graph_module.graph.tensor_values, torch.Generator().manual_seed(1)
    weights, inputs, state, constants, numbers = {}, [], {}, {}, []
    for spec in program.graph_module.signature.input_specs:
        if spec.type == "user_input":
            name = getattr(spec.value.arg.value, "name", None)
            if name not in values or _sizes(values[name]) is None:
                return None
            inputs.append(_input(values[name], generator))
        elif spec.type == "constant_input":
            numbers.append((len(inputs) + len(numbers), spec.value.value.value))
        elif spec.type in WEIGHT_KINDS:
            name = getattr(spec.value, WEIGHT_KINDS[spec.type])
            weights[name] = _weight(name, values[spec.value.arg.name], generator)
            kept = spec.type == "parameter" or spec.type == "buffer" and spec.value.persistent
            (state if kept else constants)[name] = weights[name]
    for name, value in state.items():
        state[name] = torch.nn.Parameter(value, requires_grad=False)
    exported = serialize.ExportedProgramDeserializer().deserialize(program, state, constants)
    for node in list(exported.graph.nodes):
        # Its assertions on element types would fail under autocast and in f64; a view of a result that a GPU kernel lays out
        # otherwise would fail, too.
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            exported.graph.erase_node(node)
        elif node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    check_deformable(exported.graph, device)
    return Flat(move_to_device_pass(exported, device), numbers), weights, inputs
