//! Diagnostics as text: each kind once, with how often and where first.

use crate::report::Diagnostic;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// All diagnostics, equal ones joined with their count.
pub(super) fn render(all: &[Diagnostic]) -> String {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Diagnostic>> = BTreeMap::new();
    for d in all {
        groups.entry((d.code.text(), &d.message, &d.origin.target)).or_default().push(d);
    }
    let mut out = match all.len() {
        1 => "the program cannot be compiled for this device".to_string(),
        n => format!("the program cannot be compiled for this device, for {n} reasons"),
    };
    for same in groups.values() {
        write!(out, "\n{}", same[0]).expect("writing to a string succeeds");
        if same.len() > 1 {
            write!(out, "\n  and {} more of these", same.len() - 1).expect("writing to a string succeeds");
        }
    }
    out
}

/// Diagnostics for scripts.
pub(super) fn to_json(all: &[Diagnostic]) -> Value {
    let one = |d: &Diagnostic| {
        json!({
            "code": d.code.text(), "limit": d.limit, "message": d.message, "help": d.help,
            "node": d.origin.node, "target": d.origin.target, "module": d.origin.module, "line": d.origin.line,
        })
    };
    all.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Origin;
    use crate::report::Code;

    #[test]
    fn equal_diagnostics_are_shown_once_with_their_count() {
        let at = |node: &str| {
            let origin = Origin { node: node.into(), target: "aten.nms.default".into(), ..Origin::default() };
            Diagnostic::new(Code::UnsupportedOp, "no rule for this operator").at(&origin)
        };
        let text = render(&[at("nms"), at("nms_1"), Diagnostic::new(Code::Unbounded, "symbol s0 has no upper bound")]);
        assert_eq!(text.matches("E0101").count(), 1);
        assert!(text.contains("for 3 reasons") && text.contains("and 1 more") && text.contains("E0201"), "{text}");
    }
}
