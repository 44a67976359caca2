//! Reads cookies from request headers without allocation.

use http::HeaderMap;
use http::header::COOKIE;

/// Returns the values of the cookies with this name, without quotes, in the order of the headers.
/// Clients send several when cookies differ in path or domain, or when HTTP/2 splits the header
/// (RFC 9113, 8.2.3). Skips parts that are not a pair (RFC 6265, 4.2.1).
pub fn values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|header| header.as_bytes().split(|byte| *byte == b';'))
        .filter_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
            Some(unquoted(value.strip_prefix(b"=")?))
        })
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    }
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
        for other in [
            "Rel=a",
            "xrel=a",
            "rel2=a",
            "rel =a",
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
        assert_eq!(found(&[b"rel= a"], "rel"), [" a"]);
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
