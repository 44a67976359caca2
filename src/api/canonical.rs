//! Objects as JSON, with the fields that we read. Must not know how they are decoded.

use std::io;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::meta::ObjectMeta;
use super::object::Object;
use super::values::{Base64, Values};

impl Object {
    /// Returns canonical JSON with the fields that we read, `apiVersion` and `kind`.
    /// [`Kind::decode`](super::object::Kind::decode) turns it back into an equal object. For a Secret it includes the data, so it must not be logged.
    ///
    /// # Errors
    /// Never for an object that was decoded before.
    pub fn to_value(&self) -> Result<Value, serde_json::Error> {
        self.serialized(serde_json::value::Serializer)
    }

    /// Writes what [`Self::to_value`] returns, in another order of fields. Faster, since it needs no [`Value`].
    ///
    /// # Errors
    /// Like [`Self::to_value`], and when writing fails.
    pub fn write_json(&self, writer: impl io::Write) -> Result<(), serde_json::Error> {
        self.serialized(&mut serde_json::Serializer::new(writer))
    }

    fn serialized<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind();
        let (api_version, kind) = (kind.api_version(), kind.kind);
        macro_rules! typed {
            ($object:expr) => {
                Typed {
                    api_version,
                    kind,
                    object: $object,
                }
                .serialize(serializer)
            };
        }
        match self {
            Self::GatewayClass(object) => typed!(&**object),
            Self::Gateway(object) => typed!(&**object),
            Self::ListenerSet(object) => typed!(&**object),
            Self::HttpRoute(object) => typed!(&**object),
            Self::GrpcRoute(object) => typed!(&**object),
            Self::TlsRoute(object) => typed!(&**object),
            Self::TcpRoute(object) => typed!(&**object),
            Self::UdpRoute(object) => typed!(&**object),
            Self::BackendTlsPolicy(object) => typed!(&**object),
            Self::BackendTlsOverride(object) => typed!(&**object),
            Self::BackendTrafficPolicy(object) => typed!(&**object),
            Self::XBackend(object) => typed!(&**object),
            Self::ReleaseBackend(object) => typed!(&**object),
            Self::AccessPolicy(object) => typed!(&**object),
            Self::BackendPolicy(object) => typed!(&**object),
            Self::ClientPolicy(object) => typed!(&**object),
            Self::RateLimitPolicy(object) => typed!(&**object),
            Self::RoutePolicy(object) => typed!(&**object),
            Self::RouteFilter(object) => typed!(&**object),
            Self::ServiceImport(object) => typed!(&**object),
            Self::TelemetryPolicy(object) => typed!(&**object),
            Self::ReferenceGrant(object) => typed!(&**object),
            Self::GatewayParameters(object) => typed!(&**object),
            Self::Namespace(object) => typed!(&**object),
            Self::Service(object) => typed!(&**object),
            Self::Pod(object) => typed!(&**object),
            Self::EndpointSlice(object) => typed!(&**object),
            Self::ConfigMap(object) => typed!(&**object),
            Self::KeySet(object) => typed!(&**object),
            // `Secret` does not implement `Serialize`, so that nothing prints its data by accident.
            Self::Secret(object) => typed!(&SecretFields {
                metadata: &object.metadata,
                kind: &object.kind,
                data: &object.data,
                string_data: &object.string_data,
            }),
        }
    }
}

/// An object with the name of its kind.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Typed<'a, T> {
    api_version: String,
    kind: &'static str,
    #[serde(flatten)]
    object: &'a T,
}

/// The fields of a Secret.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretFields<'a> {
    metadata: &'a ObjectMeta,
    #[serde(rename = "type")]
    kind: &'a str,
    data: &'a Values<Base64>,
    string_data: &'a Values<Box<str>>,
}
