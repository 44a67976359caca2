//! Interpretation of requests (E): host, path and sender are the same for matching and for the
//! backend.

use ipnet::IpNet;

use crate::fixture::{Fixture, HOST, documents};
use crate::harness::client::{Client, get};
use crate::harness::origin::Origin;
use crate::harness::server::TestServer;
use crate::harness::yaml;

/// Two hosts, each with an origin, on one HTTP port.
struct Hosts {
    server: TestServer,
    a: Origin,
    b: Origin,
}

impl Hosts {
    fn start() -> Self {
        let (a, b) = (Origin::hello(), Origin::hello());
        let server = TestServer::start(&[
            yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
            yaml::route("a", "gateway", &["a.example"], &yaml::all_to("a")),
            yaml::route("b", "gateway", &["b.example"], &yaml::all_to("b")),
            yaml::service("a", &[a.address]),
            yaml::service("b", &[b.address]),
        ]);
        Self { server, a, b }
    }
}

#[test]
fn absolute_target_determines_the_host() {
    let hosts = Hosts::start();
    for field in ["b.example", "a.example", "nowhere.example"] {
        let mut client = Client::connect(hosts.server.at(80));
        let before = hosts.a.requests().len();
        let answer = client.round_trip(format!(
            "GET http://a.example/x?q HTTP/1.1\r\nHost: {field}\r\n\r\n"
        ));
        assert!(
            [200, 400].contains(&answer.status),
            "{field}: {}",
            answer.start
        );
        if answer.status == 200 {
            assert_eq!(hosts.a.requests().len(), before + 1);
            let request = hosts.a.last();
            assert_eq!(request.start, "GET /x?q HTTP/1.1");
            assert_eq!(request.fields.all("host"), ["a.example"]);
            assert_eq!(request.fields.all("x-forwarded-host"), ["a.example"]);
        }
    }
    assert_eq!(hosts.b.requests().len(), 0);
    for target in [
        "http://user@a.example/x",
        "http://a.example:0/x",
        "http://a.example:65536/x",
        "http:///x",
        "http://",
        "ftp://a.example/x",
        "ws://a.example/x",
        "httpx://a.example/x",
    ] {
        let mut client = Client::connect(hosts.server.at(80));
        let answer = client.round_trip(format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(answer.status, 400, "{target}");
        client.ends();
    }
    for target in ["HTTP://a.example/%78", "https://a.example//x?q"] {
        let mut client = Client::connect(hosts.server.at(80));
        let answer = client.round_trip(format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(answer.status, 200, "{target}");
        let (_, path) = target.split_once("a.example").unwrap();
        assert_eq!(hosts.a.last().target(), path);
    }
    let mut client = Client::connect(hosts.server.at(80));
    let answer = client.round_trip("GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(answer.status, 200);
    assert_eq!(hosts.a.last().target(), "/");
}

#[test]
fn rejects_several_hosts() {
    let fixture = Fixture::new(Origin::hello());
    for lines in [
        "",
        "Host: a.example\r\nHost: a.example\r\n",
        "Host: a.example\r\nHost: b.example\r\n",
        "Host: a.example, b.example\r\n",
        "Host:\r\n",
        "Host: a.example:0\r\n",
        "Host: a.example:65536\r\n",
        "Host: a.example:80:80\r\n",
        "Host: user@a.example\r\n",
        "Host: a.example/x\r\n",
        "Host: a.example?x\r\n",
        "Host: a.example#x\r\n",
        "Host: http://a.example\r\n",
        "Host: a example\r\n",
        "Host: a.example\\x\r\n",
        "Host: \u{e9}.example\r\n",
        "Host: [::1\r\n",
        "Host: [a.example]\r\n",
        "Host: %61.example\r\n",
    ] {
        let mut client = fixture.client();
        let answer = client.round_trip(format!("GET /x HTTP/1.1\r\n{lines}\r\n"));
        assert_eq!(answer.status, 400, "{lines:?}");
        client.ends();
    }
    fixture.is_healthy(0);
}

#[test]
fn matches_hosts_without_case_and_port() {
    let hosts = Hosts::start();
    for host in ["A.Example", "a.example:8080", "A.EXAMPLE:1"] {
        assert_eq!(get(hosts.server.at(80), host, "/x").status, 200, "{host}");
        assert_eq!(hosts.a.last().fields.all("host"), [host]);
    }
    for host in [
        "c.example",
        "xa.example",
        "a.example.evil",
        "127.0.0.1",
        "[::1]:80",
    ] {
        assert_eq!(get(hosts.server.at(80), host, "/x").status, 404, "{host}");
    }
    assert_eq!((hosts.a.requests().len(), hosts.b.requests().len()), (3, 0));
}

#[test]
fn forwards_the_matched_path() {
    let (open, admin) = (Origin::hello(), Origin::hello());
    let server = TestServer::start(&[
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::route(
            "route",
            "gateway",
            &[],
            "[{backendRefs: [{name: open, port: 80}]}, \
             {matches: [{path: {type: PathPrefix, value: /admin}}], backendRefs: [{name: admin, port: 80}]}]",
        ),
        yaml::service("open", &[open.address]),
        yaml::service("admin", &[admin.address]),
    ]);
    for path in [
        "/a/../admin",
        "/a/..",
        "/./admin",
        "/admin/..",
        "/admin/./x",
        "/a/%2e%2e/admin",
        "/a/%2E%2E/admin",
        "/a/.%2e/admin",
        "/a/..;/admin",
        "/a/..;x=y/admin",
        "/a%2f..%2fadmin",
        "/a%2F%2e%2e%2Fadmin",
        "/a%5c..",
        "/a%5c..%5cadmin",
        "/a\\..\\admin",
        "/..%2fadmin",
        "/public/..%2fadmin",
        "/a%00",
        "/admin%00",
        "/%zz",
        "/a%",
        "/a%2",
        "/%c0%ae%c0%ae/admin",
        "/a/%c0%ae./admin",
    ] {
        let mut client = Client::connect(server.at(80));
        let answer = client.round_trip(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        assert_eq!(answer.status, 400, "{path}");
        client.ends();
    }
    assert_eq!((open.requests().len(), admin.requests().len()), (0, 0));
    for path in [
        "//admin",
        "///admin//x",
        "/admin?x=../..",
        "/admin/%20x",
        "/%61dmin",
        "/a%64%6Din/%c3%a9?%61",
    ] {
        assert_eq!(get(server.at(80), HOST, path).status, 200, "{path}");
        assert_eq!(admin.last().target(), path);
    }
    for path in [
        "/administrator",
        "/Admin",
        "/a/admin",
        "/%41dmin",
        "/a%2Fadmin",
        "/...",
        "/a.b/..c",
        "/a;v=1/x",
        "/?/admin",
    ] {
        assert_eq!(get(server.at(80), HOST, path).status, 200, "{path}");
        assert_eq!(open.last().target(), path);
    }
    assert_eq!((open.requests().len(), admin.requests().len()), (9, 6));
}

/// All forwarding headers that a client can set.
const CLAIMS: &str = "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7, evil\r\nX-Forwarded-Proto: https\r\n\
                      X-Forwarded-Host: evil.example\r\nX-Forwarded-Port: 1\r\nForwarded: for=6.6.6.6;proto=https\r\n\
                      Forwarded: for=\"malformed\r\nX-Real-IP: 6.6.6.6\r\nX-Request-Id: known\r\n";

#[test]
fn overwrites_forwarding_headers_of_clients() {
    let fixture = Fixture::new(Origin::hello());
    for mut client in [fixture.client(), Client::connect_tls(fixture.https(), HOST)] {
        let tls = fixture.origin.requests().len() == 1;
        let answer = client.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{CLAIMS}\r\n"));
        assert_eq!(answer.status, 200);
        let fields = fixture.origin.last().fields;
        assert_eq!(fields.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(
            fields.all("x-forwarded-proto"),
            [if tls { "https" } else { "http" }]
        );
        assert_eq!(fields.all("x-forwarded-host"), [HOST]);
        for name in ["forwarded", "x-real-ip", "x-forwarded-port"] {
            assert_eq!(fields.all(name), Vec::<&str>::new(), "{name}");
        }
        assert!(
            fields
                .get("x-request-id")
                .is_some_and(|id| id != "known" && id.len() == 32)
        );
    }
    fixture.is_healthy(2);
}

#[test]
fn accepts_forwarding_headers_of_trusted_peers() {
    let loopback: IpNet = "127.0.0.0/8".parse().expect("a network");
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.trusted_proxies = vec![loopback]
    });
    let answer = fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{CLAIMS}\r\n"));
    assert_eq!(answer.status, 200);
    let fields = fixture.origin.last().fields;
    assert_eq!(
        fields.all("x-forwarded-for"),
        ["6.6.6.6, 7.7.7.7, evil, 127.0.0.1"]
    );
    assert_eq!(fields.all("x-forwarded-proto"), ["https"]);
    assert_eq!(fields.all("x-forwarded-host"), ["evil.example"]);
    assert_eq!(fields.all("x-request-id"), ["known"]);
}

#[test]
fn connection_options_drop_only_droppable_headers() {
    let fixture = Fixture::new(Origin::hello());
    let named = "x-forwarded-for, x-forwarded-proto, x-forwarded-host, x-request-id, forwarded, host, authorization, \
                 cookie, content-length, x-secret, Keep-Alive";
    let answer = fixture.round_trip(format!(
        "POST /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: {named}\r\nAuthorization: Basic eA==\r\nCookie: a=b\r\n\
         X-Secret: 1\r\nX-Other: 2\r\nKeep-Alive: 5\r\nProxy-Connection: keep-alive\r\nTE: gzip, trailers\r\n\
         HTTP2-Settings: x\r\nContent-Length: 5\r\n\r\nhello"
    ));
    assert_eq!(answer.status, 200);
    let request = fixture.origin.last();
    let fields = &request.fields;
    assert_eq!(request.body.bytes, b"hello");
    assert_eq!(fields.all("host"), [HOST]);
    assert_eq!(fields.all("authorization"), ["Basic eA=="]);
    assert_eq!(fields.all("cookie"), ["a=b"]);
    assert_eq!(fields.all("x-other"), ["2"]);
    assert_eq!(fields.all("te"), ["trailers"]);
    assert_eq!(fields.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(fields.all("x-forwarded-proto"), ["http"]);
    assert_eq!(fields.all("x-request-id").len(), 1);
    for name in [
        "x-secret",
        "connection",
        "keep-alive",
        "proxy-connection",
        "http2-settings",
        "transfer-encoding",
    ] {
        assert_eq!(fields.all(name), Vec::<&str>::new(), "{name}");
    }
    fixture.is_healthy(1);
}

#[test]
fn removes_connection_options_of_backends() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 200 OK\r\nConnection: x-secret, keep-alive\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Connection: keep-alive\r\nUpgrade: h2c\r\nX-Other: 2\r\nContent-Length: 5\r\n\r\nhello",
    ));
    let fields = fixture
        .round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"))
        .fields;
    assert_eq!(fields.all("x-other"), ["2"]);
    for name in [
        "x-secret",
        "connection",
        "keep-alive",
        "proxy-connection",
        "upgrade",
    ] {
        assert_eq!(fields.all(name), Vec::<&str>::new(), "{name}");
    }
}

#[test]
fn rejects_methods_not_allowed_for_gateways() {
    let fixture = Fixture::new(Origin::hello());
    for line in [
        "CONNECT a.example:443",
        "CONNECT /x",
        "TRACE /x",
        "TRACE http://a.example/x",
    ] {
        let mut client = fixture.client();
        client.send(format!(
            "{line} HTTP/1.1\r\nHost: {HOST}\r\n\r\nGET /evil HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
        ));
        let answer = client.response("GET");
        assert!(
            [400, 405, 501].contains(&answer.status),
            "{line}: {}",
            answer.start
        );
        client.ends();
    }
    fixture.is_healthy(0);
    let answer = fixture.round_trip(format!("OPTIONS * HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!(answer.status, 404, "{}", answer.start);
    let answer = fixture.round_trip(format!("PURGE /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!(
        (answer.status, fixture.origin.last().method()),
        (200, "PURGE")
    );
}

#[test]
fn drops_fragments() {
    let fixture = Fixture::new(Origin::hello());
    let answer = fixture.round_trip(format!("GET /x#/../admin HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!((answer.status, fixture.origin.last().target()), (200, "/x"));
}

#[test]
fn routes_without_usable_backend_respond_as_specified() {
    let origin = Origin::hello();
    let mut documents = documents(origin.address, "");
    let rule = |path: &str, backends: &str| {
        format!(
            "{{matches: [{{path: {{type: PathPrefix, value: {path}}}}}], backendRefs: [{backends}]}}"
        )
    };
    let rules = [
        rule("/none", ""),
        rule("/zero", "{name: origin, port: 80, weight: 0}"),
        rule("/granted", "{name: origin, port: 80, namespace: other}"),
        rule("/deleted", "{name: gone, port: 80}"),
        rule("/port", "{name: origin, port: 81}"),
        rule(
            "/kind",
            "{name: origin, port: 80, kind: Thing, group: x.example}",
        ),
        rule("/empty", "{name: empty, port: 80}"),
        rule("/", "{name: origin, port: 80}"),
    ];
    documents[1] = yaml::route("route", "gateway", &[], &format!("[{}]", rules.join(", ")));
    documents.push(yaml::service("empty", &[]));
    let elsewhere = yaml::service("origin", &[origin.address]);
    documents.push(elsewhere.replace(
        "metadata: {name: origin}",
        "metadata: {name: origin, namespace: other}",
    ));
    let server = TestServer::start(&documents);
    for (path, status) in [
        ("/none", 500),
        ("/zero", 500),
        ("/granted", 500),
        ("/deleted", 500),
        ("/port", 500),
        ("/kind", 500),
        ("/empty", 503),
        ("/fine", 200),
    ] {
        let mut client = Client::connect(server.at(80));
        for _ in 0..2 {
            let answer = client.round_trip(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
            assert_eq!(answer.status, status, "{path}");
        }
    }
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn adds_host_to_http10_request() {
    let origin = Origin::hello();
    let server = TestServer::start(&[
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::route("any", "gateway", &[], &yaml::all_to("any")),
        yaml::service("any", &[origin.address]),
    ]);
    let mut client = Client::connect(server.at(80));
    let response = client.round_trip("GET /x HTTP/1.0\r\n\r\n");
    assert_eq!(response.status, 200, "{}", response.start);
    let request = origin.last();
    assert_eq!(request.fields.all("host"), ["127.0.0.1:80"]);
    assert!(request.fields.all("x-forwarded-host").is_empty());
}

#[test]
fn rejects_redirect_of_http10_request_without_host() {
    let redirect = |changes: &str| {
        format!("[{{filters: [{{type: RequestRedirect, requestRedirect: {{{changes}}}}}]}}]")
    };
    for (changes, expected) in [("scheme: https", 400), ("hostname: b.example", 302)] {
        let server = TestServer::start(&[
            yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
            yaml::route("any", "gateway", &[], &redirect(changes)),
        ]);
        let mut client = Client::connect(server.at(80));
        let response = client.round_trip("GET /x HTTP/1.0\r\n\r\n");
        assert_eq!(response.status, expected, "{}", response.start);
    }
}

#[test]
fn rejects_absolute_target_without_host_in_http11() {
    let hosts = Hosts::start();
    let mut client = Client::connect(hosts.server.at(80));
    let response = client.round_trip("GET http://a.example/x HTTP/1.1\r\n\r\n");
    assert_eq!(response.status, 400, "{}", response.start);
    assert_eq!(hosts.a.requests().len(), 0);
    let mut client = Client::connect(hosts.server.at(80));
    let response = client.round_trip("GET http://a.example/x HTTP/1.0\r\n\r\n");
    assert_eq!(response.status, 200, "{}", response.start);
    assert_eq!(hosts.a.last().fields.all("host"), ["a.example"]);
}
