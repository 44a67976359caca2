//! Which cookies browsers get, and what is read from those of a request.

use http::header::COOKIE;

use super::*;
use crate::filter::session_cookies;

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
            "s-login-3=x; Path=/callback; Max-Age=600; HttpOnly; SameSite=Lax; Secure",
        ),
        (
            SameSite::None,
            false,
            "s=1.x; Path=/app; Domain=example.com; HttpOnly; SameSite=None",
            "s-login-3=x; Path=/callback; Max-Age=600; HttpOnly; SameSite=None",
        ),
    ] {
        let oidc = oidc(same_site);
        let cookies = Cookies::new(&oidc, "s", is_secure);
        let set = cookies.set_session("x", &HeaderMap::new()).unwrap();
        assert_eq!(set, [session]);
        assert_eq!(cookies.set_login(3, "x").unwrap(), login);
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
                "__Host-s-browser-3=x; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure",
            ),
            (
                false,
                "s-browser-3=x; Path=/; Max-Age=600; HttpOnly; SameSite=Lax",
            ),
        ] {
            let cookies = Cookies::new(&oidc, "s", is_secure);
            assert_eq!(cookies.set_browser(3, "x").unwrap(), expected);
        }
    }
}

#[test]
fn browser_is_known_by_a_text_of_its_own_form() {
    let oidc = oidc(SameSite::Lax);
    let cookies = Cookies::new(&oidc, "s", true);
    let text = "Abcdefghijklmnopqrstuv-_";
    let other = format!("s-browser-3={text}; __Host-s-browser-3=short");
    assert_eq!(cookies.browser(&request(&other), 3), None);
    let own = format!("__Host-s-browser-3=short; __Host-s-browser-3={text}");
    let own = request(&own);
    assert_eq!(cookies.browser(&own, 3).as_deref(), Some(text));
    assert_eq!(cookies.browser(&own, 2), None);
}
