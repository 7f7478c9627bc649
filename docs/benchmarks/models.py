"""Times real-size graphs step by step on the GPU at hand: `models.py JVC [--precision f16 ...] GRAPH.model.json.gz ...`

Makes random inputs and weights, runs `jvc run --steps` and prints, per graph, the number of steps, the sum of their times by GPU
timestamps, and the share of each kind of kernel. What stands before the first graph goes to `jvc run`. Graphs with symbolic sizes are
skipped, with a word. Needs NumPy.
"""

import collections
import gzip
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

# Numbers that torch's archives give element types.
TYPES = {
    1: ("U8", np.uint8), 4: ("I32", np.int32), 5: ("I64", np.int64), 6: ("F16", np.float16),
    7: ("F32", np.float32), 8: ("F64", np.float64), 12: ("BOOL", np.bool_),
}
# A GPU that has idled through a compilation of some seconds runs at a third of its clock for its first tenths of a second.
REPEAT = 20
STEP = re.compile(r"^\s*([0-9.]+) µs\s+[0-9.]+ %  .*  (\S+)$", re.M)


def user_tensors(graph_module):
    """Shape and type number of each user input; None where one is no tensor of literal sizes."""
    values = graph_module["graph"]["tensor_values"]
    for spec in graph_module["signature"]["input_specs"]:
        if "user_input" not in spec:
            continue
        value = values.get(spec["user_input"]["arg"].get("as_tensor", {}).get("name"))
        if value is None or any("as_int" not in d for d in value["sizes"]):
            yield None
        else:
            yield [d["as_int"] for d in value["sizes"]], value["dtype"]


def random_tensor(shape, kind, rng):
    if kind == np.bool_:
        return np.ones(shape, kind)
    if np.issubdtype(kind, np.integer):
        return rng.integers(0, 2, shape).astype(kind)
    return (rng.standard_normal(shape) * 0.5).astype(kind)


def write_inputs(graph, path):
    """Writes in.0, in.1, ... as safetensors; False where sizes are symbolic."""
    tensors = list(user_tensors(json.loads(gzip.open(graph).read())["graph_module"]))
    if None in tensors:
        return False
    rng, header, blob = np.random.default_rng(1), {}, b""
    for i, (shape, number) in enumerate(tensors):
        name, kind = TYPES[number]
        data = random_tensor(shape, kind, rng).tobytes()
        header[f"in.{i}"] = {"dtype": name, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + blob)
    return True


def main():
    jvc, graphs = sys.argv[1], [a for a in sys.argv[2:] if a.endswith(".gz")]
    options = sys.argv[2 : len(sys.argv) - len(graphs)]
    folder = pathlib.Path(tempfile.mkdtemp())
    for graph in graphs:
        name, inputs = pathlib.Path(graph).name.split(".model")[0], folder / "in.safetensors"
        if not write_inputs(graph, inputs):
            print(f"{name}: skipped, its sizes are symbolic")
            continue
        command = [jvc, "run", graph, "--random-weights", "1", "--inputs", inputs, "--repeat", str(REPEAT), "--steps", *options]
        run = subprocess.run(command, capture_output=True, text=True)
        steps = STEP.findall(run.stdout)
        if run.returncode or not steps:
            print(f"{name}: failed: {run.stderr.strip()[-300:]}")
            continue
        kinds = collections.Counter()
        for microseconds, kernel in steps:
            kinds[kernel.split("_")[0]] += float(microseconds) / 1e3
        shares = ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.most_common())
        print(f"{name}: {len(steps)} steps, {sum(kinds.values()):.2f} ms ({shares})", flush=True)


if __name__ == "__main__":
    main()
