//! Slices of numbers as bytes and back, for typed interfaces over it.

mod sealed {
    /// Types of any bit pattern and without padding.
    pub trait Plain: Copy {}
}

/// A number whose every bit pattern is a value: slices of it may be seen as bytes, in the machine's order, and written as bytes.
pub trait Element: sealed::Plain {}

macro_rules! elements {
    ($($ty:ty),*) => { $(impl sealed::Plain for $ty {} impl Element for $ty {})* };
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// The bytes of a slice.
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: the types of the sealed trait have no padding, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of a slice, to be written.
pub fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; every pattern of bytes is a value of these types.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
