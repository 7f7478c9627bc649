//! Operations: word, operands, attributes. Every attribute of an op must be there, and nothing else.

use super::{ParseError, Parser, Token, literal};
use crate::ir::dim::Dim;
use crate::ir::eval::Tensor;
use crate::ir::graph::{Graph, ValueId};
use crate::ir::op::{Op, WeightRef, Window};
use crate::ir::print::{CELLS, COMBINES, MODES, cell_word, combine_word, mode_word};
use crate::ir::ty::TensorType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an operation may refer to.
pub(super) struct Scope<'a> {
    pub(super) graph: &'a Graph,
    pub(super) names: &'a BTreeMap<String, ValueId>,
    pub(super) blobs: &'a BTreeMap<u32, Arc<Vec<u8>>>,
    /// Position of the node itself.
    pub(super) node: usize,
}

impl Scope<'_> {
    /// Type of the node's first result.
    fn ty(&self) -> &TensorType {
        self.graph.ty(self.graph.nodes[self.node].outputs[0])
    }
}

/// An operation as read.
pub(super) struct Parsed {
    pub(super) op: Op,
    pub(super) inputs: Vec<ValueId>,
    /// Name of the user input, of an `input` line that has one.
    pub(super) input_name: Option<String>,
}

impl Parser<'_> {
    /// From the op's word up to the colon.
    pub(super) fn op(&mut self, scope: &Scope<'_>) -> Result<Parsed, ParseError> {
        let word = self.word()?;
        let mut input_name = None;
        let (op, inputs) = match word.as_str() {
            "input" => {
                let index = self.index()?;
                if matches!(self.peek(), Some(Token::Str(_))) {
                    input_name = Some(self.string()?);
                }
                (Op::Input { index }, vec![])
            }
            "weight" => (Op::Weight(self.weight()?), vec![]),
            "state" => (Op::State(WeightRef::new(&self.string()?)), vec![]),
            "const" => (self.constant(scope)?, vec![]),
            "map" | "compute" => {
                let body_at = self.at;
                self.skip_parentheses()?;
                let inputs = self.operands(scope)?;
                let end = self.at;
                let types: Vec<TensorType> = inputs.iter().map(|&v| scope.graph.ty(v).clone()).collect();
                self.at = body_at;
                let body = self.body(&types)?;
                self.at = end;
                (if word == "map" { Op::Map(body) } else { Op::Compute(body) }, inputs)
            }
            _ => {
                let inputs = self.operands(scope)?;
                (self.attributes(&word, scope)?, inputs)
            }
        };
        self.punct(":")?;
        Ok(Parsed { op, inputs, input_name })
    }

    fn skip_parentheses(&mut self) -> Result<(), ParseError> {
        let mut depth = 0;
        loop {
            match self.peek() {
                Some(Token::Punct("(")) => depth += 1,
                Some(Token::Punct(")")) => depth -= 1,
                Some(_) => {}
                None => return self.fail("`)` expected"),
            }
            self.at += 1;
            if depth <= 0 {
                return Ok(());
            }
        }
    }

    fn operands(&mut self, scope: &Scope<'_>) -> Result<Vec<ValueId>, ParseError> {
        let mut out = vec![];
        while matches!(self.peek(), Some(Token::Value(_))) {
            out.push(self.resolve(scope.names)?);
            if !self.try_punct(",") {
                break;
            }
        }
        Ok(out)
    }

    fn constant(&mut self, scope: &Scope<'_>) -> Result<Op, ParseError> {
        let ty = scope.ty().clone();
        let bytes = if let Some(&Token::Blob(n)) = self.peek() {
            self.at += 1;
            scope.blobs.get(&n).cloned()
        } else if ty.dtype.is_float() {
            let v = self.list(Self::float)?;
            Some(Arc::new(Tensor::from_f64(ty.dtype, &[v.len()], v).to_bytes()))
        } else {
            let v = self.list(Self::int)?;
            Some(Arc::new(Tensor::from_i64(ty.dtype, &[v.len()], v).to_bytes()))
        };
        match bytes.and_then(|b| literal(&ty, b)) {
            Some(lit) => Ok(Op::Const(lit)),
            None => self.fail(&format!("the constant has not the bytes of {ty}")),
        }
    }

    fn attributes(&mut self, word: &str, scope: &Scope<'_>) -> Result<Op, ParseError> {
        Ok(match word {
            "reshape" => Op::Reshape(scope.ty().shape.clone()),
            "broadcast" => Op::Broadcast(scope.ty().shape.clone()),
            "matmul" => Op::Matmul,
            "permute" => Op::Permute(self.dims("perm")?),
            "slice" => Op::Slice {
                dim: self.dim_number()?,
                start: self.size("start")?,
                len: self.size("len")?,
                step: self.int_named("step")?,
            },
            "pad" => {
                Op::Pad { before: self.ints("before")?, after: self.ints("after")?, value: self.float_named("value")? }
            }
            "concat" => Op::Concat { dim: self.dim_number()? },
            "flip" => Op::Flip(self.dims("dims")?),
            "reduce" => {
                let combine = self.choice(&COMBINES, combine_word)?;
                Op::Reduce { combine, dims: self.dims("dims")?, dtype: scope.ty().dtype }
            }
            "softmax" => Op::Softmax { dim: self.dim_number()?, log: self.try_word("log") },
            "norm" => Op::Norm { dims: self.dims("dims")?, eps: self.float_named("eps")?, rms: self.try_word("rms") },
            "variance" => Op::Variance { dims: self.dims("dims")?, correction: self.float_named("correction")? },
            "moments" => {
                let each = if self.next_is("each") { Some(self.int_named("each")?) } else { None };
                let eps = if self.next_is("eps") { Some(self.float_named("eps")?) } else { None };
                Op::Moments { each, eps }
            }
            "conv" => Op::Conv { window: self.window()?, groups: self.int_named("groups")? },
            "conv_transpose" => Op::ConvTranspose {
                window: self.window()?,
                groups: self.int_named("groups")?,
                output_padding: self.ints("output_padding")?,
            },
            "pool" => self.pool()?,
            "attention" => Op::Attention {
                scale: self.float_named("scale")?,
                causal: self.try_word("causal"),
                zero_masked_rows: self.try_word("zero_masked_rows"),
                masked: self.try_word("masked"),
            },
            "attention_parts" => Op::AttentionParts {
                scale: self.float_named("scale")?,
                parts: self.int_named("parts")?,
                len: self.int_named("len")?,
                masked: self.try_word("masked"),
            },
            "recurrent" => {
                let cell = self.choice(&CELLS, cell_word)?;
                Op::Recurrent { cell, reverse: self.try_word("reverse"), bias: self.try_word("bias") }
            }
            "scan" => Op::Scan {
                combine: self.choice(&COMBINES, combine_word)?,
                dim: self.dim_number()?,
                skip: if self.next_is("skip") { self.int_named("skip")? } else { 0 },
            },
            "scatter" => {
                let mode = self.choice(&MODES, mode_word)?;
                Op::Scatter { dims: self.dims("dims")?, mode }
            }
            "sort" => Op::Sort {
                dim: self.dim_number()?,
                descending: self.try_word("descending"),
                keep: if self.try_word("keep") { Some(self.kept()?) } else { None },
            },
            "fft" => Op::Fft { inverse: self.try_word("inverse") },
            _ => return self.fail(&format!("`{word}` is no operation")),
        })
    }

    fn pool(&mut self) -> Result<Op, ParseError> {
        let max = self.try_word("max");
        if !max {
            self.word_is("average")?;
        }
        let kernel = self.ints("kernel")?;
        let window = self.window()?;
        self.attribute("out")?;
        let out = self.list(Self::dim)?;
        let count_include_pad = self.try_word("count_include_pad");
        let divisor = if self.next_is("divisor") { Some(self.int_named("divisor")?) } else { None };
        Ok(Op::Pool { kernel, window, out, max, count_include_pad, divisor, indices: self.try_word("indices") })
    }

    fn attribute(&mut self, name: &str) -> Result<(), ParseError> {
        self.word_is(name)?;
        self.punct("=")
    }

    fn ints(&mut self, name: &str) -> Result<Vec<i64>, ParseError> {
        self.attribute(name)?;
        self.list(Self::int)
    }

    fn dims(&mut self, name: &str) -> Result<Vec<usize>, ParseError> {
        self.attribute(name)?;
        self.list(|p| p.index().map(|d| d as usize))
    }

    fn dim_number(&mut self) -> Result<usize, ParseError> {
        self.attribute("dim")?;
        self.index().map(|d| d as usize)
    }

    fn kept(&mut self) -> Result<Dim, ParseError> {
        self.punct("=")?;
        self.dim()
    }

    fn size(&mut self, name: &str) -> Result<Dim, ParseError> {
        self.attribute(name)?;
        self.dim()
    }

    fn next_is(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(w)) if w == name)
    }

    fn int_named(&mut self, name: &str) -> Result<i64, ParseError> {
        self.attribute(name)?;
        self.int()
    }

    fn float_named(&mut self, name: &str) -> Result<f64, ParseError> {
        self.attribute(name)?;
        self.float()
    }

    fn window(&mut self) -> Result<Window, ParseError> {
        Ok(Window { stride: self.ints("stride")?, padding: self.ints("padding")?, dilation: self.ints("dilation")? })
    }

    fn choice<T: Copy>(&mut self, all: &[T], word: fn(T) -> &'static str) -> Result<T, ParseError> {
        let given = self.word()?;
        match all.iter().copied().find(|&c| word(c) == given) {
            Some(c) => Ok(c),
            None => self.fail(&format!("`{given}` is no such kind")),
        }
    }
}
