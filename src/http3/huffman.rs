//! The Huffman code of HPACK and QPACK (RFC 7541, B). The code is canonical, so that the lengths of its codes determine it.

/// Length of the code of each byte, in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// Lengths of the shortest and of the longest codes.
const SHORTEST: usize = 5;
const LONGEST: usize = 30;
/// Bits that [`SHORT`] looks up at once.
const WIDTH: u32 = 8;
/// The most bits of padding.
const MAX_PADDING: u32 = 7;

/// All codes, and what decodes them.
struct Tables {
    /// The code of each byte, in the last bits.
    codes: [u32; 256],
    /// The bytes in the order of their codes.
    bytes: [u8; 256],
    /// For each length of codes, the first 32 bits behind its last code, and what added to a code is its place in `bytes`.
    ends: [(u64, i64); LONGEST + 1],
    /// For each value of the next 8 bits, the byte whose code they begin with, and its length; or a length of 0.
    short: [(u8, u8); 1 << WIDTH],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut tables = Tables {
        codes: [0; 256],
        bytes: [0; 256],
        ends: [(0, 0); LONGEST + 1],
        short: [(0, 0); 1 << WIDTH],
    };
    let (mut code, mut place, mut length) = (0_u32, 0, SHORTEST);
    while length <= LONGEST {
        let difference = place as i64 - code as i64;
        let mut byte = 0;
        while byte < LENGTHS.len() {
            if LENGTHS[byte] as usize == length {
                tables.codes[byte] = code;
                tables.bytes[place] = byte as u8;
                if length <= WIDTH as usize {
                    let free = WIDTH as usize - length;
                    let mut rest = 0;
                    while rest < 1 << free {
                        let index = (code as usize) << free | rest;
                        tables.short[index] = (byte as u8, length as u8);
                        rest += 1;
                    }
                }
                code += 1;
                place += 1;
            }
            byte += 1;
        }
        tables.ends[length] = ((code as u64) << (32 - length), difference);
        code <<= 1;
        length += 1;
    }
    tables
}

/// Why a text cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It has the code of no byte, or padding other than some first bits of the code that ends texts (RFC 7541, 5.2).
    Malformed,
    /// It has more bytes than permitted.
    TooLong,
}

/// Decodes a text of at most `max` bytes, which replace those of `output`.
pub(super) fn decode(text: &[u8], max: usize, output: &mut Vec<u8>) -> Result<(), Fault> {
    output.clear();
    let mut input = text.iter();
    // The next bits, from the first one.
    let (mut next, mut count) = (0_u64, 0_u32);
    loop {
        while count <= u64::BITS - WIDTH {
            let Some(byte) = input.next() else { break };
            next |= u64::from(*byte) << (u64::BITS - WIDTH - count);
            count += WIDTH;
        }
        let (byte, length) = match TABLES.short[(next >> (u64::BITS - WIDTH)) as usize] {
            (_, 0) => long(next >> 32).ok_or(Fault::Malformed)?,
            (byte, length) => (byte, length.into()),
        };
        if length > count {
            break;
        }
        if output.len() == max {
            return Err(Fault::TooLong);
        }
        output.push(byte);
        next <<= length;
        count -= length;
    }
    let padding = !(u64::MAX >> count);
    match count <= MAX_PADDING && next == padding {
        true => Ok(()),
        false => Err(Fault::Malformed),
    }
}

/// Returns the byte whose code 32 bits begin with, and its length. `None` for the code that ends texts.
fn long(bits: u64) -> Option<(u8, u32)> {
    let length = (SHORTEST..=LONGEST).find(|it| bits < TABLES.ends[*it].0)?;
    let code = (bits >> (32 - length)) as i64;
    let place = usize::try_from(code + TABLES.ends[length].1).ok()?;
    Some((*TABLES.bytes.get(place)?, length as u32))
}

/// Returns how many bytes a text takes.
pub(super) fn encoded_length(text: &[u8]) -> usize {
    let length = |byte: &u8| usize::from(LENGTHS[usize::from(*byte)]);
    text.iter().map(length).sum::<usize>().div_ceil(8)
}

/// Encodes a text.
pub(super) fn encode(text: &[u8], output: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0_u32);
    for byte in text {
        let byte = usize::from(*byte);
        bits = bits << LENGTHS[byte] | u64::from(TABLES.codes[byte]);
        count += u32::from(LENGTHS[byte]);
        while count >= 8 {
            count -= 8;
            output.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        output.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut output = b"before".to_vec();
        decode(text, 1000, &mut output).map(|()| output)
    }

    #[test]
    fn encodes_and_decodes_the_samples_of_the_rfc() {
        // RFC 7541, C.4 and C.6.
        for (text, code) in [
            (
                "www.example.com",
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
            ),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (
                "custom-value",
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
            ),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
            (
                "Mon, 21 Oct 2013 20:13:21 GMT",
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04,
                    0x0b, 0x81, 0x66, 0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
            ),
            ("", &[]),
        ] {
            let mut encoded = Vec::new();
            encode(text.as_bytes(), &mut encoded);
            assert_eq!(encoded, code, "{text}");
            assert_eq!(encoded_length(text.as_bytes()), code.len());
            assert_eq!(decoded(code).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn every_byte_has_its_code() {
        // RFC 7541, B: the first and the last code of some lengths, and what ends texts.
        for (byte, code, length) in [
            (b'0', 0x0, 5),
            (b't', 0x9, 5),
            (b' ', 0x14, 6),
            (b'X', 0xfc, 8),
            (b'\\', 0x7_fff0, 19),
            (0xf9, 0xfff_fffe, 28),
            (b'\n', 0x3fff_fffc, 30),
            (0x16, 0x3fff_fffe, 30),
        ] {
            let index = usize::from(byte);
            assert_eq!((TABLES.codes[index], LENGTHS[index]), (code, length));
        }
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        let mut encoded = Vec::new();
        encode(&all, &mut encoded);
        assert_eq!(decoded(&encoded).unwrap(), all);
        for byte in 0..=255 {
            let mut encoded = Vec::new();
            encode(&[byte], &mut encoded);
            assert_eq!(decoded(&encoded).unwrap(), [byte]);
        }
    }

    #[test]
    fn refuses_wrong_padding_and_the_code_that_ends_texts() {
        for text in [
            &[0xff][..],
            &[0xf1, 0xff],
            &[0x00],
            &[0x64, 0x03, 0xfe],
            &[0xff, 0xff, 0xff, 0xfc],
            &[0xff, 0xff, 0xff, 0xff],
            &[0xff; 8],
            &[0xff; 100],
        ] {
            assert_eq!(decoded(text), Err(Fault::Malformed), "{text:?}");
        }
    }

    #[test]
    fn decodes_no_more_than_permitted() {
        let mut encoded = Vec::new();
        encode(&[b'0'; 1000], &mut encoded);
        let mut output = Vec::new();
        assert_eq!(decode(&encoded, 1000, &mut output), Ok(()));
        assert_eq!(decode(&encoded, 999, &mut output), Err(Fault::TooLong));
        assert_eq!(decode(&[], 0, &mut output), Ok(()));
    }
}
