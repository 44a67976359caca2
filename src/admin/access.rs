//! Which pages a request may have: by the addresses of its connection, the host that it names, and the token of the operator.

use std::net::IpAddr;

use http::{HeaderName, request};

use super::host;
use super::token::{Proof, TokenFile};

/// Which pages a request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Health, readiness and metrics.
    Public,
    /// As [`Self::Public`]: the connection may request all pages, but the request names another host.
    Foreign,
    /// As [`Self::Public`]: the request has a token, which is not the one of the operator.
    Denied,
    /// All pages.
    Local,
}

impl Access {
    /// Connections from loopback to loopback get full access, which includes those of `kubectl
    /// port-forward`.
    pub(super) fn of(peer: IpAddr, local: IpAddr) -> Self {
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        if is_loopback(peer) && is_loopback(local) {
            Self::Local
        } else {
            Self::Public
        }
    }

    /// The access of a request on a connection with this access.
    pub(super) async fn with(self, request: &request::Parts, token: Option<&TokenFile>) -> Self {
        if self == Self::Local && host::is_loopback(request) {
            return Self::Local;
        }
        // A browser sends a token to another site only if that site permits it.
        let proof = match token {
            Some(token) => token.verify(&request.headers).await,
            None => Proof::Nothing,
        };
        match (proof, self) {
            (Proof::Token, _) => Self::Local,
            (Proof::Wrong, Self::Public) => Self::Denied,
            (_, Self::Local) => Self::Foreign,
            (_, access) => access,
        }
    }
}

/// Reports whether a web page of another site makes a browser send the request. Such a page cannot read the response, but
/// the request would have its effect.
pub(super) fn is_cross_site(request: &request::Parts) -> bool {
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let site = request.headers.get(SITE);
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_loopback_to_loopback_is_local() {
        let access =
            |peer: &str, local: &str| Access::of(peer.parse().unwrap(), local.parse().unwrap());
        for (peer, local) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.9.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            assert_eq!(access(peer, local), Access::Local, "{peer} {local}");
        }
        for (peer, local) in [
            ("10.0.0.7", "10.0.0.8"),
            // A pod that connects to its own pod address is not an operator.
            ("10.0.0.8", "10.0.0.8"),
            ("127.0.0.1", "10.0.0.8"),
            ("10.0.0.7", "127.0.0.1"),
            ("fd00::1", "fd00::2"),
            ("::ffff:10.0.0.7", "::ffff:10.0.0.8"),
        ] {
            assert_eq!(access(peer, local), Access::Public, "{peer} {local}");
        }
    }

    #[tokio::test]
    async fn the_token_gives_any_client_what_loopback_has() {
        const TOKEN: &str = "0123456789abcdef0123456789abcdef";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, TOKEN).unwrap();
        let token = TokenFile::open(Some(file.path())).unwrap();
        let (right, wrong) = (format!("Bearer {TOKEN}"), "Bearer x".to_owned());
        for (access, host, value, expected) in [
            (Access::Public, "pod:19000", Some(&right), Access::Local),
            (Access::Public, "pod:19000", Some(&wrong), Access::Denied),
            (Access::Public, "pod:19000", None, Access::Public),
            (Access::Local, "pod:19000", Some(&right), Access::Local),
            (Access::Local, "pod:19000", Some(&wrong), Access::Foreign),
            (Access::Local, "localhost", Some(&wrong), Access::Local),
        ] {
            let mut request = Request::get("/").header("host", host);
            if let Some(value) = value {
                request = request.header("authorization", value);
            }
            let (request, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(access.with(&request, token.as_ref()).await, expected);
            let without = access.with(&request, None).await;
            let local = access == Access::Local && host == "localhost";
            assert_eq!(without == Access::Local, local, "{host}");
        }
    }

    #[test]
    fn browsers_say_that_another_site_sends_the_request() {
        let site = |site: Option<&str>| {
            let mut request = Request::get("/");
            if let Some(site) = site {
                request = request.header("sec-fetch-site", site);
            }
            is_cross_site(&request.body(()).unwrap().into_parts().0)
        };
        assert!(!site(None) && !site(Some("none")) && !site(Some("same-origin")));
        assert!(site(Some("cross-site")) && site(Some("same-site")) && site(Some("")));
    }
}
