//! One array in NumPy's own format: a magic number, one line of Python that says type, order and extents, and the values.

use std::io::{self, Read, Write};

use quadrille_core::shape::MAX_AXES;

use super::{Array, Values};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// A header of an array without fields is a line of some hundred characters.
const MAX_HEADER: usize = 1 << 16;
/// Bytes that are read at once: whole numbers of any type.
const PIECE: usize = 1 << 16;
/// NumPy's own alignment of the first value.
const ALIGNMENT: usize = 64;

/// The types that are read and written, as NumPy calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    F32,
    F64,
    I32,
    /// Read only: NumPy's integers unless it is told otherwise.
    I64,
    U8,
}

impl Type {
    fn of(values: &Values) -> Self {
        match values {
            Values::F32(_) => Self::F32,
            Values::F64(_) => Self::F64,
            Values::I32(_) => Self::I32,
            Values::U8(_) => Self::U8,
        }
    }

    fn descr(self) -> &'static str {
        match self {
            Self::F32 => "<f4",
            Self::F64 => "<f8",
            Self::I32 => "<i4",
            Self::I64 => "<i8",
            Self::U8 => "|u1",
        }
    }

    fn parse(descr: &str) -> Result<Self, String> {
        let known = [Self::F32, Self::F64, Self::I32, Self::I64, Self::U8]
            .into_iter()
            .find(|kind| kind.descr() == descr);
        known.ok_or_else(|| {
            format!("values of type {descr:?}; expected \"<f4\", \"<f8\", \"<i4\", \"<i8\" or \"|u1\" (array.astype('<f4'))")
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::U8 => 1,
        }
    }
}

/// What a header says.
#[derive(Debug, PartialEq)]
struct Header {
    kind: Type,
    shape: Vec<usize>,
}

/// Reads an array from `content`, which holds `length` bytes. Takes no more memory than what is really there.
pub(super) fn decode(content: &mut impl Read, length: u64) -> Result<Array, String> {
    let (text, start) = header_text(content)?;
    let Header { kind, shape } = parse(&text)?;
    let size = shape.iter().try_fold(kind.bytes(), |n, extent| n.checked_mul(*extent));
    let promised = size.and_then(|size| size.checked_add(start));
    let Some(size) = size.filter(|_| promised.is_some_and(|promised| promised as u64 == length)) else {
        let held = length.saturating_sub(start as u64);
        return Err(format!("{held} bytes of values for extents {shape:?} of type {:?}", kind.descr()));
    };
    let narrow = |value: i64| i32::try_from(value).map_err(|_| "has integers beyond 32 bits".to_owned());
    let values = match kind {
        Type::F32 => Values::F32(numbers(content, size, |b| Ok(f32::from_le_bytes(b)))?),
        Type::I32 => Values::I32(numbers(content, size, |b| Ok(i32::from_le_bytes(b)))?),
        Type::F64 => Values::F64(numbers(content, size, |b| Ok(f64::from_le_bytes(b)))?),
        Type::I64 => Values::I32(numbers(content, size, |b| narrow(i64::from_le_bytes(b)))?),
        Type::U8 => Values::U8(numbers(content, size, |[byte]| Ok(byte))?),
    };
    // The end, where a compressed file checks what it has read.
    if content.read(&mut [0]).map_err(unreadable)? > 0 {
        return Err("goes on after its last value".to_owned());
    }
    Ok(Array { shape, values })
}

/// Reads numbers of `N` bytes each, `size` bytes in all, piece by piece, so that a large array is there only once.
fn numbers<const N: usize, T>(
    content: &mut impl Read,
    size: usize,
    number: impl Fn([u8; N]) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let (mut values, mut piece) = (Vec::new(), vec![0; PIECE]);
    let mut done = 0;
    while done < size {
        let piece = &mut piece[..PIECE.min(size - done)];
        let mut filled = 0;
        while filled < piece.len() {
            match content.read(&mut piece[filled..]) {
                Ok(0) => return Err(format!("is cut off after {} of {size} bytes of values", done + filled)),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        for bytes in piece.as_chunks::<N>().0 {
            values.push(number(*bytes)?);
        }
        done += filled;
    }
    Ok(values)
}

fn unreadable(error: io::Error) -> String {
    format!("cannot be read: {error}")
}

/// The line of Python, and how many bytes end with it.
fn header_text(content: &mut impl Read) -> Result<(String, usize), String> {
    let mut next = |count: usize| -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; count];
        content.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "is cut off in its header".to_owned(),
            _ => unreadable(error),
        })?;
        Ok(bytes)
    };
    let start = next(MAGIC.len() + 2)?;
    if !start.starts_with(MAGIC) {
        return Err("is no array of NumPy (.npy)".to_owned());
    }
    let width = match start[MAGIC.len()] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("version {version} of the format; expected 1, 2 or 3")),
    };
    let length = next(width)?.iter().rev().fold(0usize, |n, byte| n << 8 | usize::from(*byte));
    if length > MAX_HEADER {
        return Err(format!("a header of {length} bytes; at most {MAX_HEADER} are read"));
    }
    let text = String::from_utf8(next(length)?).map_err(|_| "its header is not text".to_owned())?;
    Ok((text, start.len() + width + length))
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn parse(text: &str) -> Result<Header, String> {
    let damaged = || format!("its header says {:?}", text.trim());
    let mut rest = Scanner { rest: text.trim() };
    let (mut kind, mut fortran, mut shape) = (None, None, None);
    if !rest.take("{") {
        return Err(damaged());
    }
    while !rest.take("}") {
        let key = rest.quoted().filter(|_| rest.take(":")).ok_or_else(damaged)?;
        match key {
            "descr" => {
                let fields = || format!("an array of records, as {}; expected plain numbers", damaged());
                kind = Some(Type::parse(rest.quoted().ok_or_else(fields)?)?);
            }
            "fortran_order" => fortran = Some(rest.boolean().ok_or_else(damaged)?),
            "shape" => shape = Some(rest.extents().ok_or_else(damaged)?),
            _ => return Err(damaged()),
        }
        if !rest.take(",") && !rest.rest.starts_with('}') {
            return Err(damaged());
        }
    }
    let (Some(kind), Some(fortran), Some(shape), "") = (kind, fortran, shape, rest.rest) else {
        return Err(damaged());
    };
    if fortran {
        return Err("its first axis is the fastest (fortran_order); expected C order \
                    (numpy.ascontiguousarray(array))"
            .to_owned());
    }
    if shape.len() > MAX_AXES {
        return Err(format!("{} axes; at most {MAX_AXES} are possible", shape.len()));
    }
    Ok(Header { kind, shape })
}

/// What is left of a line.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    /// Takes `token` and the blanks after it, if it comes next.
    fn take(&mut self, token: &str) -> bool {
        let found = self.rest.strip_prefix(token);
        if let Some(rest) = found {
            self.rest = rest.trim_start();
        }
        found.is_some()
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let quote = self.rest.chars().next().filter(|c| ['\'', '"'].contains(c))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest.trim_start();
        Some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        if self.take("True") {
            return Some(true);
        }
        self.take("False").then_some(false)
    }

    fn number(&mut self) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse().ok()?;
        self.rest = self.rest[end..].trim_start();
        // Python 2 wrote long integers with an L.
        self.take("L");
        Some(number)
    }

    /// A tuple of numbers: `()`, `(3,)`, `(2, 3)`.
    fn extents(&mut self) -> Option<Vec<usize>> {
        let mut extents = Vec::new();
        if !self.take("(") {
            return None;
        }
        while !self.take(")") {
            extents.push(self.number()?);
            if !self.take(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        Some(extents)
    }
}

/// How many bytes [`encode`] writes.
pub(super) fn encoded_len(array: &Array) -> usize {
    header(array).len() + array.values.len() * Type::of(&array.values).bytes()
}

/// Writes an array whose extents were checked.
pub(super) fn encode(array: &Array, to: &mut impl Write) -> io::Result<()> {
    to.write_all(&header(array))?;
    match &array.values {
        Values::F32(values) => values.iter().try_for_each(|value| to.write_all(&value.to_le_bytes())),
        Values::F64(values) => values.iter().try_for_each(|value| to.write_all(&value.to_le_bytes())),
        Values::I32(values) => values.iter().try_for_each(|value| to.write_all(&value.to_le_bytes())),
        Values::U8(values) => to.write_all(values),
    }
}

fn header(array: &Array) -> Vec<u8> {
    let extents: String = array.shape.iter().map(|extent| format!("{extent}, ")).collect();
    // One extent keeps its comma, or Python would read a number and not a tuple.
    let extents = if array.shape.len() == 1 { extents.trim_end() } else { extents.trim_end_matches(", ") };
    let descr = Type::of(&array.values).descr();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let before = MAGIC.len() + 4;
    let length = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    // At most MAX_AXES numbers of 20 digits: far below what 16 bits hold.
    [&MAGIC[..], &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat()
}
