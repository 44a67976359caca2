//! Modules of `src/proxy`, under the paths that they have in the program.

pub(crate) mod client;
pub(crate) mod connection;
#[path = "../../../src/proxy/error.rs"]
mod error;
#[path = "../../../src/proxy/error_source.rs"]
mod error_source;
#[path = "../../../src/proxy/grpc.rs"]
mod grpc;
#[expect(dead_code, reason = "what writes messages is not fed")]
#[path = "../../../src/proxy/grpc_frame.rs"]
pub(crate) mod grpc_frame;
pub(crate) mod grpc_properties;
#[path = "../../../src/proxy/grpc_web.rs"]
mod grpc_web;
#[path = "../../../src/proxy/sign_in_fault.rs"]
mod sign_in_fault;

/// What makes a request fit to be matched and forwarded.
#[path = "../../../src/proxy/request"]
pub(crate) mod request {
    #[path = "../../../tests/fuzz/src/proxy/external_auth.rs"]
    pub(crate) mod external_auth;
    mod framing;
    mod headers;
    mod path;

    pub(crate) use portcullis::ir::path_normalization as target;
    use portcullis::ir::request_path::RequestPath;

    use self::headers::NormalizedRequest;
    use super::client::host::LastHost;
    use super::error::Error;

    /// Normalizes a request as one that no policy applies to.
    pub(crate) fn normalize(
        parts: &mut http::request::Parts,
        max_headers: usize,
    ) -> Result<(NormalizedRequest, RequestPath), Error> {
        let normal = headers::normalize(parts, &mut LastHost::default(), max_headers)?;
        let (path, _) = path::normalize(parts, None)?;
        Ok((normal, path))
    }
}
