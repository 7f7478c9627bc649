//! `pictures write REFERENCES FOLDER`: the pictures of a file of references as PNG.
//! `pictures check REFERENCES FOLDER`: compares FOLDER/N-depth.png (16 bits) with upstream's depth: within a thousandth of its range.

use png::{BitDepth, ColorType};
use safetensors::SafeTensors;
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, what, references, folder] = args.as_slice() else { return Err("write|check REFERENCES FOLDER".into()) };
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(File::open(references)?).read_to_end(&mut bytes)?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    for k in 0..3 {
        match what.as_str() {
            "write" => write(&tensors, k, Path::new(folder))?,
            _ => check(&tensors, k, Path::new(folder))?,
        }
    }
    Ok(())
}

fn write(tensors: &SafeTensors<'_>, k: usize, folder: &Path) -> Result<(), Box<dyn Error>> {
    let picture = tensors.tensor(&format!("{k}.picture"))?;
    let file = BufWriter::new(File::create(folder.join(format!("{k}.png")))?);
    let mut encoder = png::Encoder::new(file, picture.shape()[1] as u32, picture.shape()[0] as u32);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    Ok(encoder.write_header()?.write_image_data(picture.data())?)
}

fn check(tensors: &SafeTensors<'_>, k: usize, folder: &Path) -> Result<(), Box<dyn Error>> {
    let depth = tensors.tensor(&format!("{k}.depth"))?;
    let expected: Vec<f32> = depth.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let least = expected.iter().copied().fold(f32::INFINITY, f32::min);
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;

    let file = BufReader::new(File::open(folder.join(format!("{k}-depth.png")))?);
    let mut reader = png::Decoder::new(file).read_info()?;
    let mut data = vec![0; reader.output_buffer_size().ok_or("too large")?];
    let info = reader.next_frame(&mut data)?;
    if (info.bit_depth, [info.height as usize, info.width as usize])
        != (BitDepth::Sixteen, [depth.shape()[0], depth.shape()[1]])
    {
        return Err(format!("picture {k} is of another kind or size").into());
    }
    let got = data.as_chunks().0.iter().map(|bytes| f32::from(u16::from_be_bytes(*bytes)) / 65535.0);
    let worst = got.zip(&expected).map(|(got, expected)| (got - (expected - least) / range).abs()).fold(0.0, f32::max);
    // Written for whoever reads the log; the status says it to scripts.
    std::io::Write::write_all(
        &mut std::io::stdout(),
        format!("picture {k}: off by {worst:.2e} of the range\n").as_bytes(),
    )?;
    // 16 bits round by 7.6e-6 of the range; the rest is sums in another order.
    if worst < 3e-5 { Ok(()) } else { Err(format!("picture {k} is off by {worst}").into()) }
}
