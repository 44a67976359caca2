//! The core kinds that Gateways refer to: Namespace, Service, EndpointSlice, Secret, ConfigMap.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::meta::ObjectMeta;
use super::values::{Base64, Values};
use crate::ir::sharing::{Text, TextMap};

/// A Namespace. Only its labels are used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Namespace {
    /// Metadata.
    pub metadata: ObjectMeta,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Service {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ServiceSpec,
    /// Status.
    #[serde(default)]
    pub status: ServiceStatus,
}

/// Spec of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP` (the default), `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Ports.
    pub ports: Box<[ServicePort]>,
    /// Labels of its pods.
    pub selector: TextMap,
    /// Addresses within the cluster; contains only `None` if headless.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Box<[Box<str>]>,
}

/// Status of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Status of the load balancer.
    pub load_balancer: LoadBalancerStatus,
    /// Conditions.
    #[serde(skip_serializing_if = "<[ServiceCondition]>::is_empty")]
    pub conditions: Box<[ServiceCondition]>,
}

/// Type of the condition of a [`Service`] some of whose ports its load balancer does not have.
pub const PORTS_ERROR: &str = "LoadBalancerPortsError";

/// A condition of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServiceCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// The reason.
    pub reason: Text,
    /// The message.
    pub message: String,
}

/// Status of the load balancer of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Addresses.
    pub ingress: Box<[LoadBalancerIngress]>,
}

/// One address of a load balancer: an IP address or a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LoadBalancerIngress {
    /// The IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The state of its ports, if the load balancer tells it.
    #[serde(skip_serializing_if = "<[PortStatus]>::is_empty")]
    pub ports: Box<[PortStatus]>,
}

/// A port of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PortStatus {
    /// Its number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Text,
    /// Why the load balancer does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A port of a [`Service`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Name, which joins it with the ports of EndpointSlices; absent on a single unnamed port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Port of the Service.
    pub port: u16,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Text>,
    /// Application protocol, such as `kubernetes.io/h2c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Text>,
    /// Port of the pods; absent means the same number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<TargetPort>,
}

/// Port of the pods behind a Service port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// Its name, which can be a different number in each pod.
    Number(i64),
    /// Its name, which may be another number in each pod.
    Name(Text),
}

/// Label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: Text,
    /// Endpoints. An empty list may be `null`: Go serializes a nil slice so.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub endpoints: Box<[SliceEndpoint]>,
    /// Ports. An empty list may be `null`: Go serializes a nil slice so.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub ports: Box<[SlicePort]>,
}

fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Box<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// An endpoint of an [`EndpointSlice`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SliceEndpoint {
    /// Addresses of the same endpoint.
    pub addresses: Box<[Box<str>]>,
    /// State; absent fields mean ready.
    #[serde(default)]
    pub conditions: EndpointConditions,
    /// The object behind the endpoint, usually a Pod.
    #[serde(rename = "targetRef", default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<Box<TargetRef>>,
    /// The zone of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Text>,
    /// Which clients should use it. Boxed, because most endpoints have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<EndpointHints>>,
}

impl SliceEndpoint {
    /// Returns the name of the pod behind the endpoint.
    pub fn pod_name(&self) -> Option<&str> {
        let target = self.target_ref.as_ref()?;
        (target.kind == "Pod").then_some(target.name.as_str())
    }
}

/// Which clients should use an endpoint. The EndpointSlice controller sets this for Services that ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Clients in these zones.
    #[serde(
        deserialize_with = "null_as_empty",
        skip_serializing_if = "<[Hint]>::is_empty"
    )]
    pub for_zones: Box<[Hint]>,
    /// Clients on these nodes.
    #[serde(
        deserialize_with = "null_as_empty",
        skip_serializing_if = "<[Hint]>::is_empty"
    )]
    pub for_nodes: Box<[Hint]>,
}

/// A zone or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Hint {
    /// Its name.
    pub name: Text,
}

/// The object behind an endpoint, in the namespace of its EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct TargetRef {
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
}

/// State of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Accepts new traffic; absent means true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Serves, terminating or not; absent means as `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is terminating; absent means false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

impl EndpointConditions {
    /// Reports whether the endpoint gets requests.
    pub fn is_ready(&self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Reports whether the endpoint may get requests: it is ready, or it is terminating and still serves.
    pub fn may_get_requests(&self) -> bool {
        let is_serving = self.serving.unwrap_or(self.is_ready());
        self.is_ready() || self.terminating.unwrap_or(false) && is_serving
    }
}

/// A port of an [`EndpointSlice`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlicePort {
    /// Name, as in the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Port of the endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Text>,
    /// Application protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Text>,
}

/// The type of the Secrets that certificates are read from.
pub const TLS_TYPE: &str = "kubernetes.io/tls";
/// The key of Secrets and ConfigMaps with the certificates of authorities.
pub const BUNDLE: &str = "ca.crt";

/// A Secret. `Debug` omits its data.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Type, such as `kubernetes.io/tls`.
    #[serde(rename = "type", default)]
    pub kind: Text,
    /// Values, base64-encoded.
    #[serde(default)]
    pub data: Values<Base64>,
    /// Values in plain text, which win over `data`.
    #[serde(rename = "stringData", default)]
    pub string_data: Values<Box<str>>,
}

impl Secret {
    /// Returns the keys with the sizes of their values, in bytes. A key of both lists counts twice.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        let encoded = self.data.iter().map(|(key, value)| (key, value.size()));
        let plain = self.string_data.iter();
        encoded.chain(plain.map(|(key, value)| (key, value.len())))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("type", &self.kind)
            .finish_non_exhaustive()
    }
}

/// A ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ConfigMap {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Values.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}
