//! Codes that the functions give, the words for the latest failure of each thread, and the end of the way of panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use jvc_runtime::Error;

/// Name and value of every code, as headers have them: they never change their meaning.
pub const CODES: [(&str, i32, &str); 10] = [
    ("OK", 0, "fine"),
    ("ERROR_ARGUMENT", 1, "an argument does not fit; nothing has happened"),
    ("ERROR_DEVICE", 2, "no Vulkan loader, no such device, or it lacks what the program needs"),
    ("ERROR_WEIGHTS", 3, "the weight file is missing, damaged, or not this program's"),
    ("ERROR_MEMORY", 4, "no device memory left"),
    ("ERROR_BUSY", 5, "every slot of the session is in flight"),
    ("ERROR_SIZES", 6, "the data give a size that memory was not planned for; the run has no outputs"),
    ("ERROR_LOST", 7, "the device is gone; load again"),
    ("ERROR_VULKAN", 8, "any other failure of Vulkan"),
    ("ERROR_PANIC", 9, "a bug of the library"),
];

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
    match error {
        Error::Argument { .. } => 1,
        Error::Loader { .. } | Error::NoDevice { .. } | Error::Requirement { .. } | Error::Missing { .. } => 2,
        Error::Weights { .. } => 3,
        Error::OutOfMemory { .. } => 4,
        Error::SlotsBusy { .. } => 5,
        Error::Found { .. } => 6,
        Error::DeviceLost { .. } => 7,
        _ => 8,
    }
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
