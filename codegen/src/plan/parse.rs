//! Parses the text form of a plan: the inverse of `print.rs`.
//!
//! The text is read line by line; a line starts with its keyword and belongs to the entry, or dispatch, above it. Errors name the
//! line, what was found there and what was expected. Kernel words come from the caller (they are files of their own) and are held
//! against the hash in the text.

use super::print::plain_symbol;
use super::scan::{Line, ParseError};
use super::{
    ArenaBuffer, Base, ByteRange, Cost, Dispatch, Elem, Entry, Groups, Plan, PlanKernel, Port, PortKind, Region, Size,
    State, Step, Symbol, WeightTensor,
};

/// A kernel's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelFile {
    /// SPIR-V.
    pub words: Vec<u32>,
    /// Its disassembly.
    pub disassembly: String,
}

/// Finds a kernel's files by its name.
pub type FindKernel<'a> = &'a dyn Fn(&str) -> Option<KernelFile>;

/// A plan as its text alone tells it: kernels without their files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outline {
    /// The plan; its kernels have no words.
    pub plan: Plan,
    /// Of each kernel, its words and their hash.
    pub pinned: Vec<Pinned>,
}

/// How a plan's text pins a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// 32-bit words of SPIR-V.
    pub n_words: usize,
    /// Their hash ([`PlanKernel::spirv_hash`]).
    pub hash: u64,
}

/// Where the words of kernels come from.
enum Kernels<'a> {
    Files(FindKernel<'a>),
    Pinned(&'a mut Vec<Pinned>),
}

impl Outline {
    /// Parses [`Plan::to_text`] where the kernels' files are not at hand.
    ///
    /// # Errors
    /// A line that is not of the text form.
    pub fn parse(text: &str) -> Result<Outline, ParseError> {
        let mut pinned = vec![];
        let plan = parse_plan(text, Kernels::Pinned(&mut pinned))?;
        Ok(Outline { plan, pinned })
    }
}

impl Plan {
    /// Parses [`Plan::to_text`]. Decisions are not part of the text and stay empty.
    ///
    /// # Errors
    /// A line that is not of the text form; a kernel whose files are missing or differ from the hash in the text.
    pub fn parse(text: &str, find: FindKernel<'_>) -> Result<Plan, ParseError> {
        parse_plan(text, Kernels::Files(find))
    }
}

fn parse_plan(text: &str, mut kernels: Kernels<'_>) -> Result<Plan, ParseError> {
    let mut plan = Plan::default();
    for (idx, text) in text.lines().enumerate() {
        let mut line = Line::scan(idx + 1, text)?;
        if !line.at_end() {
            parse_line(&mut plan, &mut line, &mut kernels)?;
            line.end()?;
        }
    }
    Ok(plan)
}

fn parse_line(plan: &mut Plan, line: &mut Line, kernels: &mut Kernels<'_>) -> Result<(), ParseError> {
    let word = line.word("a keyword")?;
    match word.as_str() {
        "plan" => {
            plan.name = line.text()?;
            line.key("for")?;
            plan.device = line.text()?;
        }
        "features" => parse_features(plan, line)?,
        "cooperative" => {
            let elem = parse_elem(line)?;
            let [m, n, k] = [line.parse("a number")?, line.parse("a number")?, line.parse("a number")?];
            plan.requirements.cooperative.push((m, n, k, elem));
        }
        "limits" => parse_limits(plan, line)?,
        "kernel" => plan.kernels.push(parse_kernel(line, kernels)?),
        "interface" => {
            let kernel = plan.kernels.last_mut().ok_or_else(|| line.expected("a kernel above"))?;
            kernel.n_bases = line.field("bases")?;
            line.key("operands")?;
            kernel.operand_bases = line.numbers()?;
        }
        "subgroup" => {
            let kernel = plan.kernels.last_mut().ok_or_else(|| line.expected("a kernel above"))?;
            kernel.subgroup = line.parse("a number")?;
        }
        "spec" => {
            let kernel = plan.kernels.last_mut().ok_or_else(|| line.expected("a kernel above"))?;
            kernel.spec = line.text()?;
        }
        "weights" => {
            line.key("chunks")?;
            plan.weights.chunk_bytes = line.numbers()?;
            plan.weights.content_hash = line.hash()?;
        }
        "tensor" => plan.weights.tensors.push(parse_tensor(line)?),
        "entry" => plan.entries.push(Entry { name: line.text()?, ..Entry::default() }),
        word => parse_entry_line(plan, word, line)?,
    }
    Ok(())
}

fn parse_features(plan: &mut Plan, line: &mut Line) -> Result<(), ParseError> {
    let r = &mut plan.requirements;
    for name in line.list(|line| line.word("a feature"))? {
        match name.as_str() {
            "int8" => r.int8 = true,
            "int16" => r.int16 = true,
            "float16" => r.float16 = true,
            "int64" => r.int64 = true,
            "float64" => r.float64 = true,
            other => {
                let found = format!("`{other}`");
                return Err(ParseError::Expected { line: line.number(), expected: "a feature".into(), found });
            }
        }
    }
    Ok(())
}

fn parse_limits(plan: &mut Plan, line: &mut Line) -> Result<(), ParseError> {
    let r = &mut plan.requirements;
    r.subgroup = line.field("subgroup")?;
    r.max_workgroup = line.field("max_workgroup")?;
    r.shared_bytes = line.field("shared_bytes")?;
    r.push_bytes = line.field("push_bytes")?;
    r.max_allocation_bytes = line.field("max_allocation_bytes")?;
    Ok(())
}

fn parse_kernel(line: &mut Line, kernels: &mut Kernels<'_>) -> Result<PlanKernel, ParseError> {
    let name = line.text()?;
    let n_words: usize = line.field("words")?;
    let pinned = line.hash()?;
    let KernelFile { words, disassembly } = match kernels {
        Kernels::Files(find) => {
            let missing = || ParseError::MissingKernel { line: line.number(), name: name.clone() };
            find(&name).ok_or_else(missing)?
        }
        Kernels::Pinned(all) => {
            all.push(Pinned { n_words, hash: pinned });
            KernelFile::default()
        }
    };
    let kernel =
        PlanKernel { name, spec: String::new(), words, disassembly, n_bases: 0, operand_bases: vec![], subgroup: 0 };
    let found = kernel.spirv_hash();
    if matches!(kernels, Kernels::Files(_)) && (found != pinned || kernel.words.len() != n_words) {
        return Err(ParseError::KernelHash { line: line.number(), name: kernel.name, pinned, found });
    }
    Ok(kernel)
}

fn parse_tensor(line: &mut Line) -> Result<WeightTensor, ParseError> {
    Ok(WeightTensor {
        name: line.text()?,
        elem: parse_elem(line)?,
        shape: line.numbers()?,
        chunk: line.field("chunk")?,
        offset: line.field("at")?,
        bytes: line.field("bytes")?,
    })
}

fn parse_elem(line: &mut Line) -> Result<Elem, ParseError> {
    let word = line.word("an element type")?;
    Elem::ALL.into_iter().find(|e| e.name() == word).ok_or_else(|| ParseError::Expected {
        line: line.number(),
        expected: "an element type".into(),
        found: format!("`{word}`"),
    })
}

fn parse_entry_line(plan: &mut Plan, word: &str, line: &mut Line) -> Result<(), ParseError> {
    let kernels = &plan.kernels;
    let entry = plan.entries.last_mut().ok_or_else(|| line.expected("an entry above"))?;
    match word {
        "symbol" => {
            let name = line.text()?;
            let min = line.parse("a number")?;
            let max = line.field("to")?;
            let found = if line.has_word("found") { Some(line.parse("a word of the table")?) } else { None };
            entry.symbols.push(Symbol { name, min, max, found });
        }
        "input" => entry.inputs.push(parse_port(line, &entry.symbols)?),
        "output" => entry.outputs.push(parse_port(line, &entry.symbols)?),
        "arena" => {
            entry.arena_bytes = line.numbers()?;
            entry.live_bytes = line.field("live")?;
        }
        "buffer" => entry.buffers.push(parse_buffer(line)?),
        "state" => {
            let (name, offset, bytes) = (line.text()?, line.field("at")?, line.field("bytes")?);
            let init = if line.has_word("init") { Some(line.parse("a tensor's position")?) } else { None };
            entry.states.push(State { name, offset, bytes, init });
        }
        "table" => entry.table.push(parse_size(line, &entry.symbols)?),
        "barrier" => entry.steps.push(Step::Barrier),
        "dispatch" => entry.steps.push(Step::Dispatch(parse_dispatch(line, kernels)?)),
        word => match entry.steps.last_mut() {
            Some(Step::Dispatch(dispatch)) => parse_dispatch_line(dispatch, word, line)?,
            _ => return Err(line.expected(&format!("another keyword than `{word}`, then"))),
        },
    }
    Ok(())
}

fn parse_port(line: &mut Line, symbols: &[Symbol]) -> Result<Port, ParseError> {
    let name = line.text()?;
    let elem = parse_elem(line)?;
    let shape = line.list(|line| parse_size(line, symbols))?;
    let kind =
        if line.has_word("io") { PortKind::Io(line.parse("a slot")?) } else { PortKind::Symbol(line.field("symbol")?) };
    let max_bytes = line.field("max_bytes")?;
    Ok(Port { name, elem, word_storage: line.has_word("words"), shape, max_bytes, kind })
}

fn parse_buffer(line: &mut Line) -> Result<ArenaBuffer, ParseError> {
    let name = line.text()?;
    let ByteRange { region, offset, bytes } = parse_range(line)?;
    let Region::Arena(chunk) = region else {
        return Err(line.expected("an arena range before"));
    };
    let first = line.field("steps")?;
    Ok(ArenaBuffer { name, chunk, offset, bytes, live: (first, line.field("to")?) })
}

fn parse_dispatch(line: &mut Line, kernels: &[PlanKernel]) -> Result<Dispatch, ParseError> {
    let expected = line.expected("a kernel above");
    let name = line.text()?;
    let kernel = kernels.iter().position(|k| k.name == name).ok_or(expected)?;
    Ok(Dispatch {
        kernel: kernel as u32,
        bases: Vec::new(),
        offsets: Vec::new(),
        groups: Groups::Fixed([0; 3]),
        reads: Vec::new(),
        writes: Vec::new(),
        label: String::new(),
        origin: Vec::new(),
        cost: Cost::default(),
    })
}

fn parse_dispatch_line(d: &mut Dispatch, word: &str, line: &mut Line) -> Result<(), ParseError> {
    match word {
        "label" => d.label = line.text()?,
        "groups" if line.has_word("table") => d.groups = Groups::Table(line.parse("a word of the table")?),
        "groups" => {
            let dims = line.numbers()?;
            d.groups = Groups::Fixed(dims.try_into().map_err(|_| line.expected("three counts before"))?);
        }
        "push" => {
            d.bases = line.list(parse_base)?;
            d.offsets = line.numbers()?;
        }
        "read" => d.reads.push(parse_range(line)?),
        "write" => d.writes.push(parse_range(line)?),
        "cost" => {
            d.cost.flops = line.parse("a number")?;
            line.key("flops")?;
            d.cost.bytes = line.parse("a number")?;
            line.key("bytes")?;
        }
        "from" => d.origin.push(line.text()?),
        word => return Err(line.expected(&format!("another keyword than `{word}`, then"))),
    }
    Ok(())
}

fn parse_range(line: &mut Line) -> Result<ByteRange, ParseError> {
    let region = parse_region(line)?;
    line.sign('[')?;
    let offset = line.parse("a byte offset")?;
    line.sign(';')?;
    let bytes = line.parse("a number of bytes")?;
    line.sign(']')?;
    Ok(ByteRange { region, offset, bytes })
}

/// Splits `arena12` into `arena` and 12.
fn split_index(word: &str) -> (&str, Option<u32>) {
    let digits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
    (&word[..word.len() - digits.len()], digits.parse().ok())
}

fn parse_region(line: &mut Line) -> Result<Region, ParseError> {
    let word = line.word("a region")?;
    match split_index(&word) {
        ("arena", Some(chunk)) => Ok(Region::Arena(chunk)),
        ("weights", Some(chunk)) => Ok(Region::Weights(chunk)),
        ("io", Some(slot)) => Ok(Region::Io(slot)),
        ("state", None) => Ok(Region::State),
        ("symbols", None) => Ok(Region::Symbols),
        _ => Err(line.expected(&format!("a region instead of `{word}`, then"))),
    }
}

fn parse_base(line: &mut Line) -> Result<Base, ParseError> {
    let word = line.word("a base")?;
    match split_index(&word) {
        ("arena", Some(chunk)) => Ok(Base::Arena(chunk)),
        ("weights", Some(chunk)) => Ok(Base::Weights(chunk)),
        ("io", None) => Ok(Base::IoTable),
        ("state", None) => Ok(Base::State),
        ("symbols", None) => Ok(Base::Symbols),
        _ => Err(line.expected(&format!("a base instead of `{word}`, then"))),
    }
}

/// A formula: a number, a symbol, `(a + b)`, `(a * b)`, `(a / b)`, `(a % b)`, `max(a, b)`, `min(a, b)`, `add(…)`, `mul(…)`.
fn parse_size(line: &mut Line, symbols: &[Symbol]) -> Result<Size, ParseError> {
    line.enter()?;
    let size = parse_formula(line, symbols)?;
    line.leave();
    Ok(size)
}

fn parse_formula(line: &mut Line, symbols: &[Symbol]) -> Result<Size, ParseError> {
    if line.has_sign('(') {
        return parse_infix(line, symbols);
    }
    let word = line.word("a size")?;
    if matches!(word.as_str(), "max" | "min" | "add" | "mul") && line.has_sign('(') {
        return parse_call(line, &word, symbols);
    }
    if let Ok(value) = word.parse() {
        return Ok(Size::Const(value));
    }
    let by_index = word.strip_prefix('$').and_then(|digits| digits.parse().ok());
    let by_name = || (0..symbols.len() as u16).find(|&idx| plain_symbol(symbols, idx) == Some(&word));
    let symbol = by_index.or_else(by_name);
    symbol.map(Size::Symbol).ok_or_else(|| line.expected(&format!("a symbol instead of `{word}`, then")))
}

fn parse_infix(line: &mut Line, symbols: &[Symbol]) -> Result<Size, ParseError> {
    let first = parse_size(line, symbols)?;
    let Some(sign) = ['+', '*', '/', '%'].into_iter().find(|&sign| line.has_sign(sign)) else {
        return Err(line.expected("`+`, `*`, `/` or `%`"));
    };
    let mut items = vec![first, parse_size(line, symbols)?];
    while matches!(sign, '+' | '*') && line.has_sign(sign) {
        items.push(parse_size(line, symbols)?);
    }
    line.sign(')')?;
    Ok(match sign {
        '+' => Size::Add(items),
        '*' => Size::Mul(items),
        _ => {
            let divisor = Box::new(items.pop().expect("two items were read"));
            let dividend = Box::new(items.pop().expect("two items were read"));
            if sign == '/' { Size::FloorDiv(dividend, divisor) } else { Size::Mod(dividend, divisor) }
        }
    })
}

fn parse_call(line: &mut Line, word: &str, symbols: &[Symbol]) -> Result<Size, ParseError> {
    let mut items = Vec::new();
    while !line.has_sign(')') {
        if !items.is_empty() {
            line.sign(',')?;
        }
        items.push(parse_size(line, symbols)?);
    }
    match word {
        "add" => Ok(Size::Add(items)),
        "mul" => Ok(Size::Mul(items)),
        _ => {
            let [a, b]: [Size; 2] = items.try_into().map_err(|_| line.expected("two operands before"))?;
            let (a, b) = (Box::new(a), Box::new(b));
            Ok(if word == "max" { Size::Max(a, b) } else { Size::Min(a, b) })
        }
    }
}
