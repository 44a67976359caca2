//! Classifies responses of the API server as failures of a Gateway.

use super::desired::{Failure, FailureReason};
use super::inventory::ChildKey;
use crate::cluster::api_server::describe;

/// Status codes that do not depend on the object: timeout, conflict and too many requests.
const TRANSIENT: [u16; 3] = [408, 409, 429];

/// Result of a request. The outer error means that there was no response in time.
pub(super) type Response<T> = Result<Result<T, kube::Error>, String>;

/// Reports whether a create failed because the name is taken.
pub(super) fn is_taken<T>(created: &Response<T>) -> bool {
    matches!(created, Ok(Err(kube::Error::Api(status))) if status.reason == "AlreadyExists")
}

pub(super) fn unreachable(message: String) -> Failure {
    Failure {
        reason: FailureReason::Unreachable,
        message,
    }
}

/// Builds the failure of a request about an object.
pub(super) fn refusal<T>(key: &ChildKey, verb: &str, response: Response<T>) -> Failure {
    let what = format!("{key} cannot be {verb}");
    match response {
        Ok(Err(error)) => failure(&error, &what),
        Err(timeout) => unreachable(format!("{what}: {timeout}")),
        Ok(Ok(_)) => unreachable(what),
    }
}

pub(super) fn failure(error: &kube::Error, what: &str) -> Failure {
    let code = match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    };
    let is_refused = (400..500).contains(&code) && !TRANSIENT.contains(&code);
    Failure {
        reason: match is_refused {
            true => FailureReason::Refused,
            false => FailureReason::Unreachable,
        },
        message: format!("{what}: {}", describe(error)),
    }
}
