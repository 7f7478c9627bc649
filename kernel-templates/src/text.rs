//! Text of specs: expressions in infix, a kernel as one line (its identity everywhere), and a short file name.

use crate::dtype::{DType, Storage};
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::spec::{
    Access, AttentionSpec, AttentionStaging, Coop, CoopAttention, Extent, FftSpec, Fill, Interface, KernelSpec, Left,
    MapSpec, MatmulSpec, RecurrentSpec, RowSpec, ScanSpec, ScatterSpec, SortSpec, Spread, Staging, Store,
};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Const(n) => write!(f, "{n}"),
            Extent::Sym(word) => write!(f, "s{word}"),
        }
    }
}

impl fmt::Display for Unary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of the variants are single words.
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::Rem => "%",
            Binary::And => "&",
            Binary::Or => "|",
            Binary::Xor => "^",
            Binary::Shl => "<<",
            Binary::Shr => ">>",
            Binary::Eq => "==",
            Binary::Ne => "!=",
            Binary::Lt => "<",
            Binary::Le => "<=",
            Binary::Pow => "pow",
            Binary::Atan2 => "atan2",
            Binary::Max => "max",
            Binary::Min => "min",
        })
    }
}

impl Unary {
    /// All of them, for parsers and tests. Their text is the function's name.
    pub const ALL: [Unary; 31] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Not,
        Unary::Floor,
        Unary::Ceil,
        Unary::Trunc,
        Unary::Round,
        Unary::Exp,
        Unary::Exp2,
        Unary::Expm1,
        Unary::Log,
        Unary::Log2,
        Unary::Log1p,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Sin,
        Unary::Cos,
        Unary::Tan,
        Unary::Asin,
        Unary::Acos,
        Unary::Atan,
        Unary::Sinh,
        Unary::Cosh,
        Unary::Tanh,
        Unary::Asinh,
        Unary::Acosh,
        Unary::Atanh,
        Unary::Erf,
        Unary::Lgamma,
        Unary::IsNan,
        Unary::IsInf,
    ];
}

impl Binary {
    /// All of them, for parsers and tests. Their text is the sign, or the function's name.
    pub const ALL: [Binary; 18] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Rem,
        Binary::Pow,
        Binary::Atan2,
        Binary::Max,
        Binary::Min,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::Shl,
        Binary::Shr,
        Binary::Eq,
        Binary::Ne,
        Binary::Lt,
        Binary::Le,
    ];

    /// Written between its operands, not before them.
    pub fn is_infix(self) -> bool {
        !matches!(self, Binary::Pow | Binary::Atan2 | Binary::Max | Binary::Min)
    }
}

/// Numbers of both precisions print so that they can be told apart and read back.
fn print_literal(lit: Lit) -> String {
    match lit {
        Lit::Bool(v) => v.to_string(),
        Lit::I32(v) => v.to_string(),
        Lit::I64(v) => format!("{v}l"),
        Lit::F32(bits) => format!("{:?}", f32::from_bits(bits)),
        Lit::F64(bits) => format!("{:?}d", f64::from_bits(bits)),
    }
}

/// Prints expressions of one arena. A part that is used more than once and is worth a name gets one: `t3 := …`.
pub struct Printer<'e> {
    exprs: &'e Exprs,
    names: BTreeMap<ExprId, usize>,
    definitions: Vec<String>,
}

impl<'e> Printer<'e> {
    /// A printer for what `roots` reach.
    pub fn new(exprs: &'e Exprs, roots: &[ExprId]) -> Printer<'e> {
        let mut uses: BTreeMap<ExprId, usize> = BTreeMap::new();
        let nodes = exprs.reachable(roots);
        for &id in &nodes {
            for operand in exprs.operands(id) {
                *uses.entry(operand).or_default() += 1;
            }
        }
        for &root in roots {
            *uses.entry(root).or_default() += 1;
        }
        let mut printer = Printer { exprs, names: BTreeMap::new(), definitions: vec![] };
        for id in nodes {
            if uses.get(&id).copied().unwrap_or(0) > 1 && !exprs.operands(id).is_empty() {
                let text = printer.node(id);
                let name = printer.names.len();
                printer.names.insert(id, name);
                printer.definitions.push(format!("t{name} := {text}"));
            }
        }
        printer
    }

    /// The named parts, in order.
    pub fn definitions(&self) -> &[String] {
        &self.definitions
    }

    /// An expression; named parts by their name.
    pub fn print(&self, id: ExprId) -> String {
        match self.names.get(&id) {
            Some(name) => format!("t{name}"),
            None => self.node(id),
        }
    }

    fn node(&self, id: ExprId) -> String {
        let p = |id: &ExprId| self.print(*id);
        match self.exprs.get(id) {
            Expr::Lit(lit) => print_literal(*lit),
            Expr::Axis(k) => format!("i{k}"),
            Expr::Arg(i, ty) => format!("a{i}:{ty}"),
            Expr::Sym(w) => format!("s{w}"),
            Expr::Load { operand, dtype, index } => {
                let index: Vec<String> = index.iter().map(p).collect();
                format!("x{operand}:{dtype}[{}]", index.join(", "))
            }
            Expr::Unary(op, a) => format!("{op}({})", p(a)),
            Expr::Binary(op, a, b) if op.is_infix() => format!("({} {op} {})", p(a), p(b)),
            Expr::Binary(op, a, b) => format!("{op}({}, {})", p(a), p(b)),
            Expr::Select(c, a, b) => format!("({} ? {} : {})", p(c), p(a), p(b)),
            Expr::Cast(ty, a) => format!("{ty}({})", p(a)),
            Expr::Round(dtype, a) => format!("round_{dtype}({})", p(a)),
        }
    }
}

fn extents(list: &[Extent]) -> String {
    let parts: Vec<String> = list.iter().map(Extent::to_string).collect();
    format!("[{}]", parts.join(","))
}

fn interface(i: &Interface) -> String {
    let operand = |o: &crate::spec::Operand| {
        let access = match o.access {
            Access::Read => "r",
            Access::Write => "w",
            Access::ReadWrite => "rw",
        };
        let word = if o.storage == Storage::Word { "w" } else { "" };
        let table = if o.via_table { "t" } else { "b" };
        format!("{}{word}:{access}@{table}{}", o.dtype, o.base)
    };
    let parts: Vec<String> = i.operands.iter().map(operand).collect();
    let symbols = if i.symbols { " sym" } else { "" };
    format!("({}) bases={}{symbols}", parts.join(" "), i.n_bases)
}

/// One line of a spec, as it is put together: words, then named values.
struct Line<'e> {
    exprs: &'e Exprs,
    text: String,
    values: Vec<(String, ExprId)>,
}

impl<'e> Line<'e> {
    fn new(kind: &str, exprs: &'e Exprs) -> Line<'e> {
        Line { exprs, text: kind.to_owned(), values: vec![] }
    }

    fn word(mut self, word: impl fmt::Display) -> Self {
        write!(self.text, " {word}").expect("writing to a string does not fail");
        self
    }

    fn value(mut self, name: &str, id: ExprId) -> Self {
        self.values.push((name.to_owned(), id));
        self
    }

    fn stores(mut self, prefix: &str, stores: &[Store]) -> Self {
        for s in stores {
            self.values.push((format!("{prefix}x{}[]", s.operand), s.index));
            self.values.push((format!("{prefix}x{}", s.operand), s.value));
            if let Some(guard) = s.guard {
                self.values.push((format!("{prefix}x{}?", s.operand), guard));
            }
        }
        self
    }

    fn finish(self, i: &Interface) -> String {
        let roots: Vec<ExprId> = self.values.iter().map(|v| v.1).collect();
        let printer = Printer::new(self.exprs, &roots);
        let mut parts: Vec<String> = printer.definitions().to_vec();
        parts.extend(self.values.iter().map(|(name, id)| format!("{name} = {}", printer.print(*id))));
        format!("{} {} {{ {} }}", self.text, interface(i), parts.join("; "))
    }
}

fn staging(s: &Staging) -> String {
    match s {
        Staging::Registers { rows, cols } => format!("registers:{rows}x{cols}"),
        Staging::Shared { bm, bn, bk, rows, cols, buffers } => {
            format!("shared:{bm}x{bn}x{bk}:{rows}x{cols}:buf{buffers}")
        }
        Staging::Coop(Coop { bm, bn, bk, frag, warps, elem, subgroup, buffers, ahead, fill }) => {
            let (tile, frag, warps) = (
                format!("{bm}x{bn}x{bk}"),
                format!("{}x{}x{}", frag.0, frag.1, frag.2),
                format!("{}x{}", warps.0, warps.1),
            );
            let ahead = if *ahead { ":ahead" } else { "" };
            let fill = fill.map(|f| filled(&f)).unwrap_or_default();
            format!("coop:{tile}:{frag}:{warps}:{elem}:sg{subgroup}:buf{buffers}{ahead}{fill}")
        }
        Staging::Gemv { threads_per_dot, cols } => format!("gemv:{threads_per_dot}x{cols}"),
    }
}

fn filled(f: &Fill) -> String {
    let entries = |of: &[(u8, u8)]| -> String {
        let all: Vec<String> =
            of.iter().filter(|e| **e != (0, 0)).map(|(row, column)| format!("{row}.{column}")).collect();
        all.join(",")
    };
    let spread = |s: &Spread| format!("{}/{}", entries(&s.lanes), entries(&s.components));
    let staged = if f.staged { ":staged" } else { "" };
    let ahead = |on: bool, side: &str| if on { format!(":{side}") } else { String::new() };
    let (left, right) = (ahead(f.ahead.0, "left_ahead"), ahead(f.ahead.1, "right_ahead"));
    let packed = if f.packed > 0 { format!(":packed{}", f.packed) } else { String::new() };
    let parts = if f.parts > 1 { format!(":parts{}", f.parts) } else { String::new() };
    format!(":fill:{}:{}{staged}{left}{right}{packed}{parts}", spread(&f.left), spread(&f.right))
}

fn map(s: &MapSpec) -> String {
    let line = Line::new("map", &s.exprs).word(extents(&s.domain));
    let line = line.word(format_args!("x{}", s.per_thread)).word(format_args!("wg{}", s.wg));
    let line = match s.turned {
        Some(t) => line.word(format_args!("tiles{}:{}", t.axis, t.side)),
        None => line,
    };
    line.stores("", &s.stores).finish(&s.interface)
}

fn row(s: &RowSpec) -> String {
    let mut line = Line::new("row", &s.exprs).word(extents(&s.outer)).word(extents(&s.inner));
    line = line.word(format_args!("t{}", s.threads_per_row)).word(format_args!("wg{}", s.wg));
    if s.copies > 1 {
        line = line.word(format_args!("copies{}", s.copies));
    }
    for (k, stage) in s.stages.iter().enumerate() {
        line = line.value(&format!("a{k}={:?}", stage.combine).to_lowercase(), stage.value);
    }
    line.stores("row ", &s.row_stores).stores("", &s.element_stores).finish(&s.interface)
}

fn matmul(s: &MatmulSpec) -> String {
    let line = Line::new("matmul", &s.exprs).word(format_args!("{}x{}x{}", s.batch, s.m, s.n)).word(extents(&s.k));
    let line = line.word(s.acc).word(staging(&s.staging)).word(format_args!("wg{}", s.wg));
    line.value("lhs", s.lhs).value("rhs", s.rhs).stores("", &s.stores).finish(&s.interface)
}

fn coop_attention(c: &CoopAttention) -> String {
    let (frag, tile) = (format!("{}x{}x{}", c.frag.0, c.frag.1, c.frag.2), format!("{}x{}", c.rows, c.block_keys));
    let left = match c.left {
        Left::Memory => "",
        Left::Components => ":direct",
        Left::Differing => ":differing",
    };
    let rows = if c.row_bits == u32::MAX { String::new() } else { format!(":rows{}", c.row_bits) };
    let flags = format!("{left}{rows}{}", if c.ahead { ":ahead" } else { "" });
    format!("coop:{tile}:{frag}:{}:{}:sg{}{flags}", c.warps, c.elem, c.subgroup)
}

fn attention(s: &AttentionSpec) -> String {
    let line = Line::new("attention", &s.exprs).word(format_args!("{}x{}x{}", s.batch, s.queries, s.keys));
    let line = line.word(format_args!("qk{}", s.qk_dim)).word(format_args!("v{}", s.v_dim));
    let line = match s.staging {
        AttentionStaging::Stream { block_keys, lanes } => {
            let line = line.word(format_args!("block{block_keys}")).word(format_args!("wg{}", s.wg));
            if lanes > 1 { line.word(format_args!("lanes{lanes}")) } else { line }
        }
        AttentionStaging::Coop(c) => line.word(coop_attention(&c)).word(format_args!("wg{}", s.wg)),
        AttentionStaging::Tiled(t) => {
            let line = line.word(format_args!("tiled:{}x{}:{}:{}", t.rows, t.cols, t.across, t.unroll));
            line.word(format_args!("wg{}", s.wg))
        }
        AttentionStaging::Parts(p) => {
            line.word(format_args!("parts:{}x{}", p.count, p.len)).word(format_args!("wg{}", s.wg))
        }
    };
    let line = if s.causal { line.word("causal") } else { line };
    let line = if s.zero_masked_rows { line.word("zero_masked") } else { line };
    let line = line.value("q", s.query).value("k", s.key).value("v", s.value).value("score", s.score);
    line.stores("", &s.stores).finish(&s.interface)
}

fn recurrent(s: &RecurrentSpec) -> String {
    let mut line = Line::new("recurrent", &s.exprs).word(format!("{:?}", s.cell).to_lowercase());
    line = line.word(format_args!("{}x{}x{}", s.steps, s.batch, s.hidden)).word(format_args!("wg{}", s.wg));
    if s.reverse {
        line = line.word("reverse");
    }
    line = line.value("input", s.input).value("weight", s.weight).value("h0", s.h0);
    for (name, id) in [("bias", s.bias), ("c0", s.c0)] {
        if let Some(id) = id {
            line = line.value(name, id);
        }
    }
    line.stores("step ", &s.step_stores).stores("final ", &s.final_stores).finish(&s.interface)
}

fn scan(s: &ScanSpec) -> String {
    let line = Line::new("scan", &s.exprs).word(extents(&s.outer)).word(s.len);
    let line = line.word(format!("{:?}", s.combine).to_lowercase());
    let shared = s.threads_per_line > 1;
    let line = if shared { line.word(format_args!("t{}", s.threads_per_line)) } else { line };
    let line = line.word(format_args!("wg{}", s.wg));
    line.value("value", s.value).stores("", &s.stores).finish(&s.interface)
}

fn scatter(s: &ScatterSpec) -> String {
    let line = Line::new("scatter", &s.exprs).word(extents(&s.outer)).word(extents(&s.inner));
    let line = line.word(format!("{:?}", s.mode).to_lowercase()).word(format_args!("wg{}", s.wg));
    line.stores("", &[s.store]).finish(&s.interface)
}

fn sort(s: &SortSpec) -> String {
    let line = Line::new("sort", &s.exprs).word(extents(&s.outer)).word(s.len);
    let line = line.word(if s.descending { "descending" } else { "ascending" });
    let line = line.word(format_args!("c{}", s.capacity)).word(format_args!("wg{}", s.wg));
    let line = if s.kept == s.len { line } else { line.word(format_args!("first {}", s.kept)) };
    let line = if s.chosen { line.word("chosen") } else { line };
    line.value("value", s.value).stores("", &s.stores).finish(&s.interface)
}

fn fft(s: &FftSpec) -> String {
    let line = Line::new("fft", &s.exprs).word(format_args!("{}x{}", s.batch, s.n));
    let line = line.word(if s.inverse { "inverse" } else { "forward" }).word(format_args!("wg{}", s.wg));
    line.value("re", s.re).value("im", s.im).stores("", &s.stores).finish(&s.interface)
}

/// One line, the kernel's identity: two specs print alike only if they build the same kernel.
impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            KernelSpec::Map(s) => map(s),
            KernelSpec::Row(s) => row(s),
            KernelSpec::Matmul(s) => matmul(s),
            KernelSpec::Attention(s) => attention(s),
            KernelSpec::Recurrent(s) => recurrent(s),
            KernelSpec::Scan(s) => scan(s),
            KernelSpec::Scatter(s) => scatter(s),
            KernelSpec::Sort(s) => sort(s),
            KernelSpec::Fft(s) => fft(s),
        })
    }
}

impl KernelSpec {
    /// A short, stable file name: what a reader looks for (kind, sizes, types), then a hash of the whole line.
    pub fn file_name(&self) -> String {
        let line = self.to_string();
        let words: Vec<&str> = line.split(" (").next().unwrap_or_default().split(' ').collect();
        let mut name = String::new();
        for word in words.iter().filter(|w| !w.starts_with("wg")) {
            let word: String = word.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            let word = word.trim_matches('_');
            if !word.is_empty() && name.len() + word.len() < 48 {
                name.push_str(if name.is_empty() { "" } else { "_" });
                name.push_str(word);
            }
        }
        if let Some(dtype) = self.main_dtype() {
            write!(name, "_{dtype}").expect("writing to a string does not fail");
        }
        format!("{name}_{:08x}", fold_hash(line.as_bytes()))
    }

    /// Element type of the first operand written.
    fn main_dtype(&self) -> Option<DType> {
        self.interface().operands.iter().find(|o| o.access != Access::Read).map(|o| o.dtype)
    }
}

/// FNV-1a in 64 bits, folded to 32.
fn fold_hash(bytes: &[u8]) -> u32 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Operand;

    fn scaled(width: u32, wg: u32) -> KernelSpec {
        let mut exprs = Exprs::new();
        let (row, col, n) = (exprs.axis(0), exprs.axis(1), exprs.i32(width as i32));
        let base = exprs.bin(Binary::Mul, row, n);
        let index = exprs.bin(Binary::Add, base, col);
        let x = exprs.load(0, DType::F16, vec![index]);
        let half = exprs.f32(0.5);
        let product = exprs.bin(Binary::Mul, x, half);
        let value = exprs.un(Unary::Tanh, product);
        let operand =
            |access| Operand { dtype: DType::F16, storage: Storage::Native, access, base: 0, via_table: false };
        KernelSpec::Map(MapSpec {
            interface: Interface {
                operands: vec![operand(Access::Read), operand(Access::Write)],
                n_bases: 1,
                symbols: false,
            },
            exprs,
            domain: vec![Extent::Sym(2), Extent::Const(width)],
            stores: vec![Store { operand: 1, index, value, guard: None }],
            per_thread: 4,
            wg,
            turned: None,
        })
    }

    #[test]
    fn a_kernel_is_one_line_with_shared_parts_named() {
        let line = "map [s2,64] x4 wg128 (f16:r@b0 f16:w@b0) bases=1 \
                    { t0 := ((i0 * 64) + i1); x1[] = t0; x1 = tanh((x0:f16[t0] * 0.5)) }";
        assert_eq!(scaled(64, 128).to_string(), line);
    }

    #[test]
    fn file_names_are_short_and_differ_with_every_parameter() {
        let name = scaled(64, 128).file_name();
        assert!(name.starts_with("map_s2_64_x4_f16_"), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && name.len() < 70, "{name}");
        assert_ne!(name, scaled(64, 256).file_name());
        assert_ne!(name, scaled(65, 128).file_name());
    }
}
