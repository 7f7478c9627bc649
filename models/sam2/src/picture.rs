//! Pictures of 8-bit red, green and blue.

use std::path::{Path, PathBuf};

/// Why a picture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// Bytes and sides do not fit.
    #[error("a picture of {width} × {height} has {expected} bytes, not {got}", expected = width * height * 3)]
    Bytes {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// Bytes given.
        got: usize,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: image::ImageError,
    },
}

/// Rows of pixels, three bytes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// Of its bytes, row by row.
    ///
    /// # Errors
    /// Not three bytes a pixel, or no pixel.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self, PictureError> {
        if rgb.is_empty() || rgb.len() != width * height * 3 {
            return Err(PictureError::Bytes { width, height, got: rgb.len() });
        }
        Ok(Self { width, height, rgb })
    }

    /// Reads a PNG or JPEG file, whatever its channels and depth; transparency is dropped.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(path: &Path) -> Result<Self, PictureError> {
        let file = |source| PictureError::File { path: path.to_owned(), source };
        let open = |path| image::ImageReader::open(path)?.with_guessed_format();
        let image = open(path).map_err(|e| file(e.into()))?.decode().map_err(file)?.into_rgb8();
        Self::new(image.width() as usize, image.height() as usize, image.into_raw())
    }

    /// Writes a PNG file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PictureError> {
        save(path, &self.rgb, (self.width, self.height), image::ExtendedColorType::Rgb8)
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The bytes.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The bytes, to be changed.
    pub fn rgb_mut(&mut self) -> &mut [u8] {
        &mut self.rgb
    }

    /// A part of it: `left ≤ x < right`, `top ≤ y < bottom`, inside the picture.
    pub fn crop(&self, [left, top, right, bottom]: [usize; 4]) -> Picture {
        let row = |y: usize| &self.rgb[(y * self.width + left) * 3..(y * self.width + right) * 3];
        Picture { width: right - left, height: bottom - top, rgb: (top..bottom).flat_map(row).copied().collect() }
    }
}

/// Writes a PNG file, quickly rather than as small as can be.
pub(crate) fn save(
    path: &Path,
    bytes: &[u8],
    (width, height): (usize, usize),
    color: image::ExtendedColorType,
) -> Result<(), PictureError> {
    use image::codecs::png::{CompressionType, FilterType, PngEncoder};
    let fail = |source| PictureError::File { path: path.to_owned(), source };
    let file = std::fs::File::create(path).map_err(|e| fail(e.into()))?;
    let writer = std::io::BufWriter::new(file);
    let encoder = PngEncoder::new_with_quality(writer, CompressionType::Fast, FilterType::Adaptive);
    image::ImageEncoder::write_image(encoder, bytes, width as u32, height as u32, color).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crop_has_the_pixels_of_its_place_and_files_keep_them() {
        let picture = Picture::new(4, 3, (0..36).collect()).expect("three bytes a pixel");
        let crop = picture.crop([1, 1, 3, 3]);
        assert_eq!((crop.width(), crop.height()), (2, 2));
        assert_eq!(crop.rgb(), [15, 16, 17, 18, 19, 20, 27, 28, 29, 30, 31, 32]);
        let path = std::env::temp_dir().join(format!("sam2-picture-{}.png", std::process::id()));
        picture.write(&path).expect("a scratch file");
        assert_eq!(Picture::read(&path).expect("just written"), picture);
        std::fs::remove_file(&path).expect("just written");
        assert!(matches!(Picture::read(&path), Err(PictureError::File { .. })));
        assert!(matches!(Picture::new(2, 2, vec![0; 11]), Err(PictureError::Bytes { got: 11, .. })));
    }
}
