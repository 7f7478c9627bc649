//! Tokens to text: prettyplease, then what it does differently from rustfmt is set right, so that rustfmt leaves the result alone
//! under the `rustfmt.toml` that goes with it: blank lines between items, lists on one line where they fit, numbers packed in lines.
//!
//! Emitters keep to what both tools agree on: no chains of calls that break, no closures that span lines.

use proc_macro2::TokenStream;

/// Columns of a line.
const WIDTH: usize = 100;
/// Longest element of a list that is packed, several a line.
const SHORT: usize = 10;

/// `rustfmt.toml` of generated crates.
pub(crate) const RUSTFMT: &str = "max_width = 100\nuse_small_heuristics = \"Max\"\n";

/// The text of a file.
pub(crate) fn format_file(tokens: TokenStream) -> String {
    let file: syn::File = syn::parse2(tokens).expect("generated tokens are a Rust file");
    let text = prettyplease::unparse(&file);
    let mut lines: Vec<String> = join_lists(&mut text.lines().peekable());
    lines = space_items(lines);
    lines.push(String::new());
    lines.join("\n")
}

/// Puts a blank line before an item (with its docs and attributes) that follows another one.
fn space_items(lines: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for line in lines {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if starts_item(body) && out.last().is_some_and(|previous| needs_space(previous, indent, body)) {
            out.push(String::new());
        }
        out.push(line);
    }
    out
}

fn starts_item(body: &str) -> bool {
    let words = ["pub ", "pub(", "fn ", "const ", "static ", "impl ", "struct ", "use ", "mod ", "#[", "///"];
    words.iter().any(|word| body.starts_with(word))
}

fn needs_space(previous: &str, indent: usize, body: &str) -> bool {
    let before = previous.trim_start();
    let is_sibling = previous.len() - before.len() == indent && !before.is_empty();
    let is_attached = before.starts_with("///") || before.starts_with("#[");
    let group =
        |line: &str| ["mod ", "pub use ", "use ", "pub(crate) const "].iter().position(|word| line.starts_with(word));
    let is_grouped = group(before).is_some() && group(before) == group(body);
    let is_field = indent > 0 && before.ends_with(',');
    is_sibling && !is_attached && !is_grouped && !is_field
}

type Lines<'a> = std::iter::Peekable<std::str::Lines<'a>>;

/// Joins the lists of all lines up to one that closes a list opened before.
fn join_lists(lines: &mut Lines<'_>) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(line) = lines.next_if(|line| !closes(line)) {
        let mut line = line.to_string();
        // A line that closes a list may open the next one: `) -> T {`, `} else {`.
        while let Some(kind) = opens(&line) {
            let inner = join_lists(lines);
            let end = lines.next().unwrap_or("").to_string();
            let mut group = match kind {
                Opener::Block => std::iter::once(line).chain(inner).chain([end]).collect(),
                Opener::List(space) => join_list(line, inner, end, space),
            };
            line = group.pop().unwrap_or_default();
            out.extend(group);
        }
        out.push(line);
    }
    out
}

enum Opener {
    /// Statements, fields of a declaration, arms.
    Block,
    /// Elements, joined with this space inside the brackets.
    List(&'static str),
}

fn closes(line: &str) -> bool {
    line.trim_start().starts_with([')', ']', '}'])
}

fn opens(line: &str) -> Option<Opener> {
    let body = line.trim_start();
    if body.starts_with("//") {
        return None;
    }
    match body.chars().last()? {
        '(' | '[' => Some(Opener::List("")),
        '{' if body.starts_with("use ") || body.starts_with("pub use ") => Some(Opener::List("")),
        '{' if is_struct_literal(body) => Some(Opener::List(" ")),
        '{' => Some(Opener::Block),
        _ => None,
    }
}

/// `… Name {` in an expression, not a declaration, a function or a control structure.
fn is_struct_literal(body: &str) -> bool {
    let words = ["pub struct ", "struct ", "impl ", "fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "const fn "];
    let controls = ["if ", "for ", "while ", "match ", " else {", "|_|", "-> "];
    let name = body.trim_end_matches(" {").rsplit([' ', '(', '&', '[', ':']).next().unwrap_or("");
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase());
    is_name && !words.iter().any(|w| body.starts_with(w)) && !controls.iter().any(|w| body.contains(w))
}

/// One line where it fits; else short elements packed, or as it was.
fn join_list(line: String, inner: Vec<String>, end: String, space: &str) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let is_flat = inner.iter().all(|l| l.len() - l.trim_start().len() == indent + 4);
    let is_use = line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub use ");
    // prettyplease packs numbers as well, but to its own width.
    let is_packed = is_use || line.ends_with('[') && !inner.iter().any(|l| l.contains(['"', '(', '[', '{']));
    let elements: Vec<&str> = match is_packed {
        true => inner.iter().flat_map(|l| l.trim().split_inclusive(", ")).map(str::trim).collect(),
        false => inner.iter().map(|l| l.trim()).collect(),
    };
    let end_body = end.trim_start();
    // The argument of a macro has no comma after it.
    let is_macro = line.ends_with("!(") && elements.len() == 1;
    let is_list = is_macro || elements.iter().all(|e| e.ends_with(',') || e.starts_with(".."));
    let joined = if is_flat && is_list { Some(elements.join(" ")) } else { flatten(&inner) };
    if let Some(joined) = joined {
        let joined = joined.trim_end_matches(',');
        let whole = format!("{line}{space}{joined}{space}{end_body}");
        // rustfmt leaves the last column free here.
        if whole.len() + usize::from(is_use) <= WIDTH {
            return vec![whole];
        }
        if let Some((left, right)) = line.split_once(" = ") {
            let alone = format!("{:width$}{right}{space}{joined}{space}{end_body}", "", width = indent + 4);
            if alone.len() <= WIDTH {
                return vec![format!("{left} ="), alone];
            }
        }
    }
    // rustfmt packs no calls.
    let is_short = |e: &&str| e.trim_end_matches(',').len() <= SHORT && !e.contains('(');
    if is_flat && is_list && (is_use || line.ends_with('[') && elements.iter().all(is_short)) {
        let packed = pack(&elements, indent + 4);
        return std::iter::once(line).chain(packed).chain([end]).collect();
    }
    hug(&line, &inner, &end).unwrap_or_else(|| std::iter::once(line).chain(inner).chain([end]).collect())
}

/// A call whose only argument is a call that does not fit on a line: `Ok(f(`, the inner arguments, `))`.
fn hug(line: &str, inner: &[String], end: &str) -> Option<Vec<String>> {
    let [first, middle @ .., last] = inner else { return None };
    let indent = first.len() - first.trim_start().len();
    let is_inside = |l: &String| l.len() - l.trim_start().len() > indent;
    let is_call = line.ends_with('(') && first.ends_with('(') && !middle.is_empty() && middle.iter().all(is_inside);
    let closes = last.trim().trim_end_matches(',');
    let outer = line.len() - line.trim_start().len();
    let opening = format!("{line}{}", first.trim_start());
    (is_call && closes == ")" && opening.len() <= WIDTH).then(|| {
        let closing = format!("{:outer$}{closes}{}", "", end.trim_start());
        let middle = middle.iter().map(|l| l.strip_prefix("    ").unwrap_or(l).to_string());
        std::iter::once(opening).chain(middle).chain([closing]).collect()
    })
}

/// The elements of a list on one line, lists in it included; nothing where it holds statements or comments.
fn flatten(lines: &[String]) -> Option<String> {
    let mut flat = String::new();
    for line in lines.iter().map(|l| l.trim()) {
        if line.starts_with("//") || line.ends_with(';') || matches!(opens(line), Some(Opener::Block)) {
            return None;
        }
        if line.starts_with([')', ']', '}']) {
            flat.truncate(flat.trim_end_matches(',').len());
        }
        // A method call of a chain that fits, not `..` of a struct.
        let is_call = line.starts_with('.') && !line.starts_with("..");
        let is_tight = is_call || flat.is_empty() || flat.ends_with(['(', '[']) || line.starts_with([')', ']']);
        flat.push_str(if is_tight { "" } else { " " });
        flat.push_str(line);
    }
    Some(flat)
}

/// Fills lines with elements.
fn pack(elements: &[&str], indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for element in elements {
        match lines.last_mut() {
            // rustfmt leaves the last column of packed lines free.
            Some(line) if line.len() + 1 + element.len() < WIDTH => {
                line.push(' ');
                line.push_str(element);
            }
            _ => lines.push(format!("{:indent$}{element}", "")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    #[test]
    fn a_chain_of_calls_that_fits_is_joined_without_a_space() {
        let text = format_file(quote! {
            fn table(s40: i64, s62: i64) -> Result<[u32; 2], Error> {
                Ok([word((((s40 + 2) * (s62 + 2) * 3 + 63).div_euclid(64) + 65534).div_euclid(65535))?, word(1)?])
            }
        });
        assert!(text.contains("+ 65534).div_euclid(65535))?"), "{text}");
    }
}
