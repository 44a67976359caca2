//! What policies do with a matched request before its filters: addresses, then limits, then the size of its body.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::ir::filter::HeaderChanges;
use crate::ir::limit::Limits;
use crate::ir::policy::Verdict;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::client::client_address::Origin;
use crate::proxy::error::Error;
use crate::table::{InProgress, LimitRefusal, LimitedRequest, Policies, Remaining, RequestView};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What a request that passes keeps.
#[derive(Default)]
pub(super) struct Passed {
    /// The requests in progress that it counts as, if there are any.
    pub(super) in_progress: Option<Box<InProgress>>,
    /// Headers of its response.
    pub(super) headers: Option<Box<HeaderChanges>>,
    /// How it is handled where its rule does not say it.
    pub(super) defaults: Option<Arc<RouteDefaults>>,
}

/// Why a request does not pass.
pub(super) struct PolicyRefusal {
    pub(super) error: Error,
    /// Headers of its response.
    pub(super) headers: HeaderMap,
}

impl From<Error> for PolicyRefusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            headers: HeaderMap::new(),
        }
    }
}

/// What a request keeps, if that is anything, or why it does not pass.
pub(super) type PolicyResult = Result<Option<Passed>, Box<PolicyRefusal>>;

/// Decides on a request for a host.
pub(super) fn check(policies: &Policies, origin: &Origin, view: &RequestView<'_>) -> PolicyResult {
    let refused = |error: Error| Err(Box::new(error.into()));
    let client = origin.address;
    if !origin.is_known && policies.ir.need_addresses() {
        return refused(Error::BrokenPolicy);
    }
    match policies.ir.verdict(client) {
        Verdict::Pass => {}
        Verdict::Refuse => return refused(Error::AddressRefused),
        Verdict::Broken => return refused(Error::BrokenPolicy),
    }
    let mut passed = match policies.ir.limits {
        None => None,
        Some(_) => admit(policies, client, view)?,
    };
    if let Some(defaults) = &policies.ir.route {
        let declared = view.headers.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared > defaults.max_body && defaults.max_body.is_some() {
            return refused(Error::BodyTooLarge);
        }
        passed.get_or_insert_default().defaults = Some(defaults.clone());
    }
    Ok(passed)
}

/// Counts a request for the limits.
fn admit(policies: &Policies, client: IpAddr, view: &RequestView<'_>) -> PolicyResult {
    let refused = |error: Error| Err(Box::new(error.into()));
    let request = LimitedRequest {
        client,
        view: *view,
    };
    let limits = policies.limits();
    match (policies.admit(&request), limits) {
        (Ok((in_progress, remaining)), limits) => {
            let limits = limits.filter(|limits| limits.has_headers);
            let headers = limits.map(|limits| Box::new(announced(limits, remaining.as_ref())));
            let in_progress = (!in_progress.is_empty()).then(|| Box::new(in_progress));
            let is_kept = headers.is_some() || in_progress.is_some();
            Ok(is_kept.then_some(Passed {
                in_progress,
                headers,
                defaults: None,
            }))
        }
        (Err(LimitRefusal::Exceeded(after)), Some(limits)) => {
            Err(Box::new(exceeded(limits, after)))
        }
        (Err(_), _) => refused(Error::BrokenPolicy),
    }
}

fn exceeded(limits: &Limits, after: Duration) -> PolicyRefusal {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after)));
    if limits.has_headers {
        for (name, value) in announced(limits, None).set {
            headers.insert(name, value);
        }
    }
    PolicyRefusal {
        error: Error::LimitExceeded(limits.status),
        headers,
    }
}

/// Whole seconds, at least one: a client that waits for so long does not come too early.
fn seconds(time: Duration) -> u64 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    seconds.max(1)
}

/// Returns the headers of draft-ietf-httpapi-ratelimit-headers.
fn announced(limits: &Limits, remaining: Option<&Remaining<'_>>) -> HeaderChanges {
    let mut policy = String::new();
    for limit in &limits.limits {
        let Some(rate) = limit.rate.filter(|_| !limit.is_audit) else {
            continue;
        };
        let separator = if policy.is_empty() { "" } else { ", " };
        let (name, seconds) = (&limit.name, rate.per.as_secs());
        let _ = write!(
            policy,
            "{separator}\"{name}\";q={};w={seconds}",
            rate.requests
        );
    }
    let state = remaining.map(|remaining| {
        let name = &remaining.limit.name;
        let (requests, reset) = (remaining.requests, seconds(remaining.reset));
        format!("\"{name}\";r={requests};t={reset}")
    });
    let headers = [(RATE_LIMIT_POLICY, Some(policy)), (RATE_LIMIT, state)];
    let headers = headers.into_iter().filter_map(|(name, value)| {
        let value = value.filter(|value| !value.is_empty())?;
        Some((name, HeaderValue::try_from(value).ok()?))
    });
    HeaderChanges {
        set: headers.collect(),
        ..HeaderChanges::default()
    }
}
