//! Lines of connections: their order, their fields, and what they never have.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::*;
use crate::ir::access_log::{FIELDS, IDENTITY};
use crate::ir::{ObjectRef, UpstreamProtocol};
use crate::table::UpstreamFault;

static LISTENER: LazyLock<ListenerKey> = LazyLock::new(|| ListenerKey {
    origin: ObjectRef::gateway_api("Gateway", "default", "web"),
    name: "tls".into(),
});
static RULE: LazyLock<RuleId> = LazyLock::new(|| RuleId {
    route: ObjectRef::gateway_api("TLSRoute", "default", "demo"),
    index: 1,
    name: None,
});
static BACKEND: LazyLock<BackendId> = LazyLock::new(|| BackendId {
    object: ObjectRef::new("", "Service", "default", "demo"),
    port: 443,
    tls: None,
    protocol: Some(UpstreamProtocol::Tcp),
});

fn connection(end: ConnectionEnd) -> Connection<'static> {
    Connection {
        start: Instant::now(),
        duration: Duration::from_micros(1234),
        client: "127.0.0.1:4000".parse().unwrap(),
        protocol: PortProtocol::Tls,
        port: 443,
        server_name: Some("demo.example.com"),
        listener: Some(&LISTENER),
        bytes_received: 517,
        bytes_sent: 1300,
        rule: Some(&RULE),
        backend: Some(&BACKEND),
        upstream: Some("10.0.0.1:8443".parse().unwrap()),
        end,
    }
}

fn text(connection: &Connection<'_>, log: Option<&GatewayLog>) -> String {
    let mut line = Line::default();
    let times = &mut TimestampText::default();
    let text = line.describe(1_500_000, times, connection, log);
    String::from_utf8(text.to_vec()).unwrap()
}

const FAILED: ConnectionEnd =
    ConnectionEnd::Unconnected(UpstreamFault::Connect, "cannot connect to the backend");

#[test]
fn line_is_json_in_documented_order() {
    assert_eq!(
        text(&connection(FAILED), None),
        concat!(
            r#"{"time":"1970-01-01T00:00:01.500000Z","client":"127.0.0.1:4000","protocol":"TLS","#,
            r#""server_name":"demo.example.com","listener":"Gateway default/web listener tls","port":443,"#,
            r#""duration_ms":1.234,"bytes_received":517,"bytes_sent":1300,"route":"TLSRoute default/demo","rule":1,"#,
            r#""backend":"Service default/demo:443 for TCP","upstream":"10.0.0.1:8443","end":"connect failure","#,
            r#""error":"cannot connect to the backend"}"#,
            "\n"
        )
    );
}

#[test]
fn line_has_known_fields_and_can_leave_out_all_but_the_time() {
    let names = |omit: &[&'static str]| {
        let log = GatewayLog {
            omit: omit.into(),
            ..GatewayLog::default()
        };
        let text = text(&connection(FAILED), Some(&log));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names = line.as_object().unwrap().keys().cloned();
        names.collect::<BTreeSet<_>>()
    };
    let all = names(&[]);
    let is_known = |name: &String| FIELDS.contains(&&**name);
    assert!(all.iter().all(is_known), "{all:?}");
    let mut omit = FIELDS.to_vec();
    omit.retain(|name| !IDENTITY.contains(name));
    assert_eq!(names(&omit), BTreeSet::from(["time".to_owned()]));
}

#[test]
fn server_name_is_escaped_and_cut() {
    let name = format!("\"\n\u{1b}{}", "a".repeat(300));
    let connection = Connection {
        server_name: Some(&name),
        ..connection(ConnectionEnd::NoRoute)
    };
    let expected = format!(r#""server_name":"\"\n\u001b{}…""#, "a".repeat(252));
    let text = text(&connection, None);
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn what_the_proxy_ends_itself_is_a_failure_over_tcp_only() {
    for (end, over_tcp, over_udp) in [
        (ConnectionEnd::ClosedByClient, None, None),
        (ConnectionEnd::IdleTimeout, Some("idle timeout"), None),
        (ConnectionEnd::Drain, Some("drain"), None),
        (
            ConnectionEnd::ListenerRemoved,
            Some("listener removed"),
            None,
        ),
        (
            FAILED,
            Some("cannot connect to the backend"),
            Some("cannot connect to the backend"),
        ),
    ] {
        assert_eq!(end.error(Transport::Tcp), over_tcp, "{end:?}");
        assert_eq!(end.error(Transport::Udp), over_udp, "{end:?}");
    }
}
