"""Clock-gated, interleaved samples of several arms, and what is told of them."""

import random
import statistics

import torch

# A sample counts if the clock before and after it is at least this share of the highest that was seen.
PLATEAU = 0.9
# Tries of a sample that the clock spoils.
ATTEMPTS = 3
# A row with a wider spread is marked.
SPREAD = 0.3


class Clock:
    """The GPU's clock in MHz."""

    def __init__(self):
        import pynvml
        pynvml.nvmlInit()
        self.handle, self.nvml, self.highest = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml, 0

    def read(self):
        mhz = self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)
        self.highest = max(self.highest, mhz)
        return mhz

    def driver(self):
        return self.nvml.nvmlSystemGetDriverVersion()

    def warm_up(self, milliseconds=200):
        """Keeps the GPU busy until its clock has risen, with work too light for its power limit to lower the clock."""
        a = torch.ones(1 << 18, device="cuda")
        start, now = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        elapsed = 0.0
        while elapsed < milliseconds:
            for _ in range(200):
                a.mul_(1.0)
            now.record()
            now.synchronize()
            elapsed = start.elapsed_time(now)
        self.read()


def sample(arms, clock, rounds, n_runs):
    """Times of each arm over rounds in random order: microseconds by arm, and how many samples the clock spoilt."""
    kept, discarded, order = {name: [] for name in arms}, 0, list(arms)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            for _ in range(ATTEMPTS):
                before = clock.read()
                times = arms[name].times(n_runs)
                if min(before, clock.read()) >= PLATEAU * clock.highest:
                    kept[name] += times
                    break
                discarded += len(times)
                clock.warm_up()
    return kept, discarded


def summary(times):
    """Median, p10, p90, and whether the spread allows trust; None without samples."""
    if not times:
        return None
    times = sorted(times)
    at = lambda share: times[round((len(times) - 1) * share)]
    median = statistics.median(times)
    return {"median": median, "p10": at(0.1), "p90": at(0.9), "n": len(times), "trusted": at(0.9) - at(0.1) <= SPREAD * median}
