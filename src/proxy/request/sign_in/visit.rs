//! A request as the steps of a sign-in see it, and the form of their responses. Must not know the steps.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::cookies::{self, Cookies};
use crate::filter::LocalResponse;
use crate::ir::cookie_scope::CookieScope;
use crate::proxy::error::Error;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::request::original;
use crate::proxy::request::policy_refusal::PolicyRefusal;
use crate::proxy::sign_in_fault::SignInFault;
use crate::table::Oidc;

/// A request, as the steps of a sign-in see it.
pub(super) struct Visit<'a> {
    pub(super) oidc: &'a Arc<Oidc>,
    /// Scheme of the URL of the request.
    pub(super) scheme: &'static str,
    pub(super) scope: CookieScope<'a>,
    pub(super) cookies: Cookies<'a>,
}

impl Visit<'_> {
    /// Returns what seals a cookie for a purpose.
    pub(super) fn sealing(&self, purpose: &str) -> Vec<u8> {
        self.scope.sealing(&self.oidc.ir, purpose)
    }

    /// Returns the origin of the URL of the request. One of HTTP/1.0 without a host has none: the local address, which takes
    /// its place, is nothing that clients get to know.
    pub(super) fn origin(&self, exchange: &Exchange) -> Result<String, SignInFault> {
        let origin = original::origin(&exchange.parts.headers, self.scheme);
        let origin = origin.filter(|_| !self.scope.host.is_empty());
        origin.ok_or(SignInFault::NoUrl)
    }
}

/// Why a sign-in fails, and cookies that are of no use any more.
pub(super) struct Failed {
    pub(super) fault: SignInFault,
    pub(super) cookies: Vec<HeaderValue>,
    /// After how many seconds the same request may succeed.
    pub(super) retry_after: Option<u64>,
}

impl From<SignInFault> for Failed {
    fn from(fault: SignInFault) -> Self {
        Self {
            fault,
            cookies: Vec::new(),
            retry_after: None,
        }
    }
}

impl From<SignInFault> for Box<PolicyRefusal> {
    fn from(fault: SignInFault) -> Self {
        Failed::from(fault).into()
    }
}

impl From<Failed> for Box<PolicyRefusal> {
    fn from(failed: Failed) -> Self {
        let mut headers = cookies::headers(failed.cookies);
        headers.insert(CACHE_CONTROL, NO_STORE);
        if let Some(seconds) = failed.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        Self::new(PolicyRefusal {
            headers,
            ..Error::SignIn(failed.fault).into()
        })
    }
}

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Returns a response without body.
pub(super) fn response(status: StatusCode, cookies: Vec<HeaderValue>) -> LocalResponse {
    let mut response = Response::default();
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    *headers = cookies::headers(cookies);
    headers.insert(CACHE_CONTROL, NO_STORE);
    Box::new(response)
}
