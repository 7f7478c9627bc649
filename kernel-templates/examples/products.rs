//! Checks and times matrix products on the GPU at hand: cooperative kernels against the tiled f32 kernel, and that against a plain one.
//!
//! `products [f16|bf16|f32] [--brief | --check] [--cold] [--spirv DIR] [SHAPE …] [--tiles TILE …]`: shapes default to those of the models, tiles to a fair choice.
//! Prints per shape and tile: pipeline creation, error, time per product with a barrier after each and after every fourth, and the rates; and how
//! the device spreads fragments. `--brief` repeats less, `--check` times nothing. Exit code 1 when a result is wrong.
//!
//! Shapes: `MxNxK` is C[M,N] = A[M,K]·B[N,K]ᵀ, all three in the type, sums in f32; `tMxNxK` has B[K,N] instead. `convCxOxS` is a 3×3 convolution
//! of C channels to O over S×S, NCHW; `pconvCxOxS` has the taps of its weights first and their outputs last, `nconvCxOxS` the channels of
//! both sides last.
//!
//! Tiles: `BMxBNxBK/WMxWN/BUFFERS[a]` by subgroups, perhaps with `/f[s][l][r]`: fragments are filled by component (`s`: the left tile is staged; `l`,
//! `r`: blocks of the left, the right side are read a step ahead; `k<n>`, last: n subgroups share each sum), or `/P<n>`: the right side is packed and read n fragments ahead.
//! `sBMxBNxBK/RxC/BUFFERS` is a tile of the f32 kernel, `f32` one of them.
//!
//! `--cold`: every product has another right side than the last ones, so that it comes from memory, as weights do in models. `--spirv DIR`
//! leaves the kernels there, for tools that ask the driver what it makes of them.
#![expect(clippy::print_stdout, reason = "a command that prints its findings")]

mod on_device;

use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::spec::{
    Access, Combine, Coop, Extent, Fill, Kernel, KernelSpec, MatmulSpec, RowSpec, Spread, Stage, Staging, Store,
};
use jvc_kernels::templates::fragments::{Fragment, Part};
use jvc_kernels::templates::matmul::packed_place;
use jvc_runtime::{Base, Error, Gpu, Model, Recorder, Session};
use on_device::{added, code, fill, groups, interface, load, open, operand, session, value_of};

/// A problem: sizes of the product, and the side of the image where the left operand is gathered from one.
#[derive(Clone, Copy)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
    image: Option<u32>,
    /// The image has its channels last, and k goes through the taps first.
    last: bool,
    /// The right side has its columns last; the weights of a convolution their taps first.
    packed: bool,
}

const fn plain(m: u32, n: u32, k: u32) -> Shape {
    Shape { m, n, k, image: None, last: false, packed: false }
}

const SHAPES: [Shape; 6] = [
    plain(4096, 4096, 4096),
    plain(8192, 8192, 8192),
    plain(1500, 1280, 1280),
    plain(4096, 1152, 4608),
    plain(16384, 144, 576),
    plain(256, 256, 4096),
];

const REFERENCE: Staging = Staging::Shared { bm: 128, bn: 64, bk: 16, rows: 8, cols: 4, buffers: 1 };

/// What right sides that come from memory take together: more than caches hold.
const COLD_BYTES: u32 = 200 << 20;

/// What f32 products are checked against.
const PLAIN: (Staging, u32) = (Staging::Registers { rows: 4, cols: 4 }, 64);

const TILES: &str = "128x128x64/2x2/1 128x128x64/2x2/1a 128x64x64/2x2/1a 64x64x64/2x2/1a";

/// Error against max(|c|, 1) that is explained: half a unit of the last place of the result, and sums in f32 that matrix units cut instead
/// of rounding (k adds, a few at once, to partial sums of about √k). Sums in half precision would be tens of times as far off.
fn allowed(elem: DType, k: u32) -> f64 {
    if elem == DType::F32 {
        return f64::from(k).sqrt() * 2f64.powi(-20);
    }
    let half_unit = if elem == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
    half_unit * 1.01 + f64::from(k).powf(1.5) * 2f64.powi(-23) / 64.0
}

fn at(e: &mut Exprs, row: u8, pitch: u32, col: u8) -> ExprId {
    let (row, pitch, col) = (e.axis(row), e.i32(pitch as i32), e.axis(col));
    let start = e.bin(Binary::Mul, row, pitch);
    e.bin(Binary::Add, start, col)
}

/// `x[c, y + ty − 1, x + tx − 1]` at row y·side + x and k axes `[c, ty, tx]`, perhaps of an image whose channels are last; 0 outside.
fn pixel(e: &mut Exprs, elem: DType, side: u32, [channel, ty, tx]: [u8; 3], channels_last: Option<u32>) -> ExprId {
    let (row, side_id, one) = (e.axis(1), e.i32(side as i32), e.i32(1));
    let (y, x) = (e.bin(Binary::Div, row, side_id), e.bin(Binary::Rem, row, side_id));
    let (zero, last) = (e.i32(0), e.i32(side as i32 - 1));
    let place = |e: &mut Exprs, at: ExprId, tap: u8| {
        let tap = e.axis(tap);
        let at = e.bin(Binary::Add, at, tap);
        let at = e.bin(Binary::Sub, at, one);
        let (low, high) = (e.bin(Binary::Le, zero, at), e.bin(Binary::Le, at, last));
        let clamped = e.bin(Binary::Max, at, zero);
        (e.bin(Binary::Min, clamped, last), e.bin(Binary::And, low, high))
    };
    let ((y, y_in), (x, x_in)) = (place(e, y, ty), place(e, x, tx));
    let channel = e.axis(channel);
    let (outer, middle, inner) = if channels_last.is_some() { (y, x, channel) } else { (channel, y, x) };
    let channels = channels_last.map_or(side_id, |c| e.i32(c as i32));
    let plane = e.bin(Binary::Mul, outer, side_id);
    let line = e.bin(Binary::Add, plane, middle);
    let start = e.bin(Binary::Mul, line, channels);
    let index = e.bin(Binary::Add, start, inner);
    let (value, nothing, inside) = (e.load(0, elem, vec![index]), e.f32(0.0), e.bin(Binary::And, y_in, x_in));
    e.select(inside, value, nothing)
}

/// Row-major place among the k axes of these sizes.
fn tap(e: &mut Exprs, sizes: [u32; 3]) -> ExprId {
    let first = e.axis(3);
    [(4, sizes[1]), (5, sizes[2])].into_iter().fold(first, |index, (axis, size)| {
        let size = e.i32(size as i32);
        let start = e.bin(Binary::Mul, index, size);
        let axis = e.axis(axis);
        e.bin(Binary::Add, start, axis)
    })
}

/// How fragments are filled, and their sizes.
type Filled = Option<(Fill, (u32, u32, u32))>;

/// Place of B's element in memory, as the shape or the way in which its fragments are filled has it.
fn right(e: &mut Exprs, Shape { n, k, packed, .. }: Shape, filled: Filled) -> ExprId {
    match filled {
        Some((fill, frag)) if fill.packed > 0 => {
            let (column, depth) = (e.axis(2), e.axis(3));
            packed_place(e, &fill.right, (frag.1, frag.2), (column, depth), k)
        }
        _ if packed => at(e, 3, n, 2),
        _ => at(e, 2, k, 3),
    }
}

fn product(elem: DType, out: DType, shape: Shape, (staging, wg): (Staging, u32), filled: Filled) -> KernelSpec {
    let Shape { m, n, k, image, last, packed } = shape;
    let mut e = Exprs::new();
    let index = at(&mut e, 1, n, 2);
    let (lhs, b, k_axes) = match image {
        None => {
            let (a, b) = (at(&mut e, 1, k, 3), right(&mut e, shape, filled));
            (e.load(0, elem, vec![a]), b, vec![Extent::Const(k)])
        }
        Some(side) => {
            let taps_first = packed || last;
            let (sizes, axes) = if taps_first { ([3, 3, k / 9], [5, 3, 4]) } else { ([k / 9, 3, 3], [3, 4, 5]) };
            let (column, within) = (e.axis(2), tap(&mut e, sizes));
            let (major, pitch, minor) = if packed { (within, n, column) } else { (column, k, within) };
            let pitch = e.i32(pitch as i32);
            let start = e.bin(Binary::Mul, major, pitch);
            let left = pixel(&mut e, elem, side, axes, last.then_some(k / 9));
            (left, e.bin(Binary::Add, start, minor), sizes.map(Extent::Const).to_vec())
        }
    };
    let rhs = e.load(1, elem, vec![b]);
    let value = e.arg(0, Ty::F32);
    let operands = vec![operand(elem, Access::Read), operand(elem, Access::Read), operand(out, Access::Write)];
    KernelSpec::Matmul(MatmulSpec {
        interface: interface(operands),
        exprs: e,
        batch: Extent::Const(1),
        m: Extent::Const(m),
        n: Extent::Const(n),
        k: k_axes,
        lhs,
        rhs,
        acc: Ty::F32,
        stores: vec![Store { operand: 2, index, value, guard: None }],
        staging,
        wg,
    })
}

/// `worst[m] = max_n |c − reference| / max(|reference|, 1)`; the largest number for a NaN.
fn compare(elem: DType, Shape { m, n, .. }: Shape) -> KernelSpec {
    let mut e = Exprs::new();
    let index = at(&mut e, 0, n, 1);
    let (c, r) = (e.load(0, elem, vec![index]), e.load(1, DType::F32, vec![index]));
    let difference = e.bin(Binary::Sub, c, r);
    let difference = e.un(Unary::Abs, difference);
    let (size, one) = (e.un(Unary::Abs, r), e.f32(1.0));
    let size = e.bin(Binary::Max, size, one);
    let value = e.bin(Binary::Div, difference, size);
    let (row, worst, most) = (e.axis(0), e.arg(0, Ty::F32), e.f32(f32::MAX));
    let nan = e.un(Unary::IsNan, worst);
    let worst = e.select(nan, most, worst);
    let operands =
        vec![operand(elem, Access::Read), operand(DType::F32, Access::Read), operand(DType::F32, Access::Write)];
    KernelSpec::Row(RowSpec {
        interface: interface(operands),
        copies: 1,
        exprs: e,
        outer: vec![Extent::Const(m)],
        inner: vec![Extent::Const(n)],
        stages: vec![Stage { combine: Combine::Max, value }],
        row_stores: vec![Store { operand: 2, index: row, value: worst, guard: None }],
        element_stores: vec![],
        threads_per_row: 256,
        wg: 256,
    })
}

/// One shape with one tile, ready to run.
struct Bench {
    model: Model,
    kernels: Vec<Kernel>,
    /// Places of A, B, C, the reference and the errors, in bytes, and the end.
    places: [u64; 6],
    /// Further right sides lie behind, so many in all.
    sides: u32,
    rows: usize,
    build_ms: f64,
}

/// What is recorded after the operands are filled.
#[derive(Clone, Copy)]
enum Steps {
    /// This many products, with a barrier after every so many.
    Time(u32, u32),
    /// One product, its reference and the comparison.
    Check,
}

impl Bench {
    fn new(
        gpu: &Gpu,
        elem: DType,
        (shape, cold): (Shape, bool),
        (staging, wg): (Staging, u32),
    ) -> Result<Bench, String> {
        let Shape { m, n, k, .. } = shape;
        let reference = if elem == DType::F32 { PLAIN } else { (REFERENCE, 256) };
        let size = elem.size_bytes();
        let filled = match staging {
            Staging::Coop(c) => c.fill.map(|f| (f, c.frag)),
            _ => None,
        };
        let specs = [
            fill(elem, m * k, 0, 1.0),
            fill(elem, n * k, 0x2545_f490, 1.0),
            product(elem, elem, shape, (staging, wg), filled),
            product(elem, DType::F32, shape, reference, filled),
            compare(elem, shape),
        ];
        let bytes = [m * k * size, n * k * size, m * n * size, m * n * 4, m * 4];
        let mut places = [0; 6];
        for (i, &b) in bytes.iter().enumerate() {
            places[i + 1] = places[i] + u64::from(b).next_multiple_of(256);
        }
        let (model, kernels, build_ms) = load(gpu, "products", &specs)?;
        let sides = if cold { (COLD_BYTES / (n * k * size)).max(1) + 1 } else { 1 };
        Ok(Bench { model, kernels, places, sides, rows: m as usize, build_ms })
    }

    fn session(&self, steps: Steps) -> Result<Session, Error> {
        let bytes = self.places[5] + u64::from(self.sides - 1) * self.side_bytes();
        session(&self.model, bytes, &|r| self.record(r, steps))
    }

    fn side_bytes(&self) -> u64 {
        self.places[2] - self.places[1]
    }

    /// Where right side `number` starts.
    fn side(&self, number: u32) -> u64 {
        if number == 0 { self.places[1] } else { self.places[5] + u64::from(number - 1) * self.side_bytes() }
    }

    fn record(&self, r: &mut Recorder<'_>, steps: Steps) {
        let mut run = |kernel: usize, operands: &[u64], barrier: bool| {
            let units: Vec<u32> = operands.iter().map(|&at| (at / 16) as u32).collect();
            r.dispatch(kernel as u32, &[Base::Arena(0)], &units, groups(&self.kernels[kernel].grid));
            if barrier {
                r.barrier();
            }
        };
        let [a, b, c, reference, errors, _] = self.places;
        run(0, &[a], true);
        (0..self.sides).for_each(|i| run(1, &[self.side(i)], true));
        match steps {
            Steps::Time(count, barrier) => {
                (1..=count).for_each(|i| run(2, &[a, self.side(i % self.sides), c], i % barrier == 0));
            }
            Steps::Check => {
                run(2, &[a, b, c], true);
                run(3, &[a, b, reference], true);
                run(4, &[c, reference, errors], true);
            }
        }
    }

    /// Largest relative error.
    fn check(&self) -> Result<f64, Error> {
        let mut session = self.session(Steps::Check)?;
        session.run(&[], &[], &mut [])?;
        let mut bytes = vec![0; (self.places[5] - self.places[4]) as usize];
        let arena = session.buffer(0, Base::Arena(0)).expect("the entry has an arena");
        arena.read(self.places[4], &mut bytes)?;
        let floats = bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Ok(floats.take(self.rows).fold(0.0, f64::max))
    }

    /// Seconds of one product.
    fn time(&self, flops: f64, (work, barrier): (f64, u32)) -> Result<f64, Error> {
        let count = (work / flops).clamp(8.0, 400.0) as u32 / 4 * 4 + 4;
        let counts = [count / 4 / 4 * 4, count];
        let [few, many] = counts.map(|n| self.session(Steps::Time(n, barrier)));
        Ok(added([few?, many?], counts)?[0])
    }
}

/// How the device spreads left and right fragments.
type Spreads = Option<(Spread, Spread)>;

/// Asks the device how it spreads the fragments that [`tile`] takes.
fn spreads(gpu: &Gpu, elem: DType) -> Result<Spreads, String> {
    let info = gpu.info();
    let Some(f) = info.cooperative.iter().rfind(|s| s.operand == elem.name() && s.accumulator == "f32") else {
        return Ok(None);
    };
    let subgroup = info.subgroup;
    let ask = |part, elem, rows, columns| {
        let fragment = Fragment { part, elem, rows, columns, subgroup };
        let Some(kernel) = fragment.kernel() else { return Ok(None) };
        let len = fragment.components() * subgroup;
        let answer = jvc_lab::answer(gpu, &kernel.words, kernel.needs.subgroup, len).map_err(|e| e.to_string())?;
        let spread = fragment.spread(&answer);
        println!("{part:?} {elem} {rows}x{columns}: {spread:?}");
        Ok::<_, String>(spread)
    };
    ask(Part::Sum, DType::F32, f.m, f.n)?;
    let (left, right) = (ask(Part::Left, elem, f.m, f.k)?, ask(Part::Right, elem, f.k, f.n)?);
    Ok(left.zip(right))
}

/// `BMxBNxBK/WMxWN/BUFFERS[a][/FILL]` in the device's fragments.
fn tile(text: &str, elem: DType, gpu: &Gpu, spreads: Spreads) -> Option<(Staging, u32)> {
    if text == "f32" {
        return Some((REFERENCE, 256));
    }
    if let Some(text) = text.strip_prefix('s') {
        return tiled(text);
    }
    let info = gpu.info();
    let shapes = &info.cooperative;
    let found = shapes.iter().rfind(|s| s.operand == elem.name() && s.accumulator == "f32")?;
    let subgroup = info.subgroup;
    let mut parts = text.split('/');
    let mut numbers = || -> Option<Vec<u32>> { parts.next()?.split('x').map(|n| n.parse().ok()).collect() };
    let (tile, warps) = (numbers()?, numbers()?);
    let last = parts.next()?;
    let buffers = last.trim_end_matches('a').parse().ok()?;
    let (&[bm, bn, bk], &[wm, wn]) = (tile.as_slice(), warps.as_slice()) else { return None };
    let frag = (found.m, found.n, found.k);
    let fill = match parts.next() {
        None => None,
        Some(flags) => {
            let (left, right) = spreads?;
            let ahead = (flags.contains('l'), flags.contains('r'));
            let parts = flags.split_once('k').and_then(|(_, n)| n.parse().ok()).unwrap_or(1);
            let packed = flags.strip_prefix('P').and_then(|n| n.split('k').next()?.parse().ok()).unwrap_or(0);
            Some(Fill { left, right, staged: flags.contains('s'), ahead, packed, parts })
        }
    };
    let coop = Coop { bm, bn, bk, frag, warps: (wm, wn), elem, subgroup, buffers, ahead: last.ends_with('a'), fill };
    Some((Staging::Coop(coop), coop.subgroups() * subgroup))
}

/// `BMxBNxBK/RxC/BUFFERS`.
fn tiled(text: &str) -> Option<(Staging, u32)> {
    let numbers: Option<Vec<u32>> = text.split(['x', '/']).map(|n| n.parse().ok()).collect();
    let &[bm, bn, bk, rows, cols, buffers] = numbers?.as_slice() else { return None };
    Some((Staging::Shared { bm, bn, bk, rows, cols, buffers }, (bm / rows) * (bn / cols)))
}

fn shape(text: &str) -> Option<Shape> {
    let (packed, last) = (text.starts_with(['p', 't']), text.starts_with('n'));
    let text = text.trim_start_matches(['p', 't', 'n']);
    let image = text.strip_prefix("conv");
    let sizes: Option<Vec<u32>> = image.unwrap_or(text).split('x').map(|n| n.parse().ok()).collect();
    let [a, b, c] = *sizes? else { return None };
    Some(if image.is_some() {
        Shape { m: c * c, n: b, k: a * 9, image: Some(c), last, packed }
    } else {
        Shape { packed, ..plain(a, b, c) }
    })
}

/// What is done with each product.
struct Asked {
    /// Operations that are timed; none where 0.
    work: f64,
    cold: bool,
    /// Where kernels are left.
    spirv: Option<String>,
}

/// One line of the table; false when the result is wrong.
fn line(
    gpu: &Gpu,
    (elem, spreads): (DType, Spreads),
    shape: Shape,
    (text, asked): (&str, &Asked),
) -> Result<bool, String> {
    let work = asked.work;
    let staging = tile(text, elem, gpu, spreads).ok_or_else(|| format!("no tile {text} of {elem} on this device"))?;
    let bench = Bench::new(gpu, elem, (shape, asked.cold), staging)?;
    if let Some(folder) = &asked.spirv {
        let file = format!("{folder}/{elem}-{}x{}x{}-{}.spv", shape.m, shape.n, shape.k, text.replace('/', "_"));
        std::fs::write(&file, code(&bench.kernels[2])).map_err(|e| format!("{file}: {e}"))?;
    }
    let Shape { m, n, k, image, packed, last } = shape;
    let what = match (image, packed) {
        (Some(_), false) if last => "nconv ",
        (Some(_), true) => "pconv ",
        (Some(_), false) => "conv ",
        (None, true) => "t",
        (None, false) => "",
    };
    let flops = 2.0 * f64::from(m) * f64::from(n) * f64::from(k);
    let error = bench.check().map_err(|e| e.to_string())?;
    let right = error <= allowed(elem, k);
    if work == 0.0 {
        let wrong = if right { "" } else { " WRONG" };
        println!("| {elem} | {what}{m}x{n}x{k} | {text} | {:.0} | {error:.1e}{wrong} |", bench.build_ms);
        return Ok(right);
    }
    let [with, without] = [1, 4].map(|barrier| bench.time(flops, (work, barrier)).map_err(|e| e.to_string()));
    let (with, without) = (with?, without?);
    println!(
        "| {elem} | {what}{m}x{n}x{k} | {text} | {:.0} | {error:.1e}{} | {:.1} | {:.1} | {:.1} | {:.1} |",
        bench.build_ms,
        if right { "" } else { " WRONG" },
        with * 1e6,
        flops / with / 1e12,
        without * 1e6,
        flops / without / 1e12
    );
    Ok(right)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let elem = args.iter().find_map(|a| DType::parse(a)).unwrap_or(DType::F16);
    let flag = |flag: &str| args.iter().any(|a| a == flag);
    let work = if flag("--check") {
        0.0
    } else if flag("--brief") {
        1.5e12
    } else {
        8e12
    };
    let asked = Asked { work, cold: flag("--cold"), spirv: value_of(&args, "--spirv") };
    let tiles_at = args.iter().position(|a| a == "--tiles");
    let (before, tiles) = args.split_at(tiles_at.unwrap_or(args.len()));
    let mut shapes: Vec<Shape> = before.iter().filter_map(|a| shape(a)).collect();
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    let mut tiles: Vec<&str> = tiles.iter().skip(1).map(String::as_str).collect();
    if tiles.is_empty() {
        tiles = TILES.split(' ').collect();
    }
    let gpu = open();
    let spreads = match spreads(&gpu, elem) {
        Ok(spreads) => spreads,
        Err(e) => {
            println!("the device does not tell its fragments: {e}");
            None
        }
    };
    println!("| type | shape | tile | build ms | error | µs | TFLOP/s | µs of four | TFLOP/s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut all_right = true;
    for &shape in &shapes {
        for text in &tiles {
            match line(&gpu, (elem, spreads), shape, (text, &asked)) {
                Ok(right) => all_right &= right,
                Err(why) => println!("| {elem} | {}x{}x{} | {text} | {why} |", shape.m, shape.n, shape.k),
            }
        }
    }
    std::process::exit(i32::from(!all_right));
}
