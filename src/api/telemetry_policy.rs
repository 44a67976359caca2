//! TelemetryPolicy, a CRD of Portcullis: traces (the shape of GEP-4768) and the access log of the requests through Gateways.
//! Its CRD is deploy/crds/telemetrypolicies.yaml.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::reference::{BackendObjectRef, Found, LocalObjectReference, Role};

/// Traces and the access log of the requests through Gateways.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TelemetryPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: TelemetrySpec,
}

/// Spec of a TelemetryPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TelemetrySpec {
    /// Gateways in the policy's namespace.
    pub target_refs: Vec<LocalObjectReference>,
    /// Traces; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    /// The access log; absent means that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLog>,
}

impl TelemetrySpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        for target in &self.target_refs {
            found(target.in_role(Role::Target));
        }
        let tracing = self.tracing.iter();
        for provider in tracing.filter_map(|it| it.provider.as_ref()) {
            found(provider.backend_ref.in_role(Role::Server));
        }
    }
}

/// The access log of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessLog {
    /// `Process` (the default) or `OTLP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Which requests are logged; absent or empty means those that the options of the process say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<AccessLogFilter>,
    /// The fields of lines; absent means all known ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<AccessLogFields>,
}

/// Which requests are logged: those that reach one of the minima, and a share of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessLogFilter {
    /// Status from which on all requests are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_status: Option<u16>,
    /// Duration from which on all requests are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_duration: Option<String>,
    /// Share of the others that is logged; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Fraction>,
}

/// The fields of lines of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct AccessLogFields {
    /// Names of fields that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub omit: Vec<String>,
    /// Further fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<AddedField>,
}

/// A further field of lines of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddedField {
    /// Name.
    pub name: String,
    /// `Header`, `ResponseHeader` or `Literal`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The header, for the types `Header` and `ResponseHeader`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_name: Option<String>,
    /// The value, for the type `Literal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub literal_value: Option<String>,
}

/// Traces of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    /// `Enabled`, `Disabled` or `ImplementationDefault` (the default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The collector; absent means that nothing is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<TracingProvider>,
    /// Share of the requests without a parent span that are traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_rate: Option<Fraction>,
    /// How requests with a parent span are sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_based_sampling: Option<ParentBasedSampling>,
    /// The resource attribute `service.name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// The name of the span of a request, with names of attributes in braces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_name: Option<String>,
    /// Further attributes of the span of a request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<TraceAttribute>,
}

/// A collector of spans.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TracingProvider {
    /// `HTTP` (the default) or `GRPC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The backend.
    pub backend_ref: BackendObjectRef,
    /// Headers of requests to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ProviderHeader>,
}

/// A header of requests to a collector.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ProviderHeader {
    /// Name.
    pub name: String,
    /// Value, which may be a credential.
    pub value: String,
}

/// A share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Fraction {
    /// Numerator, 0 to the denominator.
    pub numerator: u32,
    /// Denominator, 1 or more.
    #[serde(default = "hundred")]
    pub denominator: u32,
}

const fn hundred() -> u32 {
    100
}

/// How requests with a parent span are sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentBasedSampling {
    /// `Enabled`, `Disabled` or `ImplementationDefault` (the default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Share of the requests with a sampled parent that are traced; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_rate: Option<Fraction>,
}

/// An attribute of the span of a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceAttribute {
    /// Name.
    pub name: String,
    /// `Header`, `Literal` or `Attribute`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The header, for the type `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_name: Option<String>,
    /// The value, for the type `Literal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub literal_value: Option<String>,
    /// The other attribute, for the type `Attribute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribute_name: Option<String>,
}
