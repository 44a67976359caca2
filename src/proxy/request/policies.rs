//! What policies do with a matched request before its filters: addresses, then limits, then the size of its body, then
//! credentials and rules about clients, then limits by the identity of the client.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::authentication::{self, Arrival, Credentials};
use super::identity::Identity;
use super::policy_refusal::PolicyRefusal;
use crate::filter::answer_preflight;
use crate::ir::filter::HeaderChanges;
use crate::ir::limit::{Cost, Limits};
use crate::ir::policy::Verdict;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::client::client_address::Origin;
use crate::proxy::error::Error;
use crate::table::{
    CountedRequest, LimitPhase, LimitRefusal, LimitedRequest, Limiter, OverLimit, Policies,
    Remaining, RequestView, Rule, TakenTokens, WithinLimits,
};
use crate::telemetry::trace::{Decision, Event, RequestSpan};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What policies have to do with a request that passes.
pub(super) struct Passed {
    /// What it counts as for limits until its end.
    pub(super) counted: Option<Box<CountedRequest>>,
    /// Headers of its response.
    pub(super) headers: Option<Box<HeaderChanges>>,
    /// Its credentials, if it needs any.
    pub(super) credentials: Option<Credentials>,
    /// How it is handled where its rule does not say it.
    pub(super) defaults: Option<Arc<RouteDefaults>>,
}

// A request with policies allocates it. mimalloc finds a block of 64 bytes at once; for one of 80, it takes 110 instructions more.
const _: () = assert!(size_of::<Passed>() <= 64);

/// What a request counts as for limits, and headers of its response.
pub(super) type Counted = (Option<Box<CountedRequest>>, Option<Box<HeaderChanges>>);

/// What policies have to do with a request, if that is anything, or why it does not pass.
pub(super) type PolicyResult = Result<Option<Box<Passed>>, Box<PolicyRefusal>>;

/// Decides on a request for a host that matches a rule. Its span, if it is sampled, gets what is decided.
pub(super) fn check(
    (policies, rule): (&Arc<Policies>, &Rule),
    (origin, arrival): (&Origin, &Arrival<'_>),
    (view, is_preflight): (&RequestView<'_>, bool),
    mut span: Option<&mut RequestSpan>,
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
    let request = LimitedRequest {
        client,
        view: *view,
    };
    let mut within = WithinLimits::default();
    if policies.ir.limits.is_some() {
        let phase = LimitPhase::Before;
        admit(
            policies,
            (&request, phase),
            &mut within,
            span.as_deref_mut(),
        )?;
    }
    let defaults = policies.ir.route.as_ref();
    if is_too_large(view, defaults.and_then(|it| it.max_body)) {
        let refusal = Box::new(Error::BodyTooLarge.into());
        return Err(with(refusal, policies, within));
    }
    // A preflight request never has credentials. It needs none if a filter answers it.
    let is_answered = || is_preflight && answer_preflight(&rule.ir.filters);
    let credentials = match authentication::check(policies, (client, arrival), view) {
        Ok(Some(credentials)) if credentials.have_server() && is_answered() => {
            Some(Credentials::Waived(Box::new(Error::Unauthenticated.into())))
        }
        Ok(credentials) => credentials,
        Err(refusal) if refusal.error != Error::BrokenPolicy && is_answered() => {
            Some(Credentials::Waived(refusal))
        }
        Err(refusal) => return Err(with(refusal, policies, within)),
    };
    let credentials = match credentials {
        // No backend gets the preflight request.
        Some(Credentials::Waived(refusal)) => Some(Credentials::Waived(refusal)),
        Some(Credentials::Unverified(mut unverified)) => {
            (unverified.remaining, unverified.taken) = (within.remaining, within.taken);
            Some(Credentials::Unverified(unverified))
        }
        credentials => {
            let identity = credentials.as_ref().and_then(Credentials::identity);
            if let (Some(span), Some(identity)) = (span.as_deref_mut(), identity) {
                span.note(identity.event());
            }
            if policies.limit_identities() {
                let client = identity.map(Identity::client).unwrap_or_default();
                let phase = LimitPhase::Identified(&client);
                admit(policies, (&request, phase), &mut within, span)?;
            }
            credentials
        }
    };
    let headers = announced(policies, within.remaining);
    let counted = within.counted;
    let defaults = defaults.cloned();
    let is_kept = headers.is_some() || credentials.is_some() || counted.is_some();
    Ok((is_kept || defaults.is_some()).then(|| {
        Box::new(Passed {
            counted,
            headers,
            credentials,
            defaults,
        })
    }))
}

/// Counts a request by the identity of its client that was established after [`check`]. `remaining` is the state of the
/// limits that have counted it, and `taken` what it has of them. Returns what it counts as, and headers of its response.
pub(super) fn identified(
    identity: &Identity,
    request: &LimitedRequest<'_>,
    (remaining, taken): (Option<Remaining>, TakenTokens),
    span: Option<&mut RequestSpan>,
) -> Result<Counted, Box<PolicyRefusal>> {
    let policies = identity.policies();
    let mut within = WithinLimits {
        remaining,
        taken,
        ..WithinLimits::default()
    };
    let phase = LimitPhase::Identified(&identity.client());
    admit(policies, (request, phase), &mut within, span)?;
    let headers = announced(policies, within.remaining);
    Ok((within.counted, headers))
}

/// Reports whether a request declares a body of more than `max` bytes.
pub(super) fn is_too_large(view: &RequestView<'_>, max: Option<u64>) -> bool {
    let Some(max) = max else {
        return false;
    };
    let length = view.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > max)
}

/// Counts a request by the limits of a phase, and adds that to what it counts as.
fn admit<'a>(
    policies: &'a Policies,
    (request, phase): (&LimitedRequest<'_>, LimitPhase<'_>),
    within: &mut WithinLimits<'a>,
    span: Option<&mut RequestSpan>,
) -> Result<(), Box<PolicyRefusal>> {
    let note = |limiter: &Limiter, decision| {
        if let Some(span) = span {
            span.note(Event::limit(&limiter.policy, &limiter.ir.name, decision));
        }
    };
    within.audited = None;
    match (policies.admit(request, phase, within), policies.limits()) {
        (Ok(()), _) => {
            if let Some(limiter) = within.audited {
                note(limiter, Decision::Audited);
            }
            Ok(())
        }
        (Err(LimitRefusal::Exceeded(over)), Some(limits)) => {
            note(over.limiter, Decision::Refused);
            Err(Box::new(exceeded(limits, &over)))
        }
        (Err(_), _) => Err(Box::new(Error::BrokenPolicy.into())),
    }
}

/// Returns the headers of the response to a request within limits, if their policy wants them.
fn announced(policies: &Policies, remaining: Option<Remaining>) -> Option<Box<HeaderChanges>> {
    let limits = policies.limits().filter(|limits| limits.has_headers)?;
    Some(Box::new(draft_headers(limits, remaining)))
}

/// Adds to a refusal the state of the limits that have counted the request, unless it is the refusal of a limit.
pub(super) fn announce(
    mut refusal: Box<PolicyRefusal>,
    policies: &Policies,
    remaining: Option<Remaining>,
) -> Box<PolicyRefusal> {
    if !matches!(refusal.error, Error::LimitExceeded(_)) {
        let headers = announced(policies, remaining).into_iter();
        for (name, value) in headers.flat_map(|headers| headers.set) {
            refusal.headers.insert(name, value);
        }
    }
    refusal
}

/// Adds to a refusal what limits have decided before.
fn with(
    mut refusal: Box<PolicyRefusal>,
    policies: &Policies,
    within: WithinLimits<'_>,
) -> Box<PolicyRefusal> {
    refusal.counted = within.counted;
    announce(refusal, policies, within.remaining)
}

fn exceeded(limits: &Limits, over: &OverLimit<'_>) -> PolicyRefusal {
    let (limit, after) = (over.index, over.after);
    let rate = over
        .limiter
        .ir
        .rate
        .filter(|_| over.limiter.ir.cost.is_request());
    let remaining = rate.map(|_| Remaining {
        limit,
        requests: 0,
        reset: after,
    });
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after)));
    if limits.has_headers {
        for (name, value) in draft_headers(limits, remaining).set {
            headers.insert(name, value);
        }
    }
    PolicyRefusal {
        error: Error::LimitExceeded(limits.status),
        headers,
        counted: None,
    }
}

/// Whole seconds, at least one: a client that waits for so long does not come too early.
fn seconds(time: Duration) -> u64 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    seconds.max(1)
}

/// Returns the headers of draft-ietf-httpapi-ratelimit-headers.
fn draft_headers(limits: &Limits, remaining: Option<Remaining>) -> HeaderChanges {
    let mut policy = String::new();
    for limit in &limits.limits {
        let Some(rate) = limit.rate.filter(|_| !limit.is_audit) else {
            continue;
        };
        let separator = if policy.is_empty() { "" } else { ", " };
        let (name, requests, seconds) = (&limit.name, rate.requests, rate.per.as_secs());
        let unit = match limit.cost {
            Cost::Request | Cost::ResponseHeader(_) => "",
            Cost::RequestBytes | Cost::ResponseBytes => ";qu=\"content-bytes\"",
        };
        let _ = write!(
            policy,
            "{separator}\"{name}\";q={requests}{unit};w={seconds}"
        );
    }
    let state = remaining.and_then(|remaining| {
        let name = &limits.limits.get(remaining.limit)?.name;
        let (requests, reset) = (remaining.requests, seconds(remaining.reset));
        Some(format!("\"{name}\";r={requests};t={reset}"))
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
