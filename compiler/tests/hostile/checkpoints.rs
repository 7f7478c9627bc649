//! Weights that are broken, lie about themselves, or are programs: descriptions of raw storages, pickles, safetensors.

use crate::Row;
use crate::archives::{Entries, ZipText};
use serde_json::{Value, json};

const CONFIG: &str = "data/weights/model_weights_config.json";

fn small() -> Entries {
    Entries::of("small_2.11.0.pt2")
}

/// The small program with its description of weights changed.
fn config(edit: fn(&mut Value)) -> Vec<u8> {
    let mut tree: Value = serde_json::from_slice(small().get(CONFIG)).expect("JSON");
    edit(&mut tree["config"]);
    small().with(CONFIG, tree.to_string().into_bytes()).zip()
}

/// With fields of the type of the transposed parameter changed.
fn view(sizes: Value, strides: Value, offset: Value) -> Vec<u8> {
    let mut tree: Value = serde_json::from_slice(small().get(CONFIG)).expect("JSON");
    let meta = &mut tree["config"]["t"]["tensor_meta"];
    (meta["sizes"], meta["strides"], meta["storage_offset"]) = (sizes, strides, offset);
    small().with(CONFIG, tree.to_string().into_bytes()).zip()
}

fn ints(values: &[i64]) -> Value {
    values.iter().map(|v| json!({"as_int": v})).collect()
}

/// Views of 60 MiB each of one element.
fn expanded(n: usize) -> Vec<u8> {
    let mut tree: Value = serde_json::from_slice(small().get(CONFIG)).expect("JSON");
    let mut view = tree["config"]["t"].clone();
    view["tensor_meta"]["sizes"] = ints(&[15 << 20]);
    view["tensor_meta"]["strides"] = ints(&[0]);
    (0..n).for_each(|k| tree["config"][format!("more_{k}")] = view.clone());
    small().with(CONFIG, tree.to_string().into_bytes()).zip()
}

/// Read as `hostile.pt2`.
pub(crate) const CONFIGS: &[Row] = &[
    ("weights that are a list", || small().with(CONFIG, b"{\"config\": []}".to_vec()).zip(), "expected an object"),
    ("no weights described", || small().with(CONFIG, b"{}".to_vec()).zip(), "field `config` is missing"),
    ("no description of weights", || small().without(CONFIG).zip(), "is not in the archive"),
    (
        "a description cut in the middle",
        || {
            let whole = small().get(CONFIG).to_vec();
            small().with(CONFIG, whole[..whole.len() / 2].to_vec()).zip()
        },
        "model_weights_config.json",
    ),
    (
        "a weight described twice",
        || small().edit(CONFIG, "\"l2.weight\"", "\"l.weight\"").zip(),
        "key `l.weight` is given twice",
    ),
    (
        "a weight and a constant of one name",
        || {
            small().edit("data/constants/model_constants_config.json", "\"config\": {", "\"config\": {\"t\": {\"path_name\": \"tensor_0\", \"tensor_meta\": {\"dtype\": 7, \"sizes\": [], \"strides\": [], \"storage_offset\": {\"as_int\": 0}}}, ").zip()
        },
        "weight `t` is defined twice",
    ),
    (
        "a path to another folder of the archive",
        || config(|c| c["t"]["path_name"] = json!("../constants/tensor_0")),
        "is missing",
    ),
    ("an absolute path", || config(|c| c["t"]["path_name"] = json!("/etc/passwd")), "is missing"),
    ("a path that is a number", || config(|c| c["t"]["path_name"] = json!(7)), "expected a string, found 7"),
    ("a storage that is not there", || small().without("data/weights/weight_3").zip(), "weight_3`: is missing"),
    (
        "a storage one byte short",
        || {
            let whole = small().get("data/weights/weight_1").to_vec();
            small().with("data/weights/weight_1", whole[..79].to_vec()).zip()
        },
        "reaches byte 80 of a storage of 79 bytes",
    ),
    (
        "a storage of one byte",
        || small().with("data/weights/weight_0", vec![0]).zip(),
        "reaches byte 80 of a storage of 1 bytes",
    ),
    (
        "an offset beyond the storage",
        || view(ints(&[4, 5]), ints(&[1, 4]), json!({"as_int": 1})),
        "reaches byte 84 of a storage of 80 bytes",
    ),
    (
        "an offset beyond all memory",
        || view(ints(&[4, 5]), ints(&[1, 4]), json!({"as_int": i64::MAX})),
        "of a storage of 80 bytes",
    ),
    (
        "a negative offset",
        || view(ints(&[4, 5]), ints(&[1, 4]), json!({"as_int": -1})),
        "negative size, stride or offset -1",
    ),
    (
        "a negative stride",
        || view(ints(&[4, 5]), ints(&[-1, 4]), json!({"as_int": 0})),
        "negative size, stride or offset -1",
    ),
    (
        "a stride that overflows",
        || view(ints(&[4, 5]), ints(&[1, i64::MAX]), json!({"as_int": 0})),
        "of a storage of 80 bytes",
    ),
    (
        "a negative size",
        || view(ints(&[-4, 5]), ints(&[1, 4]), json!({"as_int": 0})),
        "negative size, stride or offset -4",
    ),
    (
        "a size that overflows",
        || view(ints(&[i64::MAX, 5]), ints(&[1, 4]), json!({"as_int": 0})),
        "has too many elements",
    ),
    (
        "sizes that overflow together",
        || view(ints(&[1 << 32, 1 << 32]), ints(&[0, 0]), json!({"as_int": 0})),
        "has too many elements",
    ),
    (
        "a weight of sizes without strides",
        || view(ints(&[4, 5]), ints(&[1]), json!({"as_int": 0})),
        "has 2 sizes and 1 strides",
    ),
    (
        "a size given as NaN",
        || view(json!([{"as_int": "NaN"}, {"as_int": 5}]), ints(&[1, 4]), json!({"as_int": 0})),
        "expected an integer, found \"NaN\"",
    ),
    (
        "a bare NaN as a size",
        || small().edit(CONFIG, r#""as_int": 4}"#, r#""as_int": NaN}"#).zip(),
        "expected an integer, found \"NaN\"",
    ),
    ("a size beyond a double", || small().edit(CONFIG, r#""as_int": 4}"#, r#""as_int": 4e400}"#).zip(), "out of range"),
    (
        "a size that is a formula",
        || view(json!([{"as_expr": {"expr_str": "s0"}}, {"as_int": 5}]), ints(&[1, 4]), json!({"as_int": 0})),
        "`as_expr` is no literal size",
    ),
    (
        "one element for 2^40",
        || view(ints(&[1 << 40]), ints(&[0]), json!({"as_int": 0})),
        "expands a storage of 80 bytes",
    ),
    ("a hundred views of 60 MiB each, all of one element", || expanded(100), "bytes of all weights: "),
    ("another element type", || config(|c| c["t"]["tensor_meta"]["dtype"] = json!(5)), "of a storage of 80 bytes"),
    (
        "another element type that fits",
        || config(|c| c["t"]["tensor_meta"]["dtype"] = json!(6)),
        "weight `t`: is f16[4, 5], but the graph says f32[4, 5]",
    ),
    ("no element type", || config(|c| c["t"]["tensor_meta"]["dtype"] = json!(99)), "element type 99 is not known"),
    (
        "another shape",
        || view(ints(&[5, 4]), ints(&[4, 1]), json!({"as_int": 0})),
        "weight `t`: is f32[5, 4], but the graph says f32[4, 5]",
    ),
    ("no type", || config(|c| c["t"]["tensor_meta"] = json!(null)), "is missing"),
];

/// An archive of torch 2.5 with another state dictionary.
fn pickle(program: impl AsRef<[u8]>) -> Vec<u8> {
    let mut inner = ZipText::default();
    inner.add("archive/data.pkl", program.as_ref(), program.as_ref(), 0);
    inner.add("archive/data/0", &[0; 80], &[0; 80], 0);
    old(inner.finish())
}

/// An archive of torch 2.5 with another checkpoint.
fn old(checkpoint: Vec<u8>) -> Vec<u8> {
    let entries = Entries::of("small_2.5.1.pt2").with("serialized_state_dict.pt", checkpoint);
    let mut zip = ZipText::default();
    entries.0.iter().for_each(|(name, data)| zip.add(name, data, data, 0));
    zip.finish()
}

/// The true checkpoint.
fn checkpoint() -> Vec<u8> {
    Entries::of("small_2.5.1.pt2").get("serialized_state_dict.pt").to_vec()
}

/// `{"w": tensor}`, a tensor of the arguments that these instructions push.
fn tensor(storage_key: &str, arguments: &[u8]) -> Vec<u8> {
    let key = [&[b'X', storage_key.len() as u8, 0, 0, 0], storage_key.as_bytes()].concat();
    let head = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n";
    pickle(
        [head, key.as_slice(), b"X\x03\x00\x00\x00cpuK\x14tQ", arguments, b"\x89ccollections\nOrderedDict\n)RtRs."]
            .concat(),
    )
}

/// A tuple that holds a tuple twice, which holds a tuple twice, … as a key.
fn shared(depth: usize) -> Vec<u8> {
    let twice = b"q\x01h\x01\x86";
    pickle([b"\x80\x02})".as_slice(), &twice.repeat(depth), b"Ns."].concat())
}

/// Read as `hostile.pt2`.
pub(crate) const PICKLES: &[Row] = &[
    (
        "a call of os.system",
        || pickle(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."),
        "`os.system`, which is not a plain tensor's part",
    ),
    ("a call of eval", || pickle(b"\x80\x02cbuiltins\neval\n."), "`builtins.eval`"),
    ("a call named on the stack", || pickle(b"\x80\x04\x8c\x05posix\x8c\x06system\x93."), "`posix.system`"),
    (
        "an object that builds itself",
        || pickle(b"\x80\x02ctorch\nFloatStorage\n)\x81}b."),
        "is called with unknown arguments",
    ),
    (
        "an instruction of other pickles",
        || pickle(b"\x80\x02ios\nsystem\n."),
        "instruction 0x69 at byte 2 is not allowed",
    ),
    ("no instructions", || pickle(b""), "ends in the middle"),
    ("instructions without an end", || pickle(b"\x80\x02}"), "ends in the middle"),
    ("a protocol of the future", || pickle(b"\x80\x09}."), "protocol 9 is not supported"),
    ("what is no dictionary", || pickle(b"\x80\x02K\x01."), "is not a dictionary"),
    ("a dictionary of numbers", || pickle(b"\x80\x02}X\x01\x00\x00\x00wK\x01s."), "`w` is not a tensor"),
    ("a number as a name", || pickle(b"\x80\x02}K\x07K\x01s."), "a key is an integer, not a name"),
    (
        "tuples 100,000 deep",
        || pickle([b"\x80\x02)".as_slice(), &[0x85; 100_000], b"."].concat()),
        "tuples nest deeper than 32",
    ),
    ("2^30 tuples that are 30", || shared(30), "a key is a tuple, not a name"),
    (
        "a million marks",
        || pickle([b"\x80\x02".as_slice(), &[b'('; 1_000_000], b"."].concat()),
        "takes from an empty stack",
    ),
    ("an empty stack", || pickle(b"\x80\x02."), "takes from an empty stack"),
    ("items without a mark", || pickle(b"\x80\x02}u."), "a mark is missing"),
    ("a dictionary of an odd number of items", || pickle(b"\x80\x02}(K\x01u."), "adds items to what is no container"),
    ("a value that was not kept", || pickle(b"\x80\x02h\x07."), "uses a value that was not kept"),
    ("a text longer than the file", || pickle(b"\x80\x02X\xff\xff\xff\xff."), "ends in the middle"),
    (
        "a text longer than all memory",
        || pickle(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
        "ends in the middle",
    ),
    ("a text that is not UTF-8", || pickle(b"\x80\x02X\x01\x00\x00\x00\xff."), "a string is not UTF-8"),
    ("an integer of 100 bytes", || pickle(b"\x80\x02\x8a\x64"), "an integer has over 64 bits"),
    ("a name without an end", || pickle([b"\x80\x02c".as_slice(), &[b'a'; 1000]].concat()), "a name does not end"),
    (
        "a storage outside of the checkpoint",
        || tensor("../../../etc/passwd", b"K\x00K\x04K\x05\x86K\x01K\x04\x86"),
        "is missing",
    ),
    (
        "a tensor larger than its storage",
        || tensor("0", b"K\x00M\xff\xffM\xff\xff\x86K\x01K\x04\x86"),
        "of a storage of 80 bytes",
    ),
    (
        "a tensor behind its storage",
        || tensor("0", b"J\xff\xff\xff\x7fK\x04K\x05\x86K\x01K\x04\x86"),
        "of a storage of 80 bytes",
    ),
    (
        "a tensor before its storage",
        || tensor("0", b"J\xff\xff\xff\xffK\x04K\x05\x86K\x01K\x04\x86"),
        "negative size, stride or offset -1",
    ),
    (
        "a tensor of sizes that are texts",
        || tensor("0", b"K\x00X\x01\x00\x00\x00aK\x01K\x04\x86"),
        "sizes are no tuple",
    ),
    ("a state dictionary without the program's weights", || pickle(b"\x80\x02}."), "is not in the archive"),
    ("a checkpoint that is no archive", || old(b"not a checkpoint".to_vec()), "broken or incomplete ZIP archive"),
    ("a checkpoint cut in the middle", || old(checkpoint()[..2000].to_vec()), "broken or incomplete ZIP archive"),
    (
        "a checkpoint without a pickle",
        || {
            let mut inner = ZipText::default();
            inner.add("archive/data/0", &[0; 80], &[0; 80], 0);
            old(inner.finish())
        },
        "holds no data.pkl",
    ),
];

/// A safetensors file: the length that it claims for its header, the header, the payload.
fn safetensors(claimed: Option<u64>, header: &str, payload: usize) -> Vec<u8> {
    let length = claimed.unwrap_or(header.len() as u64);
    [&length.to_le_bytes(), header.as_bytes(), &vec![0; payload]].concat()
}

fn entry(shape: &str, start: u64, end: u64) -> String {
    format!(r#"{{"t": {{"dtype": "F32", "shape": {shape}, "data_offsets": [{start}, {end}]}}}}"#)
}

/// Read as weights of the small program.
pub(crate) const SAFETENSORS: &[Row] = &[
    ("a checkpoint without a byte", Vec::new, "no safetensors file"),
    ("seven bytes", || vec![0; 7], "no safetensors file"),
    ("a header of 2^64 - 1 bytes", || safetensors(Some(u64::MAX), "{}", 0), "no safetensors file"),
    ("a header longer than the file", || safetensors(Some(1000), "{}", 0), "no safetensors file"),
    ("a header that is no JSON", || safetensors(None, "{{{{", 0), "no safetensors file"),
    ("a header 100,000 deep", || safetensors(None, &"[".repeat(100_000), 0), "no safetensors file"),
    ("a payload that is not there", || safetensors(None, &entry("[4, 5]", 0, 80), 0), "no safetensors file"),
    ("a payload cut by one byte", || safetensors(None, &entry("[4, 5]", 0, 80), 79), "no safetensors file"),
    ("a payload longer than declared", || safetensors(None, &entry("[4, 5]", 0, 80), 81), "no safetensors file"),
    ("offsets that run backwards", || safetensors(None, &entry("[4, 5]", 80, 0), 80), "no safetensors file"),
    ("offsets that leave a hole", || safetensors(None, &entry("[4, 5]", 8, 88), 88), "no safetensors file"),
    ("a shape of more bytes than it has", || safetensors(None, &entry("[4, 6]", 0, 80), 80), "no safetensors file"),
    (
        "a shape that overflows",
        || safetensors(None, &entry("[4294967296, 4294967296]", 0, 80), 80),
        "no safetensors file",
    ),
    ("a negative shape", || safetensors(None, &entry("[-4, 5]", 0, 80), 80), "no safetensors file"),
    (
        "tensors in the same bytes",
        || {
            safetensors(
                None,
                r#"{"t": {"dtype": "F32", "shape": [4, 5], "data_offsets": [0, 80]}, "u": {"dtype": "F32", "shape": [4, 5], "data_offsets": [0, 80]}}"#,
                80,
            )
        },
        "no safetensors file",
    ),
    (
        "a tensor of the wrong shape",
        || safetensors(None, &entry("[5, 4]", 0, 80), 80),
        "weight `t`: is f32[5, 4] in the checkpoint, f32[4, 5]",
    ),
    (
        "a tensor of the wrong type",
        || safetensors(None, &entry("[4, 5]", 0, 40).replace("F32", "F16"), 40),
        "weight `t`: is f16[4, 5]",
    ),
    (
        "a tensor of a type without a name",
        || safetensors(None, &entry("[4, 5]", 0, 80).replace("F32", "F99"), 80),
        "no safetensors file",
    ),
];
