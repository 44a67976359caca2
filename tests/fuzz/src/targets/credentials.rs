//! Feeds requests to what reads user names, passwords, API keys and tokens. Checks that nothing panics, that what is read keeps its
//! limits, and that a request from which keys are removed has none of them, and is otherwise the same.

use http::header::AUTHORIZATION;
use http::{HeaderName, Uri};
use portcullis::filter::credentials::{BasicCredentials, api_key, remove_api_keys, token};
use portcullis::ir::authentication::KeyPlace;

use crate::request;

/// Maximum length of a key, and of a user name and a password.
const MAX_KEY: usize = 1024;
const MAX_BASIC: usize = 511;
const MAX_TOKEN: usize = 8 * 1024;

/// Checks one input. False for what is no request.
pub fn check(data: &[u8]) -> bool {
    let Some(mut parts) = request::read(data) else {
        return false;
    };
    if let Some(credentials) = BasicCredentials::of(&parts.headers) {
        let (name, password) = (credentials.name(), credentials.password());
        assert!(!name.contains(&b':'));
        assert!(name.len() + 1 + password.len() <= MAX_BASIC);
    }
    let places = [
        KeyPlace::Header(HeaderName::from_static("x-api-key")),
        KeyPlace::Query("key".into()),
        KeyPlace::Cookie("key".into()),
    ];
    for place in &places {
        let key = api_key(
            (&parts.headers, parts.uri.query()),
            std::slice::from_ref(place),
        );
        assert!(key.is_none_or(|key| !key.is_empty() && key.len() <= MAX_KEY));
    }
    for place in places.iter().chain([&KeyPlace::Header(AUTHORIZATION)]) {
        let token = token(
            (&parts.headers, parts.uri.query()),
            std::slice::from_ref(place),
        );
        assert!(token.is_none_or(|it| !it.is_empty() && it.len() <= MAX_TOKEN));
    }
    let before = parts.clone();
    if remove_api_keys(&mut parts, &places).is_some() {
        let key = api_key((&parts.headers, parts.uri.query()), &places);
        assert!(key.is_none(), "{parts:?}");
        assert_eq!(parts.uri.path(), before.uri.path());
        assert!(parts.uri.to_string().parse::<Uri>().is_ok(), "{parts:?}");
        assert!(parts.headers.len() <= before.headers.len());
        let again = parts.clone();
        remove_api_keys(&mut parts, &places).expect("a request");
        assert_eq!((&parts.uri, &parts.headers), (&again.uri, &again.headers));
    }
    true
}
