//! Archives whose `model.json` is broken or contradicts itself.

use crate::archives::Entries;
use crate::{ACCEPTED, Row};
use serde_json::{Value, json};

const JSON: &str = "models/model.json";

fn small() -> Entries {
    Entries::of("small_2.11.0.pt2")
}

/// The program of a committed archive, changed as JSON.
fn edited(archive: &str, edit: impl Fn(&mut Value)) -> Vec<u8> {
    let entries = Entries::of(archive);
    let name = entries.0.iter().map(|(name, _)| name.clone()).find(|name| name.ends_with(JSON)).expect("a program");
    let mut tree = serde_json::from_slice(entries.get(&name)).expect("JSON");
    edit(&mut tree);
    entries.with(&name, tree.to_string().into_bytes()).zip()
}

/// The small program, its graph changed.
fn graph(edit: fn(&mut Value)) -> Vec<u8> {
    edited("small_2.11.0.pt2", |tree| edit(&mut tree["graph_module"]["graph"]))
}

fn raw(text: impl Into<Vec<u8>>) -> Vec<u8> {
    small().with(JSON, text.into()).zip()
}

fn replaced(from: &str, to: &str) -> Vec<u8> {
    small().edit(JSON, from, to).zip()
}

/// With the size expression of the batch replaced.
fn size(expression: &str) -> Vec<u8> {
    replaced("Symbol('s77', positive=True, integer=True)", expression)
}

/// A tensor's type in JSON.
fn tensor(sizes: &[i64]) -> Value {
    let ints = |v: &[i64]| v.iter().map(|n| json!({"as_int": n})).collect::<Vec<_>>();
    json!({"dtype": 7, "sizes": ints(sizes), "strides": ints(&vec![1; sizes.len()]), "storage_offset": {"as_int": 0}, "layout": 7})
}

fn relu(k: usize, input: &str) -> Value {
    let output = format!("unused_{k}");
    json!({"target": "torch.ops.aten.relu.default", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": input}}, "kind": 1}],
        "outputs": [{"as_tensor": {"name": output}}], "name": output})
}

/// With nodes of which nothing is used.
fn unused(g: &mut Value, n: usize) {
    for k in 0..n {
        g["tensor_values"][format!("unused_{k}")] = g["tensor_values"]["x"].clone();
        g["nodes"].as_array_mut().expect("a list").push(relu(k, "x"));
    }
}

/// Sub-graphs that hold one another.
fn nested(depth: usize) -> Vec<u8> {
    let open = r#"{"as_graph": {"name": "g", "graph": {"tensor_values": {}, "inputs": [], "outputs": [], "nodes": [{"target": "t", "outputs": [], "inputs": [{"name": "", "arg": "#;
    let close = "}]}]}}}";
    let inner = format!("{}{}{}", open.repeat(depth), r#"{"as_none": true}"#, close.repeat(depth));
    graph_text(&inner)
}

/// The small program with an argument of its first node replaced by a text.
fn graph_text(argument: &str) -> Vec<u8> {
    let mut tree: Value = serde_json::from_slice(small().get(JSON)).expect("JSON");
    tree["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = json!("HERE");
    raw(tree.to_string().replacen("\"HERE\"", argument, 1))
}

/// The scan of the fixture, its sub-graph changed.
fn subgraph(edit: fn(&mut Value)) -> Vec<u8> {
    edited("scan.pt2", |tree| {
        let nodes = tree["graph_module"]["graph"]["nodes"].as_array_mut().expect("a list");
        let scan = nodes.iter_mut().find(|n| n["target"] == "torch.ops.higher_order.scan").expect("a scan");
        edit(&mut scan["inputs"][0]["arg"]["as_graph"]["graph"]);
    })
}

/// Read as `hostile.pt2`.
pub(crate) const ROWS: &[Row] = &[
    ("a newer major", || replaced(r#""major": 8"#, r#""major": 9"#), "export format 9.17 is newer"),
    ("a major of far away", || replaced(r#""major": 8"#, r#""major": 9223372036854775807"#), "is newer"),
    ("an older major", || replaced(r#""major": 8"#, r#""major": 6"#), "export format 6.17 is older"),
    ("a negative major", || replaced(r#""major": 8"#, r#""major": -1"#), "export format -1.17 is older"),
    ("a major that is a text", || replaced(r#""major": 8"#, r#""major": "8""#), "expected an integer, found \"8\""),
    ("a newer minor", || replaced(r#""minor": 17"#, r#""minor": 18"#), ACCEPTED),
    ("no version", || replaced(r#""schema_version""#, r#""version""#), "field `schema_version` is missing"),
    ("no text", || raw(""), "models/model.json"),
    (
        "a text cut in the middle",
        || {
            let whole = small().get(JSON).to_vec();
            raw(&whole[..whole.len() / 2])
        },
        "models/model.json",
    ),
    ("not UTF-8", || raw(b"{\"graph_module\": \"\xff\"}".as_slice()), "not UTF-8"),
    ("a list", || raw("[]"), "is missing"),
    ("a key twice", || replaced(r#""opset_version""#, r#""torch_version""#), "key `torch_version` is given twice"),
    ("100,000 brackets", || raw("[".repeat(100_000)), "nesting of JSON: 101 is over the limit of 100"),
    ("100,000 objects", || raw(r#"{"a":"#.repeat(100_000)), "nesting of JSON"),
    ("sub-graphs 90 deep", || nested(90), "nesting of JSON"),
    ("an integer over 64 bits", || replaced(r#""minor": 17"#, r#""minor": 18446744073709551615"#), "over 64 bits"),
    ("NaN where NaN has begun", || raw("{\"a\": NaNaN}"), "models/model.json"),
    ("a brace and broken words", || raw("{N{NaNaNII"), "models/model.json"),
    ("no graph", || replaced(r#""graph_module": "#, r#""graph": "#), "field `graph_module` is missing"),
    (
        "nodes that are no list",
        || graph(|g| g["nodes"] = json!({"0": 1})),
        "expected a list, found an object of 1 fields",
    ),
    (
        "100,000 numbers where a text belongs",
        || graph(|g| g["nodes"][0]["target"] = json!(vec![7; 100_000])),
        "expected a string, found a list of 100000",
    ),
    (
        "an argument of two kinds",
        || graph_text(r#"{"as_int": 1, "as_float": 2}"#),
        "a tagged union has one key, this one has 2",
    ),
    ("an argument of an unknown kind", || graph_text(r#"{"as_magic": 1}"#), "argument kind `as_magic` is not known"),
    (
        "a name of a million bytes",
        || graph(|g| g["nodes"][0]["target"] = json!("x".repeat(1_000_000))),
        "bytes of a name: 1000000 is over",
    ),
    (
        "two million list items in one argument",
        || graph_text(&format!(r#"{{"as_ints": [{}1]}}"#, "1,".repeat(2_000_000))),
        "elements of a list",
    ),
    (
        "a cycle of names",
        || graph(|g| g["nodes"].as_array_mut().expect("a list").reverse()),
        "which nothing before it defines",
    ),
    (
        "a node that uses its own result",
        || {
            graph(|g| {
                let own = g["nodes"][2]["outputs"][0].clone();
                g["nodes"][2]["inputs"][0]["arg"] = own;
            })
        },
        "uses `add`, which nothing before it defines",
    ),
    (
        "a value that nothing defines",
        || graph(|g| g["nodes"][2]["inputs"][0]["arg"] = json!({"as_tensor": {"name": "ghost"}})),
        "uses `ghost`",
    ),
    (
        "an output that nothing defines",
        || graph(|g| g["outputs"][0] = json!({"as_tensor": {"name": "ghost"}})),
        "`ghost`",
    ),
    (
        "a value defined twice",
        || graph(|g| g["nodes"][2]["outputs"][0] = json!({"as_tensor": {"name": "x"}})),
        "value `x` is defined twice",
    ),
    (
        "a value without a type",
        || graph(|g| g["nodes"][2]["outputs"][0] = json!({"as_tensor": {"name": "untyped"}})),
        "`untyped`: has no type",
    ),
    (
        "a role more than it has inputs",
        || {
            edited("small_2.11.0.pt2", |t| {
                let roles = t["graph_module"]["signature"]["input_specs"].as_array_mut().expect("a list");
                roles.push(roles[0].clone());
            })
        },
        "roles for",
    ),
    (
        "roles in another order",
        || {
            edited("small_2.11.0.pt2", |t| {
                t["graph_module"]["signature"]["input_specs"].as_array_mut().expect("a list").swap(0, 1);
            })
        },
        "stands where the graph has",
    ),
    (
        "a role that nobody knows",
        || replaced(r#"{"user_input":"#, r#"{"user_wish":"#),
        "input role `user_wish` is not known",
    ),
    (
        "a weight that is not there",
        || replaced(r#""parameter_name": "t""#, r#""parameter_name": "gone""#),
        "weight `gone`: is not in the archive",
    ),
    (
        "a mutated buffer that is not there",
        || {
            edited("buffer_mutation.core.pt2", |t| {
                t["graph_module"]["signature"]["output_specs"][0]["buffer_mutation"]["buffer_name"] = json!("gone");
            })
        },
        "gone",
    ),
    (
        "an operator of nobody's",
        || replaced("torch.ops.aten.linear.default", "torch.ops.mine.linear.default"),
        "mine.linear",
    ),
    ("an operator without its arguments", || graph(|g| g["nodes"][3]["inputs"] = json!([])), "linear"),
    (
        "an argument of another kind",
        || graph(|g| g["nodes"][3]["inputs"][1]["arg"] = json!({"as_float": 1.0})),
        "linear",
    ),
    (
        "an operator with a thousand results",
        || {
            graph(|g| {
                let results: Vec<Value> = (0..1000).map(|k| json!({"as_tensor": {"name": format!("r{k}")}})).collect();
                (0..1000).for_each(|k| g["tensor_values"][format!("r{k}")] = tensor(&[1]));
                g["nodes"][2]["outputs"].as_array_mut().expect("a list").extend(results);
            })
        },
        "add",
    ),
    (
        "100,000 types that nothing has",
        || {
            graph(|g| {
                (0..100_000).for_each(|k| g["tensor_values"][format!("unused_{k}")] = tensor(&[4, 4]));
            })
        },
        ACCEPTED,
    ),
    ("5,000 nodes of which nothing is used", || graph(|g| unused(g, 5_000)), ACCEPTED),
    (
        "a size beyond all memory",
        || graph(|g| g["tensor_values"]["x"] = tensor(&[4, i64::MAX])),
        "elements of a tensor",
    ),
    (
        "sizes whose product overflows",
        || graph(|g| g["tensor_values"]["x"] = tensor(&[1 << 40, 1 << 40])),
        "elements of a tensor",
    ),
    ("a negative size of a value", || graph(|g| g["tensor_values"]["x"] = tensor(&[-4, 4])), "size -4 is negative"),
    (
        "70 dimensions",
        || graph(|g| g["tensor_values"]["x"] = tensor(&[1; 70])),
        "dimensions of a tensor: 70 is over the limit of 64",
    ),
    ("sizes without strides", || graph(|g| g["tensor_values"]["x"]["strides"] = json!([])), "sizes but 0 strides"),
    (
        "NaN as a size",
        || graph(|g| g["tensor_values"]["x"]["sizes"][0] = json!({"as_int": "NaN"})),
        "expected an integer, found \"NaN\"",
    ),
    (
        "half a size",
        || graph(|g| g["tensor_values"]["x"]["sizes"][0] = json!({"as_int": 2.5})),
        "expected an integer, found 2.5",
    ),
    (
        "a size that is a list",
        || graph(|g| g["tensor_values"]["x"]["sizes"][0] = json!({"as_ints": [1]})),
        "`as_ints` is no size",
    ),
    (
        "an element type of the future",
        || graph(|g| g["tensor_values"]["x"]["dtype"] = json!(99)),
        "element type 99 is not known",
    ),
    ("a sparse tensor", || graph(|g| g["tensor_values"]["x"]["layout"] = json!(1)), "layout 1 is not supported"),
    ("a size of 10,000 parentheses", || size(&"(".repeat(10_000)), "nests deeper than 48"),
    ("a size expression of a million bytes", || size(&"s0+".repeat(333_333)), "bytes of a size expression"),
    (
        "bounds that leave no value",
        || replaced(r#""max_val": 64"#, r#""max_val": 1"#),
        "leave no value for the symbol s77",
    ),
    ("a batch of up to 2^60", || replaced(r#""max_val": 64"#, r#""max_val": 1152921504606846976"#), "s77"),
    ("a batch without a bound", || replaced(r#""max_val": 64"#, r#""max_val": null"#), "s77"),
    (
        "a sub-graph that uses an outer name",
        || subgraph(|g| g["nodes"][0]["inputs"][0]["arg"] = json!({"as_tensor": {"name": "x"}})),
        "uses `x`",
    ),
    (
        "a sub-graph of too few inputs",
        || {
            subgraph(|g| {
                g["inputs"].as_array_mut().expect("a list").insert(0, json!({"as_tensor": {"name": "more"}}));
                g["tensor_values"]["more"] = tensor(&[4]);
            })
        },
        "scan",
    ),
    ("a sub-graph without results", || subgraph(|g| g["outputs"] = json!([])), "scan"),
    (
        "a sub-graph that is not there",
        || {
            edited("scan.pt2", |t| {
                let nodes = t["graph_module"]["graph"]["nodes"].as_array_mut().expect("a list");
                nodes
                    .iter_mut()
                    .filter(|n| n["target"] == "torch.ops.higher_order.scan")
                    .for_each(|n| n["inputs"][0]["arg"] = json!({"as_none": true}));
            })
        },
        "scan",
    ),
];

/// A bare graph of one parameter.
fn bare(sizes: &[i64]) -> Vec<u8> {
    let name = |n: &str| json!({"as_tensor": {"name": n}});
    json!({
        "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0", "range_constraints": {},
        "graph_module": {"module_call_graph": [],
            "graph": {"inputs": [name("w")], "outputs": [name("w")], "nodes": [], "tensor_values": {"w": tensor(sizes)}},
            "signature": {
                "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}}],
                "output_specs": [{"user_output": {"arg": name("w")}}]}},
    })
    .to_string()
    .into_bytes()
}

/// Read as `hostile.json` with made-up weights.
pub(crate) const BARE: &[Row] = &[
    ("a weight of 4 TiB to be made up", || bare(&[1 << 40]), "bytes of made-up weights: 4398046511104 is over"),
    ("an empty weight of 2^40 rows", || bare(&[1 << 40, 0]), ACCEPTED),
    ("an object without a program", || b"{}".to_vec(), "field `schema_version` is missing"),
];
