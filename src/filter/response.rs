//! What the filters of a request do to its response. The request has been sent by then, so a step keeps the parts of it
//! that it needs.

use std::sync::Arc;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use super::cors::{self, Sharing};
use super::facts::Level;
use super::header;
use crate::ir::Filter;
use crate::ir::filter::HeaderChanges;

/// The steps for a response: those of the backendRef that served the request, then those of the rule, each in the
/// order of its list. Without steps it allocates nothing.
#[derive(Debug, Default)]
pub struct ResponsePhase {
    rule: Vec<Step>,
    backend: Vec<Step>,
}

/// What one filter does to a response.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// ResponseHeaderModifier.
    Headers(Arc<HeaderChanges>),
    /// CORS.
    Cors(Sharing),
    /// Cookies for the client.
    Cookies(Arc<[HeaderValue]>),
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

    /// Adds cookies for the client.
    pub fn set_cookies(&mut self, cookies: Vec<HeaderValue>) {
        self.push(Level::Rule, Step::Cookies(cookies.into()));
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
                Step::Cookies(cookies) => set_cookies(cookies, headers),
            }
        }
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
                Step::Cookies(cookies) => set_cookies(cookies, headers),
            }
        }
    }
}

fn set_cookies(cookies: &[HeaderValue], headers: &mut HeaderMap) {
    for cookie in cookies {
        // As for other headers: no response comes close to the limit.
        let _ = headers.try_append(SET_COOKIE, cookie.clone());
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
}
