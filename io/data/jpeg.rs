//! JPEG files that are made.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// A JPEG file of pixels, row by row: one number each, or red, green and blue. Colours have as many pixels as brightness, since images
/// of a few dozen pixels have none to spare.
///
/// # Errors
/// Why there is no such file: JPEG has at most 65,535 rows and columns.
pub fn encode_jpeg(
    pixels: &[u8],
    [channels, height, width]: [usize; 3],
    quality: u8,
) -> Result<Vec<u8>, String> {
    let side = |pixels: usize| {
        u16::try_from(pixels).map_err(|_| format!("JPEG has at most {} rows and columns", u16::MAX))
    };
    let (width, height) = (side(width)?, side(height)?);
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, quality);
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    let colour = if channels == 3 { ColorType::Rgb } else { ColorType::Luma };
    encoder.encode(pixels, width, height, colour).map_err(|error| error.to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::decode_image;

    #[test]
    fn what_is_made_can_be_read() {
        let pixels: Vec<u8> = (0..3 * 40 * 24).map(|at| (at / 3 % 24 * 8 + at % 3 * 20) as u8).collect();
        for (channels, colour) in [(3, "blue, green and red"), (1, "one number a pixel")] {
            let pixels = &pixels[..channels * 40 * 24];
            let mut found = Vec::new();
            let shape = decode_image(&encode_jpeg(pixels, [channels, 40, 24], 95).unwrap(), None, &mut found);
            assert_eq!(shape, Ok([channels, 40, 24]), "{colour}");
            let expected = pixels.chunks(channels).flat_map(|pixel| pixel.iter().rev());
            assert!(found.iter().zip(expected).all(|(found, pixel)| found.abs_diff(*pixel) < 16), "{colour}");
        }
    }

    #[test]
    fn a_side_may_be_too_long() {
        let refused = encode_jpeg(&[0; 65_536], [1, 1, 65_536], 95).unwrap_err();
        assert_eq!(refused, "JPEG has at most 65535 rows and columns");
    }
}
