//! Texts and binary files that are not part of an exported program: graphs, plans, weight files, pipeline caches, tensors.

use crate::{ACCEPTED, Row};
use jvc::import::weights::Storage;
use jvc::{import, ir, tensor_file};
use jvc_codegen::plan::{KernelFile, Outline, Plan};
use jvc_files::{CacheDir, HEADER_BYTES, Header, content_hash, segment_hash};

/// What a reader says of a file: [`ACCEPTED`], or its error.
pub(crate) fn read(reader: &str, bytes: &[u8]) -> String {
    let text = || std::str::from_utf8(bytes).map_err(|e| e.to_string());
    let said = match reader {
        "graph" => text().and_then(graph),
        "plan" => text().and_then(plan),
        "plan text" => text().and_then(|text| Outline::parse(text).map(|_| ()).map_err(|e| e.to_string())),
        "import" => import_file(bytes),
        "weights" => weights(bytes),
        "cache" => cache(bytes),
        "tensors" => tensors(bytes),
        other => Err(format!("{other} is no reader")),
    };
    said.map_or_else(|why| why, |()| ACCEPTED.to_string())
}

fn graph(text: &str) -> Result<(), String> {
    let graph = ir::parse::parse(text).map_err(|e| e.to_string())?;
    ir::verify::verify(&graph).map_err(|all| all.list[0].message.clone())
}

/// The plan by itself, since kernels are files of their own; without any, what it pins is missing.
fn plan(text: &str) -> Result<(), String> {
    let outline = Outline::parse(text).map_err(|e| e.to_string())?;
    outline.plan.verify().map_err(|all| all[0].to_string())?;
    Plan::parse(text, &|_| None::<KernelFile>).map(|_| ()).or_else(|e| match e.to_string() {
        missing if missing.contains("no files of kernel") => Ok(()),
        other => Err(other),
    })
}

fn import_file(bytes: &[u8]) -> Result<(), String> {
    let read = import::read_bytes("seed", Storage::owned(bytes.to_vec()), &import::limits::LIMITS);
    read.map(|_| ()).map_err(|e| e.to_string())
}

/// The weight file of the payload [`PAYLOAD`].
fn weights(bytes: &[u8]) -> Result<(), String> {
    let expect = Header { payload_bytes: PAYLOAD.len() as u64, content_hash: content_hash([PAYLOAD]) };
    let checked = expect.payload_of(bytes).and_then(|payload| expect.check_hash(&[segment_hash(payload)]));
    checked.map_err(|refusal| format!("weights {}: need {}, got {}", refusal.fault, refusal.need, refusal.got))
}

/// A cache file is as good as none when anything is off about it: it is compiled anew.
fn cache(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    std::fs::write(folder.path().join("it.bin"), bytes).map_err(|e| e.to_string())?;
    let file = CacheDir::Path(folder.path().to_path_buf()).file("it", "me".to_string()).ok_or("no folder")?;
    file.read().map(|_| ()).ok_or_else(|| "as good as none".to_string())
}

fn tensors(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("in.safetensors");
    std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
    tensor_file::read_tensors(&path).map(|_| ()).map_err(|e| e.to_string())
}

const PAYLOAD: &[u8] = b"sixteen bytes of weights";

fn weight_file(edit: fn(&mut Vec<u8>)) -> Vec<u8> {
    let header = Header { payload_bytes: PAYLOAD.len() as u64, content_hash: content_hash([PAYLOAD]) };
    let mut bytes = [&header.encode(), PAYLOAD].concat();
    edit(&mut bytes);
    bytes
}

fn lines(body: &str) -> Vec<u8> {
    format!("graph g {{\n  %a = input 0 \"a\" : f32[4]\n  {body}\n}}\n").into_bytes()
}

/// A graph of one size.
fn sized(size: &str) -> Vec<u8> {
    format!("graph g {{\n  %a = input 0 \"a\" : f32[{size}]\n  output \"y\" = %a\n}}\n").into_bytes()
}

/// Graphs.
pub(crate) const GRAPHS: &[Row] = &[
    ("a graph of no text", Vec::new, "line 1: `graph` expected"),
    ("a graph of another language", || b"module { func f() }".to_vec(), "line 1: `graph` expected"),
    ("a graph without an end", || b"graph g {\n".to_vec(), "expected"),
    ("a graph and more", || b"graph g {\n}\ngraph h {\n}\n".to_vec(), "line 3: text after the graph"),
    ("a graph with a character of none", || lines("§"), "is no part of the text form"),
    ("a quoted text without an end", || lines("output \"y = %a"), "without end"),
    ("an escape of no character", || lines(r#"output "\u{ffffffff}" = %a"#), "malformed \\u escape"),
    ("an operation that does not exist", || lines("%b = frobnicate %a : f32[4]"), "`frobnicate` is no operation"),
    ("an operand that does not exist", || lines("%b = matmul %a, %ghost : f32[4]"), "%ghost is not defined"),
    ("a result defined twice", || lines("%a = matmul %a, %a : f32[4]"), "%a is defined twice"),
    ("a node of itself", || lines("%b = map(abs(a)) %b : f32[4]\n  output \"y\" = %b"), "operand %b is defined later"),
    (
        "nodes of each other",
        || lines("%b = map(abs(a)) %c : f32[4]\n  %c = map(abs(a)) %b : f32[4]\n  output \"y\" = %c"),
        "operand %c is defined later",
    ),
    ("a type of nothing", || lines("%b = map(abs(a)) %a : f99[4]"), "`f99` is no element type"),
    ("a size over 64 bits", || sized("99999999999999999999"), "an integer expected"),
    ("a size of 2^62", || sized("4611686018427387904"), "a size is too large"),
    ("a negative size of a graph", || sized("-4"), "negative"),
    ("a size of 100,000 factors", || sized(&"2*".repeat(100_000)), "a size is too large or too deep"),
    ("a size 100,000 deep", || sized(&"max(".repeat(100_000)), "a size is too large or too deep"),
    ("an expression 100,000 deep", || lines(&format!("%b = map({}a) %a : f32[4]", "(".repeat(100_000))), "expected"),
    (
        "an expression 1,000 deep that ends",
        || lines(&format!("%b = map({}a{}) %a : f32[4]", "(".repeat(1000), ")".repeat(1000))),
        "an expression is too deep",
    ),
    ("an expression of two types", || lines("%b = map(a + 1L) %a : f32[4]"), "operand types do not fit"),
    ("an operand that the body has not", || lines("%b = map(b) %a : f32[4]"), "`b` names no operand"),
    ("a constant of other bytes", || lines("%b = const [1.0, 2.0] : f32[4]"), "the constant has not the bytes"),
    ("a constant of bytes that are not there", || lines("%b = const #7 : f32[4]"), "the constant has not the bytes"),
    ("bytes that are not hexadecimal", || b"graph g {\n}\nblob #0 = 0g\n".to_vec(), "hexadecimal bytes expected"),
    ("an input number four billion", || lines("%b = input 4000000000 \"b\" : f32[4]"), "not numbered without gaps"),
    ("an input given twice", || lines("%b = input 0 \"b\" : f32[4]"), "input 0 is given twice"),
    (
        "a permutation of what is not there",
        || lines("%b = permute %a perm=[7] : f32[4]\n  output \"y\" = %b"),
        "[7] is no permutation of 1 dimensions",
    ),
    (
        "a window of too few dimensions",
        || {
            lines(
                "%b = pool %a max kernel=[0] stride=[0] padding=[0] dilation=[0] out=[1] : f32[1]\n  output \"y\" = %b",
            )
        },
        "1-dimensional pooling of f32[4]",
    ),
];

/// A plan of one entry, with lines in it.
fn entry(body: &str) -> Vec<u8> {
    format!("plan \"p\" for \"d\"\nlimits subgroup 0 max_workgroup 32 shared_bytes 0 push_bytes 40 max_allocation_bytes 1024\nkernel \"k\" words 1 hash 0\n  interface bases 1 operands [0]\n  spec \"s\"\nentry \"e\"\n{body}\n").into_bytes()
}

/// A plan whose table has one formula.
fn table(formula: &str) -> Vec<u8> {
    entry(&format!("  symbol \"n\" 0 to 8\n  table {formula}"))
}

/// Plans.
pub(crate) const PLANS: &[Row] = &[
    ("a plan in another form", || b"{\"plan\": 1}".to_vec(), "line 1: expected a token"),
    ("a keyword of no plan", || b"plot \"p\"".to_vec(), "line 1: expected an entry above"),
    ("a line of no entry", || b"buffer \"b\" arena0[0; 4] steps 0 to 1".to_vec(), "expected an entry above"),
    ("an interface of no kernel", || b"interface bases 1 operands []".to_vec(), "expected a kernel above"),
    ("a plan's name without an end", || b"plan \"p".to_vec(), "expected a quoted string"),
    ("a line that goes on", || b"plan \"p\" for \"d\" \"e\"".to_vec(), "expected the end of the line"),
    (
        "a number over 64 bits",
        || entry("  arena [99999999999999999999] live 0"),
        "expected a number, found `99999999999999999999`",
    ),
    ("a negative size of an arena", || entry("  arena [-1] live 0"), "expected a number, found `-1`"),
    ("a formula 100,000 deep", || table(&"(".repeat(100_000)), "formulas that nest at most 64 deep"),
    ("calls 100,000 deep", || table(&"max(".repeat(100_000)), "formulas that nest at most 64 deep"),
    ("a formula of a symbol that is not there", || table("(m + 1)"), "a symbol instead of `m`"),
    ("a formula of a symbol by a number that is not there", || table("$9"), "9"),
    ("a division by what can be zero", || table("(8 / n)"), "0"),
    ("a table word over 32 bits", || table("(n * 4294967296)"), "4294967295"),
    (
        "a product that overflows",
        || table("(9223372036854775807 * 9223372036854775807 * 9223372036854775807)"),
        "overflow",
    ),
    ("a dispatch of a kernel that is not there", || entry("  dispatch \"ghost\""), "expected a kernel above"),
    ("a region of no name", || entry("  dispatch \"k\"\n    read lava0[0; 4]"), "a region instead of `lava0`"),
    ("an arena of no number", || entry("  buffer \"b\" arena[0; 4] steps 0 to 1"), "a region instead of `arena`"),
    ("a hash of no number", || b"kernel \"k\" words 1 hash xyz".to_vec(), "expected a hash"),
    (
        "a range whose end overflows",
        || entry("  arena [256] live 256\n  buffer \"b\" arena0[18446744073709551360; 512] steps 0 to 1"),
        "beyond its 256 bytes",
    ),
    (
        "buffers in the same bytes",
        || {
            entry(
                "  arena [256] live 256\n  buffer \"a\" arena0[0; 256] steps 0 to 1\n  buffer \"b\" arena0[0; 256] steps 0 to 1\n  barrier\n  barrier",
            )
        },
        "overlap",
    ),
    (
        "a weight beyond its chunk",
        || {
            b"plan \"p\" for \"d\"\nweights chunks [256] hash 0\n  tensor \"w\" f32[4, 4] chunk 0 at 256 bytes 64\n"
                .to_vec()
        },
        "beyond",
    ),
    (
        "weights in the same bytes",
        || {
            b"plan \"p\" for \"d\"\nweights chunks [256] hash 0\n  tensor \"v\" f32[4] chunk 0 at 0 bytes 16\n  tensor \"w\" f32[4] chunk 0 at 0 bytes 16\n".to_vec()
        },
        "overlap",
    ),
    ("groups of two dimensions", || entry("  dispatch \"k\"\n    groups [1, 1]"), "three counts"),
    (
        "four billion groups",
        || entry("  dispatch \"k\"\n    label \"l\"\n    groups [4294967295, 1, 1]\n    push [arena0] [0]"),
        "4294967295 workgroups in one dimension",
    ),
];

/// Weight files.
pub(crate) const WEIGHT_FILES: &[Row] = &[
    ("the weight file itself", || weight_file(|_| ()), ACCEPTED),
    ("a weight file of no byte", Vec::new, "do not start as weight files do"),
    ("a header cut by one byte", || weight_file(|b| b.truncate(HEADER_BYTES - 1)), "do not start as weight files do"),
    ("a header alone", || weight_file(|b| b.truncate(HEADER_BYTES)), "of another size: need 24, got 0"),
    ("a weight file cut by one byte", || weight_file(|b| b.truncate(b.len() - 1)), "of another size: need 24, got 23"),
    ("a weight file and one byte", || weight_file(|b| b.push(0)), "of another size: need 24, got 25"),
    ("another file", || weight_file(|b| b[..4].copy_from_slice(b"PK\x03\x04")), "got PK\\x03\\x04"),
    ("a version of the future", || weight_file(|b| b[4] = 2), "need JVCW version 1"),
    ("a payload of 2^64 - 1 bytes by its header", || weight_file(|b| b[8..16].fill(0xff)), "of another size"),
    ("the weights of another program", || weight_file(|b| b[16] ^= 1), "made for another program"),
    (
        "a flipped bit of the first weight",
        || weight_file(|b| b[HEADER_BYTES] ^= 1),
        "with flipped or overwritten bytes",
    ),
    (
        "a flipped bit of the last weight",
        || weight_file(|b| *b.last_mut().expect("bytes") ^= 0x80),
        "with flipped or overwritten bytes",
    ),
    (
        "two weights swapped",
        || weight_file(|b| b.swap(HEADER_BYTES, HEADER_BYTES + 8)),
        "with flipped or overwritten bytes",
    ),
];

/// Cache files; cut and flipped ones are tested byte by byte in `files/`.
pub(crate) const CACHE_FILES: &[Row] = &[
    ("a cache of no byte", Vec::new, "as good as none"),
    ("a cache of zeros", || vec![0; 1 << 20], "as good as none"),
    (
        "a driver's cache without our header",
        || [&[32, 0, 0, 0, 1, 0, 0, 0], [7; 64].as_slice()].concat(),
        "as good as none",
    ),
];

/// Inputs and references.
pub(crate) const TENSOR_FILES: &[Row] = &[
    ("tensors of no byte", Vec::new, "in.safetensors: "),
    ("tensors whose header lies", || [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat(), "in.safetensors: "),
    (
        "tensors of a type that programs do not take",
        || {
            let header = br#"{"z": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}"#;
            [(header.len() as u64).to_le_bytes().as_slice(), header, &[0; 8]].concat()
        },
        "z has type C64",
    ),
];
