//! The value of a header as a list, however its lines and commas are written (RFC 9110, 5.3 and 5.6.1), and its hosts, if it has
//! any. Must not know which headers are lists.

use std::iter;

use http::HeaderName;

/// Returns the elements of the lines of a header: without the whitespace around them, and without empty ones, which do not count.
pub fn elements<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// Reports whether the elements of a header are hosts.
#[inline]
pub fn has_hosts(name: &HeaderName) -> bool {
    matches!(name.as_str(), "host" | "x-forwarded-host")
}

/// Returns the text of a list of hosts, with a comma after each: in lower case, without ports and without the dot of an absolute
/// name, which select no other host (RFC 9110, 4.2.3; RFC 3986, 3.2.2).
pub fn hosts<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = u8> {
    elements(lines).flat_map(|element| {
        let name = name_of(element).iter().map(u8::to_ascii_lowercase);
        name.chain(iter::once(b','))
    })
}

/// Returns the text of credentials, with a comma after each part: their scheme in lower case and one space behind it, whatever
/// the client writes (RFC 9110, 11.1 and 11.4).
pub fn credentials<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = u8> {
    elements(lines).flat_map(|element| {
        let end = element.iter().position(u8::is_ascii_whitespace);
        let (scheme, rest) = element.split_at(end.unwrap_or(0));
        let space = end.map(|_| b' ');
        let scheme = scheme.iter().map(u8::to_ascii_lowercase).chain(space);
        let rest = rest.trim_ascii_start().iter().copied();
        scheme.chain(rest).chain(iter::once(b','))
    })
}

/// Returns a host without its port and the dot of an absolute name.
fn name_of(host: &[u8]) -> &[u8] {
    let literal = host.iter().rposition(|byte| *byte == b']');
    let start = literal.map_or(0, |at| at + 1);
    let port = host[start..].iter().position(|byte| *byte == b':');
    let name = port.map_or(host, |at| &host[..start + at]);
    name.strip_suffix(b".").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_whitespace_and_empty_elements_make_no_other_list() {
        for lines in [
            &["a,b c"][..],
            &["a, b c"],
            &["a\t,  b c"],
            &["a", "b c"],
            &["a", "", "b c,"],
            &[",a ,,b c"],
        ] {
            let lines = lines.iter().map(|line| line.as_bytes());
            let elements: Vec<_> = elements(lines).collect();
            assert_eq!(elements, [&b"a"[..], b"b c"]);
        }
        assert_eq!(elements([&b" , "[..]].into_iter()).count(), 0);
    }

    #[test]
    fn hosts_are_the_same_with_any_port_letters_and_dot() {
        let text = |line: &str| {
            let hosts: Vec<u8> = hosts([line.as_bytes()].into_iter()).collect();
            String::from_utf8(hosts).unwrap()
        };
        for line in [
            "a.com",
            "A.Com",
            "a.com:8080",
            "a.com:",
            "a.com.",
            "A.com.:80",
        ] {
            assert_eq!(text(line), "a.com,", "{line}");
        }
        assert_eq!(text("[::1]"), text("[::1]:80"));
        assert_eq!(text("a.com:80, B.com"), "a.com,b.com,");
        assert_ne!(text("a.com"), text("b.a.com"));
        assert_eq!(text(""), "");
    }
}
