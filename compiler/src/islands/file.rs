//! The file of a choice, `islands.toml`: what stays in f32 beyond the rules of `--precision`, with the errors that were measured. It stands in
//! the crate and is given back by `--islands`, so that the choice is made once and the samples are not needed again.

use crate::options::Half;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Name of the file in a crate.
pub const FILE_NAME: &str = "islands.toml";

const HEADER: &str = "# What stays in f32 beside --precision's own rules for the outputs to hold an error budget. Written by jvc compile --error-budget;
# given back by --islands. Errors are root mean squares over that of the output.
";

/// What stays in f32.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Islands {
    /// The half type that everything else may have.
    pub precision: Half,
    /// The largest error that outputs may have.
    pub budget: f64,
    /// Each program's, in the order of entry points.
    #[serde(rename = "program")]
    pub programs: Vec<ProgramIslands>,
}

/// What stays in f32 of one program.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramIslands {
    /// The program; of no matter where there is one only.
    pub name: String,
    /// What errors are measured from.
    pub reference: Denominator,
    /// The outputs' error with the rules alone.
    pub without: f64,
    /// The outputs' error with these islands.
    pub with: f64,
    /// Calls of which something computes in halves by the rules.
    pub calls: usize,
    /// The islands, in the order of the graph.
    #[serde(default, rename = "island")]
    pub islands: Vec<Island>,
}

/// A call of the program (an ATen operator at a place of it, with all that it became) that stays in f32.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Island {
    /// Node of the export.
    pub node: String,
    /// ATen operator.
    pub target: String,
    /// Module path.
    pub module: String,
    /// The outputs' error with this call (or those that it was measured with) alone in halves.
    pub cost: f64,
    /// Calls that were measured together.
    pub measured_with: usize,
}

impl Island {
    /// What the call does to the outputs in halves, for people.
    pub fn effect(&self) -> String {
        let Island { cost, measured_with, .. } = self;
        match measured_with {
            1 => format!("in halves it alone puts the outputs off by {cost:.2e}"),
            n => format!("in halves with {} neighbours it puts the outputs off by {cost:.2e}", n - 1),
        }
    }

    /// One line, for people.
    pub fn line(&self) -> String {
        let module = if self.module.is_empty() { String::new() } else { format!(" of {}", self.module) };
        format!("{}: {}{module} stays f32: {}", self.node, self.target, self.effect())
    }
}

/// What the outputs are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Denominator {
    /// What the same program computes without `--precision`, on the same device.
    #[serde(rename = "f32")]
    Full,
    /// The samples' `out.N`.
    #[serde(rename = "out")]
    Outputs,
    /// The samples' `out64.N`, where these are, and `out.N`.
    #[serde(rename = "out64")]
    Exact,
}

impl Denominator {
    /// In the file.
    const fn key(self) -> &'static str {
        match self {
            Denominator::Full => "f32",
            Denominator::Outputs => "out",
            Denominator::Exact => "out64",
        }
    }

    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Denominator::Full => "the program in f32",
            Denominator::Outputs => "the samples' out.N",
            Denominator::Exact => "the samples' out64.N",
        }
    }
}

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum IslandsFileError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// It is no file of islands.
    #[error("{}: {why}", path.display())]
    Format {
        /// File.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Islands {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not there, or is no file of islands.
    pub fn read(path: &Path) -> Result<Islands, IslandsFileError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| IslandsFileError::Io { path: path.into(), source })?;
        Islands::parse(&text).map_err(|why| IslandsFileError::Format { path: path.into(), why })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Islands, String> {
        let read: Islands = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        let numbers = read.programs.iter().flat_map(|p| p.islands.iter().map(|i| i.cost).chain([p.with, p.without]));
        match numbers.chain([read.budget]).find(|x| x.is_nan() || *x < 0.0) {
            Some(x) => Err(format!("{x} is no error")),
            None => Ok(read),
        }
    }

    /// The text of the file; parses back.
    pub fn to_text(&self) -> String {
        let quoted = |s: &str| toml::Value::String(s.to_string()).to_string();
        let mut out = format!("{HEADER}precision = \"{}\"\nbudget = {:e}\n", self.precision.dtype(), self.budget);
        for p in &self.programs {
            let (name, reference) = (quoted(&p.name), p.reference.key());
            out += &format!("\n[[program]]\nname = {name}\nreference = \"{reference}\"\n");
            out += &format!("without = {:e}\nwith = {:e}\ncalls = {}\n", p.without, p.with, p.calls);
            for Island { node, target, module, cost, measured_with } in &p.islands {
                let [node, target, module] = [node, target, module].map(|s| quoted(s));
                out += &format!("\n[[program.island]]\nnode = {node}\ntarget = {target}\nmodule = {module}\n");
                out += &format!("cost = {cost:e}\nmeasured_with = {measured_with}\n");
            }
        }
        out
    }

    /// The same for entry points of these names: a program each, in their order. One program alone may have any name.
    ///
    /// # Errors
    /// Which program is missing on either side.
    pub fn fitted(&self, names: &[&str]) -> Result<Islands, String> {
        if let ([one], [name]) = (&self.programs[..], names) {
            let programs = vec![ProgramIslands { name: (*name).to_string(), ..one.clone() }];
            return Ok(Islands { programs, ..self.clone() });
        }
        if let Some(other) = self.programs.iter().find(|p| !names.contains(&p.name.as_str())) {
            return Err(format!("the islands are of a program {} too, which is not compiled", other.name));
        }
        let of = |name: &&str| {
            let found = self.programs.iter().find(|p| p.name == *name);
            found.cloned().ok_or_else(|| format!("the islands say nothing of the program {name}"))
        };
        let programs = names.iter().map(of).collect::<Result<_, _>>()?;
        Ok(Islands { programs, ..self.clone() })
    }
}

/// An error as files and reports have it, to three digits: what was read from a file is what was written.
pub(super) fn rounded(error: f64) -> f64 {
    format!("{error:.2e}").parse().expect("a number that was printed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn islands(names: &[&str]) -> Islands {
        let island = Island {
            node: "mul_3".into(),
            target: "aten.mul.Tensor".into(),
            module: "a.\"b\"".into(),
            cost: f64::INFINITY,
            measured_with: 1,
        };
        let program = |name: &&str| ProgramIslands {
            name: (*name).to_string(),
            reference: Denominator::Exact,
            without: rounded(0.123_456),
            with: rounded(1.0 / 3.0e7),
            calls: 700,
            islands: vec![island.clone()],
        };
        Islands { precision: Half::BF16, budget: 1e-3, programs: names.iter().map(program).collect() }
    }

    #[test]
    fn the_text_parses_back() {
        for names in [&["m"][..], &["a", "b"]] {
            let all = islands(names);
            assert_eq!(Islands::parse(&all.to_text()), Ok(all.clone()), "{}", all.to_text());
        }
        for reference in [Denominator::Full, Denominator::Outputs] {
            let mut all = islands(&["m"]);
            all.programs[0] = ProgramIslands { reference, islands: vec![], ..all.programs[0].clone() };
            assert_eq!(Islands::parse(&all.to_text()), Ok(all.clone()), "{}", all.to_text());
        }
        assert!(Islands::parse(&islands(&[]).to_text()).expect_err("of no program").contains("program"));
    }

    #[test]
    fn what_is_no_file_of_islands_is_refused() {
        let good = islands(&["m"]).to_text();
        for (bad, word) in [
            (good.replace("bf16", "f8"), "f8"),
            (good.replace("budget", "budgets"), "budgets"),
            (good.replace("cost = inf", "cost = nan"), "NaN"),
            (good.replace("cost = inf", "cost = -1.0"), "-1"),
            (good.replace("node = \"mul_3\"\n", ""), "node"),
            ("{}".to_string(), "TOML"),
        ] {
            let why = Islands::parse(&bad).expect_err(word);
            assert!(why.contains(word), "{word}: {why}");
        }
    }

    #[test]
    fn programs_are_found_by_name_and_one_alone_may_have_any() {
        let one = islands(&["m"]).fitted(&["renamed"]).expect("one of one");
        assert_eq!(one.programs[0].name, "renamed");
        let two = islands(&["a", "b"]).fitted(&["b", "a"]).expect("both");
        assert_eq!(two.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert!(islands(&["a", "b"]).fitted(&["a"]).expect_err("one is missing").contains("program b too"));
        assert!(islands(&["a"]).fitted(&["a", "b"]).expect_err("one is missing").contains("nothing of the program b"));
    }
}
