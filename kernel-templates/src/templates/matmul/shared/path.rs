//! How the k axes are cut into tiles.
//!
//! Tiles run along the last axis that is longer than 1, and one tile has the same place on all axes before it: what those decide (the tap of a
//! convolution, and whether it lies in the padding) is settled once a tile. Where tiles would not fill that axis, all axes are one line.

use super::super::{K, divide, is_covered};
use crate::asm::Id;
use crate::emit_expr::Emit;
use crate::spec::{Extent, MatmulSpec};

/// The line along which tiles run.
pub(super) struct Path<'a> {
    k: &'a [Extent],
    /// The axis of the line; none where all of k is one.
    axis: Option<usize>,
    bk: u32,
}

impl<'a> Path<'a> {
    pub(super) fn of(spec: &'a MatmulSpec, bk: u32) -> Path<'a> {
        let k = &spec.k[..];
        let last = (0..k.len()).rev().find(|&i| k[i] != Extent::Const(1));
        let alone = |i: usize| k[..i].iter().all(|e| *e == Extent::Const(1));
        // A tenth of padding costs less than finding the coordinates of every element.
        let fills = |i: usize| matches!(k[i], Extent::Const(n) if n.next_multiple_of(bk) * 8 <= n * 9);
        Path { k, axis: last.filter(|&i| alone(i) || fills(i)), bk }
    }

    /// The axis of elements that follow one another along a tile, as expressions number it.
    pub(super) fn line_axis(&self) -> Option<usize> {
        self.axis.map(|i| K + i)
    }

    /// Tiles differ in more than their place on the line.
    pub(super) fn has_outer(&self) -> bool {
        self.axis.is_some_and(|i| self.k[..i].iter().any(|e| *e != Extent::Const(1)))
    }

    fn line(&self) -> &'a [Extent] {
        match self.axis {
            Some(i) => &self.k[i..=i],
            None => self.k,
        }
    }

    fn outer(&self) -> &'a [Extent] {
        self.axis.map_or(&[], |i| &self.k[..i])
    }

    /// Length of the line where it is known.
    fn known_length(&self) -> Option<u32> {
        self.line().iter().try_fold(1u32, |n, e| if let Extent::Const(m) = e { Some(n * m) } else { None })
    }

    /// Tiles of the line.
    fn line_tiles(&self, cx: &mut Emit<'_>) -> Id {
        if let Some(n) = self.known_length() {
            return cx.asm.u32(n.div_ceil(self.bk));
        }
        let length = cx.product(self.line());
        let less_one = cx.asm.u32(self.bk - 1);
        let up = cx.asm.iadd(length, less_one);
        cx.quotient_by(up, self.bk)
    }

    /// All tiles.
    pub(super) fn n_tiles(&self, cx: &mut Emit<'_>) -> Id {
        let along = self.line_tiles(cx);
        let outer = cx.product(self.outer());
        cx.asm.imul(outer, along)
    }

    /// All tiles, where that is known.
    pub(super) fn known_tiles(&self) -> Option<u32> {
        let known = |n: u32, e: &Extent| if let Extent::Const(m) = e { Some(n * m) } else { None };
        self.outer().iter().try_fold(self.known_length()?.div_ceil(self.bk), known)
    }

    /// Binds the axes that a tile decides, and gives its first place on the line.
    pub(super) fn enter(&self, cx: &mut Emit<'_>, tile: Id) -> Id {
        let bk = cx.asm.u32(self.bk);
        let Some(axis) = self.axis else { return cx.asm.imul(tile, bk) };
        let zero = cx.asm.u32(0);
        (axis + 1..self.k.len()).for_each(|i| cx.bind_axis(K + i, zero));
        if !self.has_outer() {
            (0..axis).for_each(|i| cx.bind_axis(K + i, zero));
            return cx.asm.imul(tile, bk);
        }
        let along = self.line_tiles(cx);
        let (outer, within) = divide(cx, tile, along);
        for (i, at) in cx.coordinates(outer, self.outer()).into_iter().enumerate() {
            cx.bind_axis(K + i, at);
        }
        cx.asm.imul(within, bk)
    }

    /// Binds the axes of the line to a place on it.
    pub(super) fn bind(&self, cx: &mut Emit<'_>, at: Id) {
        match self.axis {
            Some(i) => cx.bind_axis(K + i, at),
            None => {
                for (i, c) in cx.coordinates(at, self.k).into_iter().enumerate() {
                    cx.bind_axis(K + i, c);
                }
            }
        }
    }

    /// `at`, first of `size` places of the line, or the last that exists, and whether it is the one asked for.
    pub(super) fn existing(&self, cx: &mut Emit<'_>, at: Id, size: u32) -> (Id, Id) {
        if self.known_length().is_some_and(|n| is_covered(Extent::Const(n), self.bk)) {
            return (at, cx.asm.bool(true));
        }
        let length = cx.product(self.line());
        let inside = cx.asm.ult(at, length);
        let size = cx.asm.u32(size);
        let last = cx.asm.isub(length, size);
        (cx.asm.select(inside, at, last), inside)
    }
}
