//! The codes that functions give. The compiler reads this file, too, for the header.

/// Name and value of every code, as headers have them: they never change their meaning.
pub(crate) const CODES: [(&str, i32, &str); 10] = [
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
