//! How versions of HTTP frame messages.

use http::Version;

/// Reports whether requests of this version are streams of frames, side by side on one connection: those of HTTP/2 and HTTP/3.
#[inline]
pub(super) fn is_multiplexed(version: Version) -> bool {
    version >= Version::HTTP_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_streams_are_those_from_http2_on() {
        for (version, expected) in [
            (Version::HTTP_10, false),
            (Version::HTTP_11, false),
            (Version::HTTP_2, true),
            (Version::HTTP_3, true),
        ] {
            assert_eq!(is_multiplexed(version), expected, "{version:?}");
        }
    }
}
