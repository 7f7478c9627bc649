//! Prints a plan as text: `plan.txt`, the form that is reviewed. [`crate::plan::Plan::parse`] is the inverse.
//!
//! One fact a line, keyword first; names are quoted, kernels are named and never numbered, steps carry no number: a change in one
//! place of a model stays a change in one place of the text. Kernel words, disassemblies and decisions are files of their own;
//! each kernel's words are pinned by their hash.

use super::{
    ArenaBuffer, Base, ByteRange, Dispatch, Elem, Entry, Groups, Plan, PlanKernel, Port, PortKind, Region,
    Requirements, Size, State, Step, Symbol, WeightTensor, Weights,
};
use std::fmt::{self, Display, Write};

impl Plan {
    /// The text form. Kernel words and disassemblies are not part of it (only their hash), nor are the decisions.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.print(&mut out).expect("writing to a string does not fail");
        out
    }

    fn print(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "plan {:?} for {:?}", self.name, self.device)?;
        print_requirements(out, &self.requirements)?;
        for kernel in &self.kernels {
            print_kernel(out, kernel)?;
        }
        print_weights(out, &self.weights)?;
        for entry in &self.entries {
            print_entry(out, entry, &self.kernels)?;
        }
        Ok(())
    }
}

impl PlanKernel {
    /// The SPIR-V file's bytes: words in little-endian order.
    pub fn spirv_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Hash of [`PlanKernel::spirv_bytes`], which pins a kernel where only text is kept.
    pub fn spirv_hash(&self) -> u64 {
        jvc_files::content_hash([&self.spirv_bytes()[..]])
    }
}

fn print_requirements(out: &mut String, r: &Requirements) -> fmt::Result {
    let flags =
        [("int8", r.int8), ("int16", r.int16), ("float16", r.float16), ("int64", r.int64), ("float64", r.float64)];
    let on: Vec<&str> = flags.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
    writeln!(out, "features [{}]", on.join(", "))?;
    for (m, n, k, elem) in &r.cooperative {
        writeln!(out, "cooperative {} {m} {n} {k}", elem.name())?;
    }
    write!(out, "limits subgroup {} max_workgroup {} ", r.subgroup, r.max_workgroup)?;
    write!(out, "shared_bytes {} push_bytes {} ", r.shared_bytes, r.push_bytes)?;
    writeln!(out, "max_allocation_bytes {}", r.max_allocation_bytes)
}

fn print_kernel(out: &mut String, k: &PlanKernel) -> fmt::Result {
    writeln!(out, "\nkernel {:?} words {} hash {:016x}", k.name, k.words.len(), k.spirv_hash())?;
    writeln!(out, "  interface bases {} operands {}", k.n_bases, list(&k.operand_bases))?;
    if k.subgroup != 0 {
        writeln!(out, "  subgroup {}", k.subgroup)?;
    }
    writeln!(out, "  spec {:?}", k.spec)
}

fn print_weights(out: &mut String, w: &Weights) -> fmt::Result {
    writeln!(out, "\nweights chunks {} hash {:016x}", list(&w.chunk_bytes), w.content_hash)?;
    for WeightTensor { name, elem, shape, chunk, offset, bytes } in &w.tensors {
        writeln!(out, "  tensor {name:?} {}{} chunk {chunk} at {offset} bytes {bytes}", elem.name(), list(shape))?;
    }
    Ok(())
}

fn print_entry(out: &mut String, e: &Entry, kernels: &[PlanKernel]) -> fmt::Result {
    writeln!(out, "\nentry {:?}", e.name)?;
    for Symbol { name, min, max, found } in &e.symbols {
        write!(out, "  symbol {name:?} {min} to {max}")?;
        match found {
            Some(word) => writeln!(out, " found {word}")?,
            None => writeln!(out)?,
        }
    }
    for port in &e.inputs {
        print_port(out, "input", port, &e.symbols)?;
    }
    for port in &e.outputs {
        print_port(out, "output", port, &e.symbols)?;
    }
    writeln!(out, "  arena {} live {}", list(&e.arena_bytes), e.live_bytes)?;
    for ArenaBuffer { name, chunk, offset, bytes, live } in &e.buffers {
        writeln!(out, "  buffer {name:?} arena{chunk}[{offset}; {bytes}] steps {} to {}", live.0, live.1)?;
    }
    for State { name, offset, bytes, init } in &e.states {
        write!(out, "  state {name:?} at {offset} bytes {bytes}")?;
        match init {
            Some(tensor) => writeln!(out, " init {tensor}")?,
            None => writeln!(out)?,
        }
    }
    for size in &e.table {
        writeln!(out, "  table {}", size.display(&e.symbols))?;
    }
    for step in &e.steps {
        match step {
            Step::Barrier => writeln!(out, "  barrier")?,
            Step::Dispatch(d) => print_dispatch(out, d, kernels)?,
        }
    }
    Ok(())
}

fn print_port(out: &mut String, word: &str, p: &Port, symbols: &[Symbol]) -> fmt::Result {
    let shape: Vec<String> = p.shape.iter().map(|s| s.display(symbols).to_string()).collect();
    write!(out, "  {word} {:?} {}[{}] ", p.name, p.elem.name(), shape.join(", "))?;
    match p.kind {
        PortKind::Io(slot) => write!(out, "io {slot}")?,
        PortKind::Symbol(symbol) => write!(out, "symbol {symbol}")?,
    }
    let storage = if p.word_storage { " words" } else { "" };
    writeln!(out, " max_bytes {}{storage}", p.max_bytes)
}

fn print_dispatch(out: &mut String, d: &Dispatch, kernels: &[PlanKernel]) -> fmt::Result {
    match kernels.get(d.kernel as usize) {
        Some(kernel) => writeln!(out, "  dispatch {:?}", kernel.name)?,
        None => writeln!(out, "  dispatch #{}", d.kernel)?,
    }
    writeln!(out, "    label {:?}", d.label)?;
    match d.groups {
        Groups::Fixed(dims) => writeln!(out, "    groups {}", list(&dims))?,
        Groups::Table(word) => writeln!(out, "    groups table {word}")?,
    }
    writeln!(out, "    push {} {}", list(&d.bases), list(&d.offsets))?;
    for (word, ranges) in [("read", &d.reads), ("write", &d.writes)] {
        for range in ranges {
            writeln!(out, "    {word} {range}")?;
        }
    }
    writeln!(out, "    cost {:?} flops {:?} bytes", d.cost.flops, d.cost.bytes)?;
    for origin in &d.origin {
        writeln!(out, "    from {origin:?}")?;
    }
    Ok(())
}

fn list<T: Display>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(T::to_string).collect();
    format!("[{}]", words.join(", "))
}

impl Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Base::Arena(chunk) => write!(f, "arena{chunk}"),
            Base::Weights(chunk) => write!(f, "weights{chunk}"),
            Base::IoTable => f.write_str("io"),
            Base::State => f.write_str("state"),
            Base::Symbols => f.write_str("symbols"),
        }
    }
}

impl Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Region::Arena(chunk) => write!(f, "arena{chunk}"),
            Region::Weights(chunk) => write!(f, "weights{chunk}"),
            Region::Io(slot) => write!(f, "io{slot}"),
            Region::State => f.write_str("state"),
            Region::Symbols => f.write_str("symbols"),
        }
    }
}

impl Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}; {}]", self.region, self.offset, self.bytes)
    }
}

/// A size with its symbols' names; see [`Size::display`].
pub struct DisplaySize<'a> {
    size: &'a Size,
    symbols: &'a [Symbol],
}

impl Size {
    /// Text of the formula. A symbol prints by its name where that is a plain word, else as `$index`.
    pub fn display<'a>(&'a self, symbols: &'a [Symbol]) -> DisplaySize<'a> {
        DisplaySize { size: self, symbols }
    }
}

impl Display for DisplaySize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sub = |size| DisplaySize { size, symbols: self.symbols };
        match self.size {
            Size::Const(value) => write!(f, "{value}"),
            Size::Symbol(idx) => match plain_symbol(self.symbols, *idx) {
                Some(name) => f.write_str(name),
                None => write!(f, "${idx}"),
            },
            Size::Add(terms) => print_nary(f, "+", "add", terms, sub),
            Size::Mul(factors) => print_nary(f, "*", "mul", factors, sub),
            Size::FloorDiv(a, b) => write!(f, "({} / {})", sub(a), sub(b)),
            Size::Mod(a, b) => write!(f, "({} % {})", sub(a), sub(b)),
            Size::Max(a, b) => write!(f, "max({}, {})", sub(a), sub(b)),
            Size::Min(a, b) => write!(f, "min({}, {})", sub(a), sub(b)),
        }
    }
}

/// `(a + b + c)`; with fewer than two items the call form `add(a)`, so that the text parses back to the same tree.
fn print_nary<'a>(
    f: &mut fmt::Formatter<'_>,
    sign: &str,
    call: &str,
    items: &'a [Size],
    sub: impl Fn(&'a Size) -> DisplaySize<'a>,
) -> fmt::Result {
    let words: Vec<String> = items.iter().map(|item| sub(item).to_string()).collect();
    if words.len() < 2 {
        return write!(f, "{call}({})", words.join(", "));
    }
    write!(f, "({})", words.join(&format!(" {sign} ")))
}

/// The symbol's name, if it can stand for the symbol in text: a unique word that is no function of the size language.
pub(super) fn plain_symbol(symbols: &[Symbol], idx: u16) -> Option<&str> {
    let name = symbols.get(usize::from(idx))?.name.as_str();
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let word = starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let unique = symbols.iter().filter(|s| s.name == name).count() == 1;
    (word && unique && !["add", "mul", "max", "min"].contains(&name)).then_some(name)
}
