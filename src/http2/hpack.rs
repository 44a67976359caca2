//! What pseudo-header fields a block of HPACK (RFC 7541) has. Decodes no names and values, only the length of those that
//! enter the dynamic table, whose evictions depend on it. If h2 reset streams with pseudo-header fields in wrong places, or
//! reported the fields, this decoder would not be needed.

use std::collections::VecDeque;

/// Size of the dynamic table unless the decoder announces another one, which h2 does not (RFC 9113, 6.5.2).
pub(super) const TABLE_SIZE: usize = 4096;
/// Size of an entry beyond its name and value (RFC 7541, 4.1).
pub(super) const ENTRY_OVERHEAD: usize = 32;
/// Lengths of the names in the static table (RFC 7541, A).
const STATIC_NAMES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];
/// `:status` with the Huffman code of RFC 7541, B.
const HUFFMAN_STATUS: [u8; 5] = [0xb8, 0x84, 0x8d, 0x36, 0xa3];
/// The code of `:` and its mask in the first byte.
const HUFFMAN_COLON: (u8, u8) = (0xb8, 0xfe);
/// Number of codes of each length in bits, from 5 (RFC 7541, B). The code is canonical, so that these determine it.
const CODES: [u32; 26] = [
    10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];
/// Length of the shortest codes.
const SHORTEST: usize = 5;

/// What a block contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    /// Whether it has `:status`.
    pub(super) has_status: bool,
    /// Whether it has another pseudo-header field.
    pub(super) has_request_field: bool,
}

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Field,
    Status,
    OtherPseudo,
}

/// A name, and its length, which is not 0.
pub(super) type Name = (Kind, usize);

/// The dynamic table of a decoder.
pub(super) struct FieldTable {
    /// Names and sizes, the newest first.
    pub(super) entries: VecDeque<(Name, usize)>,
    size: usize,
    max: usize,
}

impl Default for FieldTable {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max: TABLE_SIZE,
        }
    }
}

impl FieldTable {
    /// Reads a block. `None` if it is malformed.
    pub(super) fn read(&mut self, block: &[u8]) -> Option<Block> {
        let mut input = Input(block);
        let mut found = Block::default();
        while let Some(first) = input.0.first().copied() {
            let (kind, _) = match first {
                0x80.. => self.name(input.integer(7)?)?,
                0x40.. => {
                    let name = self.literal_name(&mut input, 6)?;
                    let (_, value) = input.string()?;
                    self.insert(name, value);
                    name
                }
                0x20.. => {
                    self.max = input.integer(5)?.min(TABLE_SIZE);
                    self.evict(self.max);
                    continue;
                }
                _ => {
                    let name = self.literal_name(&mut input, 4)?;
                    input.skip_string()?;
                    name
                }
            };
            found.has_status |= kind == Kind::Status;
            found.has_request_field |= kind == Kind::OtherPseudo;
        }
        Some(found)
    }

    fn literal_name(&self, input: &mut Input<'_>, prefix: u32) -> Option<Name> {
        match input.integer(prefix)? {
            // h2 skips a field with an empty name, but only in a frame that does not end the block.
            0 => input.string().filter(|(_, length)| *length > 0),
            index => self.name(index),
        }
    }

    /// Returns the name at an index of both tables (RFC 7541, 2.3.3).
    fn name(&self, index: usize) -> Option<Name> {
        let index = index.checked_sub(1)?;
        let Some(length) = STATIC_NAMES.get(index) else {
            let entry = self.entries.get(index - STATIC_NAMES.len());
            return entry.map(|(name, _)| *name);
        };
        let kind = match index {
            0..7 => Kind::OtherPseudo,
            7..14 => Kind::Status,
            _ => Kind::Field,
        };
        Some((kind, usize::from(*length)))
    }

    fn insert(&mut self, name: Name, value: usize) {
        let size = name.1 + value + ENTRY_OVERHEAD;
        self.evict(self.max.saturating_sub(size));
        if size <= self.max {
            self.entries.push_front((name, size));
            self.size += size;
        }
    }

    fn evict(&mut self, max: usize) {
        while self.size > max {
            let oldest = self.entries.pop_back();
            self.size -= oldest.map_or(self.size, |(_, size)| size);
        }
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads an integer whose first byte has this many bits (RFC 7541, 5.1).
    fn integer(&mut self, prefix: u32) -> Option<usize> {
        let (first, mut rest) = self.0.split_first()?;
        let most = (1_u32 << prefix) - 1;
        let mut value = u32::from(*first) & most;
        if value == most {
            for shift in [0, 7, 14, 21] {
                let (byte, after) = rest.split_first()?;
                rest = after;
                value = value.checked_add(u32::from(byte & 0x7f) << shift)?;
                if byte & 0x80 == 0 {
                    self.0 = rest;
                    return Some(value as usize);
                }
            }
            return None;
        }
        self.0 = rest;
        Some(value as usize)
    }

    /// Reads the bytes of a string, and whether they have the Huffman code.
    fn skip_string(&mut self) -> Option<(&'a [u8], bool)> {
        let has_code = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((text, has_code))
    }

    /// Reads a string. Returns what it is as a name, and its length without the Huffman code.
    fn string(&mut self) -> Option<Name> {
        let (text, has_code) = self.skip_string()?;
        let first = text.first().copied().unwrap_or(0);
        let (is_pseudo, status, length) = match has_code {
            true => {
                let is_pseudo = first & HUFFMAN_COLON.1 == HUFFMAN_COLON.0;
                (is_pseudo, &HUFFMAN_STATUS[..], decoded_length(text))
            }
            false => (first == b':', &b":status"[..], text.len()),
        };
        let kind = match is_pseudo {
            false => Kind::Field,
            true if text == status => Kind::Status,
            true => Kind::OtherPseudo,
        };
        Some((kind, length))
    }
}

/// For each length of codes, the first 32 bits after its last code.
const LIMITS: [u64; CODES.len()] = {
    let mut limits = [0; CODES.len()];
    let (mut code, mut index) = (0_u64, 0);
    while index < CODES.len() {
        code += CODES[index] as u64;
        limits[index] = code << (32 - SHORTEST - index);
        code <<= 1;
        index += 1;
    }
    limits
};

/// Returns the number of characters in a text with the Huffman code.
fn decoded_length(text: &[u8]) -> usize {
    let bits = text.len() * 8;
    let (mut position, mut count) = (0, 0);
    loop {
        let at = |offset: usize| u64::from(*text.get(position / 8 + offset).unwrap_or(&0xff));
        let bytes = (0..5).fold(0, |bytes, offset| bytes << 8 | at(offset));
        let next = (bytes >> (8 - position % 8)) & u64::from(u32::MAX);
        let index = LIMITS.iter().position(|limit| next < *limit);
        position += SHORTEST + index.unwrap_or(CODES.len() - 1);
        // The rest is padding of less than a byte.
        if position > bits {
            return count;
        }
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Block = Block {
        has_status: false,
        has_request_field: false,
    };
    const STATUS: Block = Block {
        has_status: true,
        ..NONE
    };
    const REQUEST: Block = Block {
        has_request_field: true,
        ..NONE
    };

    #[test]
    fn lengths_of_huffman_strings_are_those_of_the_rfc() {
        // RFC 7541, C.4 and C.6.
        let date = [
            0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b,
            0x81, 0x66, 0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
        ];
        assert_eq!(decoded_length(&date), "Mon, 21 Oct 2013 20:13:21 GMT".len());
        let host = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(decoded_length(&host), "www.example.com".len());
        assert_eq!(decoded_length(&[0x64, 0x02]), "302".len());
        assert_eq!(decoded_length(&HUFFMAN_STATUS), ":status".len());
        assert_eq!(decoded_length(&[]), 0);
    }

    #[test]
    fn pseudo_headers_are_found_in_every_representation() {
        let path = [0xb9, 0x58, 0xd3, 0x3f];
        assert_eq!(decoded_length(&path), ":path".len());
        for (block, expected) in [
            (&[0x88][..], STATUS),
            (&[0x84], REQUEST),
            (
                &[0x88, 0x84],
                Block {
                    has_status: true,
                    ..REQUEST
                },
            ),
            (b"\x48\x03200", STATUS),
            (b"\x04\x01/", REQUEST),
            (b"\x14\x01/", REQUEST),
            (b"\x00\x05:path\x01/", REQUEST),
            (b"\x40\x07:status\x03200", STATUS),
            (b"\x00\x85\xb8\x84\x8d\x36\xa3\x03200", STATUS),
            (b"\x00\x84\xb9\x58\xd3\x3f\x01/", REQUEST),
            (b"\x00\x03a:b\x01/", NONE),
            (&[], NONE),
        ] {
            assert_eq!(
                FieldTable::default().read(block),
                Some(expected),
                "{block:?}"
            );
        }
    }

    #[test]
    fn entries_of_the_dynamic_table_are_found_until_they_are_evicted() {
        let mut table = FieldTable::default();
        assert_eq!(table.read(b"\x44\x02/a"), Some(REQUEST));
        assert_eq!(table.read(&[0xbe]), Some(REQUEST));
        // Another entry moves it to index 63, also as a name.
        assert_eq!(table.read(b"\x40\x01x\x01y"), Some(NONE));
        assert_eq!(table.read(&[0xbe]), Some(NONE));
        assert_eq!(table.read(&[0xbf]), Some(REQUEST));
        assert_eq!(table.read(b"\x0f\x30\x01z"), Some(REQUEST));
        // The limit leaves room for the newer entry of 34 bytes only.
        assert_eq!(table.read(&[0x3f, 0x13]), Some(NONE));
        assert_eq!(table.read(&[0xbe]), Some(NONE));
        assert_eq!(table.read(&[0xbf]), None);
        // An entry above the limit empties the table.
        assert_eq!(table.read(b"\x40\x01x\x14yyyyyyyyyyyyyyyyyyyy"), Some(NONE));
        assert_eq!(table.read(&[0xbe]), None);
    }

    #[test]
    fn malformed_blocks_are_noticed() {
        for block in [
            &[0x80][..],
            &[0xc0],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x40],
            b"\x00\x05:pa",
            b"\x40\x01x",
            b"\x00\x00\x01x",
            b"\x40\x80\x01x",
        ] {
            assert_eq!(FieldTable::default().read(block), None, "{block:?}");
        }
    }
}
