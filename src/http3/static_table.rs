//! The static table of QPACK (RFC 9204, A).

use std::cmp::Ordering;

/// Number of entries.
const LENGTH: usize = 99;

/// Names and values.
const ENTRIES: [(&str, &str); LENGTH] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains",
    ),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains; preload",
    ),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    (
        "content-security-policy",
        "script-src 'none'; object-src 'none'; base-uri 'none'",
    ),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

/// The indices of all entries, in the order of their names and, for equal names, of the indices.
const SORTED: [u8; LENGTH] = {
    let mut sorted = [0; LENGTH];
    let mut end = 0;
    while end < LENGTH {
        let mut place = end;
        while place > 0 && is_before(ENTRIES[end].0, ENTRIES[sorted[place - 1] as usize].0) {
            sorted[place] = sorted[place - 1];
            place -= 1;
        }
        sorted[place] = end as u8;
        end += 1;
    }
    sorted
};

/// The order of names: by length, and then by their bytes. That of [`order`], for constants.
const fn is_before(name: &str, other: &str) -> bool {
    let (name, other) = (name.as_bytes(), other.as_bytes());
    if name.len() != other.len() {
        return name.len() < other.len();
    }
    let mut index = 0;
    while index < name.len() && name[index] == other[index] {
        index += 1;
    }
    index < name.len() && name[index] < other[index]
}

fn order(name: &str, other: &str) -> Ordering {
    let lengths = name.len().cmp(&other.len());
    lengths.then_with(|| name.cmp(other))
}

/// An entry that fits a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its name and value.
    Field(u64),
    /// Only its name.
    Name(u64),
}

/// Returns the name and the value of an entry.
pub(super) fn get(index: u64) -> Option<(&'static str, &'static str)> {
    let index = usize::try_from(index).ok()?;
    ENTRIES.get(index).copied()
}

/// Returns the index of the entry that fits a field best.
pub(super) fn find(name: &str, value: &[u8]) -> Option<Found> {
    let entry = |index: u8| ENTRIES[usize::from(index)];
    let begin = SORTED.partition_point(|index| order(entry(*index).0, name).is_lt());
    let same = SORTED[begin..].iter().copied();
    let mut same = same.take_while(|index| entry(*index).0 == name).peekable();
    let first = *same.peek()?;
    let whole = same.find(|index| entry(*index).1.as_bytes() == value);
    Some(match whole {
        Some(index) => Found::Field(index.into()),
        None => Found::Name(first.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found() {
        for (index, (name, value)) in ENTRIES.iter().enumerate() {
            let index = index as u64;
            assert_eq!(get(index), Some((*name, *value)));
            assert_eq!(find(name, value.as_bytes()), Some(Found::Field(index)));
            let first = ENTRIES.iter().position(|(other, _)| other == name).unwrap();
            let found = Some(Found::Name(first as u64));
            assert_eq!(find(name, b"no value of the table"), found, "{name}");
        }
        assert_eq!(get(99), None);
        assert_eq!(get(u64::MAX), None);
        for name in ["", "x", "zzzz", "content-typf", &"x".repeat(100)] {
            assert_eq!(find(name, b""), None, "{name}");
        }
    }

    #[test]
    fn entries_have_the_indices_of_the_rfc() {
        for (index, name, value) in [
            (0, ":authority", ""),
            (17, ":method", "GET"),
            (25, ":status", "200"),
            (46, "content-type", "application/json"),
            (71, ":status", "500"),
            (74, "access-control-allow-credentials", "TRUE"),
            (98, "x-frame-options", "sameorigin"),
        ] {
            assert_eq!(get(index), Some((name, value)));
        }
    }
}
