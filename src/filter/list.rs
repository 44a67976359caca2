//! Headers that are lists (RFC 9110, 5.6.1), the weights of their elements (12.4.2), and headers that depend on the bytes
//! of a response.

use http::header::{TRAILER, VARY};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers that are about the bytes of a response.
pub(super) const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Reports whether a response has a header about its bytes, or announces one as a trailer (RFC 9530).
pub(super) fn has_digest(headers: &HeaderMap) -> bool {
    DIGESTS.iter().any(|name| {
        let mut trailers = elements(headers, &TRAILER);
        headers.contains_key(name) || trailers.any(|it| it.eq_ignore_ascii_case(name.as_str()))
    })
}

/// Returns the elements of all lines of a header, without empty ones. For headers whose elements have no quoted commas.
pub(super) fn elements<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    elements_of(headers.get_all(name).into_iter())
}

/// Returns the elements of the lines of a header, without empty ones.
pub(super) fn elements_of<'a>(
    lines: impl Iterator<Item = &'a HeaderValue>,
) -> impl Iterator<Item = &'a str> {
    let lines = lines.filter_map(|line| line.to_str().ok());
    let elements = lines.flat_map(|line| line.split(','));
    elements
        .map(|element| element.trim_matches([' ', '\t']))
        .filter(|element| !element.is_empty())
}

/// Adds the name of a request header to `Vary`, so that caches know that it decides. `value` is the name as text.
pub(super) fn add_vary(headers: &mut HeaderMap, name: &HeaderName, value: HeaderValue) {
    let name = name.as_str();
    let is_known = elements(headers, &VARY).any(|it| it == "*" || it.eq_ignore_ascii_case(name));
    if !is_known {
        // Fails without room for a header, where the response goes on without it.
        let _ = headers.try_append(VARY, value);
    }
}

/// Returns what an element names, without its parameters, and its weight in thousandths, which is 1,000 without `q`.
/// `None` if the weight is malformed.
pub(super) fn parameters(element: &str) -> Option<(&str, u16)> {
    let mut parts = element.split(';').map(|it| it.trim_matches([' ', '\t']));
    let name = parts.next()?;
    let mut weight = 1000;
    for parameter in parts {
        if let Some(value) = parameter.strip_prefix(['q', 'Q'])
            && let Some(value) = value.trim_start().strip_prefix('=')
        {
            weight = thousandths(value.trim_start())?;
        }
    }
    Some((name, weight))
}

/// Parses a weight: 0 to 1 with up to three digits after the point.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut digits = fraction.bytes();
    if fraction.len() > 3 || !digits.all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(3);
    let fraction = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match (whole, fraction) {
        ("0", fraction) => Some(fraction),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_thousandths() {
        for (text, expected) in [
            ("gzip", Some(("gzip", 1000))),
            ("gzip;q=0", Some(("gzip", 0))),
            ("gzip; q=0.5", Some(("gzip", 500))),
            ("gzip ; Q = 0.123", Some(("gzip", 123))),
            ("text/html;level=1;q=1.000", Some(("text/html", 1000))),
            ("gzip;q=0.", Some(("gzip", 0))),
            ("gzip;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzip;q=-1", None),
            ("gzip;q=", None),
            ("gzip;q=2", None),
        ] {
            assert_eq!(parameters(text), expected, "{text}");
        }
    }
}
