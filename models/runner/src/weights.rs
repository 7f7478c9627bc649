//! Finding a generated crate's weight file, and saying what to do when it is missing or another program's.

use jvc_runtime::{Error, WeightSource};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// What jvc calls the weight file.
pub const FILE_NAME: &str = "weights.jvcw";

/// A generated crate, as far as finding its weights needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generated {
    /// Name of the crate: beside a program, its weights are `NAME.jvcw`.
    pub name: &'static str,
    /// Its folder at build time.
    pub folder: &'static str,
    /// The command that makes crate and weights, for errors.
    pub make: &'static str,
}

/// Where the weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// In a file, mapped while it is uploaded.
    File(PathBuf),
    /// The bytes of a weight file.
    Bytes(Cow<'static, [u8]>),
}

impl Weights {
    /// As the generated crate's `load` takes them.
    pub fn source(&self) -> WeightSource<'_> {
        match self {
            Weights::File(path) => WeightSource::Path(path),
            Weights::Bytes(bytes) => WeightSource::Bytes(bytes),
        }
    }
}

/// Why there are no weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// No file at any of the places.
    #[error("no weights of {name} at {}\nmake them with `{make}`, or name them with --weights", paths(looked))]
    Missing {
        /// The generated crate.
        name: &'static str,
        /// Where they were looked for.
        looked: Vec<PathBuf>,
        /// The command that makes them.
        make: &'static str,
    },
    /// The file is not this program's, or damaged.
    #[error(
        "{place}: {fault}\ncrate and weights of {name} come from one run of jvc: make both again with `{make}`, and build again"
    )]
    Refused {
        /// The generated crate.
        name: &'static str,
        /// The file.
        place: String,
        /// What the runtime says.
        fault: Box<Error>,
        /// The command that makes them.
        make: &'static str,
    },
    /// Something other than the weights is wrong.
    #[error("{0}")]
    Runtime(Error),
}

fn paths(looked: &[PathBuf]) -> String {
    looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Generated {
    /// The weights: `given` (a file, or a folder that holds it), else `NAME.jvcw` beside the program, else those in the crate's
    /// folder.
    ///
    /// # Errors
    /// [`WeightsError::Missing`] with every place that was looked at.
    pub fn find_weights(&self, given: Option<&Path>) -> Result<Weights, WeightsError> {
        let program = std::env::current_exe().ok();
        self.find_weights_near(program.as_deref().and_then(Path::parent), given)
    }

    fn find_weights_near(&self, program: Option<&Path>, given: Option<&Path>) -> Result<Weights, WeightsError> {
        let beside = format!("{}.jvcw", self.name);
        let places = match given {
            Some(path) if path.is_dir() => vec![path.join(FILE_NAME), path.join(&beside)],
            Some(path) => vec![path.to_owned()],
            None => {
                let program = program.map(|folder| folder.join(&beside));
                program.into_iter().chain([Path::new(self.folder).join(FILE_NAME)]).collect()
            }
        };
        match places.iter().find(|path| path.is_file()) {
            Some(path) => Ok(Weights::File(path.clone())),
            None => Err(WeightsError::Missing { name: self.name, looked: places, make: self.make }),
        }
    }

    /// An error of the generated crate's `load`, with what to do where the weights are to blame.
    pub fn explain(&self, weights: &Weights, error: Error) -> WeightsError {
        if !matches!(error, Error::Weights { .. }) {
            return WeightsError::Runtime(error);
        }
        let place = match weights {
            Weights::File(path) => path.display().to_string(),
            Weights::Bytes(bytes) => format!("{} bytes in memory", bytes.len()),
        };
        WeightsError::Refused { name: self.name, place, fault: Box::new(error), make: self.make }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jvc_runtime::WeightsFault;

    fn touch(path: &Path) {
        std::fs::write(path, b"JVCW").expect("a scratch folder can be written");
    }

    #[test]
    fn weights_are_found_by_path_beside_the_program_and_in_the_crate_in_this_order() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let [program, given] = ["program", "given"].map(|name| scratch.path().join(name));
        let crate_folder = scratch.path().join("crate");
        for folder in [&program, &given, &crate_folder] {
            std::fs::create_dir(folder).expect("new");
        }
        let folder: &'static str = crate_folder.to_string_lossy().into_owned().leak();
        let net = Generated { name: "net", folder, make: "jvc compile net.pt2" };
        let find = |given: Option<&Path>| net.find_weights_near(Some(&program), given);

        let error = find(None).expect_err("there are none yet").to_string();
        for part in ["net.jvcw", FILE_NAME, "jvc compile net.pt2", "--weights"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        touch(&crate_folder.join(FILE_NAME));
        assert_eq!(find(None).ok(), Some(Weights::File(crate_folder.join(FILE_NAME))));
        touch(&program.join("net.jvcw"));
        assert_eq!(find(None).ok(), Some(Weights::File(program.join("net.jvcw"))));
        assert!(find(Some(&given)).is_err(), "what is named is the only place");
        touch(&given.join(FILE_NAME));
        assert_eq!(find(Some(&given)).ok(), Some(Weights::File(given.join(FILE_NAME))));
        touch(&given.join("any"));
        assert_eq!(find(Some(&given.join("any"))).ok(), Some(Weights::File(given.join("any"))));
    }

    #[test]
    fn refused_weights_say_what_to_do_and_other_errors_stay_as_they_are() {
        let net = Generated { name: "net", folder: "generated/net", make: "jvc compile net.pt2" };
        let weights = Weights::Bytes(Cow::Borrowed(b"JVCW"));
        let fault = Error::Weights { fault: WeightsFault::Foreign, need: "1".to_owned(), got: "2".to_owned() };
        let error = net.explain(&weights, fault).to_string();
        assert!(error.contains("4 bytes in memory") && error.contains("`jvc compile net.pt2`"), "{error}");
        let lost = Error::DeviceLost { step: "step 3".to_owned() };
        assert_eq!(net.explain(&weights, lost.clone()).to_string(), lost.to_string());
    }
}
