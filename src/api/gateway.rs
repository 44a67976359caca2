//! GatewayClass, Gateway, ListenerSet and ReferenceGrant as Portcullis reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::reference::{
    Found, LocalObjectReference, ObjectReference, ParentRef, Purpose, Role, SecretRef,
    gateway_group,
};
use crate::ir::sharing::Text;

/// A class of Gateways and the controller that owns them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GatewayClass {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: GatewayClassSpec,
}

/// Spec of a [`GatewayClass`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// The controller that owns Gateways of this class.
    pub controller_name: String,
    /// Parameters of all Gateways of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ObjectReference>,
}

impl GatewayClassSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        if let Some(parameters) = &self.parameters_ref {
            found(parameters.in_role(Role::Parameters));
        }
    }
}

/// A Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Gateway {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: GatewaySpec,
}

/// Spec of a [`Gateway`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Name of the Gateway's class.
    pub gateway_class_name: String,
    /// Listeners, 1 to 64.
    pub listeners: Vec<Listener>,
    /// Requested addresses. In standalone mode, the addresses to bind.
    #[serde(default)]
    pub addresses: Vec<GatewayAddress>,
    /// Infrastructure parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure: Option<Infrastructure>,
    /// Which ListenerSets may attach; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS of the whole Gateway: client certificates from clients and towards backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// `All` makes it a default Gateway; `None` is the default (GEP-3793).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_scope: Option<String>,
}

impl GatewaySpec {
    /// Visits the fields that refer to other objects, in their order.
    pub fn references(&self, found: &mut Found<'_>) {
        let infrastructure = self.infrastructure.iter();
        for parameters in infrastructure.filter_map(|it| it.parameters_ref.as_ref()) {
            found(parameters.in_role(Role::Parameters));
        }
        certificates(&self.listeners, found);
        let Some(GatewayTls { frontend, backend }) = &self.tls else {
            return;
        };
        let backend = backend.iter();
        for client in backend.filter_map(|it| it.client_certificate_ref.as_ref()) {
            found(client.in_role(Role::Contents(Purpose::Certificate)));
        }
        let configs = frontend.iter().flat_map(|it| {
            let ports = it.per_port.iter().map(|port| &port.tls);
            std::iter::once(&it.default).chain(ports)
        });
        let validations = configs.filter_map(|config| config.validation.as_ref());
        for authority in validations.flat_map(|it| &it.ca_certificate_refs) {
            found(authority.in_role(Role::Contents(Purpose::Authority)));
        }
    }
}

/// Visits the certificates of listeners.
fn certificates(listeners: &[Listener], found: &mut Found<'_>) {
    let tls = listeners.iter().filter_map(|it| it.tls.as_ref());
    for certificate in tls.flat_map(|tls| &tls.certificate_refs) {
        found(certificate.in_role(Role::Contents(Purpose::Certificate)));
    }
}

/// An entry of `spec.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GatewayAddress {
    /// `IPAddress`, `Hostname`, `NamedAddress` or a domain-prefixed type.
    #[serde(rename = "type", default = "ip_address")]
    pub kind: String,
    /// The address; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

fn ip_address() -> String {
    "IPAddress".to_owned()
}

/// `spec.infrastructure`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Infrastructure {
    /// Labels of generated objects.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations of generated objects.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Parameters of this Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<LocalObjectReference>,
}

/// `spec.allowedListeners`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct AllowedListeners {
    /// Namespaces that ListenerSets may be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<NamespacesFrom>,
}

/// Namespaces that objects may come from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct NamespacesFrom {
    /// `All`, `Selector`, `Same` or (for ListenerSets) `None`; the default depends on the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Labels of the namespaces, with `Selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A Kubernetes label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must be equal.
    pub match_labels: BTreeMap<String, String>,
    /// Expressions that must hold.
    pub match_expressions: Vec<LabelExpression>,
}

/// One requirement of a [`LabelSelector`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LabelExpression {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values of `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Name, unique in its object.
    pub name: Text,
    /// Hostname; absent or empty means every host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Port, 1 to 65535.
    pub port: u16,
    /// Protocol.
    pub protocol: Text,
    /// TLS, for HTTPS and TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Box<ListenerTls>>,
    /// Which routes may attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_routes: Option<Box<AllowedRoutes>>,
}

/// `listeners[].tls`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate` (the default) or `Passthrough`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Text>,
    /// Certificates.
    #[serde(default)]
    pub certificate_refs: Vec<SecretRef>,
    /// Options under a domain prefix.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// `listeners[].allowedRoutes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct AllowedRoutes {
    /// Namespaces that routes may be in; `Same` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<NamespacesFrom>,
    /// Route kinds; empty means all that the protocol supports.
    #[serde(default)]
    pub kinds: Vec<RouteGroupKind>,
}

/// Group and kind of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct RouteGroupKind {
    /// Group, the Gateway API's by default.
    #[serde(default = "gateway_group")]
    pub group: String,
    /// Kind.
    pub kind: String,
}

/// `spec.tls` of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GatewayTls {
    /// Validation of client certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendTls>,
    /// The Gateway's identity towards TLS backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendTls>,
}

/// `spec.tls.frontend`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendTls {
    /// Validation on every HTTPS port that `per_port` does not list.
    pub default: TlsConfig,
    /// Validation by port, which replaces the default.
    #[serde(default)]
    pub per_port: Vec<TlsPortConfig>,
}

/// Frontend TLS of one port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TlsPortConfig {
    /// Port.
    pub port: u16,
    /// TLS configuration of the port.
    pub tls: TlsConfig,
}

/// Frontend TLS configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TlsConfig {
    /// Client certificate validation; absent means that clients are not asked for a certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<FrontendValidation>,
}

/// Client certificate validation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendValidation {
    /// Certificate authorities, 1 to 16.
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `AllowValidOnly` (the default) or `AllowInsecureFallback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// `spec.tls.backend`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTls {
    /// Secret with the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<SecretRef>,
}

/// A set of listeners that attaches to a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ListenerSet {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: ListenerSetSpec,
}

/// Spec of a [`ListenerSet`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// The Gateway.
    pub parent_ref: ParentRef,
    /// Listeners, 1 to 64.
    pub listeners: Vec<Listener>,
}

impl ListenerSetSpec {
    /// Visits the fields that refer to other objects, in their order.
    pub fn references(&self, found: &mut Found<'_>) {
        found(self.parent_ref.in_role(Role::Parent));
        certificates(&self.listeners, found);
    }
}

/// Permission for references from other namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReferenceGrant {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: ReferenceGrantSpec,
}

/// Spec of a [`ReferenceGrant`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReferenceGrantSpec {
    /// Sources of references.
    pub from: Vec<GrantFrom>,
    /// Targets of references.
    pub to: Vec<GrantTo>,
}

/// Source of a granted reference.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GrantFrom {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
}

/// Target of a granted reference.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GrantTo {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; absent means every object of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
