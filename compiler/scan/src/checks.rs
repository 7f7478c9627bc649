//! Checks of sizes and arguments, before anything is submitted.

use jvc_runtime::Error;

/// A slice has as many elements as its shape says.
pub(crate) fn len(name: &str, got: usize, need: usize) -> Result<(), Error> {
    if got == need {
        return Ok(());
    }
    Err(argument(&format!("elements of {name}"), &need.to_string(), got))
}

pub(crate) fn argument(what: &str, need: &str, got: impl ToString) -> Error {
    Error::Argument { what: what.to_string(), need: need.to_string(), got: got.to_string() }
}
