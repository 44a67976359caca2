//! What the filters of a request do to its response. The request has been sent by then, so a step keeps the parts of it
//! that it needs.

use std::sync::Arc;

use http::HeaderMap;

use super::cors::Sharing;
use super::facts::Level;
use super::header;
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
    }

    /// Applies only the CORS steps, to an error response: without them a page cannot read even the status.
    pub fn apply_cors(&self, headers: &mut HeaderMap) {
        for step in self.backend.iter().chain(&self.rule) {
            if let Step::Cors(sharing) = step {
                sharing.apply(headers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

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
