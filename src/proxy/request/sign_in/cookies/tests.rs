//! Which cookies browsers get, and what is read from those of a request.

use http::header::COOKIE;

use super::*;
use crate::filter::session_cookies;

/// The identifier of a sign-in.
const ID: &str = "65f0a1b2abcd-_YZ";

fn oidc(same_site: SameSite) -> Oidc {
    Oidc {
        cookie: CookieSettings {
            name: "s".into(),
            domain: Some("example.com".into()),
            same_site,
            path: "/app".into(),
        },
        ..Oidc::sample()
    }
}

fn request(cookies: &str) -> HeaderMap {
    HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(cookies).unwrap())])
}

/// Returns names and values of cookies, without attributes.
fn pairs(cookies: &[HeaderValue]) -> Vec<&str> {
    let texts = cookies.iter().map(|it| it.to_str().unwrap());
    texts.map(|it| it.split(';').next().unwrap()).collect()
}

#[test]
fn session_is_split_and_joined() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", true);
    for length in [1, PART, PART + 1, PARTS * PART] {
        let text = "ab".repeat(length)[..length].to_owned();
        let set = cookies.set_session(&text, &HeaderMap::new()).unwrap();
        assert_eq!(set.len(), length.div_ceil(PART));
        assert!(pairs(&set).iter().all(|it| it.len() < 4096));
        let mut sent = pairs(&set);
        sent.reverse();
        let sent = request(&sent.join("; "));
        let found = session_cookies::session(&sent, "s");
        assert_eq!(found.as_deref(), Some(text.as_bytes()));
    }
    let text = "a".repeat(PARTS * PART + 1);
    assert!(cookies.set_session(&text, &HeaderMap::new()).is_none());
    assert!(cookies.set_session("", &HeaderMap::new()).is_none());
}

#[test]
fn parts_of_a_larger_session_expire() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", true);
    let sent = request("s=3.a; s-1=b; s-2=c; s-other=d");
    let set = cookies.set_session("x", &sent).unwrap();
    assert_eq!(pairs(&set), ["s=1.x", "s-1=", "s-2="]);
    assert!(set[1].to_str().unwrap().contains("; Max-Age=0"));
    assert_eq!(pairs(&cookies.end_session(&sent)), ["s=", "s-1=", "s-2="]);
}

#[test]
fn attributes_are_those_of_the_policy() {
    for (same_site, is_secure, session, login) in [
        (
            SameSite::Strict,
            true,
            "s=1.x; Path=/app; Domain=example.com; HttpOnly; SameSite=Strict; Secure",
            "s-login-65f0a1b2abcd-_YZ=x; Path=/callback; Max-Age=600; HttpOnly; SameSite=Lax; Secure",
        ),
        (
            SameSite::None,
            false,
            "s=1.x; Path=/app; Domain=example.com; HttpOnly; SameSite=None",
            "s-login-65f0a1b2abcd-_YZ=x; Path=/callback; Max-Age=600; HttpOnly; SameSite=None",
        ),
    ] {
        let oidc = oidc(same_site);
        let cookies = Cookies::new(&oidc, "s", is_secure);
        let set = cookies.set_session("x", &HeaderMap::new()).unwrap();
        assert_eq!(set, [session]);
        assert_eq!(cookies.set_login(ID, "x").unwrap(), login);
    }
}

#[test]
fn cookies_are_of_the_host_alone_over_https() {
    for (domain, path, expected) in [
        (None, "/", "__Host-s"),
        (Some("example.com"), "/", "s"),
        (None, "/app", "s"),
    ] {
        let mut oidc = oidc(SameSite::Lax);
        oidc.cookie.domain = domain.map(Into::into);
        oidc.cookie.path = path.into();
        assert_eq!(&*oidc.cookie.secure_name(), expected);
        for (is_secure, expected) in [
            (
                true,
                "__Host-s-browser-65f0a1b2abcd-_YZ=x; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure",
            ),
            (
                false,
                "s-browser-65f0a1b2abcd-_YZ=x; Path=/; Max-Age=600; HttpOnly; SameSite=Lax",
            ),
        ] {
            let cookies = Cookies::new(&oidc, "s", is_secure);
            assert_eq!(cookies.set_browser(ID, "x").unwrap(), expected);
        }
    }
}

#[test]
fn browser_is_known_by_a_text_of_its_own_form() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", true);
    let text = "Abcdefghijklmnopqrstuv-_";
    let other = format!("s-browser-{ID}={text}; __Host-s-browser-{ID}=short");
    assert_eq!(cookies.browser(&request(&other), ID), None);
    let own = format!("__Host-s-browser-{ID}=short; __Host-s-browser-{ID}={text}");
    let own = request(&own);
    assert_eq!(cookies.browser(&own, ID).as_deref(), Some(text));
    assert_eq!(cookies.browser(&own, "65f0a1b2other-_Y"), None);
}

/// Returns a request whose browser has begun sign-ins at these times, in this order.
fn begun(times: impl IntoIterator<Item = usize>) -> HeaderMap {
    let cookies = times.into_iter().enumerate();
    let cookies = cookies.map(|(at, time)| format!("s-browser-{time:08x}{at:08}=x"));
    request(&cookies.collect::<Vec<_>>().join("; "))
}

#[test]
fn sign_ins_within_the_bound_stay() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", false);
    assert!(cookies.end_oldest_logins(&HeaderMap::new()).is_empty());
    for count in 1..SIGN_INS {
        let ended = cookies.end_oldest_logins(&begun(0..count));
        assert!(ended.is_empty(), "{count}");
    }
    // Those of HTTPS are others, and what is no sign-in does not count.
    let secure = Cookies::new(&oidc, "s", true);
    assert!(secure.end_oldest_logins(&begun(0..20)).is_empty());
    let strange = (0..20).map(|it| format!("s-browser-{it}=x"));
    let strange = request(&strange.collect::<Vec<_>>().join("; "));
    assert!(cookies.end_oldest_logins(&strange).is_empty());
}

#[test]
fn oldest_sign_ins_leave_for_another_one() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", false);
    let ended = cookies.end_oldest_logins(&begun([7, 6, 1, 4, 3, 2, 5, 8]));
    assert_eq!(
        ended,
        [
            "s-login-0000000100000002=; Path=/callback; Max-Age=0; HttpOnly; SameSite=Lax",
            "s-browser-0000000100000002=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax",
        ]
    );
    // Within a second, the first one of the request is the oldest.
    let ended = cookies.end_oldest_logins(&begun([2; SIGN_INS + 1]));
    assert_eq!(
        pairs(&ended),
        [
            "s-login-0000000200000000=",
            "s-browser-0000000200000000=",
            "s-login-0000000200000001=",
            "s-browser-0000000200000001=",
        ]
    );
    // A response removes so many, and the next ones do the rest.
    let ended = cookies.end_oldest_logins(&begun(0..100));
    assert_eq!(ended.len(), 2 * REMOVED);
    assert!(ended[0].to_str().unwrap().starts_with("s-login-00000000"));
}

#[test]
fn sign_in_that_has_ended_leaves_no_cookie() {
    let oidc = oidc(SameSite::Strict);
    let cookies = Cookies::new(&oidc, "s", true);
    assert_eq!(
        cookies.end_login(ID),
        [
            "s-login-65f0a1b2abcd-_YZ=; Path=/callback; Max-Age=0; HttpOnly; SameSite=Lax; Secure",
            "__Host-s-browser-65f0a1b2abcd-_YZ=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure",
        ]
    );
}
