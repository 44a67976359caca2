//! What reads the first bytes of connections.

#[path = "../../../../src/proxy/connection/client_hello.rs"]
mod client_hello;
#[path = "../../../../src/proxy/connection/proxy_protocol.rs"]
mod proxy_protocol;

use std::net::SocketAddr;

use self::client_hello::ClientHello;
use self::proxy_protocol::{Header, parse};

/// What the first bytes of a connection tell that may be passed through.
#[derive(Debug, PartialEq)]
pub(crate) enum Passed {
    Unfinished,
    Refused,
    Named(Option<String>),
}

/// Reads a server name from `data` in pieces of `size`.
pub(crate) fn read_hello(data: &[u8], size: usize) -> Passed {
    let mut hello = ClientHello::default();
    let mut pushed = 0;
    for piece in data.chunks(size.max(1)) {
        pushed += piece.len();
        match hello.push(piece) {
            client_hello::Status::Incomplete => {}
            client_hello::Status::Invalid => return Passed::Refused,
            client_hello::Status::Complete(name) => {
                assert_eq!(hello.into_received(), &data[..pushed]);
                return Passed::Named(name.map(String::from));
            }
        }
    }
    Passed::Unfinished
}

/// What is known of the first bytes of a connection: the length of their header, and its client; or, for
/// bytes without one, whether they may be the beginning of something else.
pub(crate) fn known_header(bytes: &[u8]) -> Option<Result<(usize, Option<SocketAddr>), bool>> {
    match parse(bytes) {
        proxy_protocol::Status::Incomplete => None,
        proxy_protocol::Status::Complete(Header { length, client }) => Some(Ok((length, client))),
        proxy_protocol::Status::Absent => Some(Err(true)),
        proxy_protocol::Status::Invalid => Some(Err(false)),
    }
}
