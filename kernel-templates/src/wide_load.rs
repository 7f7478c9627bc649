//! Proof that as many elements as fill 16 bytes ([`GROUP`] halves, [`FOUR`] f32), which follow one another along an axis, lie in aligned
//! blocks of memory, so that one load or store takes them all; and that values are exact in a half type. Both are needed for correctness: what is not proven is not done.

use crate::dtype::{DType, Storage, Ty};
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::interval::{self, Interval};
use crate::spec::{Extent, Interface, Store};
use std::collections::BTreeSet;

/// Halves in a block of 16 bytes.
pub(crate) const GROUP: u32 = 8;

/// f32 in a block of 16 bytes.
pub(crate) const FOUR: u32 = 4;

/// Elements by one load: `guard ? operand[index ‥ index + size] : zeros`, of [`GROUP`] elements or of [`FOUR`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WideLoad {
    /// Operand.
    pub(crate) operand: u16,
    /// Index of the first element, a multiple of their number.
    pub(crate) index: ExprId,
    /// Where it is false, the elements are zero.
    pub(crate) guard: Option<ExprId>,
}

/// Four f32 by one load: `operand[index ‥ index + FOUR]` are what the node `load` is at four places that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FourLoad {
    /// The load of one element.
    pub(crate) load: ExprId,
    /// Operand.
    pub(crate) operand: u16,
    /// Index of the first element, a multiple of [`FOUR`].
    pub(crate) index: ExprId,
}

/// A value `v(e)` at e = 0, 1, … within a group, whose first coordinate is a multiple of the group's length: `v(0) + slope·e`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    slope: i64,
    /// A power of two that divides `v(0)`.
    align: i64,
}

/// Divides everything that is asked for.
const MOST: i64 = 1 << 20;

impl Run {
    const UNIFORM: Run = Run { slope: 0, align: 1 };
}

/// The one load of [`GROUP`] elements along `axis`, if there is one. The extent of the axis must be a multiple of that.
pub(crate) fn find(
    exprs: &Exprs,
    interface: &Interface,
    extents: &[Extent],
    root: ExprId,
    axis: usize,
    elem: DType,
) -> Option<WideLoad> {
    let whole = matches!(extents[axis], Extent::Const(n) if n.is_multiple_of(GROUP));
    let runs = whole.then(|| infer(exprs, extents, axis, GROUP))?;
    find_run((exprs, interface), &runs, root, elem, GROUP)
}

fn find_run(
    (exprs, interface): (&Exprs, &Interface),
    runs: &[Option<Run>],
    root: ExprId,
    elem: DType,
    group: u32,
) -> Option<WideLoad> {
    let (load, guard) = match *exprs.get(root) {
        Expr::Select(guard, value, other) if is_zero(exprs, other) => (value, Some(guard)),
        _ => (root, None),
    };
    let Expr::Load { operand, dtype, ref index } = *exprs.get(load) else { return None };
    let held = &interface.operands[usize::from(operand)];
    if dtype != elem || held.storage != Storage::Native {
        return None;
    }
    let of = |id: ExprId| runs[id.0 as usize];
    let consecutive = of(index[0]).is_some_and(|r| r.slope == 1 && r.align % i64::from(group) == 0);
    let guarded = guard.is_none_or(|g| of(g).is_some_and(|r| r.slope == 0));
    (consecutive && guarded).then_some(WideLoad { operand, index: index[0], guard })
}

/// The loads below `roots` of whole groups along `axis`, each as one load of all its elements.
pub(crate) fn blocks(
    exprs: &Exprs,
    interface: &Interface,
    extents: &[Extent],
    roots: &[ExprId],
    axis: usize,
) -> Vec<(ExprId, WideLoad, DType)> {
    let one = |id: ExprId| {
        let Expr::Load { dtype, .. } = *exprs.get(id) else { return None };
        let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let load = find(exprs, interface, extents, id, axis, dtype).filter(|_| float)?;
        Some((id, load, dtype))
    };
    exprs.reachable(roots).into_iter().filter_map(one).collect()
}

/// The loads below `roots` of whole groups of so many elements along `axis`; none where others are found there that change along the axis, but
/// for an axis that is `lone`: one group, there for the stores.
pub(crate) fn whole_loads(
    (exprs, interface, extents): (&Exprs, &Interface, &[Extent]),
    roots: &[ExprId],
    (axis, group): (usize, u32),
    names_axis: &dyn Fn(ExprId) -> bool,
    lone: bool,
) -> Option<Vec<(ExprId, WideLoad, DType)>> {
    if !matches!(extents[axis], Extent::Const(n) if n.is_multiple_of(group)) {
        return None;
    }
    let runs = infer(exprs, extents, axis, group);
    let mut loads = vec![];
    for id in exprs.reachable(roots) {
        let Expr::Load { dtype, .. } = *exprs.get(id) else { continue };
        if !names_axis(id) {
            continue;
        }
        let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        match find_run((exprs, interface), &runs, id, dtype, group).filter(|_| float) {
            Some(load) => loads.push((id, load, dtype)),
            None if lone || runs[id.0 as usize].is_some_and(|r| r.slope == 0) => {}
            None => return None,
        }
    }
    Some(loads)
}

/// The outermost nodes below `roots` and outside `loads` that are the same throughout a group though they name the axis.
pub(crate) fn uniform(
    (exprs, extents): (&Exprs, &[Extent]),
    (roots, loads): (&[ExprId], &[ExprId]),
    (axis, group): (usize, u32),
    names_axis: &dyn Fn(ExprId) -> bool,
) -> Vec<ExprId> {
    let runs = infer(exprs, extents, axis, group);
    let (mut open, mut seen) = (roots.to_vec(), BTreeSet::new());
    let mut found = vec![];
    while let Some(id) = open.pop() {
        if !names_axis(id) || loads.contains(&id) || !seen.insert(id) {
            continue;
        }
        match runs[id.0 as usize] {
            Some(r) if r.slope == 0 => found.push(id),
            _ => open.extend(exprs.operands(id)),
        }
    }
    found.sort_unstable();
    found
}

/// The loads below `roots` that fetch four elements at once along `axis`; none where other f32 are found there that change along the axis, or
/// the axis is not of whole fours.
pub(crate) fn fours(
    exprs: &Exprs,
    interface: &Interface,
    extents: &[Extent],
    roots: &[ExprId],
    axis: usize,
) -> Option<Vec<FourLoad>> {
    if !matches!(extents[axis], Extent::Const(n) if n.is_multiple_of(FOUR)) {
        return None;
    }
    let runs = infer(exprs, extents, axis, FOUR);
    let mut found = vec![];
    for id in exprs.reachable(roots) {
        let Expr::Load { operand, dtype, ref index } = *exprs.get(id) else { continue };
        let native = interface.operands[usize::from(operand)].storage == Storage::Native;
        match runs[index[0].0 as usize] {
            Some(r) if r.slope == 0 => {}
            Some(r) if r.slope == 1 && r.align % i64::from(FOUR) == 0 && dtype == DType::F32 && native => {
                found.push(FourLoad { load: id, operand, index: index[0] });
            }
            _ => return None,
        }
    }
    Some(found)
}

/// True where a store of f32 at consecutive positions along `axis` fills whole blocks, from a multiple of [`FOUR`] on.
pub(crate) fn stores_fours(
    exprs: &Exprs,
    interface: &Interface,
    extents: &[Extent],
    store: &Store,
    axis: usize,
) -> bool {
    let held = &interface.operands[usize::from(store.operand)];
    let fits = held.dtype == DType::F32 && held.storage == Storage::Native;
    fits && fills(exprs, extents, store, axis, FOUR)
}

/// True where a store of consecutive positions along `axis` fills whole blocks, from a multiple of [`GROUP`] on.
pub(crate) fn stores_blocks(
    exprs: &Exprs,
    interface: &Interface,
    extents: &[Extent],
    store: &Store,
    axis: usize,
) -> bool {
    stores_groups((exprs, interface, extents), store, (axis, GROUP))
}

/// As [`stores_blocks`], of groups of so many elements.
pub(crate) fn stores_groups(
    (exprs, interface, extents): (&Exprs, &Interface, &[Extent]),
    store: &Store,
    (axis, group): (usize, u32),
) -> bool {
    let held = &interface.operands[usize::from(store.operand)];
    let fits = matches!(held.dtype, DType::F16 | DType::BF16 | DType::F32) && held.storage == Storage::Native;
    fits && fills(exprs, extents, store, axis, group)
}

fn fills(exprs: &Exprs, extents: &[Extent], store: &Store, axis: usize, group: u32) -> bool {
    if !matches!(extents[axis], Extent::Const(n) if n.is_multiple_of(group)) {
        return false;
    }
    let runs = infer(exprs, extents, axis, group);
    let of = |id: ExprId| runs[id.0 as usize];
    of(store.index).is_some_and(|r| r.slope == 1 && r.align % i64::from(group) == 0)
        && store.guard.is_none_or(|g| of(g).is_some_and(|r| r.slope == 0))
}

fn is_zero(exprs: &Exprs, id: ExprId) -> bool {
    matches!(exprs.get(id), Expr::Lit(Lit::F32(0)))
}

/// How each node runs within a group along `axis`; none where that is not known.
fn infer(exprs: &Exprs, extents: &[Extent], axis: usize, group: u32) -> Vec<Option<Run>> {
    let ranges = interval::infer(exprs, extents);
    let mut runs: Vec<Option<Run>> = Vec::with_capacity(exprs.len());
    for (id, node) in exprs.iter() {
        let run = node_run(exprs, (id, node), extents, (axis, group), &runs, &ranges);
        runs.push(run);
    }
    runs
}

fn power_of_two_in(v: i64) -> i64 {
    if v == 0 { MOST } else { (1i64 << v.trailing_zeros()).min(MOST) }
}

fn node_run(
    exprs: &Exprs,
    (id, node): (ExprId, &Expr),
    extents: &[Extent],
    (axis, group): (usize, u32),
    runs: &[Option<Run>],
    ranges: &[Interval],
) -> Option<Run> {
    let of = |id: ExprId| runs[id.0 as usize];
    match *node {
        Expr::Lit(Lit::I32(v)) => Some(Run { slope: 0, align: power_of_two_in(v.into()) }),
        Expr::Axis(k) if usize::from(k) == axis => Some(Run { slope: 1, align: group.into() }),
        Expr::Axis(k) => match extents.get(usize::from(k)) {
            Some(Extent::Const(1)) => Some(Run { slope: 0, align: MOST }),
            _ => Some(Run::UNIFORM),
        },
        // Known only when the kernel runs.
        Expr::Arg(..) => None,
        Expr::Binary(op @ (Binary::Add | Binary::Sub), a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            let slope = if op == Binary::Add { a.slope + b.slope } else { a.slope - b.slope };
            Some(Run { slope, align: a.align.min(b.align) })
        }
        Expr::Binary(Binary::Mul, a, b) => product(exprs, (a, of(a)?), (b, of(b)?)),
        Expr::Binary(op @ (Binary::Div | Binary::Rem), a, b) => {
            let positive = ranges[a.0 as usize].is_non_negative();
            let run = of(a)?;
            match (literal(exprs, b), of(b)?.slope) {
                (Some(n), _) if positive && n > 0 => quotient(op, run, n, group.into()),
                (_, 0) if run.slope == 0 => Some(Run::UNIFORM),
                _ => None,
            }
        }
        Expr::Select(c, a, b) => {
            let (c, a, b) = (of(c)?, of(a)?, of(b)?);
            (c.slope == 0 && a.slope == b.slope).then_some(Run { slope: a.slope, align: a.align.min(b.align) })
        }
        // Anything else is the same throughout a group where its operands are.
        _ => exprs.operands(id).iter().all(|&o| of(o).is_some_and(|r| r.slope == 0)).then_some(Run::UNIFORM),
    }
}

fn literal(exprs: &Exprs, id: ExprId) -> Option<i64> {
    if let Expr::Lit(Lit::I32(v)) = exprs.get(id) { Some((*v).into()) } else { None }
}

fn product(exprs: &Exprs, (a_id, a): (ExprId, Run), (b_id, b): (ExprId, Run)) -> Option<Run> {
    let slope = match (a.slope, b.slope) {
        (0, 0) => 0,
        (s, 0) => s.checked_mul(literal(exprs, b_id)?)?,
        (0, s) => s.checked_mul(literal(exprs, a_id)?)?,
        _ => return None,
    };
    Some(Run { slope, align: (a.align * b.align).min(MOST) })
}

/// Quotient or remainder of a run that is never negative by a positive literal.
fn quotient(op: Binary, run: Run, n: i64, group: i64) -> Option<Run> {
    // A group that starts at a multiple of its length does not cross a multiple of n, if n is one, too.
    let stays = run.slope == 1 && run.align % group == 0 && n % group == 0;
    let align = run.align.min(power_of_two_in(n));
    match op {
        Binary::Rem if stays => Some(Run { slope: 1, align }),
        Binary::Rem if run.slope == 0 => Some(Run { slope: 0, align }),
        Binary::Div if stays => Some(Run::UNIFORM),
        Binary::Div if run.slope == 0 => {
            let align = if n.count_ones() == 1 && run.align >= n { run.align / n } else { 1 };
            Some(Run { slope: 0, align })
        }
        _ => None,
    }
}

/// True if every value of `root` is exact in `elem`, a half type: elements of that type, what was rounded to it, and what choosing and
/// changing the sign make of them.
pub fn is_exact_in(exprs: &Exprs, root: ExprId, elem: DType) -> bool {
    let same = |id: &ExprId| is_exact_in(exprs, *id, elem);
    match exprs.get(root) {
        Expr::Load { dtype, .. } => *dtype == elem,
        Expr::Lit(Lit::F32(bits)) => is_exact(f32::from_bits(*bits), elem),
        Expr::Round(dtype, _) => *dtype == elem,
        Expr::Cast(_, a) => exprs.ty(*a) == Ty::Bool,
        Expr::Select(_, a, b) | Expr::Binary(Binary::Max | Binary::Min, a, b) => same(a) && same(b),
        Expr::Unary(Unary::Neg | Unary::Abs, a) => same(a),
        _ => false,
    }
}

fn is_exact(v: f32, elem: DType) -> bool {
    match elem {
        DType::F16 => half::f16::from_f32(v).to_f32() == v,
        DType::BF16 => half::bf16::from_f32(v).to_f32() == v,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Access, Operand};

    fn interface() -> Interface {
        let operand =
            Operand { dtype: DType::F16, storage: Storage::Native, access: Access::Read, base: 0, via_table: false };
        Interface { operands: vec![operand], n_bases: 1, symbols: true }
    }

    /// Extents of the axes: batch, m, n, k.
    const EXTENTS: [Extent; 4] = [Extent::Const(3), Extent::Const(100), Extent::Const(24), Extent::Const(64)];

    fn along_k(index: impl Fn(&mut Exprs) -> ExprId) -> bool {
        let mut e = Exprs::new();
        let at = index(&mut e);
        let load = e.load(0, DType::F16, vec![at]);
        find(&e, &interface(), &EXTENTS, load, 3, DType::F16).is_some()
    }

    fn sum(e: &mut Exprs, row: ExprId, pitch: i32) -> ExprId {
        let (pitch, k) = (e.i32(pitch), e.axis(3));
        let start = e.bin(Binary::Mul, row, pitch);
        e.bin(Binary::Add, start, k)
    }

    #[test]
    fn rows_that_start_at_blocks_are_loaded_by_blocks() {
        let row_major = |pitch| {
            along_k(move |e| {
                let row = e.axis(1);
                sum(e, row, pitch)
            })
        };
        assert!(row_major(64) && row_major(72), "rows of whole blocks");
        assert!(!row_major(68), "every other row starts within a block");
        assert!(!along_k(|e| {
            let (row, pitch, k) = (e.axis(1), e.add(Expr::Sym(0)), e.axis(3));
            let start = e.bin(Binary::Mul, row, pitch);
            e.bin(Binary::Add, start, k)
        }));
        assert!(!along_k(|e| {
            let (k, two) = (e.axis(3), e.i32(2));
            e.bin(Binary::Mul, k, two)
        }));
    }

    #[test]
    fn heads_split_off_k_are_loaded_by_blocks_where_no_block_crosses_one() {
        let heads = |width: i32| {
            along_k(move |e| {
                let (k, width) = (e.axis(3), e.i32(width));
                let (head, channel) = (e.bin(Binary::Div, k, width), e.bin(Binary::Rem, k, width));
                let stride = e.i32(6400);
                let start = e.bin(Binary::Mul, head, stride);
                e.bin(Binary::Add, start, channel)
            })
        };
        assert!(heads(32) && heads(24));
        assert!(!heads(20), "20 channels are no whole blocks");
    }

    #[test]
    fn an_offset_within_a_block_or_another_type_prevents_it() {
        assert!(!along_k(|e| {
            let (k, four) = (e.axis(3), e.i32(4));
            e.bin(Binary::Add, k, four)
        }));
        let mut e = Exprs::new();
        let k = e.axis(3);
        let load = e.load(0, DType::F16, vec![k]);
        assert!(find(&e, &interface(), &EXTENTS, load, 3, DType::BF16).is_none());
        assert!(find(&e, &interface(), &EXTENTS, load, 1, DType::F16).is_none(), "100 rows are no whole blocks");
    }

    #[test]
    fn choosing_keeps_values_exact_and_arithmetic_does_not() {
        let mut e = Exprs::new();
        let k = e.axis(3);
        let x = e.load(0, DType::F16, vec![k]);
        let (zero, third) = (e.f32(0.0), e.f32(1.0 / 3.0));
        let relu = e.bin(Binary::Max, x, zero);
        let scaled = e.bin(Binary::Mul, relu, third);
        let rounded = e.add(Expr::Round(DType::F16, scaled));
        let exact = |id| is_exact_in(&e, id, DType::F16);
        assert!(exact(x) && exact(relu) && exact(rounded));
        assert!(!exact(scaled) && !exact(third) && !is_exact_in(&e, x, DType::BF16));
    }
}
