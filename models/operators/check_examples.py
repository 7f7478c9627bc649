"""Holds compiler/src/aten/examples.txt to PyTorch: runs every call for every listed type and compares what comes out.

python check_examples.py ../../compiler/src/aten/examples.txt     (torch 2.11.0; with torchao 0.18.0 its operators, too)

Calls that PyTorch's CPU kernels lack in half precision run on fake tensors; torchvision's need torchvision. Sizes that the data
decide (u0) match any size.
"""

import contextlib
import json
import logging
import re
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

logging.disable(logging.CRITICAL)
TYPES = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16, f64=torch.float64, i64=torch.int64, i32=torch.int32,
             i16=torch.int16, i8=torch.int8, u8=torch.uint8, bool=torch.bool, c32=torch.complex32, c64=torch.complex64,
             c128=torch.complex128)
NAMES = {v: k for k, v in TYPES.items()}
TENSOR = re.compile(r"^(\w+)\[([\d,]*)\]$")


def tensor(text, of):
    name, sizes = TENSOR.match(text).groups()
    dtype, shape = TYPES[of if name == "T" else name], [int(s) for s in sizes.split(",") if s]
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape) * 0.8 + 0.1).to(dtype)
    return torch.randint(0, 2, shape).to(dtype)


def value(text, of):
    if text.startswith("@"):
        return TYPES[of if text == "@T" else text[1:]]
    if text.startswith("("):
        return [None if t == "null" else tensor(t, of) for t in re.findall(r"null|\w+\[[\d,]*\]", text)]
    if TENSOR.match(text):
        return tensor(text, of)
    return complex(text) if text.endswith("j") else float(text) if text in ("inf", "-inf", "nan") else json.loads(text)


def text(result, of):
    if isinstance(result, torch.Tensor):
        name = NAMES.get(result.dtype, "?")
        return f"{'T' if name == of else name}[{','.join(map(str, result.shape))}]"
    if isinstance(result, (list, tuple)):
        return "(" + ",".join(text(r, of) for r in result) + ")"
    return "none" if result is None else "int"


def operator(name):
    found = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def run(name, args, of, fake):
    torch.manual_seed(0)
    op = operator(name)
    values = {k: value(v, of) for k, v in args}
    if fake:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        convert = lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else [*map(convert, v)] if isinstance(v, list) else v
        values = {k: convert(v) for k, v in values.items()}
        with mode, torch.no_grad():
            result = op(**values)
    else:
        positional, named, gap = [], {}, False
        for a in op._schema.arguments:
            if a.name in values and not (a.kwarg_only or gap):
                positional.append(values[a.name])
            elif a.name in values:
                named[a.name] = values[a.name]
            else:
                gap = True
        with torch.no_grad():
            result = op(*positional, **named)
    return [text(r, of) for r in (result if isinstance(result, tuple) else (result,))]


def agrees(want, got):
    pattern = re.escape(want).replace("u0", r"\d+")
    return want in ("none", "u0", "int") or re.fullmatch(pattern, got)


def main(path):
    with contextlib.suppress(ImportError):
        import torchao  # noqa: F401: registers operators
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    checked = skipped = 0
    for line in open(path):
        call, *rows = line.strip().split(" | ")
        name, *args = call.split(" ")
        args = [a.split("=", 1) for a in args]
        try:
            operator(name)
        except Exception:  # noqa: BLE001: a functional form that PyTorch has in place only, or torchvision
            skipped += 1
            continue
        for row in (r for r in rows if not r.startswith("!")):
            types, *wants = row.split(" ")
            for of in types.split(","):
                try:
                    got = run(name, args, of, False)
                except Exception:  # noqa: BLE001
                    try:
                        got = run(name, args, of, True)
                    except Exception as e:  # noqa: BLE001
                        skipped += 1
                        print(f"not run: {name} {of}: {str(e).splitlines()[0][:100]}")
                        continue
                checked += 1
                if not all(agrees(w, g) for w, g in zip(wants, got)):
                    print(f"differs: {name} {of}: {wants} is {got}")
    print(f"{checked} calls agree or are listed above, {skipped} not run")


if __name__ == "__main__":
    main(sys.argv[1])
