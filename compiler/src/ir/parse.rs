//! Parser of the graph text form: the inverse of [`super::print::print`]. Any text gives a graph or an error, never a panic; whether the
//! graph makes sense is the verifier's business, so broken graphs can be written down and tested.

mod expr;
mod ops;
mod token;

use super::dim::{Dim, Range};
use super::graph::{Binding, Graph, Node, NodeId, Origin, UserInput, UserOutput, Value, ValueId};
use super::op::{Literal, Op, WeightRef};
use super::ty::{DType, TensorType};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use token::{Token, tokens};

/// Where and why a text is no graph.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

/// Reads one graph.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let tokens = tokens(text)?;
    let mut p = Parser { tokens: &tokens, at: 0 };
    p.word_is("graph")?;
    let mut graph = Graph { name: p.name()?, origins: vec![Origin::default()], ..Graph::default() };
    p.punct("{")?;
    let mut draft = Draft::default();
    while !p.try_punct("}") {
        p.statement(&mut graph, &mut draft)?;
    }
    let blobs = p.blobs()?;
    if p.at < tokens.len() {
        return p.fail("text after the graph");
    }
    draft.finish(&tokens, graph, &blobs)
}

/// What can be resolved only when all names are known.
#[derive(Default)]
struct Draft {
    names: BTreeMap<String, ValueId>,
    /// Token position of each node's op word; operands and bodies are read in a second pass.
    nodes: Vec<usize>,
    inputs: BTreeMap<u32, (String, UserInput)>,
    outputs: Vec<(String, OutputText)>,
    states: Vec<(String, usize)>,
    updates: Vec<(u32, usize)>,
    bindings: Vec<(String, usize)>,
    slow: Vec<(String, String)>,
}

enum OutputText {
    Value(usize),
    Int(Dim),
    Constant(String),
}

struct Parser<'a> {
    tokens: &'a [(u32, Token)],
    at: usize,
}

impl Parser<'_> {
    fn fail<T>(&self, message: &str) -> Result<T, ParseError> {
        let line = self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.0);
        let found = self.tokens.get(self.at).map_or("the end".to_string(), |t| t.1.to_string());
        Err(ParseError { line, message: format!("{message} (at {found})") })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.1)
    }

    fn try_punct(&mut self, p: &str) -> bool {
        let hit = matches!(self.peek(), Some(Token::Punct(q)) if *q == p);
        self.at += usize::from(hit);
        hit
    }

    fn punct(&mut self, p: &str) -> Result<(), ParseError> {
        if self.try_punct(p) { Ok(()) } else { self.fail(&format!("`{p}` expected")) }
    }

    fn try_word(&mut self, w: &str) -> bool {
        let hit = matches!(self.peek(), Some(Token::Word(x)) if x == w);
        self.at += usize::from(hit);
        hit
    }

    fn word_is(&mut self, w: &str) -> Result<(), ParseError> {
        if self.try_word(w) { Ok(()) } else { self.fail(&format!("`{w}` expected")) }
    }

    fn word(&mut self) -> Result<String, ParseError> {
        let Some(Token::Word(w)) = self.peek() else { return self.fail("a word expected") };
        let w = w.clone();
        self.at += 1;
        Ok(w)
    }

    fn string(&mut self) -> Result<String, ParseError> {
        let Some(Token::Str(s)) = self.peek() else { return self.fail("a quoted text expected") };
        let s = s.clone();
        self.at += 1;
        Ok(s)
    }

    /// `"a"`, or `"a" + "b"`.
    fn weight(&mut self) -> Result<WeightRef, ParseError> {
        let mut weight = WeightRef::new(&self.string()?);
        while self.try_punct("+") {
            weight.more.push(self.string()?);
        }
        Ok(weight)
    }

    fn name(&mut self) -> Result<String, ParseError> {
        if matches!(self.peek(), Some(Token::Str(_))) { self.string() } else { self.word() }
    }

    fn value_name(&mut self) -> Result<String, ParseError> {
        let Some(Token::Value(s)) = self.peek() else { return self.fail("a value expected") };
        let s = s.clone();
        self.at += 1;
        Ok(s)
    }

    /// An integer with its sign.
    fn int(&mut self) -> Result<i64, ParseError> {
        let negative = self.try_punct("-");
        let Some(Token::Number(text)) = self.peek() else { return self.fail("an integer expected") };
        let text = if negative { format!("-{text}") } else { text.clone() };
        let Ok(v) = text.parse() else { return self.fail("an integer expected") };
        self.at += 1;
        Ok(v)
    }

    fn index(&mut self) -> Result<u32, ParseError> {
        let v = self.int()?;
        u32::try_from(v).or_else(|_| self.fail("a position expected"))
    }

    /// A double: number, `inf` or `nan`, with its sign.
    fn float(&mut self) -> Result<f64, ParseError> {
        let negative = self.try_punct("-");
        let v = match self.peek() {
            Some(Token::Number(t)) => t.parse().ok(),
            Some(Token::Word(w)) if w == "inf" => Some(f64::INFINITY),
            Some(Token::Word(w)) if w == "nan" => Some(f64::NAN),
            _ => None,
        };
        let Some(v) = v else { return self.fail("a number expected") };
        self.at += 1;
        Ok(if negative { -v } else { v })
    }

    /// Items between brackets, separated by commas.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, ParseError>) -> Result<Vec<T>, ParseError> {
        self.punct("[")?;
        let mut out = vec![];
        while !self.try_punct("]") {
            if !out.is_empty() {
                self.punct(",")?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    fn ty(&mut self) -> Result<TensorType, ParseError> {
        let word = self.word()?;
        let Some(dtype) = DType::parse(&word) else { return self.fail(&format!("`{word}` is no element type")) };
        Ok(TensorType::new(dtype, self.list(Self::dim)?))
    }

    fn statement(&mut self, graph: &mut Graph, draft: &mut Draft) -> Result<(), ParseError> {
        if matches!(self.peek(), Some(Token::Value(_))) {
            return self.node_line(graph, draft);
        }
        let word = self.word()?;
        match word.as_str() {
            "symbol" => {
                let name = self.word()?;
                self.word_is("in")?;
                let min = self.int()?;
                self.punct("..")?;
                let max = self.int()?;
                graph.ranges.insert(name, Range { min, max });
            }
            "input" => {
                let index = self.index()?;
                let name = self.string()?;
                self.punct("=")?;
                let input = if self.try_word("unused") {
                    UserInput::Unused
                } else {
                    self.word_is("symbol")?;
                    UserInput::Symbol(self.word()?)
                };
                self.add_input(draft, index, name, input)?;
            }
            "output" => {
                let name = self.string()?;
                self.punct("=")?;
                let output = self.output()?;
                draft.outputs.push((name, output));
            }
            "state" => {
                let name = self.string()?;
                self.punct("=")?;
                draft.states.push((name, self.at));
                self.value_name()?;
            }
            "bind" => {
                let symbol = self.word()?;
                self.punct("=")?;
                draft.bindings.push((symbol, self.at));
                self.value_name()?;
            }
            "slow" => {
                let node = self.string()?;
                draft.slow.push((node, self.string()?));
            }
            "update" => {
                let index = self.index()?;
                self.punct("=")?;
                draft.updates.push((index, self.at));
                self.value_name()?;
            }
            _ => return self.fail(&format!("`{word}` starts no line")),
        }
        Ok(())
    }

    fn add_input(&self, draft: &mut Draft, index: u32, name: String, input: UserInput) -> Result<(), ParseError> {
        match draft.inputs.insert(index, (name, input)) {
            None => Ok(()),
            Some(_) => self.fail(&format!("input {index} is given twice")),
        }
    }

    fn output(&mut self) -> Result<OutputText, ParseError> {
        if self.try_word("int") {
            return Ok(OutputText::Int(self.dim()?));
        }
        if self.try_word("constant") {
            return Ok(OutputText::Constant(self.string()?));
        }
        let at = self.at;
        self.value_name()?;
        Ok(OutputText::Value(at))
    }

    /// First pass over `%a, %b = op … : types`: defines the values, remembers where the op starts.
    fn node_line(&mut self, graph: &mut Graph, draft: &mut Draft) -> Result<(), ParseError> {
        let mut names = vec![self.value_name()?];
        while self.try_punct(",") {
            names.push(self.value_name()?);
        }
        self.punct("=")?;
        let op_at = self.at;
        let (mut depth, mut steps) = (0i32, 0);
        while depth > 0 || !matches!(self.peek(), Some(Token::Punct(":"))) {
            match self.peek() {
                Some(Token::Punct("(")) => depth += 1,
                Some(Token::Punct(")")) => depth -= 1,
                Some(_) => {}
                None => return self.fail("a type expected"),
            }
            self.at += 1;
            steps += 1;
        }
        self.punct(":")?;
        if steps == 0 {
            return self.fail("an operation expected before the type");
        }
        let def = NodeId(draft.nodes.len() as u32);
        let mut outputs = vec![];
        for (i, name) in names.into_iter().enumerate() {
            if i > 0 {
                self.punct(",")?;
            }
            let id = ValueId(graph.values.len() as u32);
            if draft.names.insert(name.clone(), id).is_some() {
                return self.fail(&format!("%{name} is defined twice"));
            }
            graph.values.push(Value { name, ty: self.ty()?, def });
            outputs.push(id);
        }
        draft.nodes.push(op_at);
        graph.nodes.push(Node { op: Op::Matmul, inputs: vec![], outputs, origin: 0 });
        Ok(())
    }

    fn blobs(&mut self) -> Result<BTreeMap<u32, Arc<Vec<u8>>>, ParseError> {
        let mut out = BTreeMap::new();
        while self.try_word("blob") {
            let Some(&Token::Blob(n)) = self.peek() else { return self.fail("`#N` expected") };
            self.at += 1;
            self.punct("=")?;
            let mut hex = String::new();
            while let Some(Token::Word(t) | Token::Number(t)) = self.peek() {
                if t == "blob" {
                    break;
                }
                hex.push_str(t);
                self.at += 1;
            }
            let bytes =
                (0..hex.len() / 2).map(|i| hex.get(2 * i..2 * i + 2).and_then(|h| u8::from_str_radix(h, 16).ok()));
            let Some(bytes) = bytes.collect::<Option<Vec<u8>>>().filter(|_| hex.len().is_multiple_of(2)) else {
                return self.fail("hexadecimal bytes expected");
            };
            out.insert(n, Arc::new(bytes));
        }
        Ok(out)
    }

    fn resolve(&mut self, names: &BTreeMap<String, ValueId>) -> Result<ValueId, ParseError> {
        let name = self.value_name()?;
        match names.get(&name) {
            Some(&v) => Ok(v),
            None => {
                self.at -= 1;
                self.fail(&format!("%{name} is not defined"))
            }
        }
    }
}

impl Draft {
    /// Second pass: operands, bodies, attributes, roots.
    fn finish(
        self,
        tokens: &[(u32, Token)],
        mut graph: Graph,
        blobs: &BTreeMap<u32, Arc<Vec<u8>>>,
    ) -> Result<Graph, ParseError> {
        let mut p = Parser { tokens, at: 0 };
        let mut inputs = self.inputs;
        for (i, &at) in self.nodes.iter().enumerate() {
            p.at = at;
            let scope = ops::Scope { graph: &graph, names: &self.names, blobs, node: i };
            let parsed = p.op(&scope)?;
            if let (Op::Input { index }, Some(name)) = (&parsed.op, parsed.input_name) {
                let v = UserInput::Tensor(graph.nodes[i].outputs[0]);
                if inputs.insert(*index, (name, v)).is_some() {
                    return p.fail(&format!("input {index} is given twice"));
                }
            }
            graph.nodes[i].op = parsed.op;
            graph.nodes[i].inputs = parsed.inputs;
        }
        if inputs.keys().copied().ne(0..inputs.len() as u32) {
            return p.fail("user inputs are not numbered without gaps");
        }
        graph.inputs = inputs.into_values().collect();
        let mut root = |at: usize| {
            p.at = at;
            p.resolve(&self.names)
        };
        for (name, output) in self.outputs {
            let output = match output {
                OutputText::Value(at) => UserOutput::Tensor(root(at)?),
                OutputText::Int(d) => UserOutput::Int(d),
                OutputText::Constant(text) => UserOutput::Constant(text),
            };
            graph.outputs.push((name, output));
        }
        for (name, at) in self.states {
            graph.state_updates.push((name, root(at)?));
        }
        for (symbol, at) in self.bindings {
            graph.bindings.push(Binding { symbol, count: root(at)? });
        }
        graph.slow = self.slow;
        for (index, at) in self.updates {
            graph.input_updates.push((index, root(at)?));
        }
        Ok(graph)
    }
}

/// A literal over given bytes, if they fit the type.
fn literal(ty: &TensorType, bytes: Arc<Vec<u8>>) -> Option<Literal> {
    let n = ty.const_shape()?.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
    let fits = n.checked_mul(i64::from(ty.dtype.size_bytes()))? == bytes.len() as i64;
    fits.then(|| Literal { ty: ty.clone(), bytes })
}
