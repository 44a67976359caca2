//! What patches change, and what they must not change.

use serde_json::{Value, json};

use super::*;

fn map(yaml: &str) -> Map<String, Value> {
    serde_saphyr::from_str(yaml).unwrap()
}

fn merged(patched: Patched, object: &str, patch: &str) -> Value {
    let patch = map(patch);
    let mut object = Value::Object(map(object));
    assert_eq!(check(patched, &patch), Vec::<String>::new());
    merge(patched, &mut object, &patch);
    object
}

#[test]
fn merges_maps_and_lists_by_key() {
    let object = "spec: {template: {spec: {
        containers: [{name: portcullis, image: a, resources: {limits: {memory: 1Gi}}, ports: [{containerPort: 19000}]}],
        imagePullSecrets: [{name: one}, {name: two}], dnsConfig: {nameservers: [a, b]}, hostAliases: [{ip: c, hostnames: [d]}]}}}";
    let patch = "spec: {template: {spec: {
        containers: [{name: portcullis, resources: {limits: {cpu: 2}}}, {name: other, image: b}],
        imagePullSecrets: [{name: one, $patch: delete}], dnsConfig: {nameservers: [c]}, hostAliases: null,
        runtimeClassName: gvisor}}}";
    let expected = json!({"spec": {"template": {"spec": {
        "containers": [
            {
                "name": "portcullis", "image": "a", "resources": {"limits": {"memory": "1Gi", "cpu": 2}},
                "ports": [{"containerPort": 19000}],
            },
            {"name": "other", "image": "b"},
        ],
        "imagePullSecrets": [{"name": "two"}], "dnsConfig": {"nameservers": ["c"]}, "runtimeClassName": "gvisor",
    }}}});
    assert_eq!(merged(Patched::Workload, object, patch), expected);
}

#[test]
fn directives_remove_and_replace() {
    let object = "spec: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1}}, \
        template: {spec: {imagePullSecrets: [{name: one}, {name: two}], dnsConfig: {searches: [a]}}}}";
    let patch = "spec: {strategy: {$patch: replace, type: Recreate}, \
        template: {spec: {imagePullSecrets: [{$patch: replace}, {name: three}], dnsConfig: {$patch: delete}}}}";
    let expected = json!({"spec": {
        "strategy": {"type": "Recreate"},
        "template": {"spec": {"imagePullSecrets": [{"name": "three"}]}},
    }});
    assert_eq!(merged(Patched::Workload, object, patch), expected);
}

#[test]
fn patches_the_ports_that_listeners_have() {
    let object = "spec: {ports: [{name: port-53, port: 53, protocol: TCP}, {name: udp-53, port: 53, protocol: UDP}]}";
    let patch = "spec: {ports: [{port: 53, protocol: UDP, nodePort: 30053}, {port: 19000, nodePort: 30000}], sessionAffinity: ClientIP}";
    let expected = json!({"spec": {
        "ports": [
            {"name": "port-53", "port": 53, "protocol": "TCP"},
            {"name": "udp-53", "port": 53, "protocol": "UDP", "nodePort": 30053},
        ],
        "sessionAffinity": "ClientIP",
    }});
    assert_eq!(merged(Patched::Service, object, patch), expected);
}

#[test]
fn container_of_the_proxy_may_have_mounts_and_hooks_that_run_nothing_else() {
    let object = "spec: {template: {spec: {containers: [{name: portcullis, image: a}, {name: other, image: b}]}}}";
    let patch = "spec: {template: {spec: {containers: [
        {name: portcullis, lifecycle: {preStop: {sleep: {seconds: 2}}}, volumeMounts: [{name: c, mountPath: /mnt/c}]},
        {name: other, lifecycle: {preStop: {exec: {command: [d]}}}, volumeMounts: [{name: c, mountPath: /etc/d}]}]}}}";
    let expected = json!({"spec": {"template": {"spec": {"containers": [
        {
            "name": "portcullis", "image": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
            "volumeMounts": [{"name": "c", "mountPath": "/mnt/c"}],
        },
        {
            "name": "other", "image": "b", "lifecycle": {"preStop": {"exec": {"command": ["d"]}}},
            "volumeMounts": [{"name": "c", "mountPath": "/etc/d"}],
        },
    ]}}}});
    assert_eq!(merged(Patched::Workload, object, patch), expected);
}

/// Each is a patch of `spec.template.spec`, and what its message begins with.
const REFUSED_OF_PODS: [(&str, &str); 37] = [
    (
        "{serviceAccountName: admin}",
        ".serviceAccountName belongs to the controller",
    ),
    (
        "{serviceAccountName: null}",
        ".serviceAccountName belongs to the controller",
    ),
    (
        "{automountServiceAccountToken: true}",
        ".automountServiceAccountToken is a security setting",
    ),
    (
        "{securityContext: {runAsUser: 0}}",
        ".securityContext is a security setting",
    ),
    (
        "{securityContext: null}",
        ".securityContext is a security setting",
    ),
    (
        "{hostNetwork: true}",
        ".hostNetwork is set by workload.hostNetwork",
    ),
    ("{hostPID: true}", ".hostPID is a security setting"),
    (
        "{shareProcessNamespace: true}",
        ".shareProcessNamespace is a security setting",
    ),
    ("{nodeName: one}", ".nodeName bypasses the scheduler"),
    (
        "{tolerations: [{operator: Exists}]}",
        ".tolerations is set by workload.tolerations",
    ),
    ("{containers: null}", ".containers must not be replaced: "),
    ("{containers: 5}", ".containers must be a list"),
    ("{containers: {}}", ".containers must be a list"),
    ("{containers: [a]}", ".containers must be a list of objects"),
    (
        "{containers: [{image: a}]}",
        ".containers has an element without name",
    ),
    (
        "{containers: [{$patch: replace}]}",
        ".containers must not be removed or replaced: ",
    ),
    (
        "{containers: [{name: portcullis, $patch: delete}]}",
        ".containers[portcullis] must not be removed or replaced: ",
    ),
    (
        "{containers: [{name: portcullis, $patch: replace}]}",
        ".containers[portcullis] must not be removed or replaced: ",
    ),
    (
        "{containers: [{name: portcullis, image: a}]}",
        ".containers[portcullis].image is set by workload.image",
    ),
    (
        "{containers: [{name: portcullis, args: []}]}",
        ".containers[portcullis].args belongs to the controller",
    ),
    (
        "{containers: [{name: portcullis, securityContext: {privileged: true}}]}",
        ".containers[portcullis].securityContext is a security setting",
    ),
    (
        "{containers: [{name: portcullis, env: [{name: PORTCULLIS_NODE}]}]}",
        ".containers[portcullis].env is set by",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: null}]}",
        ".containers[portcullis].volumeMounts must not be replaced",
    ),
    (
        "{containers: [{name: other, volumeMounts: [{name: state, mountPath: /a}]}]}",
        ".containers[other].volumeMounts[/a] mounts a volume that belongs to the controller",
    ),
    (
        "{initContainers: [{name: other, volumeMounts: [{name: controller, mountPath: /a}]}]}",
        ".initContainers[other].volumeMounts[/a] mounts a volume that belongs to the controller",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: [{name: a, mountPath: /var/lib/portcullis/}]}]}",
        ".containers[portcullis].volumeMounts[/var/lib/portcullis/] could hide a file of the image or a volume that belongs to the controller",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: [{name: a, mountPath: //var/./run}]}]}",
        ".containers[portcullis].volumeMounts[//var/./run] could hide ",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: [{name: a, mountPath: /mnt/../var}]}]}",
        ".containers[portcullis].volumeMounts[/mnt/../var] could hide ",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: [{name: a, mountPath: /portcullis, subPath: other}]}]}",
        ".containers[portcullis].volumeMounts[/portcullis] could hide a file of the image",
    ),
    (
        "{containers: [{name: portcullis, volumeMounts: [{name: a, mountPath: /lib/x86_64-linux-gnu}]}]}",
        ".containers[portcullis].volumeMounts[/lib/x86_64-linux-gnu] could hide a file of the image",
    ),
    (
        "{containers: [{name: portcullis, lifecycle: {postStart: {exec: {command: [/mnt/a/read]}}}}]}",
        ".containers[portcullis].lifecycle.postStart.exec would run a program that can read the token",
    ),
    (
        "{containers: [{name: portcullis, lifecycle: {preStop: {$patch: replace, exec: {command: [/mnt/a/read]}}}}]}",
        ".containers[portcullis].lifecycle.preStop.exec would run",
    ),
    (
        "{containers: [{name: portcullis, livenessProbe: {httpGet: null, exec: {command: [/mnt/a/read]}}}]}",
        ".containers[portcullis].livenessProbe.exec would run",
    ),
    (
        "{containers: [{name: portcullis, startupProbe: {httpGet: null, exec: [a]}}]}",
        ".containers[portcullis].startupProbe.exec would run",
    ),
    (
        "{volumes: [{name: state, $patch: delete}]}",
        ".volumes[state] belongs to the controller",
    ),
    (
        "{volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: token}}]}}]}",
        ".volumes[a].projected.sources has a token of the ServiceAccount that belongs to the controller",
    ),
    (
        "{volumes: [{name: controller, hostPath: {path: /}}]}",
        ".volumes[controller] belongs to the controller",
    ),
];

#[test]
fn refuses_what_pods_need_and_what_would_be_permitted_otherwise() {
    for (patch, expected) in REFUSED_OF_PODS {
        let patch = map(&format!("spec: {{template: {{spec: {patch}}}}}"));
        let wrong = check(Patched::Workload, &patch);
        let expected = format!("spec.template.spec{expected}");
        assert!(
            wrong.len() == 1 && wrong[0].starts_with(&expected),
            "{patch:?}: {wrong:?}"
        );
    }
    for (patch, expected) in [
        ("metadata: {ownerReferences: []}", "metadata belongs to"),
        ("kind: Pod", "kind belongs to"),
        ("$patch: replace", " must not be removed or replaced"),
        ("spec: null", "spec must not be replaced"),
        (
            "spec: {selector: {matchLabels: {a: b}}}",
            "spec.selector belongs to",
        ),
        ("spec: {replicas: 100}", "spec.replicas is set by"),
        (
            "spec: {template: {metadata: {labels: {a: b}}}}",
            "spec.template.metadata is set by",
        ),
        ("spec: {template: []}", "spec.template must not be replaced"),
        (
            "spec: {template: {$patch: replace}}",
            "spec.template must not be removed or replaced",
        ),
        (
            "spec: {$setElementOrder/a: []}",
            "spec.$setElementOrder/a is not supported",
        ),
        (
            "spec: {strategy: {$patch: merge}}",
            "spec.strategy.$patch is not supported",
        ),
    ] {
        let wrong = check(Patched::Workload, &map(patch));
        assert!(
            wrong.len() == 1 && wrong[0].starts_with(expected),
            "{patch}: {wrong:?}"
        );
    }
}

#[test]
fn refuses_what_leads_clients_elsewhere() {
    for (patch, expected) in [
        ("{selector: {a: b}}", "spec.selector belongs to"),
        ("{type: ExternalName}", "spec.type is set by"),
        ("{clusterIP: None}", "spec.clusterIP belongs to"),
        ("{ports: null}", "spec.ports must not be replaced"),
        (
            "{ports: [{$patch: replace}]}",
            "spec.ports must not be removed or replaced",
        ),
        (
            "{ports: [{port: 80, $patch: delete}]}",
            "spec.ports[80] belongs to the listeners",
        ),
        (
            "{ports: [{port: 80, targetPort: 19000}]}",
            "spec.ports[80].targetPort belongs to the listeners",
        ),
    ] {
        let wrong = check(Patched::Service, &map(&format!("spec: {patch}")));
        assert!(
            wrong.len() == 1 && wrong[0].starts_with(expected),
            "{patch}: {wrong:?}"
        );
    }
}

#[test]
fn differences_are_fields_without_elements() {
    let one = map(
        "spec: {template: {spec: {containers: [{name: a, image: b}, {name: c, image: d}], dnsPolicy: None}}}",
    );
    let other =
        map("spec: {template: {spec: {containers: [{name: a, image: b}], dnsPolicy: Default}}}");
    let differing: Vec<_> = differences(Patched::Workload, &one, &other)
        .into_iter()
        .collect();
    let expected = [
        "spec.template.spec.containers.image",
        "spec.template.spec.dnsPolicy",
    ];
    assert_eq!(differing, expected);
    // To leave a field of the other patch out is a difference too.
    assert_eq!(differences(Patched::Workload, &map("{}"), &other).len(), 2);
    assert!(differences(Patched::Workload, &one, &one).is_empty());
}
