#!/usr/bin/env python3
"""Makes fuzz/seeds/ and fuzz/parts/ from files of this repository: python3 fuzz/make_seeds.py (standard library only).

Seeds are small and valid, one per kind of thing that a parser reads; the fuzzer finds the rest.
"""
import gzip, io, json, pathlib, re, shutil, zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS, PARTS = ROOT / "fuzz/seeds", ROOT / "fuzz/parts"
STORAGE_BYTES = 96  # of the one storage that targets put beside a fuzzed text


def archive(name):
    data = gzip.decompress((ROOT / f"compiler/tests/data/import/{name}.gz").read_bytes())
    return zipfile.ZipFile(io.BytesIO(data))


def entries(zipped):
    """Name without the root folder -> bytes."""
    names = zipped.namelist()
    root = next((n[: -len("archive_format")] for n in names if n.endswith("archive_format")), "")
    return {n.removeprefix(root): zipped.read(n) for n in names}


def slim(text):
    """The program without what the reader skips."""
    text = re.sub(rb"(?<=[\s:\[,])(NaN|-?Infinity)(?=[\s,\]}])", rb'"\1"', text)
    tree = json.loads(text)

    def walk(value):
        if isinstance(value, dict):
            value.pop("metadata", None)
            value.pop("requires_grad", None)
            value.pop("device", None)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            walk(inner)

    walk(tree)
    tree.pop("guards_code", None)
    return json.dumps(tree, separators=(",", ":")).encode()


def one_storage(parts):
    """Weights and constants as one text, every view in the same storage."""
    config = {}
    for kind in ("weights", "constants"):
        config |= json.loads(parts[f"data/{kind}/model_{kind}_config.json"])["config"]
    for view in config.values():
        view["path_name"] = "weight_0"
    return slim(json.dumps({"config": config}).encode())


def stored(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as zipped:
        for name, data in members.items():
            zipped.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def seed(target, name, data):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def content_hash(payload):
    """Of files/src/weights.rs, for payloads of one segment."""
    mask = (1 << 64) - 1

    def block(data):
        lanes = [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5]
        padded = data + bytes(-len(data) % 32)
        for at in range(0, len(padded), 32):
            for lane in range(4):
                word = int.from_bytes(padded[at + 8 * lane : at + 8 * lane + 8], "little")
                value = (lanes[lane] ^ word) * 0x9FB21C651E98DF25 & mask
                lanes[lane] = (value << 29 | value >> 35) & mask
        h = 0
        for word in [len(data), *lanes]:
            h = (h ^ word) * 0x9FB21C651E98DF25 & mask
            h ^= h >> 32
        return h

    return block(block(payload).to_bytes(8, "little") if payload else b"")


def main():
    for folder in (SEEDS, PARTS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    newest = entries(archive("small_2.11.0.pt2"))
    oldest = entries(archive("small_2.5.1.pt2"))
    (PARTS / "model_weights_config.json").write_bytes(one_storage(newest))
    (PARTS / "serialized_exported_program.json").write_bytes(slim(oldest["serialized_exported_program.json"]))

    for name in ("scan.pt2", "pytree_io.pt2", "input_mutation.core.pt2", "dtypes.pt2"):
        members = entries(archive(name))
        model = slim(members["models/model.json"])
        seed("model_json", name.removesuffix(".pt2") + ".json", model)
    program = slim(newest["models/model.json"])
    seed("model_json", "small.json", program)
    seed("model_json", "small_and_weights.json", program + b"\n---\n" + one_storage(newest))
    seed("model_json", "small_2.5.1.json", slim(oldest["serialized_exported_program.json"]))
    slimmed = {n: slim(d) if n.endswith("model.json") else d for n, d in newest.items() if "sample_inputs" not in n}
    seed("archive", "small_2.11.0.pt2", stored({f"m/{n}": d for n, d in slimmed.items()}))
    deflated = io.BytesIO()
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in slimmed.items():
            zipped.writestr(zipfile.ZipInfo(f"m/{name}"), data, zipfile.ZIP_DEFLATED)
    seed("archive", "deflated.pt2", deflated.getvalue())
    kept = ("serialized_exported_program.json", "serialized_state_dict.pt", "serialized_constants.pt", "version")
    old = {n: slim(d) if n.endswith(".json") else d for n, d in oldest.items() if n in kept}
    seed("archive", "small_2.5.1.pt2", stored(old))
    seed("archive", "bare.json.gz", gzip.compress(program, mtime=0))

    for name in ("small_2.5.1.pt2", "small_2.8.0.pt2"):
        for member, data in entries(archive(name)).items():
            if member.endswith(".pt") and "inputs" not in member and data:
                inner = zipfile.ZipFile(io.BytesIO(data))
                pickle = next(n for n in inner.namelist() if n.endswith("data.pkl"))
                seed("pickle", f"{name}-{pathlib.Path(member).parent.name}-{pathlib.Path(member).stem}.pkl".replace("/", "-"), inner.read(pickle))
    seed("pickle", "empty.pkl", b"\x80\x02}.")

    for path in sorted((ROOT / "compiler/tests/files/pass").glob("*/*.graph")):
        # Before and after a pass: each part is a graph.
        for k, part in enumerate(p for p in re.split(r"(?m)^(?=graph )", path.read_text()) if p.startswith("graph ")):
            if k == 0 or path.parent.name in ("quantize", "split_scans", "find_attention"):
                part = "\n".join(line for line in part.splitlines() if not line.startswith(("---", "===")))
                seed("graph_text", f"{path.parent.name}-{path.stem}-{k}.graph", (part + "\n").encode())
    for path in sorted((ROOT / "target-artifacts").glob("*/plan.txt")):
        if "resnet18" not in path.parent.name:
            seed("plan_text", f"{path.parent.name}.txt", path.read_bytes())
    seed("plan_text", "symbols.txt", SYMBOLS.encode())

    for n in (0, 7, 96, 300):
        payload = bytes(k * 37 % 251 for k in range(n))
        header = b"JVCW" + (1).to_bytes(4, "little") + n.to_bytes(8, "little") + content_hash(payload).to_bytes(8, "little")
        seed("weight_file", f"{n}.weights", bytes([3, 70]) + header + bytes(40) + payload)
    for n in (0, 5, 200):
        seed("cache_file", f"{n}.bin", bytes(8) + bytes(k * 29 % 251 for k in range(n)))


SYMBOLS = '''plan "p" for "d"
features [int8, float16]
cooperative f16 16 16 16
limits subgroup 8 max_workgroup 256 shared_bytes 1024 push_bytes 128 max_allocation_bytes 1048576
kernel "k" words 1 hash 0
  interface bases 2 operands [0, 1]
  subgroup 8
  spec "s"
weights chunks [256] hash 0123456789abcdef
  tensor "w" f32 [4, 4] chunk 0 at 0 bytes 64
entry "main"
  symbol "s0" 1 to 8 found 0
  input "x" f32 [s0, (s0 * 4), ((s0 + 1) / 2), (s0 % 3), max(s0, 2), min(s0, 3), mul(s0)] io 0 max_bytes 65536000
  output "y" i64 [] symbol 0 max_bytes 8 words
  arena [1024] live 512
  buffer "b" arena0 [0; 256] steps 0 to 1
  state "kv" at 0 bytes 64 init 0
  table (s0 + 1)
  dispatch "k"
    label "a \\"quoted\\" \\u{e9}"
    groups [1, 1, 1]
    push [arena0, weights0, io, state, symbols] [0, 1]
    read weights0 [0; 64]
    write arena0 [0; 256]
    cost 10 flops 20 bytes
    from "aten.add"
  barrier
  dispatch "k"
    groups table 2
'''

main()
