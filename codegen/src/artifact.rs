//! The generated files as a map, and the only code of the project that writes files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::plan::Weights;
use crate::weights::{FillTensor, WeightError, write_weights};

/// Files by relative path, `/` between folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Artifact {
    /// Contents.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Folders whose other files are left over from something older, and go. What cargo leaves (`Cargo.lock`, `target`) stays.
    pub owned: BTreeSet<String>,
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file or folder.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A weight file.
    #[error("{path}: {source}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: WeightError,
    },
}

/// How a file on disk differs from the artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// It should be there.
    Missing(String),
    /// It should not be there.
    Extra(String),
    /// It has other contents.
    Changed(String),
}

impl Difference {
    /// Path of the file.
    pub fn path(&self) -> &str {
        match self {
            Difference::Missing(path) | Difference::Extra(path) | Difference::Changed(path) => path,
        }
    }
}

impl Artifact {
    /// Adds a text file.
    pub fn add_text(&mut self, path: &str, text: String) {
        self.files.insert(path.to_string(), text.into_bytes());
    }

    /// A file's text, if it is there and is text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Writes every file below `dir`, each by way of a temporary file, so that no reader meets half a file. Files that are equal
    /// already are left alone, and so keep their time stamps; other files in the owned folders are removed.
    ///
    /// # Errors
    /// The first file or folder that could not be read or written.
    pub fn write(&self, dir: &Path) -> Result<(), WriteError> {
        for difference in self.diff(dir)? {
            let path = dir.join(difference.path());
            match &difference {
                Difference::Extra(_) => fs::remove_file(&path).map_err(|source| WriteError::Io { path, source })?,
                Difference::Missing(name) | Difference::Changed(name) => write_file(&path, &self.files[name])?,
            }
        }
        Ok(())
    }

    /// Compares with a folder, in the order of paths. Only the owned folders are searched for extra files.
    ///
    /// # Errors
    /// A file or folder that could not be read.
    pub fn diff(&self, dir: &Path) -> Result<Vec<Difference>, WriteError> {
        let mut differences = Vec::new();
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            match fs::read(&path) {
                Ok(found) if found == *bytes => {}
                Ok(_) => differences.push(Difference::Changed(name.clone())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    differences.push(Difference::Missing(name.clone()))
                }
                Err(source) => return Err(WriteError::Io { path, source }),
            }
        }
        for folder in &self.owned {
            let found = list(dir, folder)?;
            differences.extend(found.into_iter().filter(|name| !self.files.contains_key(name)).map(Difference::Extra));
        }
        differences.sort_by(|a, b| a.path().cmp(b.path()));
        Ok(differences)
    }
}

/// Files below a folder, as paths relative to `dir`.
fn list(dir: &Path, folder: &str) -> Result<Vec<String>, WriteError> {
    let path = dir.join(folder);
    let io_error = |source| WriteError::Io { path: path.clone(), source };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io_error(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error)?;
        let name = entry.file_name();
        if name == "target" || name == "Cargo.lock" {
            continue;
        }
        let name = format!("{folder}/{}", name.to_string_lossy());
        match entry.file_type().map_err(io_error)?.is_dir() {
            true => names.extend(list(dir, &name)?),
            false => names.push(name),
        }
    }
    Ok(names)
}

/// Writes one file by way of a temporary file beside it.
fn write_file(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    replace(path, |out| out.write_all(bytes).map_err(|source| WriteError::Io { path: path.to_path_buf(), source }))
}

fn replace<T>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<fs::File>) -> Result<T, WriteError>,
) -> Result<T, WriteError> {
    let io_error = |source| WriteError::Io { path: path.to_path_buf(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io_error)?;
    let mut temporary = path.as_os_str().to_os_string();
    temporary.push(".part");
    let mut out = BufWriter::new(fs::File::create(&temporary).map_err(io_error)?);
    let filled = fill(&mut out).and_then(|value| {
        out.flush().map_err(io_error)?;
        Ok(value)
    });
    drop(out);
    match filled {
        Ok(value) => fs::rename(&temporary, path).map_err(io_error).map(|()| value),
        Err(error) => {
            // The error at hand is the one to tell; a left-over temporary file is overwritten by the next run.
            let _ = fs::remove_file(&temporary);
            Err(error)
        }
    }
}

/// Writes a weight file, tensor by tensor, and returns its payload's hash.
///
/// # Errors
/// The file cannot be written, or as [`write_weights`].
pub fn write_weight_file(path: &Path, weights: &Weights, fill: FillTensor<'_>) -> Result<u64, WriteError> {
    replace(path, |out| {
        write_weights(weights, out, fill).map_err(|source| WriteError::Weights { path: path.to_path_buf(), source })
    })
}

/// Writes any other single file: reports, results, device profiles.
///
/// # Errors
/// The file cannot be written.
pub fn write_single(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write_file(path, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_leaves_exactly_the_artifact() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let mut artifact = Artifact { owned: BTreeSet::from(["src".to_string()]), ..Artifact::default() };
        artifact.add_text("src/lib.rs", "one".into());
        artifact.add_text("src/deep/a.rs", "two".into());
        artifact.write(dir.path()).expect("the folder is writable");
        assert_eq!(artifact.diff(dir.path()).expect("readable"), vec![]);
        fs::write(dir.path().join("src/old.rs"), "old").expect("writable");
        fs::write(dir.path().join("weights.bin"), "kept").expect("writable");
        artifact.add_text("src/lib.rs", "three".into());
        artifact.add_text("plan.txt", "plan".into());
        let expected = [
            Difference::Missing("plan.txt".into()),
            Difference::Changed("src/lib.rs".into()),
            Difference::Extra("src/old.rs".into()),
        ];
        assert_eq!(artifact.diff(dir.path()).expect("readable"), expected);
        artifact.write(dir.path()).expect("the folder is writable");
        assert_eq!(artifact.diff(dir.path()).expect("readable"), vec![]);
        assert!(dir.path().join("weights.bin").exists() && !dir.path().join("src/old.rs").exists());
    }

    #[test]
    fn a_failed_weight_file_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let path = dir.path().join("w.bin");
        let weights = Weights { chunk_bytes: vec![4], tensors: vec![], content_hash: 0 };
        write_weight_file(&path, &weights, &mut |_, _| Ok(())).expect("an empty layout is right");
        assert_eq!(fs::read(&path).expect("it is there").len(), 68);
        let bad = Weights {
            tensors: vec![crate::plan::WeightTensor {
                name: "w".into(),
                elem: crate::plan::Elem::U8,
                shape: vec![9],
                chunk: 0,
                offset: 0,
                bytes: 9,
            }],
            ..weights
        };
        write_weight_file(&path, &bad, &mut |_, _| Ok(())).expect_err("the tensor is beyond its chunk");
        assert_eq!(fs::read(&path).expect("the old file stays").len(), 68);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }
}
