//! In-place operators made functional: which names share memory, and what a write through one of them means for the others.
//!
//! Names that share memory form a [`Group`], which holds the value of its *base* and counts the writes. A name is a chain of IR movement
//! operations from the base. A write through a name computes the new base, by inverting the chain link by link; a later read of any
//! other name of the group replays its chain on the new base. So the graph stays in SSA form and nothing is copied that is not written.

use super::cx::{Built, Cx};
use super::{Val, unsupported_attribute};
use crate::ir::op::Body;
use crate::ir::{Dim, Op, Shape, TensorType, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::Expr;

/// Where the memory of a group comes from, when the caller can see writes to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Home {
    /// Parameter, buffer or constant: name in the checkpoint, value of its node.
    Weight(String, ValueId),
    /// User input: position.
    Input(u32),
}

/// Tensors that share memory.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) base: Val,
    pub(super) version: u32,
    pub(super) home: Option<Home>,
}

/// A name: a view of the base of its group.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    pub(super) group: usize,
    links: Vec<Link>,
    pub(super) value: Val,
    version: u32,
}

/// One step from a base to a view.
#[derive(Debug, Clone, PartialEq)]
enum Link {
    /// A movement operation and the shape that it gives, on both parts of a complex tensor.
    Move(Op, Shape),
    /// Complex → real with a last dimension of 2.
    AsReal,
    /// The inverse.
    AsComplex,
    /// Real part.
    Real,
    /// Imaginary part.
    Imag,
    /// A view that has no chain: reading it again or writing through it is refused, naming the operator.
    Opaque(String),
}

impl Cx {
    /// A new group for memory that is not shared yet.
    pub(super) fn track_new(&mut self, value: Val, home: Option<Home>) -> Tracked {
        self.groups.push(Group { base: value.clone(), version: 0, home });
        Tracked { group: self.groups.len() - 1, links: vec![], value, version: 0 }
    }

    /// A view of a tracked tensor: `from` is what the operator read of it, `to` what it gave.
    pub(super) fn track_view(&mut self, base: &Tracked, from: &Val, to: Val, target: &str) -> Tracked {
        let mut links = base.links.clone();
        match self.links_between(from, &to, target) {
            Some(more) => links.extend(more),
            None => links.push(Link::Opaque(target.to_string())),
        }
        Tracked { group: base.group, links, value: to, version: self.groups[base.group].version }
    }

    fn links_between(&self, from: &Val, to: &Val, target: &str) -> Option<Vec<Link>> {
        match (from, to) {
            (Val::Tensor(a), Val::Tensor(b)) | (Val::Complex { re: a, .. }, Val::Complex { re: b, .. }) => {
                self.movement_path(*a, *b)
            }
            (Val::Complex { .. }, Val::Tensor(_)) => Some(vec![match target {
                "aten.view_as_real.default" => Link::AsReal,
                "aten.real.default" => Link::Real,
                "aten.imag.default" => Link::Imag,
                _ => return None,
            }]),
            (Val::Tensor(_), Val::Complex { .. }) if target == "aten.view_as_complex.default" => {
                Some(vec![Link::AsComplex])
            }
            _ => None,
        }
    }

    /// The movement operations that lead from one value to another, if they are all that lies between.
    fn movement_path(&self, from: ValueId, to: ValueId) -> Option<Vec<Link>> {
        let mut path = vec![];
        let mut at = to;
        while at != from {
            let node = self.b.graph.def(at);
            if node.inputs.len() != 1 || !is_movement(&node.op) {
                return None;
            }
            path.push(Link::Move(node.op.clone(), self.shape(at)));
            at = node.inputs[0];
        }
        path.reverse();
        Some(path)
    }

    /// The name with its present value.
    pub(super) fn refresh(&mut self, t: Tracked) -> Result<Tracked, Diagnostic> {
        let group = &self.groups[t.group];
        let version = group.version;
        if version == t.version {
            return Ok(t);
        }
        let mut value = group.base.clone();
        for link in &t.links {
            value = self.forward(link, &value)?;
        }
        Ok(Tracked { value, version, ..t })
    }

    /// Writes `new`, of the view's shape and type, through a view.
    pub(super) fn write_tracked(&mut self, t: &Tracked, new: Val) -> Result<Tracked, Diagnostic> {
        let mut olds = vec![self.groups[t.group].base.clone()];
        for link in t.links.iter().take(t.links.len().saturating_sub(1)) {
            let next = self.forward(link, &olds[olds.len() - 1])?;
            olds.push(next);
        }
        let mut v = new.clone();
        for (link, old) in t.links.iter().zip(&olds).rev() {
            v = self.backward(link, old, &v)?;
        }
        let group = &mut self.groups[t.group];
        group.base = v;
        group.version += 1;
        Ok(Tracked { value: new, version: group.version, ..t.clone() })
    }

    fn forward(&mut self, link: &Link, v: &Val) -> Result<Val, Diagnostic> {
        match (link, v) {
            (Link::Move(op, shape), v) => self.each(v, |cx, x| cx.move_again(op, shape, x)),
            (Link::AsReal, Val::Complex { re, im }) => Ok(Val::Tensor(self.interleave(*re, *im)?)),
            (Link::AsComplex, Val::Tensor(x)) => self.deinterleave(*x),
            (Link::Real, Val::Complex { re, .. }) => Ok(Val::Tensor(*re)),
            (Link::Imag, Val::Complex { im, .. }) => Ok(Val::Tensor(*im)),
            (Link::Opaque(target), _) => Err(opaque(target)),
            _ => Err(opaque("a complex view")),
        }
    }

    /// The tensor before `link`, whose value was `old`, after its view has become `new`.
    fn backward(&mut self, link: &Link, old: &Val, new: &Val) -> Result<Val, Diagnostic> {
        match (link, old, new) {
            (Link::Move(op, _), Val::Tensor(o), Val::Tensor(n)) => Ok(Val::Tensor(self.write_through(op, *o, *n)?)),
            (Link::Move(op, _), Val::Complex { re, im }, Val::Complex { re: nr, im: ni }) => {
                Ok(Val::Complex { re: self.write_through(op, *re, *nr)?, im: self.write_through(op, *im, *ni)? })
            }
            (Link::AsReal, _, Val::Tensor(n)) => self.deinterleave(*n),
            (Link::AsComplex, _, Val::Complex { re, im }) => Ok(Val::Tensor(self.interleave(*re, *im)?)),
            (Link::Real, Val::Complex { im, .. }, Val::Tensor(n)) => Ok(Val::Complex { re: *n, im: *im }),
            (Link::Imag, Val::Complex { re, .. }, Val::Tensor(n)) => Ok(Val::Complex { re: *re, im: *n }),
            (Link::Opaque(target), ..) => Err(opaque(target)),
            _ => Err(opaque("a complex view")),
        }
    }

    /// The same movement of another value; a `Compute` is retyped, since it only moves elements.
    fn move_again(&mut self, op: &Op, shape: &Shape, x: ValueId) -> Built {
        let Op::Compute(body) = op else { return self.add1(op.clone(), vec![x]) };
        let dtype = self.tensor_dtype(x);
        let Expr::Load { index, .. } = body.exprs.get(body.root) else {
            return Err(unsupported_attribute("aliased-write", "a view that computes"));
        };
        let mut exprs = body.exprs.clone();
        let root = exprs.load(0, dtype, index.clone());
        let body = Body { exprs, root, syms: body.syms.clone() };
        Ok(self.b.compute(body, vec![x], TensorType::new(dtype, shape.clone()))?)
    }

    fn write_through(&mut self, op: &Op, old: ValueId, new: ValueId) -> Result<ValueId, Diagnostic> {
        let shape = self.shape(old);
        match op {
            Op::Reshape(_) => self.reshape(new, shape),
            Op::Permute(perm) => {
                let mut inverse = vec![0; perm.len()];
                for (i, &p) in perm.iter().enumerate() {
                    inverse[p] = i;
                }
                self.permute(new, &inverse)
            }
            Op::Slice { dim, start, len, step } => self.overwrite_slice(old, new, *dim, start, len, *step),
            Op::Broadcast(to) if *to == shape => Ok(new),
            Op::Broadcast(_) => {
                Err(unsupported_attribute("aliased-write", "an in-place write to an expanded tensor is not supported"))
            }
            _ => self.scatter_through(op, old, new),
        }
    }

    /// `old` with the slice replaced by `new`.
    pub(crate) fn overwrite_slice(
        &mut self,
        old: ValueId,
        new: ValueId,
        dim: usize,
        start: &Dim,
        len: &Dim,
        step: i64,
    ) -> Result<ValueId, Diagnostic> {
        let ty = self.ty(old).clone();
        if start.is(0) && step == 1 && *len == ty.shape[dim] {
            return Ok(new);
        }
        self.compute(ty.shape, ty.dtype, &[old, new], |b, axes| {
            let first = b.dim(start);
            let from_start = b.sub(axes[dim], first);
            let (at, inside) = if step == 1 {
                (from_start, b.in_range(from_start, len))
            } else {
                let by = b.int(step);
                let at = b.floor_div(from_start, by);
                let back = b.mul(at, by);
                let (hit, inside) = (b.eq(back, from_start), b.in_range(at, len));
                let inside = b.and(hit, inside);
                (at, inside)
            };
            let mut index = axes.to_vec();
            let kept = b.load(0, &index);
            index[dim] = b.clamp_index(at, len);
            let written = b.load(1, &index);
            b.select(inside, written, kept)
        })
    }

    /// The general inverse of a view that names each base element at most once: the positions of the view's elements in the base, by
    /// the same movement of the base's own positions, address a scatter.
    fn scatter_through(&mut self, op: &Op, old: ValueId, new: ValueId) -> Result<ValueId, Diagnostic> {
        let shape = self.shape(old);
        let count = self.ty(old).n_elems();
        let positions = self.iota(count.clone())?;
        let positions = self.reshape(positions, shape.clone())?;
        let picked = self.move_again(op, &self.shape(new), positions)?;
        let n = self.ty(new).n_elems();
        let (picked, src) = (self.reshape(picked, vec![n.clone()])?, self.reshape(new, vec![n])?);
        let flat = self.reshape(old, vec![count])?;
        let mode = jvc_kernels::spec::ScatterMode::Set;
        let out = self.add1(Op::Scatter { dims: vec![0], mode }, vec![flat, picked, src])?;
        self.reshape(out, shape)
    }
}

/// Operations that only say where elements lie: their chain can be replayed and inverted.
fn is_movement(op: &Op) -> bool {
    match op {
        Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) => true,
        Op::Compute(body) => matches!(body.exprs.get(body.root), Expr::Load { .. }),
        _ => false,
    }
}

fn opaque(target: &str) -> Diagnostic {
    unsupported_attribute(
        "aliased-write",
        format!("an in-place write to memory that is also seen through {target} is not supported"),
    )
}
