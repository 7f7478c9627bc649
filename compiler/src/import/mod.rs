//! Bytes → [`Program`]: a faithful reader of `torch.export` archives. The only part of jvc that knows the file format.
//!
//! Reads `.pt2` files of torch 2.5 to 2.11 (and any later minor of the same major format, with warnings), and bare `model.json`
//! or `model.json.gz`, whose weights then have no payload. Weights stay in the mapped file. A file is untrusted: what it may cost
//! is bounded by [`limits::LIMITS`], and whatever is wrong with it is an [`ImportError`].

mod archive;
mod checkpoint;
mod error;
mod expr;
mod graph;
mod json;
pub mod limits;
mod payload;
mod pickle;
mod print;
pub mod program;
mod pytree;
mod random;
mod signature;
pub mod weights;

pub use checkpoint::merge_weights;
pub use error::ImportError;
pub use print::print;
pub use program::Program;
pub use random::fill_random;
pub(crate) use random::unit;

use archive::Archive;
use graph::Reader;
use json::Json;
use limits::{LIMITS, Limits};
use payload::Layout;
use program::InputSpec;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use weights::{Storage, WeightStore, WeightView};

/// Newest minor of format 8 whose fields are all known (torch 2.11).
const NEWEST_MINOR: i64 = 17;

/// Reads all programs of a file.
///
/// # Errors
/// Every way in which the file is broken, of another format, or over the limits.
pub fn read(path: &Path) -> Result<Vec<Program>, ImportError> {
    // A folder can be opened, and then refuses to be mapped for a reason that says nothing.
    let map = if path.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { jvc_runtime::map_file(path) };
    let map = map.map_err(|source| ImportError::Io { path: path.to_path_buf(), source })?;
    let range = 0..map.len();
    let stem = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    read_bytes(&stem, Storage::mapped(Arc::new(map), range), &LIMITS)
}

/// Reads all programs of a file in memory. `name` is the file's name, for messages and for programs that carry no name.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(name: &str, file: Storage, limits: &Limits) -> Result<Vec<Program>, ImportError> {
    let head = file.bytes();
    if head.starts_with(b"PK") {
        return read_archive(name, &Archive::open(file.clone(), limits)?, limits);
    }
    let stem = name.split('.').next().unwrap_or(name);
    if head.starts_with(&[0x1f, 0x8b]) {
        let mut text = vec![];
        flate2::read::GzDecoder::new(head)
            .take(limits.json_bytes + 1)
            .read_to_end(&mut text)
            .map_err(|e| no_program(name, format!("it is no readable gzip file: {e}")))?;
        return Ok(vec![read_program(stem, &text, name, None, limits)?]);
    }
    if head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        return Ok(vec![read_program(stem, head, name, None, limits)?]);
    }
    Err(no_program(name, "it is neither a ZIP archive nor JSON nor gzipped JSON".into()))
}

fn no_program(name: &str, why: String) -> ImportError {
    ImportError::NoProgram { name: name.to_string(), why }
}

/// Tensors of one program, and warnings.
type Payload = (WeightStore, BTreeSet<String>);

fn read_archive(file: &str, archive: &Archive, limits: &Limits) -> Result<Vec<Program>, ImportError> {
    const OLD_PROGRAM: &str = "serialized_exported_program.json";
    if archive.has(OLD_PROGRAM) {
        let layouts = [Layout::Pickled("serialized_state_dict.pt"), Layout::Pickled("serialized_constants.pt")];
        let payload = read_payload(archive, &layouts, limits)?;
        let text = archive.text(OLD_PROGRAM, limits.json_bytes)?;
        return Ok(vec![read_program("model", text.bytes(), OLD_PROGRAM, Some(payload), limits)?]);
    }
    let prefix =
        archive.names().find_map(|n| n.strip_suffix("archive_format").filter(|p| p.is_empty() || p.ends_with('/')));
    let prefix =
        prefix.ok_or_else(|| no_program(file, format!("there is neither `archive_format` nor `{OLD_PROGRAM}`")))?;
    check_container(archive, prefix, limits)?;
    let folder = format!("{prefix}models/");
    let mut programs = vec![];
    for entry in archive.names() {
        let Some(model) = entry.strip_prefix(&folder).and_then(|n| n.strip_suffix(".json")) else { continue };
        let payload = read_model_payload(archive, prefix, model, limits)?;
        let text = archive.text(entry, limits.json_bytes)?;
        programs.push(read_program(model, text.bytes(), entry, Some(payload), limits)?);
    }
    if programs.is_empty() { Err(no_program(file, format!("there is no `{folder}*.json`"))) } else { Ok(programs) }
}

fn check_container(archive: &Archive, prefix: &str, limits: &Limits) -> Result<(), ImportError> {
    payload::check_byteorder(archive, prefix, limits)?;
    for (entry, expect) in [("archive_format", "pt2"), ("archive_version", "0")] {
        let name = format!("{prefix}{entry}");
        let found = archive.text(&name, limits.name_bytes)?;
        if found.bytes() != expect.as_bytes() {
            let why = format!("is `{}` (only `{expect}` is read)", String::from_utf8_lossy(found.bytes()));
            return Err(ImportError::Entry { name, why });
        }
    }
    Ok(())
}

fn read_model_payload(archive: &Archive, prefix: &str, model: &str, limits: &Limits) -> Result<Payload, ImportError> {
    let mut texts = vec![];
    for kind in ["weights", "constants"] {
        let folder = format!("{prefix}data/{kind}/");
        texts.push((format!("{folder}{model}_{kind}_config.json"), format!("{folder}{model}.pt"), folder));
    }
    let layouts: Vec<Layout<'_>> = texts
        .iter()
        .filter_map(|(config, pickled, folder)| match () {
            () if archive.has(config) => Some(Layout::Raw { folder, config }),
            () if archive.has(pickled) => Some(Layout::Pickled(pickled)),
            () => None,
        })
        .collect();
    read_payload(archive, &layouts, limits)
}

fn read_payload(archive: &Archive, layouts: &[Layout<'_>], limits: &Limits) -> Result<Payload, ImportError> {
    let (mut store, mut warnings) = (WeightStore::new(), BTreeSet::new());
    for layout in layouts {
        payload::read(archive, layout, limits, &mut store, &mut warnings)?;
    }
    check_total(&store, archive.n_bytes(), limits)?;
    Ok((store, warnings))
}

/// Many views of one small storage cost as much as the tensors that they stand for, as soon as something reads them.
fn check_total(store: &WeightStore, file_bytes: u64, limits: &Limits) -> Result<(), ImportError> {
    const FLOOR: u64 = 1 << 30;
    let with_bytes = store.values().filter(|view| view.storage.is_some());
    let total = with_bytes.fold(0u64, |sum, view| sum.saturating_add(view.n_bytes()));
    ImportError::limit("bytes of all weights", total, file_bytes.saturating_mul(limits.view_bytes).max(FLOOR))
}

const PROGRAM_KEYS: [&str; 8] = [
    "graph_module",
    "opset_version",
    "range_constraints",
    "schema_version",
    "verifiers",
    "dialect",
    "torch_version",
    "guards_code",
];
const MODULE_KEYS: [&str; 5] = ["graph", "signature", "module_call_graph", "metadata", "treespec_namedtuple_fields"];

/// JSON → program. Without a payload the weights are those that the signature names, with no bytes.
fn read_program(
    name: &str,
    bytes: &[u8],
    entry: &str,
    payload: Option<Payload>,
    limits: &Limits,
) -> Result<Program, ImportError> {
    let text = json::prepare(bytes, entry, limits)?;
    let tree = json::parse(&text, entry)?;
    let mut reader = Reader::new(limits);
    check_schema(&mut reader, &tree, entry)?;
    reader.know(&tree, "program", &PROGRAM_KEYS);
    let module = tree.need("graph_module", entry)?;
    reader.know(module, "graph_module", &MODULE_KEYS);
    let signature = module.need("signature", entry)?;
    let graph = reader.graph(module.need("graph", entry)?, "graph")?;
    let inputs = signature::inputs(&mut reader, signature, &graph)?;
    let outputs = signature::outputs(&mut reader, signature, &graph)?;
    let (input_names, output_names) = signature::names(&mut reader, module, &inputs, &outputs)?;
    let ranges = signature::ranges(&mut reader, tree.get("range_constraints"))?;
    let weights = match payload {
        Some((store, warnings)) => {
            reader.warnings.extend(warnings);
            store
        }
        None => bare_weights(&graph, &inputs)?,
    };
    check_weights(&graph, &inputs, &weights)?;
    let torch_version = tree.get("torch_version").and_then(|v| v.str("").ok()).unwrap_or("").chars().take(64).collect();
    let functional = is_functional(&tree);
    let warnings = reader.warnings.into_iter().collect();
    let name = name.to_string();
    Ok(Program {
        name,
        graph,
        inputs,
        outputs,
        input_names,
        output_names,
        ranges,
        functional,
        torch_version,
        weights,
        warnings,
    })
}

fn check_schema(reader: &mut Reader<'_>, tree: &Json<'_>, entry: &str) -> Result<(), ImportError> {
    let version = tree.need("schema_version", entry)?;
    let (major, minor) = (version.need("major", entry)?.int(entry)?, version.need("minor", entry)?.int(entry)?);
    match major {
        ..7 => Err(ImportError::SchemaTooOld { major, minor }),
        7 => Ok(()),
        8 => {
            if minor > NEWEST_MINOR {
                reader.warnings.insert(format!(
                    "written in export format 8.{minor}, newer than 8.{NEWEST_MINOR}: what it adds is ignored or refused"
                ));
            }
            Ok(())
        }
        9.. => Err(ImportError::SchemaTooNew { major, minor }),
    }
}

/// `verifiers` (a list) since 2.5; `dialect` before.
fn is_functional(tree: &Json<'_>) -> bool {
    let is_aten = |v: &Json<'_>| matches!(v, Json::Str(s) if s == "ATEN");
    match (tree.get("verifiers"), tree.get("dialect")) {
        (Some(Json::List(list)), _) => list.iter().any(is_aten),
        (_, Some(dialect)) => is_aten(dialect),
        _ => false,
    }
}

fn bare_weights(graph: &program::ProgramGraph, inputs: &[InputSpec]) -> Result<WeightStore, ImportError> {
    let mut store = WeightStore::new();
    for input in inputs {
        let InputSpec::Weight { arg, name, .. } = input else { continue };
        let meta = &graph.tensors[arg];
        let sizes: Option<Vec<i64>> = meta.sizes.iter().map(|d| d.as_const()).collect();
        let sizes = sizes.ok_or_else(|| weight_error(name, "has a symbolic size".into()))?;
        let strides = dense_strides(&sizes);
        store.insert(name.clone(), WeightView { dtype: meta.dtype, sizes, strides, offset: 0, storage: None });
    }
    Ok(store)
}

/// Row-major strides; saturating, since sizes are only bounded as a product.
fn dense_strides(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(sizes[d].max(1));
    }
    strides
}

fn weight_error(name: &str, why: String) -> ImportError {
    ImportError::Weight { name: name.to_string(), why }
}

/// Every weight that the signature names is there, with the type that the graph gives it.
fn check_weights(
    graph: &program::ProgramGraph,
    inputs: &[InputSpec],
    weights: &WeightStore,
) -> Result<(), ImportError> {
    for input in inputs {
        let InputSpec::Weight { arg, name, .. } = input else { continue };
        let view = weights.get(name).ok_or_else(|| weight_error(name, "is not in the archive".into()))?;
        let meta = &graph.tensors[arg];
        let sizes: Option<Vec<i64>> = meta.sizes.iter().map(|d| d.as_const()).collect();
        if view.dtype != meta.dtype || sizes.as_ref() != Some(&view.sizes) {
            let shape: Vec<String> = meta.sizes.iter().map(|d| d.to_string()).collect();
            let why =
                format!("is {}{:?}, but the graph says {}[{}]", view.dtype, view.sizes, meta.dtype, shape.join(", "));
            return Err(weight_error(name, why));
        }
    }
    Ok(())
}
