//! Reads the texts of generated crates from a folder, or from a folder of a git revision.

use jvc_codegen::plan::{Outline, ParseError};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The texts of a crate.
#[derive(Debug, Clone, PartialEq)]
pub struct Crate {
    /// `plan.txt`.
    pub outline: Outline,
    /// `decisions.txt`, by what a line is about.
    pub decisions: BTreeMap<String, Vec<String>>,
}

/// Why crates cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Neither a crate nor a folder of crates.
    #[error("{place} holds no generated crate: neither it nor a folder in it has a plan.txt")]
    NoCrate {
        /// Where.
        place: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// The text is no plan.
    #[error("{path}: {reason}")]
    Parse {
        /// The file.
        path: String,
        /// The line and what it should be.
        reason: ParseError,
    },
    /// Git does not know the revision or the folder, or is not there.
    #[error("git {command}: {reason}")]
    Git {
        /// Its arguments.
        command: String,
        /// What it says.
        reason: String,
    },
}

/// Where texts come from.
enum Place<'a> {
    Folder(&'a Path),
    /// `REVISION:FOLDER`.
    Revision(&'a str),
}

/// All crates of a place, by folder name: a crate's own folder (its name is then empty), a folder of crates, or `REVISION:FOLDER` for
/// either as git has it.
///
/// # Errors
/// A place that does not exist or holds no crate; a text that is no plan.
pub fn read(place: &str) -> Result<BTreeMap<String, Crate>, SourceError> {
    let from = match place.split_once(':') {
        Some((_, folder)) if !folder.is_empty() && !Path::new(place).exists() => Place::Revision(place),
        _ => Place::Folder(Path::new(place)),
    };
    let mut found = BTreeMap::new();
    for name in std::iter::once(String::new()).chain(from.folders()?) {
        if let Some(text) = from.text(&name, "plan.txt")? {
            let parsed = Outline::parse(&text);
            let outline = parsed.map_err(|reason| SourceError::Parse { path: from.path(&name, "plan.txt"), reason })?;
            let decisions = decisions(&from.text(&name, "decisions.txt")?.unwrap_or_default());
            found.insert(name, Crate { outline, decisions });
        }
    }
    if found.is_empty() { Err(SourceError::NoCrate { place: place.to_owned() }) } else { Ok(found) }
}

/// `what: why`, a line each; lines without a colon are about the whole crate.
fn decisions(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let (what, why) = line.split_once(": ").unwrap_or(("", line));
        found.entry(what.to_owned()).or_default().push(why.to_owned());
    }
    found
}

impl Place<'_> {
    fn path(&self, folder: &str, file: &str) -> String {
        let slash = if folder.is_empty() { "" } else { "/" };
        match self {
            Place::Folder(root) => root.join(folder).join(file).display().to_string(),
            Place::Revision(root) => format!("{}/{folder}{slash}{file}", root.trim_end_matches('/')),
        }
    }

    /// Names of the folders in it.
    fn folders(&self) -> Result<Vec<String>, SourceError> {
        match self {
            Place::Folder(root) => {
                let failed = |error: std::io::Error| SourceError::Read {
                    path: root.display().to_string(),
                    reason: error.to_string(),
                };
                let mut names = vec![];
                for entry in std::fs::read_dir(root).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    if entry.path().is_dir() {
                        names.push(entry.file_name().to_string_lossy().into_owned());
                    }
                }
                names.sort();
                Ok(names)
            }
            Place::Revision(root) => {
                let listed = git(&["ls-tree", "-d", "--name-only", root.trim_end_matches('/')])?;
                Ok(listed.lines().map(str::to_owned).collect())
            }
        }
    }

    /// A file's text; nothing where it does not exist.
    fn text(&self, folder: &str, file: &str) -> Result<Option<String>, SourceError> {
        let path = self.path(folder, file);
        match self {
            Place::Folder(_) => match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(SourceError::Read { path, reason: error.to_string() }),
            },
            // That a file does not exist has no exit code of its own; the folder does, and was listed.
            Place::Revision(_) => Ok(git(&["show", &path]).ok()),
        }
    }
}

fn git(arguments: &[&str]) -> Result<String, SourceError> {
    let failed = |reason: String| SourceError::Git { command: arguments.join(" "), reason };
    let output = Command::new("git").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
}
