//! The line of a connection or a session that is forwarded as it is: its members and their order.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::HeaderMap;

use super::added::Message;
use super::connection_end::ConnectionEnd;
use super::escape::{write_plain, write_string};
use super::line::{
    HOST_LENGTH, Line, write_excerpt, write_number, write_rule, write_sizes, write_upstream,
};
use super::omitted;
use super::time::TimestampText;
use crate::ir::{BackendId, GatewayLog, ListenerKey, PortProtocol, RuleId, Transport};
use crate::telemetry::address::write_address;

/// A connection or a session that has ended.
#[derive(Debug)]
pub struct Connection<'a> {
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub duration: Duration,
    /// Address of the client.
    pub client: SocketAddr,
    /// Protocol of its port.
    pub protocol: PortProtocol,
    /// Number of its port.
    pub port: u16,
    /// Server name of the ClientHello.
    pub server_name: Option<&'a str>,
    /// Listener, once it is known.
    pub listener: Option<&'a ListenerKey>,
    /// Bytes of the client that were forwarded.
    pub bytes_received: u64,
    /// Bytes that the client was sent.
    pub bytes_sent: u64,
    /// Rule, if one wants it.
    pub rule: Option<&'a RuleId>,
    /// Backend, if the rule has one for it.
    pub backend: Option<&'a BackendId>,
    /// Endpoint that was connected to or tried last.
    pub upstream: Option<SocketAddr>,
    /// Why it ended.
    pub end: ConnectionEnd,
}

impl Connection<'_> {
    /// The cause, if it failed.
    pub fn error(&self) -> Option<&'static str> {
        let transport = match self.protocol {
            PortProtocol::Udp => Transport::Udp,
            PortProtocol::Http | PortProtocol::Tls | PortProtocol::Tcp => Transport::Tcp,
        };
        self.end.error(transport)
    }
}

impl Line {
    /// Writes the whole line of a connection that began at `time`, in microseconds since 1970, and returns it.
    #[cold]
    pub(super) fn describe(
        &mut self,
        time: u64,
        times: &mut TimestampText,
        connection: &Connection<'_>,
        log: Option<&GatewayLog>,
    ) -> &[u8] {
        self.clear();
        let line = &mut self.text;
        line.extend_from_slice(b"{\"time\":\"");
        times.write(line, time);
        line.extend_from_slice(b"\",\"client\":\"");
        write_address(line, connection.client);
        line.extend_from_slice(b"\",\"protocol\":");
        write_plain(line, connection.protocol.name().as_bytes());
        if let Some(name) = connection.server_name {
            line.extend_from_slice(b",\"server_name\":");
            write_excerpt(line, name.as_bytes(), HOST_LENGTH);
        }
        if let Some(listener) = connection.listener {
            line.extend_from_slice(b",\"listener\":");
            write_string(line, listener.to_string().as_bytes());
        }
        line.extend_from_slice(b",\"port\":");
        write_number(line, connection.port);
        if let Some(log) = log {
            self.add(log, Message::Request, &HeaderMap::new());
        }
        write_end(&mut self.text, connection);
        if let Some(log) = log.filter(|log| !log.omit.is_empty()) {
            omitted::remove(&mut self.text, &log.omit);
        }
        &self.text
    }
}

/// Appends the members that are known at the end of a connection, and the end of the line.
#[cold]
fn write_end(line: &mut Vec<u8>, connection: &Connection<'_>) {
    let sizes = (connection.bytes_received, connection.bytes_sent);
    write_sizes(line, connection.duration, sizes);
    if let Some(rule) = connection.rule {
        write_rule(line, &rule.route, rule.index);
    }
    if let Some(backend) = connection.backend {
        line.extend_from_slice(b",\"backend\":");
        write_string(line, backend.to_string().as_bytes());
    }
    if let Some(upstream) = connection.upstream {
        write_upstream(line, upstream);
    }
    line.extend_from_slice(b",\"end\":");
    write_plain(line, connection.end.text().as_bytes());
    if let Some(error) = connection.error() {
        line.extend_from_slice(b",\"error\":");
        write_string(line, error.as_bytes());
    }
    line.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests;
