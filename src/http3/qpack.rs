//! Field sections of QPACK (RFC 9204) without a dynamic table: a decoder that announces a table of no bytes, and an encoder
//! that uses the static table and literals. A section depends on nothing but its own bytes.

use super::error::{Code, Error};
use super::static_table::{self, Found};
use super::{huffman, prefix_integer};

/// Size of a field line beyond its name and value (RFC 9114, 4.2.2).
const LINE_OVERHEAD: usize = 32;
/// Lengths of the integers in the first bytes of the representations (RFC 9204, 4.5).
const INDEX: u32 = 6;
const NAME_INDEX: u32 = 4;
const NAME_LENGTH: u32 = 3;
const VALUE_LENGTH: u32 = 7;
/// First bits of the representations, and their flags.
const INDEXED: u8 = 0b1100_0000;
const NAME_REFERENCE: u8 = 0b0101_0000;
const LITERAL_NAME: u8 = 0b0010_0000;
const NEVER_INDEXED_REFERENCE: u8 = 0b0010_0000;
const NEVER_INDEXED_NAME: u8 = 0b0001_0000;

/// A field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// Whether it must not enter the table of any encoder on the way (RFC 9204, 7.1.3).
    pub(super) is_sensitive: bool,
}

const fn failed(description: &'static str) -> Error {
    Error::Connection(Code::QpackDecompressionFailed, description)
}

/// Decodes a section of at most `max_size` bytes, as RFC 9114, 4.2.2 counts them, and passes each line to `visit`, whose error
/// ends the section. Holds one line at a time.
pub(super) fn decode(
    section: &[u8],
    max_size: usize,
    mut visit: impl FnMut(Line<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut input = section;
    read_prefix(&mut input)?;
    let (mut name, mut value) = (Vec::new(), Vec::new());
    let mut left = max_size;
    while !input.is_empty() {
        left = left.checked_sub(LINE_OVERHEAD).ok_or(Error::TooLarge)?;
        let line = read_line(&mut input, left, &mut name, &mut value)?;
        let size = line.name.len() + line.value.len();
        left = left.checked_sub(size).ok_or(Error::TooLarge)?;
        visit(line)?;
    }
    Ok(())
}

/// Reads Required Insert Count and Base (RFC 9204, 4.5.1).
fn read_prefix(input: &mut &[u8]) -> Result<(), Error> {
    const CUT: Error = failed("a field section without its prefix");
    if prefix_integer::read(input, 8).ok_or(CUT)? != 0 {
        return Err(failed("a field section that needs the dynamic table"));
    }
    let is_negative = input.first().ok_or(CUT)? & 0x80 != 0;
    prefix_integer::read(input, 7).ok_or(CUT)?;
    match is_negative {
        true => Err(failed("a field section with a negative Base")),
        false => Ok(()),
    }
}

/// Reads a line whose name and value have at most `max` bytes each.
fn read_line<'i: 'o, 'o>(
    input: &mut &'i [u8],
    max: usize,
    name: &'o mut Vec<u8>,
    value: &'o mut Vec<u8>,
) -> Result<Line<'o>, Error> {
    let first = input.first().copied().unwrap_or_default();
    let (name, is_sensitive) = match first {
        0b1100_0000.. => {
            let (name, value) = read_entry(input, INDEX)?;
            return Ok(Line {
                name: name.as_bytes(),
                value: value.as_bytes(),
                is_sensitive: false,
            });
        }
        0b0100_0000..0b1000_0000 if first & NAME_REFERENCE == NAME_REFERENCE => {
            let (name, _) = read_entry(input, NAME_INDEX)?;
            (name.as_bytes(), first & NEVER_INDEXED_REFERENCE != 0)
        }
        0b0010_0000..0b0100_0000 => {
            let name = read_string(input, NAME_LENGTH, max, name)?;
            (name, first & NEVER_INDEXED_NAME != 0)
        }
        _ => return Err(failed("a reference to the dynamic table")),
    };
    Ok(Line {
        name,
        value: read_string(input, VALUE_LENGTH, max, value)?,
        is_sensitive,
    })
}

/// Reads an index, and returns the entry of the static table.
fn read_entry(input: &mut &[u8], prefix: u32) -> Result<(&'static str, &'static str), Error> {
    let index = prefix_integer::read(input, prefix);
    let entry = index.and_then(static_table::get);
    entry.ok_or(failed("an index of no entry"))
}

/// Reads a string of at most `max` bytes. The bit before its length tells whether it has the Huffman code; it is decoded into
/// `decoded` then.
fn read_string<'i: 'o, 'o>(
    input: &mut &'i [u8],
    prefix: u32,
    max: usize,
    decoded: &'o mut Vec<u8>,
) -> Result<&'o [u8], Error> {
    const CUT: Error = failed("a string that is not complete");
    let has_code = input.first().ok_or(CUT)? >> prefix & 1 != 0;
    let length = prefix_integer::read(input, prefix).ok_or(CUT)?;
    let length = usize::try_from(length).map_err(|_| CUT)?;
    let (text, rest) = input.split_at_checked(length).ok_or(CUT)?;
    *input = rest;
    if !has_code {
        return Ok(text);
    }
    match huffman::decode(text, max, decoded) {
        Ok(()) => Ok(decoded),
        Err(huffman::Fault::TooLong) => Err(Error::TooLarge),
        Err(huffman::Fault::Malformed) => Err(failed("a malformed Huffman code")),
    }
}

/// Begins a section.
pub(super) fn begin(output: &mut Vec<u8>) {
    output.extend([0, 0]);
}

/// Adds a line to a section. No encoder on the way may index a sensitive one.
pub(super) fn write(name: &str, value: &[u8], is_sensitive: bool, output: &mut Vec<u8>) {
    let flag = |bit: u8| if is_sensitive { bit } else { 0 };
    match static_table::find(name, value) {
        Some(Found::Field(index)) if !is_sensitive => {
            prefix_integer::write(index, INDEXED, INDEX, output);
            return;
        }
        Some(Found::Field(index) | Found::Name(index)) => {
            let first = NAME_REFERENCE | flag(NEVER_INDEXED_REFERENCE);
            prefix_integer::write(index, first, NAME_INDEX, output);
        }
        None => {
            let first = LITERAL_NAME | flag(NEVER_INDEXED_NAME);
            write_string(name.as_bytes(), first, NAME_LENGTH, output);
        }
    }
    write_string(value, 0, VALUE_LENGTH, output);
}

/// Writes a string, with the Huffman code if it is shorter then.
fn write_string(text: &[u8], first: u8, prefix: u32, output: &mut Vec<u8>) {
    let length = huffman::encoded_length(text);
    if length < text.len() {
        prefix_integer::write(length as u64, first | 1 << prefix, prefix, output);
        huffman::encode(text, output);
    } else {
        prefix_integer::write(text.len() as u64, first, prefix, output);
        output.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values, and whether they are sensitive.
    type Lines = Vec<(Vec<u8>, Vec<u8>, bool)>;

    fn decoded(section: &[u8], max_size: usize) -> Result<Lines, Error> {
        let mut lines = Vec::new();
        decode(section, max_size, |line| {
            lines.push((line.name.to_vec(), line.value.to_vec(), line.is_sensitive));
            Ok(())
        })?;
        Ok(lines)
    }

    fn line(name: &str, value: &str) -> (Vec<u8>, Vec<u8>, bool) {
        (name.into(), value.into(), false)
    }

    fn code(section: &[u8]) -> Option<Code> {
        match decoded(section, 1000) {
            Err(Error::Connection(code, _)) => Some(code),
            _ => None,
        }
    }

    #[test]
    fn decodes_the_sample_of_the_rfc_without_a_dynamic_table() {
        // RFC 9204, B.1.
        let section = b"\x00\x00\x51\x0b/index.html";
        let lines = vec![line(":path", "/index.html")];
        assert_eq!(decoded(section, 1000).unwrap(), lines);
    }

    #[test]
    fn samples_with_a_dynamic_table_are_refused() {
        // RFC 9204, B.2 to B.5: Required Insert Count is not 0.
        for section in [
            &[0x03, 0x81, 0x10, 0x11][..],
            &[0x05, 0x00, 0x80, 0xc1, 0x81],
            &[0x06, 0x00, 0x80],
        ] {
            assert_eq!(code(section), Some(Code::QpackDecompressionFailed));
        }
    }

    #[test]
    fn decodes_every_representation() {
        let section = [
            &[0, 0][..],
            &[0xd1, 0xff, 0x23],
            b"\x50\x01a",
            b"\x7f\x0d\x04text",
            b"\x21x\x00",
            b"\x36secret\x01v",
            &[0x2a, 0xf3, 0xe7, 0x82, 0x64, 0x02],
        ]
        .concat();
        let expected = [
            line(":method", "GET"),
            line("x-frame-options", "sameorigin"),
            line(":authority", "a"),
            (b":status".into(), b"text".into(), true),
            line("x", ""),
            (b"secret".into(), b"v".into(), true),
            line("xx", "302"),
        ];
        assert_eq!(decoded(&section, 1000).unwrap(), expected);
    }

    #[test]
    fn malformed_sections_are_refused() {
        for section in [
            &[][..],
            &[0],
            &[1, 0],
            &[0, 0x80],
            &[0, 0x7f, 0xff],
            &[0xff, 0x00],
            // An index that is not in the static table, or that refers to the dynamic one.
            &[0, 0, 0xff, 0x24],
            &[0, 0, 0x5f, 0x54, 0],
            &[0, 0, 0x80],
            &[0, 0, 0x40, 0],
            &[0, 0, 0x10],
            &[0, 0, 0x00, 0],
            // Strings that end early, or have a wrong code.
            &[0, 0, 0x51],
            &[0, 0, 0x51, 1],
            b"\0\0\x23ab",
            b"\0\0\x21a",
            &[0, 0, 0x51, 0x81, 0xff],
            &[
                0, 0, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
            ],
            &[
                0, 0, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
            ],
        ] {
            let failed = Some(Code::QpackDecompressionFailed);
            assert_eq!(code(section), failed, "{section:?}");
        }
    }

    #[test]
    fn sections_have_a_maximum_size() {
        let mut section = Vec::new();
        begin(&mut section);
        write(":method", b"GET", false, &mut section);
        write("name", &[b'0'; 100], false, &mut section);
        write("n", &[0xff; 10], false, &mut section);
        let size = 32 + 7 + 3 + 32 + 4 + 100 + 32 + 1 + 10;
        assert!(decoded(&section, size).is_ok());
        for max in 0..size {
            assert_eq!(decoded(&section, max), Err(Error::TooLarge), "{max}");
        }
        // Many lines of one byte each.
        let many = [&[0, 0][..], &[0xc0; 10_000]].concat();
        let mut visited = 0;
        let visit = |_: Line<'_>| {
            visited += 1;
            Ok(())
        };
        assert_eq!(decode(&many, 420, visit), Err(Error::TooLarge));
        assert_eq!(visited, 10);
    }

    #[test]
    fn encodes_with_the_static_table_and_the_shorter_strings() {
        for (name, value, is_sensitive, expected) in [
            (":status", "200", false, &[0xd9][..]),
            (":status", "500", false, &[0xff, 0x08]),
            (":status", "302", true, &[0x7f, 0x33, 0x82, 0x64, 0x02]),
            (":status", "999", false, b"\x5f\x09\x03999"),
            (":path", "~", false, b"\x51\x01~"),
            ("x", "~", false, b"\x21x\x01~"),
            ("x", "~", true, b"\x31x\x01~"),
            ("aaaa", "", false, &[0x2b, 0x18, 0xc6, 0x3f, 0x00]),
        ] {
            let mut written = Vec::new();
            write(name, value.as_bytes(), is_sensitive, &mut written);
            assert_eq!(written, expected, "{name}: {value}");
            let section = [&[0, 0][..], &written].concat();
            let line = (name.into(), value.into(), is_sensitive);
            assert_eq!(decoded(&section, 1000).unwrap(), [line]);
        }
    }
}
