//! Checks and times attention kernels on the GPU at hand.
//!
//! `attention [f16|bf16|f32] [--check] [--spirv DIR] [BxQxKxE[:causal|:bias] …] [--tiles coop:ROWS:WARPS:KEYS[a][d][rBITS] | tiled:ROWS:COLS:ACROSS:WG:UNROLL | stream:WG:KEYS:LANES …]`: B heads in all, Q queries,
//! K keys, E channels; shapes default to those of the models. Prints per shape the time to create all pipelines, and per tile the largest and the RMS error
//! against the streaming kernel with f32 results, time with a barrier after each (median, least, most) and the rate. `--check` times nothing, `--spirv` leaves the kernels in a folder. Exit code 1 when a result is wrong.
#![expect(clippy::print_stdout, reason = "a command that prints its findings")]

mod on_device;

use jvc_kernels::dtype::{DType, Storage, Ty};
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use jvc_kernels::host::HostBuffer;
use jvc_kernels::spec::{
    Access, AttentionSpec, AttentionStaging, CoopAttention, Extent, Kernel, KernelSpec, Left, Store, TiledAttention,
};
use jvc_runtime::{Base, Error, Gpu, Model, Recorder, Session};
use on_device::{added, code, fill, groups, interface, load, open, operand, session, value_of};

/// What is done with a score beside scaling it.
#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    Causal,
    Bias,
}

/// A problem: heads, queries, keys, channels.
#[derive(Clone, Copy)]
struct Shape {
    batch: u32,
    queries: u32,
    keys: u32,
    dim: u32,
    mask: Mask,
}

const SHAPES: &str = "8x4096x4096x72 512x256x256x72 512x64x64x72 20x1500x1500x64 6x1370x1370x64 20x448x448x64:causal 64x196x196x64:bias 32x1024x1024x128";

const TILES: &str = "coop:1:4:64ad coop:2:4:64ad stream:64:32:1";

/// `(batch·rows + row)·width + column`.
fn at(e: &mut Exprs, batch: u8, (row, rows): (u8, u32), (column, width): (u8, u32)) -> ExprId {
    let (batch, rows, row) = (e.axis(batch), e.i32(rows as i32), e.axis(row));
    let start = e.bin(Binary::Mul, batch, rows);
    let line = e.bin(Binary::Add, start, row);
    let (width, column) = (e.i32(width as i32), e.axis(column));
    let start = e.bin(Binary::Mul, line, width);
    e.bin(Binary::Add, start, column)
}

fn attention(elem: DType, out: DType, s: Shape, (staging, wg): (AttentionStaging, u32)) -> KernelSpec {
    let mut e = Exprs::new();
    let (q, k) = (at(&mut e, 0, (1, s.queries), (3, s.dim)), at(&mut e, 0, (2, s.keys), (3, s.dim)));
    let [query, key, value] = [(0, q), (1, k), (2, k)].map(|(i, at)| e.load(i, elem, vec![at]));
    let (dot, scale) = (e.arg(0, Ty::F32), e.f32(1.0 / (s.dim as f32).sqrt()));
    let mut score = e.bin(Binary::Mul, dot, scale);
    let mut operands = vec![operand(elem, Access::Read); 3];
    operands.push(operand(out, Access::Write));
    match s.mask {
        Mask::None => {}
        Mask::Causal => {
            let (i, j, hidden) = (e.axis(1), e.axis(2), e.f32(f32::NEG_INFINITY));
            let shown = e.bin(Binary::Le, j, i);
            score = e.select(shown, score, hidden);
        }
        Mask::Bias => {
            let at = at(&mut e, 0, (1, s.queries), (2, s.keys));
            let bias = e.load(4, elem, vec![at]);
            score = e.bin(Binary::Add, score, bias);
            operands.push(operand(elem, Access::Read));
        }
    }
    let result = e.arg(0, Ty::F32);
    KernelSpec::Attention(AttentionSpec {
        interface: interface(operands),
        exprs: e,
        batch: Extent::Const(s.batch),
        queries: Extent::Const(s.queries),
        keys: Extent::Const(s.keys),
        qk_dim: s.dim,
        v_dim: s.dim,
        query,
        key,
        value,
        score,
        causal: s.mask == Mask::Causal,
        zero_masked_rows: true,
        stores: vec![Store { operand: 3, index: q, value: result, guard: None }],
        staging,
        wg,
    })
}

/// One shape with all tiles, ready to run.
struct Bench {
    model: Model,
    kernels: Vec<Kernel>,
    /// Places of query, key, value, result, bias and reference, in bytes, and the end.
    places: [u64; 7],
    elem: DType,
    outputs: usize,
    biased: bool,
    build_ms: f64,
}

/// Kernels that fill the operands, and the one that computes the reference; the tiles' follow.
const FILLS: [usize; 4] = [0, 1, 2, 4];
const REFERENCE: usize = 4;
const FIRST_TILE: usize = 5;

/// Results that are compared, evenly spread, at most.
const SAMPLES: usize = 200_000;

impl Bench {
    fn new(gpu: &Gpu, elem: DType, s: Shape, tiles: &[(AttentionStaging, u32)]) -> Result<Bench, String> {
        let (q, k) = (s.batch * s.queries * s.dim, s.batch * s.keys * s.dim);
        let biased = s.mask == Mask::Bias;
        let bias = if biased { s.batch * s.queries * s.keys } else { 8 };
        let reference = (AttentionStaging::Stream { block_keys: 16, lanes: 1 }, 64);
        let mut specs = vec![
            fill(elem, q, 0, 2.0),
            fill(elem, k, 0x2545_f490, 2.0),
            fill(elem, k, 0x1235_b491, 2.0),
            fill(elem, bias, 0x0731_1277, 2.0),
            attention(elem, DType::F32, s, reference),
        ];
        specs.extend(tiles.iter().map(|&staged| attention(elem, elem, s, staged)));
        let size = if elem == DType::F32 { 4 } else { 2 };
        let bytes = [q * size, k * size, k * size, q * size, bias * size, q * 4];
        let mut places = [0; 7];
        for (i, &b) in bytes.iter().enumerate() {
            places[i + 1] = places[i] + u64::from(b).next_multiple_of(256);
        }
        let (model, kernels, build_ms) = load(gpu, "attention", &specs)?;
        Ok(Bench { model, kernels, places, elem, outputs: q as usize, biased, build_ms })
    }

    /// A run of a kernel `count` times, with a barrier after each; its result goes to `place`.
    fn session(&self, kernel: usize, count: u32, place: usize) -> Result<Session, Error> {
        session(&self.model, self.places[6], &|r| self.record(r, kernel, count, place))
    }

    fn record(&self, r: &mut Recorder<'_>, kernel: usize, count: u32, place: usize) {
        let mut run = |kernel: usize, operands: &[usize]| {
            let units: Vec<u32> = operands.iter().map(|&o| (self.places[o] / 16) as u32).collect();
            r.dispatch(kernel as u32, &[Base::Arena(0)], &units, groups(&self.kernels[kernel].grid));
            r.barrier();
        };
        FILLS.into_iter().enumerate().for_each(|(kernel, place)| run(kernel, &[place]));
        let operands = [&[0, 1, 2, place][..], if self.biased { &[4] } else { &[] }].concat();
        (0..count).for_each(|_| run(kernel, &operands));
    }

    fn results(&self, kernel: usize, place: usize, dtype: DType) -> Result<Vec<f64>, Error> {
        let mut session = self.session(kernel, 1, place)?;
        session.run(&[], &[], &mut [])?;
        let mut held = HostBuffer::zeros(dtype, Storage::Native, self.outputs);
        let arena = session.buffer(0, Base::Arena(0)).expect("the entry has an arena");
        arena.read(self.places[place], &mut held.bytes)?;
        let step = self.outputs / SAMPLES + 1;
        Ok((0..self.outputs).step_by(step).map(|i| held.load(i).to_f64()).collect())
    }

    /// Largest and RMS error of a tile's kernel.
    fn check(&self, kernel: usize, want: &[f64]) -> Result<(f64, f64), Error> {
        let have = self.results(kernel, 3, self.elem)?;
        let worst = |worst: f64, d: f64| if d.is_nan() { f64::INFINITY } else { worst.max(d) };
        let largest = have.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, worst);
        let squares: f64 = have.iter().zip(want).map(|(a, b)| (a - b) * (a - b)).sum();
        Ok((largest, (squares / want.len() as f64).sqrt()))
    }

    /// Seconds of one: median, least and most.
    fn time(&self, kernel: usize, flops: f64) -> Result<[f64; 3], Error> {
        let rate = if self.elem == DType::F32 { 4e11 } else { 2e12 };
        let count = (rate / flops).clamp(10.0, 200.0) as u32;
        let counts = [count / 5, count];
        let [few, many] = counts.map(|n| self.session(kernel, n, 3));
        added([few?, many?], counts)
    }
}

/// A tile in the device's fragments.
fn tile(text: &str, elem: DType, gpu: &Gpu) -> Option<(AttentionStaging, u32)> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |i: usize| -> Option<u32> { parts.get(i)?.split(['a', 'd']).next()?.parse().ok() };
    match parts[0] {
        "stream" => Some((AttentionStaging::Stream { block_keys: number(2)?, lanes: number(3)? }, number(1)?)),
        "tiled" => {
            let (rows, cols, across, unroll) = (number(1)?, number(2)?, number(3)?, number(5)?);
            Some((AttentionStaging::Tiled(TiledAttention { rows, cols, across, unroll }), number(4)?))
        }
        "coop" => {
            let info = gpu.info();
            let fits = |s: &&jvc_runtime::Cooperative<'static>| {
                s.operand == elem.name() && s.accumulator == "f32" && s.n == s.k
            };
            let found = info.cooperative.iter().filter(fits).max_by_key(|s| s.m * s.n * s.k)?;
            let left = if parts[3].contains('d') { Left::Components } else { Left::Memory };
            let ahead = parts[3].contains('a');
            let row_bits = parts[3].split_once('r').and_then(|(_, bits)| bits.parse().ok()).unwrap_or(u32::MAX);
            let (subgroup, frag) = (info.subgroup, (found.m, found.n, found.k));
            let (rows, warps, block_keys) = (number(1)?, number(2)?, number(3)?);
            let c = CoopAttention { frag, elem, subgroup, warps, rows, block_keys, left, row_bits, ahead };
            Some((AttentionStaging::Coop(c), warps * subgroup))
        }
        _ => None,
    }
}

fn shape(text: &str) -> Option<Shape> {
    let (sizes, mask) = text.split_once(':').unwrap_or((text, ""));
    let sizes: Option<Vec<u32>> = sizes.split('x').map(|n| n.parse().ok()).collect();
    let [batch, queries, keys, dim] = *sizes? else { return None };
    let mask = match mask {
        "causal" => Mask::Causal,
        "bias" => Mask::Bias,
        _ => Mask::None,
    };
    Some(Shape { batch, queries, keys, dim, mask })
}

/// What is done with each kernel.
struct Asked {
    /// Nothing is timed.
    check: bool,
    /// Where kernels are left.
    spirv: Option<String>,
}

/// The lines of a shape; false when a result is wrong.
fn lines(gpu: &Gpu, elem: DType, (name, s): (&str, Shape), (texts, asked): (&[&str], &Asked)) -> Result<bool, String> {
    let (mut tiles, mut known) = (vec![], vec![]);
    for text in texts {
        match tile(text, elem, gpu) {
            Some(staged) => {
                tiles.push(staged);
                known.push(text);
            }
            None => println!("| {elem} | {name} | no tile {text} on this device |"),
        }
    }
    let bench = Bench::new(gpu, elem, s, &tiles)?;
    println!("| {elem} | {name} | {} pipelines in {:.0} ms |", bench.kernels.len(), bench.build_ms);
    let flops = 4.0 * f64::from(s.batch) * f64::from(s.queries) * f64::from(s.keys) * f64::from(s.dim);
    let want = bench.results(REFERENCE, 5, DType::F32).map_err(|e| e.to_string())?;
    let mut all_right = true;
    for (i, text) in known.into_iter().enumerate() {
        let (largest, rms) = bench.check(FIRST_TILE + i, &want).map_err(|e| e.to_string())?;
        let right = largest < if elem == DType::F32 { 1e-4 } else { 3e-2 };
        if let Some(folder) = &asked.spirv {
            let file = format!("{folder}/{elem}-{}-{}.spv", name.replace(':', "_"), text.replace(':', "_"));
            std::fs::write(&file, code(&bench.kernels[FIRST_TILE + i])).map_err(|e| format!("{file}: {e}"))?;
        }
        all_right &= right;
        if asked.check {
            println!("| {elem} | {name} | {text} | {largest:.1e}{} |", if right { "" } else { " WRONG" });
            continue;
        }
        let [median, least, most] = bench.time(FIRST_TILE + i, flops).map_err(|e| e.to_string())?;
        println!(
            "| {elem} | {name} | {text} | {largest:.1e}{} | {rms:.1e} | {:.1} [{:.1}–{:.1}] | {:.1} |",
            if right { "" } else { " WRONG" },
            median * 1e6,
            least * 1e6,
            most * 1e6,
            flops / median / 1e12
        );
    }
    Ok(all_right)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let elem = args.iter().find_map(|a| DType::parse(a)).unwrap_or(DType::F16);
    let tiles_at = args.iter().position(|a| a == "--tiles");
    let (before, tiles) = args.split_at(tiles_at.unwrap_or(args.len()));
    let mut shapes: Vec<(&str, Shape)> = before.iter().filter_map(|a| Some((a.as_str(), shape(a)?))).collect();
    if shapes.is_empty() {
        shapes = SHAPES.split(' ').filter_map(|a| Some((a, shape(a)?))).collect();
    }
    let mut tiles: Vec<&str> = tiles.iter().skip(1).map(String::as_str).collect();
    if tiles.is_empty() {
        tiles = TILES.split(' ').collect();
    }
    let gpu = open();
    let asked = Asked { check: args.iter().any(|a| a == "--check"), spirv: value_of(&args, "--spirv") };
    println!("| type | shape | tile | largest error | RMS error | µs | TFLOP/s |");
    println!("|---|---|---|---|---|---|---|");
    let mut all_right = true;
    for &shape in &shapes {
        match lines(&gpu, elem, shape, (&tiles, &asked)) {
            Ok(right) => all_right &= right,
            Err(why) => println!("| {elem} | {} | {why} |", shape.0),
        }
    }
    std::process::exit(i32::from(!all_right));
}
