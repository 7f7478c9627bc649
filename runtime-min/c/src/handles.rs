//! The functions behind the exported names: opaque pointers in, codes out.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jvc_runtime::{CacheDir, Error, Gpu, Select, SessionOptions, WeightSource};

use crate::call::{Arguments, Results, argument};
use crate::{Entry, Program};

/// A session of any entry point. Calls from several threads take turns.
pub struct Handle(Mutex<Box<dyn Runs>>);

impl Handle {
    /// Of a generated session.
    pub fn new<E: Entry>(entry: E) -> Handle {
        let tracked = Tracked { entry, outputs: E::Outputs::default(), in_flight: BTreeMap::new(), latest: 0 };
        Handle(Mutex::new(Box::new(tracked)))
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Runs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session, whatever its types are. Runs have numbers, since C callers copy and forget them.
trait Runs: Send {
    fn counts(&self) -> [usize; 3];
    fn submit(&mut self, arguments: &Arguments<'_>) -> Result<u64, Error>;
    fn wait(&mut self, run: u64, results: &mut Results<'_>) -> Result<(), Error>;
    fn is_done(&self, run: u64) -> Result<bool, Error>;
    fn cancel(&mut self, run: u64) -> Result<(), Error>;
    fn reset(&mut self);
}

struct Tracked<E: Entry> {
    entry: E,
    outputs: E::Outputs,
    in_flight: BTreeMap<u64, E::Ticket>,
    latest: u64,
}

impl<E: Entry> Runs for Tracked<E> {
    fn counts(&self) -> [usize; 3] {
        E::COUNTS
    }

    fn submit(&mut self, arguments: &Arguments<'_>) -> Result<u64, Error> {
        let ticket = self.entry.submit(arguments)?;
        self.latest += 1;
        self.in_flight.insert(self.latest, ticket);
        Ok(self.latest)
    }

    fn wait(&mut self, run: u64, results: &mut Results<'_>) -> Result<(), Error> {
        let ticket = self.in_flight.remove(&run).ok_or_else(|| unknown(run))?;
        self.entry.wait(ticket, &mut self.outputs)?;
        E::give(&self.outputs, results)
    }

    fn is_done(&self, run: u64) -> Result<bool, Error> {
        self.entry.is_done(self.in_flight.get(&run).ok_or_else(|| unknown(run))?)
    }

    fn cancel(&mut self, run: u64) -> Result<(), Error> {
        let ticket = self.in_flight.remove(&run).ok_or_else(|| unknown(run))?;
        self.entry.cancel(ticket);
        Ok(())
    }

    fn reset(&mut self) {
        self.entry.reset();
    }
}

fn unknown(run: u64) -> Error {
    argument("ticket", "one of this session in flight", run)
}

/// What [`crate::export!`] gives names to; the header of a generated crate has the contracts in C's words.
pub mod functions {
    use super::*;
    use crate::call::{Input, Output};
    use crate::status::guard;
    use std::ffi::{CStr, c_char};
    use std::path::Path;

    /// Opens a device and loads a program: the GPU by part of its name or number (null: the best), the weight file (null: the program
    /// has none), the folder of compiled kernels (null: the user's cache folder; empty: none).
    ///
    /// # Safety
    /// Texts are null or end with a zero; `program` is null or valid for writes.
    pub unsafe fn load<P: Program>(
        gpu: *const c_char,
        weights: *const c_char,
        cache: *const c_char,
        program: *mut *mut P,
    ) -> i32 {
        guard(|| {
            let out = target(program, "program")?;
            // SAFETY: the caller's promise.
            let [gpu, weights, cache] =
                unsafe { [text(gpu, "gpu")?, text(weights, "weights")?, text(cache, "cache")?] };
            let by_name = |name: &str| Select::Name(name.to_owned());
            let select = gpu.map(|gpu| gpu.parse().map_or_else(|_| by_name(gpu), Select::Index)).unwrap_or_default();
            let weights = weights.map_or(WeightSource::None, |path| WeightSource::Path(Path::new(path)));
            let cache = match cache {
                None => CacheDir::Default,
                Some("") => CacheDir::None,
                Some(path) => CacheDir::Path(path.into()),
            };
            let loaded = Box::new(P::load(&Gpu::open(&select)?, weights, &cache)?);
            // SAFETY: the caller's promise.
            unsafe { out.write(Box::into_raw(loaded)) };
            Ok(())
        })
    }

    /// Frees a program or a session; null is fine.
    ///
    /// # Safety
    /// The pointer is null, or came from [`load`] or [`session`] and is not used again.
    pub unsafe fn free<T>(object: *mut T) {
        if !object.is_null() {
            // SAFETY: the caller's promise.
            guard(|| {
                drop(unsafe { Box::from_raw(object) });
                Ok(())
            });
        }
    }

    /// A session of an entry point for so many runs in flight.
    ///
    /// # Safety
    /// `program` is null or a program; `session` is null or valid for writes.
    pub unsafe fn session<P: Program>(program: *const P, entry: u32, n_slots: usize, session: *mut *mut Handle) -> i32 {
        guard(|| {
            let out = target(session, "session")?;
            // SAFETY: the caller's promise.
            let program = unsafe { object(program, "program") }?;
            let options = SessionOptions { n_slots, ..SessionOptions::default() };
            let found = program.session(entry, &options)?;
            let found = Box::new(found.ok_or_else(|| argument("entry", "a number of the header", entry))?);
            // SAFETY: the caller's promise.
            unsafe { out.write(Box::into_raw(found)) };
            Ok(())
        })
    }

    /// Runs and waits.
    ///
    /// # Safety
    /// `session` is null or a session; arrays are as [`Arguments`] and [`Results`] demand.
    pub unsafe fn run(
        session: *const Handle,
        sizes: (*const i64, usize),
        inputs: (*const Input, usize),
        outputs: (*mut Output, usize),
    ) -> i32 {
        guard(|| {
            // SAFETY: the caller's promise.
            let mut session = unsafe { object(session, "session") }?.lock();
            let counts = session.counts();
            // SAFETY: as above.
            let (arguments, mut results) =
                unsafe { (Arguments::new(sizes, inputs, counts)?, Results::new(outputs, counts)?) };
            let run = session.submit(&arguments)?;
            session.wait(run, &mut results)
        })
    }

    /// Starts a run.
    ///
    /// # Safety
    /// As [`run`]; `ticket` is null or valid for writes.
    pub unsafe fn submit(
        session: *const Handle,
        sizes: (*const i64, usize),
        inputs: (*const Input, usize),
        ticket: *mut u64,
    ) -> i32 {
        guard(|| {
            let out = target(ticket, "ticket")?;
            // SAFETY: the caller's promise.
            let mut session = unsafe { object(session, "session") }?.lock();
            // SAFETY: as above.
            let arguments = unsafe { Arguments::new(sizes, inputs, session.counts()) }?;
            let run = session.submit(&arguments)?;
            // SAFETY: as above.
            unsafe { out.write(run) };
            Ok(())
        })
    }

    /// Waits for a run and copies its outputs.
    ///
    /// # Safety
    /// As [`run`].
    pub unsafe fn wait(session: *const Handle, ticket: u64, outputs: (*mut Output, usize)) -> i32 {
        guard(|| {
            // SAFETY: the caller's promise.
            let mut session = unsafe { object(session, "session") }?.lock();
            // SAFETY: as above.
            let mut results = unsafe { Results::new(outputs, session.counts()) }?;
            session.wait(ticket, &mut results)
        })
    }

    /// Whether a run has finished: 0 or 1.
    ///
    /// # Safety
    /// `session` is null or a session; `done` is null or valid for writes.
    pub unsafe fn is_done(session: *const Handle, ticket: u64, done: *mut i32) -> i32 {
        guard(|| {
            let out = target(done, "done")?;
            // SAFETY: the caller's promise.
            let is_done = unsafe { object(session, "session") }?.lock().is_done(ticket)?;
            // SAFETY: as above.
            unsafe { out.write(is_done.into()) };
            Ok(())
        })
    }

    /// Gives up a run's outputs.
    ///
    /// # Safety
    /// `session` is null or a session.
    pub unsafe fn cancel(session: *const Handle, ticket: u64) -> i32 {
        // SAFETY: the caller's promise.
        guard(|| unsafe { object(session, "session") }?.lock().cancel(ticket))
    }

    /// The next run starts from the initial state.
    ///
    /// # Safety
    /// `session` is null or a session.
    pub unsafe fn reset(session: *const Handle) -> i32 {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { object(session, "session") }?.lock().reset();
            Ok(())
        })
    }

    unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
        // SAFETY: the caller's promise: null, or an object that nobody frees meanwhile.
        unsafe { pointer.as_ref() }.ok_or_else(|| argument(what, "an object", "null"))
    }

    /// Where to write a result, whatever is there now.
    fn target<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, Error> {
        NonNull::new(pointer).filter(|_| pointer.is_aligned()).ok_or_else(|| argument(what, "a place for it", "null"))
    }

    unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise: a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(pointer) }.to_str();
        text.map(Some).map_err(|_| argument(what, "text in UTF-8", "other bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::functions::*;
    use super::*;
    use crate::call::{Input, Output};
    use std::ptr;

    /// Doubles three numbers, one run at a time, and panics for a size of 13.
    #[derive(Default)]
    struct Double(Vec<i32>);

    impl Entry for Double {
        const COUNTS: [usize; 3] = [1, 1, 1];
        type Ticket = usize;
        type Outputs = Vec<i32>;

        fn submit(&mut self, arguments: &Arguments<'_>) -> Result<usize, Error> {
            let n = arguments.size(0, "n")?;
            assert_ne!(n, 13, "unlucky");
            if !self.0.is_empty() {
                return Err(Error::SlotsBusy { n_slots: 1 });
            }
            self.0 = arguments.input::<i32>(0, "x")?.iter().map(|x| x * 2).collect();
            Ok(n)
        }

        fn wait(&mut self, n: usize, outputs: &mut Vec<i32>) -> Result<(), Error> {
            *outputs = std::mem::take(&mut self.0);
            outputs.truncate(n);
            Ok(())
        }

        fn give(outputs: &Vec<i32>, results: &mut Results<'_>) -> Result<(), Error> {
            results.output(0, "y", outputs)
        }

        fn is_done(&self, _: &usize) -> Result<bool, Error> {
            Ok(true)
        }

        fn cancel(&mut self, _: usize) {
            self.0.clear();
        }
    }

    fn input(values: &[i32]) -> Input {
        Input { data: values.as_ptr().cast(), bytes: size_of_val(values) }
    }

    fn output(values: &mut [i32]) -> Output {
        Output { data: values.as_mut_ptr().cast(), capacity: size_of_val(values), bytes: 0 }
    }

    fn words() -> String {
        // SAFETY: the words are kept until the next failure on this thread.
        unsafe { std::ffi::CStr::from_ptr(crate::status::last_error()) }.to_str().expect("text").to_owned()
    }

    #[test]
    fn runs_give_outputs_and_their_bytes() {
        let session = Handle::new(Double::default());
        let (x, mut y) = ([1, 2, 3], [0; 3]);
        let (inputs, mut outputs) = ([input(&x)], [output(&mut y)]);
        // SAFETY: all arrays live.
        let code = unsafe { run(&session, ([2].as_ptr(), 1), (inputs.as_ptr(), 1), (outputs.as_mut_ptr(), 1)) };
        assert_eq!((code, outputs[0].bytes, y), (0, 8, [2, 4, 0]));
    }

    #[test]
    fn runs_in_flight_are_found_by_number_once() {
        let session = Handle::new(Double::default());
        let (x, mut y, mut ticket, mut done) = ([5, 6, 7], [0; 3], 0, 7);
        let (inputs, mut outputs) = ([input(&x)], [output(&mut y)]);
        // SAFETY: all arrays live.
        unsafe {
            let start = |ticket: &mut u64| submit(&session, ([3].as_ptr(), 1), (inputs.as_ptr(), 1), ticket);
            assert_eq!(start(&mut ticket), 0);
            assert_eq!((start(&mut 0), words().as_str()), (5, "all 1 slots of the session are in flight"));
            assert_eq!((is_done(&session, ticket, &mut done), done), (0, 1));
            // Another number of outputs leaves the run in flight.
            assert_eq!(wait(&session, ticket, (outputs.as_mut_ptr(), 0)), 1);
            assert_eq!(wait(&session, ticket, (outputs.as_mut_ptr(), 1)), 0);
            assert_eq!(y, [10, 12, 14]);
            assert_eq!(wait(&session, ticket, (outputs.as_mut_ptr(), 1)), 1, "it is gone");
            assert_eq!(start(&mut ticket), 0);
            assert_eq!([cancel(&session, ticket), cancel(&session, ticket)], [0, 1]);
            assert_eq!(start(&mut ticket), 0, "the slot is free");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_words() {
        let session = Handle::new(Double::default());
        let (x, mut y) = ([1, 2, 3], [0; 2]);
        let mut attempt = |size: i64, x: Input, n_inputs: usize| {
            let (inputs, mut outputs) = ([x], [output(&mut y)]);
            let sizes = [size];
            // SAFETY: all arrays live.
            let code =
                unsafe { run(&session, (sizes.as_ptr(), 1), (inputs.as_ptr(), n_inputs), (outputs.as_mut_ptr(), 1)) };
            (code, words(), outputs[0].bytes)
        };
        let half = Input { bytes: 10, ..input(&x) };
        let odd = Input { data: x.as_ptr().cast::<u8>().wrapping_add(1).cast(), bytes: 8 };
        let null = Input { data: ptr::null(), bytes: 12 };
        assert!(attempt(3, half, 1).1.starts_with("x: got 10 bytes at "), "{}", words());
        for wrong in [half, odd, null] {
            assert_eq!(attempt(3, wrong, 1).0, 1);
            assert!(words().ends_with("takes an array of elements of 4 bytes"), "{}", words());
        }
        assert_eq!(attempt(-1, input(&x), 1).1, "n: got -1, the entry point takes a size that is not negative");
        assert_eq!(attempt(3, input(&x), 2).1, "number of inputs: got 2, the entry point takes 1");
        let small = attempt(3, input(&x), 1);
        assert_eq!(small, (1, "y: got 8, the entry point takes room for 12 bytes".to_owned(), 12));
        assert_eq!((attempt(2, input(&x), 1).0, y), (0, [2, 4]));
    }

    #[test]
    fn a_panic_ends_here_and_null_is_no_object() {
        let session = Handle::new(Double::default());
        let inputs = [input(&[1])];
        // SAFETY: all arrays live, and null is allowed.
        unsafe {
            assert_eq!(submit(&session, ([13].as_ptr(), 1), (inputs.as_ptr(), 1), &mut 0), 9);
            assert!(words().contains("unlucky"), "{}", words());
            assert_eq!(submit(&session, ([1].as_ptr(), 1), (inputs.as_ptr(), 1), &mut 0), 0, "it goes on");
            assert_eq!(submit(&session, (ptr::null(), 1), (inputs.as_ptr(), 1), &mut 0), 1);
            assert_eq!(submit(&session, ([1].as_ptr(), 1), (inputs.as_ptr(), 1), ptr::null_mut()), 1);
            assert_eq!(
                (reset(ptr::null()), words().as_str()),
                (1, "session: got null, the entry point takes an object")
            );
            free::<Handle>(ptr::null_mut());
            free(Box::into_raw(Box::new(session)));
        }
    }
}
