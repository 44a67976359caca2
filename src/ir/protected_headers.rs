//! Headers that only the proxy may say, or that it decides by, in every spelling: CGI and WSGI replace every `-` of a name by `_`
//! (RFC 3875, 4.1.18), and some servers every other symbol too, so that `X_User` is read as `X-User`. Must not know who says a
//! header, or why.

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Why a header is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// The proxy says by it who the client is: nothing that the client says by it decides.
    Identity,
    /// A backend may take the method from it, and the proxy decides by another one.
    Method,
    /// The proxy sets it: no other spelling of it is of the client.
    Set,
    /// The proxy removes it.
    Removed,
    /// The proxy reads credentials from it: a backend must not read others.
    Read,
    /// The proxy decides by its value: a backend must not read another one.
    Compared,
}

/// A list of protected headers, which is made with the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProtectedHeaders {
    headers: Box<[(HeaderName, Protection)]>,
    /// The lengths of their names, one bit for each. Excludes most names, since every header of a request is looked at.
    lengths: u64,
}

impl ProtectedHeaders {
    /// Returns a list; `None` without headers.
    pub fn new(headers: impl IntoIterator<Item = (HeaderName, Protection)>) -> Option<Self> {
        let mut headers: Vec<_> = headers.into_iter().collect();
        headers.sort_unstable_by(|(one, why), (other, because)| {
            (one.as_str(), why).cmp(&(other.as_str(), because))
        });
        headers.dedup();
        let lengths = headers.iter().map(|(name, _)| length_bit(name.as_str()));
        let lengths = lengths.fold(0, |lengths, bit| lengths | bit);
        (!headers.is_empty()).then(|| Self {
            headers: headers.into(),
            lengths,
        })
    }

    /// Returns a list of headers that are set; `None` without headers.
    pub fn set(names: impl IntoIterator<Item = HeaderName>) -> Option<Self> {
        let names = names.into_iter();
        Self::new(names.map(|name| (name, Protection::Set)))
    }

    /// Removes all other spellings from the head of a request, and the headers about identity. Others are removed or replaced by
    /// what sets them. Several lines whose value decides become one, since many servers read one of them alone. Those with
    /// credentials stay several, which are not valid.
    pub fn sanitize(&self, head: &mut HeaderMap) {
        remove(head, |name| self.is_forged(name));
        let is_credential = |name: &HeaderName| {
            let mut read = self.headers.iter();
            *name == AUTHORIZATION || read.any(|(own, why)| own == name && *why == Protection::Read)
        };
        for (name, protection) in &self.headers {
            if *protection == Protection::Compared && !is_credential(name) {
                join(head, name);
            }
        }
    }

    /// Removes the headers in every spelling from the trailers of a request, since servers merge these into the head.
    pub fn remove_all(&self, trailers: &mut HeaderMap) {
        remove(trailers, |name| self.spelled_like(name).next().is_some());
    }

    /// Reports whether a name is another spelling of a protected one, or about identity.
    fn is_forged(&self, name: &HeaderName) -> bool {
        let mut protected = self.spelled_like(name);
        protected.any(|(own, protection)| match protection {
            Protection::Identity | Protection::Method => true,
            Protection::Set => own != name,
            // To remove `X_User` is no reason to remove `X-User`.
            Protection::Removed => own != name && has_symbol(name.as_str()) && !self.is_read(name),
            Protection::Read | Protection::Compared => own != name && !self.is_read(name),
        })
    }

    fn is_read(&self, name: &HeaderName) -> bool {
        let mut same = self.spelled_like(name);
        same.any(|(own, protection)| {
            own == name && matches!(protection, Protection::Read | Protection::Compared)
        })
    }

    /// Returns the protected headers that a name may be taken for.
    fn spelled_like(&self, name: &HeaderName) -> impl Iterator<Item = &(HeaderName, Protection)> {
        let may_be_any = self.lengths & length_bit(name.as_str()) != 0;
        let headers = if may_be_any { &*self.headers } else { &[] };
        headers
            .iter()
            .filter(move |(own, _)| is_spelled_like(name.as_str(), own.as_str()))
    }
}

fn length_bit(name: &str) -> u64 {
    1 << name.len().min(63)
}

/// Removes the headers that fulfil a condition. Does not allocate if there are none.
pub fn remove(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let names = headers.keys().filter(|name| is_removed(name));
    let names: Vec<HeaderName> = names.cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Makes several lines of a header one, with the value that decisions see (RFC 9110, 5.3).
fn join(headers: &mut HeaderMap, name: &HeaderName) {
    let mut lines = headers.get_all(name).iter();
    if lines.nth(1).is_none() {
        return;
    }
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let lines: Vec<_> = lines.collect();
    let separator: &[u8] = if *name == COOKIE { b"; " } else { b"," };
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(separator)) {
        headers.insert(name, joined);
    }
}

/// Reports whether two names of headers, in lower case, are the same but for their symbols.
pub fn is_spelled_like(name: &str, other: &str) -> bool {
    name.len() == other.len() && name.bytes().map(folded).eq(other.bytes().map(folded))
}

/// Reports whether the name of a header has a symbol other than `-`.
pub fn has_symbol(name: &str) -> bool {
    name.bytes().any(is_symbol)
}

fn is_symbol(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && byte != b'-'
}

fn folded(byte: u8) -> u8 {
    if is_symbol(byte) { b'-' } else { byte }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(headers: &[(&'static str, Protection)]) -> ProtectedHeaders {
        let headers = headers.iter();
        let headers = headers.map(|(name, why)| (HeaderName::from_static(name), *why));
        ProtectedHeaders::new(headers).unwrap()
    }

    fn request(names: &[&'static str]) -> HeaderMap {
        let names = names.iter().map(|name| HeaderName::from_static(name));
        names
            .map(|name| (name, HeaderValue::from_static("1")))
            .collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn names_that_differ_in_symbols_are_spelled_alike() {
        for (one, other, expected) in [
            ("x_user", "x-user", true),
            ("x.user_id", "x-user-id", true),
            ("x-user", "x_user", true),
            ("x-user", "x-user", true),
            ("x_user", "x-user-id", false),
            ("xuser", "x-user", false),
            ("x_users", "x-group", false),
        ] {
            assert_eq!(is_spelled_like(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn no_other_spelling_of_a_header_that_is_set_stays() {
        let all = ["x-user", "x_user", "x.user", "x!user", "x_users", "xuser"];
        let mut headers = request(&all);
        list(&[("x-user", Protection::Set)]).sanitize(&mut headers);
        assert_eq!(names(&headers), ["x-user", "x_users", "xuser"]);
        // A configuration may set a name with an underscore, and both.
        let mut headers = request(&all);
        list(&[("x_user", Protection::Set)]).sanitize(&mut headers);
        assert_eq!(names(&headers), ["x_user", "x_users", "xuser"]);
        let mut headers = request(&all);
        list(&[("x_user", Protection::Set), ("x-user", Protection::Set)]).sanitize(&mut headers);
        assert_eq!(names(&headers), ["x_users", "xuser"]);
    }

    #[test]
    fn spellings_that_the_configuration_reads_stay_unless_it_sets_another() {
        let (both, read) = (["x-key", "x_key", "x.key"], Protection::Read);
        for (listed, expected) in [
            (&[("x-key", read)][..], &["x-key"][..]),
            (&[("x-key", read), ("x_key", read)], &["x-key", "x_key"]),
            (&[("x_key", read)], &["x_key"]),
            (&[("x-key", Protection::Set), ("x_key", read)], &[]),
            (
                &[("x-key", Protection::Removed), ("x_key", read)],
                &["x_key"],
            ),
            (&[("x-key", Protection::Removed)], &["x-key"]),
            (&[("x_key", Protection::Removed)], &["x-key", "x_key"]),
            (&[("x-key", Protection::Identity), ("x-key", read)], &[]),
        ] {
            let mut headers = request(&both);
            list(listed).sanitize(&mut headers);
            assert_eq!(names(&headers), expected, "{listed:?}");
        }
    }

    #[test]
    fn lines_that_decide_are_one() {
        let mut headers = request(&["x-debug", "x-key"]);
        for name in ["x-debug", "x-key", "cookie", "cookie"] {
            headers.append(name, HeaderValue::from_static("2"));
        }
        let compared = ["x-debug", "x-key", "cookie"].map(|name| (name, Protection::Compared));
        list(&[&compared[..], &[("x-key", Protection::Read)]].concat()).sanitize(&mut headers);
        assert_eq!(headers["x-debug"], "1,2");
        assert_eq!(headers["cookie"], "2; 2");
        assert_eq!(headers.get_all("x-key").iter().count(), 2);
    }

    #[test]
    fn trailers_lose_every_spelling() {
        let mut trailers = request(&["x-user", "x_user", "x-role", "x.role", "x-ok"]);
        let listed = [("x-user", Protection::Set), ("x-role", Protection::Removed)];
        list(&listed).remove_all(&mut trailers);
        assert_eq!(names(&trailers), ["x-ok"]);
    }

    #[test]
    fn names_of_any_length_are_found() {
        let long: &'static str =
            "x-a-name-that-is-longer-than-the-number-of-bits-of-the-list-of-lengths";
        let mut trailers = request(&[long, "x-ok"]);
        list(&[(long, Protection::Set)]).remove_all(&mut trailers);
        assert_eq!(names(&trailers), ["x-ok"]);
        assert!(ProtectedHeaders::new([]).is_none());
    }
}
