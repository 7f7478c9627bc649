//! How much may change before a script should stop.

use super::Comparison;
use std::str::FromStr;

/// A limit on one figure, or on changes of the interface.
#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// A total may grow by so many percent.
    Growth {
        /// [`super::Total::what`].
        what: &'static str,
        /// Percent of the old figure.
        percent: f64,
    },
    /// The interface may not change.
    Interface,
}

/// What can be limited.
const TOTALS: [&str; 8] = ["slower", "arena", "weights", "state", "spirv", "kernels", "dispatches", "barriers"];

/// A limit that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no limit: write interface, or one of {names} with a percentage (slower=2%)", names = TOTALS.join(", "))]
pub struct LimitError(String);

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        if text == "interface" {
            return Ok(Limit::Interface);
        }
        let parse = || {
            let (name, value) = text.split_once('=')?;
            let what = TOTALS.into_iter().find(|what| *what == name)?;
            let percent = value.trim_end_matches('%').parse::<f64>().ok().filter(|percent| *percent >= 0.0)?;
            Some(Limit::Growth { what, percent })
        };
        parse().ok_or_else(|| LimitError(text.to_owned()))
    }
}

impl Limit {
    /// In words, if the differences exceed it.
    pub(super) fn exceeded_by(&self, found: &Comparison) -> Option<String> {
        match self {
            Limit::Interface => {
                let first = found.interface.first()?;
                Some(format!("the interface changed ({first})"))
            }
            Limit::Growth { what, percent } => {
                let total = found.totals.iter().find(|total| total.what == *what)?;
                let grown = total.percent();
                let word = if *what == "slower" { "predicted time" } else { what };
                (grown > *percent).then(|| format!("{word} grew by {grown:.1} %, more than {percent} %"))
            }
        }
    }
}
