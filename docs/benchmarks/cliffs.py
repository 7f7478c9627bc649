"""Looks for cliffs on the GPU at hand: matrix products whose neighbours take much longer an element.

    python cliffs.py JVC [--precision f16] [MxNxK ...]

Exports `x @ w.T` for each shape and its neighbours, 96 more and less of each size, times the product by GPU timestamps (`jvc run
--steps`, the fastest of five runs) and prints what takes over 1.3 times as long an element as the shape itself; exit code 1 if anything
does. The compiler's own prediction of the same stands in `compiler/tests/files/tiles.txt`. Needs torch.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPES = ["4096x4096x4096", "1500x1280x1280", "1500x5120x1280", "4096x1728x576", "4096x576x2304", "4096x1152x4608", "1370x384x1536"]
STEP, CLIFF, RUNS = 96, 1.3, 5
TIME = re.compile(r"^\s*([0-9.]+) µs", re.M)


def microseconds(jvc, options, size, folder):
    """Time of the product alone; other steps (conversions) are left out."""
    m, n, k = size
    layer = torch.nn.Linear(k, n, bias=False)
    x = torch.randn(m, k)
    program, inputs = folder / "product.pt2", folder / "in.safetensors"
    torch.export.save(torch.export.export(layer, (x,)), program)
    save_file({"in.0": x}, inputs)
    times = []
    for _ in range(RUNS):
        command = [jvc, "run", program, "--inputs", inputs, "--steps", *options]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(max(float(t) for t in TIME.findall(run.stdout)))
    return min(times)


def neighbours(size):
    for axis in range(3):
        for by in (-STEP, STEP):
            near = list(size)
            near[axis] += by
            if near[axis] > STEP:
                yield tuple(near)


def main():
    jvc, rest = sys.argv[1], sys.argv[2:]
    shapes = [a for a in rest if re.fullmatch(r"\d+x\d+x\d+", a)]
    options = [a for a in rest if a not in shapes]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes or SHAPES:
            size = tuple(map(int, shape.split("x")))
            elements = lambda s: s[0] * s[1] * s[2]
            here = microseconds(jvc, options, size, Path(folder))
            rate = 2e-6 * elements(size) / here
            print(f"{shape}: {here:.1f} µs, {rate:.1f} TFLOP/s", flush=True)
            for near in neighbours(size):
                there = microseconds(jvc, options, near, Path(folder))
                ratio = there / elements(near) / (here / elements(size))
                if ratio > CLIFF:
                    found += 1
                    print(f"  {near[0]}x{near[1]}x{near[2]}: {there:.1f} µs, {ratio:.2f} × an element", flush=True)
    print(f"{found} cliffs")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
