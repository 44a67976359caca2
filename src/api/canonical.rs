//! Objects as JSON, with the fields that we read. Must not know how they are decoded.

use std::io;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::core::Secret;
use super::kind::kinds;
use super::meta::ObjectMeta;
use super::object::{Kind, Object};
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
}

/// Implements `serialized`, which writes the object of any variant.
macro_rules! serialized {
    ($($objects:ident: $module:ident::$type:ident $facts:tt,)+) => {
        impl Object {
            fn serialized<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$type(object) => object.as_ref().write(self.kind(), serializer),)+
                }
            }
        }
    };
}
kinds!(serialized);

/// An object that can be written with the name of its kind.
trait Canonical {
    fn write<S: Serializer>(&self, kind: &Kind, serializer: S) -> Result<S::Ok, S::Error>;
}

impl<T: Serialize> Canonical for T {
    fn write<S: Serializer>(&self, kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        let typed = Typed {
            api_version: kind.api_version(),
            kind: kind.kind,
            object: self,
        };
        typed.serialize(serializer)
    }
}

// `Secret` does not implement `Serialize`, so that nothing prints its data by accident.
impl Canonical for Secret {
    fn write<S: Serializer>(&self, kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = SecretFields {
            metadata: &self.metadata,
            kind: &self.kind,
            data: &self.data,
            string_data: &self.string_data,
        };
        fields.write(kind, serializer)
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
