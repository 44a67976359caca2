//! The cookies that a policy with `oidc` sets, as requests have them: their names, and the session that its parts make up. Must
//! not know what is in them.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::COOKIE;

use super::credentials::remove_cookies;
use crate::ir::cookie;
use crate::ir::oidc::HOST_PREFIX;

/// Maximum number of cookies of a session, and of bytes of each: browsers keep 4096 with the name.
pub const PARTS: usize = 5;
/// See [`PARTS`].
pub const PART: usize = 3800;
/// Maximum number of sessions that a request has: other hosts of a domain, and other paths, have cookies with the same names.
const SESSIONS: usize = 4;
/// Number of sign-ins that a browser may have begun. A further one takes the place of the oldest one that its request shows.
///
/// Each sign-in has cookies with an identifier of its own in their names. Tabs that a browser opens at one moment send requests
/// without the cookies of each other, so that nothing in these tells which names are free: of a few names that are chosen at
/// random, even 64, eight such tabs would choose one twice in a third of all cases. So the bound does not hold for requests in
/// flight: a browser has at most these beyond it, until it begins further sign-ins or the cookies end.
pub const SIGN_INS: usize = 8;
/// Length of the identifier of a sign-in: the second in which it began, since 1970, as hexadecimal digits, and random characters.
pub const SIGN_IN_ID: usize = SIGN_IN_TIME + 8;
const SIGN_IN_TIME: usize = 8;

/// Returns the sealed session of a request; `None` if it has none or several, or not all parts of one. `name` is that of the
/// cookies.
pub fn session<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, [u8]>> {
    let mut values = cookie::values(headers, name);
    let first = values.next()?;
    match values.next() {
        None => joined((headers, name), 0, first),
        Some(_) => None,
    }
}

/// Returns the sealed sessions of a request: several if cookies with one name differ in domain or path, and none if these are too
/// many.
pub fn sessions<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let are_few = cookie::values(headers, name).nth(SESSIONS).is_none();
    let firsts = cookie::values(headers, name).filter(move |_| are_few);
    let firsts = firsts.enumerate();
    firsts.filter_map(move |(at, first)| joined((headers, name), at, first))
}

/// Returns a sealed session, whose parts are at one place among the cookies with their names.
fn joined<'a>(
    (headers, name): (&'a HeaderMap, &str),
    at: usize,
    first: &'a [u8],
) -> Option<Cow<'a, [u8]>> {
    let (count, first) = split_count(first)?;
    let mut text = Cow::Borrowed(first);
    for index in 1..count {
        let name = part_name(name, index);
        let part = cookie::values(headers, &name).take(at + 1).last()?;
        text.to_mut().extend_from_slice(part);
    }
    (text.len() <= PARTS * PART).then_some(text)
}

/// Removes all cookies of the policy with this name, with and without the prefix of hosts, from a request. Fails if what remains
/// is no header, which no request leads to.
pub fn remove(headers: &mut HeaderMap, name: &str) -> Option<()> {
    let own = name.as_bytes();
    remove_cookies(headers, |name| {
        let name = name.strip_prefix(HOST_PREFIX.as_bytes()).unwrap_or(name);
        name.strip_prefix(own).is_some_and(|rest| match rest {
            b"" | b"-logout" => true,
            [b'-', index] => (b'1'..b'0' + PARTS as u8).contains(index),
            _ => {
                let of_browser = || rest.strip_prefix(b"-browser-");
                let id = rest.strip_prefix(b"-login-").or_else(of_browser);
                id.is_some_and(is_sign_in_id)
            }
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
pub fn login_name(name: &str, id: &str) -> String {
    format!("{name}-login-{id}")
}

/// Returns the name of the cookie of a sign-out.
pub fn logout_name(name: &str) -> String {
    format!("{name}-logout")
}

/// Returns the name of the cookie that tells the browser of a sign-in from others. Over HTTPS, no other host can set it.
pub fn browser_name(name: &str, id: &str, is_secure: bool) -> String {
    let prefix = if is_secure { HOST_PREFIX } else { "" };
    format!("{prefix}{name}-browser-{id}")
}

/// Returns the identifier of a sign-in that begins at a time, in seconds since 1970, with random characters.
pub fn sign_in_id(began: u64, random: &str) -> String {
    let second = began & u64::from(u32::MAX);
    format!("{second:08x}{random}")
}

/// Reports whether a text has the form of the identifier of a sign-in.
pub fn is_sign_in_id(text: &[u8]) -> bool {
    let Some((time, random)) = text.split_at_checked(SIGN_IN_TIME) else {
        return false;
    };
    let is_random = |it: &u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_');
    let is_time = |it: &u8| matches!(it, b'0'..=b'9' | b'a'..=b'f');
    text.len() == SIGN_IN_ID && time.iter().all(is_time) && random.iter().all(is_random)
}

/// Returns the identifiers of the sign-ins whose cookies tell the browser of a request from others, the oldest first. Browsers
/// send cookies of one path in the order in which they have got them (RFC 6265, 5.4), which counts within a second.
pub fn sign_ins<'a>(headers: &'a HeaderMap, name: &str, is_secure: bool) -> Vec<&'a str> {
    let prefix = browser_name(name, "", is_secure);
    let headers = headers.get_all(COOKIE).iter();
    let parts = headers.flat_map(|header| cookie::parts(header.as_bytes()));
    let names = parts.filter_map(cookie::name);
    let ids = names.filter_map(|it| it.strip_prefix(prefix.as_bytes()));
    let ids = ids.filter(|it| is_sign_in_id(it));
    let ids = ids.filter_map(|it| std::str::from_utf8(it).ok());
    let mut ids: Vec<_> = ids.collect();
    ids.sort_by_key(|it| &it[..SIGN_IN_TIME]);
    ids
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
            ("s=1.a; s=1.b", None),
            ("s=1.a; s=1.a", None),
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
    fn parts_of_several_sessions_are_at_one_place() {
        for (sent, expected) in [
            ("s=1.a", vec!["a"]),
            ("s=1.a; s=1.b", vec!["a", "b"]),
            ("s=2.a; s-1=b; s=2.c; s-1=d", vec!["ab", "cd"]),
            ("s=1.a; s=2.c; s-1=d", vec!["a", "cd"]),
            ("s=x; s=1.a; s=1.b; s=1.c", vec!["a", "b", "c"]),
            ("s=1.a; s=1.b; s=1.c; s=1.d; s=1.e", vec![]),
        ] {
            let headers = request(sent);
            let found = sessions(&headers, "s");
            let found = found.map(|it| String::from_utf8(it.into_owned()).unwrap());
            assert_eq!(found.collect::<Vec<_>>(), expected, "{sent}");
        }
    }

    #[test]
    fn identifier_of_a_sign_in_begins_with_its_time() {
        let id = sign_in_id(0x65f0_a1b2, "abcd-_YZ");
        assert_eq!((&*id, id.len()), ("65f0a1b2abcd-_YZ", SIGN_IN_ID));
        assert_eq!(sign_in_id(1, "abcdefgh"), "00000001abcdefgh");
        assert_eq!(sign_in_id(u64::MAX, "abcdefgh"), "ffffffffabcdefgh");
        for (text, expected) in [
            ("65f0a1b2abcd-_YZ", true),
            ("65F0a1b2abcd-_YZ", false),
            ("-5f0a1b2abcd-_YZ", false),
            ("65f0a1b2abcd-_Y", false),
            ("65f0a1b2abcd-_YZ0", false),
            ("65f0a1b2abcd.efg", false),
            ("65f0a1b", false),
            ("", false),
        ] {
            assert_eq!(is_sign_in_id(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn sign_ins_of_a_browser_are_in_the_order_of_their_beginning() {
        let headers = request(
            "s-browser-00000003aaaaaaaa=x; a=b; s-browser-00000002zzzzzzzz=x; s-browser-00000002bbbbbbbb=x; \
             s-login-00000001aaaaaaaa=x; s-browser-7=x; __Host-s-browser-00000001cccccccc=x; t-browser-00000001aaaaaaaa=x",
        );
        let found = sign_ins(&headers, "s", false);
        assert_eq!(
            found,
            ["00000002zzzzzzzz", "00000002bbbbbbbb", "00000003aaaaaaaa"]
        );
        assert_eq!(sign_ins(&headers, "s", true), ["00000001cccccccc"]);
    }

    #[test]
    fn backends_get_no_cookie_of_the_policy_and_all_others() {
        let mut headers = request(
            "a=b; s=1.a; s-1=b; s-4=c; s-5=d; s-login-65f0a1b2abcd-_YZ=e; s-login-8=f; s-logout=g; s-x=h; sx=i; \
             s-browser-65f0a1b2abcd-_YZ=j; __Host-s=1.k; __Host-s-1=l; __Host-s-browser-65f0a1b2abcdefgh=m; \
             __Host-a=n; s-browser-x=o; s-browser=p; s-other-65f0a1b2abcdefgh=q",
        );
        remove(&mut headers, "s").unwrap();
        let others = "a=b; s-5=d; s-login-8=f; s-x=h; sx=i; __Host-a=n; s-browser-x=o; s-browser=p; \
                      s-other-65f0a1b2abcdefgh=q";
        assert_eq!(headers[COOKIE], others);
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
