//! Feeds calls to what reads gRPC and gRPC-Web: deadlines, heads, and bodies in base64. Checks that nothing panics, that
//! bodies are the same in whatever pieces they come, that what is encoded is decoded to the same, and that a translated
//! head is gRPC, or gRPC-Web, and nothing else.

use crate::proxy::grpc_properties::{check_body, check_head};
use crate::request;

/// What separates a head from a body.
const END: &[u8] = b"\r\n\r\n";

/// Checks one input.
pub fn check(data: &[u8]) {
    let end = data.windows(END.len()).position(|window| window == END);
    let (head, body) = data.split_at(end.unwrap_or(data.len()));
    if let Some(parts) = request::read(head) {
        check_head(&parts.headers);
    }
    check_body(body.strip_prefix(END).unwrap_or(data));
}
