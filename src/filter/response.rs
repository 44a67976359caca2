//! What the filters of a request do to its response. The request has been sent by then, so a step keeps the parts of it
//! that it needs.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderMap, HeaderValue};

use super::cors::{self, Sharing};
use super::facts::Level;
use super::header;
use crate::ir::Filter;
use crate::ir::filter::HeaderChanges;

/// Headers that caches in front obey in place of `Cache-Control` (RFC 9213; Edge Architecture Specification).
const CACHE_CONTROLS_OF_CDNS: [&str; 2] = ["cdn-cache-control", "surrogate-control"];

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The steps for a response: those of the backendRef that served the request, then those of the rule, each in the
/// order of its list. Without steps it allocates nothing.
#[derive(Debug, Default)]
pub struct ResponsePhase {
    rule: Vec<Step>,
    backend: Vec<Step>,
    /// Cookies of a session or a sign-in, which are added behind all steps to a response that must not be stored.
    private: Option<Vec<HeaderValue>>,
}

/// What one filter does to a response.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// ResponseHeaderModifier.
    Headers(Arc<HeaderChanges>),
    /// CORS.
    Cors(Sharing),
}

impl ResponsePhase {
    pub(super) fn push(&mut self, level: Level, step: Step) {
        match level {
            Level::Rule => self.rule.push(step),
            Level::Backend => self.backend.push(step),
        }
    }

    /// Adds header changes that an authorization server requests.
    pub fn change_headers(&mut self, level: Level, changes: HeaderChanges) {
        self.push(level, Step::Headers(Arc::new(changes)));
    }

    /// Adds cookies of a session, which no policy and no filter changes.
    pub fn set_cookies(&mut self, cookies: Vec<HeaderValue>) {
        self.private.get_or_insert_default().extend(cookies);
    }

    /// Takes the cookies of a response that forbids to store it, as those of sign-ins do: no policy and no filter changes these.
    pub fn take_cookies(&mut self, headers: &mut HeaderMap) {
        if headers.get(CACHE_CONTROL).is_none_or(|it| *it != NO_STORE) {
            return;
        }
        let cookies: Vec<_> = headers.get_all(SET_COOKIE).iter().cloned().collect();
        headers.remove(SET_COOKIE);
        self.set_cookies(cookies);
    }

    /// Removes the steps of the backendRef. The next attempt chooses a backendRef again.
    pub fn reset_backend(&mut self) {
        self.backend.clear();
    }

    /// Applies all steps to the head of a response.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for step in self.backend.iter().chain(&self.rule) {
            match step {
                // `http::HeaderMap` refuses more than 24,576 names, and no parser of ours lets so many through. The
                // response then keeps the changes before that.
                Step::Headers(changes) => drop(header::apply(changes, headers)),
                Step::Cors(sharing) => sharing.apply(headers),
            }
        }
        self.add_private(headers);
    }

    /// Adds the CORS filters of a rule if none has run: without them a page cannot read even the status of a refusal.
    pub fn share(&mut self, filters: &[Filter], request: &HeaderMap) {
        if self.rule.iter().any(|step| matches!(step, Step::Cors(_))) {
            return;
        }
        for filter in filters {
            if let Filter::Cors(cors) = filter {
                self.push(Level::Rule, Step::Cors(cors::sharing(cors, request)));
            }
        }
    }

    /// Applies what error responses need, too: without the CORS steps a page cannot read even the status, and cookies are
    /// those of a session that may have no other ones any more.
    pub fn apply_to_error(&self, headers: &mut HeaderMap) {
        for step in self.backend.iter().chain(&self.rule) {
            match step {
                Step::Headers(_) => {}
                Step::Cors(sharing) => sharing.apply(headers),
            }
        }
        self.add_private(headers);
    }

    /// Adds cookies of a session, and forbids to store the response, whatever backends, policies and filters say: a shared cache
    /// would give these to other clients, since `Set-Cookie` does not prevent that (RFC 9111, 7.3).
    fn add_private(&self, headers: &mut HeaderMap) {
        let Some(cookies) = &self.private else {
            return;
        };
        for cookie in cookies {
            // As for other headers: no response comes close to the limit.
            let _ = headers.try_append(SET_COOKIE, cookie.clone());
        }
        for name in CACHE_CONTROLS_OF_CDNS {
            headers.remove(name);
        }
        // As for the cookies themselves.
        let _ = headers.try_insert(CACHE_CONTROL, NO_STORE);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn add(value: &'static str) -> Step {
        let changes = HeaderChanges {
            add: vec![(
                HeaderName::from_static("x-step"),
                HeaderValue::from_static(value),
            )],
            ..HeaderChanges::default()
        };
        Step::Headers(Arc::new(changes))
    }

    #[test]
    fn backend_steps_run_before_rule_steps_each_in_list_order() {
        let mut phase = ResponsePhase::default();
        phase.push(Level::Rule, add("3"));
        phase.push(Level::Rule, add("4"));
        phase.push(Level::Backend, add("lost"));
        phase.reset_backend();
        phase.push(Level::Backend, add("1"));
        phase.push(Level::Backend, add("2"));
        let mut headers = HeaderMap::new();
        phase.apply(&mut headers);
        assert_eq!(headers["x-step"], "1,2,3,4");
    }

    #[test]
    fn responses_with_cookies_of_sessions_are_not_stored() {
        let public = HeaderValue::from_static("public, max-age=600");
        let names = ["cache-control", "cdn-cache-control", "surrogate-control"];
        let names = names.map(HeaderName::from_static);
        let set = names.iter().map(|name| (name.clone(), public.clone()));
        let changes = HeaderChanges {
            set: set.collect(),
            ..HeaderChanges::default()
        };
        let no_store = HeaderValue::from_static("no-store");
        for has_cookies in [false, true] {
            let mut phase = ResponsePhase::default();
            if has_cookies {
                phase.set_cookies(vec![HeaderValue::from_static("a=b")]);
            }
            phase.change_headers(Level::Rule, changes.clone());
            let mut headers = HeaderMap::new();
            phase.apply(&mut headers);
            let found = names.each_ref().map(|name| headers.get(name));
            let expected = match has_cookies {
                true => [Some(&no_store), None, None],
                false => [Some(&public); 3],
            };
            assert_eq!(found, expected);
            let mut headers = HeaderMap::new();
            phase.apply_to_error(&mut headers);
            assert_eq!(headers.contains_key(CACHE_CONTROL), has_cookies);
        }
    }

    #[test]
    fn filters_leave_cookies_of_sessions_alone() {
        let remove = HeaderChanges {
            remove: vec![SET_COOKIE],
            ..HeaderChanges::default()
        };
        let kept = ["a=1", "b=2"];
        for (cache_control, expected) in [("no-store", &kept[..]), ("private", &kept[1..])] {
            let cookie = HeaderValue::from_static("a=1");
            let cache_control = HeaderValue::from_static(cache_control);
            let mut headers =
                HeaderMap::from_iter([(SET_COOKIE, cookie), (CACHE_CONTROL, cache_control)]);
            let mut phase = ResponsePhase::default();
            phase.take_cookies(&mut headers);
            phase.set_cookies(vec![HeaderValue::from_static("b=2")]);
            phase.change_headers(Level::Rule, remove.clone());
            headers.append(SET_COOKIE, HeaderValue::from_static("backend=1"));
            phase.apply(&mut headers);
            let cookies: Vec<_> = headers.get_all(SET_COOKIE).iter().collect();
            assert_eq!(cookies, expected);
            assert_eq!(headers[CACHE_CONTROL], "no-store");
        }
    }
}
