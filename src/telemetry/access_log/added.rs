//! The fields that a policy adds to a line.

use http::HeaderMap;

use super::line::Line;
use crate::ir::GatewayLog;
use crate::ir::access_log::FieldSource;

/// When the value of a further field is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// At the head of the request.
    Request,
    /// At the head of the response.
    Response,
}

impl Line {
    /// Writes the further fields that are known at the head of a message with these headers. Call at most once for each.
    pub fn add(&mut self, log: &GatewayLog, message: Message, headers: &HeaderMap) {
        for (name, source) in &log.add {
            let value = match (source, message) {
                (FieldSource::Literal(text), Message::Request) => Some(text.as_bytes()),
                (FieldSource::Header(header), Message::Request)
                | (FieldSource::ResponseHeader(header), Message::Response) => {
                    headers.get(header).map(|value| value.as_bytes())
                }
                _ => None,
            };
            if let Some(value) = value {
                self.field(name, value);
            }
        }
    }
}
