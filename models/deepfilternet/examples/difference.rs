//! `difference ESTIMATE.wav REFERENCE.safetensors TENSOR AT_MOST [BUT_LAST]`: the largest difference between a recording and a
//! tensor, over as many samples as the tensor has, but for the last BUT_LAST. Ends with 1 where it is above AT_MOST.

use deepfilternet::audio::Audio;
use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [estimate, reference, tensor, at_most, rest @ ..] = args.as_slice() else {
        return Err("usage: difference ESTIMATE.wav REFERENCE.safetensors TENSOR AT_MOST [BUT_LAST]".into());
    };
    let but_last: usize = rest.first().map_or(Ok(0), |text| text.parse())?;
    let estimate = Audio::read(estimate.as_ref())?.mono();
    let bytes = std::fs::read(reference)?;
    let file = safetensors::SafeTensors::deserialize(&bytes)?;
    let data = file.tensor(tensor)?.data().to_vec();
    let reference: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let n =
        reference.len().checked_sub(but_last).filter(|n| *n > 0 && estimate.len() >= *n).ok_or("too few samples")?;
    let worst = estimate[..n].iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    writeln!(std::io::stdout(), "{n} samples, largest difference {worst:.2e}")?;
    let at_most: f32 = at_most.parse()?;
    if worst <= at_most { Ok(()) } else { Err(format!("{worst:.2e} is above {at_most:.2e}").into()) }
}
