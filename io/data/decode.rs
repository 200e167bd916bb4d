//! Image files: JPEG and PNG, as Caffe's OpenCV gives them: channels in the order blue, green, red.
//!
//! What an image file says of its orientation (Exif) is not applied, transparency is dropped, and of 16 bits the upper
//! eight are taken.

use png::{BitDepth, ColorType, Transformations};
use quadrille_core::layer::Colour;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::records::values_of;

/// Most rows or columns of an image.
const MOST_EXTENT: usize = 1 << 16;

/// Most pixels for which a byte of a JPEG can stand: at least one bit for each block of 8 x 8, which lies over at most
/// four times as many rows and columns, in an image of at least two colours.
const MOST_PIXELS_OF_A_BYTE: usize = 8 * 64 * 16 / 2;
/// Deflate makes at most so many bytes of one.
const MOST_BYTES_OF_A_BYTE: usize = 1032;

/// Decodes an image file into `out`, pixel by pixel, and returns its channels, height and width: as many channels as
/// `colour` says, or else as the file has.
///
/// # Errors
/// What is wrong with the file.
pub fn decode(file: &[u8], colour: Option<Colour>, out: &mut Vec<u8>) -> Result<[usize; 3], String> {
    match file {
        [0xff, 0xd8, ..] => decode_jpeg(file, colour, out),
        [0x89, b'P', b'N', b'G', ..] => decode_png(file, colour, out),
        [] => Err("is empty; expected a JPEG or PNG image".to_owned()),
        _ => {
            let start: Vec<String> = file.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            Err(format!(
                "starts with {}; expected a JPEG (ff d8) or PNG (89 50 4e 47) image",
                start.join(" ")
            ))
        }
    }
}

/// Fails if a file has not the bytes that an image of `shape` takes at least: a header costs nothing, memory does.
/// What is too large for any file is left to [`make_room`].
fn holds(file: &[u8], least: usize, shape: [usize; 3]) -> Result<(), String> {
    let [_, height, width] = shape;
    match file.len() < least && values_of(shape).is_some() {
        false => Ok(()),
        true => Err(format!("is cut off: {} bytes cannot hold {height} x {width} pixels", file.len())),
    }
}

/// Gives `out` the size of an image.
fn make_room(shape: [usize; 3], out: &mut Vec<u8>) -> Result<(), String> {
    let [channels, height, width] = shape;
    let too_large = || format!("is {height} x {width} with {channels} channels, which is too large or empty");
    let count = values_of(shape).ok_or_else(too_large)?;
    out.clear();
    out.try_reserve(count).map_err(|error| error.to_string())?;
    out.resize(count, 0);
    Ok(())
}

fn decode_jpeg(file: &[u8], colour: Option<Colour>, out: &mut Vec<u8>) -> Result<[usize; 3], String> {
    let broken = |error| format!("is not a whole JPEG image: {error}");
    let options = DecoderOptions::new_fast()
        .set_strict_mode(true)
        .set_max_width(MOST_EXTENT)
        .set_max_height(MOST_EXTENT)
        .jpeg_set_max_scans(64);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().ok_or("is a JPEG image without a size")?;
    let has_grey = decoder.input_colorspace().is_some_and(|space| space.num_components() == 1);
    let grey = match colour {
        Some(colour) => colour == Colour::Grey,
        None => has_grey,
    };
    // Grey of a coloured image is its brightness channel, as libjpeg gives it.
    let (space, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    let shape = [channels, height, width];
    holds(file, height * width / MOST_PIXELS_OF_A_BYTE, shape)?;
    make_room(shape, out)?;
    decoder.set_options(decoder.options().jpeg_set_out_colorspace(space));
    decoder.decode_into(out).map_err(broken)?;
    // The decoder fills up what is cut off.
    let scan = file.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap_or_default();
    if !file[scan..].windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Err("is a JPEG image that is cut off".to_owned());
    }
    if channels == 3 {
        out.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
    }
    Ok(shape)
}

fn decode_png(file: &[u8], colour: Option<Colour>, out: &mut Vec<u8>) -> Result<[usize; 3], String> {
    let broken = |error| format!("is not a whole PNG image: {error}");
    let mut decoder = png::Decoder::new_with_limits(
        std::io::Cursor::new(file),
        png::Limits { bytes: super::records::MAX_RECORD },
    );
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(broken)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let (kind, depth) = reader.output_color_type();
    let stored = match (kind, depth) {
        (ColorType::Grayscale, BitDepth::Eight) => 1,
        (ColorType::GrayscaleAlpha, BitDepth::Eight) => 2,
        (ColorType::Rgb, BitDepth::Eight) => 3,
        (ColorType::Rgba, BitDepth::Eight) => 4,
        other => return Err(format!("is a PNG image of a kind that is not supported: {other:?}")),
    };
    if width.max(height) > MOST_EXTENT {
        return Err(format!("is {height} x {width}, which is too large"));
    }
    // Rows may be packed tighter in the file, and each has a byte more.
    holds(file, reader.info().raw_bytes() / MOST_BYTES_OF_A_BYTE, [stored, height, width])?;
    make_room([stored, height, width], out)?;
    reader.next_frame(out).map_err(broken)?;
    // The checksums of what follows count, too.
    reader.finish().map_err(broken)?;
    let channels = match colour {
        Some(Colour::Colour) => 3,
        Some(Colour::Grey) => 1,
        None if stored <= 2 => 1,
        None => 3,
    };
    change_channels(out, stored, channels);
    Ok([channels, height, width])
}

/// Red, green, blue and perhaps transparency, or grey and perhaps transparency, become blue, green, red or grey.
fn change_channels(pixels: &mut Vec<u8>, stored: usize, channels: usize) {
    let pixel = |source: &[u8]| match *source {
        [grey] | [grey, _] => [grey; 3],
        [red, green, blue, ..] if channels == 3 => [blue, green, red],
        [red, green, blue, ..] => [grey_of(red, green, blue); 3],
        [] => [0; 3],
    };
    if channels <= stored {
        // In place: nothing is written before it was read.
        let count = pixels.len() / stored;
        for i in 0..count {
            let value = pixel(&pixels[i * stored..(i + 1) * stored]);
            pixels[i * channels..(i + 1) * channels].copy_from_slice(&value[..channels]);
        }
        pixels.truncate(count * channels);
    } else {
        *pixels = pixels.chunks(stored).flat_map(pixel).collect();
    }
}

/// The brightness of a colour by the weights of ITU-R BT.601, with OpenCV's rounding.
pub(super) fn grey_of(red: u8, green: u8, blue: u8) -> u8 {
    // 0.299, 0.587 and 0.114 in units of 2^-15.
    let sum = 9798 * u32::from(red) + 19235 * u32::from(green) + 3735 * u32::from(blue);
    ((sum + (1 << 14)) >> 15) as u8
}
