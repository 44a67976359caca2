//! Conditions on requests in policies, which are those of HTTPRoutes.

use crate::api::http_route::HttpMatch;
use crate::ir::route::Match;
use crate::translate::http_match;
use crate::translate::patterns::RoutePatterns;
use crate::translate::reason::{Fault, invalid};

/// Translates the condition on requests. Patterns would take memory beside that of routes.
pub(super) fn read(condition: &HttpMatch, field: &str) -> Result<Match, Fault> {
    let HttpMatch {
        path,
        headers,
        query_params,
        method: _,
    } = condition;
    let kind = path.iter().filter_map(|path| path.kind.as_deref());
    let values = headers.iter().chain(query_params.iter());
    let kinds = kind.chain(values.filter_map(|it| it.kind.as_deref()));
    if kinds.into_iter().any(|kind| kind == "RegularExpression") {
        return invalid(format!(
            "{field}: type RegularExpression is not supported; use Exact or PathPrefix"
        ));
    }
    let translated = http_match::one(condition, field, &mut RoutePatterns::default());
    translated.or_else(|fault| invalid(fault.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_conditions_are_refused() {
        let parse = |json: &str| serde_json::from_str(json).unwrap();
        for (json, expected) in [
            (r#"{"path": {"type": "Exact", "value": "/a"}}"#, None),
            (
                r#"{"path": {"type": "RegularExpression", "value": "/a"}}"#,
                Some("spec.rules[0].match: type RegularExpression is not supported"),
            ),
            (
                r#"{"headers": [{"type": "RegularExpression", "name": "a", "value": "b"}]}"#,
                Some("spec.rules[0].match: type RegularExpression is not supported"),
            ),
            (
                r#"{"path": {"value": "a"}}"#,
                Some("spec.rules[0].match.path: \"a\" does not begin with /"),
            ),
        ] {
            let fault = read(&parse(json), "spec.rules[0].match").err();
            let message = fault.map(|fault| fault.message).unwrap_or_default();
            assert!(
                message.starts_with(expected.unwrap_or_default()),
                "{message}"
            );
            assert_eq!(message.is_empty(), expected.is_none(), "{message}");
        }
    }
}
