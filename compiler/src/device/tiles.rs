//! Tiles that measured fastest on a device, as its profile holds them: what `jvc tune` writes and tile choice looks up.

use super::DeviceProfile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The tile that measured fastest for some work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTile {
    /// Name of the tile, one of those that this compiler would consider for the work.
    pub tile: String,
    /// Its time, 10⁻⁶ s.
    pub us: f64,
    /// What it is for.
    pub of: Work,
    /// Times of all that were measured, by name.
    pub tried: BTreeMap<String, f64>,
}

/// What a kernel computes that has tiles to choose from, as far as the choice depends on it. Sizes are those at the upper bounds of symbols.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// A matrix product or a convolution.
    Product(Product),
    /// An attention.
    Attention(Attention),
}

/// A matrix product: see [`crate::schedule::tile::Problem`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    /// Independent products.
    pub batch: u64,
    /// Rows.
    pub m: u64,
    /// Columns.
    pub n: u64,
    /// Summed length.
    pub k: u64,
    /// Length of the last summed axis that is longer than 1.
    pub line: u64,
    /// The type that products are summed in.
    pub sums: String,
    /// The half type that both operands are exact in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half: Option<String>,
    /// Some elements can only be found one by one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gathers: bool,
    /// Both sides are found by whole blocks along k.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fills: bool,
    /// The right side lies fragment by fragment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
}

/// An attention: see [`crate::schedule::tile::Heads`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Batch × heads.
    pub batch: u64,
    /// Queries.
    pub queries: u64,
    /// Keys.
    pub keys: u64,
    /// Channels of query and key.
    pub qk_dim: u32,
    /// Channels of value and output.
    pub v_dim: u32,
    /// The half type of queries, keys and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half: Option<String>,
    /// A tensor changes the scores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = |flags: &[(bool, &str)]| {
            flags.iter().filter(|(set, _)| *set).map(|(_, word)| format!(", {word}")).collect::<String>()
        };
        match self {
            Work::Product(p) => {
                let ty = p.half.as_ref().unwrap_or(&p.sums);
                let batch = if p.batch == 1 { String::new() } else { format!("{} × ", p.batch) };
                let line = if p.line == p.k { String::new() } else { format!(" in lines of {}", p.line) };
                let flags = flags(&[(p.gathers, "gathered"), (p.fills, "in blocks along k"), (p.packed, "packed")]);
                write!(f, "product {batch}{}x{}x{} {ty}{line}{flags}", p.m, p.n, p.k)
            }
            Work::Attention(a) => {
                let dims =
                    if a.qk_dim == a.v_dim { a.qk_dim.to_string() } else { format!("{} and {}", a.qk_dim, a.v_dim) };
                let ty = a.half.as_deref().unwrap_or("f32");
                let flags = flags(&[(a.masked, "masked")]);
                write!(f, "attention {} × {}x{} {ty}, {dims} channels{flags}", a.batch, a.queries, a.keys)
            }
        }
    }
}

/// The text of a profile with another table: everything else is as it was, comments included, where that is possible.
pub fn with_tiles(text: &str, profile: &DeviceProfile, tiles: &[MeasuredTile], source: &str) -> String {
    #[derive(Serialize)]
    struct Table<'a> {
        tiles: &'a [MeasuredTile],
    }
    let wanted = DeviceProfile { tiles: tiles.to_vec(), ..profile.clone() };
    let head: Vec<&str> = text.lines().take_while(|line| !line.starts_with(TITLE) && *line != "[[tiles]]").collect();
    let table = match tiles {
        [] => String::new(),
        _ => toml::to_string(&Table { tiles }).expect("a table is plain data"),
    };
    let out = format!("{}\n\n{TITLE} {source}.\n\n{table}", head.join("\n").trim_end());
    match toml::from_str::<DeviceProfile>(&out) {
        Ok(profile) if profile == wanted => out,
        _ => super::print_profile(&wanted, source),
    }
}

/// Where the table of a printed profile starts.
const TITLE: &str = "# Tiles:";

/// What is wrong with a table, if anything is: two entries for the same work, a time that is none, a tile that was not measured.
pub(crate) fn contradiction(tiles: &[MeasuredTile]) -> Option<String> {
    let mut seen: Vec<&Work> = vec![];
    for t in tiles {
        if seen.contains(&&t.of) {
            return Some(format!("there are two tiles for {}", t.of));
        }
        seen.push(&t.of);
        if let Some((name, us)) = t.tried.iter().find(|(_, us)| !us.is_finite() || **us <= 0.0) {
            return Some(format!("{}: `{name}` is said to take {us} µs", t.of));
        }
        if t.tried.get(&t.tile) != Some(&t.us) {
            return Some(format!("{}: tile `{}` of {} µs is not among those tried", t.of, t.tile, t.us));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(m: u64, tile: &str, us: f64) -> MeasuredTile {
        let product = Product {
            batch: 1,
            m,
            n: 64,
            k: 32,
            line: 32,
            sums: "f32".into(),
            half: Some("f16".into()),
            gathers: false,
            fills: true,
            packed: false,
        };
        MeasuredTile { of: Work::Product(product), tile: tile.into(), us, tried: [(tile.to_string(), us)].into() }
    }

    #[test]
    fn a_table_is_put_into_a_profile_s_text_and_taken_out_again() {
        let name = "rtx4000-ada";
        let (text, profile) =
            (crate::device::file(name).expect("bundled"), crate::device::find(name).expect("bundled"));
        let (first, second) = (vec![entry(1, "a", 1.25), entry(2, "b", 2.0)], vec![entry(3, "c, d", 17.0)]);
        let with_first = with_tiles(text, &profile, &first, "a test");
        assert!(with_first.starts_with(text.trim_end()), "comments stay");
        let read: DeviceProfile = toml::from_str(&with_first).expect("a profile");
        assert_eq!(read, DeviceProfile { tiles: first, ..profile.clone() });
        let with_second = with_tiles(&with_first, &read, &second, "a test");
        assert_eq!(with_second, with_tiles(text, &profile, &second, "a test"));
        let odd = with_second.replace("[limits]", "[[tiles]]\n[limits]");
        let printed = with_tiles(&odd, &profile, &second, "a test");
        assert_eq!(toml::from_str::<DeviceProfile>(&printed).expect("a profile").tiles, second);
    }

    #[test]
    fn a_table_that_contradicts_itself_is_told_so() {
        assert_eq!(contradiction(&[entry(1, "a", 1.0), entry(2, "a", 1.0)]), None);
        let why = |tiles: &[MeasuredTile]| contradiction(tiles).expect("a contradiction");
        assert!(why(&[entry(1, "a", 1.0), entry(1, "b", 2.0)]).contains("two tiles for product 1x64x32 f16"));
        assert!(why(&[entry(1, "a", f64::NAN)]).contains("NaN"));
        assert!(why(&[MeasuredTile { tile: "b".into(), ..entry(1, "a", 1.0) }]).contains("not among"));
        assert!(why(&[MeasuredTile { us: 3.0, ..entry(1, "a", 1.0) }]).contains("not among"));
    }
}
