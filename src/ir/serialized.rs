//! How values of HTTP are serialized.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Serialize, Serializer};

pub(super) fn name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

pub(super) fn optional_name<S: Serializer>(
    name: &Option<HeaderName>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    name.as_ref().map(HeaderName::as_str).serialize(serializer)
}

pub(super) fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}

pub(super) fn value<S: Serializer>(value: &HeaderValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&String::from_utf8_lossy(value.as_bytes()))
}

pub(super) fn optional_value<S: Serializer>(
    content: &Option<HeaderValue>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match content {
        Some(content) => value(content, serializer),
        None => serializer.serialize_none(),
    }
}

pub(super) fn status<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

pub(super) fn body<S: Serializer>(body: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&String::from_utf8_lossy(body))
}
