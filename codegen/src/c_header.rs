//! `include/NAME.h` of a generated crate: the contract of its C interface, and what its ports are, as constants.

use std::fmt::Write as _;

use crate::c_code::prefix;
use crate::c_codes::CODES;
use crate::entry::EntryNames;
use crate::ident::{Unique, upper};
use crate::plan::{Elem, Plan, Port, PortKind, Size};
use crate::size_code::size_text;
use crate::weights::FILE_NAME;

/// Everything between the includes and the first entry point, with `@` for the prefix of functions and `$` for that of constants.
const CONTRACT: &str = "\
/* What functions return. Words for the latest failure on this thread: @_last_error(), never null; the text is valid until the next
 * failure on this thread, or its end. */
typedef int32_t @_status;
enum {
%CODES%};
const char *@_last_error(void);

/* Element types. Booleans are bytes of 0 and 1; halves are the bits of an IEEE 754 binary16 or of a bfloat16 in an uint16_t. */
enum {
%DTYPES%};

/* An input: elements row by row, at an address that suits them. The array stays the caller's, and is copied before a call returns. */
typedef struct @_input {
    const void *data;
    size_t bytes; /* of all elements: must be the product of the shape at the sizes of the call */
} @_input;

/* An output. The array is the caller's; null where the output is not wanted. */
typedef struct @_output {
    void *data;
    size_t capacity; /* bytes that have room there; the most that can be needed stands below */
    size_t bytes;    /* written: bytes of the output, also if they have no room */
} @_output;

typedef struct @_program @_program; /* kernels and weights on a device; may be used by several threads at once */
typedef struct @_session @_session; /* an entry point with memory for its runs; calls from several threads take turns */

/* Opens a device and loads the program. `gpu`: part of a device's name or its number, null for the best. `weights`: path of `%WEIGHTS%`.
 * `cache`: folder of compiled kernels, null for the user's cache folder, \"\" for none. The caller owns the program. */
@_status @_load(const char *gpu, const char *weights, const char *cache, @_program **program);

/* Frees a program; null is fine. Its sessions stay valid: order does not matter. */
void @_free(@_program *program);

/* A session of an entry point ($_ENTRY_...) for `n_slots` runs in flight. The caller owns it. */
@_status @_session_new(const @_program *program, uint32_t entry, size_t n_slots, @_session **session);

/* Waits for runs in flight, and frees a session; null is fine. */
void @_session_free(@_session *session);

/* Runs and waits. Sizes, inputs and outputs come by the positions below; arrays may be null where there are none. */
@_status @_run(@_session *session, const int64_t *sizes, size_t n_sizes, const @_input *inputs, size_t n_inputs,
    @_output *outputs, size_t n_outputs);

/* Starts a run in a free slot and returns at once; inputs have been copied then. */
@_status @_submit(@_session *session, const int64_t *sizes, size_t n_sizes, const @_input *inputs, size_t n_inputs,
    uint64_t *ticket);

/* Waits for a run, copies its outputs and frees its slot, also if it fails: but for a wrong number of outputs, the ticket is spent. */
@_status @_wait(@_session *session, uint64_t ticket, @_output *outputs, size_t n_outputs);

/* `done` becomes 1 once a run has finished, else 0. It still has to be waited for. */
@_status @_is_done(@_session *session, uint64_t ticket, int32_t *done);

/* Gives up a run's outputs: its slot becomes free when it has finished. */
@_status @_cancel(@_session *session, uint64_t ticket);

/* The next run starts from the initial state; nothing happens where there is no state. */
@_status @_reset(@_session *session);
";

/// The file's path in the crate, and its text.
pub(crate) fn header(plan: &Plan, entries: &[EntryNames<'_>]) -> (String, String) {
    let (lower, upper) = (prefix(plan), upper(&plan.name));
    let codes: Vec<String> =
        CODES.iter().map(|(name, code, text)| format!("    {upper}_{name} = {code}, /* {text} */\n")).collect();
    let dtypes: Vec<String> =
        Elem::ALL.iter().map(|e| format!("    {upper}_{} = {},\n", dtype(*e), number(*e))).collect();
    let contract = CONTRACT.replace('@', &lower).replace('$', &upper).replace("%WEIGHTS%", FILE_NAME);
    let contract = contract.replace("%CODES%", &codes.concat()).replace("%DTYPES%", &dtypes.concat());
    let mut text = format!(
        "/* The C interface of `{}`, a program compiled by jvc for `{}`. Generated, not edited: change the model or the\n \
         * options, and compile again. The library: cargo build --release --features c-api. */\n\
         #ifndef {upper}_H\n#define {upper}_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n{contract}",
        comment(&plan.name),
        comment(&plan.device)
    );
    let mut macros = Macros { prefix: upper.clone(), unique: Unique::default(), text: String::new() };
    for (index, entry) in entries.iter().enumerate() {
        macros.entry(index, entry);
    }
    text += &macros.text;
    let _ = write!(text, "\n#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {upper}_H */\n");
    (format!("include/{lower}.h"), text)
}

/// The constants of all entry points.
struct Macros {
    prefix: String,
    unique: Unique,
    text: String,
}

impl Macros {
    fn entry(&mut self, index: usize, names: &EntryNames<'_>) {
        let entry = names.entry;
        let scope = names.module.to_string().to_ascii_uppercase();
        let _ = writeln!(self.text, "\n/* Entry point `{}`. */", comment(&entry.name));
        self.define(&format!("ENTRY_{scope}"), &index.to_string(), "");
        let inputs: Vec<_> = entry.inputs.iter().zip(&names.input_fields).filter(|(p, _)| p.has_buffer()).collect();
        let outputs: Vec<_> = entry.outputs.iter().zip(&names.output_fields).collect();
        for (what, n) in [("SIZES", names.chosen().count()), ("INPUTS", inputs.len()), ("OUTPUTS", outputs.len())] {
            self.define(&format!("{scope}_N_{what}"), &n.to_string(), "");
        }
        for (position, (_, symbol, field)) in names.chosen().enumerate() {
            let word = field.to_string().to_ascii_uppercase();
            let _ = writeln!(self.text, "/* Size `{field}`: {} to {}. */", symbol.min, symbol.max);
            self.define(&format!("{scope}_SIZE_{word}"), &position.to_string(), "");
            self.define(&format!("{scope}_MAX_SIZE_{word}"), &symbol.max.to_string(), "");
        }
        for (way, ports) in [("IN", inputs), ("OUT", outputs)] {
            for (position, (port, field)) in ports.into_iter().enumerate() {
                self.port(names, (&scope, way), position, port, &field.to_string());
            }
        }
    }

    fn port(&mut self, names: &EntryNames<'_>, (scope, way): (&str, &str), position: usize, port: &Port, field: &str) {
        let dims: Vec<String> = port.shape.iter().map(|size| size_text(size, &names.symbols)).collect();
        let what = match port.kind {
            PortKind::Io(_) => format!("{}[{}]", port.elem.name(), dims.join(", ")),
            PortKind::Symbol(index) => format!("the integer {}", names.symbols[usize::from(index)]),
        };
        let way_words = if way == "IN" { "Input" } else { "Output" };
        let _ = writeln!(self.text, "/* {way_words} `{}`: {what}. */", comment(&port.name));
        let word = field.trim_end_matches('_').to_ascii_uppercase();
        self.define(&format!("{scope}_{way}_{word}"), &position.to_string(), "");
        let dtype = format!("{}_{}", self.prefix, dtype(port.elem));
        self.define(&format!("{scope}_DTYPE_{way}_{word}"), &dtype, "");
        let shape: Vec<String> = port.shape.iter().map(extent).collect();
        self.define(&format!("{scope}_RANK_{way}_{word}"), &shape.len().to_string(), "");
        if !shape.is_empty() {
            let note = if shape.iter().any(|extent| extent == "-1") { "-1: by the sizes" } else { "" };
            self.define(&format!("{scope}_SHAPE_{way}_{word}"), &format!("{{{}}}", shape.join(", ")), note);
        }
        let elems = port.elems(&names.entry.greatest_symbols()).unwrap_or(0);
        let bytes = elems.saturating_mul(port.elem.size_bytes());
        self.define(&format!("{scope}_MAX_BYTES_{way}_{word}"), &format!("{bytes}u"), "");
    }

    fn define(&mut self, name: &str, value: &str, note: &str) {
        let name = self.unique.take(format!("{}_{name}", self.prefix));
        let note = if note.is_empty() { String::new() } else { format!(" /* {note} */") };
        let _ = writeln!(self.text, "#define {name} {value}{note}");
    }
}

fn extent(size: &Size) -> String {
    match size.simplified() {
        Size::Const(value) => value.to_string(),
        _ => "-1".to_string(),
    }
}

fn dtype(elem: Elem) -> String {
    format!("DTYPE_{}", elem.name().to_ascii_uppercase())
}

/// Never changes: programs may keep these numbers.
fn number(elem: Elem) -> u32 {
    match elem {
        Elem::Bool => 0,
        Elem::U8 => 1,
        Elem::I8 => 2,
        Elem::I16 => 3,
        Elem::I32 => 4,
        Elem::I64 => 5,
        Elem::F16 => 6,
        Elem::BF16 => 7,
        Elem::F32 => 8,
        Elem::F64 => 9,
    }
}

/// A name of the plan, which must not end a comment.
fn comment(name: &str) -> String {
    name.replace("*/", "* /").replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_a_comment() {
        assert_eq!(comment("a*/b\nc"), "a* /b c");
    }
}
