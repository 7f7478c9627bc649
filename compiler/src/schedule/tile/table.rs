//! Choice among candidates: what the profile's table says measured fastest on the device, else what the cost model likes best.

use super::attention::attentions;
use super::candidates::{Candidate, Named, candidates, favourite};
use super::{Heads, Problem};
use crate::device::{Attention, DeviceProfile, Product, Work};
use jvc_kernels::dtype::{DType, Ty};
use std::fmt::Write;

/// How a kernel came by its tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// What it computes.
    pub of: Work,
    /// Name of the tile.
    pub tile: String,
    /// By the profile's table, not by the cost model.
    pub measured: bool,
}

/// A tile, and reasons for anything slow.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice<S> {
    /// Inner-loop shape.
    pub staging: S,
    /// Workgroup size.
    pub wg: u32,
    /// Reasons.
    pub slow: Vec<&'static str>,
    /// How it was chosen.
    pub chosen: Chosen,
}

/// The candidate of the table, if it has one for this work that is allowed, else the favourite.
pub(super) fn choose<S: Copy + Named>(
    device: &DeviceProfile,
    of: Work,
    (all, slow): (Vec<Candidate<S>>, Vec<&'static str>),
    allowed: impl Fn(&S) -> bool,
) -> Choice<S> {
    let named = |tile: &str| all.iter().find(|c| c.name() == tile && allowed(&c.staging));
    let measured = device.tiles.iter().find(|t| t.of == of).and_then(|t| named(&t.tile));
    let best = measured.unwrap_or_else(|| favourite(&all));
    let chosen = Chosen { of, tile: best.name(), measured: measured.is_some() };
    Choice { staging: best.staging, wg: best.wg, slow, chosen }
}

impl From<&Problem> for Work {
    fn from(p: &Problem) -> Work {
        let [batch, m, n, k, line] = [p.batch, p.m, p.n, p.k, p.line].map(|size| size as u64);
        let (sums, half) = (p.acc.name().to_owned(), p.half.map(|half| half.name().to_owned()));
        let (gathers, fills, packed) = (p.gathers, p.fills, p.packed);
        Work::Product(Product { batch, m, n, k, line, sums, half, gathers, fills, packed })
    }
}

impl From<&Heads> for Work {
    fn from(p: &Heads) -> Work {
        let [batch, queries, keys] = [p.batch, p.queries, p.keys].map(|size| size as u64);
        let half = p.half.map(|half| half.name().to_owned());
        Work::Attention(Attention { batch, queries, keys, qk_dim: p.qk_dim, v_dim: p.v_dim, half, masked: p.masked })
    }
}

/// A candidate as a table and reports know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// As [`Candidate::cost`].
    pub cost: Option<f64>,
}

/// Names of the candidates for a piece of work, the favourite first, then from the cheapest to the dearest by prediction; of equals, in the
/// order in which choice prefers them.
///
/// # Errors
/// A type in it that does not exist.
pub fn listed(device: &DeviceProfile, of: &Work) -> Result<Vec<Listed>, String> {
    match of {
        Work::Product(p) => Ok(in_order(&candidates(device, &problem(p)?).0)),
        Work::Attention(a) => Ok(in_order(&attentions(device, &heads(a)?).0)),
    }
}

fn in_order<S: Named>(all: &[Candidate<S>]) -> Vec<Listed> {
    let mut listed: Vec<Listed> = all.iter().map(|c| Listed { name: c.name(), cost: c.cost }).collect();
    listed.sort_by(|a, b| a.cost.unwrap_or(f64::INFINITY).total_cmp(&b.cost.unwrap_or(f64::INFINITY)));
    listed
}

/// Entries of the profile's table that no choice can follow, each with the reason: the cost model chooses there.
pub fn strangers(device: &DeviceProfile) -> Vec<String> {
    let stranger = |t: &crate::device::MeasuredTile| {
        let reason = match listed(device, &t.of) {
            Err(reason) => reason,
            Ok(all) if all.iter().any(|c| c.name == t.tile) => return None,
            Ok(all) => {
                let mut names = String::new();
                all.iter().for_each(|c| write!(names, "; {}", c.name).expect("a string"));
                format!("this compiler has {} tiles for it: {}", all.len(), names.trim_start_matches("; "))
            }
        };
        Some(format!("the profile's tile `{}` for {} is left to the cost model: {reason}", t.tile, t.of))
    };
    device.tiles.iter().filter_map(stranger).collect()
}

fn problem(p: &Product) -> Result<Problem, String> {
    let acc = [Ty::F32, Ty::F64, Ty::I32, Ty::I64].into_iter().find(|ty| ty.name() == p.sums);
    let acc = acc.ok_or_else(|| format!("`{}` is no type of sums", p.sums))?;
    let [batch, m, n, k, line] = [p.batch, p.m, p.n, p.k, p.line].map(|size| size as f64);
    let (gathers, fills, packed) = (p.gathers, p.fills, p.packed);
    Ok(Problem { batch, m, n, k, line, acc, half: half(p.half.as_deref())?, gathers, fills, packed })
}

fn heads(a: &Attention) -> Result<Heads, String> {
    let [batch, queries, keys] = [a.batch, a.queries, a.keys].map(|size| size as f64);
    let (qk_dim, v_dim, masked) = (a.qk_dim, a.v_dim, a.masked);
    Ok(Heads { batch, queries, keys, qk_dim, v_dim, half: half(a.half.as_deref())?, masked })
}

fn half(name: Option<&str>) -> Result<Option<DType>, String> {
    let Some(name) = name else { return Ok(None) };
    let half = [DType::F16, DType::BF16].into_iter().find(|t| t.name() == name);
    half.map(Some).ok_or_else(|| format!("`{name}` is no half type"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MeasuredTile, find};
    use crate::schedule::tile::tests::{attentions_of_models, products_of_models};
    use crate::schedule::tile::{attention, matmul};

    fn entry(of: Work, tile: &str) -> MeasuredTile {
        MeasuredTile { of, tile: tile.into(), us: 1.0, tried: [(tile.to_string(), 1.0)].into() }
    }

    #[test]
    fn work_is_read_back_from_a_profile_as_it_was() {
        for p in products_of_models() {
            let Work::Product(product) = Work::from(&p) else { panic!("a product") };
            assert_eq!(problem(&product), Ok(p));
        }
        for h in attentions_of_models() {
            let Work::Attention(attention) = Work::from(&h) else { panic!("an attention") };
            assert_eq!(heads(&attention), Ok(h));
        }
    }

    #[test]
    fn a_measured_tile_is_taken_for_its_work_alone_and_an_unknown_one_for_none() {
        let plain = find("h200").expect("a bundled profile");
        let (products, attentions) = (products_of_models(), attentions_of_models());
        for (i, p) in products.iter().enumerate() {
            let of = Work::from(p);
            let all = listed(&plain, &of).expect("known types");
            let Some(last) = all.last().filter(|_| all.len() > 1) else { continue };
            let other = &products[(i + 1) % products.len()];
            let tuned = DeviceProfile { tiles: vec![entry(of.clone(), &last.name)], ..plain.clone() };
            let choice = matmul(&tuned, p);
            assert_ne!(choice, matmul(&plain, p), "{p:?}");
            assert_eq!(choice.0.name(choice.1), last.name);
            assert_eq!(matmul(&tuned, other), matmul(&plain, other));
            let unknown = DeviceProfile { tiles: vec![entry(of, "a tile of another release")], ..plain.clone() };
            assert_eq!(matmul(&unknown, p), matmul(&plain, p));
        }
        let h = &attentions[0];
        let all = listed(&plain, &Work::from(h)).expect("known types");
        let tuned = DeviceProfile { tiles: vec![entry(Work::from(h), &all[1].name)], ..plain.clone() };
        assert_ne!(attention(&tuned, h), attention(&plain, h));
    }

    #[test]
    fn the_first_that_is_listed_is_the_choice_without_a_table() {
        for device in crate::device::all() {
            for p in products_of_models() {
                let (staging, wg, _) = matmul(&device, &p);
                assert_eq!(listed(&device, &Work::from(&p)).expect("known types")[0].name, staging.name(wg), "{p:?}");
            }
            for h in attentions_of_models() {
                let (staging, wg, _) = attention(&device, &h);
                assert_eq!(listed(&device, &Work::from(&h)).expect("known types")[0].name, staging.name(wg), "{h:?}");
            }
        }
    }

    #[test]
    fn tables_of_bundled_profiles_can_be_followed() {
        let devices = crate::device::all();
        assert!(devices.iter().any(|d| !d.tiles.is_empty()), "one is measured");
        for device in devices {
            assert_eq!(crate::device::contradiction(&device.tiles), None);
            assert_eq!(strangers(&device), Vec::<String>::new());
        }
    }

    #[test]
    fn entries_that_nothing_can_follow_are_told_with_the_reason() {
        let mut device = find("h200").expect("a bundled profile");
        let of = Work::from(&products_of_models()[0]);
        let first = listed(&device, &of).expect("known types")[0].name.clone();
        let Work::Product(product) = of.clone() else { panic!("a product") };
        let odd = Work::Product(Product { sums: "f99".into(), ..product });
        device.tiles = vec![entry(of.clone(), &first), entry(of, "cooperative 9x9x9"), entry(odd, &first)];
        let told = strangers(&device);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("cooperative 9x9x9") && told[0].contains(&first), "{told:?}");
        assert!(told[1].contains("`f99` is no type"), "{told:?}");
    }
}
