//! What reads the frames of a peer before h2 does, of `src/http2`, and the properties that it has.

#[path = "../../../src/http2/bodies.rs"]
mod bodies;
#[path = "../../../src/http2/frame.rs"]
mod frame;
#[path = "../../../src/http2/header_blocks.rs"]
mod header_blocks;
#[path = "../../../src/http2/held.rs"]
mod held;
#[path = "../../../src/http2/hpack.rs"]
mod hpack;
#[path = "../../../src/http2/oracle.rs"]
mod oracle;
mod reading;
#[path = "../../../src/http2/send_queue.rs"]
mod send_queue;
#[path = "../../../src/http2/send_window.rs"]
mod send_window;
#[path = "../../../src/http2/stream.rs"]
mod stream;
#[path = "../../../src/http2/unsent_heads.rs"]
mod unsent_heads;
#[path = "../../../src/http2/waiting.rs"]
mod waiting;
#[path = "../../../src/http2/wire.rs"]
mod wire;

use self::oracle::Connection;
use self::reading::Reading;

/// Instead of a type: what follows are no frames that are built.
const RAW: u8 = 255;
const GOAWAY: u8 = 7;
/// Longer inputs are not fed byte by byte.
const SHORT: usize = 1000;

/// Checks what a peer sends, a client or a backend.
pub(crate) fn check(data: &[u8], is_client: bool) {
    let (bytes, is_comparable) = frames(data);
    let whole = Reading::new(&bytes, is_client, usize::MAX);
    let smallest = if bytes.len() <= SHORT {
        1
    } else {
        bytes.len() / 64
    };
    for step in [smallest, bytes.len() / 3 + 1, bytes.len() * 2 / 3 + 1] {
        let parts = Reading::new(&bytes, is_client, step);
        assert_eq!(parts, whole, "in pieces of {step}");
    }
    for step in [usize::MAX, smallest] {
        let mut connection = Connection::new(is_client, step);
        connection.feed(&bytes);
        match is_comparable {
            true => connection.compare_tables(),
            false => connection.close(),
        }
    }
}

/// Builds the frames of an input: each has a byte for its type, flags, stream and length, and its payload. Returns too
/// whether new streams work after them, so that tables can be compared.
fn frames(mut data: &[u8]) -> (Vec<u8>, bool) {
    let (mut bytes, mut is_comparable) = (Vec::new(), true);
    while let [kind, flags, stream, length, rest @ ..] = data {
        if *kind == RAW {
            bytes.extend_from_slice(&data[1..]);
            return (bytes, false);
        }
        is_comparable &= *kind != GOAWAY;
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes.extend(oracle::frame(*kind, *flags, (stream & 7).into(), payload));
        data = rest;
    }
    (bytes, is_comparable)
}
