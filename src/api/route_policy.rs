//! RoutePolicy, a CRD of Portcullis: how requests are handled where their route does not say it. Its CRD is
//! deploy/crds/routepolicies.yaml.

use serde::{Deserialize, Serialize};

use super::filter::HeaderModifier;
use super::http_route::{HttpRetry, HttpTimeouts};
use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy, inherited, targets};
use super::meta::ObjectMeta;
use super::reference::{BackendObjectRef, Found, Purpose, ReferenceField, Role};

/// How requests are handled.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RoutePolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: RouteSpec,
}

/// Spec of a RoutePolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSpec {
    /// Gateways, ListenerSets and routes in the policy's namespace.
    pub target_refs: Vec<SectionTargetRef>,
    /// How it relates to policies of more specific targets.
    pub strategy: Strategy,
    /// Request bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_body: Option<RequestBody>,
    /// Timeouts of rules that set none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<RouteTimeouts>,
    /// Retries of rules that set none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<HttpRetry>,
    /// Changes of requests, before the filters of their rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_headers: Option<HeaderModifier>,
    /// Changes of responses, before the filters of their rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_headers: Option<HeaderModifier>,
    /// Compression of responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Pages in place of responses with an error status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_pages: Option<Vec<ErrorPage>>,
}

impl RouteSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        targets(&self.target_refs, found);
        for page in self.error_pages.iter().flatten() {
            if let Some(map) = &page.config_map_ref {
                let role = Role::Contents(Purpose::Texts);
                found(ReferenceField::config_map(role, &map.name));
            }
            if let Some(server) = &page.backend_ref {
                found(server.in_role(Role::Server));
            }
        }
    }
}

/// Timeouts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteTimeouts {
    /// Those that a rule of an HTTPRoute may set.
    #[serde(flatten)]
    pub of_rules: HttpTimeouts,
    /// Time without a byte in either direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle: Option<String>,
}

/// Compression of responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compression {
    /// Content codings in order of preference; all if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encodings: Option<Vec<String>>,
    /// Media types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_types: Option<Vec<String>>,
    /// Minimum size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_size: Option<Size>,
    /// Effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// A page in place of responses with an error status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorPage {
    /// Statuses, 400 to 599.
    pub codes: Vec<u16>,
    /// The responses that it replaces: `Gateway`, `Backend` or `Any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The ConfigMap that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<PagesRef>,
    /// The backend that it is fetched from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_ref: Option<BackendObjectRef>,
    /// Whether the response keeps its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_status: Option<bool>,
}

/// A ConfigMap in the namespace of the policy, with a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PagesRef {
    /// Name.
    pub name: String,
    /// The keys with the page, one for each media type.
    pub keys: Vec<PageKey>,
}

/// A key of a ConfigMap, with a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PageKey {
    /// Key.
    pub key: String,
    /// Media type of its value.
    pub media_type: String,
}

/// Request bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestBody {
    /// Maximum size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<Size>,
    /// Whether bodies are read as a whole before a backend is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<BodyBuffer>,
}

/// How bodies are read as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BodyBuffer {
    /// Maximum size.
    pub limit: Size,
}

/// A number of bytes, or a text with a unit such as `8Mi`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A quantity of Kubernetes.
    Quantity(String),
}

inherited!(RoutePolicy);
