//! Flow-control windows of HTTP/2, as ClientPolicies and BackendPolicies set them.

use std::ops::RangeInclusive;

use crate::api::route_policy::Size;
use crate::ir::http2::Http2Windows;

use crate::translate::reason::{Fault, Reason};
use crate::translate::size;

/// Permitted windows of streams. RFC 9113, 6.9.2 begins with 65,535 bytes. A worker holds at least four times the maximum
/// of bytes that nobody has read, so that no single stream uses this up.
const STREAM: (RangeInclusive<u64>, &str) = (65_535..=4 << 20, "4Mi");
/// Permitted windows of connections. More has no use: no worker holds 64 MiB of bytes that nobody has read.
const CONNECTION: (RangeInclusive<u64>, &str) = (65_535..=64 << 20, "64Mi");

/// Returns the window that a connection needs so that streams that are not read delay no others.
pub(super) fn sum(stream: u32, streams: u32) -> u32 {
    stream
        .saturating_mul(streams)
        .min(*CONNECTION.0.end() as u32)
}

/// Translates the windows of a section.
pub(super) fn windows(
    section: &str,
    stream: Option<&Size>,
    connection: Option<&Size>,
) -> Result<Http2Windows, Fault> {
    let one = |name: &str, window: Option<&Size>, (permitted, most): (RangeInclusive<u64>, _)| {
        let Some(window) = window else {
            return Ok(None);
        };
        let field = format!("{section}.{name}");
        let bytes = size::parse(window, &field)?;
        if !permitted.contains(&bytes) {
            let message = format!("{field}: {bytes} bytes are not 65535 to {most}");
            return Err(Fault::new(Reason::Invalid, message));
        }
        Ok(u32::try_from(bytes).ok())
    };
    let stream = one("initialStreamWindow", stream, STREAM)?;
    let connection = one("initialConnectionWindow", connection, CONNECTION)?;
    if connection.is_some() && connection < stream {
        let message =
            format!("{section}.initialConnectionWindow: is less than initialStreamWindow");
        return Err(Fault::new(Reason::Invalid, message));
    }
    Ok(Http2Windows { stream, connection })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Option<Size> {
        (!text.is_empty()).then(|| Size::Quantity(text.to_owned()))
    }

    #[test]
    fn windows_are_within_bounds_and_name_the_field() {
        for (stream, connection, expected) in [
            ("", "", ""),
            ("65535", "65535", ""),
            ("4Mi", "64Mi", ""),
            ("", "64Ki", ""),
            ("64Ki", "", ""),
            (
                "65534",
                "",
                "initialStreamWindow: 65534 bytes are not 65535 to 4Mi",
            ),
            (
                "4194305",
                "",
                "initialStreamWindow: 4194305 bytes are not 65535 to 4Mi",
            ),
            (
                "2Gi",
                "",
                "initialStreamWindow: 2147483648 bytes are not 65535 to 4Mi",
            ),
            (
                "1.5Mi",
                "",
                "initialStreamWindow: \"1.5Mi\" is not a size such as 65536, 512Ki or 8Mi",
            ),
            (
                "",
                "0",
                "initialConnectionWindow: 0 bytes are not 65535 to 64Mi",
            ),
            (
                "",
                "65Mi",
                "initialConnectionWindow: 68157440 bytes are not 65535 to 64Mi",
            ),
            (
                "2Mi",
                "1Mi",
                "initialConnectionWindow: is less than initialStreamWindow",
            ),
        ] {
            let (one, all) = (quantity(stream), quantity(connection));
            let fault = windows("spec.http2", one.as_ref(), all.as_ref()).err();
            let expected = Some(expected).filter(|it| !it.is_empty());
            let expected = expected.map(|it| format!("spec.http2.{it}"));
            assert_eq!(
                fault.map(|it| it.message),
                expected,
                "{stream} {connection}"
            );
        }
    }
}
