//! The cookies that a policy with `oidc` sets, as requests have them: their names, and the session that its parts make up. Must
//! not know what is in them.

use std::borrow::Cow;

use http::HeaderMap;

use super::credentials::remove_cookies;
use crate::ir::cookie;

/// Maximum number of cookies of a session, and of bytes of each: browsers keep 4096 with the name.
pub const PARTS: usize = 5;
/// See [`PARTS`].
pub const PART: usize = 3800;
/// Number of sign-ins that a browser may have begun. A further one takes the place of another.
pub const SLOTS: u8 = 8;

/// Returns the sealed session of a request; `None` if it has none, or not all parts of one. `name` is that of the policy.
pub fn session<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, [u8]>> {
    let first = cookie::values(headers, name).next()?;
    let (count, first) = split_count(first)?;
    let mut text = Cow::Borrowed(first);
    for index in 1..count {
        let part = cookie::values(headers, &part_name(name, index)).next()?;
        text.to_mut().extend_from_slice(part);
    }
    (text.len() <= PARTS * PART).then_some(text)
}

/// Removes all cookies of the policy with this name from a request. Fails if what remains is no header, which no request leads
/// to.
pub fn remove(headers: &mut HeaderMap, name: &str) -> Option<()> {
    let own = name.as_bytes();
    remove_cookies(headers, |name| {
        name.strip_prefix(own).is_some_and(|rest| match rest {
            b"" | b"-logout" => true,
            [b'-', index] => (b'1'..b'0' + PARTS as u8).contains(index),
            [b'-', b'l', b'o', b'g', b'i', b'n', b'-', slot] => (b'0'..b'0' + SLOTS).contains(slot),
            _ => false,
        })
    })
}

/// Returns the name of a part of a session.
pub fn part_name(name: &str, index: usize) -> String {
    match index {
        0 => name.to_owned(),
        _ => format!("{name}-{index}"),
    }
}

/// Returns the name of the cookie of a sign-in.
pub fn login_name(name: &str, slot: u8) -> String {
    format!("{name}-login-{slot}")
}

/// Returns the name of the cookie of a sign-out.
pub fn logout_name(name: &str) -> String {
    format!("{name}-logout")
}

/// Splits the number of parts from the first part.
fn split_count(first: &[u8]) -> Option<(usize, &[u8])> {
    let (digit, text) = first.split_first()?;
    let count = usize::from(digit.checked_sub(b'0')?);
    let text = text.strip_prefix(b".")?;
    (1..=PARTS).contains(&count).then_some((count, text))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::COOKIE;

    use super::*;

    fn request(cookies: &str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(cookies).unwrap())])
    }

    #[test]
    fn parts_that_are_missing_or_too_many_are_no_session() {
        for (sent, expected) in [
            ("s=1.a", Some("a")),
            ("s=1.a; s-1=b", Some("a")),
            ("s=2.a; s-1=b", Some("ab")),
            ("x=y; s-1=b; s=2.a", Some("ab")),
            ("s=2.a", None),
            ("s=0.a", None),
            ("s=6.a", None),
            ("s=a", None),
            ("s=1", None),
            ("s=", None),
            ("S=1.a", None),
            ("", None),
        ] {
            let headers = request(sent);
            let found = session(&headers, "s");
            let found = found.map(|it| String::from_utf8(it.into_owned()).unwrap());
            assert_eq!(found.as_deref(), expected, "{sent}");
        }
        let oversized = request(&format!("s=1.{}", "a".repeat(PARTS * PART + 1)));
        assert!(session(&oversized, "s").is_none());
    }

    #[test]
    fn backends_get_no_cookie_of_the_policy_and_all_others() {
        let mut headers = request(
            "a=b; s=1.a; s-1=b; s-4=c; s-5=d; s-login-0=e; s-login-7=f; s-login-8=g; s-logout=h; s-x=i; sx=j",
        );
        remove(&mut headers, "s").unwrap();
        assert_eq!(headers[COOKIE], "a=b; s-5=d; s-login-8=g; s-x=i; sx=j");
        // Headers without one stay as they are, and those with no other are left out.
        let mut headers = request("a=b;c=d ;e");
        headers.append(COOKIE, HeaderValue::from_static("s=1.a; s-1=b"));
        headers.append(COOKIE, HeaderValue::from_static("f=g;s=1.a;h=i"));
        for _ in 0..2 {
            remove(&mut headers, "s").unwrap();
            let left: Vec<_> = headers.get_all(COOKIE).iter().collect();
            assert_eq!(left, ["a=b;c=d ;e", "f=g; h=i"]);
        }
    }
}
