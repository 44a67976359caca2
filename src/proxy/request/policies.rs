//! What policies do with a matched request before its filters: addresses, then limits, then the size of its body, then
//! credentials and rules about clients.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::authentication::{self, Credentials};
use super::policy_refusal::PolicyRefusal;
use crate::filter::answer_preflight;
use crate::ir::cors::is_preflight;
use crate::ir::filter::HeaderChanges;
use crate::ir::limit::Limits;
use crate::ir::policy::Verdict;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::client::client_address::Origin;
use crate::proxy::error::Error;
use crate::table::{
    InProgress, LimitRefusal, LimitedRequest, Limiter, Policies, Remaining, RequestView, Rule,
};
use crate::telemetry::trace::{Decision, Event, RequestSpan};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What policies have to do with a request that passes.
pub(super) struct Passed {
    /// The requests in progress that it counts as.
    pub(super) in_progress: Option<Box<InProgress>>,
    /// Headers of its response.
    pub(super) headers: Option<Box<HeaderChanges>>,
    /// Its credentials, if it needs any.
    pub(super) credentials: Option<Credentials>,
    /// How it is handled where its rule does not say it.
    pub(super) defaults: Option<Arc<RouteDefaults>>,
}

/// What policies have to do with a request, if that is anything, or why it does not pass.
pub(super) type PolicyResult = Result<Option<Box<Passed>>, Box<PolicyRefusal>>;

/// Decides on a request for a host that matches a rule. Its span, if it is sampled, gets what limits decide.
pub(super) fn check(
    (policies, rule): (&Arc<Policies>, &Rule),
    origin: &Origin,
    view: &RequestView<'_>,
    span: Option<&mut RequestSpan>,
) -> PolicyResult {
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
    let (in_progress, headers) = match policies.ir.limits {
        None => (InProgress::default(), None),
        Some(_) => admit(policies, client, view, span)?,
    };
    let defaults = policies.ir.route.as_ref();
    if is_too_large(view, defaults.and_then(|it| it.max_body)) {
        return Err(with(Box::new(Error::BodyTooLarge.into()), headers));
    }
    let credentials = match authentication::check(policies, client, view) {
        Ok(credentials) => credentials,
        // A preflight request never has credentials.
        Err(refusal)
            if refusal.error != Error::BrokenPolicy
                && is_preflight(view.method, view.headers)
                && answer_preflight(&rule.ir.filters) =>
        {
            None
        }
        Err(refusal) => return Err(with(refusal, headers)),
    };
    let in_progress = (!in_progress.is_empty()).then(|| Box::new(in_progress));
    let defaults = defaults.cloned();
    let is_kept = headers.is_some() || credentials.is_some() || in_progress.is_some();
    Ok((is_kept || defaults.is_some()).then(|| {
        Box::new(Passed {
            in_progress,
            headers,
            credentials,
            defaults,
        })
    }))
}

/// Reports whether a request declares a body of more than `max` bytes.
fn is_too_large(view: &RequestView<'_>, max: Option<u64>) -> bool {
    let Some(max) = max else {
        return false;
    };
    let length = view.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > max)
}

/// Counts a request. Returns the headers of its response.
fn admit(
    policies: &Policies,
    client: IpAddr,
    view: &RequestView<'_>,
    span: Option<&mut RequestSpan>,
) -> Result<(InProgress, Option<Box<HeaderChanges>>), Box<PolicyRefusal>> {
    let request = LimitedRequest {
        client,
        view: *view,
    };
    let limits = policies.limits();
    let note = |limiter: &Limiter, decision| {
        if let Some(span) = span {
            span.note(Event::limit(&limiter.policy, &limiter.ir.name, decision));
        }
    };
    match (policies.admit(&request), limits) {
        (Ok(within), limits) => {
            if let Some(limiter) = within.audited {
                note(limiter, Decision::Audited);
            }
            let limits = limits.filter(|limits| limits.has_headers);
            let remaining = within.remaining.as_ref();
            let headers = limits.map(|limits| Box::new(announced(limits, remaining)));
            Ok((within.in_progress, headers))
        }
        (Err(LimitRefusal::Exceeded(over)), Some(limits)) => {
            note(over.limiter, Decision::Refused);
            Err(Box::new(exceeded(limits, over.after)))
        }
        (Err(_), _) => Err(Box::new(Error::BrokenPolicy.into())),
    }
}

/// Adds headers to the response of a refusal.
fn with(
    mut refusal: Box<PolicyRefusal>,
    headers: Option<Box<HeaderChanges>>,
) -> Box<PolicyRefusal> {
    let headers = headers.into_iter().flat_map(|headers| headers.set);
    headers.for_each(|(name, value)| drop(refusal.headers.insert(name, value)));
    refusal
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
