"""Times jvc beside PyTorch on the GPU at hand, and checks every result: see `docs/benchmarks/run.sh --help`."""

import argparse
import contextlib
import datetime
import json
import pathlib
import re
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

import accuracy
import arms
import cases
import graphs
import table
import timing

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
# Families whose kernels torch.compile takes from the same libraries.
LIBRARY = ("GEMM", "GEMV", "convolution", "attention")


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("jvc", help="the jvc binary")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder of bench.md and bench.json")
    parser.add_argument("--graphs", nargs="*", default=[], help="real-size graphs: files model.json.gz")
    parser.add_argument("--only", default="", help="regular expression on `family: name precision`")
    parser.add_argument("--no-kernels", action="store_true", help="whole models only")
    parser.add_argument("--compile", nargs="*", default=[""], help="rows (part of the name) to measure under torch.compile too [default: all]")
    parser.add_argument("--half", nargs="*", default=[], help="graphs (part of the name) to measure in f16 too, against autocast")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of interleaved samples")
    parser.add_argument("--device", default="auto", help="profile that jvc compiles for: a name, or a file [default: the GPU at hand]")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after so many seconds")
    return parser.parse_args()


class Bench:
    """What the rows share."""

    def __init__(self, args):
        self.args, self.clock, self.discarded = args, timing.Clock(), 0
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.rows, self.started = [], time.monotonic()

    def wanted(self, family, name, precision):
        return re.search(self.args.only, f"{family}: {name} {precision}") and time.monotonic() - self.started < self.args.seconds

    def jvc(self, program, inputs, chain, side_by_side, options):
        """Serves the program: the arm, and its outputs."""
        given, results = self.folder / "in.safetensors", self.folder / "out.safetensors"
        save_file({f"in.{i}": t.cpu().contiguous() for i, t in enumerate(inputs)}, given)
        command = [self.args.jvc, "bench", program, "--inputs", given, "-o", results, "--device", self.args.device]
        command += ["--serve", "--warmup", "20", "--chain", chain, "--side-by-side", side_by_side, *options]
        arm = arms.Jvc([str(word) for word in command])
        named = load_file(results)
        return arm, [named[f"out.{i}"] for i in range(len(named)) if f"out.{i}" in named]

    def measure(self, row, module, inputs, program, precision, chain=1, side_by_side=1, options=(), autocast=False):
        """Fills a row: accuracy first, then times."""
        context = torch.autocast("cuda", torch.float16) if autocast else contextlib.nullcontext()
        def call():
            with context:
                return module(*inputs)
        with torch.no_grad():
            theirs = accuracy.flat(call())
            exact = accuracy.flat(accuracy.in_double(module)(*[t.double() if t.is_floating_point() else t for t in inputs]))
            jvc, ours = self.jvc(program, inputs, chain, side_by_side, options)
            row["accuracy"] = accuracy.judge(ours, theirs, exact, precision)
            del exact
            row["counts"] = jvc.counts
            peers = {"jvc": jvc, "eager": arms.Torch(call)} | self.replays(row, module, call, context, inputs, chain)
            self.clock.warm_up()
            calibration = timing.summary(jvc.times(3))["median"] * chain * side_by_side
            n_runs = max(2, min(20, int(20e3 / max(calibration, 1))))
            for arm in peers.values():
                arm.times(2)
            kept, discarded = timing.sample(peers, self.clock, self.args.rounds, n_runs)
            self.discarded += discarded
            row["times"] = {name: timing.summary(times) for name, times in kept.items()}
            if not (row["times"]["jvc"] and row["times"]["eager"]):
                raise RuntimeError("the clock spoilt every sample")
            row["host_us"] = timing.summary(jvc.host)
            for arm in peers.values():
                arm.close()

    def replays(self, row, module, call, context, inputs, chain):
        """CUDA graphs of eager and of the compiled module, as far as PyTorch can capture them."""
        found = {}
        def attempt(name, make):
            try:
                found[name] = make()
            except Exception as error:  # What PyTorch cannot capture has no column.
                row.setdefault("not captured", {})[name] = str(error).splitlines()[0][:200]
                torch.cuda.synchronize()
                # A capture that failed leaves its stream as the current one.
                torch.cuda.set_stream(torch.cuda.default_stream())
        if not getattr(module, "capturable", True):
            row["not captured"] = {"graph": "torchvision's deform_conv2d runs on the default stream, which a capture does not see"}
            return found
        attempt("graph", lambda: arms.replay(call, chain))
        if row["family"] in ("convolution", "models", "networks"):
            def tuned():
                torch.backends.cudnn.benchmark = True
                try:
                    return arms.replay(call, chain)
                finally:
                    torch.backends.cudnn.benchmark = False
            attempt(table.TUNED, tuned)
        if row["family"] not in LIBRARY and any(part in row["name"] for part in self.args.compile):
            def compiled():
                torch._dynamo.reset()
                fast = torch.compile(module)
                def run():
                    with context:
                        return fast(*inputs)
                return arms.replay(run, chain)
            attempt("graph of compiled", compiled)
        return found

    def row(self, family, name, precision, fill, **more):
        """Measures one row; a failure is a row too."""
        row = {"family": family, "name": name, "precision": NAMES[precision], **more}
        try:
            fill(row)
            speed = table.ratio(row)
            print(f"{family}: {name} {row['precision']}: jvc {row['times']['jvc']['median']:.1f} µs, "
                  f"speed {speed and round(speed, 2)}, error {row['accuracy']['rms']:.2f} {row['accuracy']['passed']}", flush=True)
        except Exception as error:  # One row's failure must not cost the others.
            row["failure"] = " ".join(str(error).split())[-300:] or repr(error)
            print(f"{family}: {name} {row['precision']}: failed: {row['failure']}", flush=True)
        self.rows.append(row)
        self.write()
        torch.cuda.empty_cache()

    def kernel(self, case):
        module = case.module.eval().to(case.dtype)
        generator = torch.Generator().manual_seed(3)
        inputs = [torch.randn(shape, generator=generator).to(case.dtype) for shape in case.shapes]
        def fill(row):
            program = self.folder / "kernel.pt2"
            torch.export.save(torch.export.export(module, tuple(inputs)), program)
            on_gpu = [t.cuda() for t in inputs]
            self.measure(row, module.cuda(), on_gpu, program, case.dtype, case.chain, case.side_by_side)
        self.row(case.family, case.name, case.dtype, fill, flops=case.flops, bytes=case.bytes)

    def model(self, path, half):
        """A real-size graph in its own precision, or in f16 as autocast has it."""
        name = pathlib.Path(path).name.removesuffix(".model.json.gz")
        def fill(row):
            loaded = graphs.load(path, "cuda")
            if loaded is None:
                raise ValueError("its input sizes are symbolic")
            module, weights, inputs = loaded
            saved = self.folder / "weights.safetensors"
            save_file({key: value.contiguous() for key, value in weights.items()}, saved)
            own = next((t.dtype for t in weights.values() if t.is_floating_point()), torch.float32)
            precision = torch.float16 if half else own
            row["precision"] = NAMES[precision]
            options = ["--weights", saved] + (["--precision", "f16"] if half else [])
            self.measure(row, module, [t.cuda() for t in inputs], path, precision, options=options, autocast=half)
        self.row("models", name, torch.float16 if half else torch.float32, fill)

    def write(self):
        """After each row: an interrupted run keeps what it has."""
        report = self.report()
        self.args.out.mkdir(parents=True, exist_ok=True)
        (self.args.out / "bench.json").write_text(json.dumps(report, indent=1))
        (self.args.out / "bench.md").write_text(table.markdown(report))

    def report(self):
        return {
            "gpu": torch.cuda.get_device_name(), "driver": self.clock.driver(), "torch": torch.__version__,
            "date": datetime.date.today().isoformat(), "clock": self.clock.highest, "discarded": self.discarded, "rows": self.rows,
        }


def main():
    args = arguments()
    # PyTorch's f32 is f32 on both sides.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    bench = Bench(args)
    bench.clock.warm_up(1000)
    for case in [] if args.no_kernels else cases.all_cases():
        if bench.wanted(case.family, case.name, NAMES[case.dtype]):
            bench.kernel(case)
    for path in args.graphs:
        for half in [False] + [True] * any(part in path for part in args.half):
            if bench.wanted("models", path, "f16" if half else ""):
                bench.model(path, half)
    failed = [row for row in bench.rows if "failure" in row or not row["accuracy"]["passed"]]
    print(f"{len(bench.rows)} rows, {len(failed)} failed; {args.out / 'bench.md'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
