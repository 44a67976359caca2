//! Rules of GatewayParameters.

use super::{findings, yaml};

/// Specs, and what their finding contains.
const REFUSED: &[(&str, &str)] = &[
    (
        "{autoscaling: {minReplicas: 3, maxReplicas: 2}}",
        "minReplicas must not be greater",
    ),
    (
        "{autoscaling: {}, workload: {replicas: 2}}",
        "workload.replicas and autoscaling exclude",
    ),
    (
        "{autoscaling: {}, workload: {kind: DaemonSet}}",
        "and no autoscaling",
    ),
    (
        "{workload: {kind: DaemonSet, replicas: 2}}",
        "and no replicas",
    ),
    (
        "{disruptionBudget: {maxUnavailable: 1, minAvailable: 1}}",
        "exclude each other",
    ),
    (
        "{service: {type: ClusterIP, externalTrafficPolicy: Local}}",
        "externalTrafficPolicy needs",
    ),
    (
        "{service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4, IPv6]}}",
        "two ipFamilies need",
    ),
    (
        "{service: {ipFamilies: [IPv4, IPv4]}}",
        "error spec.service.ipFamilies",
    ),
    (
        "{autoscaling: {targetCPUUtilizationPercentage: 70, metrics: [{type: Pods, pods: {}}]}}",
        "metrics and targetCPUUtilizationPercentage exclude",
    ),
    (
        "{autoscaling: {metrics: [{type: Pods, external: {}}]}}",
        "type must name the field that is set",
    ),
    (
        "{autoscaling: {metrics: [{type: Pods, pods: {}, external: {}}]}}",
        "and only one",
    ),
    (
        "{workload: {env: [{name: PORTCULLIS_NODE}]}}",
        "the controller sets PORTCULLIS_NODE",
    ),
    (
        "{workload: {env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: c}}}]}}",
        "value and valueFrom exclude",
    ),
    (
        "{workload: {env: [{name: A}, {name: A}]}}",
        "error spec.workload.env",
    ),
    (
        "{workload: {volumes: [{name: a, hostPath: {path: /}}]}}",
        "error spec.workload.volumes[0].hostPath: unknown field",
    ),
    (
        "{workload: {volumes: [{name: a, secret: {secretName: b}, emptyDir: {}}]}}",
        "and only one",
    ),
    (
        "{workload: {volumes: [{name: state, emptyDir: {}}]}}",
        "the controller sets the volumes",
    ),
    (
        "{workload: {volumeMounts: [{name: a, mountPath: /usr/bin}]}}",
        "error spec.workload.volumeMounts[0].mountPath: ",
    ),
    (
        "{workload: {volumeMounts: [{name: a, mountPath: /mnt/../usr}]}}",
        "mountPath must not contain",
    ),
    (
        "{workload: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
             [{topologyKey: a, namespaceSelector: {}}]}}}}",
        "namespaceSelector: unknown field",
    ),
    (
        "{networkPolicy: {metricsFrom: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}}",
        "a peer has an ipBlock, or else",
    ),
    (
        "{networkPolicy: {metricsFrom: [{}]}}",
        "a peer has an ipBlock, or else",
    ),
    (
        "{workload: {patch: {metadata: {name: a}}}}",
        "error spec.workload.patch.metadata: unknown field",
    ),
    (
        "{trustedProxies: [10.0.0.1]}",
        "error spec.trustedProxies[0]: ",
    ),
    (
        "{metrics: {durationsBy: [status]}}",
        "error spec.metrics.durationsBy[0]: ",
    ),
    (
        "{metrics: {durationsBy: [method, method]}}",
        "error spec.metrics.durationsBy",
    ),
    ("{timeouts: {header: 5 s}}", "error spec.timeouts.header: "),
    (
        "{workload: {replica: 2}}",
        "error spec.workload.replica: unknown field; did you mean replicas?",
    ),
];

#[test]
fn rejects_parameters_that_exclude_each_other() {
    let found = |spec: &str| {
        let found = findings(yaml(&format!(
            "{{apiVersion: portcullis.dev/v1alpha1, kind: GatewayParameters, metadata: {{name: a}}, spec: {spec}}}"
        )));
        found.join("; ")
    };
    assert_eq!(found("{}"), "");
    assert_eq!(found("{workload: {replicas: 2, hostNetwork: true}}"), "");
    for (spec, expected) in REFUSED {
        let found = found(spec);
        assert!(found.contains(expected), "{spec}: {found}");
    }
}
