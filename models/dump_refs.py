#!/usr/bin/env python3
"""Writes what PyTorch computes at every node of an exported program: the references of `jvc verify --refs`.

    python dump_refs.py model.pt2 --inputs in.safetensors -o model.refs.safetensors
    python dump_refs.py model.json.gz --random-weights 1 --seed 0 --nodes 'conv*' -o model.refs.safetensors

A program is what torch.export.save wrote, or the `model.json` (`.gz`) of one without its weights. It runs node by node on the CPU, twice:
in its own element types, and in float64 (parameters, inputs, constants, and every element type that a node names). Names are those of the
archive's nodes. The file holds

    in.N, out.N, out64.N   inputs, and results in the program's own types and in float64
    node.NAME              the value of a node in the program's own type
    node64.NAME            the same in float64; where an operator refused float64, the metadata say so
    half.NAME              the same under torch.autocast, with --autocast

Complex numbers have their two parts in a last dimension. What is kept is chosen by --nodes, --every, --no-views and --dtype-only; values go
to the file as they are made, so that memory holds no more than a run needs. Needs torch 2.11 and numpy; torchvision for its operators.
"""
import argparse
import contextlib
import fnmatch
import gzip
import json
import math
import os
import shutil
import struct
import sys

import numpy as np
import torch
from torch._export.serde import serialize
from torch._export.serde.schema import ExportedProgram as Serialized
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

with contextlib.suppress(ImportError):
    import torchvision  # noqa: F401 (its operators)

TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}
FROM_FILE = {name: dtype for dtype, name in TYPES.items()}
WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}
HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
ASSERTIONS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async")


class Writer:
    """A .safetensors file whose tensors are written one by one: the header has room for all, and is written last."""

    def __init__(self, path, n_tensors):
        self.path, self.entries, self.at = path, {}, 0
        self.file = open(path + ".part", "wb")
        self.room = (1024 + 200 * n_tensors) // 8 * 8
        self.file.seek(8 + self.room)

    def add(self, name, tensor):
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        kind = TYPES.get(tensor.dtype)
        if kind is None:
            return f"{tensor.dtype} has no name in the file"
        raw = tensor.resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        self.file.write(raw.data)
        offsets = [self.at, self.at + raw.nbytes]
        self.entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        self.at += raw.nbytes
        return None

    def close(self, metadata):
        self.entries["__metadata__"] = metadata
        header = json.dumps(self.entries, separators=(",", ":")).encode()
        if len(header) > self.room:
            # Long names, or many notes: once more, with room for them.
            room = (len(header) + 7) // 8 * 8
            self.file.close()
            os.replace(self.path + ".part", self.path + ".data")
            with open(self.path + ".data", "rb") as data, open(self.path + ".part", "wb") as to:
                data.seek(8 + self.room)
                to.seek(8 + room)
                shutil.copyfileobj(data, to)
            os.remove(self.path + ".data")
            self.file, self.room = open(self.path + ".part", "r+b"), room
        self.file.seek(0)
        self.file.write(struct.pack("<Q", self.room) + header.ljust(self.room))
        self.file.close()
        os.replace(self.path + ".part", self.path)


def read_tensors(path):
    """Tensors of a .safetensors file, by name."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        out = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            raw = torch.frombuffer(bytearray(file.read(end - start) or b"\0"), dtype=torch.uint8)[:end - start]
            out[name] = raw.view(FROM_FILE[entry["dtype"]]).reshape(entry["shape"])
    return out


def random_weight(name, sizes, dtype, seed):
    """The numbers of `jvc --random-weights`, bit for bit (compiler/src/import/random.rs)."""
    if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize == 1:
        return torch.zeros(sizes, dtype=dtype)
    if len(sizes) >= 2:
        high = math.sqrt(3.0 / max(1, math.prod(sizes[1:])))
        low = -high
    elif name.endswith("running_var"):
        low, high = 0.5, 1.5
    elif name.endswith(("weight", "weight_g", "gamma", "scale")):
        low, high = 0.9, 1.1
    else:
        low, high = -0.02, 0.02
    mask = (1 << 64) - 1
    state = seed ^ 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & mask
    n = math.prod(sizes) * (2 if dtype.is_complex else 1)
    with np.errstate(over="ignore"):
        # The first number is left out.
        z = np.uint64(state) + np.arange(2, n + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        unit = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    values = torch.from_numpy(low + (high - low) * unit)
    if dtype.is_complex:
        return torch.view_as_complex(values.reshape(*sizes, 2)).to(dtype)
    return values.to(dtype).reshape(sizes)


def load(path, seed):
    """The exported program. One without weights gets those of `jvc --random-weights SEED`."""
    if path.endswith(".pt2"):
        return torch.export.load(path)
    if seed is None:
        sys.exit(f"{path} has no weights: give --random-weights SEED, and the same to jvc")
    raw = (gzip.open if path.endswith(".gz") else open)(path).read()
    program = serialize._dict_to_dataclass(Serialized, json.loads(raw))
    metas, state, constants = program.graph_module.graph.tensor_values, {}, {}
    for spec in program.graph_module.signature.input_specs:
        field = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}.get(spec.type)
        if field is None:
            continue
        name, meta = getattr(spec.value, field), metas[spec.value.arg.name]
        sizes, dtype = [s.value for s in meta.sizes], serialize._SERIALIZE_TO_TORCH_DTYPE[meta.dtype]
        kept = spec.type == "parameter" or spec.type == "buffer" and spec.value.persistent
        value = random_weight(name, sizes, dtype, seed)
        if kept:
            state[name] = torch.nn.Parameter(value, requires_grad=False)
        else:
            constants[name] = value
    return serialize.ExportedProgramDeserializer().deserialize(program, state, constants)


def made_up(meta, generator):
    """An input for its recorded type."""
    sizes = [int(s) for s in meta.shape]
    if meta.dtype == torch.bool:
        return torch.ones(sizes, dtype=torch.bool)
    if not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        return torch.randint(0, 2, sizes, dtype=meta.dtype, generator=generator)
    values = (torch.randn([*sizes, 2] if meta.dtype.is_complex else sizes, generator=generator) * 0.5)
    return (torch.view_as_complex(values) if meta.dtype.is_complex else values).to(meta.dtype)


def is_number(spec):
    """A user input that is no tensor."""
    return not isinstance(spec.arg, TensorArgument)


def user_inputs(program, given, generator):
    """Tensors (or numbers) of the user's inputs by position, constants left out as None."""
    metas = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    out = []
    for i, spec in enumerate(specs):
        meta, value = metas.get(spec.arg.name), given.get(f"in.{i}")
        if isinstance(spec.arg, ConstantArgument):
            out.append((spec.arg.value, None))
        elif value is None and given:
            sys.exit(f"the inputs have no in.{i} ({spec.arg.name})")
        elif is_number(spec):
            number = int(value) if value is not None else int(meta)
            out.append((number, torch.tensor(number)))
        else:
            value = made_up(meta, generator) if value is None else value
            if meta.dtype.is_complex and not value.is_complex():
                value = torch.view_as_complex(value)
            # Views of an input may depend on how it lay when it was exported.
            laid = torch.empty_strided(value.shape, [int(s) for s in meta.stride()], dtype=value.dtype) if concrete(meta) else None
            out.append((value if laid is None or laid.shape != value.shape else laid.copy_(value), value))
    return out


def concrete(meta):
    return all(isinstance(n, int) for n in (*meta.shape, *meta.stride())) and all(meta.stride())


def arguments(program, users):
    """What the graph's placeholders take, in order; a run may write to it."""
    values, users = [], iter(users)
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values.append(next(users)[0])
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in program.state_dict:
            values.append(program.state_dict[spec.target].detach())
        else:
            values.append(program.constants[spec.target])
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def wide(x):
    return x.to(WIDE[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in WIDE else x


def tree(f, x):
    return torch.utils._pytree.tree_map(f, x)


class Own(torch.fx.Interpreter):
    """Runs the program as it is; `see` gets each node's value."""

    def __init__(self, program, see):
        super().__init__(program.graph_module)
        self.see, self.metas = see, {}

    def run_node(self, node):
        if any(name in str(node.target) for name in ASSERTIONS):
            return None
        self.node = node
        value = super().run_node(node)
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            self.see(node, value)
        return value

    def call_function(self, target, args, kwargs):
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) and draws(target, args, kwargs):
            sys.exit(f"{self.node.name} ({target}) draws random numbers: jvc's stream is not PyTorch's")
        return super().call_function(target, args, kwargs)


def draws(target, args, kwargs):
    """Whether an operator that may draw does: attention and dropout do not at probability 0 or in evaluation."""
    given = {a.name: a.default_value for a in target._schema.arguments}
    given |= {a.name: v for a, v in zip(target._schema.arguments, args)} | kwargs
    return all(given.get(n) not in (0, 0.0, False) for n in ("p", "dropout_p", "dropout", "train", "training"))


class Other(Own):
    """Runs the program in other types; an operator that refuses them runs in its own."""

    def __init__(self, program, see, own_types):
        super().__init__(program, see)
        self.own_types, self.refused = own_types, {}

    def call_function(self, target, args, kwargs):
        try:
            return self.call(target, args, kwargs)
        except Exception as error:  # whatever an operator has against these types
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if target is torch.ops.aten.view.default:
            # What an operator lays out otherwise in another type.
            return super().call_function(torch.ops.aten.reshape.default, args, kwargs)
        self.refused[self.node.name] = reason
        inputs = [n for n in self.node.all_input_nodes if isinstance(self.env.get(n), torch.Tensor)]
        narrow = {id(self.env[n]): self.own_types.get(n.name) for n in inputs}
        back = lambda x: x.to(narrow[id(x)]) if isinstance(x, torch.Tensor) and narrow.get(id(x)) else x
        with torch.autocast("cpu", enabled=False):
            return self.made(super().call_function(target, tree(back, args), tree(back, kwargs)))


class Exact(Other):
    """Runs the program in float64."""

    def call(self, target, args, kwargs):
        types = lambda x: WIDE.get(x, x) if isinstance(x, torch.dtype) else x
        return self.made(Own.call_function(self, target, tree(types, args), tree(types, kwargs)))

    def made(self, value):
        return tree(wide, value)


class Mixed(Other):
    """Runs the program under autocast."""

    def call(self, target, args, kwargs):
        return Own.call_function(self, target, args, kwargs)

    def made(self, value):
        return value


class Choice:
    """Which nodes are kept."""

    def __init__(self, args):
        self.globs, self.every, self.views, self.seen = args.nodes or ["*"], args.every, not args.no_views, 0

    def keeps(self, node):
        schema = getattr(node.target, "_schema", None)
        is_view = schema is not None and any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
        if not any(fnmatch.fnmatchcase(node.name, g) for g in self.globs) or is_view and not self.views:
            return False
        self.seen += 1
        return (self.seen - 1) % self.every == 0


def results(program, outputs):
    """The user's outputs among what the graph returns."""
    specs = program.graph_signature.output_specs
    return [value for spec, value in zip(specs, outputs) if spec.kind == OutputKind.USER_OUTPUT]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program", help=".pt2, model.json or model.json.gz")
    p.add_argument("-o", "--output", required=True, metavar="FILE.safetensors")
    p.add_argument("--inputs", metavar="FILE.safetensors", help="in.N; made up from --seed if not given")
    p.add_argument("--seed", type=int, default=0, help="of made-up inputs")
    p.add_argument("--random-weights", type=int, metavar="SEED", help="for programs without: as jvc makes them from the same seed")
    p.add_argument("--nodes", action="append", metavar="GLOB", help="keep nodes of this name; may be repeated")
    p.add_argument("--every", type=int, default=1, metavar="N", help="keep every Nth of them")
    p.add_argument("--no-views", action="store_true", help="leave out operators that only look at their operand in another way")
    p.add_argument("--dtype-only", action="store_true", help="nothing in float64: a third of the size")
    p.add_argument("--autocast", choices=HALVES, help="also under torch.autocast, for jvc --precision")
    args = p.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        dump(args)


def dump(args):
    program = load(args.program, args.random_weights)
    given = read_tensors(args.inputs) if args.inputs else {}
    users = user_inputs(program, given, torch.Generator().manual_seed(args.seed))
    choice, n_nodes = Choice(args), len(program.graph.nodes)
    kept = {node.name for node in program.graph.nodes if node.op == "call_function" and choice.keeps(node)}
    writer, notes, own_types = Writer(args.output, 3 * len(kept) + 4 * n_nodes // 10), {}, {}

    def keep(prefix):
        def see(node, value):
            if prefix == "node.":
                own_types[node.name] = value.dtype
            if node.name in kept:
                problem = writer.add(prefix + node.name, value)
                if problem:
                    notes[node.name] = problem
        return see

    for i, (_, tensor) in enumerate(users):
        if tensor is not None:
            writer.add(f"in.{i}", tensor)
    for node, spec in zip(program.graph.nodes, program.graph_signature.input_specs):
        if isinstance(node.meta.get("val"), torch.Tensor):
            own_types[node.name] = node.meta["val"].dtype
    own = results(program, Own(program, keep("node.")).run(*arguments(program, users)))
    put_results(writer, "out", own)
    if not args.dtype_only:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        exact = Exact(program, keep("node64."), own_types)
        put_results(writer, "out64", results(program, exact.run(*tree(wide, arguments(program, users)))))
        torch.set_default_dtype(default)
        notes |= {name: f"no float64: {reason}" for name, reason in exact.refused.items() if name in kept}
    if args.autocast:
        with torch.autocast("cpu", dtype=HALVES[args.autocast]):
            mixed = Mixed(program, keep("half."), own_types)
            mixed.run(*arguments(program, users))
        notes |= {name: f"no {args.autocast}: {reason}" for name, reason in mixed.refused.items() if name in kept}
    writer.close({"format": "jvc-refs 1", "program": os.path.basename(args.program), "notes": json.dumps(notes)})
    size = os.path.getsize(args.output)
    print(f"{args.output}: {len(kept)} of {len(own_types)} tensors, {size / 1e6:.1f} MB")
    for name, note in notes.items():
        print(f"  {name}: {note}")


def put_results(writer, kind, values):
    for i, value in enumerate(values):
        value = torch.tensor(value) if isinstance(value, (int, float, bool)) else value
        if isinstance(value, torch.Tensor) and (kind == "out" or value.dtype.is_floating_point or value.dtype.is_complex):
            writer.add(f"{kind}.{i}", value)


if __name__ == "__main__":
    main()
