//! Detects the HTTP version of a plain-text client.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use super::io::ClientIo;
use super::{http1, http2};
use crate::proxy::client::Client;
use crate::proxy::connection::deadline::in_time;

/// Connection preface of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of a connection's first read in bytes.
const FIRST_READ: usize = 2048;

/// Returns what was read from a client already, with memory for the first read.
fn first_bytes(client: &Client) -> BytesMut {
    let received = client.worker.take_received();
    match received.is_empty() {
        true => BytesMut::with_capacity(FIRST_READ),
        false => BytesMut::from(Bytes::from(received)),
    }
}

/// Serves a plain-text client with the HTTP version that its first bytes show, of which some were read already.
pub(crate) async fn serve_plain(mut io: ClientIo, client: Rc<Client>) {
    let activity = client.activity(false);
    let mut first = first_bytes(&client);
    let read = async {
        while PREFACE.starts_with(&first) && first.len() < PREFACE.len() {
            if !matches!(io.read_buf(&mut first).await, Ok(1..)) {
                return false;
            }
        }
        true
    };
    match in_time(read, &activity, &client).await {
        Some(true) if first.starts_with(PREFACE) => {
            Box::pin(http2::serve(io, first.freeze(), client)).await;
        }
        Some(true) => http1::serve(io, first.freeze(), activity, client).await,
        Some(false) | None => {}
    }
}
