//! Upper bounds for symbols that the export leaves open: the largest value that the references use.

use super::references::Set;
use crate::aten::is_unbacked;
use crate::import::program::{Arg, InputSpec, OutputSpec, Program};
use crate::ir::Dim;
use crate::ir::dim::Atom;
use crate::options::Options;

/// The options with a bound for every open symbol that the references determine and the caller has not bound.
pub(super) fn with_bounds(options: &Options, program: &Program, sets: &[Set], notes: &mut Vec<String>) -> Options {
    let mut options = options.clone();
    for (symbol, range) in &program.ranges {
        let open = range.max > i64::from(i32::MAX);
        if !open || options.bound.contains_key(symbol) || options.set.contains_key(symbol) {
            continue;
        }
        let largest = sets.iter().filter_map(|set| value_in(symbol, program, set)).max();
        let Some(largest) = largest else { continue };
        // What the data decide shall not be at its bound in every run.
        let (bound, how) = match is_unbacked(symbol) {
            true => (2 * largest + 1, "twice the references' largest and one"),
            false => (largest, "the references' largest"),
        };
        notes.push(format!("{symbol} is bound to {bound}, {how}"));
        options.bound.insert(symbol.clone(), bound);
    }
    options
}

fn value_in(symbol: &str, program: &Program, set: &Set) -> Option<i64> {
    let user = program.inputs.iter().filter(|i| matches!(i, InputSpec::User(_) | InputSpec::Constant { .. }));
    let inputs = user.enumerate().map(|(i, spec)| match spec {
        InputSpec::User(Arg::Tensor(name)) => Some((name, set.inputs.get(&i)?)),
        _ => None,
    });
    // Sizes that the data decide show in the results.
    let outputs = program.outputs.iter().filter(|o| matches!(o, OutputSpec::User(_)));
    let outputs = outputs.enumerate().map(|(i, spec)| match spec {
        OutputSpec::User(Arg::Tensor(name)) => Some((name, set.outputs.get(&i)?)),
        _ => None,
    });
    inputs.chain(outputs).flatten().find_map(|(name, given)| {
        let sizes = &program.graph.tensors.get(name)?.sizes;
        sizes.iter().zip(&given.shape).find_map(|(size, &v)| solve(size, symbol, v))
    })
}

/// The symbol where `factor·symbol + rest = value`.
fn solve(size: &Dim, symbol: &str, value: i64) -> Option<i64> {
    let (mut factor, mut rest) = (0, 0);
    for (atoms, c) in size.terms() {
        match atoms {
            [] => rest = c,
            [Atom::Symbol(s)] if s == symbol => factor = c,
            _ => return None,
        }
    }
    if factor > 0 && (value - rest) % factor == 0 { Some((value - rest) / factor) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_read_off_linear_sizes() {
        let s = Dim::symbol("s0");
        let size = &(&s * &Dim::from(4)) + &Dim::from(1);
        assert_eq!(solve(&size, "s0", 13), Some(3));
        assert_eq!(solve(&size, "s0", 14), None);
        assert_eq!(solve(&size, "s1", 13), None);
        assert_eq!(solve(&(&s * &s), "s0", 9), None);
    }
}
