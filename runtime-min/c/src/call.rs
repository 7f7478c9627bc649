//! A call's arrays: what C has them as, and as slices, with their lengths and alignment checked.

use std::ffi::c_void;

use jvc_runtime::{Element, Error};

/// An input of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Input {
    /// Elements, row by row; may be null where there are none.
    pub data: *const c_void,
    /// Bytes of all of them.
    pub bytes: usize,
}

/// An output of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Where to copy the elements; null where they are not wanted.
    pub data: *mut c_void,
    /// Bytes that have room there.
    pub capacity: usize,
    /// Written by the call: bytes of the output.
    pub bytes: usize,
}

/// Sizes and inputs of a call, whose arrays are valid as long as this lives.
pub struct Arguments<'a> {
    sizes: &'a [i64],
    inputs: &'a [Input],
}

/// Outputs of a call.
pub struct Results<'a> {
    outputs: &'a mut [Output],
}

impl<'a> Arguments<'a> {
    /// Of a call to an entry point that takes so many sizes and inputs.
    ///
    /// # Safety
    /// Arrays are null, or valid for reads of their lengths, as the arrays of inputs are, and unchanged for `'a`.
    ///
    /// # Errors
    /// Another number of them; null instead of some.
    pub(crate) unsafe fn new(
        sizes: (*const i64, usize),
        inputs: (*const Input, usize),
        counts: [usize; 3],
    ) -> Result<Arguments<'a>, Error> {
        // SAFETY: the caller's promise.
        let (sizes, inputs) = unsafe { (slice(sizes, "sizes", counts[0])?, slice(inputs, "inputs", counts[1])?) };
        Ok(Arguments { sizes, inputs })
    }

    /// A size, by position.
    ///
    /// # Errors
    /// A negative number.
    pub fn size(&self, index: usize, name: &str) -> Result<usize, Error> {
        let size = self.sizes[index];
        usize::try_from(size).map_err(|_| argument(name, "a size that is not negative", size))
    }

    /// The elements of an input, by position.
    ///
    /// # Errors
    /// Bytes that are no whole elements, at an address where elements cannot be, or nowhere.
    pub fn input<T: Element>(&self, index: usize, name: &str) -> Result<&'a [T], Error> {
        let Input { data, bytes } = self.inputs[index];
        let (size, start) = (size_of::<T>(), data.cast::<T>());
        if bytes == 0 {
            return Ok(&[]);
        }
        let is_whole = bytes.is_multiple_of(size) && !data.is_null() && start.is_aligned();
        if !is_whole {
            let got = format!("{bytes} bytes at {data:?}");
            return Err(argument(name, &format!("an array of elements of {size} bytes"), got));
        }
        // SAFETY: `new` was promised that the array is valid; any bytes are elements.
        Ok(unsafe { std::slice::from_raw_parts(start, bytes / size) })
    }
}

impl<'a> Results<'a> {
    /// Of a call to an entry point that gives so many outputs.
    ///
    /// # Safety
    /// The array is null or valid for reads and writes of its length, as the arrays of outputs are for their capacities, for `'a`.
    ///
    /// # Errors
    /// Another number of them; null instead of some.
    pub(crate) unsafe fn new(outputs: (*mut Output, usize), counts: [usize; 3]) -> Result<Results<'a>, Error> {
        // SAFETY: the caller's promise.
        unsafe { slice((outputs.0.cast_const(), outputs.1), "outputs", counts[2])? };
        let outputs = match counts[2] {
            0 => &mut [][..],
            // SAFETY: as above; the pointer was checked, and nobody else uses the array.
            n => unsafe { std::slice::from_raw_parts_mut(outputs.0, n) },
        };
        Ok(Results { outputs })
    }

    /// Copies the elements of an output, by position, and says how many bytes they are, even if they do not fit.
    ///
    /// # Errors
    /// Not enough room.
    pub fn output<T: Element>(&mut self, index: usize, name: &str, elements: &[T]) -> Result<(), Error> {
        let output = &mut self.outputs[index];
        output.bytes = size_of_val(elements);
        if output.data.is_null() {
            return Ok(());
        }
        if output.capacity < output.bytes {
            let need = format!("room for {} bytes", output.bytes);
            return Err(argument(name, &need, output.capacity));
        }
        // SAFETY: `new` was promised that the array is valid; elements have no padding, and are not the caller's memory.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr().cast::<u8>(), output.data.cast(), output.bytes) };
        Ok(())
    }
}

/// # Safety
/// The array is null, or valid for reads for `'a`.
unsafe fn slice<'a, T>((start, len): (*const T, usize), what: &str, need: usize) -> Result<&'a [T], Error> {
    if len != need {
        return Err(argument(&format!("number of {what}"), &need.to_string(), len));
    }
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(argument(what, "an array", format!("{start:?}")));
    }
    // SAFETY: the caller's promise; the pointer was checked.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// An argument that does not fit.
pub(crate) fn argument(what: &str, need: &str, got: impl ToString) -> Error {
    Error::Argument { what: what.to_owned(), need: need.to_owned(), got: got.to_string() }
}
