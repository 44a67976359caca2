//! What all requests to a Kubernetes API server share: the field manager, the timeout, and the description of failures
//! for people.

use std::error::Error;
use std::iter::successors;
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::Status;
use tokio::time::timeout;

/// Field manager of a controller with the default name, as recorded in `managedFields`.
pub const FIELD_MANAGER: &str = "portcullis.dev/controller";
/// Field manager of this process, if it is another. One process is one controller, as long as it runs.
static OTHER_MANAGER: OnceLock<String> = OnceLock::new();
/// Timeout of one request of the controller.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Key of the condition `Programmed` in `fieldsV1`.
const PROGRAMMED: &str = r#"k:{"type":"Programmed"}"#;
/// What a condition says. Its other fields may stay equal when another client writes it, and then stay with the client before.
const STATEMENT: [&str; 3] = ["f:status", "f:reason", "f:message"];

/// Maximum number of characters of a failure that are shown. Some servers respond with a page or repeat a whole object.
const MAX_SHOWN: usize = 1000;

/// The API server is overloaded and states when to retry.
#[derive(Debug, thiserror::Error)]
#[error("status {status}, retry after {} s", .after.as_secs())]
pub struct RetryAfter {
    /// Status of the response.
    pub status: u16,
    /// Its `Retry-After`.
    pub after: Duration,
}

/// Returns the delay that the response to a failed request asks for.
pub fn retry_after(error: &(dyn Error + 'static)) -> Option<Duration> {
    let found = causes(error).find_map(|cause| cause.downcast_ref::<RetryAfter>());
    found.map(|found| found.after)
}

/// Describes why a request failed, on one line: the API server's message about the object, else the failure of the
/// connection.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    match causes(error).find_map(status) {
        Some(status) => describe_status(status),
        None => line(&chain(error)),
    }
}

/// Gives the objects that this process writes the field manager of an installation: its controllerName. Without it, they have
/// [`FIELD_MANAGER`].
pub fn identify(controller_name: &str) {
    // A second call would come from a second controller in one process.
    drop(OTHER_MANAGER.set(controller_name.to_owned()));
}

/// Returns the field manager of this controller.
pub fn field_manager() -> &'static str {
    OTHER_MANAGER.get().map_or(FIELD_MANAGER, String::as_str)
}

/// Reports whether what the condition `Programmed` of an object says is of this controller alone, by `managedFields` of the
/// status subresource.
pub fn is_status_ours(managed_fields: &[ManagedFieldsEntry]) -> bool {
    let entries = managed_fields.iter();
    let of_status = entries.filter(|entry| entry.subresource.as_deref() == Some("status"));
    let wrote = of_status.filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        let conditions = fields.map(|fields| &fields.0["f:status"]["f:conditions"]);
        let programmed = conditions.and_then(|conditions| conditions.get(PROGRAMMED));
        programmed.is_some_and(|it| STATEMENT.iter().any(|field| it.get(*field).is_some()))
    });
    let mut managers = wrote.map(|entry| entry.manager.as_deref());
    let ours = Some(field_manager());
    managers.next() == Some(ours) && managers.all(|one| one == ours)
}

/// Awaits a request for at most `REQUEST_TIMEOUT`.
pub async fn request<T>(request: impl Future<Output = T>) -> Result<T, String> {
    let response = timeout(REQUEST_TIMEOUT, request).await;
    response.map_err(|_| format!("no response within {} s", REQUEST_TIMEOUT.as_secs()))
}

/// Iterates over an error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |error| (*error).source())
}

fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    let boxed = || error.downcast_ref::<Box<Status>>().map(|status| &**status);
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => error.downcast_ref().or_else(boxed),
    }
}

/// Formats a status. Its message names object, field and rule. Its reason is one word, unless kube built the status
/// from a page.
fn describe_status(status: &Status) -> String {
    let message = line(&status.message);
    let code = match status.reason.as_str() {
        reason if reason.is_empty() || reason.contains(' ') => format!("status {}", status.code),
        reason => format!("{} {reason}", status.code),
    };
    if message.is_empty() {
        return code;
    }
    format!("{message} ({code})")
}

/// Formats an error with its causes, each once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let error = match error.downcast_ref() {
        // The text of this variant repeats its cause after the name of the variant.
        Some(kube::Error::Service(cause)) => &**cause,
        _ => error,
    };
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
    }
    text
}

/// Truncates external text and puts it on one line.
fn line(text: &str) -> String {
    let mut line: String = text
        .trim()
        .chars()
        .take(MAX_SHOWN)
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    if text.trim().chars().nth(MAX_SHOWN).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;

    /// An entry of `managedFields`.
    fn entry(manager: &str, subresource: &str, condition: &str) -> Value {
        let condition = format!("k:{{\"type\":\"{condition}\"}}");
        json!({
            "manager": manager, "operation": "Update", "subresource": subresource,
            "fieldsV1": {"f:status": {"f:conditions": {condition: {"f:status": {}}}}},
        })
    }

    #[test]
    fn status_is_ours_while_nobody_else_changes_the_condition() {
        let is_ours = |entries: &[Value]| {
            let entries: Vec<_> = serde_json::from_value(json!(entries)).unwrap();
            is_status_ours(&entries)
        };
        let ours = entry(FIELD_MANAGER, "status", "Programmed");
        let other = "example.com/other";
        assert!(is_ours(std::slice::from_ref(&ours)));
        assert!(is_ours(&[ours.clone(), entry(other, "status", "Other")]));
        assert!(!is_ours(&[
            ours.clone(),
            entry(other, "status", "Programmed")
        ]));
        assert!(!is_ours(&[
            entry(other, "status", "Programmed"),
            ours.clone()
        ]));
        // Of a controller that had the Gateway before: the key of the condition stays with it.
        let key = json!({"f:status": {"f:conditions": {PROGRAMMED: {".": {}, "f:type": {}}}}});
        let before = json!({
            "manager": other, "operation": "Update", "subresource": "status", "fieldsV1": key,
        });
        assert!(is_ours(&[before, ours]));
        assert!(!is_ours(&[entry(FIELD_MANAGER, "status", "Accepted")]));
        assert!(!is_ours(&[entry(FIELD_MANAGER, "", "Programmed")]));
        assert!(!is_ours(&[]));
    }

    fn api(status: Value) -> kube::Error {
        let status: Status = serde_json::from_value(status).unwrap();
        kube::Error::Api(status.boxed())
    }

    fn invalid() -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Deployment.apps \"web-edge\" is invalid: spec.template.spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "reason": "Invalid",
            "details": {
                "name": "web-edge",
                "group": "apps",
                "kind": "Deployment",
                "causes": [{
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                    "field": "spec.template.spec.containers[0].resources.requests",
                }],
            },
            "code": 422,
        })
    }

    fn forbidden() -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "services is forbidden: User \"system:serviceaccount:portcullis:controller\" cannot list resource \"services\" in API group \"\" at the cluster scope",
            "reason": "Forbidden",
            "details": {"kind": "services"},
            "code": 403,
        })
    }

    #[test]
    fn names_object_field_and_rule_once() {
        assert_eq!(
            describe(&api(invalid())),
            concat!(
                "Deployment.apps \"web-edge\" is invalid: spec.template.spec.containers[0].resources.requests: ",
                "Invalid value: \"2\": must be less than or equal to cpu limit of 1 (422 Invalid)"
            )
        );
    }

    #[test]
    fn finds_the_status_in_errors_of_watches() {
        let expected = concat!(
            "services is forbidden: User \"system:serviceaccount:portcullis:controller\" cannot list resource ",
            "\"services\" in API group \"\" at the cluster scope (403 Forbidden)"
        );
        let listed = watcher::Error::InitialListFailed(api(forbidden()));
        assert_eq!(describe(&listed), expected);
        let status: Status = serde_json::from_value(forbidden()).unwrap();
        assert_eq!(
            describe(&watcher::Error::WatchError(status.boxed())),
            expected
        );
    }

    #[test]
    fn shows_a_page_as_one_short_line() {
        let page = format!("<html>\n<body>{}", "x".repeat(10_000));
        let status = Status::failure(&page, "Failed to parse error data").with_code(502);
        let text = describe(&kube::Error::Api(status.boxed()));
        assert!(text.starts_with("<html> <body>xx"), "{text}");
        assert!(text.ends_with("x… (status 502)"), "{text}");
        assert!(text.chars().count() < MAX_SHOWN + 20, "{text}");
    }

    #[test]
    fn describes_failed_connections() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(refused));
        assert_eq!(describe(&error), "connection refused");
        let empty = kube::Error::Api(Status::default().with_code(503).boxed());
        assert_eq!(describe(&empty), "status 503");
    }
}
