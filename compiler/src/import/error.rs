//! Why a file cannot be imported.

use std::io;
use std::path::PathBuf;

/// A file that cannot be read as an exported program.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Neither a ZIP archive nor (gzipped) JSON, or an archive without a program.
    #[error("{name} holds no exported program: {why}")]
    NoProgram {
        /// File or entry.
        name: String,
        /// What was looked for.
        why: String,
    },
    /// The ZIP structure is broken.
    #[error("broken or incomplete ZIP archive: {0}")]
    Zip(String),
    /// An entry of the archive is broken, or of a kind that is not read.
    #[error("archive entry `{name}`: {why}")]
    Entry {
        /// Entry.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Something is larger than [`super::limits::LIMITS`] allows.
    #[error("{what}: {got} is over the limit of {max}")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// Count found (a lower bound where counting stopped early).
        got: u64,
        /// Limit.
        max: u64,
    },
    /// The JSON does not follow the export format.
    #[error("{at}: {why}")]
    Format {
        /// Place in the file.
        at: String,
        /// What is wrong.
        why: String,
    },
    /// Written by a newer torch whose format differs.
    #[error(
        "export format {major}.{minor} is newer than the newest that this version reads (8.x); re-export with torch 2.11 or older"
    )]
    SchemaTooNew {
        /// Major number of the file.
        major: i64,
        /// Minor number of the file.
        minor: i64,
    },
    /// Written by a torch before 2.5.
    #[error("export format {major}.{minor} is older than 7.0 (torch 2.5); re-export with torch 2.5 or newer")]
    SchemaTooOld {
        /// Major number of the file.
        major: i64,
        /// Minor number of the file.
        minor: i64,
    },
    /// A name is defined twice.
    #[error("{what} `{name}` is defined twice")]
    Duplicate {
        /// Kind of thing.
        what: &'static str,
        /// Name.
        name: String,
    },
    /// A name is used before it is defined, or never defined.
    #[error("{at} uses `{name}`, which nothing before it defines")]
    Undefined {
        /// Name.
        name: String,
        /// User.
        at: String,
    },
    /// A size expression cannot be read.
    #[error("size expression `{text}`: {why}")]
    Expression {
        /// Text, shortened.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// A pickled state dictionary cannot be read.
    #[error("pickle `{entry}`: {why}")]
    Pickle {
        /// Archive entry.
        entry: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor of the checkpoint is inconsistent.
    #[error("weight `{name}`: {why}")]
    Weight {
        /// Name in the checkpoint.
        name: String,
        /// What is wrong.
        why: String,
    },
}

impl ImportError {
    /// A deviation from the format at a place.
    pub(super) fn format(at: &str, why: impl Into<String>) -> ImportError {
        ImportError::Format { at: at.to_string(), why: why.into() }
    }

    /// An error if `got > max`.
    pub(super) fn limit(what: &'static str, got: u64, max: u64) -> Result<(), ImportError> {
        if got > max { Err(ImportError::Limit { what, got, max }) } else { Ok(()) }
    }
}
