//! SI-SDR of one signal against another: `si_sdr ESTIMATE REFERENCE`, each a wav file (its channels' mean) or a
//! `.safetensors` file (its tensor `out.0`). Prints dB. Ends with 1 where `--at-least DB` is given and not reached.

use deepfilternet::{audio::Audio, si_sdr::si_sdr};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut least = f64::NEG_INFINITY;
    if let Some(at) = args.iter().position(|a| a == "--at-least") {
        least = args.get(at + 1).ok_or("--at-least needs a number")?.parse()?;
        args.drain(at..at + 2);
    }
    let [estimate, reference] = args.as_slice() else {
        return Err("usage: si_sdr ESTIMATE REFERENCE [--at-least DB]".into());
    };
    let (estimate, reference) = (signal(estimate.as_ref())?, signal(reference.as_ref())?);
    if estimate.len() != reference.len() {
        return Err(format!("the signals have {} and {} samples", estimate.len(), reference.len()).into());
    }
    let db = si_sdr(&estimate, &reference);
    print(&format!("{db:.2} dB"))?;
    Ok(if db >= least { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(line: &str) -> std::io::Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}")
}

fn signal(path: &Path) -> Result<Vec<f32>, Box<dyn Error>> {
    if path.extension().is_some_and(|e| e == "wav") {
        return Ok(Audio::read(path)?.mono());
    }
    let bytes = std::fs::read(path)?;
    let file = safetensors::SafeTensors::deserialize(&bytes)?;
    let tensor = file.tensor("out.0")?;
    if tensor.dtype() != safetensors::Dtype::F32 {
        return Err(format!("out.0 is {:?}, not F32", tensor.dtype()).into());
    }
    Ok(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
