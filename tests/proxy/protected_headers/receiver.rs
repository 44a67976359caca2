//! Backends that tell which headers and trailers they get, and what must not be among them.

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::spellings;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty};

pub(super) type Line = (String, String);
pub(super) type Lines = Vec<Line>;

/// What clients do not say at all.
pub(super) const NOT_OF_CLIENTS: [&str; 8] = [
    "X-Login",
    "X-User",
    "X-Groups",
    "X-Roles",
    "X-Client",
    "X-Policy",
    "X-Removed",
    "X-Filter",
];
/// What clients say in one spelling, in the head.
pub(super) const OF_ONE_SPELLING: [&str; 7] = [
    "CF-Connecting-IP",
    "X-Tenant",
    "X-API-Key",
    "X-Token",
    "X-Forwarded-Prefix",
    "X-Real-IP",
    "X-Request-Id",
];

/// A backend that tells which headers and trailers it gets.
pub(super) struct Backend {
    pub(super) origin: Origin,
    received: mpsc::UnboundedReceiver<(Lines, Lines)>,
}

impl Backend {
    pub(super) async fn new() -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("whole");
                let trailers = body.trailers().map(lines).unwrap_or_default();
                let _ = sender.send((lines(&head.headers), trailers));
                let response = Response::builder().header("x-level", "7");
                response.body(empty()).expect("a response")
            }
        })
        .await;
        Self { origin, received }
    }

    pub(super) async fn next(&mut self) -> (Lines, Lines) {
        let next = timeout(TEST_TIMEOUT, self.received.recv()).await;
        next.expect("a request in time").expect("a request")
    }

    /// Asserts that the next request has the headers that the proxy says, and no others. Returns whether it has the trailers of
    /// the application.
    pub(super) async fn checks(&mut self, case: &str) -> bool {
        let (head, trailers) = self.next().await;
        check(case, &head);
        let of_application = ("x.other".to_owned(), "other".to_owned());
        let is_of_application = |line: &Line| *line == of_application;
        assert!(
            trailers.iter().all(is_of_application),
            "{case}: {trailers:?}"
        );
        !trailers.is_empty()
    }
}

fn lines(headers: &HeaderMap) -> Lines {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = headers.iter();
    headers
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

/// Asserts that a head has what the proxy says, and nothing else but what an application has.
pub(super) fn check(case: &str, head: &[Line]) {
    let forged: Vec<_> = head
        .iter()
        .filter(|(_, value)| value.contains("forged"))
        .collect();
    assert!(forged.is_empty(), "{case}: {forged:?}");
    for (name, expected) in [
        ("x-login", "alice"),
        ("x-user", "alice"),
        ("x-client", "shop"),
        ("x-policy", "by-policy"),
        ("x-filter", "by-filter"),
        ("x-tenant", "one"),
        ("x_other", "other"),
    ] {
        let values = head
            .iter()
            .filter(|(own, _)| own.eq_ignore_ascii_case(name));
        let values: Vec<_> = values.map(|(_, value)| &**value).collect();
        assert_eq!(values, [expected], "{case}: {name}");
    }
}

/// A line for each spelling of these headers.
pub(super) fn forged<'a>(names: impl IntoIterator<Item = &'a str>, with_own: bool) -> Lines {
    let spelled = names.into_iter().flat_map(|name| {
        let own = name.to_lowercase();
        let mut spelled: Vec<_> = spellings(name)
            .iter()
            .map(|line| line.to_lowercase())
            .collect();
        spelled.sort_unstable();
        spelled.dedup();
        spelled.retain(|line| with_own || !line.starts_with(&format!("{own}:")));
        spelled
    });
    let parted = spelled.map(|line| {
        let (name, value) = line.split_once(": ").expect("a line");
        (name.to_owned(), value.to_owned())
    });
    parted.collect()
}

/// Trailers with these names, and those of all requests, in every spelling.
pub(super) fn trailers(names: &[&'static str]) -> Lines {
    let all = NOT_OF_CLIENTS.into_iter().chain(OF_ONE_SPELLING);
    let mut trailers = forged(all.chain(names.iter().copied()), true);
    trailers.push(("x.other".to_owned(), "other".to_owned()));
    trailers
}
