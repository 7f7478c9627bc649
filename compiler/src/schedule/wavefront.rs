//! Stacked recurrent layers run side by side, each some steps behind the one below: products between two layers are cut along time, and what
//! stands between the first layer's first step and the last one's last goes as early as the bytes that it touches allow.
//!
//! ```text
//! layer 1:   1 2 3 4 5 6 7 8 …
//! product:           1–4     5–8
//! layer 2:             1 2 3 4 …           a barrier between columns
//! ```
//!
//! A step of a layer waits for the one before, and a barrier costs as much as a step does: so a stack takes hardly longer than a layer. The
//! order is one of whole waves, found from byte ranges; nothing changes its place in front of what it needs or behind what overwrites it.

use super::inline::{Place, Use};
use super::lower::{Draft, Part};
use super::tile::{self, Choice, Chosen, Problem};
use crate::device::DeviceProfile;
use crate::ir::{DType, Graph, Op};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Expr, ExprId, Exprs};
use jvc_kernels::footprint::affine;
use jvc_kernels::spec::{Access, Extent, KernelSpec, MatmulSpec};
use std::collections::BTreeMap;
use std::ops::Range;

/// Kernels between two layers, at most: more are a part of the model that has nothing to do with the stack.
const MOST_BETWEEN: usize = 8;
/// Time steps of a piece of a product, at most: the layers above wait for so many.
const MOST_STEPS: usize = 8;
/// Pieces at least: of fewer the layers above wait for too much of the one below.
const LEAST_PIECES: usize = 6;
/// Unit of an operand's offset.
const OFFSET_BYTES: i64 = 16;
/// Axes of a product's rows and columns, and the first summed one.
const ROWS: u8 = 1;
const COLUMNS: u8 = 2;

/// Reorders stacks of layers that run step by step; everything else stays where it is.
pub fn wavefront(drafts: Vec<Draft>, graph: &Graph, device: &DeviceProfile) -> Vec<Draft> {
    let mut out: Vec<Draft> = vec![];
    let mut rest = drafts;
    while let Some(start) = rest.iter().position(|d| d.layer.is_some()) {
        let end = end_of_stack(&rest, start);
        let tail = rest.split_off(end);
        let stack = rest.split_off(start);
        out.append(&mut rest);
        out.extend(in_waves(stack, graph, device));
        rest = tail;
    }
    out.extend(rest);
    out
}

/// Behind the last step of the last layer that follows closely.
fn end_of_stack(drafts: &[Draft], start: usize) -> usize {
    let mut end = start + 1;
    loop {
        let Some(between) = drafts[end..].iter().position(|d| d.layer.is_some()) else { return end };
        if between > MOST_BETWEEN || drafts[end..end + between].iter().any(is_opaque) {
            return end;
        }
        end += between + 1;
    }
}

/// New values of states are memory that the old ones are read from; the table is read without being an operand.
fn is_opaque(d: &Draft) -> bool {
    d.binding.is_some() || d.uses.iter().any(|u| matches!(u.place, Place::StateUpdate(_) | Place::Table))
}

fn in_waves(stack: Vec<Draft>, graph: &Graph, device: &DeviceProfile) -> Vec<Draft> {
    let mut items: Vec<Draft> = vec![];
    let (mut below, mut cut) = (None, false);
    for draft in &stack {
        let steps = stack.iter().filter(|d| d.layer.is_some() && d.layer == below).count();
        below = draft.layer.or(below);
        match pieces(draft, steps, graph, device) {
            Some(pieces) => {
                cut = true;
                items.extend(pieces);
            }
            None => items.push(draft.clone()),
        }
    }
    if !cut {
        return stack;
    }
    let mut waves: Vec<(usize, Draft)> = earliest(&items).into_iter().zip(items).collect();
    waves.sort_by_key(|(wave, _)| *wave);
    waves.into_iter().map(|(_, draft)| draft).collect()
}

/// For each kernel, the first wave after everything that it must follow.
fn earliest(items: &[Draft]) -> Vec<usize> {
    struct Touched {
        bytes: Range<u64>,
        written: bool,
        wave: usize,
    }
    let mut places: BTreeMap<Place, Vec<Touched>> = BTreeMap::new();
    let mut waves = vec![];
    for d in items {
        let touches = touches(d);
        let clashes = touches.iter().flat_map(|(place, bytes, written)| {
            let earlier = places.get(place).map_or(&[][..], |t| t);
            earlier
                .iter()
                .filter(move |t| (t.written || *written) && t.bytes.start < bytes.end && bytes.start < t.bytes.end)
        });
        let wave = clashes.map(|t| t.wave + 1).max().unwrap_or(0);
        for (place, bytes, written) in touches {
            places.entry(place).or_default().push(Touched { bytes, written, wave });
        }
        waves.push(wave);
    }
    waves
}

/// Whether one of two kernels must wait for the other.
pub(super) fn clash(a: &Draft, b: &Draft) -> bool {
    let touched = touches(b);
    let clashes = |(place, bytes, written): (Place, Range<u64>, bool)| {
        touched.iter().any(|(p, r, w)| *p == place && (*w || written) && r.start < bytes.end && bytes.start < r.end)
    };
    is_opaque(a) || is_opaque(b) || touches(a).into_iter().any(clashes)
}

/// What a kernel reads (false) and writes (true).
fn touches(d: &Draft) -> Vec<(Place, Range<u64>, bool)> {
    let mut out = vec![];
    for (i, u) in (0u16..).zip(&d.uses) {
        let part = d.parts.iter().find(|p| p.operand == i);
        let whole = 0..u64::MAX;
        if u.access != Access::Write {
            out.push((u.place, part.and_then(|p| p.read.clone()).unwrap_or(whole.clone()), false));
        }
        if u.access != Access::Read {
            out.push((u.place, part.and_then(|p| p.written.clone()).unwrap_or(whole), true));
        }
    }
    out
}

/// A product whose rows are those of `steps` time steps, a few of these at a time; none where its operands are not found by plain steps.
fn pieces(draft: &Draft, steps: usize, graph: &Graph, device: &DeviceProfile) -> Option<Vec<Draft>> {
    let KernelSpec::Matmul(spec) = &draft.spec else { return None };
    let (Extent::Const(rows), Extent::Const(1)) = (spec.m, spec.batch) else { return None };
    let at_once = (2..=MOST_STEPS).rev().find(|&n| n * LEAST_PIECES <= steps && steps.is_multiple_of(n))?;
    let count = u32::try_from(steps / at_once).ok()?;
    if draft.layer.is_some() || !draft.parts.is_empty() || spec.acc != Ty::F32 || !rows.is_multiple_of(count) {
        return None;
    }
    let rows = rows / count;
    let moved = moved(spec, rows)?;
    let movable = |u: &Use| {
        let place = matches!(u.place, Place::Value(v) if !matches!(graph.def(v).op, Op::Input { .. }));
        place && u.dtype == DType::F32 && u.access != Access::ReadWrite
    };
    if !moved.keys().all(|&operand| movable(&draft.uses[usize::from(operand)])) {
        return None;
    }
    let (spec, chosen) = piece(spec, rows, device)?;
    let piece = |i: u32| {
        let mut d = draft.clone();
        d.spec = KernelSpec::Matmul(spec.clone());
        d.tile = Some(chosen.clone());
        d.parts = moved.iter().map(|(&operand, m)| m.part(operand, i, d.uses[usize::from(operand)].access)).collect();
        (d.cost.flops, d.cost.bytes) = (draft.cost.flops / f64::from(count), draft.cost.bytes / f64::from(count));
        d
    };
    Some((0..count).map(piece).collect())
}

/// An operand of which a piece touches other rows.
struct Moved {
    /// Bytes from one piece to the next.
    apart: i64,
    /// Bytes that the first piece touches.
    bytes: Range<i64>,
}

impl Moved {
    fn part(&self, operand: u16, i: u32, access: Access) -> Part {
        let start = self.apart * i64::from(i);
        let touched = Some((start + self.bytes.start) as u64..(start + self.bytes.end) as u64);
        let (read, written) = if access == Access::Read { (touched, None) } else { (None, touched) };
        Part { operand, start: start as u64, read, written }
    }
}

/// The operands that move with the rows, for pieces of so many; none where something else depends on the row.
fn moved(spec: &MatmulSpec, rows: u32) -> Option<BTreeMap<u16, Moved>> {
    let e = &spec.exprs;
    let values = spec.stores.iter().flat_map(|s| [Some(s.value), s.guard]).flatten();
    let roots: Vec<ExprId> = values.chain([spec.lhs, spec.rhs]).collect();
    if roots.iter().any(|&root| sees_row(e, root)) {
        return None;
    }
    let loads = e.reachable(&roots).into_iter().filter_map(|id| match e.get(id) {
        Expr::Load { operand, index, .. } => Some((*operand, index[0])),
        _ => None,
    });
    let stores = spec.stores.iter().map(|s| (s.operand, s.index));
    let (mut moved, mut fixed): (BTreeMap<u16, Moved>, Vec<u16>) = (BTreeMap::new(), vec![]);
    for (operand, index) in loads.chain(stores) {
        if !e.reachable(&[index]).iter().any(|&n| matches!(e.get(n), Expr::Axis(ROWS))) {
            fixed.push(operand);
            continue;
        }
        let m = Moved::of(spec, index, rows)?;
        if moved.insert(operand, m).is_some() {
            return None;
        }
    }
    fixed.iter().all(|operand| !moved.contains_key(operand)).then_some(moved)
}

impl Moved {
    fn of(spec: &MatmulSpec, index: ExprId, rows: u32) -> Option<Moved> {
        let (first, strides) = affine(&spec.exprs, index)?;
        let mut last = first;
        for (&axis, &stride) in &strides {
            let size = match axis {
                0 => 1,
                ROWS => rows,
                COLUMNS => literal(spec.n)?,
                k => literal(*spec.k.get(usize::from(k) - 3)?)?,
            };
            if stride < 0 || size == 0 {
                return None;
            }
            last += stride * (i64::from(size) - 1);
        }
        let apart = strides.get(&ROWS).copied().unwrap_or(0) * i64::from(rows) * 4;
        (apart % OFFSET_BYTES == 0 && first >= 0).then_some(Moved { apart, bytes: first * 4..(last + 1) * 4 })
    }
}

/// Whether a value depends on the row by more than what is loaded there.
fn sees_row(e: &Exprs, id: ExprId) -> bool {
    match e.get(id) {
        Expr::Axis(axis) => *axis == ROWS,
        Expr::Load { .. } => false,
        _ => e.operands(id).iter().any(|&o| sees_row(e, o)),
    }
}

fn literal(extent: Extent) -> Option<u32> {
    if let Extent::Const(n) = extent { Some(n) } else { None }
}

/// The product of so many rows, with the tile for it.
fn piece(spec: &MatmulSpec, rows: u32, device: &DeviceProfile) -> Option<(MatmulSpec, Chosen)> {
    let lengths: Option<Vec<u32>> = spec.k.iter().map(|&k| literal(k)).collect();
    let lengths = lengths?;
    let k: f64 = lengths.iter().map(|&n| f64::from(n)).product();
    let line = lengths.iter().rev().find(|&&n| n > 1).map_or(1.0, |&n| f64::from(n));
    let (m, n) = (f64::from(rows), f64::from(literal(spec.n)?));
    let (half, acc) = (None, spec.acc);
    let problem = Problem { batch: 1.0, m, n, k, line, acc, half, gathers: false, fills: false, packed: false };
    let Choice { staging, wg, chosen, .. } = tile::product(device, &problem, |_| true);
    Some((MatmulSpec { m: Extent::Const(rows), staging, wg, ..spec.clone() }, chosen))
}
