//! Where sign-ins and sign-outs send browsers: to the provider, and back to the host that they come from. Nobody chooses another
//! one.

use http::Method;
use serde_json::json;

use crate::browser::Browser;
use crate::client::{connect, read_all, write_text};
use crate::origin::Origin;
use crate::provider::{Provider, parse};

/// Paths and queries in which browsers or servers may see another host.
const TARGETS: [&str; 18] = [
    "//evil.example/",
    "///evil.example",
    "/%5Cevil.example",
    "/@evil.example/",
    "/?rd=https://evil.example",
    "/https://evil.example",
    "/https:evil.example",
    "/;//evil.example",
    "/%2F%2Fevil.example",
    "/%2f%5cevil.example",
    "/%5C%5Cevil.example",
    "/\\evil.example",
    "/\\/evil.example",
    "/%09/evil.example",
    "/%0a/evil.example",
    "/%0d%0aLocation:%20https://evil.example",
    "/.evil.example",
    "/:80@evil.example",
];

#[tokio::test]
async fn browsers_return_to_the_host_that_they_come_from() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for target in TARGETS {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.sign_in(&provider, target).await;
        assert!(location.starts_with("http://a.com/"), "{location}");
    }
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let long = format!("/page?{}", "a".repeat(4000));
    assert_eq!(browser.sign_in(&provider, &long).await, "http://a.com/page");
}

/// A page leads the browser to its own page, and keeps the code in its URL from backends.
#[tokio::test]
async fn page_of_strict_cookies_leads_to_its_own_host() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({"cookie": {"sameSite": "Strict"}});
    let scene = provider.scene(&origin, &changes).await;
    for target in TARGETS {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin(target).await;
        let answer = browser.get(&provider.authorize(&location)).await;
        assert_eq!(answer.status, 200, "{target}");
        let text = answer.text();
        assert!(text.contains("content=\"0;url=http://a.com/"), "{text}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
    }
}

/// What begins no sign-in gets no redirect, either.
#[tokio::test]
async fn malformed_targets_and_hosts_begin_no_sign_in() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let host = "\r\nHost: a.com";
    let of = |target: &str, host: &str| format!("{target} HTTP/1.1{host}");
    let targets = [
        "https:evil.example",
        "evil.example",
        "evil.example:443",
        "@evil.example/",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "/\r\n/evil.example",
        "/\0/evil.example",
        "http:///evil.example",
        "http://a.com@evil.example/",
        "http://a.com:80@evil.example/",
        "http://evil.example\\@a.com/",
    ];
    let hosts = [
        "",
        "a.com@evil.example",
        "a.com:80@evil.example",
        "evil.example/a.com",
        "evil.example\\a.com",
        "a.com:evil",
        "a.com:99999",
        "a.com:",
        "a.com, evil.example",
        "a.com?evil.example",
        "a.com#evil.example",
        "a.com\r\nHost: evil.example",
    ];
    let targets = targets.map(|target| of(target, host));
    let hosts = hosts.map(|host| of("/", &format!("\r\nHost: {host}")));
    // The local address is nothing that clients get to know.
    let without = ["/ HTTP/1.0".to_owned()];
    for request in targets.into_iter().chain(hosts).chain(without) {
        let mut stream = connect(scene.at(80)).await;
        let head = format!("GET {request}\r\nAccept: text/html\r\nConnection: close\r\n\r\n");
        write_text(&mut stream, head).await;
        let answer = String::from_utf8_lossy(&read_all(&mut stream).await).to_ascii_lowercase();
        assert_eq!(
            answer.split(' ').nth(1),
            Some("400"),
            "{request:?}: {answer}"
        );
        assert!(!answer.contains("location:"), "{request:?}: {answer}");
    }
    assert_eq!(origin.requests(), 0);
}

/// The host of an absolute target takes the place of `Host` (RFC 9112, 3.2.2), for cookies as well.
#[tokio::test]
async fn host_of_an_absolute_target_is_that_of_the_sign_in() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for (target, host) in [
        ("http://a.com/page?a=b", "a.com"),
        ("http://a.com?a=b", "a.com"),
        ("http://a.com//evil.example/", "a.com"),
        ("http://a.com/@evil.example", "a.com"),
        ("http://a.com:8080/page", "a.com:8080"),
    ] {
        let mut browser = Browser::new(scene.at(80), "evil.example").await;
        let location = browser.begin(target).await;
        let asked = parse(location.split_once('?').expect("a query").1.as_bytes());
        let expected = format!("http://{host}/oauth2/callback");
        assert_eq!(asked["redirect_uri"], expected, "{target}");
        let callback = provider.authorize(&location);
        assert_eq!(browser.get(&callback).await.status, 400, "{target}");
        let mut own = Browser::new(scene.at(80), host).await;
        own.cookies.clone_from(&browser.cookies);
        let answer = own.get(&callback).await;
        assert_eq!(answer.status, 302, "{target}");
        let location = answer.header("location");
        assert!(
            location.starts_with(&format!("http://{host}/")),
            "{location}"
        );
    }
}

#[tokio::test]
async fn headers_of_clients_choose_no_host() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for header in [
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "8443"),
        ("x-forwarded-prefix", "//evil.example"),
        ("x-forwarded-uri", "//evil.example"),
        ("x-original-host", "evil.example"),
        ("x-original-url", "https://evil.example/"),
        ("x-rewrite-url", "//evil.example"),
        ("forwarded", "host=evil.example;proto=https"),
        ("referer", "https://evil.example/"),
        ("origin", "https://evil.example"),
    ] {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let headers = [header, ("accept", "text/html")];
        let answer = browser.send(Method::GET, "/page", &headers).await;
        assert_eq!(answer.status, 302, "{header:?}");
        let location = answer.header("location");
        let own = "redirect_uri=http%3A%2F%2Fa.com%2Foauth2%2Fcallback&";
        assert!(location.contains(own), "{header:?}: {location}");
        let callback = provider.authorize(location);
        let answer = browser.send(Method::GET, &callback, &headers).await;
        assert_eq!(answer.header("location"), "http://a.com/page");
    }
}

#[tokio::test]
async fn sign_outs_lead_to_the_provider_and_back_alone() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let logout =
        "/oauth2/logout?rd=https://evil.example&post_logout_redirect_uri=https://evil.example";
    let answer = browser.get(logout).await;
    assert_eq!(answer.status, 302);
    let location = answer.header("location");
    assert!(location.starts_with(&provider.issuer()), "{location}");
    assert!(!location.contains("evil"), "{location}");
}
