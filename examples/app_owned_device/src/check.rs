//! The command line of the programs: pictures of several sizes, of which every byte is compared with what integers give on the host.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use crate::vulkan::Messages;
use crate::{Picture, softened_by_integers};

/// Columns and rows: the smallest, the largest, odd ones, and one that comes twice.
const SIZES: [(u32, u32); 6] = [(64, 48), (1, 1), (512, 512), (37, 211), (300, 2), (64, 48)];

/// Arguments of a program: `WEIGHTS [--validate] [GPU]`. `soften` gets the GPU's number, a list for the validation layer's messages if
/// it is wanted, the weight file and the pictures, and gives the softened ones. Fails for a wrong byte or a message.
///
/// # Errors
/// A wrong argument, and those of `soften`.
pub fn check(
    soften: impl FnOnce(usize, Option<&Messages>, &str, &[Picture]) -> Result<Vec<Picture>, Box<dyn Error>>,
) -> Result<ExitCode, Box<dyn Error>> {
    let (options, rest): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let validate = options.iter().any(|option| option == "--validate");
    let weights = rest.first().ok_or("arguments: WEIGHTS [--validate] [GPU]")?;
    let gpu = rest.get(1).map_or(Ok(0), |index| index.parse())?;
    let pictures: Vec<Picture> = (1..).zip(SIZES).map(|(seed, (w, h))| Picture::noise(w, h, seed)).collect();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let results = soften(gpu, validate.then_some(&messages), weights, &pictures)?;
    let mut n_wrong = 0;
    for (picture, result) in pictures.iter().zip(&results) {
        let is_right = *result == softened_by_integers(picture);
        n_wrong += usize::from(!is_right);
        println!("{} x {}: {}", picture.width, picture.height, if is_right { "equal to the byte" } else { "WRONG" });
    }
    let messages = messages.lock().map_err(|_| "a panic in the validation layer's callback")?;
    messages.iter().for_each(|message| println!("{message}"));
    println!("{} pictures, {n_wrong} wrong, {} messages of the validation layer", results.len(), messages.len());
    let is_fine = n_wrong == 0 && messages.is_empty() && results.len() == pictures.len();
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
