//! The messages of `envoy.service.ext_proc.v3.ExternalProcessor`, with only the fields that the proxy uses. Unknown fields
//! are skipped, so that a picker may send more.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// `FULL_DUPLEX_STREAMED` of `envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode`.
pub(super) const FULL_DUPLEX_STREAMED: i32 = 4;
/// Maximum bytes of the changes of a head, and of metadata: decoded, they may take some forty times as much. Also the maximum
/// memory of such changes: as much as a head may have itself by default.
const MAX_CHANGES: usize = 64 * 1024;

/// `envoy.service.ext_proc.v3.ProcessingRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingRequest {
    #[prost(oneof = "Sent", tags = "2, 3, 4, 5")]
    pub(super) sent: Option<Sent>,
    #[prost(message, optional, tag = "8")]
    pub(super) metadata_context: Option<Metadata>,
    /// Of the first message.
    #[prost(message, optional, tag = "11")]
    pub(super) protocol_config: Option<ProtocolConfiguration>,
}

/// `envoy.service.ext_proc.v3.ProcessingRequest.request`.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Sent {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
}

/// `envoy.service.ext_proc.v3.ProtocolConfiguration`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub(super) request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub(super) response_body_mode: i32,
    #[prost(bool, tag = "3")]
    pub(super) send_body_without_waiting_for_header_response: bool,
}

/// `envoy.service.ext_proc.v3.HttpHeaders`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(super) headers: Option<HeaderList>,
    #[prost(bool, tag = "3")]
    pub(super) end_of_stream: bool,
}

/// `envoy.service.ext_proc.v3.HttpBody`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(super) end_of_stream: bool,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderList {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<Header>,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) raw_value: Bytes,
}

/// `envoy.config.core.v3.Metadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) filter_metadata: BTreeMap<String, Struct>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(oneof = "Kind", tags = "3, 5")]
    pub(super) kind: Option<Kind>,
}

/// `google.protobuf.Value.kind`.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Kind {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "5")]
    Struct(Struct),
}

/// `envoy.service.ext_proc.v3.ProcessingResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingResponse {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(super) answer: Option<Answer>,
    /// A [`Struct`], which is decoded only where it is used.
    #[prost(bytes = "bytes", tag = "8")]
    pub(super) dynamic_metadata: Bytes,
}

/// `envoy.service.ext_proc.v3.ProcessingResponse.response`.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Answer {
    #[prost(message, tag = "1")]
    RequestHeaders(CommonAnswer),
    #[prost(message, tag = "2")]
    ResponseHeaders(CommonAnswer),
    #[prost(message, tag = "3")]
    RequestBody(CommonAnswer),
    #[prost(message, tag = "4")]
    ResponseBody(CommonAnswer),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersAnswer),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersAnswer),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `envoy.service.ext_proc.v3.HeadersResponse` and `BodyResponse`, which have the same form.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CommonAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) response: Option<CommonResponse>,
}

/// `envoy.service.ext_proc.v3.TrailersResponse`, of which nothing is used: trailers are not sent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrailersAnswer {}

/// `envoy.service.ext_proc.v3.CommonResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CommonResponse {
    /// 1 replaces the body by one that is in the same message.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    /// A [`HeaderMutation`], which is decoded only where it is used.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) header_mutation: Bytes,
    #[prost(message, optional, tag = "3")]
    pub(super) body_mutation: Option<BodyMutation>,
}

/// `envoy.service.ext_proc.v3.HeaderMutation`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(super) set_headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "2")]
    pub(super) remove_headers: Vec<String>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<BoolValue>,
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}

/// `envoy.service.ext_proc.v3.BodyMutation`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BodyMutation {
    #[prost(oneof = "Body", tags = "1, 2, 3")]
    pub(super) body: Option<Body>,
}

/// `envoy.service.ext_proc.v3.BodyMutation.mutation`.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Body {
    /// Of another mode.
    #[prost(bytes = "bytes", tag = "1")]
    Whole(Bytes),
    /// Of another mode.
    #[prost(bool, tag = "2")]
    Clear(bool),
    #[prost(message, tag = "3")]
    Streamed(HttpBody),
}

/// `envoy.service.ext_proc.v3.ImmediateResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    /// A [`HeaderMutation`], which is decoded only where it is used.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) headers: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) body: Bytes,
    /// Of a call instead of the status.
    #[prost(message, optional, tag = "4")]
    pub(super) grpc_status: Option<GrpcStatus>,
}

/// `envoy.service.ext_proc.v3.GrpcStatus`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GrpcStatus {
    #[prost(uint32, tag = "1")]
    pub(super) status: u32,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// Decodes a part of a message. `None` if it is malformed or too large.
fn decoded<M: Message + Default>(part: Bytes) -> Option<M> {
    if part.len() > MAX_CHANGES {
        return None;
    }
    M::decode(part).ok()
}

impl ProcessingResponse {
    /// Reports whether it answers anything. An empty part of a body does not, nor an answer to trailers, which are not sent.
    pub(super) fn is_answer(&self) -> bool {
        match &self.answer {
            Some(Answer::RequestHeaders(_) | Answer::ResponseHeaders(_) | Answer::Immediate(_)) => {
                true
            }
            Some(Answer::RequestBody(it) | Answer::ResponseBody(it)) => !it.is_empty_part(),
            Some(Answer::RequestTrailers(_) | Answer::ResponseTrailers(_)) | None => false,
        }
    }
}

impl CommonAnswer {
    fn is_empty_part(&self) -> bool {
        let response = self.response.as_ref();
        let body = response.and_then(|it| it.body_mutation.as_ref()?.body.as_ref());
        matches!(body, Some(Body::Streamed(part)) if part.body.is_empty() && !part.end_of_stream)
    }
}

impl HeaderMutation {
    /// Decodes changes. `None` if they are malformed or too large.
    pub(super) fn read(part: Bytes) -> Option<Self> {
        decoded(part).filter(|changes: &Self| changes.size() <= MAX_CHANGES)
    }

    /// Returns the memory of the changes.
    fn size(&self) -> usize {
        let set = self.set_headers.iter().map(|option| {
            let header = option.header.as_ref();
            let text = header.map_or(0, |it| it.key.len() + it.value.len() + it.raw_value.len());
            size_of::<HeaderOption>() + text
        });
        let removed = self.remove_headers.iter();
        let removed = removed.map(|name| size_of::<String>() + name.len());
        set.sum::<usize>() + removed.sum::<usize>()
    }

    /// Copies values, which otherwise keep the whole message allocated that they came in.
    pub(super) fn detach(&mut self) {
        self.set_headers.shrink_to_fit();
        self.remove_headers.shrink_to_fit();
        let options = self.set_headers.iter_mut();
        for header in options.filter_map(|option| option.header.as_mut()) {
            header.raw_value = Bytes::copy_from_slice(&header.raw_value);
        }
    }
}

impl Value {
    /// A string.
    pub(super) fn text(text: String) -> Self {
        Self {
            kind: Some(Kind::Text(text)),
        }
    }
}

impl Struct {
    /// Decodes metadata. `None` if it is malformed or too large.
    pub(super) fn read(part: Bytes) -> Option<Self> {
        decoded(part)
    }

    /// Returns a field that is a string.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.fields.get(name)?.kind.as_ref()? {
            Kind::Text(text) => Some(text),
            Kind::Struct(_) => None,
        }
    }

    /// Returns a field that has fields.
    pub(super) fn part(&self, name: &str) -> Option<&Self> {
        match self.fields.get(name)?.kind.as_ref()? {
            Kind::Struct(part) => Some(part),
            Kind::Text(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(message: &impl Message) -> Vec<u8> {
        message.encode_to_vec()
    }

    /// Bytes that follow the numbers of the fields in the definition of the protocol, written by hand.
    #[test]
    fn messages_have_the_field_numbers_of_the_protocol() {
        let header = Header {
            key: "a".to_owned(),
            value: String::new(),
            raw_value: Bytes::from_static(b"b"),
        };
        let headers = HttpHeaders {
            headers: Some(HeaderList {
                headers: vec![header],
            }),
            end_of_stream: true,
        };
        let mut request = ProcessingRequest {
            sent: Some(Sent::RequestHeaders(headers)),
            metadata_context: None,
            protocol_config: Some(ProtocolConfiguration {
                request_body_mode: FULL_DUPLEX_STREAMED,
                response_body_mode: FULL_DUPLEX_STREAMED,
                send_body_without_waiting_for_header_response: true,
            }),
        };
        let head = b"\x12\x0c\x0a\x08\x0a\x06\x0a\x01a\x1a\x01b\x18\x01";
        let config = b"\x5a\x06\x08\x04\x10\x04\x18\x01";
        assert_eq!(bytes(&request), [&head[..], config].concat());
        request.protocol_config = None;
        request.sent = Some(Sent::ResponseBody(HttpBody {
            body: Bytes::from_static(b"x"),
            end_of_stream: true,
        }));
        assert_eq!(bytes(&request), b"\x2a\x05\x0a\x01x\x10\x01");
        let served = Struct {
            fields: [("k".to_owned(), Value::text("v".to_owned()))].into(),
        };
        let metadata = Metadata {
            filter_metadata: [("n".to_owned(), served)].into(),
        };
        // Field 1, an entry of a map: a key and a Struct, whose field 1 is an entry with a Value, whose field 3 is a string.
        let expected = b"\x0a\x0f\x0a\x01n\x12\x0a\x0a\x08\x0a\x01k\x12\x03\x1a\x01v";
        assert_eq!(bytes(&metadata), expected);
    }

    #[test]
    fn answers_are_read_with_unknown_fields() {
        let answer = |data: &'static [u8]| ProcessingResponse::decode(data).unwrap().answer;
        // request_body { response { body_mutation { streamed_response { body: "x" end_of_stream: true } } } }
        let read = answer(b"\x1a\x0b\x0a\x09\x1a\x07\x1a\x05\x0a\x01x\x10\x01");
        let Some(Answer::RequestBody(CommonAnswer {
            response: Some(response),
        })) = read
        else {
            panic!("{read:?}");
        };
        let streamed = HttpBody {
            body: Bytes::from_static(b"x"),
            end_of_stream: true,
        };
        let body = response.body_mutation.unwrap().body;
        assert_eq!(body, Some(Body::Streamed(streamed)));
        // immediate_response { status { code: 429 } grpc_status { status: 8 } details: "d" }
        let read = answer(b"\x3a\x0c\x0a\x03\x08\xad\x03\x22\x02\x08\x08\x2a\x01d");
        let Some(Answer::Immediate(immediate)) = read else {
            panic!("{read:?}");
        };
        assert_eq!(immediate.status, Some(HttpStatus { code: 429 }));
        assert_eq!(immediate.grpc_status, Some(GrpcStatus { status: 8 }));
        // An unknown oneof and a mode_override.
        assert_eq!(answer(b"\x5a\x00\x4a\x02\x08\x01"), None);
    }

    #[test]
    fn messages_that_say_nothing_are_no_answers() {
        let is_answer = |data: &'static [u8]| ProcessingResponse::decode(data).unwrap().is_answer();
        // request_headers {}, immediate_response {}, a body with a byte, the end of a body, and a body of another mode.
        for data in [
            &b"\x0a\x00"[..],
            b"\x3a\x00",
            b"\x1a\x09\x0a\x07\x1a\x05\x1a\x03\x0a\x01x",
            b"\x22\x08\x0a\x06\x1a\x04\x1a\x02\x10\x01",
            b"\x22\x00",
        ] {
            assert!(is_answer(data), "{data:?}");
        }
        // No answer, request_trailers {}, and an empty part of a body.
        for data in [&b""[..], b"\x2a\x00", b"\x1a\x06\x0a\x04\x1a\x02\x1a\x00"] {
            assert!(!is_answer(data), "{data:?}");
        }
    }

    #[test]
    fn changes_and_metadata_are_decoded_only_if_their_bytes_are_few() {
        // request_headers { response { header_mutation { malformed } } }, and malformed metadata.
        let data = b"\x0a\x06\x0a\x04\x12\x02\xff\xff\x42\x02\xff\xff";
        let read = ProcessingResponse::decode(&data[..]).unwrap();
        assert_eq!(Struct::read(read.dynamic_metadata), None);
        let Some(Answer::RequestHeaders(CommonAnswer {
            response: Some(response),
        })) = read.answer
        else {
            panic!("{:?}", read.answer);
        };
        assert_eq!(HeaderMutation::read(response.header_mutation), None);
        // set_headers {}
        let changes = |count: usize| HeaderMutation::read(b"\x0a\x00".repeat(count).into());
        let most = MAX_CHANGES / size_of::<HeaderOption>();
        let read = changes(most).map(|changes| changes.set_headers.len());
        assert_eq!(read, Some(most));
        for count in [most + 1, MAX_CHANGES] {
            assert_eq!(changes(count), None, "{count}");
        }
        // fields {}, which are the same one.
        let metadata = |count: usize| Struct::read(b"\x0a\x00".repeat(count).into());
        assert!(metadata(MAX_CHANGES / 2).is_some());
        assert_eq!(metadata(MAX_CHANGES / 2 + 1), None);
        assert_eq!(HeaderMutation::read(Bytes::new()).unwrap().size(), 0);
    }

    #[test]
    fn detached_changes_are_equal_and_have_memory_of_their_own() {
        // set_headers { header { key: "a" raw_value: "b" } } set_headers {} remove_headers: "cd"
        let data = b"\x0a\x08\x0a\x06\x0a\x01a\x1a\x01b\x0a\x00\x12\x02cd";
        let data = Bytes::copy_from_slice(data);
        let read = HeaderMutation::decode(data.clone()).unwrap();
        let mut kept = read.clone();
        kept.detach();
        assert_eq!(kept, read);
        let size = 2 * size_of::<HeaderOption>() + size_of::<String>() + 4;
        assert_eq!((kept.size(), read.size()), (size, size));
        drop(read);
        assert!(data.try_into_mut().is_ok(), "the message is not held");
    }

    #[test]
    fn metadata_of_other_types_is_skipped() {
        // fields { "a": number 1, "b": "t" }
        let data = b"\x0a\x0e\x0a\x01a\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x3f\x0a\x08\x0a\x01b\x12\x03\x1a\x01t";
        let read = Struct::decode(&data[..]).unwrap();
        assert_eq!((read.text("a"), read.text("b")), (None, Some("t")));
        assert_eq!(read.part("b"), None);
    }
}
