//! Feeds responses of backends to the HTTP/1.1 client's reading of heads and bodies, as answers to several requests.
//! Checks that nothing panics, that it does not matter in which pieces the bytes come, and that no framing of the
//! backend's connection passes through.

use http::{HeaderValue, Method};

use crate::upstream::http1::read;

/// Longer inputs are not fed byte by byte: the cost of a head grows with the square of its pieces.
const SHORT: usize = 600;

/// What a byte 255 stands for, so that limits of length are in reach of short inputs.
const RUN: [u8; 4000] = [b'x'; 4000];

/// Checks one input.
pub fn check(data: &[u8]) {
    let data = &data
        .split(|byte| *byte == 255)
        .collect::<Vec<_>>()
        .join(&RUN[..])[..];
    let websocket = HeaderValue::from_static("websocket");
    for (method, upgrade) in [
        (Method::GET, None),
        (Method::HEAD, None),
        (Method::GET, Some(&websocket)),
    ] {
        let whole = read([data].into_iter(), &method, upgrade);
        whole.assert_sound();
        let smallest = if data.len() <= SHORT {
            1
        } else {
            data.len() / 16
        };
        for size in [smallest, data.len() / 3 + 1, data.len() * 2 / 3 + 1] {
            let parts = read(data.chunks(size), &method, upgrade);
            assert_eq!(parts, whole, "{method} in pieces of {size}");
        }
    }
}
