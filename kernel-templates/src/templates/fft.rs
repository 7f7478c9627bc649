//! Discrete Fourier transforms in shared memory: Stockham passes, one per factor of the length, one workgroup per transform.
//!
//! ```text
//! parallel for b (workgroup):
//!     x[j] = (re(b, j), im(b, j))
//!     s = 1
//!     for each factor r of n:                     butterflies j in 0..n/r
//!         v[q] = x[j + q·n/r]·exp(±2πi·q·(j mod s) / (r·s))
//!         V = DFT_r(v)
//!         barrier; x[(j / s)·s·r + j mod s + q·s] = V[q]; barrier
//!         s = s·r
//!     stores
//! ```
//!
//! Values wait in registers between the reads and the writes of a pass, so one array of n complex numbers suffices. Small factors are butterflies
//! with constant roots; a large prime factor is summed output by output. Traffic: input and output once.

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::eval::{Tape, Value};
use crate::expr::Unary;
use crate::host::{Memory, Point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{Extent, FftSpec, Grid, GridFactor, Kernel, Target};
use crate::templates::kernel;
use std::f64::consts::TAU;

/// Factors up to this one are butterflies in registers.
const MAX_BUTTERFLY: u32 = 8;
/// Complex values that one invocation holds during a pass.
const MAX_VALUES: u32 = 64;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &FftSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    let per_invocation = spec.n.div_ceil(spec.wg.max(1));
    if per_invocation > MAX_VALUES {
        return Err(Reject::Shape { reason: format!("a transform of {} in workgroups of {}", spec.n, spec.wg) });
    }
    let need = spec.n.saturating_mul(8);
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Factors of a length in the order of the passes: fours first, then small primes, then what is left.
pub fn factors(mut n: u32) -> Vec<u32> {
    let mut out = vec![];
    for r in [4, 2, 3, 5, 7] {
        while n.is_multiple_of(r) {
            out.push(r);
            n /= r;
        }
    }
    let mut p = 11;
    while n > 1 {
        if p * p > n {
            p = n;
        }
        while n.is_multiple_of(p) {
            out.push(p);
            n /= p;
        }
        p += 2;
    }
    out
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &FftSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    let axes = [spec.batch, Extent::Const(spec.n)];
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &axes, target, spec.wg);
    cx.load_symbols(&[spec.batch]);
    let batch = cx.asm.workgroup_index();
    let n_batch = cx.extent(spec.batch);
    let beyond = cx.asm.ule(n_batch, batch);
    cx.asm.return_if(beyond);
    cx.bind_axis(0, batch);
    let line = Line { spec, re: cx.asm.shared_array(St::F32, spec.n), im: cx.asm.shared_array(St::F32, spec.n) };
    line.load(&mut cx);
    let mut s = 1;
    for r in factors(spec.n) {
        if r <= MAX_BUTTERFLY {
            line.butterflies(&mut cx, r, s)
        } else {
            line.sums(&mut cx, r, s)
        }
        s *= r;
    }
    line.store(&mut cx);
    let grid = GridFactor { extents: vec![spec.batch], divisor: 1 };
    Ok(kernel(cx, Grid::linear(vec![grid])))
}

fn check(spec: &FftSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.n == 0 {
        return Err(shape(format!("fft: wg={} n={}", spec.wg, spec.n)));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&[spec.batch])?;
    let scope = Scope { what: "fft input", axes: &[0, 1], args: &[] };
    check.value(scope, spec.re, Ty::F32)?;
    check.value(scope, spec.im, Ty::F32)?;
    check.stores(Scope { what: "fft", axes: &[0, 1], args: &[Ty::F32, Ty::F32] }, &spec.stores)
}

/// A complex number in registers.
#[derive(Clone, Copy)]
struct Complex {
    re: Id,
    im: Id,
}

/// One transform in shared memory.
struct Line<'a> {
    spec: &'a FftSpec,
    re: Shared,
    im: Shared,
}

impl<'a> Line<'a> {
    fn load(&self, cx: &mut Emit<'a>) {
        self.each_element(cx, |cx, at| {
            cx.bind_axis(1, at);
            let (re, im) = (cx.eval(self.spec.re), cx.eval(self.spec.im));
            self.put(cx, at, Complex { re, im });
        });
        cx.asm.barrier();
    }

    fn store(&self, cx: &mut Emit<'a>) {
        self.each_element(cx, |cx, at| {
            let v = self.get(cx, at);
            cx.bind_axis(1, at);
            cx.bind_arg(0, v.re);
            cx.bind_arg(1, v.im);
            cx.stores(&self.spec.stores);
        });
    }

    fn each_element(&self, cx: &mut Emit<'a>, mut body: impl FnMut(&mut Emit<'a>, Id)) {
        let local = cx.asm.local_index();
        let (n, wg) = (cx.asm.u32(self.spec.n), cx.asm.u32(self.spec.wg));
        cx.loop_step((local, n, wg), &[], |cx, at, _| {
            body(cx, at);
            vec![]
        });
    }

    fn get(&self, cx: &mut Emit<'a>, at: Id) -> Complex {
        Complex { re: cx.asm.load_shared(self.re, at), im: cx.asm.load_shared(self.im, at) }
    }

    fn put(&self, cx: &mut Emit<'a>, at: Id, v: Complex) {
        cx.asm.store_shared(self.re, at, v.re);
        cx.asm.store_shared(self.im, at, v.im);
    }

    fn sign(&self) -> f64 {
        if self.spec.inverse { 1.0 } else { -1.0 }
    }

    /// Work items `0..count`, shared out over the workgroup: number and whether it exists, in the order of this invocation.
    fn items(&self, cx: &mut Emit<'a>, count: u32) -> Vec<(Id, Id)> {
        let local = cx.asm.local_index();
        let limit = cx.asm.u32(count);
        (0..count.div_ceil(self.spec.wg))
            .map(|slot| {
                let first = cx.asm.u32(slot * self.spec.wg);
                let j = cx.asm.iadd(first, local);
                (j, cx.asm.ult(j, limit))
            })
            .collect()
    }

    /// A pass of radix-`r` butterflies; `s` is the product of the factors before it.
    fn butterflies(&self, cx: &mut Emit<'a>, r: u32, s: u32) {
        let count = self.spec.n / r;
        let items = self.items(cx, count);
        let zero = cx.asm.f32(0.0);
        let held: Vec<Vec<Id>> = items
            .iter()
            .map(|&(j, exists)| {
                let none = vec![zero; 2 * r as usize];
                cx.if_then(exists, &none, |cx| flat(&self.butterfly(cx, j, r, s)))
            })
            .collect();
        cx.asm.barrier();
        for (&(j, exists), values) in items.iter().zip(&held) {
            cx.if_then(exists, &[], |cx| {
                let (block, within) = self.split(cx, j, s);
                let stride = cx.asm.u32(s * r);
                let start = cx.asm.imul(block, stride);
                let start = cx.asm.iadd(start, within);
                for (q, pair) in values.chunks_exact(2).enumerate() {
                    let offset = cx.asm.u32(q as u32 * s);
                    let at = cx.asm.iadd(start, offset);
                    self.put(cx, at, Complex { re: pair[0], im: pair[1] });
                }
                vec![]
            });
        }
        cx.asm.barrier();
    }

    /// `(j / s, j mod s)`.
    fn split(&self, cx: &mut Emit<'a>, j: Id, s: u32) -> (Id, Id) {
        let block = cx.quotient_by(j, s);
        let size = cx.asm.u32(s);
        let whole = cx.asm.imul(block, size);
        (block, cx.asm.isub(j, whole))
    }

    fn butterfly(&self, cx: &mut Emit<'a>, j: Id, r: u32, s: u32) -> Vec<Complex> {
        let (_, within) = self.split(cx, j, s);
        let mut v: Vec<Complex> = vec![];
        for q in 0..r {
            let offset = cx.asm.u32(q * (self.spec.n / r));
            let at = cx.asm.iadd(j, offset);
            let x = self.get(cx, at);
            v.push(if q == 0 || s == 1 { x } else { self.twiddle(cx, x, within, q, r * s) });
        }
        (0..r).map(|k| self.combine(cx, &v, k)).collect()
    }

    /// `x·exp(±2πi·q·within / period)`.
    fn twiddle(&self, cx: &mut Emit<'a>, x: Complex, within: Id, q: u32, period: u32) -> Complex {
        let q = cx.asm.u32(q);
        let turns = cx.asm.imul(within, q);
        let root = self.root(cx, turns, period);
        multiply(cx, x, root)
    }

    /// `exp(±2πi·turns / period)` for 0 ≤ turns < period.
    fn root(&self, cx: &mut Emit<'a>, turns: Id, period: u32) -> Complex {
        let turns = cx.asm.uint_to_float(St::F32, turns);
        let step = cx.asm.f32((self.sign() * TAU / f64::from(period)) as f32);
        let angle = cx.asm.fmul(turns, step);
        let [re, im] = [Unary::Cos, Unary::Sin].map(|op| cx.asm.elementary(op, angle).expect("a function of f32"));
        Complex { re, im }
    }

    /// `Σ_q v[q]·exp(±2πi·q·k / r)` with constant roots.
    fn combine(&self, cx: &mut Emit<'a>, v: &[Complex], k: u32) -> Complex {
        let r = v.len() as u32;
        let mut sum = v[0];
        for (q, &x) in v.iter().enumerate().skip(1) {
            let turn = (q as u32 * k) % r;
            sum = self.add_rotated(cx, sum, x, turn, r);
        }
        sum
    }

    /// `sum + x·exp(±2πi·turn / r)`; quarter turns are exact and cost no multiplication.
    fn add_rotated(&self, cx: &mut Emit<'a>, sum: Complex, x: Complex, turn: u32, r: u32) -> Complex {
        let flips = |cx: &mut Emit<'a>, re, im| Complex { re: cx.asm.fadd(sum.re, re), im: cx.asm.fadd(sum.im, im) };
        let quarter = (4 * turn).is_multiple_of(r);
        if quarter {
            let (minus_re, minus_im) = (cx.asm.fneg(x.re), cx.asm.fneg(x.im));
            // Number of quarter turns in the direction of the transform, counted counter-clockwise.
            let n = 4 * turn / r;
            let n = if self.spec.inverse { n } else { (4 - n) % 4 };
            let (re, im) = [(x.re, x.im), (minus_im, x.re), (minus_re, minus_im), (x.im, minus_re)][n as usize];
            return flips(cx, re, im);
        }
        let angle = self.sign() * TAU * f64::from(turn) / f64::from(r);
        let root = Complex { re: cx.asm.f32(angle.cos() as f32), im: cx.asm.f32(angle.sin() as f32) };
        let turned = multiply(cx, x, root);
        flips(cx, turned.re, turned.im)
    }

    /// A pass of a large prime factor: each output is a sum of `r` products.
    fn sums(&self, cx: &mut Emit<'a>, r: u32, s: u32) {
        let items = self.items(cx, self.spec.n);
        let zero = cx.asm.f32(0.0);
        let held: Vec<Vec<Id>> =
            items.iter().map(|&(o, exists)| cx.if_then(exists, &[zero, zero], |cx| self.sum(cx, o, r, s))).collect();
        cx.asm.barrier();
        for (&(o, exists), v) in items.iter().zip(&held) {
            cx.if_then(exists, &[], |cx| {
                self.put(cx, o, Complex { re: v[0], im: v[1] });
                vec![]
            });
        }
        cx.asm.barrier();
    }

    /// Output `o = block·s·r + k·s + within`: `Σ_q x[j + q·n/r]·exp(±2πi·q·(k·s + within) / (r·s))`, `j = block·s + within`.
    fn sum(&self, cx: &mut Emit<'a>, o: Id, r: u32, s: u32) -> Vec<Id> {
        let period = r * s;
        let (block, phase) = self.split(cx, o, period);
        let (_, within) = self.split(cx, phase, s);
        let size = cx.asm.u32(s);
        let first = cx.asm.imul(block, size);
        let j = cx.asm.iadd(first, within);
        let (zero, count) = (cx.asm.f32(0.0), cx.asm.u32(r));
        cx.loop_n(count, &[zero, zero], |cx, q, acc| {
            let stride = cx.asm.u32(self.spec.n / r);
            let offset = cx.asm.imul(q, stride);
            let at = cx.asm.iadd(j, offset);
            let x = self.get(cx, at);
            let turns = cx.asm.imul(q, phase);
            let (_, turns) = self.split(cx, turns, period);
            let root = self.root(cx, turns, period);
            let v = multiply(cx, x, root);
            vec![cx.asm.fadd(acc[0], v.re), cx.asm.fadd(acc[1], v.im)]
        })
    }
}

fn flat(values: &[Complex]) -> Vec<Id> {
    values.iter().flat_map(|v| [v.re, v.im]).collect()
}

fn multiply(cx: &mut Emit<'_>, a: Complex, b: Complex) -> Complex {
    let (rr, ii) = (cx.asm.fmul(a.re, b.re), cx.asm.fmul(a.im, b.im));
    let (ri, ir) = (cx.asm.fmul(a.re, b.im), cx.asm.fmul(a.im, b.re));
    Complex { re: cx.asm.fsub(rr, ii), im: cx.asm.fadd(ri, ir) }
}

/// The plainest form: the definition of the transform, n² products in f64.
pub(crate) fn reference(spec: &FftSpec, memory: &mut Memory) {
    let (batch, n) = (memory.extent(spec.batch) as i32, spec.n as usize);
    let input = Tape::new(&spec.exprs, &[spec.re, spec.im]);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let (mut reader, mut writer) = (input.runner(), stores.runner());
    let sign = if spec.inverse { 1.0 } else { -1.0 };
    let roots: Vec<(f64, f64)> = (0..n).map(|turn| (sign * TAU * turn as f64 / n as f64).sin_cos()).collect();
    for b in 0..batch {
        let mut x = vec![];
        for j in 0..n {
            reader.run(&Point { memory, axes: &[b, j as i32], args: &[] });
            x.push((reader.get(0).to_f64(), reader.get(1).to_f64()));
        }
        for k in 0..n {
            let (mut re, mut im) = (0.0, 0.0);
            for (j, (x_re, x_im)) in x.iter().enumerate() {
                let (sin, cos) = roots[j * k % n];
                re += x_re * cos - x_im * sin;
                im += x_re * sin + x_im * cos;
            }
            stores.run(&mut writer, memory, &[b, k as i32], &[Value::F32(re as f32), Value::F32(im as f32)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::factors;

    #[test]
    fn factors_multiply_to_the_length() {
        for n in [1, 2, 20, 97, 121, 400, 480, 960, 1009, 1024, 4096] {
            assert_eq!(factors(n).iter().product::<u32>(), n, "factors of {n}");
        }
        assert_eq!(factors(960), [4, 4, 4, 3, 5]);
    }
}
