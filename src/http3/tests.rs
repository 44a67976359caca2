//! Properties of the reader of a client's streams: whatever a client sends, and however it is split.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::oracle::{self, Line, check_request_stream, check_section, check_stream};
use super::{huffman, prefix_integer, varint};

const CASES: u32 = 256;

/// Names, also ones that are malformed or not permitted.
const NAMES: &[&str] = &[
    ":method",
    ":scheme",
    ":authority",
    ":path",
    ":protocol",
    ":status",
    "host",
    "cookie",
    "te",
    "content-length",
    "content-type",
    "x-frame-options",
    "connection",
    "Upper",
    "",
    "a-name-that-no-table-has",
];
const VALUES: &[&str] = &[
    "GET",
    "CONNECT",
    "https",
    "a.com",
    "/",
    "*",
    "websocket",
    "200",
    "trailers",
    "3",
    "deny",
    "a=1",
    "",
    "~~~~",
    "\n",
];

/// A request that is well formed.
const REQUEST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "a.com"),
    (":path", "/"),
    ("cookie", "a=1"),
    ("cookie", "b=2"),
    ("content-length", "3"),
];

fn line(name: &str, value: &str) -> Line {
    (name.into(), value.into(), false)
}

fn some_line() -> impl Strategy<Value = Line> {
    let value = prop_oneof![
        3 => select(VALUES).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ];
    let name = select(NAMES).prop_map(|text| text.as_bytes().to_vec());
    (name, value, any::<bool>())
}

fn section() -> impl Strategy<Value = Vec<u8>> {
    let request = REQUEST.iter().map(|(name, value)| line(name, value));
    let request: Vec<Line> = request.collect();
    let begin = prop_oneof![3 => Just(request), 1 => Just(Vec::new())];
    (begin, vec(some_line(), 0..8)).prop_map(|(mut lines, more)| {
        lines.extend(more);
        oracle::encode(&lines).unwrap()
    })
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kinds: &'static [u64] = &[0, 0, 0, 1, 4, 7, 0xd, 0x21, 0x40, 3, 5, 9];
    let payload = prop_oneof![
        vec(any::<u8>(), 0..20),
        Just(b"abc".to_vec()),
        Just(vec![1]),
        (1990_usize..2010).prop_map(|length| vec![0; length]),
    ];
    let other = (select(kinds), payload);
    prop_oneof![section().prop_map(|section| (1_u64, section)), other].prop_map(
        |(kind, payload)| {
            let mut frame = Vec::new();
            varint::write(kind, &mut frame);
            varint::write(payload.len() as u64, &mut frame);
            frame.extend(payload);
            frame
        },
    )
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    (vec(frame(), 0..6), 0..4_usize).prop_map(|(frames, cut)| {
        let mut stream = frames.concat();
        stream.truncate(stream.len().saturating_sub(cut));
        stream
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn any_bytes_are_read_in_any_parts(bytes in vec(any::<u8>(), 0..100)) {
        check_request_stream(&bytes);
        check_stream(&bytes);
        check_section(&bytes);
        check_section(&[&[0, 0][..], &bytes].concat());
    }

    #[test]
    fn request_streams_are_read_in_any_parts(stream in stream()) {
        check_request_stream(&stream);
    }

    #[test]
    fn control_streams_are_read_in_any_parts(stream in stream(), has_settings in any::<bool>()) {
        let settings: &[u8] = if has_settings { &[4, 2, 6, 9] } else { &[] };
        check_stream(&[&[0][..], settings, &stream].concat());
    }

    #[test]
    fn sections_are_the_same_after_encoding(section in section(), flip in any::<(u16, u8)>()) {
        check_section(&section);
        let mut broken = section;
        let place = usize::from(flip.0) % broken.len();
        broken[place] ^= flip.1;
        check_section(&broken);
    }

    #[test]
    fn strings_are_the_same_after_encoding(text in vec(any::<u8>(), 0..100)) {
        let mut encoded = Vec::new();
        huffman::encode(&text, &mut encoded);
        prop_assert_eq!(encoded.len(), huffman::encoded_length(&text));
        let mut decoded = Vec::new();
        prop_assert_eq!(huffman::decode(&encoded, text.len(), &mut decoded), Ok(()));
        prop_assert_eq!(&decoded, &text);
        // Any other bytes, of which some are a code.
        if huffman::decode(&text, 1000, &mut decoded) == Ok(()) {
            encoded.clear();
            huffman::encode(&decoded, &mut encoded);
            prop_assert_eq!(encoded, text);
        }
    }

    #[test]
    fn integers_are_the_same_after_encoding(value in 0..=varint::MAX, bits in 0..62_u32, prefix in 3..=8_u32) {
        let value = value >> bits;
        let mut written = Vec::new();
        varint::write(value, &mut written);
        prop_assert_eq!(varint::Partial::default().read(&mut &written[..]), Some(value));
        written.clear();
        prefix_integer::write(value, 0, prefix, &mut written);
        prop_assert_eq!(prefix_integer::read(&mut &written[..], prefix), Some(value));
    }
}
