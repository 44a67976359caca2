//! Conditions on requests in policies, which are those of HTTPRoutes.

use http::HeaderName;

use crate::api::http_route::HttpMatch;
use crate::ir::hop_by_hop::is_never_seen;
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
    if let Some(header) = headers.iter().find(|it| is_never_forwarded(&it.name)) {
        let name = &header.name;
        return invalid(format!(
            "{field}.headers: no request meets a condition on {name}, which is not forwarded; use Upgrade for the protocol of an upgrade"
        ));
    }
    let translated = http_match::one(condition, field, &mut RoutePatterns::default());
    translated.or_else(|fault| invalid(fault.message))
}

fn is_never_forwarded(name: &str) -> bool {
    HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| is_never_seen(&name))
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
                r#"{"headers": [{"name": "Upgrade", "value": "websocket"}, {"name": "TE", "value": "trailers"}]}"#,
                None,
            ),
            (
                r#"{"headers": [{"name": "connection", "value": "upgrade"}]}"#,
                Some("spec.rules[0].match.headers: no request meets a condition on connection"),
            ),
            (
                r#"{"headers": [{"name": "Expect", "value": "100-continue"}]}"#,
                Some("spec.rules[0].match.headers: no request meets a condition on Expect"),
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
