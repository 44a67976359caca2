//! `accessLog` of a TelemetryPolicy: which requests are logged, and which fields their lines have. Must not know where lines
//! go.

use std::sync::Arc;

use http::HeaderName;

use super::value::{CREDENTIALS, header_name, invalid, share};
use crate::api::telemetry_policy::{AccessLog, AccessLogFields, AccessLogFilter, AddedField};
use crate::ir::access_log::{self as ir, FIELDS, FieldSource, GatewayLog, IDENTITY, LogFilter};
use crate::ir::telemetry::Share;
use crate::translate::duration;
use crate::translate::reason::{Fault, Faults, all, both};

/// Parts of names of headers whose values are often credentials, such as `X-Api-Key` and `X-Auth-Token`.
const SENSITIVE: [&str; 8] = [
    "api-key",
    "api_key",
    "apikey",
    "authorization",
    "credential",
    "password",
    "secret",
    "token",
];

/// Maximum lengths of names of further fields, and of literals.
const MAX_NAME: usize = 64;
const MAX_LITERAL: usize = 256;
/// Maximum number of further fields.
const MAX_ADDED: usize = 16;

/// Validates the same as the CRD: an API server with another version of the CRD may accept other values. Returns `None` if
/// the policy says nothing about lines.
pub(super) fn gateway_log(log: Option<&AccessLog>) -> Result<Option<Arc<GatewayLog>>, Fault> {
    let Some(AccessLog {
        sink: _,
        filter,
        fields,
    }) = log
    else {
        return Ok(None);
    };
    let filter = filter.as_ref().map(self::filter).transpose()?.flatten();
    let fields = fields.clone().unwrap_or_default();
    let AccessLogFields { omit, add } = &fields;
    let omit = omit.iter().enumerate().map(omitted);
    let (omit, add) = both(all(omit), self::add(add))?;
    let log = GatewayLog { filter, omit, add };
    Ok((log != GatewayLog::default()).then(|| Arc::new(log)))
}

fn filter(filter: &AccessLogFilter) -> Result<Option<LogFilter>, Fault> {
    let AccessLogFilter {
        min_status,
        min_duration,
        sample,
    } = filter;
    if let Some(status) = min_status.filter(|status| !(100..=599).contains(status)) {
        let message = format!("{status} is not a status from 100 to 599");
        return invalid("spec.accessLog.filter.minStatus", &message);
    }
    let min_duration = min_duration.as_deref();
    let min_duration =
        min_duration.map(|text| duration::parse(text, "spec.accessLog.filter.minDuration"));
    let min_duration = min_duration.transpose()?;
    let sample = share(sample.as_ref(), "spec.accessLog.filter.sample")?;
    let has_minimum = min_status.is_some() || min_duration.is_some();
    Ok((has_minimum || sample.is_some()).then(|| LogFilter {
        min_status: *min_status,
        min_duration,
        sample: sample.unwrap_or(Share::NONE),
    }))
}

fn omitted((index, name): (usize, &String)) -> Result<&'static str, Fault> {
    let field = format!("spec.accessLog.fields.omit[{index}]");
    match FIELDS.into_iter().find(|known| known == name) {
        None => {
            let known: Vec<_> = FIELDS.into_iter().filter(is_optional).collect();
            let message = format!("{name:?} is none of the fields {}", known.join(", "));
            invalid(&field, &message)
        }
        Some(known) if !is_optional(&known) => {
            let message = format!("{name} identifies a request, and cannot be left out");
            invalid(&field, &message)
        }
        Some(known) => Ok(known),
    }
}

fn is_optional(name: &&str) -> bool {
    !IDENTITY.contains(name)
}

fn add(fields: &[AddedField]) -> Result<Box<[ir::AddedField]>, Fault> {
    if fields.len() > MAX_ADDED {
        let message = format!("has more than {MAX_ADDED} fields");
        return invalid("spec.accessLog.fields.add", &message);
    }
    let (mut added, mut faults) = (Vec::<ir::AddedField>::new(), Faults::default());
    for (index, field) in fields.iter().enumerate() {
        let at = format!("spec.accessLog.fields.add[{index}]");
        let name = self::name(&field.name, &added, &format!("{at}.name"));
        added.extend(faults.keep(both(name, source(field, &at))));
    }
    faults.finish(added.into())
}

/// Checks the name at `field` of a field that is added after these ones.
fn name(name: &str, added: &[ir::AddedField], field: &str) -> Result<Arc<str>, Fault> {
    if !is_name(name) {
        let message = format!(
            "{name:?} is not a letter or _, then letters, digits and _.-, up to {MAX_NAME} characters"
        );
        return invalid(field, &message);
    }
    if FIELDS.contains(&name) {
        return invalid(field, &format!("{name} is a field of each access log"));
    }
    match added.iter().any(|(other, _)| **other == *name) {
        true => invalid(field, &format!("{name} is there twice")),
        false => Ok(name.into()),
    }
}

/// Reports whether lines can have a field of this name, which JSON and terminals take as it is.
fn is_name(name: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let is_later = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.as_bytes().first().is_some_and(is_first)
        && name.len() <= MAX_NAME
        && name.bytes().all(is_later)
}

fn source(field: &AddedField, at: &str) -> Result<FieldSource, Fault> {
    let AddedField {
        name: _,
        kind,
        header_name: header,
        literal_value: literal,
    } = field;
    match (kind.as_str(), header, literal) {
        ("Header", Some(header), None) => Ok(FieldSource::Header(header_of(header, at)?)),
        ("ResponseHeader", Some(header), None) => {
            Ok(FieldSource::ResponseHeader(header_of(header, at)?))
        }
        ("Literal", None, Some(literal)) if literal.chars().count() > MAX_LITERAL => {
            let message = format!("has more than {MAX_LITERAL} characters");
            invalid(&format!("{at}.literalValue"), &message)
        }
        ("Literal", None, Some(literal)) => Ok(FieldSource::Literal(literal.as_str().into())),
        _ => invalid(
            at,
            "needs type Header or ResponseHeader with headerName, or Literal with literalValue",
        ),
    }
}

fn header_of(name: &str, at: &str) -> Result<HeaderName, Fault> {
    let at = format!("{at}.headerName");
    let header = header_name(name, &at)?;
    let is_sensitive = |part: &&str| header.as_str().contains(*part);
    if CREDENTIALS.contains(&header) || SENSITIVE.iter().any(is_sensitive) {
        let message = format!("{header} has credentials, which must not be in the access log");
        return invalid(&at, &message);
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn log(log: Value) -> Result<Option<Arc<GatewayLog>>, Fault> {
        let log: AccessLog = serde_json::from_value(log).unwrap();
        gateway_log(Some(&log))
    }

    #[test]
    fn values_beyond_those_of_the_crd_are_refused() {
        let filter = |filter: Value| json!({ "filter": filter });
        let add = |field: Value| json!({"fields": {"add": [field]}});
        let header = |name: &str| add(json!({"name": "a", "type": "Header", "headerName": name}));
        let literal = |name: &str, value: &str| {
            add(json!({"name": name, "type": "Literal", "literalValue": value}))
        };
        let twice = json!({"name": "a", "type": "Literal", "literalValue": "b"});
        let twice = json!({"fields": {"add": [twice, twice]}});
        let cases = [
            (filter(json!({"minStatus": 99})), "filter.minStatus: 99"),
            (filter(json!({"minStatus": 600})), "filter.minStatus: 600"),
            (filter(json!({"minDuration": "1d"})), "filter.minDuration: "),
            (
                filter(json!({"sample": {"numerator": 2, "denominator": 1}})),
                "filter.sample: 2/1",
            ),
            (
                json!({"fields": {"omit": ["client", "query"]}}),
                "fields.omit[1]: \"query\" is none of the fields client, method, path, ",
            ),
            (
                json!({"fields": {"omit": ["time"]}}),
                "fields.omit[0]: time identifies a request",
            ),
            (
                json!({"fields": {"omit": ["request_id"]}}),
                "fields.omit[0]: request_id identifies a request",
            ),
            (literal("path", "a"), "fields.add[0].name: path is a field"),
            (literal("", "a"), "fields.add[0].name: \"\" is not"),
            (literal("1a", "a"), "fields.add[0].name: \"1a\" is not"),
            (literal("a\"b", "a"), "fields.add[0].name: "),
            (literal(&"a".repeat(65), "a"), "fields.add[0].name: "),
            (
                literal("a", &"é".repeat(257)),
                "fields.add[0].literalValue: ",
            ),
            (twice, "fields.add[1].name: a is there twice"),
            (header("a b"), "fields.add[0].headerName: "),
            (
                add(json!({"name": "a", "type": "Cookie", "headerName": "a"})),
                "fields.add[0]: needs",
            ),
            (
                add(json!({"name": "a", "type": "ResponseHeader", "literalValue": "a"})),
                "fields.add[0]: needs",
            ),
        ];
        for (value, start) in cases {
            let message = log(value).unwrap_err().message;
            let start = format!("spec.accessLog.{start}");
            assert!(message.starts_with(&start), "{message}");
        }
    }

    #[test]
    fn headers_with_credentials_are_refused_in_both_directions() {
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "Set-Cookie",
            "X-Api-Key",
            "ApiKey",
            "X-Auth-Token",
            "X-CSRF-Token",
            "X-Amz-Security-Token",
            "X-Client-Secret",
            "X-Forwarded-Authorization",
        ] {
            for kind in ["Header", "ResponseHeader"] {
                let field = json!({"name": "a", "type": kind, "headerName": name});
                let message = log(json!({"fields": {"add": [field]}}))
                    .unwrap_err()
                    .message;
                assert!(message.contains("has credentials"), "{message}");
            }
        }
    }

    #[test]
    fn nothing_is_prepared_for_a_policy_that_says_nothing() {
        for value in [
            json!({}),
            json!({"sink": "OTLP"}),
            json!({"filter": {}, "fields": {}}),
        ] {
            assert_eq!(log(value).unwrap(), None);
        }
        assert_eq!(gateway_log(None).unwrap(), None);
    }
}
