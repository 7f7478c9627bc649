//! Pictures in memory and from files.

use std::fs::File;
use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// An RGB picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Rows of red, green, blue.
    pub pixels: Vec<u8>,
}

/// Why a picture cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file or folder cannot be read or written, or is no picture.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// As many bytes as pixels do not fit the size.
    #[error("a picture of {width} × {height} has {need} bytes, not {got}")]
    Size {
        /// Pixels across.
        width: usize,
        /// Pixels down.
        height: usize,
        /// Three bytes a pixel.
        need: usize,
        /// Those given.
        got: usize,
    },
}

/// Says of which file an error is.
pub(crate) fn of(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> PictureError {
    move |reason| PictureError::File { path: path.to_owned(), reason: reason.to_string() }
}

impl Picture {
    /// A picture from rows of RGB bytes.
    ///
    /// # Errors
    /// Another number of bytes, or no pixel at all.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, PictureError> {
        let need = width * height * 3;
        if need == 0 || pixels.len() != need {
            return Err(PictureError::Size { width, height, need, got: pixels.len() });
        }
        Ok(Self { width, height, pixels })
    }

    /// Reads a PNG or JPEG, whatever its name; upright as a camera's metadata say. Transparency is dropped.
    ///
    /// # Errors
    /// A file that cannot be read or is no such picture.
    pub fn read(path: &Path) -> Result<Self, PictureError> {
        let bytes = std::fs::read(path).map_err(|error| of(path)(&error))?;
        if bytes.starts_with(b"\x89PNG") { read_png(path, &bytes) } else { read_jpeg(path, &bytes) }
    }

    /// Turned as EXIF's orientation number says (1 to 8).
    fn upright(self, orientation: u8) -> Self {
        let (w, h) = (self.width, self.height);
        // Where a pixel of the upright picture comes from.
        let source = |x: usize, y: usize| match orientation {
            2 => (w - 1 - x, y),
            3 => (w - 1 - x, h - 1 - y),
            4 => (x, h - 1 - y),
            5 => (y, x),
            6 => (y, h - 1 - x),
            7 => (w - 1 - y, h - 1 - x),
            8 => (w - 1 - y, x),
            _ => (x, y),
        };
        let (width, height) = if (5..=8).contains(&orientation) { (h, w) } else { (w, h) };
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixel = |(x, y)| {
            let (x, y) = source(x, y);
            let at = (y * w + x) * 3;
            [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]]
        };
        Self { width, height, pixels: places.flat_map(pixel).collect() }
    }
}

fn read_png(path: &Path, bytes: &[u8]) -> Result<Picture, PictureError> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| of(path)(&error))?;
    let mut data = vec![0; reader.output_buffer_size().ok_or_else(|| of(path)(&"too large"))?];
    let info = reader.next_frame(&mut data).map_err(|error| of(path)(&error))?;
    data.truncate(info.buffer_size());
    let samples = info.color_type.samples();
    let rgb = |pixel: &[u8]| if samples < 3 { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] };
    let pixels = data.chunks_exact(samples).flat_map(rgb).collect();
    Picture::new(info.width as usize, info.height as usize, pixels)
}

fn read_jpeg(path: &Path, bytes: &[u8]) -> Result<Picture, PictureError> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(BufReader::new(Cursor::new(bytes)), options);
    let fault = |error: &dyn std::fmt::Display| of(path)(&format!("neither a PNG nor a JPEG: {error}"));
    let pixels = decoder.decode().map_err(|error| fault(&error))?;
    let info = decoder.info().ok_or_else(|| fault(&"it has no size"))?;
    let orientation = decoder.exif().and_then(|exif| orientation(exif)).unwrap_or(1);
    Ok(Picture::new(info.width.into(), info.height.into(), pixels)?.upright(orientation))
}

/// The orientation in EXIF data: tag 0x0112 of the first directory of a TIFF structure.
fn orientation(exif: &[u8]) -> Option<u8> {
    let is_little = exif.starts_with(b"II");
    let short = |at: usize| {
        let bytes = [*exif.get(at)?, *exif.get(at + 1)?];
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let [first, second] = [short(at)?, short(at + 2)?].map(usize::from);
        Some(if is_little { second << 16 | first } else { first << 16 | second })
    };
    let directory = long(4)?;
    let entries = (0..usize::from(short(directory)?)).map(|entry| directory + 2 + entry * 12);
    let found = entries.into_iter().find(|at| short(*at) == Some(0x0112))?;
    u8::try_from(short(found + 8)?).ok().filter(|number| (1..=8).contains(number))
}

/// The pictures of a folder in the order of their names.
///
/// # Errors
/// A folder that cannot be read or has no pictures.
pub fn frames(folder: &Path) -> Result<Vec<PathBuf>, PictureError> {
    let entries = std::fs::read_dir(folder).map_err(|error| of(folder)(&error))?;
    let is_picture = |path: &PathBuf| {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        ending.is_some_and(|ending| ["png", "jpg", "jpeg"].contains(&ending.as_str()))
    };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_picture).collect();
    paths.sort();
    if paths.is_empty() { Err(of(folder)(&"no .png, .jpg or .jpeg in it")) } else { Ok(paths) }
}

/// Writes a PNG; `data` as PNG has it, so 16-bit samples with the high byte first.
pub(crate) fn write_png(
    path: &Path,
    [width, height]: [usize; 2],
    kind: (png::ColorType, png::BitDepth),
    data: &[u8],
) -> Result<(), PictureError> {
    let file = File::create(path).map_err(|error| of(path)(&error))?;
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), width as u32, height as u32);
    encoder.set_color(kind.0);
    encoder.set_depth(kind.1);
    // Depth is smooth: better compression would take ten times as long for a few per cent.
    encoder.set_compression(png::Compression::Fast);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(data)?;
        writer.finish()
    });
    written.map_err(|error| of(path)(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use png::{BitDepth, ColorType};

    #[test]
    fn pictures_are_read_as_they_were_written_and_frames_come_in_order() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let rgba: Vec<u8> = (0..5 * 3 * 4).map(|i| i as u8).collect();
        for name in ["b.png", "a.PNG", "notes.txt"] {
            let kind = (ColorType::Rgba, BitDepth::Eight);
            write_png(&folder.path().join(name), [5, 3], kind, &rgba).expect("a scratch folder");
        }
        let found = frames(folder.path()).expect("two");
        assert_eq!(found, ["a.PNG", "b.png"].map(|name| folder.path().join(name)));
        let opaque: Vec<u8> = rgba.chunks(4).flat_map(|rgba| rgba[..3].to_vec()).collect();
        assert_eq!(Picture::read(&found[1]).ok(), Picture::new(5, 3, opaque).ok());

        let grey = folder.path().join("grey.png");
        let kind = (ColorType::Grayscale, BitDepth::Sixteen);
        write_png(&grey, [2, 1], kind, &[10, 99, 200, 1]).expect("a scratch folder");
        assert_eq!(Picture::read(&grey).ok(), Picture::new(2, 1, vec![10, 10, 10, 200, 200, 200]).ok());
    }

    #[test]
    fn what_is_no_picture_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        assert!(frames(folder.path()).expect_err("empty").to_string().contains("no .png"));
        let path = folder.path().join("text.png");
        std::fs::write(&path, "no picture").expect("a scratch folder can be written");
        assert!(Picture::read(&path).expect_err("text").to_string().contains("text.png: neither a PNG nor a JPEG"));
        assert!(Picture::new(2, 2, vec![0; 11]).is_err() && Picture::new(0, 2, vec![]).is_err());
    }

    #[test]
    fn a_camera_held_sideways_gives_an_upright_picture() {
        // Red 1 2 3 over 4 5 6, as stored; orientation 6: the first row is the right-hand side.
        let stored = Picture::new(3, 2, (1..=6).flat_map(|red| [red, 0, 0]).collect()).expect("fits");
        let reds = |orientation| -> Vec<u8> {
            let picture = stored.clone().upright(orientation);
            assert_eq!(picture.width, if orientation < 5 { 3 } else { 2 });
            picture.pixels.into_iter().step_by(3).collect()
        };
        assert_eq!(
            [1, 2, 3, 4].map(reds),
            [[1, 2, 3, 4, 5, 6], [3, 2, 1, 6, 5, 4], [6, 5, 4, 3, 2, 1], [4, 5, 6, 1, 2, 3]]
        );
        assert_eq!(
            [5, 6, 7, 8].map(reds),
            [[1, 4, 2, 5, 3, 6], [4, 1, 5, 2, 6, 3], [6, 3, 5, 2, 4, 1], [3, 6, 2, 5, 1, 4]]
        );
        let exif = b"MM\0*\0\0\0\x08\0\x02\x01\x0f\0\x02\0\0\0\x01\0\0\0\0\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        assert_eq!(orientation(exif), Some(6));
        assert_eq!(orientation(b"II*\0\x08\0\0\0\xff\xff"), None, "cut short");
    }
}
