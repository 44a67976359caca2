//! GatewayParameters, our kind for settings that the Gateway API leaves to implementations: the pods and the Service of
//! a Gateway. Every field is optional, so that one object can override another. Must not know defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::meta::ObjectMeta;

/// Group of our own kinds.
pub const GROUP: &str = "portcullis.dev";

/// Parameters of a Gateway, or of all Gateways of a class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GatewayParameters {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: Parameters,
}

/// Spec of [`GatewayParameters`], or several of them merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameters {
    /// The pods.
    pub workload: Workload,
    /// Autoscaling; absent means a fixed number of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Limit on voluntary evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disruption_budget: Option<DisruptionBudget>,
    /// The Service of the Gateway.
    pub service: ServiceParameters,
    /// A NetworkPolicy for the pods; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Logs.
    pub log: Log,
    /// Metrics.
    pub metrics: MetricsParameters,
    /// CIDRs of proxies whose `X-Forwarded-*` and `Forwarded` headers are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted_proxies: Option<Vec<String>>,
    /// Timeouts of connections.
    pub timeouts: Timeouts,
    /// Draining of pods that shut down.
    pub drain: Drain,
}

/// Kind of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[expect(missing_docs, reason = "Kubernetes documents each")]
pub enum WorkloadKind {
    Deployment,
    DaemonSet,
}

/// Type of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[expect(missing_docs, reason = "Kubernetes documents each")]
pub enum ServiceType {
    LoadBalancer,
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
}

/// Declares a group of optional fields that can override another such group, field by field.
macro_rules! group {
    ($(#[$about:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$attribute])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        impl $name {
            fn over(&self, defaults: Self) -> Self {
                Self { $($field: self.$field.clone().or(defaults.$field),)* }
            }
        }
    };
}

group! {
    /// The pods of a Gateway.
    Workload {
        /// Deployment by default.
        kind: WorkloadKind,
        /// Number of pods of a Deployment, 2 by default.
        replicas: u32,
        /// Whether pods use the network of their node.
        host_network: bool,
        /// Image, the controller's own by default.
        image: String,
        /// When the image is pulled.
        image_pull_policy: String,
        /// Secrets for pulling the image.
        image_pull_secrets: Vec<SecretName>,
        /// Requests and limits.
        resources: Map<String, Value>,
        /// Labels of nodes to run on.
        node_selector: BTreeMap<String, String>,
        /// Tolerated taints.
        tolerations: Vec<Value>,
        /// Topology spread; over nodes by default.
        topology_spread_constraints: Vec<Map<String, Value>>,
        /// Affinity and anti-affinity to pods.
        affinity: Map<String, Value>,
        /// Environment variables, in addition to those of the controller.
        env: Vec<EnvVariable>,
        /// Volumes, in addition to those of the controller.
        volumes: Vec<Volume>,
        /// Where the container has these volumes.
        volume_mounts: Vec<VolumeMount>,
        /// A strategic merge patch for the Deployment or DaemonSet.
        patch: Map<String, Value>,
        /// Priority class.
        priority_class_name: String,
        /// Annotations of the pods.
        annotations: BTreeMap<String, String>,
        /// Labels of the pods.
        labels: BTreeMap<String, String>,
    }
}

group! {
    /// A HorizontalPodAutoscaler.
    Autoscaling {
        /// Minimum number of pods.
        min_replicas: u32,
        /// Maximum number of pods.
        max_replicas: u32,
        /// Target CPU utilization, in percent of the request.
        #[serde(rename = "targetCPUUtilizationPercentage")]
        target_cpu: u32,
        /// How fast the number of pods changes.
        behavior: Map<String, Value>,
        /// Metrics instead of the CPU utilization.
        metrics: Vec<Map<String, Value>>,
    }
}

group! {
    /// The Service of a Gateway.
    ServiceParameters {
        /// LoadBalancer by default.
        #[serde(rename = "type")]
        kind: ServiceType,
        /// Annotations of the Service.
        annotations: BTreeMap<String, String>,
        /// Class of the load balancer.
        load_balancer_class: String,
        /// `Cluster` or `Local`.
        external_traffic_policy: String,
        /// CIDRs that the load balancer admits.
        load_balancer_source_ranges: Vec<String>,
        /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
        ip_family_policy: String,
        /// `IPv4`, `IPv6` or both.
        ip_families: Vec<String>,
        /// A strategic merge patch for each Service.
        patch: Map<String, Value>,
    }
}

group! {
    /// The NetworkPolicy of the pods.
    NetworkPolicy {
        /// Peers that may connect to the port of metrics; none by default.
        metrics_from: Vec<Map<String, Value>>,
    }
}

group! {
    /// Logs of pods.
    Log {
        /// `text` or `json`.
        format: String,
        /// Level or filter directives.
        level: String,
        /// `on` or `off`.
        access_log: String,
        /// `all`, `errors`, or a share such as `0.01`.
        access_log_filter: String,
    }
}

group! {
    /// Metrics of pods.
    MetricsParameters {
        /// Whether requests are counted by rule, and not by route.
        per_rule: bool,
        /// Labels of durations: `method` and `status-class`.
        durations_by: Vec<String>,
    }
}

group! {
    /// Timeouts of connections, each named after its flag of `portcullis run`.
    Timeouts {
        /// `--header-timeout`
        header: String,
        /// `--keep-alive-timeout`
        keep_alive: String,
        /// `--body-timeout`
        body: String,
        /// `--write-timeout`
        write: String,
        /// `--handshake-timeout`
        handshake: String,
        /// `--stream-idle-timeout`
        stream_idle: String,
        /// `--tunnel-idle-timeout`
        tunnel_idle: String,
        /// `--udp-idle-timeout`
        udp_idle: String,
        /// `--connect-timeout`
        connect: String,
        /// `--upstream-idle-timeout`
        upstream_idle: String,
    }
}

group! {
    /// Draining of pods that shut down.
    Drain {
        /// `--drain-delay`
        delay: String,
        /// `--drain-deadline`
        deadline: String,
    }
}

/// Limit on voluntary evictions: one of the two fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudget {
    /// A number or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Value>,
    /// A number or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<Value>,
}

/// An environment variable of the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct EnvVariable {
    /// Name.
    pub name: String,
    /// `value` or `valueFrom`.
    #[serde(flatten)]
    pub source: Map<String, Value>,
}

/// A volume of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// The type, as the name of the only field.
    #[serde(flatten)]
    pub source: Map<String, Value>,
}

/// A volume in the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// Name of the volume.
    pub name: String,
    /// Path in the container.
    pub mount_path: String,
    /// The other fields.
    #[serde(flatten)]
    pub options: Map<String, Value>,
}

/// Name of a Secret in the Gateway's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SecretName {
    /// Name.
    pub name: String,
}

impl Parameters {
    /// Merges these parameters over `defaults`: field by field, lists and maps as a whole.
    ///
    /// Where two fields exclude each other, a field that is set here removes the other one from the defaults.
    #[must_use]
    pub fn over(&self, mut defaults: Self) -> Self {
        let is_daemon_set = self.workload.kind == Some(WorkloadKind::DaemonSet);
        if is_daemon_set || self.workload.replicas.is_some() {
            defaults.autoscaling = None;
        }
        if is_daemon_set || self.autoscaling.is_some() {
            defaults.workload.replicas = None;
        }
        if self.autoscaling.is_some() || self.workload.replicas.is_some() {
            defaults.workload.kind = None;
        }
        let autoscaling = match (&self.autoscaling, defaults.autoscaling) {
            (Some(own), Some(mut defaults)) => {
                if own.metrics.is_some() {
                    defaults.target_cpu = None;
                }
                if own.target_cpu.is_some() {
                    defaults.metrics = None;
                }
                Some(own.over(defaults))
            }
            (own, defaults) => own.clone().or(defaults),
        };
        let budget = self.disruption_budget.clone();
        let policy = match (&self.network_policy, defaults.network_policy) {
            (Some(own), Some(defaults)) => Some(own.over(defaults)),
            (own, defaults) => own.clone().or(defaults),
        };
        let proxies = self.trusted_proxies.clone();
        Self {
            workload: self.workload.over(defaults.workload),
            autoscaling,
            disruption_budget: budget.or(defaults.disruption_budget),
            service: self.service.over(defaults.service),
            network_policy: policy,
            log: self.log.over(defaults.log),
            metrics: self.metrics.over(defaults.metrics),
            trusted_proxies: proxies.or(defaults.trusted_proxies),
            timeouts: self.timeouts.over(defaults.timeouts),
            drain: self.drain.over(defaults.drain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(yaml: &str) -> Parameters {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[track_caller]
    fn merges(own: &str, defaults: &str, expected: &str) {
        let merged = parameters(own).over(parameters(defaults));
        assert_eq!(merged, parameters(expected));
    }

    #[test]
    fn fields_override_defaults_one_by_one() {
        merges(
            "{workload: {image: a}, log: {level: debug}, autoscaling: {maxReplicas: 9}}",
            "{workload: {image: b, priorityClassName: high}, log: {format: json}, autoscaling: {minReplicas: 3}}",
            "{workload: {image: a, priorityClassName: high}, log: {format: json, level: debug}, \
              autoscaling: {minReplicas: 3, maxReplicas: 9}}",
        );
    }

    #[test]
    fn lists_and_maps_are_replaced_as_a_whole() {
        merges(
            "{workload: {nodeSelector: {a: b}}, trustedProxies: [10.0.0.0/8], service: {annotations: {}}}",
            "{workload: {nodeSelector: {c: d}}, trustedProxies: [fd00::/8], service: {annotations: {e: f}}}",
            "{workload: {nodeSelector: {a: b}}, trustedProxies: [10.0.0.0/8], service: {annotations: {}}}",
        );
        merges(
            "{networkPolicy: {}}",
            "{networkPolicy: {metricsFrom: [{podSelector: {}}]}}",
            "{networkPolicy: {metricsFrom: [{podSelector: {}}]}}",
        );
        merges(
            "{disruptionBudget: {minAvailable: 1}}",
            "{disruptionBudget: {maxUnavailable: 25%}}",
            "{disruptionBudget: {minAvailable: 1}}",
        );
        merges(
            "{metrics: {durationsBy: [method]}}",
            "{metrics: {perRule: true, durationsBy: [status-class]}}",
            "{metrics: {perRule: true, durationsBy: [method]}}",
        );
    }

    #[test]
    fn exclusive_field_removes_the_other_from_the_defaults() {
        merges(
            "{workload: {replicas: 3}}",
            "{autoscaling: {maxReplicas: 9}}",
            "{workload: {replicas: 3}}",
        );
        merges(
            "{autoscaling: {maxReplicas: 9}}",
            "{workload: {replicas: 3}}",
            "{autoscaling: {maxReplicas: 9}}",
        );
        merges(
            "{autoscaling: {metrics: [{type: External, external: {}}]}}",
            "{autoscaling: {targetCPUUtilizationPercentage: 70}}",
            "{autoscaling: {metrics: [{type: External, external: {}}]}}",
        );
        merges(
            "{autoscaling: {targetCPUUtilizationPercentage: 70}}",
            "{autoscaling: {maxReplicas: 4, metrics: [{type: External, external: {}}]}}",
            "{autoscaling: {maxReplicas: 4, targetCPUUtilizationPercentage: 70}}",
        );
        merges(
            "{workload: {kind: DaemonSet}}",
            "{workload: {replicas: 3}, autoscaling: {}}",
            "{workload: {kind: DaemonSet}}",
        );
        merges(
            "{workload: {replicas: 3}}",
            "{workload: {kind: DaemonSet, hostNetwork: true}}",
            "{workload: {replicas: 3, hostNetwork: true}}",
        );
    }
}
