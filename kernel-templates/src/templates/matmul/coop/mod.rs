//! Cooperative matrices: each subgroup multiplies fragments of tiles that wait in shared memory as halves.
//!
//! ```text
//! parallel for tile of bm × bn, by workgroup; parts of it by subgroup:
//!     for t in k tiles of bk:
//!         shared = tile t of both sides (halves, in lines of bk or of the tile's width); barrier
//!         load(t + 1) to registers, if asked to
//!         for k in 0..bk by the fragment's: sums += a fragments · b fragments
//!         barrier
//!     sums → shared (f32), a band of fragments at a time → stores
//! ```
//!
//! Traffic: each left element is read n / bn times, each right element m / bm times, in blocks of 16 bytes where the access map is proven
//! to allow it. Lines of shared memory are a block longer than their content, so that neighbouring lines start in other banks.

mod direct;
mod doubt;
mod fill;
mod finish;
mod packed;
mod stage;

use super::{M, N, find_tile, start, tile_grid};
use crate::asm::{Blocks, Id, Lines, MatrixUse};
use crate::check::{BuildError, shape};
use crate::dtype::{DType, Ty};
use crate::emit_expr::Emit;
use crate::limits::{Limits, Reject};
use crate::spec::{Coop, Fill, Kernel, MatmulSpec, Target};
use crate::templates::kernel;
use crate::wide_load::{GROUP, is_exact_in};
pub(super) use packed::is_packed;
pub use packed::packed_place;

use direct::Sides;
use fill::Pattern;
use stage::{KRange, Side};

/// f32 in a block.
const WORDS: u32 = 4;

/// Whether the sizes are multiples of each other, for a workgroup of `wg` invocations.
pub(super) fn sizes_fit(c: &Coop, wg: u32) -> bool {
    let tile_fits =
        |tile: u32, warps: u32, frag: u32| tile > 0 && warps > 0 && frag > 0 && tile.is_multiple_of(warps * frag);
    tile_fits(c.bm, c.warps.0, c.frag.0)
        && tile_fits(c.bn, c.warps.1, c.frag.1)
        && tile_fits(c.bk, 1, c.frag.2)
        && [c.bm, c.bn, c.bk, c.frag.0, c.frag.1, c.frag.2].iter().all(|v| v.is_multiple_of(GROUP))
        && c.subgroup > 0
        && c.subgroups() * c.subgroup == wg
        && (1..=2).contains(&c.buffers)
        && c.fill.is_none_or(|f| fill_fits(c, &f))
}

/// Whether both sides' fragments can be filled by blocks, in the same order of k.
fn fill_fits(c: &Coop, f: &Fill) -> bool {
    if f.packed > 0 {
        let steps = c.bk / c.frag.2;
        return f.parts > 0 && steps.is_multiple_of(f.parts) && f.packed <= steps / f.parts;
    }
    if f.parts == 0 || (f.parts > 1 && f.staged) {
        return false;
    }
    let (Some(left), Some(right)) = (Pattern::left(c, f), Pattern::right(c, f)) else { return false };
    left.agrees(&right) && c.bk.is_multiple_of(left.step)
}

pub(super) fn check(spec: &MatmulSpec, c: &Coop) -> Result<(), BuildError> {
    if !sizes_fit(c, spec.wg) {
        return Err(shape(format!(
            "matmul: cooperative tile {}x{}x{} of {}x{} subgroups of {} with fragments {:?}, wg={}, {} buffers: sizes must be multiples of {GROUP} and of each other",
            c.bm, c.bn, c.bk, c.warps.0, c.warps.1, c.subgroup, c.frag, spec.wg, c.buffers
        )));
    }
    if spec.acc != Ty::F32 || !matches!(c.elem, DType::F16 | DType::BF16) {
        return Err(shape(format!("matmul: no cooperative product of {} summed in {}", c.elem, spec.acc)));
    }
    for (what, root) in [("left", spec.lhs), ("right", spec.rhs)] {
        if !is_exact_in(&spec.exprs, root, c.elem) {
            return Err(shape(format!("matmul: the {what} element is not exact in {}", c.elem)));
        }
    }
    Ok(())
}

/// The fragment that a device must have, and its subgroups.
pub(super) fn constraints(c: &Coop, limits: &Limits) -> Result<(), Reject> {
    let (m, n, k) = c.frag;
    if !limits.cooperative.contains(&(m, n, k, c.elem)) {
        let have: Vec<String> = limits.cooperative.iter().map(|(m, n, k, e)| format!("{m}x{n}x{k} {e}")).collect();
        let have = if have.is_empty() { "none".to_owned() } else { have.join(", ") };
        let reason = format!("the device has no cooperative matrices {m}x{n}x{k} {} (it has: {have})", c.elem);
        return Err(Reject::Shape { reason });
    }
    if c.subgroup != limits.subgroup {
        let reason = format!("subgroups of {} are asked for, the device has {}", c.subgroup, limits.subgroup);
        return Err(Reject::Shape { reason });
    }
    Ok(())
}

/// See [`super::coop_loads_blocks`].
pub(super) fn loads_blocks(spec: &MatmulSpec, elem: DType) -> bool {
    [M, N].into_iter().all(|axis| stage::wide(spec, elem, axis).is_some())
}

/// See [`super::coop_fills`].
pub(super) fn reads_along_k(spec: &MatmulSpec, elem: DType) -> bool {
    [M, N].into_iter().all(|axis| stage::wide(spec, elem, axis).is_some_and(|(_, along_k)| along_k))
}

/// Blocks of one operand's tile.
fn side_blocks(c: &Coop, width: u32, along_k: bool) -> u32 {
    let (lines, length) = if along_k { (width, c.bk) } else { (c.bk, width) };
    lines * pitch(length)
}

/// Blocks from one slab to the next, of lines of `size` blocks each; the next starts in other banks.
fn slab_pitch(lines: u32, size: u32) -> u32 {
    (lines + 1) * size
}

/// Blocks of the left tile where it alone is staged, in slabs.
fn slabs_blocks(c: &Coop, step: u32) -> u32 {
    c.bk / step * slab_pitch(c.bm, step / GROUP)
}

/// Blocks from one line of `length` halves to the next.
fn pitch(length: u32) -> u32 {
    length / GROUP + 1
}

/// Shared memory at most, whichever way lines run.
pub(super) fn shared_bytes(c: &Coop) -> u32 {
    let side = |width| side_blocks(c, width, true).max(side_blocks(c, width, false));
    let tile = match &c.fill {
        None => side(c.bm) + side(c.bn),
        Some(f) if f.packed > 0 => side(c.bm),
        Some(f) if f.staged => Pattern::left(c, f).map_or(0, |p| slabs_blocks(c, p.step)),
        Some(_) => 0,
    };
    let looks = if c.fill.is_some() { doubt::blocks(c) } else { 0 };
    (tile * c.buffers).max(c.subgroups() * finish::band_blocks(c)).max(looks) * 16
}

/// Where a subgroup stands in the tile: its first row and column; and which part of their sums is its own.
struct Place {
    row: Id,
    col: Id,
    part: Id,
}

/// A kernel under way.
struct Product<'a> {
    spec: &'a MatmulSpec,
    c: Coop,
    /// Sides that wait in shared memory.
    staged: Vec<Side>,
    /// First row and column of the tile.
    first: [Id; 2],
    /// First row and column that are the tile's own, where it begins earlier so as to be whole.
    own: [Option<Id>; 2],
    blocks: Blocks,
    n_blocks: u32,
    place: Place,
    /// Variables of the sums, row-major over the subgroup's fragments.
    sums: Vec<Id>,
    sum_ty: Id,
}

impl Product<'_> {
    /// Fragments of a subgroup along m and n.
    fn fragments(&self) -> (u32, u32) {
        let c = &self.c;
        (c.bm / c.warps.0 / c.frag.0, c.bn / c.warps.1 / c.frag.1)
    }
}

pub(super) fn build(spec: &MatmulSpec, target: Target, c: &Coop) -> Result<Kernel, BuildError> {
    match &c.fill {
        None => build_staged(spec, target, c),
        Some(fill) if fill.packed > 0 => packed::build(spec, target, c, fill),
        Some(fill) => build_filled(spec, target, c, fill),
    }
}

fn build_staged(spec: &MatmulSpec, target: Target, c: &Coop) -> Result<Kernel, BuildError> {
    let c = *c;
    let mut cx = start(spec, target);
    cx.asm.keep_loops();
    let group = cx.asm.workgroup_index();
    let tile = find_tile(&mut cx, spec, group, c.bm, c.bn);
    let local = cx.asm.local_index();
    let left = Side::new(&mut cx, spec, &c, M, tile.along_m, local);
    let mut right = Side::new(&mut cx, spec, &c, N, tile.along_n, local);
    right.base = side_blocks(&c, left.width, left.along_k);
    let tiles = (right.base + side_blocks(&c, right.width, right.along_k)) * c.buffers;
    let first = [left.first, right.first];
    let product = product(&mut cx, spec, &c, (vec![left, right], tiles), (first, [None; 2]));
    k_tiles(&mut cx, &product);
    finish::store(&mut cx, &product);
    Ok(kernel(cx, tile_grid(spec, c.bm, c.bn, 1)))
}

fn product<'a>(
    cx: &mut Emit<'_>,
    spec: &'a MatmulSpec,
    c: &Coop,
    (staged, tiles): (Vec<Side>, u32),
    (first, own): ([Id; 2], [Option<Id>; 2]),
) -> Product<'a> {
    let looks = if c.fill.is_some() { doubt::blocks(c) } else { 0 };
    let n_blocks = tiles.max(c.subgroups() * finish::band_blocks(c)).max(looks);
    let blocks = cx.asm.shared_blocks(n_blocks);
    let place = place(cx, c);
    let sum_ty = cx.asm.matrix_type(DType::F32, (c.frag.0, c.frag.1), MatrixUse::Sum);
    let mut product = Product { spec, c: *c, staged, first, own, blocks, n_blocks, place, sums: vec![], sum_ty };
    let (along_m, along_n) = product.fragments();
    product.sums = (0..along_m * along_n).map(|_| cx.asm.matrix_variable(sum_ty)).collect();
    product
}

fn build_filled(spec: &MatmulSpec, target: Target, c: &Coop, fill: &Fill) -> Result<Kernel, BuildError> {
    let c = *c;
    let no_pattern = || shape(format!("matmul: fragments {:?} cannot be filled by blocks as {fill:?}", c.frag));
    let left_pattern = Pattern::left(&c, fill).ok_or_else(no_pattern)?;
    let right_pattern = Pattern::right(&c, fill).ok_or_else(no_pattern)?;
    let mut cx = start(spec, target);
    let group = cx.asm.workgroup_index();
    let tile = find_tile(&mut cx, spec, group, c.bm, c.bn);
    let (row, own_row) = direct::tile_start(&mut cx, spec.m, c.bm, tile.along_m);
    let (col, own_col) = direct::tile_start(&mut cx, spec.n, c.bn, tile.along_n);
    let local = cx.asm.local_index();
    let staged = if fill.staged { vec![Side::at(&mut cx, spec, &c, M, row, local)] } else { vec![] };
    let tiles = if fill.staged { slabs_blocks(&c, left_pattern.step) * c.buffers } else { 0 };
    let product = product(&mut cx, spec, &c, (staged, tiles), ([row, col], [own_row, own_col]));
    let sides = Sides::new(&mut cx, &product, left_pattern, right_pattern)
        .ok_or_else(|| shape("matmul: fragments are filled by elements that blocks along k do not hold".to_owned()))?;
    doubt::if_as_said(&mut cx, &product, fill, |cx| direct::k_tiles(cx, &product, &sides));
    Ok(kernel(cx, tile_grid(spec, c.bm, c.bn, 1)))
}

fn place(cx: &mut Emit<'_>, c: &Coop) -> Place {
    let warp = cx.asm.subgroup_index(c.subgroup);
    let (part, warp) = match c.parts() {
        1 => (cx.asm.u32(0), warp),
        _ => {
            let of_a_part = cx.asm.u32(c.warps.0 * c.warps.1);
            super::divide(cx, warp, of_a_part)
        }
    };
    let along_n = cx.asm.u32(c.warps.1);
    let (row, col) = super::divide(cx, warp, along_n);
    let scaled = |cx: &mut Emit<'_>, at, size| {
        let size = cx.asm.u32(size);
        cx.asm.imul(at, size)
    };
    Place { row: scaled(cx, row, c.bm / c.warps.0), col: scaled(cx, col, c.bn / c.warps.1), part }
}

/// The loop over k tiles. Carries the first block of the buffer in use, where there are two, and what was loaded ahead.
fn k_tiles(cx: &mut Emit<'_>, p: &Product<'_>) {
    let c = p.c;
    let total = cx.product(&p.spec.k);
    let (zero, step) = (cx.asm.u32(0), cx.asm.u32(c.bk));
    let size = cx.asm.u32(p.staged.iter().map(|s| side_blocks(&c, s.width, s.along_k)).sum());
    let mut initial = if c.buffers == 2 { vec![zero] } else { vec![] };
    let covered = matches!(cx.asm.const_bits(total), Some(n) if n % u64::from(c.bk) == 0);
    let tile_at = |k: Id| KRange { k, total, covered };
    if c.ahead {
        initial.extend(stage::load_some(cx, p, tile_at(zero)));
    }
    cx.loop_step((zero, total, step), &initial, |cx, offset, carried| {
        let (buffer, ahead) = if c.buffers == 2 { (carried[0], &carried[1..]) } else { (zero, carried) };
        let tile = if c.ahead { ahead.to_vec() } else { stage::load(cx, p, tile_at(offset)) };
        stage::put(cx, p, buffer, &tile, tile_at(offset));
        cx.asm.barrier();
        let mut next = if c.buffers == 2 { vec![cx.asm.isub(size, buffer)] } else { vec![] };
        if c.ahead {
            let offset = cx.asm.iadd(offset, step);
            next.extend(stage::load_some(cx, p, tile_at(offset)));
        }
        multiply(cx, p, buffer);
        if c.buffers == 1 {
            cx.asm.barrier();
        }
        next
    });
    if c.buffers == 2 {
        // What follows writes over the last tile.
        cx.asm.barrier();
    }
}

/// `sums += a · b` over one tile.
fn multiply(cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id) {
    let (along_m, along_n) = p.fragments();
    let (m, n, k) = p.c.frag;
    let a_ty = cx.asm.matrix_type(p.c.elem, (m, k), MatrixUse::A);
    let b_ty = cx.asm.matrix_type(p.c.elem, (k, n), MatrixUse::B);
    let mut sums: Vec<Id> = p.sums.iter().map(|&v| cx.asm.variable(v, p.sum_ty)).collect();
    for at_k in (0..p.c.bk).step_by(k as usize) {
        let a: Vec<Id> = (0..along_m).map(|i| fragment(cx, p, buffer, 0, (i * m, at_k), a_ty)).collect();
        for j in 0..along_n {
            let b = fragment(cx, p, buffer, 1, (j * n, at_k), b_ty);
            for (i, &a) in a.iter().enumerate() {
                let sum = &mut sums[i * along_n as usize + j as usize];
                *sum = cx.asm.matrix_mul_add(a, b, *sum);
            }
        }
    }
    for (&variable, sum) in p.sums.iter().zip(sums) {
        cx.asm.set_variable(variable, sum);
    }
}

/// A fragment of side 0 or 1 at a row or column of the subgroup's part, and at k, both multiples of [`GROUP`].
fn fragment(cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id, side: usize, (at, k): (u32, u32), ty: Id) -> Id {
    let s = &p.staged[side];
    let origin = if side == 0 { p.place.row } else { p.place.col };
    let offset = cx.asm.u32(at);
    let at = cx.asm.iadd(origin, offset);
    let pitch = pitch(if s.along_k { p.c.bk } else { s.width });
    let within = if s.along_k {
        let pitch = cx.asm.u32(pitch);
        let line = cx.asm.imul(at, pitch);
        let k = cx.asm.u32(k / GROUP);
        cx.asm.iadd(line, k)
    } else {
        let three = cx.asm.u32(GROUP.trailing_zeros());
        let at = cx.asm.shr(at, three);
        let line = cx.asm.u32(k * pitch);
        cx.asm.iadd(at, line)
    };
    let base = cx.asm.u32(s.base);
    let first = cx.asm.iadd(buffer, base);
    let first = cx.asm.iadd(first, within);
    // Lines along k are the rows of the left fragment and the columns of the right one.
    let rows = s.along_k == (side == 0);
    cx.asm.matrix_load(ty, p.blocks, Lines { first, pitch, rows })
}
