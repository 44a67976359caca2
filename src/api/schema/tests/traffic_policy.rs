//! Schema of XBackendTrafficPolicy.

use serde_json::Value;

use super::{findings, yaml};
use crate::api::{Object, admit};

fn policy(spec: &str) -> Value {
    let target = "{group: '', kind: Service, name: a}";
    yaml(&format!(
        "{{apiVersion: gateway.networking.x-k8s.io/v1alpha1, kind: XBackendTrafficPolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}], {spec}}}}}"
    ))
}

#[test]
fn validates_fields_of_traffic_policies() {
    let rows = [
        ("", ""),
        (
            "retryConstraint: {budget: {percent: 0, interval: 1s}, minRetryRate: {count: 1, interval: 1ms}}",
            "",
        ),
        (
            "retryConstraint: {budget: {interval: 999ms}}",
            "less than one second",
        ),
        (
            "retryConstraint: {budget: {interval: 1h1ms}}",
            "greater than one hour",
        ),
        (
            "retryConstraint: {budget: {percent: 101}}",
            "less than or equal to 100",
        ),
        (
            "retryConstraint: {minRetryRate: {count: 0}}",
            "greater than or equal to 1",
        ),
        (
            "retryConstraint: {minRetryRate: {interval: 0s}}",
            "greater than one hour",
        ),
        (
            "sessionPersistence: {cookieConfig: {lifetimeType: Permanent}}",
            "AbsoluteTimeout must be specified",
        ),
        ("override: {}", "unknown field"),
    ];
    for (spec, expected) in rows {
        let found = findings(policy(spec));
        match expected {
            "" => assert!(found.is_empty(), "{spec}: {found:?}"),
            expected => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{spec}: {found:?}"
            ),
        }
    }
}

#[test]
fn retry_constraint_has_the_defaults_of_the_api() {
    let read = |spec: &str| {
        let admission = admit(policy(spec));
        let Object::BackendTrafficPolicy(policy) = admission.object.unwrap() else {
            panic!("another kind");
        };
        let constraint = policy.spec.retry_constraint.as_ref().unwrap();
        let (budget, rate) = (&constraint.budget, &constraint.min_retry_rate);
        let rate = (rate.count, rate.interval.clone());
        ((budget.percent, budget.interval.clone()), rate)
    };
    assert_eq!(
        read("retryConstraint: {}"),
        ((20, "10s".to_owned()), (10, "1s".to_owned()))
    );
    assert_eq!(
        read("retryConstraint: {budget: {percent: 5}, minRetryRate: {interval: 5s}}"),
        ((5, "10s".to_owned()), (10, "5s".to_owned()))
    );
    assert_eq!(
        read("retryConstraint: {budget: {interval: 1m}, minRetryRate: {count: 3}}"),
        ((20, "1m".to_owned()), (3, "1s".to_owned()))
    );
}
