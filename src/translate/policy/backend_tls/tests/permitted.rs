//! Permissions of the operator: a forbidden policy never reduces the protection of a request.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::ir::tls::Authorities;
use crate::settings::permissions::{InsecureBackend, Permissions, PolicyLevel};

/// What happens to requests, the least protected first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Protection {
    PlainText,
    Unverified,
    Pinned,
    Verified,
    Refused,
}

const ASKED: [Protection; 5] = [
    Protection::PlainText,
    Protection::Unverified,
    Protection::Pinned,
    Protection::Verified,
    // Because of an invalid policy.
    Protection::Refused,
];

const LEVELS: [PolicyLevel; 5] = [
    PolicyLevel::Route,
    PolicyLevel::ListenerSet,
    PolicyLevel::Gateway,
    PolicyLevel::Consumer,
    PolicyLevel::Producer,
];

const INSECURE: [InsecureBackend; 3] = [
    InsecureBackend::None,
    InsecureBackend::PinsOnly,
    InsecureBackend::SkipVerify,
];

/// Returns the level of a candidate. Routes and ListenerSets have two candidates each, with and without section.
fn level(candidate: usize) -> PolicyLevel {
    [0, 0, 1, 1, 2, 3, 4].map(|index: usize| LEVELS[index])[candidate / 2]
}

/// Returns a policy with these settings.
fn asking(candidate: usize, name: &str, asked: Protection) -> Value {
    let tls = |rest: Value| {
        let mut validation = json!({"hostname": "app.example.com"});
        for (field, value) in rest.as_object().unwrap() {
            validation[field] = value.clone();
        }
        json!({"validation": validation})
    };
    let pin = format!("sha256/{}=", "A".repeat(43));
    let spec = match asked {
        Protection::PlainText => json!({"mode": "None"}),
        Protection::Unverified => tls(json!({"insecureSkipVerify": true})),
        Protection::Pinned => tls(json!({"pins": [pin]})),
        Protection::Verified => tls(json!({"wellKnownCACertificates": "System"})),
        Protection::Refused => tls(json!({})),
    };
    let (namespace, target) = &candidates()[candidate];
    with_spec(name, namespace, target, spec)
}

fn protection(policies: &[Value], permissions: &Permissions) -> Protection {
    let options = Options {
        permissions: permissions.clone(),
        ..Options::default()
    };
    with_requests(policies, &options, |known, service, requests| {
        match known.decide(service, Some("https"), UpstreamProtocol::Http1, requests) {
            Decision::Plain(_) => Protection::PlainText,
            Decision::Refused(_) => Protection::Refused,
            Decision::Tls(_, tls) => {
                let verification = &tls.verification;
                match (&verification.authorities, verification.pins.is_empty()) {
                    (Authorities::Unverified, true) => Protection::Unverified,
                    (Authorities::Unverified, false) => Protection::Pinned,
                    _ => Protection::Verified,
                }
            }
        }
    })
}

fn is_permitted(candidate: usize, asked: Protection, permissions: &Permissions) -> bool {
    let Permissions {
        insecure_backend,
        backend_tls_floor,
        ..
    } = *permissions;
    let is_at_floor = level(candidate) >= backend_tls_floor;
    match asked {
        Protection::PlainText => is_at_floor,
        Protection::Unverified => is_at_floor && insecure_backend == InsecureBackend::SkipVerify,
        Protection::Pinned => is_at_floor && insecure_backend != InsecureBackend::None,
        Protection::Verified | Protection::Refused => true,
    }
}

#[test]
fn floor_applies_at_every_level() {
    for candidate in 0..candidates().len() {
        for backend_tls_floor in LEVELS {
            for insecure_backend in INSECURE {
                let permissions = Permissions {
                    insecure_backend,
                    backend_tls_floor,
                    ..Permissions::default()
                };
                for asked in ASKED {
                    // Every level permits the next policy.
                    let next = asking(13, "next", Protection::Verified);
                    let policies = [asking(candidate, "asked", asked), next];
                    let is_permitted = is_permitted(candidate, asked, &permissions);
                    let expected = match asked {
                        _ if is_permitted => asked,
                        Protection::PlainText => Protection::Verified,
                        _ => Protection::Refused,
                    };
                    let found = protection(&policies, &permissions);
                    let (level, what) = (level(candidate), (asked, &permissions));
                    assert_eq!(found, expected, "{level}: {what:?}");
                }
            }
        }
    }
}

#[test]
fn forbidden_tls_does_not_become_plain_text() {
    let permissions = Permissions {
        backend_tls_floor: PolicyLevel::Gateway,
        ..Permissions::default()
    };
    for asked in [Protection::Unverified, Protection::Pinned] {
        for candidate in 0..candidates().len() {
            let alone = [asking(candidate, "asked", asked)];
            assert_eq!(protection(&alone, &permissions), Protection::Refused);
        }
    }
}

fn permissions() -> impl Strategy<Value = Permissions> {
    let parts = (select(INSECURE.to_vec()), select(LEVELS.to_vec()));
    parts.prop_map(|(insecure_backend, backend_tls_floor)| Permissions {
        insecure_backend,
        backend_tls_floor,
        ..Permissions::default()
    })
}

fn any_policy() -> impl Strategy<Value = (usize, Protection)> {
    (0..14_usize, select(ASKED.to_vec()))
}

proptest! {
    #[test]
    fn forbidden_policy_never_reduces_protection(
        others in vec(any_policy(), 0..6),
        (candidate, asked) in any_policy(),
        permissions in permissions(),
    ) {
        prop_assume!(!is_permitted(candidate, asked, &permissions));
        let policies = others.iter().enumerate();
        let mut policies: Vec<_> = policies
            .map(|(index, (candidate, asked))| asking(*candidate, &named(index), *asked))
            .collect();
        let before = protection(&policies, &permissions);
        policies.push(asking(candidate, "added", asked));
        let after = protection(&policies, &permissions);
        prop_assert!(after >= before, "{before:?} became {after:?}");
        // Nothing is less protected than plain text, so a policy for it can be passed over.
        if asked == Protection::PlainText {
            prop_assert_eq!(after, before);
        }
    }

    #[test]
    fn no_policy_weakens_tls_at_a_more_specific_level_than_the_floor(
        policies in vec(any_policy(), 1..6),
        permissions in permissions(),
    ) {
        let values = policies.iter().enumerate();
        let values: Vec<_> = values
            .map(|(index, (candidate, asked))| asking(*candidate, &named(index), *asked))
            .collect();
        let found = protection(&values, &permissions);
        let is_asked_for = policies.iter().any(|(candidate, asked)| {
            *asked == found && is_permitted(*candidate, *asked, &permissions)
        });
        let is_tls_asked_for = policies.iter().any(|(_, asked)| *asked > Protection::PlainText);
        match found {
            // Without a policy that selects them, requests are sent in plain text.
            Protection::PlainText => prop_assert!(is_asked_for || !is_tls_asked_for),
            Protection::Refused => {}
            _ => prop_assert!(is_asked_for),
        }
    }
}
