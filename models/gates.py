#!/usr/bin/env python3
"""Entry points at full size with made-up weights, as jvc runs them, against PyTorch: errors, PyTorch's own, their ratio, the verdict.

    python models/gates.py --jvc target/release/jvc [--only sam2/memory_encoder whisper ...] [--sam2 large] [--whisper tiny.en]
                           [--types f32 f16] [--out table.md] [--work DIR]

--jvc    the program, with what stands before it where something does: --jvc "drivers/run jvc"
--only   MODEL or MODEL/ENTRY; by default everything: sam2 (six entry points) and whisper (five)
--cuda   PyTorch computes on the GPU: f64, f32 (without TF32) and f16; and a full memory of seven frames and sixteen pointers is attended to
Needs torch 2.11, transformers 5.17 and safetensors, no Rust. The same on a machine with a GPU and on one with a CPU driver only.

For each entry point: the export, references in f64 and in the type itself, `jvc run`, the comparison. f16 of sam2 is `--precision f16`
against autocast, that of whisper an export with `--half` against the same module in float16. Gates: f32, each element at most 4 times
PyTorch's largest error, and RMS at most twice; f16, RMS at most 1.25 times and the largest at most 3 times PyTorch's. Both get a floor
of one rounding (RMS) and two roundings (largest) of the result's own type: an error that is luckily zero bounds nothing, and a single number
is held to the largest only. Integers are equal. Ends with 1 where a gate does not hold.
"""
import argparse
import contextlib
import copy
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
HALF = torch.float16
# Roundings: half the distance of neighbouring numbers at 1.
ROUNDING = {torch.float32: 2.0 ** -24, torch.float16: 2.0 ** -11}


def exporter(model):
    """models/MODEL/export.py."""
    folder = os.path.join(HERE, model)
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(model + "_export", os.path.join(folder, "export.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(folder)
    return module


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


def floats_to(x, dtype):
    return tuple(a.to(dtype) if a.is_floating_point() else a for a in x)


class Case:
    """An entry point in one type: its program, its inputs, what PyTorch computes in that type, and in f64."""

    def __init__(self, name, inputs, outs, exact, options=()):
        self.name, self.inputs, self.outs, self.exact, self.options = name, inputs, as_tuple(outs), as_tuple(exact), list(options)


# ------------------------------------------------------------------------------------------------ models
def sam2(size, types, wanted, work, cuda):
    """Cases of SAM 2.1; memory attention has three memories and five pointers, on a GPU also seven and sixteen."""
    ex = exporter("sam2")
    model = ex.made_up(ex.Sam2VideoModel(ex.configuration(size)), 1).eval().requires_grad_(False)
    model.shared_image_embedding.positional_embedding.copy_(model.prompt_encoder.shared_embedding.positional_embedding)
    double = copy.deepcopy(model).double()
    exact_points = ex.entry_points(double)
    for name, (module, inputs, dims) in ex.entry_points(model).items():
        if not wanted(name):
            continue
        path = os.path.join(work, name + ".pt2")
        ex.export(module, inputs, dims, path)
        exact_module = exact_points[name][0]
        if name == "encode":     # pixels are f32 in the program
            pixels = exact_module.pixels
            exact_module.pixels = lambda picture: pixels(picture).double()
        sets = {name: inputs}
        if name == "memory_attention" and cuda:
            sets[name + " (full)"] = full_memory(inputs)
        for label, given in sets.items():
            exact = computed(exact_module, floats_to(given, torch.float64), cuda)
            if "f32" in types:
                yield path, "f32", Case(label, given, computed(module, given, cuda), exact)
            if "f16" in types:
                yield path, "f16", Case(label, given, computed(module, given, cuda, HALF), exact, ["--precision", "f16"])


def full_memory(inputs):
    """Seven memories and sixteen pointers; the last pointer is not looked at."""
    f2, memory, _, pointers, _ = inputs
    g = torch.Generator().manual_seed(8)
    more = lambda n, like: torch.randn(n, *like.shape[1:], generator=g)
    return f2, more(7, memory), torch.arange(7, dtype=torch.int32), more(17, pointers), torch.rand(17, generator=g)


def computed(module, inputs, cuda, half=None):
    """What PyTorch computes, with `half` under autocast."""
    device = "cuda" if cuda else "cpu"
    mixed = torch.autocast(device, dtype=half) if half else contextlib.nullcontext()
    with torch.device(device), mixed:     # tensors that the module makes up are made there
        outs = module.to(device)(*[a.to(device) for a in inputs])
    module.to("cpu")
    return tuple(o.cpu() for o in as_tuple(outs))


def whisper(size, types, wanted, work, cuda):
    """Cases of Whisper: 30 s of sound, 223 tokens. What follows the spectrogram gets PyTorch's f32 values of the step before."""
    ex = exporter("whisper")
    model, facts = ex.load_random(1, size, work)
    model = model.eval().requires_grad_(False)
    tokens = ex.specials_of(model.config.vocab_size)
    wide = ex.programs_of(model, tokens, facts)
    given = whisper_inputs(ex, wide, model, facts, tokens, cuda)
    exact_modules = ex.programs_of(copy.deepcopy(model).double(), tokens, facts)
    exact_modules["logmel"].double()
    for name in given:
        exact_modules[name].double()
    for kind in types:
        half = kind == "f16"
        own = ex.programs_of(copy.deepcopy(model).half(), tokens, facts) if half else wide
        for name, inputs in given.items():
            if not wanted(name) or half and name == "logmel":      # computes in f32 in every export
                continue
            # Inputs of the program's type, so that f64 starts from the same numbers.
            typed = tuple(a.to(HALF) if half and a.dim() == 5 else a for a in inputs)
            module, double = own[name].eval(), exact_modules[name].eval()
            if name == "step":
                cache = given_cache(wide, given, cuda).to(module.cache.dtype)
                start(module, cache)
            path = os.path.join(work, f"{name}-{kind}.pt2")
            symbolic = {"tokens": {1: torch.export.Dim("n_tokens", min=2, max=448)}, "cross_k": None, "cross_v": None}
            ex.save(module, typed, path, symbolic if name in ("prefill", "align") else None)
            if name == "step":
                start(module, cache)
                start(double, cache)
            yield path, kind, Case(name, typed, computed(module, typed, cuda), computed(double, floats_to(typed, torch.float64), cuda))


def start(step, cache):
    """The state before the last token: running the module changes it, exporting it may."""
    step.cache.copy_(cache)


def whisper_inputs(ex, modules, model, facts, tokens, cuda):
    """Name → inputs in f32: a sound of three tones with noise; every program gets what the one before computes."""
    g = torch.Generator().manual_seed(3)
    t = torch.arange((ex.FRAMES - 1) * ex.HOP + ex.WINDOW) / 16000
    sound = sum(torch.sin(2 * torch.pi * f * t) * torch.sin(2 * torch.pi * f / 300 * t) for f in (220.0, 470.0, 1900.0)) * 0.1
    samples = (sound + 0.02 * torch.randn(t.shape, generator=g))[None]
    frames = torch.tensor([ex.FRAMES], dtype=torch.int32)
    mel, top = computed(modules["logmel"], (samples, frames), cuda)
    cross = computed(modules["encode"], (mel, top, frames), cuda)
    vocabulary = model.config.vocab_size
    suppress = torch.zeros(2, vocabulary)
    suppress[0, facts["suppress"]] = suppress[1, facts["suppress_begin"]] = ex.NEVER
    said = torch.randint(0, tokens["end"], (1, 223), generator=g)
    rules = torch.tensor([2, tokens["no_timestamps"], tokens["timestamp_begin"] + 8, 0, 0, 0, 0], dtype=torch.int32)
    step = (said[:, -1:], torch.tensor([said.shape[1] - 1]), *cross, suppress, rules, torch.tensor([1.0, 0.0]))
    return dict(logmel=(samples, frames), encode=(mel, top, frames), prefill=(said, *cross), align=(said, *cross), step=step)


def given_cache(modules, given, cuda):
    """The state of the step program before the last token."""
    return computed(modules["prefill"], given["prefill"], cuda)[0]


MODELS = {"sam2": sam2, "whisper": whisper}


# ------------------------------------------------------------------------------------------------ comparison
def rms(x):
    return float(x.square().mean().sqrt())


def judge(kind, got, own, exact):
    """Largest and RMS error, PyTorch's two, and whether the gates hold."""
    if not exact.is_floating_point():
        wrong = float((got.long() != exact.long()).double().mean())
        return wrong, wrong, 0.0, 0.0, bool((got.long() == own.long()).all())
    rounding = ROUNDING.get(own.dtype, ROUNDING[torch.float32])
    mine, theirs = (got.double() - exact).abs(), (own.double() - exact).abs()
    most, spread = (4.0, 2.0) if kind == "f32" else (3.0, 1.25)
    largest = float(mine.max()) <= most * float(theirs.max()) + 2 * rounding * float(exact.abs().max())
    # The error of a single number has no spread.
    typical = exact.numel() == 1 or rms(mine) <= spread * rms(theirs) + rounding * rms(exact)
    return float(mine.max()), rms(mine), float(theirs.max()), rms(theirs), largest and typical and bool(got.isfinite().all())


def run(jvc, path, case, work):
    """jvc's outputs, and the seconds that it took."""
    inputs, outputs = os.path.join(work, "in.safetensors"), os.path.join(work, "out.safetensors")
    save_file({f"in.{i}": a.contiguous().clone() for i, a in enumerate(case.inputs)}, inputs)
    start = time.time()
    done = subprocess.run([*jvc, "run", path, "--inputs", inputs, "-o", outputs, *case.options], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
    found = load_file(outputs)
    return [found[f"out.{i}"] for i in range(len(case.outs))], time.time() - start


def rows(model, size, kind, case, outs, seconds):
    for i, (got, own, exact) in enumerate(zip(outs, case.outs, case.exact)):
        largest, typical, own_largest, own_typical, holds = judge(kind, got.reshape(own.shape), own, exact)
        if exact.is_floating_point():
            ratio = lambda a, b: f"{a / b:.2f}" if b else "–"
            figures = f"{largest:.1e} | {own_largest:.1e} | {ratio(largest, own_largest)} | {typical:.1e} | {own_typical:.1e} | {ratio(typical, own_typical)}"
        else:
            figures = f"{largest:.1e} of them differ | | | | |"
        yield f"| {model} {size} | {case.name} {i} | {kind} | {figures} | {'holds' if holds else 'FAILS'} | {seconds:.1f} s |", holds


HEAD = """| model | output | type | largest error | PyTorch's | ratio | RMS error | PyTorch's | ratio | gate | jvc run |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jvc", required=True)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--sam2", default="large", help="tiny, small, base_plus, large")
    parser.add_argument("--whisper", default="tiny.en", help="tiny.en … large-v3-turbo")
    parser.add_argument("--types", nargs="*", default=["f32", "f16"], choices=["f32", "f16"])
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--out", help="a file that gets the table, too")
    parser.add_argument("--work", help="where programs and inputs go (default: a folder that is removed)")
    args = parser.parse_args()
    unknown = [o for o in args.only if o.split("/")[0] not in MODELS]
    if unknown:
        parser.error(f"no such model: {unknown[0]} (there are {', '.join(MODELS)})")
    torch.set_grad_enabled(False)
    torch.backends.cudnn.allow_tf32 = False
    out = open(args.out, "a") if args.out else None

    def tell(line):
        print(line, flush=True)
        if out:
            print(line, file=out, flush=True)

    tell(HEAD)
    all_hold, ran, begun = True, 0, time.time()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or temporary
        os.makedirs(work, exist_ok=True)
        for model, cases in MODELS.items():
            size = getattr(args, model)
            wanted = lambda entry, model=model: any(o in (model, f"{model}/{entry}") for o in args.only)
            if not any(o.split("/")[0] == model for o in args.only):
                continue
            for path, kind, case in cases(size, args.types, wanted, work, args.cuda):
                ran += 1
                print(f"{case.name} {kind}: references after {time.time() - begun:.0f} s", file=sys.stderr, flush=True)
                try:
                    outs, seconds = run(shlex.split(args.jvc), path, case, work)
                except RuntimeError as error:
                    tell(f"| {model} {size} | {case.name} | {kind} | {error} | | | | | | FAILS | |")
                    all_hold = False
                    continue
                for line, holds in rows(model, size, kind, case, outs, seconds):
                    tell(line)
                    all_hold = all_hold and holds
    if not ran:
        parser.error("nothing of --only is an entry point")
    sys.exit(not all_hold)


if __name__ == "__main__":
    main()
