//! Restricted paths beside open ones on a host with regular expressions: a restriction holds for what it holds for in
//! ingress-nginx, in every spelling.

use crate::client::Client;
use crate::requests::{ingress, path, serve, set};

const SPECIFIC: &str = "ImplementationSpecific";

/// Returns what a request gets with an open path and a restricted one, each of its own Ingress: a status, or the path that the
/// backend gets.
async fn fetched(open: (&str, &str), restricted: (&str, &str), request: &str) -> String {
    let regex = set("use-regex", "true");
    let range = set("whitelist-source-range", "192.0.2.0/24");
    // The name of the open one comes first.
    let (scene, _origin) = serve(&[
        ingress("a-open", &regex, &[open], false),
        ingress("b-restricted", &range, &[restricted], false),
    ])
    .await;
    let mut client = Client::http1(scene.at(80)).await;
    path(&mut client, request).await
}

#[tokio::test]
async fn expressions_are_tried_in_the_order_of_nginx() {
    for (open, restricted, request, expected) in [
        ("/a|/b", ("/b/admin", "Prefix"), "/b/admin/x", "403"),
        ("/a|/b", ("/b/admin", "Exact"), "/B/ADMIN", "403"),
        ("/a|/b", ("/b/admin", "Exact"), "/b/other", "/b/other"),
        // Of the same length, the last by its text is first.
        ("/[ab]", ("/b/ad", SPECIFIC), "/b/ad", "403"),
        // A longer path is first in ingress-nginx, too.
        ("/(a|b)/?", ("/b/ad", SPECIFIC), "/b/ad", "/b/ad"),
        ("/Admin", ("/admin", SPECIFIC), "/Admin", "403"),
        ("/[a-c]d?", ("/b/admin", "Prefix"), "/b/admin", "403"),
        // nginx looks for the second alternative everywhere.
        ("/", ("/admin|/private", SPECIFIC), "/x/private", "403"),
        (
            "/",
            ("/admin|^/private", SPECIFIC),
            "/x/private",
            "/x/private",
        ),
        (
            "/",
            ("/(admin|private)", SPECIFIC),
            "/x/private",
            "/x/private",
        ),
        // One that cannot be converted closes what it could be for.
        ("/", ("/ab|/c(?=x)", SPECIFIC), "/y/cx", "403"),
    ] {
        let found = fetched((open, SPECIFIC), restricted, request).await;
        assert_eq!(found, expected, "{open} {restricted:?} {request}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_evades_an_expression() {
    for (open, restricted, request, expected) in [
        ("/", "/a(/|$)(.*)", "/%2Fa/x", "refused"),
        ("/", "/a.b", "/a%40b", "refused"),
        ("/", "/a[@:]b", "/a%3Ab", "refused"),
        ("/", "/a\\\\b", "/a%5Cb", "refused"),
        ("/", "/a;b", "/a;b", "refused"),
        ("/", "/a;b", "/a%3Bb", "refused"),
        ("/", "/a", "/a;b", "refused"),
        ("/", "/a", "/a%5Cb", "refused"),
        ("/u/[^@]+x", "/u/", "/u/%40x", "refused"),
        (
            "/api/.*admin",
            "/api/secret",
            "/api/secret%2Admin",
            "refused",
        ),
        ("/x.*y", "/x", "/x%0Ay", "refused"),
        // Characters that no path of the host tells apart are forwarded.
        ("/", "/a(/|$)(.*)", "/caf%C3%A9%20x", "/caf%C3%A9%20x"),
        ("/", "/a/[^/]+/b", "/x%40y", "/x%40y"),
        // A backslash is no slash in nginx.
        ("/", "/a", "/%5Ca", "/%5Ca"),
    ] {
        let found = fetched((open, SPECIFIC), (restricted, SPECIFIC), request).await;
        let found = match found.as_str() {
            "400" | "403" => "refused",
            other => other,
        };
        assert_eq!(found, expected, "{open} {restricted} {request}");
    }
}
