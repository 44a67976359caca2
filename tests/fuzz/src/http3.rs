//! What reads the streams of HTTP/3 clients, of `src/http3`, and the properties that it has.

#[path = "../../../src/http3/content_length.rs"]
mod content_length;
#[path = "../../../src/http3/control_stream.rs"]
mod control_stream;
#[path = "../../../src/http3/error.rs"]
mod error;
#[path = "../../../src/http3/frame.rs"]
mod frame;
#[path = "../../../src/http3/huffman.rs"]
mod huffman;
#[path = "../../../src/http3/message.rs"]
mod message;
#[path = "../../../src/http3/oracle.rs"]
mod oracle;
#[path = "../../../src/http3/prefix_integer.rs"]
mod prefix_integer;
#[path = "../../../src/http3/qpack.rs"]
mod qpack;
#[path = "../../../src/http3/request_stream.rs"]
mod request_stream;
#[path = "../../../src/http3/static_table.rs"]
mod static_table;
#[path = "../../../src/http3/streams.rs"]
mod streams;
#[path = "../../../src/http3/varint.rs"]
mod varint;

/// Checks an input: a byte that tells which stream the others are, or that they are a field section.
pub(crate) fn check(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        0 => oracle::check_request_stream(data),
        1 => oracle::check_stream(data),
        _ => oracle::check_section(data),
    }
}
