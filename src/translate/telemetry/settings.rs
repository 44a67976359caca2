//! The traces of a TelemetryPolicy, and where its access log goes: parses and validates its spec. Must not know which policy
//! applies.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};

use super::value::{self, CREDENTIALS, header_name, share};
use crate::api::reference::BackendObjectRef;
use crate::api::telemetry_policy::{
    AccessLog, ProviderHeader, TelemetrySpec, TraceAttribute, Tracing as Spec, TracingProvider,
};
use crate::ir::telemetry::{
    AttributeSource, NAME_ATTRIBUTES, NamePart, OtlpProtocol, SPAN_ATTRIBUTES, SecretHeader, Share,
    Tracing,
};
use crate::ir::{BackendId, ObjectRef};
use crate::translate::reason::{Fault, all};

/// Share of the requests without a parent that are traced by default.
const DEFAULT_SAMPLING: Share = Share {
    numerator: 1,
    denominator: 100,
};

/// Headers that the exporter sets.
const OF_EXPORTER: [HeaderName; 8] = [
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
];

/// The settings of a policy that traces requests.
pub(super) struct TracingSettings {
    pub(super) backend_ref: BackendObjectRef,
    pub(super) protocol: OtlpProtocol,
    headers: Vec<SecretHeader>,
    sampling: Share,
    parent_sampling: Option<Share>,
    access_log: bool,
    service_name: Option<Arc<str>>,
    span_name: Option<Box<[NamePart]>>,
    attributes: Vec<(Arc<str>, AttributeSource)>,
}

impl TracingSettings {
    /// Returns the traces of a Gateway.
    pub(super) fn tracing(
        &self,
        policy: &ObjectRef,
        collector: &BackendId,
        gateway: &ObjectRef,
    ) -> Tracing {
        Tracing {
            policy: policy.clone(),
            collector: collector.clone(),
            protocol: self.protocol,
            headers: self.headers.clone(),
            sampling: self.sampling,
            parent_sampling: self.parent_sampling,
            access_log: self.access_log,
            service_name: self
                .service_name
                .clone()
                .unwrap_or_else(|| gateway.name.as_str().into()),
            span_name: self.span_name.clone(),
            attributes: self.attributes.clone(),
        }
    }
}

/// Validates the same as the CRD: an API server with another version of the CRD may accept other values. Returns `None`
/// if the policy traces nothing.
pub(super) fn settings(spec: &TelemetrySpec) -> Result<Option<TracingSettings>, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let TelemetrySpec {
        target_refs: _,
        tracing,
        access_log,
    } = spec;
    let is_logged = is_logged(access_log.as_ref())?;
    let provider = tracing.as_ref().and_then(|it| it.provider.as_ref());
    if is_logged && provider.is_none() {
        return value::invalid("spec.accessLog.sink", "OTLP needs spec.tracing.provider");
    }
    let Some(tracing) = tracing else {
        return Ok(None);
    };
    let Spec {
        mode,
        provider,
        sampling_rate,
        parent_based_sampling,
        service_name,
        span_name,
        attributes,
    } = tracing;
    let is_enabled = is_enabled(mode.as_deref(), "mode")?;
    let parent = parent_based_sampling.clone().unwrap_or_default();
    let of_parent = share(
        parent.sampling_rate.as_ref(),
        "spec.tracing.parentBasedSampling.samplingRate",
    )?;
    let has_parents = self::is_enabled(parent.mode.as_deref(), "parentBasedSampling.mode")?;
    let sampling = share(sampling_rate.as_ref(), "spec.tracing.samplingRate")?;
    let span_name = span_name.as_deref().map(self::span_name).transpose()?;
    let attributes = attributes.iter().enumerate().map(attribute);
    let attributes = all(attributes)?;
    let Some(provider) = provider else {
        return Ok(None);
    };
    let TracingProvider {
        protocol,
        backend_ref,
        headers,
    } = provider;
    let protocol = match protocol.as_deref() {
        None | Some("HTTP") => OtlpProtocol::Http,
        Some("GRPC") => OtlpProtocol::Grpc,
        Some(other) => {
            return invalid("provider.protocol", &format!("{other} is not HTTP or GRPC"));
        }
    };
    let headers = headers.iter().enumerate().map(provider_header);
    let settings = TracingSettings {
        backend_ref: backend_ref.clone(),
        protocol,
        headers: all(headers)?,
        // Where nothing is traced, the provider may still get the access log.
        sampling: match is_enabled {
            true => sampling.unwrap_or(DEFAULT_SAMPLING),
            false => Share::NONE,
        },
        parent_sampling: match is_enabled {
            true => has_parents.then(|| of_parent.unwrap_or(Share::ALL)),
            false => Some(Share::NONE),
        },
        access_log: is_logged,
        service_name: service_name.as_deref().map(Arc::from),
        span_name,
        attributes,
    };
    Ok((is_enabled || is_logged).then_some(settings))
}

/// Reports whether the collector gets the access log.
fn is_logged(access_log: Option<&AccessLog>) -> Result<bool, Fault> {
    match access_log.and_then(|it| it.sink.as_deref()) {
        None | Some("Process") => Ok(false),
        Some("OTLP") => Ok(true),
        Some(other) => {
            let message = format!("{other} is not Process or OTLP");
            value::invalid("spec.accessLog.sink", &message)
        }
    }
}

fn invalid<T>(field: &str, message: &str) -> Result<T, Fault> {
    value::invalid(&format!("spec.tracing.{field}"), message)
}

fn is_enabled(mode: Option<&str>, field: &str) -> Result<bool, Fault> {
    match mode {
        None | Some("Enabled" | "ImplementationDefault") => Ok(true),
        Some("Disabled") => Ok(false),
        Some(other) => {
            let message = format!("{other} is not Enabled, Disabled or ImplementationDefault");
            invalid(field, &message)
        }
    }
}

fn provider_header((index, header): (usize, &ProviderHeader)) -> Result<SecretHeader, Fault> {
    let field = format!("provider.headers[{index}]");
    let name = header_name(&header.name, &format!("spec.tracing.{field}.name"))?;
    if OF_EXPORTER.contains(&name) {
        let message = format!("{name} is set by Portcullis");
        return invalid(&format!("{field}.name"), &message);
    }
    // The value may be a credential: a message must not contain it.
    let value = HeaderValue::from_str(&header.value);
    let value = value.or_else(|_| invalid(&format!("{field}.value"), "is not a header value"))?;
    Ok(SecretHeader { name, value })
}

/// Parses the name of a span: text, and names of attributes in braces.
fn span_name(name: &str) -> Result<Box<[NamePart]>, Fault> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((text, after)) = rest.split_once('{') {
        let Some((attribute, after)) = after.split_once('}') else {
            return invalid("spanName", "a { has no }");
        };
        let Some(known) = known(attribute, &NAME_ATTRIBUTES) else {
            let permitted = NAME_ATTRIBUTES.join(", ");
            let message = format!("{{{attribute}}} is none of the permitted {permitted}");
            return invalid("spanName", &message);
        };
        parts.push(NamePart::Text(text.into()));
        parts.push(NamePart::Attribute(known));
        rest = after;
    }
    parts.push(NamePart::Text(rest.into()));
    parts.retain(|part| !matches!(part, NamePart::Text(text) if text.is_empty()));
    let is_text = |part: &NamePart| matches!(part, NamePart::Text(text) if text.contains('}'));
    match (parts.is_empty(), parts.iter().any(is_text)) {
        (true, _) => invalid("spanName", "is empty"),
        (_, true) => invalid("spanName", "a } has no {"),
        _ => Ok(parts.into()),
    }
}

fn known(name: &str, attributes: &[&'static str]) -> Option<&'static str> {
    attributes.iter().copied().find(|known| *known == name)
}

fn attribute(
    (index, attribute): (usize, &TraceAttribute),
) -> Result<(Arc<str>, AttributeSource), Fault> {
    let TraceAttribute {
        name,
        kind,
        header_name: header,
        literal_value: literal,
        attribute_name: other,
    } = attribute;
    let field = format!("attributes[{index}]");
    let source = match (kind.as_str(), header, literal, other) {
        ("Header", Some(header), None, None) => {
            let field = format!("{field}.headerName");
            let header = header_name(header, &format!("spec.tracing.{field}"))?;
            if CREDENTIALS.contains(&header) {
                let message = format!("{header} has credentials, which must not be in traces");
                return invalid(&field, &message);
            }
            AttributeSource::Header(header)
        }
        ("Literal", None, Some(literal), None) => AttributeSource::Literal(literal.as_str().into()),
        ("Attribute", None, None, Some(other)) => match known(other, &SPAN_ATTRIBUTES) {
            Some(known) => AttributeSource::Attribute(known),
            None => {
                let message = format!("{other} is no attribute of spans");
                return invalid(&format!("{field}.attributeName"), &message);
            }
        },
        _ => {
            let message = "needs type Header with headerName, Literal with literalValue, or Attribute with attributeName";
            return invalid(&field, message);
        }
    };
    Ok((name.as_str().into(), source))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(tracing: &serde_json::Value) -> String {
        let spec = json!({"targetRefs": [], "tracing": tracing});
        let spec: TelemetrySpec = serde_json::from_value(spec).unwrap();
        settings(&spec).err().unwrap().message
    }

    #[test]
    fn values_beyond_those_of_the_crd_are_refused() {
        let provider = |more: serde_json::Value| {
            let mut provider = json!({"backendRef": {"name": "c", "port": 4318}});
            let fields = provider.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            json!({ "provider": provider })
        };
        let attribute = |attribute: serde_json::Value| json!({"attributes": [attribute]});
        let cases = [
            (json!({"mode": "On"}), "mode"),
            (json!({"samplingRate": {"numerator": 101}}), "samplingRate"),
            (
                json!({"parentBasedSampling": {"mode": "Off"}}),
                "parentBasedSampling.mode",
            ),
            (provider(json!({"protocol": "UDP"})), "provider.protocol"),
            (
                provider(json!({"headers": [{"name": "host", "value": "a"}]})),
                "provider.headers[0].name",
            ),
            (
                attribute(json!({"name": "a", "type": "Header", "headerName": "Cookie"})),
                "attributes[0].headerName",
            ),
            (
                attribute(json!({"name": "a", "type": "Header"})),
                "attributes[0]",
            ),
            (
                attribute(json!({"name": "a", "type": "Attribute", "attributeName": "url.full"})),
                "attributes[0].attributeName",
            ),
            (json!({"spanName": "{url.path}"}), "spanName"),
            (json!({"spanName": "a {http.route"}), "spanName"),
            (json!({"spanName": "a} {http.route}"}), "spanName"),
            (json!({"spanName": ""}), "spanName"),
        ];
        for (tracing, field) in cases {
            let message = fault(&tracing);
            let start = format!("spec.tracing.{field}: ");
            assert!(message.starts_with(&start), "{message}");
        }
    }

    #[test]
    fn access_log_needs_a_known_sink_and_a_collector() {
        let message = |spec: serde_json::Value| {
            let spec: TelemetrySpec = serde_json::from_value(spec).unwrap();
            settings(&spec).err().unwrap().message
        };
        let sink =
            |sink: &str| json!({"accessLog": {"sink": sink}, "tracing": {"mode": "Enabled"}});
        let needed = "spec.accessLog.sink: OTLP needs spec.tracing.provider";
        assert_eq!(message(sink("OTLP")), needed);
        let unknown = "spec.accessLog.sink: Pigeon is not Process or OTLP";
        assert_eq!(message(sink("Pigeon")), unknown);
    }

    #[test]
    fn message_on_a_bad_header_does_not_contain_its_value() {
        let tracing = json!({"provider": {
            "backendRef": {"name": "c", "port": 4318},
            "headers": [{"name": "authorization", "value": "canary\n"}],
        }});
        assert!(!fault(&tracing).contains("canary"));
    }
}
