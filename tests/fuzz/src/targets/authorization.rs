//! Feeds the messages of an authorization server that speaks gRPC to what reads them and changes requests. Checks that
//! nothing panics, that only a permission lets a request pass, and that no server changes framing or host, or denies a
//! request with a success.

use crate::proxy::request::external_auth;

/// Checks one input.
pub fn check(data: &[u8]) {
    external_auth::check(data);
}
