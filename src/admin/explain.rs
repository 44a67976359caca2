//! `/explain`: what the configuration in service does with a request.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;

use super::background::compute;
use super::response::{Reply, respond, text};
use super::state::AdminState;
use crate::explain::{
    Configuration, ExplainedRequest, Explanation, Findings, Header, MAX_HEADERS, State, Values,
    explain,
};

/// The header of the response that says whether a rule handles the request: `true` or `false`.
pub const FOUND: &str = "portcullis-rule-found";

const USAGE: &str = "write /explain?request=GET%20http://HOST/PATH, with header=NAME:%20VALUE for each header, and with \
                     output=json, values=true and trusted=true as needed";

/// The parameters of a query.
#[derive(Debug)]
struct Query {
    request: ExplainedRequest,
    is_json: bool,
    values: Values,
}

impl Query {
    /// Parses a query, whose size the server bounds.
    fn parse(query: &str) -> Result<Self, String> {
        let mut request: Option<ExplainedRequest> = None;
        let mut headers: Vec<Header> = Vec::new();
        let (mut is_json, mut is_trusted, mut values) = (false, false, Values::Redacted);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("request", _) if request.is_some() => {
                    return Err("the parameter `request` occurs twice".to_owned());
                }
                ("request", text) => request = Some(text.parse()?),
                ("header", _) if headers.len() == MAX_HEADERS => {
                    return Err(format!("more than {MAX_HEADERS} headers"));
                }
                ("header", text) => headers.push(text.parse()?),
                ("output", format @ ("json" | "text")) => is_json = format == "json",
                ("trusted", "true" | "false") => is_trusted = value == "true",
                ("values", "true") => values = Values::Shown,
                ("values", "false") => values = Values::Redacted,
                ("output" | "trusted" | "values", _) => {
                    return Err(format!(
                        "`{value}` is not a value of the parameter `{name}`"
                    ));
                }
                _ => return Err(format!("there is no parameter `{name}`")),
            }
        }
        let mut request = request.ok_or("the parameter `request` is missing")?;
        request.add_headers(&headers)?;
        if is_trusted {
            request.trust();
        }
        Ok(Self {
            request,
            is_json,
            values,
        })
    }
}

/// Responds to a request of this query.
pub(super) async fn page(query: Option<&str>, state: &Arc<AdminState>) -> Reply {
    let query = match Query::parse(query.unwrap_or_default()) {
        Ok(query) => query,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, &format!("{wrong}; {USAGE}\n")),
    };
    let computed = compute(state, move |state| {
        let table = state.table.load();
        let stream = state.stats.stream.as_ref();
        let configuration = Configuration {
            table: &table,
            state: State::InService {
                revision: stream.map(|stream| stream.revision()),
            },
            values: query.values,
        };
        let report = state.report.load_full();
        let findings = Findings {
            report: &report,
            names: &*report,
            now: Timestamp::now(),
        };
        let explanation = explain(configuration, findings, &query.request);
        let body = match query.is_json {
            true => serde_json::to_string(&explanation).map(|body| body + "\n"),
            false => Ok(explanation.to_string()),
        };
        body.map(|body| found(&explanation, query.is_json, body))
    });
    match computed.await {
        Some(Ok(response)) => response,
        Some(Err(_)) | None => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the request cannot be explained\n",
        ),
    }
}

fn found(explanation: &Explanation, is_json: bool, body: String) -> Reply {
    let content_type = match is_json {
        true => "application/json",
        false => "text/plain; charset=utf-8",
    };
    let mut response = respond(StatusCode::OK, content_type, body);
    let found = match explanation.is_found() {
        true => "true",
        false => "false",
    };
    let name = HeaderName::from_static(FOUND);
    let headers = response.headers_mut();
    headers.insert(name, HeaderValue::from_static(found));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_queries() {
        let query = "request=POST%20http%3A%2F%2Fa%2Fb%3Fc%3Dd%26e&header=x%3A+1&header=x:2&output=json&values=true";
        let query = Query::parse(query).unwrap();
        assert_eq!(query.request.to_string(), "POST http://a/b?c=d&e");
        assert_eq!((query.is_json, query.values), (true, Values::Shown));
        let query = Query::parse("request=http://a/&trusted=true").unwrap();
        assert_eq!((query.is_json, query.values), (false, Values::Redacted));
    }

    #[test]
    fn says_what_is_wrong_with_a_query() {
        let many = format!("request=http://a/{}", "&header=a:b".repeat(MAX_HEADERS + 1));
        for (query, part) in [
            ("", "`request` is missing"),
            ("request=/a", "must begin with http://"),
            ("request=%ff%fe", "is not a URL"),
            ("request=http://a/&request=http://b/", "occurs twice"),
            ("request=http://a/&header=b", "has no colon"),
            ("request=http://a/&header=b:c%0ad", "not valid in a header"),
            ("request=http://a/&output=xml", "`xml` is not a value"),
            ("request=http://a/&values=1", "`1` is not a value"),
            ("request=http://a/&debug=true", "no parameter `debug`"),
            (&many, "more than 100 headers"),
        ] {
            let wrong = Query::parse(query).unwrap_err();
            assert!(wrong.contains(part), "{query}: {wrong}");
        }
    }
}
