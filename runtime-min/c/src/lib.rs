//! The C interface of generated crates, for those compiled with `--c-api`: everything of it that is not particular to one program, and
//! all that needs `unsafe`. The generated crate implements [`Program`] and [`Entry`] in safe code, calls [`export!`] to give the functions
//! their names, and describes them in `include/NAME.h`, which is where their contracts stand.
//!
//! - Programs and sessions are opaque pointers, owned by the caller until it frees them, in any order.
//! - Every function gives a code of [`status`]; words for the latest failure are kept per thread. A panic becomes a code.
//! - Arrays stay the caller's: inputs are copied before a call returns, outputs are copied to where the caller wants them.

#![allow(unsafe_code, reason = "pointers of C callers are read and written here; each block says why it is sound")]

mod call;
mod codes;
mod handles;
pub mod status;

pub use call::{Arguments, Input, Output, Results};
pub use handles::{Handle, functions};

use jvc_runtime::{CacheDir, Error, Gpu, SessionOptions, WeightSource};

/// A generated program, whose sessions are numbered by entry point.
pub trait Program: Sized + Send + Sync + 'static {
    /// Loads kernels and weights.
    ///
    /// # Errors
    /// Those of the program's own `load_with`.
    fn load(gpu: &Gpu, weights: WeightSource<'_>, cache: &CacheDir) -> Result<Self, Error>;

    /// A session of an entry point; nothing where there is no entry point of this number.
    ///
    /// # Errors
    /// Not enough device memory.
    fn session(&self, entry: u32, options: &SessionOptions) -> Result<Option<Handle>, Error>;
}

/// A generated session, with its inputs and outputs by position.
pub trait Entry: Send + 'static {
    /// Numbers of sizes, inputs and outputs of a call.
    const COUNTS: [usize; 3];
    /// A run in flight.
    type Ticket: Send;
    /// Outputs of a run, which keep their memory from run to run.
    type Outputs: Default + Send;

    /// Starts a run.
    ///
    /// # Errors
    /// An argument that does not fit; every slot in flight.
    fn submit(&mut self, arguments: &Arguments<'_>) -> Result<Self::Ticket, Error>;

    /// Waits for a run.
    ///
    /// # Errors
    /// A device that was lost; sizes beyond what memory is planned for.
    fn wait(&mut self, ticket: Self::Ticket, outputs: &mut Self::Outputs) -> Result<(), Error>;

    /// Copies outputs to the caller.
    ///
    /// # Errors
    /// An array of the caller's that is too small.
    fn give(outputs: &Self::Outputs, results: &mut Results<'_>) -> Result<(), Error>;

    /// True once a run has finished.
    ///
    /// # Errors
    /// A device that was lost.
    fn is_done(&self, ticket: &Self::Ticket) -> Result<bool, Error>;

    /// Gives up a run's outputs.
    fn cancel(&mut self, ticket: Self::Ticket);

    /// The next run starts from the initial state, if there is state.
    fn reset(&mut self) {}
}

/// Exports the functions of [`functions`] for a program, under names of its own: two generated libraries can be part of one process.
#[macro_export]
macro_rules! export {
    (
        $program:ty; $last_error:ident $load:ident $free:ident $session:ident $session_free:ident $run:ident $submit:ident $wait:ident
        $is_done:ident $cancel:ident $reset:ident
    ) => {
        const _: () = {
            use ::std::ffi::c_char;

            // SAFETY, of all of them: the caller keeps the contract of the header, which is that of `functions`.
            use $crate::{Handle, Input, Output, functions};

            #[unsafe(no_mangle)]
            extern "C" fn $last_error() -> *const c_char {
                $crate::status::last_error()
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $load(
                gpu: *const c_char,
                weights: *const c_char,
                cache: *const c_char,
                program: *mut *mut $program,
            ) -> i32 {
                unsafe { functions::load(gpu, weights, cache, program) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $free(program: *mut $program) {
                unsafe { functions::free(program) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $session(
                program: *const $program,
                entry: u32,
                n_slots: usize,
                session: *mut *mut Handle,
            ) -> i32 {
                unsafe { functions::session(program, entry, n_slots, session) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $session_free(session: *mut Handle) {
                unsafe { functions::free(session) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $run(
                session: *const Handle,
                sizes: *const i64,
                n_sizes: usize,
                inputs: *const Input,
                n_inputs: usize,
                outputs: *mut Output,
                n_outputs: usize,
            ) -> i32 {
                unsafe { functions::run(session, (sizes, n_sizes), (inputs, n_inputs), (outputs, n_outputs)) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $submit(
                session: *const Handle,
                sizes: *const i64,
                n_sizes: usize,
                inputs: *const Input,
                n_inputs: usize,
                ticket: *mut u64,
            ) -> i32 {
                unsafe { functions::submit(session, (sizes, n_sizes), (inputs, n_inputs), ticket) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $wait(
                session: *const Handle,
                ticket: u64,
                outputs: *mut Output,
                n_outputs: usize,
            ) -> i32 {
                unsafe { functions::wait(session, ticket, (outputs, n_outputs)) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $is_done(session: *const Handle, ticket: u64, done: *mut i32) -> i32 {
                unsafe { functions::is_done(session, ticket, done) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $cancel(session: *const Handle, ticket: u64) -> i32 {
                unsafe { functions::cancel(session, ticket) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $reset(session: *const Handle) -> i32 {
                unsafe { functions::reset(session) }
            }
        };
    };
}
