//! `app-owned-device WEIGHTS [--validate] [GPU]`: softens pictures on a device that this program made with ash, and owns.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use app_owned_device::{check, own, soften};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    check(|gpu, messages, weights, pictures| own(gpu, messages, |vulkan| soften(vulkan, Path::new(weights), pictures)))
}
