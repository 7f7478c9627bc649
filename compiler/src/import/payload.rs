//! The checkpoint part of an archive → [`WeightStore`]: raw storages (torch 2.9 and later) or pickled state dictionaries (before).
//! Every view is checked to lie inside its storage, so later stages index without checks.

use super::archive::Archive;
use super::error::ImportError;
use super::graph::scalar_type;
use super::json::{self, Json};
use super::limits::Limits;
use super::pickle::{self, PickledTensor};
use super::weights::{Storage, WeightStore, WeightView};
use std::collections::{BTreeMap, BTreeSet};

/// Where the tensors of one model lie in the archive.
pub(super) enum Layout<'a> {
    /// `data/weights/model_weights_config.json` and the like; the folder and the file of descriptions.
    Raw { folder: &'a str, config: &'a str },
    /// A `torch.save` file.
    Pickled(&'a str),
}

/// Reads all tensors of a layout into the store.
pub(super) fn read(
    archive: &Archive,
    layout: &Layout<'_>,
    limits: &Limits,
    store: &mut WeightStore,
    warnings: &mut BTreeSet<String>,
) -> Result<(), ImportError> {
    let views = match layout {
        Layout::Raw { folder, config } => read_raw(archive, folder, config, limits, warnings)?,
        Layout::Pickled(entry) => read_pickled(archive, entry, limits, warnings)?,
    };
    for (name, view) in views {
        if store.insert(name.clone(), view).is_some() {
            return Err(ImportError::Duplicate { what: "weight", name });
        }
    }
    ImportError::limit("tensors of a checkpoint", store.len() as u64, limits.weights)
}

fn read_raw(
    archive: &Archive,
    folder: &str,
    config: &str,
    limits: &Limits,
    warnings: &mut BTreeSet<String>,
) -> Result<Vec<(String, WeightView)>, ImportError> {
    let bytes = archive.text(config, limits.json_bytes)?;
    let text = json::prepare(bytes.bytes(), config, limits)?;
    let tree = json::parse(&text, config)?;
    let mut files: BTreeMap<String, Storage> = BTreeMap::new();
    let mut out = vec![];
    for (name, meta) in tree.need("config", config)?.map(config)? {
        ImportError::limit("bytes of a name", name.len() as u64, limits.name_bytes)?;
        if matches!(meta.get("use_pickle"), Some(Json::Bool(true))) {
            warnings.insert(format!("weight `{name}` is a pickled object and is not read"));
            // A tensor subclass: what the graph takes out of it is refused, operator by operator.
            if let Some(Ok(view)) = meta.get("tensor_meta").map(|m| raw_view(m, &format!("weight `{name}`"))) {
                out.push((name.to_string(), view));
            }
            continue;
        }
        let file = meta.need("path_name", config)?.str(config)?;
        let storage = match files.get(file) {
            Some(storage) => storage.clone(),
            None => archive.payload(&format!("{folder}{file}"))?,
        };
        files.insert(file.to_string(), storage.clone());
        let view = raw_view(meta.need("tensor_meta", config)?, &format!("weight `{name}`"))?;
        out.push((name.to_string(), attach(view, storage, name, limits, warnings)?));
    }
    Ok(out)
}

fn raw_view(meta: &Json<'_>, at: &str) -> Result<WeightView, ImportError> {
    let literal = |v: &Json<'_>| match v.union(at)? {
        ("as_int", v) => v.int(at),
        (other, _) => Err(ImportError::format(at, format!("`{other}` is no literal size"))),
    };
    let literals = |key| meta.need(key, at)?.list(at)?.iter().map(literal).collect::<Result<Vec<i64>, _>>();
    Ok(WeightView {
        dtype: scalar_type(meta.need("dtype", at)?, at)?,
        sizes: literals("sizes")?,
        strides: literals("strides")?,
        offset: literal(meta.need("storage_offset", at)?)?,
        storage: None,
    })
}

fn read_pickled(
    archive: &Archive,
    entry: &str,
    limits: &Limits,
    warnings: &mut BTreeSet<String>,
) -> Result<Vec<(String, WeightView)>, ImportError> {
    let file = archive.payload(entry)?;
    if file.bytes().is_empty() {
        return Ok(vec![]);
    }
    let inner = archive.open_inner(file, limits)?;
    let pickle_entry = inner.names().find(|n| n.ends_with("data.pkl")).map(str::to_string);
    let pickle_entry = pickle_entry.ok_or_else(|| no_entry(entry, "holds no data.pkl"))?;
    let prefix = &pickle_entry[..pickle_entry.len() - "data.pkl".len()];
    check_byteorder(&inner, prefix, limits)?;
    let program = inner.text(&pickle_entry, limits.pickle_bytes)?;
    let mut out = vec![];
    for (name, tensor) in pickle::read_state_dict(program.bytes(), entry, limits)? {
        let PickledTensor { dtype, key, sizes, strides, offset } = tensor;
        let storage = inner.payload(&format!("{prefix}data/{key}"))?;
        let view = WeightView { dtype, sizes, strides, offset, storage: None };
        let view = attach(view, storage, &name, limits, warnings)?;
        out.push((name, view));
    }
    Ok(out)
}

fn no_entry(name: &str, why: &str) -> ImportError {
    ImportError::Entry { name: name.to_string(), why: why.to_string() }
}

/// Refuses archives of big-endian machines; files of old writers have no such entry.
pub(super) fn check_byteorder(archive: &Archive, prefix: &str, limits: &Limits) -> Result<(), ImportError> {
    let name = format!("{prefix}byteorder");
    if !archive.has(&name) || archive.text(&name, limits.name_bytes)?.bytes() == b"little" {
        return Ok(());
    }
    Err(no_entry(&name, "only little-endian archives are supported"))
}

/// The view with its storage, checked; without one (and with a warning) where the file holds no bytes for it (fake tensors).
fn attach(
    mut view: WeightView,
    storage: Storage,
    name: &str,
    limits: &Limits,
    warnings: &mut BTreeSet<String>,
) -> Result<WeightView, ImportError> {
    check_view(&view, storage.bytes().len(), limits)
        .or_else(|why| if storage.bytes().is_empty() { check_view(&view, usize::MAX, limits) } else { Err(why) })
        .map_err(|why| ImportError::Weight { name: name.to_string(), why })?;
    if storage.bytes().is_empty() && view.n_elems() > 0 {
        warnings.insert("some weights have no payload".to_string());
    } else {
        view.storage = Some(storage);
    }
    Ok(view)
}

/// Checks that every element lies inside a storage of so many bytes, and that the view is not absurdly larger than it.
pub(super) fn check_view(view: &WeightView, storage_bytes: usize, limits: &Limits) -> Result<(), String> {
    if view.sizes.len() != view.strides.len() || view.sizes.len() as u64 > limits.rank {
        return Err(format!("has {} sizes and {} strides", view.sizes.len(), view.strides.len()));
    }
    if let Some(bad) = view.sizes.iter().chain(&view.strides).chain([&view.offset]).find(|v| **v < 0) {
        return Err(format!("has the negative size, stride or offset {bad}"));
    }
    let elems = view.sizes.iter().try_fold(1u64, |n, &s| n.checked_mul((s as u64).max(1)));
    let elems = elems.filter(|&n| n <= limits.elems).ok_or("has too many elements")?;
    if view.sizes.contains(&0) {
        return Ok(());
    }
    let size = view.dtype.size_bytes();
    let reach = view.sizes.iter().zip(&view.strides).map(|(&n, &s)| (n as u128 - 1) * s as u128).sum::<u128>();
    let end = (view.offset as u128 + reach + 1) * u128::from(size);
    if end > storage_bytes as u128 {
        return Err(format!("reaches byte {end} of a storage of {storage_bytes} bytes"));
    }
    let most = (storage_bytes as u64).saturating_mul(limits.expansion).max(64 << 20);
    if elems.saturating_mul(size) > most {
        return Err(format!("expands a storage of {storage_bytes} bytes to {elems} elements"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::limits::LIMITS;
    use crate::import::program::ScalarType;

    fn view(sizes: &[i64], strides: &[i64], offset: i64) -> WeightView {
        let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
        WeightView { dtype: ScalarType::F32, sizes, strides, offset, storage: None }
    }

    #[test]
    fn views_end_exactly_at_their_storage() {
        for (v, bytes) in [
            (view(&[4, 5], &[1, 4], 0), 80),
            (view(&[3, 8], &[8, 1], 24), 192),
            (view(&[3, 4], &[0, 1], 0), 16),
            (view(&[4, 3], &[6, 2], 1), 4 * (1 + 18 + 4 + 1)),
            (view(&[], &[], 2), 12),
        ] {
            assert_eq!(check_view(&v, bytes, &LIMITS), Ok(()), "{v:?}");
            assert!(check_view(&v, bytes - 1, &LIMITS).is_err(), "{v:?} in {}", bytes - 1);
        }
        assert_eq!(check_view(&view(&[0, 5], &[5, 1], 0), 0, &LIMITS), Ok(()));
    }

    #[test]
    fn overflowing_and_negative_views_are_errors() {
        let big = i64::MAX;
        for v in [
            view(&[big, big], &[1, 1], 0),
            view(&[2, 2], &[big, big], big),
            view(&[-1], &[1], 0),
            view(&[1], &[-1], 0),
            view(&[1], &[1], -1),
            view(&[1, 2], &[1], 0),
            view(&[1 << 40], &[0], 0),
        ] {
            assert!(check_view(&v, 1 << 20, &LIMITS).is_err(), "{v:?}");
        }
    }
}
