//! The fft template against the definition: lengths that are powers of two, products of small primes, and primes; both signs; real input.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::Exprs;
use jvc_kernels::host::Memory;
use jvc_kernels::reference;
use jvc_kernels::spec::{Access, Extent, FftSpec, KernelSpec, Store};

#[derive(Debug, Clone, Copy)]
struct Transform {
    batch: Extent,
    n: u32,
    inverse: bool,
    /// The imaginary part is zero.
    real: bool,
    /// Only the first half of the results is stored, as of a transform of real numbers.
    half: bool,
    dtype: DType,
    wg: u32,
}

impl Transform {
    fn of(n: u32, wg: u32) -> Transform {
        Transform { batch: Extent::Const(2), n, inverse: false, real: false, half: false, dtype: DType::F32, wg }
    }

    fn stored(&self) -> u32 {
        if self.half { self.n / 2 + 1 } else { self.n }
    }

    fn spec(&self) -> KernelSpec {
        let mut e = Exprs::new();
        let at = row_major(&mut e, &[(0, self.batch), (1, Extent::Const(self.n))]);
        let index = row_major(&mut e, &[(0, self.batch), (1, Extent::Const(self.stored()))]);
        let re = e.load(0, self.dtype, vec![at]);
        let im = if self.real { e.f32(0.0) } else { e.load(1, self.dtype, vec![at]) };
        let guard = self.half.then(|| {
            let (k, limit) = (e.axis(1), e.i32(self.stored() as i32));
            e.bin(jvc_kernels::expr::Binary::Lt, k, limit)
        });
        let results = [e.arg(0, Ty::F32), e.arg(1, Ty::F32)];
        let stores = (2..).zip(results).map(|(operand, value)| Store { operand, index, value, guard }).collect();
        let mut operands = vec![operand(self.dtype, Access::Read); 2];
        operands.extend(vec![operand(DType::F32, Access::Write); 2]);
        KernelSpec::Fft(FftSpec {
            interface: interface(operands, symbolic(&[self.batch])),
            exprs: e,
            batch: self.batch,
            n: self.n,
            inverse: self.inverse,
            re,
            im,
            stores,
            wg: self.wg,
        })
    }

    fn memory(&self, spec: &KernelSpec, symbols: &[u32]) -> Memory {
        let mut memory = Memory { operands: vec![], symbols: symbols.to_vec() };
        let batch = elements(&memory, &[self.batch]);
        let sizes = [self.n, self.n, self.stored(), self.stored()].map(|n| batch * n as usize);
        let operands = &spec.interface().operands;
        memory.operands = (1..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
        memory
    }

    fn check(&self, gpu: &jvc_runtime::Gpu, symbols: &[u32]) -> bool {
        let spec = self.spec();
        // Errors of the parts add up like random numbers; results themselves may cancel to nothing.
        let absolute = 1e-6 * f64::from(self.n).sqrt() * f64::from(self.n).log2().max(1.0);
        let tolerance = Tolerance { relative: 1e-6, absolute };
        check(gpu, &format!("{self:?} {symbols:?}"), &spec, &self.memory(&spec, symbols), tolerance)
    }
}

#[test]
fn powers_of_two_match_the_definition() {
    let Some(gpu) = gpu("fft of powers of two") else { return };
    for n in [1, 2, 4, 8, 16, 64, 512, 1024] {
        for inverse in [false, true] {
            for wg in [32, 256] {
                Transform { inverse, ..Transform::of(n, wg) }.check(&gpu, &[]);
            }
        }
    }
}

/// Radices 3, 5 and 7, mixed with twos, on any workgroup.
#[test]
fn products_of_small_primes_match_the_definition() {
    let Some(gpu) = gpu("fft of small primes") else { return };
    for n in [3, 5, 6, 7, 9, 12, 15, 20, 25, 35, 49, 60, 105, 210, 400, 480] {
        for (inverse, wg) in [(false, 40), (true, 64)] {
            Transform { inverse, ..Transform::of(n, wg) }.check(&gpu, &[]);
        }
    }
    Transform::of(960, 256).check(&gpu, &[]);
}

/// Prime factors above 7 have no butterfly.
#[test]
fn large_prime_factors_match_the_definition() {
    let Some(gpu) = gpu("fft of large primes") else { return };
    for n in [11, 13, 22, 97, 121, 143, 154, 286, 323] {
        for (inverse, wg) in [(false, 256), (true, 32)] {
            Transform { inverse, ..Transform::of(n, wg) }.check(&gpu, &[]);
        }
    }
    Transform::of(1009, 64).check(&gpu, &[]);
}

#[test]
fn real_input_and_half_of_the_results_match() {
    let Some(gpu) = gpu("real fft") else { return };
    for n in [1, 2, 3, 16, 30, 33, 97, 400] {
        for half in [false, true] {
            for inverse in [false, true] {
                assert!(Transform { real: true, half, inverse, ..Transform::of(n, 64) }.check(&gpu, &[]), "{n} fits");
            }
        }
    }
}

#[test]
fn symbolic_batches_and_narrow_inputs_match() {
    let Some(gpu) = gpu("fft batches") else { return };
    for n in [6, 16, 26] {
        for batch in [1, 5, 0] {
            Transform { batch: Extent::Sym(0), ..Transform::of(n, 32) }.check(&gpu, &[batch]);
        }
        for dtype in [DType::F16, DType::BF16] {
            Transform { dtype, ..Transform::of(n, 32) }.check(&gpu, &[]);
        }
    }
}

/// A wave of three turns has one line, at 3; its sign tells forward from inverse.
#[test]
fn the_reference_puts_a_wave_on_its_line() {
    for inverse in [false, true] {
        let transform = Transform { batch: Extent::Const(1), inverse, ..Transform::of(10, 32) };
        let spec = transform.spec();
        let mut memory = transform.memory(&spec, &[]);
        for j in 0..10 {
            let angle = std::f64::consts::TAU * 3.0 * j as f64 / 10.0;
            memory.operands[0].store(j, Value::F32(angle.cos() as f32));
            memory.operands[1].store(j, Value::F32(angle.sin() as f32));
        }
        reference(&spec, &mut memory);
        let line = if inverse { 7 } else { 3 };
        for k in 0..10 {
            let want = if k == line { 10.0 } else { 0.0 };
            let (re, im) = (memory.operands[2].load(k).to_f64(), memory.operands[3].load(k).to_f64());
            assert!((re - want).abs() < 1e-5 && im.abs() < 1e-5, "inverse={inverse} {k}: {re} {im}");
        }
    }
}
