//! HTTP/3 on the side of a server, without I/O: frames, unidirectional streams, field sections of QPACK without a dynamic
//! table, and requests and responses in them. Holds of a connection no more than one field section for each request stream.

mod content_length;
mod control_stream;
mod error;
mod frame;
mod huffman;
mod message;
#[cfg(test)]
mod oracle;
mod prefix_integer;
mod priority;
mod qpack;
mod request_stream;
mod static_table;
mod streams;
#[cfg(test)]
mod tests;
mod varint;

pub(crate) use self::content_length::ContentLength;
pub(crate) use self::error::{Code, Error};
pub(crate) use self::frame::{write_control_stream, write_data_header, write_goaway};
pub(crate) use self::message::{Limits, request, trailers, write_response, write_trailers};
pub(crate) use self::priority::{USUAL_URGENCY, urgency};
pub(crate) use self::request_stream::{RequestFrame, RequestReader};
pub(crate) use self::streams::{StreamEvent, StreamReader, StreamTypes};
