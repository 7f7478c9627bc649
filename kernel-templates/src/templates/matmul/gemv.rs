//! Thin products: `threads_per_dot` invocations share the dot products of `cols` columns with all (at most 8) rows.
//!
//! ```text
//! parallel for b, n by cols: lanes: for k by threads_per_dot: acc[m][n] += lhs(b, m, k)·rhs(b, n, k); sum over lanes; stores
//! ```
//!
//! Traffic: each right element once, whatever m is; consecutive lanes read consecutive k: groups of [`GROUP`] in blocks of 16 bytes where the
//! right side's access map is proven to allow it, else single elements. Loads of several columns and turns are on their way at a time. Sums have
//! a fixed order: a lane's own by turns, then all lanes' of an output by one invocation.

use super::{K, M, N, find_tile, last_k, positions, start, tile_grid, zero};
use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::dtype::{DType, Ty};
use crate::emit_expr::{Emit, Kept};
use crate::emit_ops::emit_binary;
use crate::expr::{Binary, ExprId};
use crate::spec::{Extent, Kernel, MatmulSpec, Staging, Target};
use crate::templates::kernel;
use crate::wide_load::{self, GROUP, WideLoad};

/// Most rows: each has an accumulator.
const MAX_ROWS: u32 = 8;
/// Lanes whose parts are left for the last sum.
const LAST_LANES: u32 = 32;

pub(super) fn check(spec: &MatmulSpec, threads: u32, cols: u32) -> Result<(), BuildError> {
    let rows_fit = matches!(spec.m, Extent::Const(m) if (1..=MAX_ROWS).contains(&m) && cols > 0 && m * cols <= threads);
    if !rows_fit || !threads.is_power_of_two() || !spec.wg.is_multiple_of(threads) {
        return Err(shape(format!(
            "matmul: gemv of m={:?} (1 to {MAX_ROWS}) and {cols} columns by {threads} lanes (a power of two that divides wg={}, at least \
             as many as outputs)",
            spec.m, spec.wg
        )));
    }
    Ok(())
}

/// Parts of every lane, output by output, lines of one place more than lanes: so neither side meets in a bank.
pub(super) fn shared_bytes(spec: &MatmulSpec) -> u32 {
    let (Staging::Gemv { threads_per_dot, cols }, Extent::Const(m)) = (spec.staging, spec.m) else { return 0 };
    spec.wg / threads_per_dot * m * cols * (threads_per_dot + 1) * St::from(spec.acc).size_bytes()
}

/// What one set of lanes computes, and where it stands.
struct Dots<'s> {
    spec: &'s MatmulSpec,
    threads: u32,
    m: u32,
    cols: u32,
    lane: Id,
    rows: Vec<Kept>,
    columns: Vec<Kept>,
}

/// A side of the product: loads of whole groups along k, or single elements.
#[derive(Clone, Copy)]
enum Side {
    Blocks(WideLoad, DType),
    Single(ExprId),
}

pub(super) fn build(spec: &MatmulSpec, target: Target, threads: u32, cols: u32) -> Result<Kernel, BuildError> {
    let Extent::Const(m) = spec.m else {
        return Err(shape("matmul: gemv of unknown m".to_owned()));
    };
    let mut cx = start(spec, target);
    let n_bytes = St::from(spec.acc).size_bytes();
    let array = cx.asm.shared_array(spec.acc.into(), shared_bytes(spec) / n_bytes);
    let sets = spec.wg / threads;
    let (group, local) = (cx.asm.workgroup_index(), cx.asm.local_index());
    let tile = find_tile(&mut cx, spec, group, m, sets * cols);
    let (shift, mask) = (cx.asm.u32(threads.trailing_zeros()), cx.asm.u32(threads - 1));
    let set = cx.asm.shr(local, shift);
    let lane = cx.asm.and(local, mask);
    let (sets_id, cols_id) = (cx.asm.u32(sets), cx.asm.u32(cols));
    let first = cx.asm.imul(tile.along_n, sets_id);
    let first = cx.asm.iadd(first, set);
    let first = cx.asm.imul(first, cols_id);
    let covered = super::is_covered(spec.n, sets * cols);
    let at = positions(&mut cx, spec.n, covered, first, 1, cols);
    let columns = at.iter().map(|&(n, _)| cx.keep_scope(None, |cx| cx.bind_axis(N, n))).collect();
    let keep_row = |i| {
        cx.keep_scope(None, |cx| {
            let i = cx.asm.u32(i);
            cx.bind_axis(M, i);
        })
    };
    let rows = (0..m).map(keep_row).collect();
    let dots = Dots { spec, threads, m, cols, lane, rows, columns };
    let parts = dots.parts(&mut cx);
    dots.finish(&mut cx, array, set, &parts, first);
    Ok(kernel(cx, tile_grid(spec, m, sets * cols, 1)))
}

/// Loads of whole groups along the axis that consecutive k move along.
fn blocks(spec: &MatmulSpec, root: ExprId) -> Option<Side> {
    let axis = last_k(spec).filter(|_| spec.acc == Ty::F32)?;
    let find = |elem| {
        let load = wide_load::find(&spec.exprs, &spec.interface, &super::all_extents(spec), root, axis, elem)?;
        Some(Side::Blocks(load, elem))
    };
    [DType::F16, DType::BF16, DType::F32].into_iter().find_map(find)
}

impl Dots<'_> {
    /// This lane's part of every output, row by row.
    fn parts(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        let spec = self.spec;
        let runs = spec.k.iter().all(|e| matches!(e, Extent::Const(n) if *n > 0));
        let hoisted = |cx: &mut Emit<'_>, scopes: &[Kept], root| -> Vec<Kept> {
            cx.hoist(&[root], runs);
            scopes.iter().map(|s| cx.keep_scope(Some(s), |cx| cx.hoist(&[root], runs))).collect()
        };
        let rows = hoisted(cx, &self.rows, spec.lhs);
        let columns = hoisted(cx, &self.columns, spec.rhs);
        let right = blocks(spec, spec.rhs);
        let left = right.and_then(|_| blocks(spec, spec.lhs));
        let group = if right.is_some() { GROUP } else { 1 };
        let sides = (left.unwrap_or(Side::Single(spec.lhs)), right.unwrap_or(Side::Single(spec.rhs)));
        let total = cx.product(&spec.k);
        let shift = cx.asm.u32(group.trailing_zeros());
        let groups = cx.asm.shr(total, shift);
        let zero = zero(cx, spec.acc);
        let initial = vec![zero; (self.m * self.cols) as usize];
        let turns = if right.is_some() { self.turns() } else { 1 };
        let step = cx.asm.u32(self.threads * turns);
        // Whole steps of all lanes first: their turns need no tests of their own.
        let whole_steps = cx.asm.udiv(groups, step);
        let whole = if turns == 1 { cx.asm.u32(0) } else { cx.asm.imul(whole_steps, step) };
        let start = cx.asm.u32(0);
        let acc = cx.loop_step((start, whole, step), &initial, |cx, base, acc| {
            let at = |cx: &mut Emit<'_>, turn: u32| {
                let offset = cx.asm.u32(turn * self.threads);
                let offset = cx.asm.iadd(offset, self.lane);
                cx.asm.iadd(base, offset)
            };
            let positions: Vec<Id> = (0..turns).map(|turn| at(cx, turn)).collect();
            self.turn(cx, sides, (&rows, &columns), &positions, acc)
        });
        if cx.asm.const_bits(whole).is_some() && cx.asm.const_bits(whole) == cx.asm.const_bits(groups) {
            return acc;
        }
        // As many turns for all lanes: SwiftShader forgets what a lane has that leaves a loop before its neighbours.
        let by = cx.asm.u32(self.threads);
        cx.loop_step((whole, groups, by), &acc, |cx, base, acc| {
            let position = cx.asm.iadd(base, self.lane);
            let inside = cx.asm.ult(position, groups);
            cx.if_then(inside, acc, |cx| self.turn(cx, sides, (&rows, &columns), &[position], acc))
        })
    }

    /// Turns of the loop over k in one: more loads on their way, as far as registers go.
    fn turns(&self) -> u32 {
        let k: Option<u32> =
            self.spec.k.iter().map(|e| if let Extent::Const(n) = e { Some(*n) } else { None }).product();
        let whole = k.map_or(1, |k| k / (GROUP * self.threads));
        (8 / (self.m * self.cols).next_power_of_two()).clamp(1, 4).min(whole.max(1))
    }

    /// Takes the groups at `positions`: everything is loaded first.
    fn turn(
        &self,
        cx: &mut Emit<'_>,
        (left, right): (Side, Side),
        (rows, columns): (&[Kept], &[Kept]),
        positions: &[Id],
        acc: &[Id],
    ) -> Vec<Id> {
        let size = if matches!(right, Side::Blocks(..)) { GROUP } else { 1 };
        let all = |cx: &mut Emit<'_>, side: Side, scopes: &[Kept]| -> Vec<Vec<Id>> {
            let places = positions.iter().flat_map(|&p| scopes.iter().map(move |s| (p, s)));
            places.map(|(p, s)| cx.within(s, |cx| self.elements(cx, side, p, size))).collect()
        };
        let (b, a) = (all(cx, right, columns), all(cx, left, rows));
        let mut next = acc.to_vec();
        for turn in 0..positions.len() {
            for (i, out) in next.iter_mut().enumerate() {
                let (row, col) = (i / columns.len(), i % columns.len());
                let (a, b) = (&a[turn * rows.len() + row], &b[turn * columns.len() + col]);
                *out = a.iter().zip(b).fold(*out, |acc, (&a, &b)| cx.asm.mul_add(a, b, acc));
            }
        }
        next
    }

    /// The elements of a group; `size` of them.
    fn elements(&self, cx: &mut Emit<'_>, side: Side, group: Id, size: u32) -> Vec<Id> {
        let shift = cx.asm.u32(size.trailing_zeros());
        let first = cx.asm.shl(group, shift);
        match side {
            Side::Blocks(load, elem) => self.at_k(cx, first, |cx| cx.load_group(load, elem, GROUP)),
            Side::Single(root) => {
                let each = |e| {
                    let e = cx.asm.u32(e);
                    let k = cx.asm.iadd(first, e);
                    self.at_k(cx, k, |cx| cx.eval(root))
                };
                (0..size).map(each).collect()
            }
        }
    }

    fn at_k<T>(&self, cx: &mut Emit<'_>, k: Id, body: impl FnOnce(&mut Emit<'_>) -> T) -> T {
        cx.scope(|cx| {
            for (i, c) in cx.coordinates(k, &self.spec.k).into_iter().enumerate() {
                cx.bind_axis(K + i, c);
            }
            body(cx)
        })
    }

    /// Sums every output over the lanes, and stores it.
    fn finish(&self, cx: &mut Emit<'_>, array: Shared, set: Id, parts: &[Id], first: Id) {
        let n_outputs = self.m * self.cols;
        let line = self.threads + 1;
        let (per_set, line_id) = (cx.asm.u32(n_outputs * line), cx.asm.u32(line));
        let set_start = cx.asm.imul(set, per_set);
        let own = cx.asm.iadd(set_start, self.lane);
        let slots: Vec<Id> = (0..n_outputs).map(|o| self.offset(cx, own, o * line)).collect();
        for (&slot, &part) in slots.iter().zip(parts) {
            cx.asm.store_shared(array, slot, part);
        }
        cx.asm.barrier();
        let lanes = self.threads.min(LAST_LANES);
        if lanes < self.threads {
            let (lanes_id, stays) = (cx.asm.u32(lanes), self.threads / lanes);
            let takes = cx.asm.ult(self.lane, lanes_id);
            cx.if_then(takes, &[], |cx| {
                for &slot in &slots {
                    let sum = self.sum(cx, array, slot, stays, lanes);
                    cx.asm.store_shared(array, slot, sum);
                }
                vec![]
            });
            cx.asm.barrier();
        }
        let n_outputs_id = cx.asm.u32(n_outputs);
        let owns = cx.asm.ult(self.lane, n_outputs_id);
        cx.if_then(owns, &[], |cx| {
            let start = cx.asm.imul(self.lane, line_id);
            let start = cx.asm.iadd(set_start, start);
            let sum = self.sum(cx, array, start, lanes, 1);
            self.store(cx, sum, first);
            vec![]
        });
    }

    fn offset(&self, cx: &mut Emit<'_>, from: Id, by: u32) -> Id {
        let by = cx.asm.u32(by);
        cx.asm.iadd(from, by)
    }

    /// `count` values, `stride` apart, in a tree.
    fn sum(&self, cx: &mut Emit<'_>, array: Shared, start: Id, count: u32, stride: u32) -> Id {
        let places: Vec<Id> = (0..count).map(|i| self.offset(cx, start, i * stride)).collect();
        let mut values: Vec<Id> = places.iter().map(|&at| cx.asm.load_shared(array, at)).collect();
        while values.len() > 1 {
            let half = values.len().div_ceil(2);
            let (low, high) = values.split_at(half);
            let pair = |(i, &a): (usize, &Id)| high.get(i).map_or(a, |&b| emit_binary(&mut cx.asm, Binary::Add, a, b));
            values = low.iter().enumerate().map(pair).collect();
        }
        values[0]
    }

    /// The lane's number is that of its output.
    fn store(&self, cx: &mut Emit<'_>, sum: Id, first: Id) {
        let row = cx.quotient_by(self.lane, self.cols);
        let cols = cx.asm.u32(self.cols);
        let before = cx.asm.imul(row, cols);
        let col = cx.asm.isub(self.lane, before);
        let col = cx.asm.iadd(first, col);
        let n = cx.extent(self.spec.n);
        let inside = cx.asm.ult(col, n);
        cx.if_then(inside, &[], |cx| {
            cx.bind_axis(M, row);
            cx.bind_axis(N, col);
            cx.bind_arg(0, sum);
            cx.stores(&self.spec.stores);
            vec![]
        });
    }
}
