//! Feeds Cookie headers to what finds the token of a session there, and what it finds to the key of the sessions. Checks
//! that nothing panics, that only the token that the key made opens a session, and that cookies are the same in one header
//! as in several.

use std::sync::LazyLock;
use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use portcullis::ir::cookie;
use portcullis::settings::session_key::{MIN_SECRET, Session, SessionKey};

const NAME: &str = "session";
const SCOPE: &str = "default/shop";

static KEY: LazyLock<SessionKey> =
    LazyLock::new(|| SessionKey::from_secret(&[7; MIN_SECRET]).expect("it is long enough"));

static SESSION: LazyLock<Session> = LazyLock::new(|| Session {
    endpoint: ([10, 0, 0, 1], 8080).into(),
    began: Duration::from_secs(1_800_000_000),
});

/// What a byte 255 stands for.
static TOKEN: LazyLock<String> = LazyLock::new(|| KEY.seal(*SESSION, SCOPE));

/// Checks one input.
pub fn check(data: &[u8]) {
    let text = data
        .split(|byte| *byte == 255)
        .collect::<Vec<_>>()
        .join(TOKEN.as_bytes());
    check_token(&text);
    let lines = text.split(|byte| *byte == b'\n');
    let headers: Vec<_> = lines
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    let found = values(&headers);
    for value in &found {
        assert!(!value.contains(&b';'), "{headers:?}");
        check_token(value);
    }
    // HTTP/2 splits the header where HTTP/1 has "; " (RFC 9113, 8.2.3).
    let joined: Vec<_> = headers.iter().map(HeaderValue::as_bytes).collect();
    let joined = HeaderValue::from_bytes(&joined.join(&b"; "[..])).expect("all are values");
    assert_eq!(values(&[joined]), found);
}

fn values(headers: &[HeaderValue]) -> Vec<Vec<u8>> {
    let headers = headers.iter().map(|value| (COOKIE, value.clone()));
    let headers = HeaderMap::from_iter(headers);
    cookie::values(&headers, NAME).map(<[u8]>::to_vec).collect()
}

fn check_token(token: &[u8]) {
    let expected = (token == TOKEN.as_bytes()).then_some(*SESSION);
    assert_eq!(KEY.open(token, SCOPE), expected);
    assert_eq!(KEY.open(token, NAME), None);
}
