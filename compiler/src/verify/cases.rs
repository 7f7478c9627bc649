//! The index of operator cases that may lie in a searched folder: `index.json`, a list with one object a case. It says which files are
//! single operators, and which cases need a wider judgement.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What the index says of a case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags {
    /// The file is a single operator.
    pub operator: bool,
    /// Arguments at the edge of a function's range.
    pub edge: bool,
    /// Equal values in the input whose order is not promised.
    pub ties: bool,
    /// Infinities or NaN in the input.
    pub nonfinite: bool,
    /// Tensors without elements.
    pub empty: bool,
}

/// Flags of all cases, by the file's path without extensions.
#[derive(Debug, Default)]
pub(super) struct CaseIndex(BTreeMap<PathBuf, Flags>);

/// Folders of a program that may have the index.
const INDEX_ABOVE: usize = 3;

impl CaseIndex {
    /// Reads the indices in the folders of the given programs, and in up to two folders above them.
    pub(super) fn read<'p>(programs: impl Iterator<Item = &'p Path>) -> CaseIndex {
        let mut index = CaseIndex::default();
        let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
        for program in programs {
            let program = program.canonicalize().unwrap_or_else(|_| program.to_path_buf());
            for folder in program.ancestors().skip(1).take(INDEX_ABOVE) {
                if seen.insert(folder.to_path_buf()) && folder.join("index.json").is_file() {
                    index.add(folder);
                }
            }
        }
        index
    }

    fn add(&mut self, folder: &Path) {
        let text = std::fs::read_to_string(folder.join("index.json")).unwrap_or_default();
        let Ok(Value::Array(cases)) = serde_json::from_str(&text) else { return };
        for case in &cases {
            let (Some(op), Some(number)) = (case["op"].as_str(), case["case"].as_str()) else { continue };
            let on = |key: &str| case[key] == true;
            let flags = Flags {
                operator: true,
                edge: on("edge"),
                ties: on("ties"),
                nonfinite: on("nonfinite"),
                empty: on("empty"),
            };
            self.0.insert(folder.join(op).join(number), flags);
        }
    }

    /// Flags of a program file; none for one that no index lists.
    pub(super) fn flags(&self, program: &Path) -> Flags {
        let path = program.canonicalize().unwrap_or_else(|_| program.to_path_buf());
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let case = name.trim_end_matches(".pt2").trim_end_matches(".core");
        self.0.get(&path.with_file_name(case)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_from_the_index_of_the_folder() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let root = dir.path().canonicalize().expect("exists");
        std::fs::create_dir(root.join("abs")).expect("writable");
        let index = r#"[{"op": "abs", "case": "004", "edge": true}, {"op": "abs", "case": "005"}]"#;
        std::fs::write(root.join("index.json"), index).expect("writable");
        for file in ["abs/004.pt2", "abs/004.core.pt2", "abs/005.pt2"] {
            std::fs::write(root.join(file), "").expect("writable");
        }
        let index = CaseIndex::read([root.join("abs/004.core.pt2").as_path()].into_iter());
        assert_eq!(
            index.flags(&root.join("abs/004.core.pt2")),
            Flags { operator: true, edge: true, ..Flags::default() }
        );
        assert_eq!(index.flags(&root.join("abs/005.pt2")), Flags { operator: true, ..Flags::default() });
        assert_eq!(index.flags(&root.join("abs/006.pt2")), Flags::default());
    }
}
