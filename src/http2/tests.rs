//! Properties of what reads frames before h2 does: whatever a peer sends and however it is cut, the dynamic table is the one
//! of h2 or the connection ends, blocks of correct peers do not end it, and frames count the same.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::frame::{DATA, HEADER, TYPE, length};
use super::header_blocks::{
    CONTINUATION, END_HEADERS, END_STREAM, HEADERS, HeaderBlocks, PADDED, PRIORITY, PUSH_PROMISE,
};
use super::oracle::{Connection, PREFACE, frame, put_integer};
use super::send_window::{SendWindow, SentFrames};
use super::wire::{Counts, EmptyFrames, Frames};

/// A string of HPACK, and whether it has the Huffman code.
type Text = (bool, &'static [u8]);

/// Names, most of them of RFC 7541, C.4 and C.6.
const NAMES: &[Text] = &[
    (false, b"a"),
    (false, b"cccc"),
    (false, b"te"),
    (false, b"connection"),
    (false, b":path"),
    (false, b":status"),
    (false, b":authority"),
    (true, &[0xb8, 0x84, 0x8d, 0x36, 0xa3]),
    (true, &[0xb9, 0x58, 0xd3, 0x3f]),
    (true, &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f]),
];
/// Values that every name may have.
const VALUES: &[Text] = &[(false, b"302"), (true, &[0x64, 0x02])];
/// Values that a status must not have, and of sizes that evict other entries.
const OTHER_VALUES: &[Text] = &[
    (
        true,
        &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
    ),
    (false, &[b'x'; 1000]),
    (false, &[b'x'; 2000]),
    (false, &[b'x'; 4096]),
    (false, b""),
];
/// Names of fields that are no pseudo-header fields.
const FIELD: usize = 15;
const LAST: usize = 61;
/// Representations that no peer may send: an index of no entry, integers that are too long or have no end, strings that are
/// too long or have a code of no character, an empty name, and a size of the table that was not announced.
const BROKEN: &[&[u8]] = &[
    &[0x80],
    &[0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x00, 0x01, b'x'],
    &[0x41, 0xff],
    b"\x40\x01a\x05x",
    &[0x40, 1, b'a', 0x84, 0xff, 0xff, 0xff, 0xff],
    b"\x40\x00\x01x",
    b"\x40\x80\x01x",
    b"\x00\x00\x81\x07",
    b"\x10\x80\x80",
    &[0x3f, 0xe2, 0x1f],
];

/// Whether a peer sends nothing but correct blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peer {
    Correct,
    Any,
}

fn put_text(block: &mut Vec<u8>, (has_code, text): Text) {
    put_integer(block, if has_code { 0x80 } else { 0 }, 7, text.len());
    block.extend_from_slice(text);
}

/// A field whose literal may enter the table, must not, or must never (RFC 7541, 6.2).
fn literal(
    name: impl Strategy<Value = Result<usize, Text>>,
    value: impl Strategy<Value = Text>,
) -> impl Strategy<Value = Vec<u8>> {
    let form = select(&[(0x40, 6), (0x40, 6), (0, 4), (0x10, 4)][..]);
    (form, name, value).prop_map(|((first, prefix), name, value)| {
        let mut block = Vec::new();
        put_integer(&mut block, first, prefix, name.unwrap_or(0));
        if let Err(text) = name {
            put_text(&mut block, text);
        }
        put_text(&mut block, value);
        block
    })
}

fn indexed(range: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<u8>> {
    range.prop_map(|index| {
        let mut block = Vec::new();
        put_integer(&mut block, 0x80, 7, index);
        block
    })
}

fn field(peer: Peer) -> BoxedStrategy<Vec<u8>> {
    let named = || select(NAMES).prop_map(Err);
    let static_name = || (FIELD..=LAST).prop_map(Ok);
    let any_value = select(OTHER_VALUES);
    let correct = prop_oneof![
        2 => indexed(1..=LAST),
        4 => literal(named(), select(VALUES)),
        2 => literal((1..=LAST).prop_map(Ok), select(VALUES)),
        3 => literal(static_name(), any_value),
    ];
    if peer == Peer::Correct {
        return correct.boxed();
    }
    let dynamic = || LAST + 1..=LAST + 4;
    prop_oneof![
        20 => correct,
        6 => indexed(dynamic()),
        6 => literal(dynamic().prop_map(Ok), select(VALUES)),
        1 => literal(named(), select(OTHER_VALUES)),
        1 => literal(Just(Err((false, &b""[..]))), select(VALUES)),
        1 => select(BROKEN).prop_map(<[u8]>::to_vec),
        1 => vec(any::<u8>(), 1..20),
    ]
    .boxed()
}

/// A block: sizes of the table (RFC 7541, 6.3), and fields.
fn block(peer: Peer) -> impl Strategy<Value = Vec<u8>> {
    let sizes = vec(select(&[0, 33, 40, 100, 2000, 4096][..]), 0..3);
    let sizes = prop_oneof![4 => Just(Vec::new()), 1 => sizes];
    (sizes, vec(field(peer), 0..8)).prop_map(|(sizes, fields)| {
        let mut block = Vec::new();
        for size in sizes {
            put_integer(&mut block, 0x20, 5, size);
        }
        block.extend(fields.concat());
        block
    })
}

/// The frames of a block, and their stream.
fn message(peer: Peer) -> impl Strategy<Value = (u32, Vec<u8>)> {
    let stream = select(&[1_u32, 3, 5, 7][..]);
    let cuts = prop_oneof![Just(Vec::new()), vec(0.0..1.0, 1..4)];
    let others = match peer {
        Peer::Correct => Just(0).boxed(),
        Peer::Any => prop_oneof![4 => Just(0), 1 => 1..5_u32].boxed(),
    };
    let rest = (
        option::of(0..40_u8),
        option::weighted(0.2, Just(())),
        any::<bool>(),
        others,
    );
    (stream, block(peer), cuts, rest).prop_map(
        |(stream, block, cuts, (padding, dependency, is_end, other))| {
            let mut ends: Vec<_> = cuts
                .iter()
                .map(|cut: &f64| (cut * block.len() as f64) as usize)
                .collect();
            ends.sort_unstable();
            ends.push(block.len());
            let mut flags = if is_end { END_STREAM } else { 0 };
            let mut first = Vec::new();
            if let Some(padding) = padding {
                flags |= PADDED;
                // More than there is, at times.
                first.push(if other == 1 { 200 } else { padding });
            }
            if dependency.is_some() || other == 2 {
                flags |= PRIORITY;
                let dependency = if other == 2 { stream } else { 0 };
                first.extend_from_slice(&u32::to_be_bytes(dependency));
                first.push(15);
            }
            let (mut frames, mut begin) = (Vec::new(), 0);
            for (at, end) in ends.iter().enumerate() {
                let is_last = at + 1 == ends.len() && other != 3;
                let end_headers = if is_last { END_HEADERS } else { 0 };
                let part = &block[begin..*end];
                begin = *end;
                if at > 0 {
                    frames.extend(frame(CONTINUATION, end_headers, stream, part));
                } else if other == 4 {
                    let promise = [&[0, 0, 0, 2], part].concat();
                    frames.extend(frame(PUSH_PROMISE, end_headers, stream, &promise));
                } else {
                    let padding = vec![0; padding.unwrap_or(0).into()];
                    let payload = [&first, part, &padding].concat();
                    frames.extend(frame(HEADERS, flags | end_headers, stream, &payload));
                }
            }
            (stream, frames)
        },
    )
}

fn messages(peer: Peer) -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    vec(message(peer), 1..10)
}

/// Feeds messages to a connection. Those of a client open streams in order.
fn feed(is_server: bool, step: usize, mut messages: Vec<(u32, Vec<u8>)>) -> Connection {
    if is_server {
        messages.sort_by_key(|(stream, _)| *stream);
    }
    let mut connection = Connection::new(is_server, step);
    for (_, frames) in messages {
        connection.feed(&frames);
    }
    connection
}

/// Returns the frames with parts of header blocks.
fn header_blocks(mut frames: &[u8]) -> Vec<u8> {
    let mut blocks = Vec::new();
    while let Some(head) = frames.first_chunk::<HEADER>() {
        let (frame, rest) = frames.split_at(HEADER + length(*head));
        if matches!(head[TYPE], HEADERS | CONTINUATION) {
            blocks.extend_from_slice(frame);
        }
        frames = rest;
    }
    blocks
}

fn steps() -> impl Strategy<Value = usize> {
    select(&[1, 7, 100, 16 * 1024][..])
}

/// Names and values that h2 encodes.
fn fields() -> impl Strategy<Value = Vec<(String, Vec<u8>, bool)>> {
    let value = prop_oneof![
        "[ -~]{0,20}".prop_map(String::into_bytes),
        vec(0x80..0xff_u8, 0..60),
        (0..2000_usize).prop_map(|length| vec![b'x'; length]),
    ];
    vec(("x-[a-z_.]{0,12}", value, any::<bool>()), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn table_is_the_one_of_h2_or_the_connection_ends(
        is_server in any::<bool>(),
        step in steps(),
        messages in messages(Peer::Any),
    ) {
        feed(is_server, step, messages).compare_tables();
    }

    #[test]
    fn correct_blocks_are_followed(
        is_server in any::<bool>(),
        step in steps(),
        messages in messages(Peer::Correct),
    ) {
        let connection = feed(is_server, step, messages);
        prop_assert!(!connection.is_lost());
        connection.compare_tables();
    }

    #[test]
    fn frames_count_the_same_however_they_are_cut(
        frames in vec((0..=9_u8, any::<u8>(), 0..6_u32, prop_oneof![0..12_usize, 0..700_usize]), 0..12),
        step in 1..1000_usize,
    ) {
        let bytes = frames.iter().flat_map(|(kind, flags, stream, length)| {
            frame(*kind, *flags, *stream, &vec![1; *length])
        });
        let bytes: Vec<u8> = bytes.collect();
        let read = |step: usize| {
            let (counts, mut blocks) = (Counts::default(), HeaderBlocks::new(true));
            let mut frames = Frames::after(0, EmptyFrames::Hide);
            for part in bytes.clone().chunks_mut(step) {
                frames.scan(part, &counts, &mut blocks);
            }
            (counts.small.get(), counts.bytes.get(), counts.window.0.get())
        };
        prop_assert_eq!(read(step), read(usize::MAX));
        let (window, mut sent) = (SendWindow::default(), SentFrames::after(0));
        bytes.chunks(step).for_each(|part| sent.scan(part, &window));
        let data = frames.iter().filter(|(kind, ..)| *kind == DATA);
        let used: usize = data.map(|(.., length)| length).sum();
        prop_assert_eq!(window.0.get(), SendWindow::default().0.get() - used as i64);
    }

    #[test]
    fn blocks_that_h2_encodes_leave_its_table(
        step in steps(),
        responses in vec(fields(), 3),
    ) {
        let (mut client, mut server) = (Connection::new(false, step), Connection::new(true, step));
        let output = client.take_output();
        server.feed(&header_blocks(output.strip_prefix(PREFACE).expect("a client")));
        for fields in responses {
            let mut headers = HeaderMap::new();
            for (name, value, is_sensitive) in fields {
                let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
                let mut value = HeaderValue::from_bytes(&value).expect("a value");
                value.set_sensitive(is_sensitive);
                headers.append(name, value);
            }
            client.feed(&header_blocks(&server.respond(headers)));
        }
        prop_assert!(!client.has_failed() && !client.is_lost());
        client.compare_tables();
    }
}

/// Frames after which h2 goes on without fields of a block in its table, or with those of a block that is not for it.
#[test]
fn connection_ends_after_frames_that_h2_reads_otherwise() {
    const FIELD: &[u8] = b"\x88\x40\x01a\x01b";
    let head = |flags, stream, block: &[u8]| frame(HEADERS, flags, stream, block);
    let on_itself = head(
        END_HEADERS | PRIORITY,
        3,
        &[&[0, 0, 0, 3, 15], FIELD].concat(),
    );
    let without_end = [
        head(0, 3, b"\x88\x40\x0aconnection\x01x"),
        head(END_HEADERS, 5, FIELD),
    ];
    let without_name = [
        head(0, 3, b"\x88\x40\x00\x01x"),
        frame(CONTINUATION, END_HEADERS, 3, &FIELD[1..]),
    ];
    let promise = [&[0, 0, 0, 2], FIELD].concat();
    let on_cancelled = frame(PUSH_PROMISE, END_HEADERS, 7, &promise);
    for frames in [
        on_itself,
        without_end.concat(),
        without_name.concat(),
        on_cancelled,
    ] {
        let mut connection = Connection::new(false, usize::MAX);
        connection.feed(&head(END_HEADERS, 1, b"\x88\x44\x02/a"));
        assert!(!connection.has_failed());
        connection.feed(&frames);
        connection.compare_tables();
    }
}

#[test]
fn static_names_have_the_length_that_they_have_in_h2() {
    let all: Vec<_> = (1..=LAST).collect();
    for indices in all.chunks(20) {
        let mut block = Vec::new();
        for index in indices {
            put_integer(&mut block, 0x40, 6, *index);
            put_text(&mut block, VALUES[0]);
        }
        let mut connection = Connection::new(false, usize::MAX);
        connection.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
        assert!(!connection.has_failed());
        connection.compare_tables();
    }
}
