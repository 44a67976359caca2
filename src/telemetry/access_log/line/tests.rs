//! Lines: their order, their format, and what they never have.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;
use crate::ir::access_log::{FIELDS, IDENTITY};

/// The fields that only lines of connections have.
const OF_CONNECTIONS: [&str; 5] = ["server_name", "listener", "port", "backend", "end"];

const CLIENT: &str = "127.0.0.1:4000";

fn begun(path: &str) -> Line {
    let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
    let mut line = Line::default();
    line.begin(1_500_000, &mut TimestampText::default(), CLIENT, &parts);
    line
}

static ROUTE: LazyLock<ObjectRef> =
    LazyLock::new(|| ObjectRef::gateway_api("HTTPRoute", "default", "demo"));

#[test]
fn lines_have_the_version_of_the_request() {
    for (version, expected) in [
        (http::Version::HTTP_10, "HTTP/1.0"),
        (http::Version::HTTP_11, "HTTP/1.1"),
        (http::Version::HTTP_2, "HTTP/2"),
        (http::Version::HTTP_3, "HTTP/3"),
    ] {
        let request = Request::get("/").version(version).body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let mut line = Line::default();
        line.begin(0, &mut TimestampText::default(), CLIENT, &parts);
        let text = String::from_utf8(line.text).unwrap();
        let expected = format!("\"protocol\":\"{expected}\"");
        assert!(text.contains(&expected), "{text}");
    }
}

fn completion() -> Completion<'static> {
    Completion {
        status: 200,
        duration: Duration::from_micros(1234),
        bytes_received: 0,
        bytes_sent: 13,
        rule: Some((&ROUTE, 1)),
        upstream: None,
        attempts: 0,
        response_time: None,
        picker: None,
        picked: None,
        release: None,
        error: None,
        trace_id: None,
    }
}

/// The completion of a request whose second attempt failed at a release, and whose first one was at another endpoint, which a
/// picker had chosen.
fn failed() -> Completion<'static> {
    Completion {
        upstream: Some("10.0.0.1:8080".parse().unwrap()),
        attempts: 2,
        response_time: Some(Duration::from_micros(4321)),
        picker: Some("picked"),
        picked: Some("10.0.0.2:8080".parse().unwrap()),
        release: Some("shop-v42"),
        error: Some("the backend failed"),
        ..completion()
    }
}

fn line(path: &str, end: &Completion<'_>) -> String {
    let mut line = begun(path);
    line.host("demo.example.com");
    line.request_id(b"id");
    text(line, end)
}

fn text(mut line: Line, end: &Completion<'_>) -> String {
    String::from_utf8(line.end(end, None).to_vec()).unwrap()
}

#[test]
fn line_is_json_in_documented_order() {
    assert_eq!(
        line("/a", &completion()),
        concat!(
            r#"{"time":"1970-01-01T00:00:01.500000Z","client":"127.0.0.1:4000","method":"GET","path":"/a","#,
            r#""protocol":"HTTP/1.1","host":"demo.example.com","request_id":"id","status":200,"duration_ms":1.234,"#,
            r#""bytes_received":0,"bytes_sent":13,"route":"HTTPRoute default/demo","rule":1}"#,
            "\n"
        )
    );
}

#[test]
fn line_has_the_known_fields_and_can_leave_out_all_but_those_that_identify_it() {
    let (mut parts, ()) = Request::get("/a").body(()).unwrap().into_parts();
    parts
        .headers
        .insert(USER_AGENT, HeaderValue::from_static("curl"));
    let end = Completion {
        trace_id: Some([7; 16]),
        ..failed()
    };
    let names = |omit: &[&'static str]| {
        let mut line = Line::default();
        line.begin(0, &mut TimestampText::default(), CLIENT, &parts);
        line.host("demo.example.com");
        line.client_ip([10, 0, 0, 1].into());
        line.request_id(b"id");
        let log = GatewayLog {
            omit: omit.into(),
            ..GatewayLog::default()
        };
        let line: serde_json::Value = serde_json::from_slice(line.end(&end, Some(&log))).unwrap();
        let names = line.as_object().unwrap().keys().cloned();
        names.collect::<BTreeSet<_>>()
    };
    let mut all = FIELDS.to_vec();
    all.retain(|name| !OF_CONNECTIONS.contains(name));
    assert_eq!(names(&[]), all.into_iter().map(str::to_owned).collect());
    let mut omit = FIELDS.to_vec();
    omit.retain(|name| !IDENTITY.contains(name));
    let identity = IDENTITY.map(str::to_owned);
    assert_eq!(names(&omit), BTreeSet::from(identity));
}

#[test]
fn line_names_endpoint_release_and_error() {
    let end = Completion {
        rule: None,
        duration: Duration::from_millis(5),
        ..failed()
    };
    let expected = concat!(
        r#""duration_ms":5.000,"bytes_received":0,"bytes_sent":13,"upstream":"10.0.0.1:8080","#,
        r#""upstream_ms":4.321,"attempts":2,"picker":"picked","picked":"10.0.0.2:8080","#,
        r#""release":"shop-v42","error":"the backend failed"}"#
    );
    assert!(line("/a", &end).contains(expected));
}

#[test]
fn a_refused_head_has_no_host_and_no_request_id() {
    let line = text(begun("/a"), &completion());
    assert!(
        line.contains(r#""host":"","request_id":"","status":200"#),
        "{line}"
    );
}

#[test]
fn line_omits_the_query() {
    assert!(!line("/a?token=secret", &completion()).contains("secret"));
}

#[test]
fn excerpts_end_at_a_character_within_the_limit() {
    let excerpt = |text: &[u8], limit| {
        let mut line = Vec::new();
        write_excerpt(&mut line, text, limit);
        String::from_utf8(line).unwrap()
    };
    assert_eq!(excerpt(b"/path", 5), r#""/path""#);
    assert_eq!(excerpt(b"/path", 4), r#""/pat…""#);
    assert_eq!(excerpt("éé".as_bytes(), 3), r#""é…""#);
    assert_eq!(excerpt("\u{1f980}x".as_bytes(), 3), r#""…""#);
    assert_eq!(excerpt(&[0xff; 9], 2), "\"\u{fffd}\u{fffd}…\"");
    assert_eq!(excerpt(&[0x80; 9], 2), "\"\u{fffd}\u{fffd}…\"");
}

#[test]
fn lines_are_reused_without_a_trace() {
    let mut line = begun("/a/long/path/of/an/earlier/request");
    line.host("demo.example.com");
    let request = Request::post("/b").header("user-agent", "");
    let (parts, ()) = request.body(()).unwrap().into_parts();
    line.begin(0, &mut TimestampText::default(), CLIENT, &parts);
    let line = text(line, &completion());
    let expected =
        r#""method":"POST","path":"/b","protocol":"HTTP/1.1","user_agent":"","host":"","#;
    assert!(line.contains(expected), "{line}");
}

fn bytes(length: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..length),
        any::<String>().prop_map(String::into_bytes),
        (0..length).prop_map(|length| vec![0x1b; length]),
    ]
}

proptest! {
    #[test]
    fn any_texts_become_one_line_of_json(
        path in bytes(3000),
        host in "[a-z0-9._~-]{0,255}",
        id in bytes(200),
        agent in bytes(300),
    ) {
        let mut line = Line::default();
        line.text.extend_from_slice(b"{\"path\":");
        write_excerpt(&mut line.text, &path, PATH_LENGTH);
        line.text.extend_from_slice(b",\"user_agent\":");
        write_excerpt(&mut line.text, &agent, USER_AGENT_LENGTH);
        line.host(&host);
        line.request_id(&id);
        let line = text(line, &completion());
        prop_assert!(line.len() <= LONGEST_LINE, "{}", line.len());
        let json = line.strip_suffix('\n').unwrap();
        prop_assert!(!json.contains(char::is_control));
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        prop_assert_eq!(value["host"].as_str(), Some(&*host));
        for (field, text, limit) in [
            ("path", path, PATH_LENGTH),
            ("request_id", id, REQUEST_ID_LENGTH),
            ("user_agent", agent, USER_AGENT_LENGTH),
        ] {
            let logged = value[field].as_str().unwrap();
            if text.len() <= limit {
                prop_assert_eq!(logged, String::from_utf8_lossy(&text));
            } else {
                prop_assert!(logged.ends_with('…'));
            }
        }
    }
}
