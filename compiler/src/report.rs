//! What a user is told: diagnostics (their model or device cannot be compiled as asked) and notes (decisions with reason codes).

use crate::ir::Origin;
use std::fmt;

/// Something of the user's that cannot be compiled. Stages collect all of them before they give up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable code (`E0103`); `jvc ops` and the docs list them.
    pub code: Code,
    /// Where in the user's model. Boxed: results carry diagnostics everywhere.
    pub origin: Box<Origin>,
    /// What is wrong, values named: `dilation=[2, 2] is not supported (only [1, 1])`.
    pub message: String,
    /// What to do about it, if anything is known.
    pub help: Option<String>,
    /// Of [`Code::UnsupportedAttribute`]: the code of the limit in `jvc ops`.
    pub limit: Option<&'static str>,
}

/// The closed list of diagnostic codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// An operator without a rule.
    UnsupportedOp,
    /// An attribute value that a rule does not cover.
    UnsupportedAttribute,
    /// An element type that a rule or the device does not cover.
    UnsupportedDType,
    /// A shape that is symbolic or data-dependent where a literal is needed.
    UnsupportedShape,
    /// An argument that contradicts the operator's schema.
    BadArgument,
    /// A symbol without an upper bound.
    Unbounded,
    /// Tensors without a payload.
    MissingWeights,
    /// The device lacks a feature or a limit is too small.
    Device,
    /// Something is off the fast path and `--deny slow` was given.
    Slow,
}

impl Code {
    /// Every code, in order.
    pub const ALL: [Code; 9] = [
        Code::UnsupportedOp,
        Code::UnsupportedAttribute,
        Code::UnsupportedDType,
        Code::UnsupportedShape,
        Code::BadArgument,
        Code::Unbounded,
        Code::MissingWeights,
        Code::Device,
        Code::Slow,
    ];

    /// The stable text.
    pub const fn text(self) -> &'static str {
        match self {
            Code::UnsupportedOp => "E0101",
            Code::UnsupportedAttribute => "E0102",
            Code::UnsupportedDType => "E0103",
            Code::UnsupportedShape => "E0104",
            Code::BadArgument => "E0105",
            Code::Unbounded => "E0201",
            Code::MissingWeights => "E0202",
            Code::Device => "E0301",
            Code::Slow => "E0401",
        }
    }
}

impl Diagnostic {
    /// A diagnostic without origin; the driver of the stage adds it.
    pub fn new(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, origin: Box::default(), message: message.into(), help: None, limit: None }
    }

    /// With advice.
    pub fn with_help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// With the code of the limit that refuses it.
    pub fn under(mut self, limit: &'static str) -> Diagnostic {
        self.limit = Some(limit);
        self
    }

    /// With the node that it is about.
    pub fn at(mut self, origin: &Origin) -> Diagnostic {
        *self.origin = origin.clone();
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.text(), self.message)?;
        let o = &self.origin;
        if !o.node.is_empty() {
            write!(f, "\n  at node {} ({})", o.node, o.target)?;
        }
        if !o.module.is_empty() {
            write!(f, "\n  in module {}", o.module)?;
        }
        if !o.line.is_empty() {
            write!(f, "\n  from {}", o.line)?;
        }
        if let Some(limit) = self.limit {
            write!(f, "\n  limit: {limit} (see jvc ops)")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}
