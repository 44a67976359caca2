//! The pod template of a Gateway: one hardened container that runs `portcullis run`.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::child_plan::{Plan, certificates_name, set};
use super::data_plane::FIRST_UNPRIVILEGED_PORT;
use crate::api::duration;
use crate::settings::{self, Settings, StreamSource};
use crate::wire::AUDIENCE;

/// File name of the controller's CA bundle.
pub(super) const CA_FILE: &str = "ca.crt";
/// File name of the token that authenticates pods to the controller.
const TOKEN_FILE: &str = "token";
/// Directory of both files.
const CONTROLLER: &str = "/var/run/portcullis/controller";
/// Lifetime of the token in seconds. The kubelet renews it in time.
const TOKEN_SECONDS: u32 = 3600;
/// Directory of the configuration copy. An in-memory volume, since the copy contains private keys.
const STATE: &str = "/var/lib/portcullis";
/// Size limit of that volume.
const STATE_LIMIT: &str = "64Mi";

/// Extra seconds of the termination grace period after the drain.
const GRACE: u64 = 5;
/// Label of a pod with the zone of its node, which Kubernetes 1.35 and later set by default.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

impl Plan<'_> {
    /// Reports whether pods bind host ports that need a capability.
    pub(super) fn needs_privileged_ports(&self) -> bool {
        let is_privileged = |port: &u16| *port < FIRST_UNPRIVILEGED_PORT;
        let mut all = self
            .data_plane
            .ports
            .iter()
            .chain(&self.data_plane.udp_ports);
        let is_permitted = self.is_on_host() && !self.data_plane.only_unprivileged_ports;
        is_permitted && all.any(is_privileged)
    }
}

/// Builds the pod template.
pub(super) fn template(plan: &Plan<'_>) -> Value {
    let workload = &plan.parameters.workload;
    let mut metadata = json!({"labels": plan.labels(workload.labels.as_ref())});
    let annotations = plan.annotations(workload.annotations.as_ref());
    set(&mut metadata, "annotations", annotations);
    json!({"metadata": metadata, "spec": spec(plan)})
}

fn spec(plan: &Plan<'_>) -> Value {
    let workload = &plan.parameters.workload;
    let mut node_selector = json!({"kubernetes.io/os": "linux"});
    for (key, value) in workload.node_selector.iter().flatten() {
        node_selector[key] = json!(value);
    }
    let mut spec = json!({
        "serviceAccountName": plan.name,
        // Pods do not use the Kubernetes API.
        "automountServiceAccountToken": false,
        // A Service whose name starts with portcullis- would add environment variables that look like settings.
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": grace(plan),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": node_selector,
        "containers": [container(plan)],
        "volumes": volumes(plan),
    });
    if plan.is_on_host() {
        set(&mut spec, "hostNetwork", Some(true));
        set(&mut spec, "dnsPolicy", Some("ClusterFirstWithHostNet"));
    }
    let secrets = workload.image_pull_secrets.as_ref();
    set(&mut spec, "imagePullSecrets", secrets);
    set(&mut spec, "tolerations", workload.tolerations.as_ref());
    set(&mut spec, "topologySpreadConstraints", spread(plan));
    set(&mut spec, "affinity", affinity(plan));
    let priority = workload.priority_class_name.as_ref();
    set(&mut spec, "priorityClassName", priority);
    spec
}

fn volumes(plan: &Plan<'_>) -> Vec<Value> {
    let own = [
        json!({
            "name": "controller",
            "projected": {"sources": [
                {"serviceAccountToken": {
                    "audience": AUDIENCE,
                    "expirationSeconds": TOKEN_SECONDS,
                    "path": TOKEN_FILE,
                }},
                {"configMap": {
                    "name": certificates_name(plan),
                    "items": [{"key": CA_FILE, "path": CA_FILE}],
                }},
            ]},
        }),
        json!({"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": STATE_LIMIT}}),
    ];
    with(own, plan.parameters.workload.volumes.as_ref())
}

/// Returns what the controller sets, and what the parameters add.
fn with<const N: usize>(own: [Value; N], added: Option<&Vec<impl Serialize>>) -> Vec<Value> {
    let added = added.into_iter().flatten().map(|one| json!(one));
    own.into_iter().chain(added).collect()
}

/// Builds the affinity. Terms without a selector select the Gateway's pods.
fn affinity(plan: &Plan<'_>) -> Option<Value> {
    let mut affinity = json!(plan.parameters.workload.affinity.as_ref()?);
    let selector = json!({"matchLabels": plan.selector()});
    for side in ["podAffinity", "podAntiAffinity"] {
        let Some(side) = affinity.get_mut(side) else {
            continue;
        };
        let lists = [
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            (
                "preferredDuringSchedulingIgnoredDuringExecution",
                "/podAffinityTerm",
            ),
        ];
        for (list, term) in lists {
            let elements = side.get_mut(list).and_then(Value::as_array_mut);
            let terms = elements.into_iter().flatten();
            let terms = terms.filter_map(|element| element.pointer_mut(term)?.as_object_mut());
            for term in terms {
                let selector = || selector.clone();
                term.entry("labelSelector").or_insert_with(selector);
            }
        }
    }
    Some(affinity)
}

/// Builds the topology spread constraints: as configured, else over nodes on a best-effort basis. Constraints without a
/// selector apply to the Gateway's pods.
fn spread(plan: &Plan<'_>) -> Option<Vec<Value>> {
    let selector = json!({"matchLabels": plan.selector()});
    let asked = &plan.parameters.workload.topology_spread_constraints;
    if let Some(asked) = asked {
        let complete = |constraint: &serde_json::Map<String, Value>| {
            let mut constraint = constraint.clone();
            constraint
                .entry("labelSelector")
                .or_insert_with(|| selector.clone());
            Value::Object(constraint)
        };
        return Some(asked.iter().map(complete).collect());
    }
    let constraint = json!({
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": selector,
        // Pods of the previous version terminate soon and do not count.
        "matchLabelKeys": ["pod-template-hash"],
    });
    (!plan.is_daemon_set()).then(|| vec![constraint])
}

fn container(plan: &Plan<'_>) -> Value {
    let workload = &plan.parameters.workload;
    let probe = |path: &str, period: u32, failures: u32, timeout: u32| {
        json!({
            "httpGet": {"path": path, "port": "admin"},
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": timeout,
        })
    };
    // docs/sizing.md: the request fits 5,000 routes, and the limit 50,000.
    let resources = json!({
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "1Gi"},
    });
    let resources = workload.resources.clone().map_or(resources, Value::Object);
    let mounts = [
        json!({"name": "controller", "mountPath": CONTROLLER, "readOnly": true}),
        json!({"name": "state", "mountPath": STATE}),
    ];
    let mut container = json!({
        "name": "portcullis",
        "image": workload.image.as_deref().unwrap_or(plan.image),
        "args": arguments(plan),
        "env": with(location(), workload.env.as_ref()),
        "ports": [
            {"name": "admin", "containerPort": Settings::ADMIN.port(), "protocol": "TCP"},
            {"name": "peers", "containerPort": StreamSource::PEERS.port(), "protocol": "TCP"},
        ],
        "resources": resources,
        "securityContext": security(plan),
        "startupProbe": probe("/healthz", 1, 60, 1),
        "livenessProbe": probe("/healthz", 10, 3, 5),
        // Kubernetes notices a probe that fails well within the drain delay. A pod that is slow because its node is busy stays ready:
        // its neighbours, which are as slow, would get its requests.
        "readinessProbe": probe("/readyz", 1, 2, 3),
        "volumeMounts": with(mounts, workload.volume_mounts.as_ref()),
    });
    let policy = workload.image_pull_policy.as_ref();
    set(&mut container, "imagePullPolicy", policy);
    container
}

/// Builds environment variables with the node of a pod and its zone. A pod without the zone label gets an empty zone.
/// Flags are not used, because images of older versions reject unknown flags.
fn location() -> [Value; 2] {
    let variable = |name: &str, path: String| {
        json!({
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": path}},
        })
    };
    [
        variable("PORTCULLIS_NODE", "spec.nodeName".to_owned()),
        variable(
            "PORTCULLIS_ZONE",
            format!("metadata.labels['{ZONE_LABEL}']"),
        ),
    ]
}

/// Drops all privileges except the capability for privileged host ports. A non-root user loses the capabilities of the
/// container when it executes a program, and Kubernetes has no ambient capabilities.
fn security(plan: &Plan<'_>) -> Value {
    let binds = plan.needs_privileged_ports();
    let mut security = json!({
        "runAsNonRoot": !binds,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    });
    if binds {
        security["runAsUser"] = json!(0);
        security["capabilities"]["add"] = json!(["NET_BIND_SERVICE"]);
    }
    security
}

fn arguments(plan: &Plan<'_>) -> Vec<String> {
    let metadata = &plan.gateway.metadata;
    let place = if plan.is_on_host() { "host" } else { "service" };
    let mut arguments = vec![
        "run".to_owned(),
        format!("--controller={}", plan.stream.url),
        format!("--gateway={}/{}", metadata.namespace, metadata.name),
        format!("--provisioned={place}"),
        format!("--controller-ca={CONTROLLER}/{CA_FILE}"),
        format!("--controller-token={CONTROLLER}/{TOKEN_FILE}"),
        format!("--state-dir={STATE}"),
        format!("--admin=[::]:{}", Settings::ADMIN.port()),
    ];
    let parameters = plan.parameters;
    let (log, timeouts, drain) = (&parameters.log, &parameters.timeouts, &parameters.drain);
    let proxies = parameters.trusted_proxies.as_ref();
    let proxies = proxies.filter(|proxies| !proxies.is_empty());
    let durations = parameters.metrics.durations_by.as_ref();
    let durations = durations.filter(|labels| !labels.is_empty());
    let flags = [
        ("log-format", &log.format),
        ("log-level", &log.level),
        ("access-log", &log.access_log),
        ("access-log-filter", &log.access_log_filter),
        (
            "metrics-durations-by",
            &durations.map(|labels| labels.join(",")),
        ),
        ("trusted-proxies", &proxies.map(|proxies| proxies.join(","))),
        ("header-timeout", &timeouts.header),
        ("keep-alive-timeout", &timeouts.keep_alive),
        ("body-timeout", &timeouts.body),
        ("write-timeout", &timeouts.write),
        ("handshake-timeout", &timeouts.handshake),
        ("stream-idle-timeout", &timeouts.stream_idle),
        ("tunnel-idle-timeout", &timeouts.tunnel_idle),
        ("udp-idle-timeout", &timeouts.udp_idle),
        ("connect-timeout", &timeouts.connect),
        ("upstream-idle-timeout", &timeouts.upstream_idle),
        ("drain-delay", &drain.delay),
        ("drain-deadline", &drain.deadline),
    ];
    if parameters.metrics.per_rule == Some(true) {
        arguments.push("--metrics-per-rule".to_owned());
    }
    let given = flags
        .into_iter()
        .filter_map(|(flag, value)| Some(format!("--{flag}={}", value.as_ref()?)));
    arguments.extend(given);
    arguments.extend_from_slice(&plan.stream.arguments);
    arguments
}

/// Returns `terminationGracePeriodSeconds`: the whole drain plus [`GRACE`].
fn grace(plan: &Plan<'_>) -> u64 {
    let parameters = &plan.parameters.drain;
    let defaults = settings::Drain::default();
    let seconds = |asked: &Option<String>, default: Duration| {
        let asked = asked.as_deref().and_then(duration::parse);
        asked.unwrap_or(default).as_millis().div_ceil(1000) as u64
    };
    seconds(&parameters.delay, defaults.delay)
        + seconds(&parameters.deadline, defaults.deadline)
        + GRACE
}
