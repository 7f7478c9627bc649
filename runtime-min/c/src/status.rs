//! Codes that the functions give, the words for the latest failure of each thread, and the end of the way of panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::codes::CODES;
use jvc_runtime::Error;

/// The code of success.
pub const OK: i32 = 0;
const PANIC: i32 = 9;

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// Words for the latest failure on this thread, empty before the first: valid until the next failure on this thread, or its end.
pub fn last_error() -> *const c_char {
    LATEST.try_with(|latest| latest.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Does something that may fail or panic, and gives its code; the words are kept.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Error>) -> i32 {
    // What a panic leaves half done is memory-safe, and its owner is told that it is a bug.
    let (code, words) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return OK,
        Ok(Err(error)) => (code(&error), error.to_string()),
        Err(panic) => (PANIC, format!("a bug in the library: {}", words(&*panic))),
    };
    let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no place for words any more.
    let _ = LATEST.try_with(|latest| *latest.borrow_mut() = words);
    code
}

fn code(error: &Error) -> i32 {
    let name = match error {
        Error::Argument { .. } => "ERROR_ARGUMENT",
        Error::Loader { .. } | Error::NoDevice { .. } | Error::Requirement { .. } | Error::Missing { .. } => {
            "ERROR_DEVICE"
        }
        Error::Weights { .. } => "ERROR_WEIGHTS",
        Error::OutOfMemory { .. } => "ERROR_MEMORY",
        Error::SlotsBusy { .. } => "ERROR_BUSY",
        Error::Found { .. } => "ERROR_SIZES",
        Error::DeviceLost { .. } => "ERROR_LOST",
        _ => "ERROR_VULKAN",
    };
    CODES.iter().find(|row| row.0 == name).map_or(PANIC, |row| row.1)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest() -> String {
        // SAFETY: the words are kept until the next failure on this thread.
        unsafe { std::ffi::CStr::from_ptr(last_error()) }.to_str().expect("text").to_owned()
    }

    #[test]
    fn errors_and_panics_have_codes_and_words_of_their_thread() {
        let name = |code: i32| CODES.iter().find(|row| row.1 == code).expect("a code of the table").0;
        assert_eq!(latest(), "");
        let error = Error::SlotsBusy { n_slots: 3 };
        assert_eq!(name(guard(|| Err(error.clone()))), "ERROR_BUSY");
        assert_eq!(latest(), error.to_string());
        assert_eq!(name(guard(|| panic!("at \0 {}", 7))), "ERROR_PANIC");
        assert_eq!(latest(), "a bug in the library: at   7");
        assert_eq!(name(guard(|| Ok(()))), "OK");
        assert_eq!(latest(), "a bug in the library: at   7", "success leaves the words alone");
        std::thread::spawn(|| assert_eq!(latest(), "")).join().expect("no words on another thread");
        let vulkan = Error::Vulkan { call: "vkCreateBuffer", code: -3 };
        let device = Error::Missing { what: "timeline semaphores" };
        let lost = Error::DeviceLost { step: "x".to_owned() };
        assert_eq!([vulkan, device, lost].map(|e| name(code(&e))), ["ERROR_VULKAN", "ERROR_DEVICE", "ERROR_LOST"]);
    }
}
