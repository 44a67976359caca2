//! The messages of ext_proc as a picker sees them, with field numbers of their own.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(message, optional, tag = "2")]
    pub(crate) request_headers: Option<Head>,
    #[prost(message, optional, tag = "3")]
    pub(crate) response_headers: Option<Head>,
    #[prost(message, optional, tag = "4")]
    pub(crate) request_body: Option<Body>,
    #[prost(message, optional, tag = "5")]
    pub(crate) response_body: Option<Body>,
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "11")]
    pub(crate) config: Option<Config>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Head {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<Headers>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Headers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Body {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) filters: BTreeMap<String, Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(string, optional, tag = "3")]
    pub(crate) text: Option<String>,
    #[prost(message, optional, boxed, tag = "5")]
    pub(crate) part: Option<Box<Struct>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Config {
    #[prost(int32, tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub(crate) response_body_mode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) request_headers: Option<Common>,
    #[prost(message, optional, tag = "2")]
    pub(crate) response_headers: Option<Common>,
    #[prost(message, optional, tag = "3")]
    pub(crate) request_body: Option<Common>,
    #[prost(message, optional, tag = "4")]
    pub(crate) response_body: Option<Common>,
    #[prost(message, optional, tag = "7")]
    pub(crate) immediate: Option<Immediate>,
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Common {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<Changes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Changes {
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderChanges>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body: Option<BodyChange>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderChanges {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set: Vec<SetHeader>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetHeader {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BodyChange {
    #[prost(message, optional, tag = "3")]
    pub(crate) streamed: Option<Body>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Immediate {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderChanges>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

impl Head {
    /// Returns the values of a header.
    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        let all = self.headers.iter().flat_map(|headers| &headers.headers);
        let named = all.filter(|header| header.key == name);
        named
            .map(|header| String::from_utf8_lossy(&header.raw_value).into_owned())
            .collect()
    }
}

impl Request {
    /// Returns the endpoint that responded, by its metadata.
    pub(crate) fn served(&self) -> Option<String> {
        let part = self.metadata.as_ref()?.filters.get("envoy.lb")?;
        let value = part.fields.get("x-gateway-destination-endpoint-served")?;
        value.text.clone()
    }
}

/// Returns changes that set these headers.
pub(crate) fn set(headers: &[(&str, &str)]) -> HeaderChanges {
    let set = headers.iter().map(|(name, value)| SetHeader {
        header: Some(Header {
            key: name.to_string(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        }),
    });
    HeaderChanges {
        set: set.collect(),
        remove: Vec::new(),
    }
}

/// Returns the answer to a head.
pub(crate) fn head_answer(headers: HeaderChanges) -> Common {
    Common {
        response: Some(Changes {
            headers: Some(headers),
            body: None,
        }),
    }
}

/// Returns the answer to a body.
pub(crate) fn body_answer(body: Bytes, end_of_stream: bool) -> Common {
    let streamed = Body {
        body,
        end_of_stream,
    };
    Common {
        response: Some(Changes {
            headers: None,
            body: Some(BodyChange {
                streamed: Some(streamed),
            }),
        }),
    }
}

/// Returns a response of the picker itself.
pub(crate) fn immediate(code: i32) -> Response {
    Response {
        immediate: Some(Immediate {
            status: Some(Status { code }),
            headers: Some(set(&[("x-picker", "shed"), ("content-length", "1")])),
            body: Bytes::from_static(b"shed"),
        }),
        ..Response::default()
    }
}

/// Returns metadata with a choice.
pub(crate) fn choice_metadata(list: &str) -> Struct {
    let text = |text: &str| Value {
        text: Some(text.to_owned()),
        part: None,
    };
    let part = Struct {
        fields: [("x-gateway-destination-endpoint".to_owned(), text(list))].into(),
    };
    let part = Value {
        text: None,
        part: Some(Box::new(part)),
    };
    Struct {
        fields: [("envoy.lb".to_owned(), part)].into(),
    }
}
