"""The sides of a comparison: PyTorch eager, compiled, and replayed as CUDA graphs; and jvc, served by a process of its own."""

import json
import subprocess

import torch


def events(call, n):
    """Microseconds of each of `n` calls, by the GPU's clock."""
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
    for before, after in marks:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in marks]


def repeated(call, n):
    """Calls so often, one after the other."""
    def calls():
        for _ in range(n):
            out = call()
        return out
    return calls


class Torch:
    """A call of PyTorch that does `chain` times the work."""

    def __init__(self, call, chain=1):
        self.call, self.chain = call, chain

    def times(self, n):
        return [us / self.chain for us in events(self.call, n)]

    def close(self):
        self.call = None


def replay(call, chain=1):
    """The call as a CUDA graph, after warm-up on a side stream as capture wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeated(call, chain)()
    return Torch(graph.replay, chain)


class Jvc:
    """`jvc bench --serve` of a program. `counts` are its dispatches and barriers."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.counts = self._answer()

    def times(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        self.host = (answer := self._answer())["host_us"]
        return answer["device_us"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read().strip()[-600:])
        return json.loads(line)
