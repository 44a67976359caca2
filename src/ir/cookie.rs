//! Cookies of requests, read without allocation.

use http::HeaderMap;
use http::header::COOKIE;
use memchr::memchr;

/// Returns the values of the cookies with this name, without quotes and whitespace around them, in the order of the headers.
/// Clients send several when cookies differ in path or domain, or when HTTP/2 splits the header
/// (RFC 9113, 8.2.3). Skips parts that are not a pair (RFC 6265, 4.2.1).
pub fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let headers = headers.get_all(COOKIE).iter();
    headers
        .flat_map(|header| parts(header.as_bytes()))
        .filter_map(|part| {
            let (own, value) = pair(part)?;
            (own == name.as_bytes()).then_some(value)
        })
}

/// Returns what a header has between its semicolons.
pub fn parts(header: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(header);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = memchr(b';', text);
        rest = end.map(|end| &text[end + 1..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// Returns the name of a part that is a pair.
pub fn name(part: &[u8]) -> Option<&[u8]> {
    Some(pair(part)?.0)
}

/// Returns name and value of a part that is a pair: without whitespace around them, and without the quotes of the value.
/// Servers differ in what they leave of these, so that they must not make another cookie.
fn pair(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = memchr(b'=', part)?;
    let (name, value) = (&part[..equals], part[equals + 1..].trim_ascii());
    let value = match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    };
    Some((name.trim_ascii(), value))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn found(cookies: &[&[u8]], name: &str) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_bytes(cookie).unwrap());
        }
        values(&headers, name)
            .map(|value| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    #[test]
    fn finds_exact_name_in_any_pair_of_any_header() {
        assert_eq!(found(&[b"rel=a"], "rel"), ["a"]);
        assert_eq!(found(&[b"x=1; rel=a; y=2"], "rel"), ["a"]);
        assert_eq!(found(&[b"x=1;rel=a;y=2"], "rel"), ["a"]);
        assert_eq!(
            found(&[b"x=1", b"y=2;\trel=a ", b"rel=b"], "rel"),
            ["a", "b"]
        );
        assert_eq!(found(&[b"rel=\"a\""], "rel"), ["a"]);
        assert_eq!(found(&[b"rel =a"], "rel"), ["a"]);
        for other in [
            "Rel=a",
            "xrel=a",
            "rel2=a",
            "x=rel=a",
            "rel",
            "=rel",
            "\"rel\"=a",
        ] {
            assert!(found(&[other.as_bytes()], "rel").is_empty(), "{other}");
        }
    }

    #[test]
    fn keeps_unusual_values_unchanged() {
        assert_eq!(found(&[b"rel="], "rel"), [""]);
        assert_eq!(found(&[b"rel=a=b"], "rel"), ["a=b"]);
        assert_eq!(found(&[b"rel= a"], "rel"), ["a"]);
        assert_eq!(found(&[b" rel\t= \"a\" "], "rel"), ["a"]);
        assert_eq!(found(&[b"rel=\""], "rel"), ["\""]);
        assert_eq!(found(&[b"rel=\"\""], "rel"), [""]);
        assert_eq!(found(&[b"rel=\"a;b\""], "rel"), ["\"a"]);
        assert_eq!(found(&[b";;=; ;\xff\xfe=\x80;rel=a;;"], "rel"), ["a"]);
    }

    #[test]
    fn reads_large_header() {
        let mut large = b"x=".repeat(32 << 10);
        large.extend_from_slice(b"; rel=a");
        assert_eq!(found(&[&large], "rel"), ["a"]);
        let many = [b"rel=b;".repeat(10 << 10), b"rel=a".to_vec()].concat();
        assert_eq!(found(&[&many], "rel").len(), (10 << 10) + 1);
    }
}
