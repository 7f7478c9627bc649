"""The result as Markdown."""

# PyTorch's columns, and one more replay that the best of them may be: with convolutions chosen by measurement.
COLUMNS = ["eager", "graph", "graph of compiled"]
TUNED = "graph, cudnn.benchmark"


def _time(entry):
    if entry is None:
        return "–"
    us, mark = entry["median"], "" if entry["trusted"] else " (?)"
    spread = 100 * (entry["p90"] - entry["p10"]) / us if us else 0
    text = f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} µs"
    return f"{text} ±{spread:.0f} %{mark}"


def _rate(row):
    us = row["times"]["jvc"]["median"]
    if row.get("flops"):
        return f"{row['flops'] / us / 1e6:.1f} TFLOP/s"
    return f"{row['bytes'] / us / 1e6:.2f} TB/s" if row.get("bytes") else "–"


def best_peer(row):
    """The fastest of PyTorch's graph replays, in microseconds; eager where there is none."""
    replays = [row["times"].get(name) for name in (*COLUMNS[1:], TUNED)]
    peers = [peer["median"] for peer in replays if peer] or [row["times"]["eager"]["median"]]
    return min(peers)


def ratio(row):
    """How many times PyTorch's best speed ours is."""
    return best_peer(row) / row["times"]["jvc"]["median"] if "failure" not in row else None


def markdown(report):
    """The whole table."""
    lines = [
        f"# Benchmarks on {report['gpu']}, {report['date']}", "",
        f"Driver {report['driver']}, PyTorch {report['torch']}, TF32 off, clock plateau {report['clock']} MHz.",
        f"Medians of interleaved runs by the GPU's clock, ± (p90 − p10) / median; (?) marks a spread over 30 %. {report['discarded']} samples",
        "were discarded for a clock below 90 % of the plateau. Speed: the faster of PyTorch's graph replays over jvc (above 1 jvc is faster).",
        "Error: RMS error against f64 over PyTorch's own in the same precision (largest over all outputs); a result that fails its gate says so.", "",
    ]
    for family in dict.fromkeys(row["family"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["family"] == family]
        lines += [f"## {family}", "", "| | precision | jvc | rate | steps / barriers | " + " | ".join(COLUMNS) + " | speed | error |"]
        lines += ["|" + " --- |" * (len(COLUMNS) + 7)]
        lines += [_line(row) for row in rows]
        ratios = [r for r in map(ratio, rows) if r]
        if len(ratios) > 1:
            product = 1.0
            for r in ratios:
                product *= r ** (1 / len(ratios))
            lines += ["", f"Geometric mean of the speeds: {product:.2f}; smallest {min(ratios):.2f}."]
        lines += [""]
    return "\n".join(lines)


def _line(row):
    cells = [row["name"], row["precision"]]
    if "failure" in row:
        return "| " + " | ".join(cells + [f"failed: {row['failure']}"] + ["–"] * (len(COLUMNS) + 4)) + " |"
    speed, error = ratio(row), row["accuracy"]
    counts = row["counts"]
    cells += [_time(row["times"]["jvc"]), _rate(row), f"{counts['dispatches']} / {counts['barriers']}"]
    cells += [_time(row["times"].get(name)) for name in COLUMNS]
    cells += [f"{speed:.2f}" if speed else "–", f"{error['rms']:.2f}" + ("" if error["passed"] else " **fails**")]
    return "| " + " | ".join(cells) + " |"
