//! The attention template: odd shapes, masks with fully hidden rows, symbols; keys from registers, blocks and register tiles.

use crate::spec::{interface, operand, row_major, symbolic};
use crate::support::{Random, Tolerance, check, elements, gpu};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::eval::Value;
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use jvc_kernels::host::Memory;
use jvc_kernels::reference;
use jvc_kernels::spec::{Access, AttentionSpec, AttentionStaging, Extent, KernelSpec, KeyParts, Store, TiledAttention};

const CLOSE: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-5 };

/// How queries and keys are shared out, and the workgroup.
pub(crate) type Staged = (AttentionStaging, u32);

const fn stream(block_keys: u32, wg: u32, lanes: u32) -> Staged {
    (AttentionStaging::Stream { block_keys, lanes }, wg)
}

const fn tiled(rows: u32, cols: u32, across: u32, wg: u32, unroll: u32) -> Staged {
    (AttentionStaging::Tiled(TiledAttention { rows, cols, across, unroll }), wg)
}

const STAGED: [Staged; 10] = [
    stream(0, 32, 1),
    stream(7, 64, 1),
    stream(16, 5, 1),
    stream(32, 64, 4),
    stream(16, 64, 16),
    stream(12, 6, 3),
    tiled(4, 4, 8, 64, 2),
    tiled(1, 2, 2, 8, 1),
    tiled(3, 4, 5, 15, 4),
    tiled(3, 1, 16, 64, 4),
];

/// Every `step`-th of them; the others are for the next problems.
fn some_staged(first: usize, step: usize) -> impl Iterator<Item = Staged> {
    STAGED.into_iter().skip(first % step).step_by(step)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mask {
    None,
    /// Keys after the query are hidden.
    Causal,
    /// A number per (query, key) is added; −∞ hides.
    Added,
    /// A truth value per (query, key); false hides.
    Shown,
}

#[derive(Clone)]
pub(crate) struct Problem {
    pub(crate) batch: Extent,
    pub(crate) queries: Extent,
    pub(crate) keys: Extent,
    pub(crate) qk_dim: u32,
    pub(crate) v_dim: u32,
    pub(crate) dtype: DType,
    pub(crate) mask: Mask,
    pub(crate) zero_masked_rows: bool,
    pub(crate) symbols: Vec<u32>,
}

/// Every third query sees nothing.
fn is_hidden(mask: Mask, query: usize, key: usize) -> bool {
    query % 3 == 1 || (mask == Mask::Added && (query + key).is_multiple_of(4))
}

/// What hides a key in a mask of this type.
fn hidden_by(dtype: DType) -> f64 {
    if dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY }
}

impl Problem {
    pub(crate) fn of([batch, queries, keys]: [u32; 3], (qk_dim, v_dim): (u32, u32)) -> Problem {
        let [batch, queries, keys] = [batch, queries, keys].map(Extent::Const);
        let (dtype, mask) = (DType::F32, Mask::None);
        Problem { batch, queries, keys, qk_dim, v_dim, dtype, mask, zero_masked_rows: true, symbols: vec![] }
    }

    fn score(&self, e: &mut Exprs) -> ExprId {
        let (dot, scale) = (e.arg(0, Ty::F32), e.f32(0.37));
        let scaled = e.bin(Binary::Mul, dot, scale);
        let hidden = e.f32(f32::NEG_INFINITY);
        let at = row_major(e, &[(1, self.queries), (2, self.keys)]);
        match self.mask {
            Mask::None => scaled,
            Mask::Causal => {
                let (query, key) = (e.axis(1), e.axis(2));
                let shown = e.bin(Binary::Le, key, query);
                e.select(shown, scaled, hidden)
            }
            Mask::Added => {
                let bias = e.load(4, DType::F32, vec![at]);
                e.bin(Binary::Add, scaled, bias)
            }
            Mask::Shown => {
                let shown = e.load(4, DType::Bool, vec![at]);
                e.select(shown, scaled, hidden)
            }
        }
    }

    /// Results go to `[query, batch, channel]`, doubled.
    pub(crate) fn spec(&self, (staging, wg): Staged) -> KernelSpec {
        let mut e = Exprs::new();
        let (qk, v) = (Extent::Const(self.qk_dim), Extent::Const(self.v_dim));
        let at = [
            row_major(&mut e, &[(0, self.batch), (1, self.queries), (3, qk)]),
            row_major(&mut e, &[(0, self.batch), (2, self.keys), (3, qk)]),
            row_major(&mut e, &[(0, self.batch), (2, self.keys), (3, v)]),
        ];
        let [query, key, value] = [0, 1, 2].map(|i| e.load(i, self.dtype, vec![at[usize::from(i)]]));
        let score = self.score(&mut e);
        let (result, two) = (e.arg(0, Ty::F32), e.f32(2.0));
        let stored = e.bin(Binary::Mul, result, two);
        let parts = if let AttentionStaging::Parts(p) = staging { p.count } else { 0 };
        let index = match parts {
            0 => row_major(&mut e, &[(1, self.queries), (0, self.batch), (3, v)]),
            n => {
                let v = Extent::Const(self.v_dim + 1);
                row_major(&mut e, &[(1, self.queries), (0, self.batch), (2, Extent::Const(n)), (3, v)])
            }
        };
        let mut operands = vec![operand(self.dtype, Access::Read); 3];
        operands.push(operand(self.dtype, Access::Write));
        match self.mask {
            Mask::None | Mask::Causal => {}
            Mask::Added => operands.push(operand(DType::F32, Access::Read)),
            Mask::Shown => operands.push(operand(DType::Bool, Access::Read)),
        }
        KernelSpec::Attention(AttentionSpec {
            interface: interface(operands, symbolic(&[self.batch, self.queries, self.keys])),
            exprs: e,
            batch: self.batch,
            queries: self.queries,
            keys: self.keys,
            qk_dim: self.qk_dim,
            v_dim: self.v_dim,
            query,
            key,
            value,
            score,
            causal: self.mask == Mask::Causal,
            zero_masked_rows: self.zero_masked_rows,
            stores: vec![Store { operand: 3, index, value: stored, guard: None }],
            staging,
            wg,
        })
    }

    pub(crate) fn memory(&self, spec: &KernelSpec) -> Memory {
        let mut memory = Memory { operands: vec![], symbols: self.symbols.clone() };
        let (batch, queries, keys) = (self.batch, self.queries, self.keys);
        let (qk, v) = (self.qk_dim as usize, self.v_dim as usize);
        let of_result = match spec {
            KernelSpec::Attention(AttentionSpec { staging: AttentionStaging::Parts(p), .. }) => {
                p.count as usize * (v + 1)
            }
            _ => v,
        };
        let sizes = [
            elements(&memory, &[batch, queries]) * qk,
            elements(&memory, &[batch, keys]) * qk,
            elements(&memory, &[batch, keys]) * v,
            elements(&memory, &[batch, queries]) * of_result,
            elements(&memory, &[queries, keys]),
        ];
        let operands = &spec.interface().operands;
        memory.operands = (1..).zip(operands.iter().zip(sizes)).map(|(s, (o, n))| Random(s).buffer(o, n)).collect();
        let n_keys = memory.extent(keys) as usize;
        for mask in memory.operands.iter_mut().skip(4) {
            for at in (0..mask.len()).filter(|at| is_hidden(self.mask, at / n_keys, at % n_keys)) {
                mask.store(at, Value::from_f64(mask.dtype.ty(), hidden_by(mask.dtype)));
            }
        }
        memory
    }

    fn check(&self, gpu: &jvc_runtime::Gpu, staged: Staged) {
        self.check_staged(gpu, staged, CLOSE);
    }

    /// Whether the device can run it; panics where the result is wrong.
    pub(crate) fn check_staged(&self, gpu: &jvc_runtime::Gpu, staging: Staged, tolerance: Tolerance) -> bool {
        let spec = self.spec(staging);
        let name = format!(
            "attention {:?} {}/{} {} {:?} zero={} {staging:?}",
            spec.extents(),
            self.qk_dim,
            self.v_dim,
            self.dtype,
            self.mask,
            self.zero_masked_rows
        );
        check(gpu, &name, &spec, &self.memory(&spec), tolerance)
    }
}

#[test]
fn odd_shapes_match_with_and_without_blocks() {
    let Some(gpu) = gpu("attention shapes") else { return };
    for (i, (sizes, dims)) in [
        ([1, 1, 1], (1, 1)),
        ([2, 3, 5], (4, 4)),
        ([3, 33, 17], (5, 3)),
        ([1, 7, 64], (8, 9)),
        ([2, 65, 31], (33, 2)),
        ([0, 4, 4], (2, 2)),
        ([2, 0, 4], (2, 2)),
    ]
    .into_iter()
    .enumerate()
    {
        some_staged(i, 2).for_each(|staged| Problem::of(sizes, dims).check(&gpu, staged));
    }
}

#[test]
fn hidden_keys_do_not_count_and_fully_hidden_rows_are_zero_or_nan() {
    let Some(gpu) = gpu("attention masks") else { return };
    for (i, mask) in [Mask::Causal, Mask::Added, Mask::Shown].into_iter().enumerate() {
        for zero_masked_rows in [false, true] {
            for staged in some_staged(i + usize::from(zero_masked_rows), 2) {
                let plain = Problem::of([2, 19, 23], (6, 5));
                Problem { mask, zero_masked_rows, ..plain }.check(&gpu, staged);
            }
        }
    }
}

#[test]
fn without_keys_a_row_is_as_if_fully_hidden() {
    let Some(gpu) = gpu("attention without keys") else { return };
    for zero_masked_rows in [false, true] {
        for staged in STAGED {
            Problem { zero_masked_rows, ..Problem::of([2, 3, 0], (4, 3)) }.check(&gpu, staged);
        }
    }
}

#[test]
fn symbolic_sizes_match_from_one_module() {
    let Some(gpu) = gpu("attention symbols") else { return };
    let (c, s) = (Extent::Const, Extent::Sym);
    for (i, [batch, queries, keys]) in
        [[s(0), s(1), s(2)], [c(2), s(1), c(9)], [c(1), c(4), s(2)]].into_iter().enumerate()
    {
        for symbols in [[1, 1, 1], [3, 34, 29], [2, 5, 0], [0, 5, 3], [2, 0, 3]] {
            for staged in some_staged(i, 3) {
                let (mask, symbols) = (Mask::Shown, symbols.to_vec());
                let plain = Problem::of([1, 1, 1], (7, 4));
                Problem { batch, queries, keys, mask, symbols, ..plain }.check(&gpu, staged);
            }
        }
    }
}

#[test]
fn narrow_types_match_where_the_device_has_them() {
    let Some(gpu) = gpu("narrow attention") else { return };
    for dtype in [DType::F16, DType::BF16] {
        for staged in STAGED {
            Problem { dtype, mask: Mask::Causal, ..Problem::of([2, 13, 21], (8, 6)) }.check(&gpu, staged);
        }
    }
}

const fn parts(count: u32, len: u32, wg: u32) -> Staged {
    (AttentionStaging::Parts(KeyParts { count, len }), wg)
}

/// Whole blocks and single channels, masks that hide a part as a whole, parts without keys, more keys than invocations.
#[test]
fn parts_of_the_keys_give_their_means_and_heights() {
    let Some(gpu) = gpu("attention by parts") else { return };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (dims, staged) in [
            ((8, 16), parts(3, 16, 32)),
            ((5, 3), parts(2, 30, 8)),
            ((64, 64), parts(1, 64, 64)),
            ((4, 8), parts(5, 9, 16)),
            ((2, 33), parts(4, 10, 64)),
        ] {
            for mask in [Mask::None, Mask::Added, Mask::Shown] {
                Problem { dtype, mask, ..Problem::of([2, 3, 37], dims) }.check(&gpu, staged);
            }
        }
    }
    let (c, s) = (Extent::Const, Extent::Sym);
    for symbols in [[3, 1, 29], [1, 2, 0], [2, 1, 40], [0, 1, 5]] {
        let plain = Problem::of([1, 1, 1], (8, 8));
        let symbolic = Problem { batch: s(0), queries: s(1), keys: s(2), symbols: symbols.to_vec(), ..plain };
        Problem { mask: Mask::Shown, ..symbolic.clone() }.check(&gpu, parts(5, 8, 16));
        Problem { queries: c(2), ..symbolic }.check(&gpu, parts(2, 20, 32));
    }
}

/// Scores far beyond what exp takes: only the running maximum keeps them finite.
#[test]
fn huge_scores_stay_finite() {
    let Some(gpu) = gpu("huge scores") else { return };
    for staged in STAGED {
        let problem = Problem { mask: Mask::Added, ..Problem::of([1, 9, 40], (2, 2)) };
        let spec = problem.spec(staged);
        let mut memory = problem.memory(&spec);
        for at in 0..memory.operands[4].len() {
            // Rising and falling along the keys, so that the maximum moves late in some rows.
            let (query, key) = (at / 40, at % 40);
            let bias = if query % 2 == 0 { key as f32 * 90.0 } else { -90.0 * key as f32 };
            memory.operands[4].store(at, Value::F32(bias));
        }
        check(&gpu, &format!("huge scores {staged:?}"), &spec, &memory, CLOSE);
    }
}

#[test]
fn the_reference_averages_where_all_scores_are_equal() {
    let problem = Problem::of([1, 2, 4], (3, 2));
    let spec = problem.spec(STAGED[0]);
    let mut memory = problem.memory(&spec);
    for at in 0..memory.operands[0].len() {
        memory.operands[0].store(at, Value::F32(0.0));
    }
    let values: Vec<f64> = (0..8).map(|at| memory.operands[2].load(at).to_f64()).collect();
    reference(&spec, &mut memory);
    for query in 0..2 {
        for e in 0..2 {
            // The store doubles the mean of four values.
            let want = (values[e] + values[2 + e] + values[4 + e] + values[6 + e]) / 2.0;
            let have = memory.operands[3].load(query * 2 + e).to_f64();
            assert!((want - have).abs() < 1e-6, "query {query} channel {e}: {have}, {want} is right");
        }
    }
}
