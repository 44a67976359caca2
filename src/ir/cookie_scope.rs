//! What sealed cookies of a sign-in are bound to: a policy with its provider and client, a Gateway, a listener and a host. Those
//! of another one are of no use. Pure.

use super::oidc::{CookieSettings, Oidc};
use super::{ListenerKey, ObjectRef};

/// Room for most scopes, in bytes.
const LENGTH: usize = 512;

/// What the cookies of a request are bound to, beside the policy.
#[derive(Clone, Copy, Debug)]
pub struct CookieScope<'a> {
    /// The Gateway that has got the request.
    pub gateway: &'a ObjectRef,
    /// Its listener.
    pub listener: &'a ListenerKey,
    /// The host that the request names.
    pub host: &'a str,
    /// Identifies the keys that open cookies.
    pub key: [u8; 8],
}

/// What a cookie is bound to, beside the policy.
#[derive(Debug)]
pub struct BoundTo {
    gateway: ObjectRef,
    /// The listener and the host; `None` for all of the domain that the policy names.
    place: Option<(ListenerKey, Box<str>)>,
    key: [u8; 8],
}

impl CookieScope<'_> {
    /// Reports whether browsers send cookies with these settings to the host.
    pub fn is_within(&self, settings: &CookieSettings) -> bool {
        settings.domain.as_deref().is_none_or(|domain| {
            let before = self.host.strip_suffix(domain);
            before.is_some_and(|it| it.is_empty() || it.ends_with('.'))
        })
    }

    /// Returns what seals a cookie of a policy for a purpose, beside the key. Cookies with a domain are those of all hosts and listeners of a
    /// Gateway there.
    pub fn sealing(&self, oidc: &Oidc, purpose: &str) -> Vec<u8> {
        let mut text = Text(Vec::with_capacity(LENGTH));
        text.object(self.gateway);
        match &oidc.cookie.domain {
            None => {
                text.part("listener");
                text.object(&self.listener.origin);
                text.part(&*self.listener.name);
                text.part(self.host);
            }
            Some(domain) => {
                text.part("domain");
                text.part(&**domain);
            }
        }
        text.object(&oidc.policy);
        text.part(oidc.issuer());
        text.part(&*oidc.client_id);
        let mut sealing = Text(Vec::with_capacity(LENGTH));
        sealing.part(purpose);
        sealing.part(&text.0);
        sealing.0
    }

    /// Returns what cookies with these settings are bound to.
    pub fn bound_to(&self, settings: &CookieSettings) -> BoundTo {
        let is_of_place = settings.domain.is_none();
        BoundTo {
            gateway: self.gateway.clone(),
            place: is_of_place.then(|| (self.listener.clone(), self.host.into())),
            key: self.key,
        }
    }
}

impl BoundTo {
    /// Reports whether a cookie of the same policy is of use in a scope.
    pub fn is_within(&self, scope: &CookieScope<'_>) -> bool {
        let Self {
            gateway,
            place,
            key,
        } = self;
        let is_at_place = place
            .as_ref()
            .is_none_or(|(listener, host)| (listener, &**host) == (scope.listener, scope.host));
        is_at_place && (gateway, *key) == (scope.gateway, scope.key)
    }
}

/// Text of parts that are apart.
struct Text(Vec<u8>);

impl Text {
    fn object(&mut self, object: &ObjectRef) {
        let parts = [&object.group, &object.kind, &object.namespace, &object.name];
        for part in parts {
            self.part(&**part);
        }
    }

    /// Adds a part with its length, which keeps it apart from the next one.
    fn part(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.extend_from_slice(&(part.len() as u32).to_be_bytes());
        self.0.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_domain(domain: Option<&str>) -> Oidc {
        let mut oidc = Oidc::sample();
        oidc.cookie.domain = domain.map(Into::into);
        oidc
    }

    #[test]
    fn domain_has_its_own_host_and_those_below() {
        let (gateway, listener) = place("gateway", "http");
        for (host, expected) in [
            ("example.com", true),
            ("a.example.com", true),
            ("a.b.example.com", true),
            ("badexample.com", false),
            ("com", false),
            ("example.com.evil.com", false),
        ] {
            let scope = CookieScope {
                gateway: &gateway,
                listener: &listener,
                host,
                key: [0; 8],
            };
            let settings = |domain| with_domain(domain).cookie;
            assert_eq!(scope.is_within(&settings(Some("example.com"))), expected);
            assert!(scope.is_within(&settings(None)), "{host}");
        }
    }

    fn place(gateway: &str, listener: &str) -> (ObjectRef, ListenerKey) {
        let gateway = ObjectRef::new("gateway.networking.k8s.io", "Gateway", "ns", gateway);
        let listener = ListenerKey {
            origin: gateway.clone(),
            name: listener.into(),
        };
        (gateway, listener)
    }

    #[test]
    fn cookies_are_sealed_for_their_policy_provider_and_client() {
        let (gateway, listener) = place("gateway", "http");
        let scope = CookieScope {
            gateway: &gateway,
            listener: &listener,
            host: "example.com",
            key: [0; 8],
        };
        let own = with_domain(None);
        let sealing = |oidc: &Oidc| scope.sealing(oidc, "session");
        let change = |change: fn(&mut Oidc)| {
            let mut other = own.clone();
            change(&mut other);
            sealing(&other)
        };
        for other in [
            change(|it| {
                it.policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "other")
            }),
            change(|it| {
                it.policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "other", "policy")
            }),
            change(|it| it.id_token.issuer = "https://b.example".into()),
            change(|it| it.client_id = "desk".into()),
            change(|it| it.cookie.domain = Some("example.com".into())),
        ] {
            assert_ne!(other, sealing(&own));
        }
        // Another scope of tokens, for one, ends no session.
        assert_eq!(change(|it| it.scope = "openid email".into()), sealing(&own));
    }

    /// What is remembered for a scope, and what is sealed for it with its key, agree for every pair of scopes.
    #[test]
    fn bound_cookies_are_those_that_the_same_text_seals() {
        let places = [("a", "http"), ("a", "https"), ("b", "http")].map(|(a, b)| place(a, b));
        let mut scopes = Vec::new();
        for (gateway, listener) in &places {
            for host in ["example.com", "www.example.com"] {
                for key in [[0; 8], [1; 8]] {
                    scopes.push(CookieScope {
                        gateway,
                        listener,
                        host,
                        key,
                    });
                }
            }
        }
        for domain in [None, Some("example.com")] {
            let oidc = with_domain(domain);
            for one in &scopes {
                let bound = one.bound_to(&oidc.cookie);
                let sealing = one.sealing(&oidc, "session");
                assert_ne!(sealing, one.sealing(&oidc, "login"));
                for other in &scopes {
                    let is_same =
                        sealing == other.sealing(&oidc, "session") && one.key == other.key;
                    assert_eq!(bound.is_within(other), is_same, "{one:?} {other:?}");
                }
            }
        }
    }
}
