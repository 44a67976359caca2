//! Secrets with credentials, which policies refer to. Must not know the credentials.

use std::sync::Arc;

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE, TRAILER,
};

use super::super::credential::{TYPE, is_for_credentials};
use crate::api::access_policy as api;
use crate::api::core::Secret;
use crate::api::reference::SecretRef;
use crate::ir::ObjectRef;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::token::ClaimHeader;
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason, all};
use crate::translate::reference_grant;

/// Maximum number of problems of a Secret that a message has.
const MAX_PROBLEMS: usize = 3;

/// The references of a policy.
pub(super) struct References<'a> {
    pub(super) input: &'a Input<'a>,
    /// The policy.
    pub(super) origin: &'a ObjectRef,
    /// Those that cannot be resolved, or not entirely.
    pub(super) unresolved: Vec<Fault>,
}

impl References<'_> {
    /// Returns what `read` reads from a Secret, with the problems of parts that are left out. A Secret that cannot be used
    /// makes the section unusable.
    pub(super) fn read<T>(
        &mut self,
        reference: &SecretRef,
        field: &str,
        read: impl FnOnce(&Secret) -> Result<(T, Vec<String>), String>,
    ) -> Result<T, Fault> {
        let found = self.find(reference, field);
        let found = found.and_then(|(name, secret)| {
            let read = read(&secret);
            let bad = |problem| format!("{field}: {name} {problem}");
            let read = read.map_err(|problem| invalid_ref(bad(problem)))?;
            Ok((name, read))
        });
        match found {
            Ok((name, (value, problems))) => {
                let place = format!("{field}: {name}");
                self.left_out(Reason::InvalidSecretRef, &place, &problems);
                Ok(value)
            }
            Err(fault) => {
                self.unresolved.push(fault.clone());
                Err(Fault::new(Reason::Invalid, fault.message))
            }
        }
    }

    /// Notes the problems of parts that are left out, if there are any.
    pub(super) fn left_out(&mut self, reason: Reason, place: &str, problems: &[String]) {
        if !problems.is_empty() {
            let message = format!("{place}: {}; that is left out", listed(problems));
            self.unresolved.push(Fault::new(reason, message));
        }
    }

    fn find(&self, reference: &SecretRef, field: &str) -> Result<(ObjectRef, Arc<Secret>), Fault> {
        let name = reference.object_ref(&self.origin.namespace);
        if !name.is_core("Secret") {
            let message = format!("{field} names {name}; name a Secret of the core group");
            return Err(Fault::new(Reason::InvalidKind, message));
        }
        // Check the permission first: without one, the status must not disclose whether the object exists.
        reference_grant::check(self.input, self.origin, &name, field)?;
        let missing = || invalid_ref(format!("{field}: {name} {}", self.input.absence(&name)));
        let secret = self.input.find::<Secret>(&name).ok_or_else(missing)?;
        if !is_for_credentials(secret) {
            let kind = &secret.kind;
            let message = format!("{field}: {name} is of type {kind}; it has to be of type {TYPE}");
            return Err(invalid_ref(message));
        }
        Ok((name, secret.clone()))
    }
}

fn invalid_ref(message: String) -> Fault {
    Fault::new(Reason::InvalidSecretRef, message)
}

fn listed(problems: &[String]) -> String {
    let shown = problems.iter().take(MAX_PROBLEMS).map(String::as_str);
    let shown: Vec<_> = shown.collect();
    let shown = shown.join(", ");
    match problems.len().saturating_sub(MAX_PROBLEMS) {
        0 => shown,
        more => format!("{shown}, and {more} problems more"),
    }
}

/// Headers that say who sent a request cannot be these: the proxy sets them, or they belong to the connection.
const RESERVED: [HeaderName; 8] = [
    AUTHORIZATION,
    CONTENT_LENGTH,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    PROXY_AUTHENTICATE,
    TRAILER,
];

/// Parses the name of a header that backends get.
pub(super) fn forwarded_header(
    name: Option<&str>,
    field: &str,
) -> Result<Option<HeaderName>, Fault> {
    let Some(name) = name else { return Ok(None) };
    header(name, field, &[]).map(Some)
}

/// Parses the headers with claims of the field `claimToHeaders` of a section or provider.
pub(super) fn claim_headers(
    headers: &[api::ClaimHeader],
    field: &str,
) -> Result<Box<[ClaimHeader]>, Fault> {
    let read = headers.iter().enumerate().map(|(index, it)| {
        let field = format!("{field}.claimToHeaders[{index}].header");
        Ok(ClaimHeader {
            claim: it.claim.as_str().into(),
            header: header(&it.header, &field, &[])?,
        })
    });
    all(read)
}

/// Parses the name of a header. Of the reserved ones, it may be one of `permitted`.
pub(super) fn header(
    name: &str,
    field: &str,
    permitted: &[HeaderName],
) -> Result<HeaderName, Fault> {
    let Ok(header) = name.parse::<HeaderName>() else {
        let message = format!("{field}: {name:?} is not the name of a header");
        return Err(Fault::new(Reason::Invalid, message));
    };
    let is_own = header.as_str().starts_with("x-forwarded-") || header == "x-request-id";
    let is_reserved = RESERVED.contains(&header) || HOP_BY_HOP.contains(&header) || is_own;
    if is_reserved && !permitted.contains(&header) {
        let message = format!("{field}: {header} has another meaning; name another header");
        return Err(Fault::new(Reason::Invalid, message));
    }
    Ok(header)
}
