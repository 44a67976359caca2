//! Values that mean the same to a server count together, however a client writes them.

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

use super::*;

/// Reports whether a limit of one request for each value of a key admits requests with these values of a header, one after the other.
fn admitted(part: KeyPart, name: &HeaderName, values: &[&'static str]) -> Vec<bool> {
    let policies = policies(&[Limit {
        key: vec![part],
        ..limit(1, 1)
    }]);
    let admits = |value: &&'static str| {
        let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(value))]);
        let request = LimitedRequest {
            client: from([127, 0, 0, 1]),
            view: view(&headers),
        };
        admit(&policies, &request, NOW).is_ok()
    };
    values.iter().map(admits).collect()
}

#[test]
fn escapes_and_quotes_make_no_other_cookie() {
    let values = [
        "user=a%2fb c",
        "user=a%2Fb c",
        "user=%61/b%20c",
        "user=\"a/b+c\"",
        "user=a/b c; user=%61/b c",
        // No cookie.
        "user=\"\\141\"",
        "user=\"\\142\"",
        "users=a",
        "user=A/b c",
    ];
    let expected = [true, false, false, false, false, true, false, false, true];
    let part = KeyPart::Cookie("user".into());
    assert_eq!(admitted(part, &COOKIE, &values), expected);
}

#[test]
fn case_of_the_scheme_and_spaces_make_no_other_credentials() {
    let values = ["Bearer aB", "bearer  aB", "BEARER aB", "Bearer ab", "aB"];
    let expected = [true, false, false, true, true];
    let part = KeyPart::Header(AUTHORIZATION);
    assert_eq!(admitted(part, &AUTHORIZATION, &values), expected);
}

#[test]
fn long_cookies_differ_in_each_byte() {
    let long = "user=0123456789012345678901234567890123456789012345678901234567890123a";
    let other = "user=0123456789012345678901234567890123456789012345678901234567890123b";
    let values = [long, other, long];
    let part = KeyPart::Cookie("user".into());
    assert_eq!(admitted(part, &COOKIE, &values), [true, true, false]);
}
