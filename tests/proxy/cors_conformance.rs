//! The rules and cases of the conformance test HTTPRouteCORS of Gateway API v1.6.1.

use serde_json::{Value, json};

use crate::cors::{METHOD, ORIGIN, clients, fetch, gateway, start, with_cors};
use crate::origin::Origin;

const HEADERS: &str = "access-control-request-headers";

/// Name without `access-control-`; valid values without whitespace; none means that the header is
/// absent.
type Expected<'a> = (&'a str, &'a [&'a str]);

/// Path, method, origin, requested method, requested headers; expected headers.
type Case<'a> = (
    &'a str,
    &'a str,
    &'a str,
    Option<&'a str>,
    Option<&'a str>,
    &'a [Expected<'a>],
);

const FOO: &str = "https://www.foo.com";
const BAR: &str = "https://www.bar.com";
const DEEP: &str = "https://xpto.www.bar.com";
const FOOBAR: &str = "https://foobar.com";
const WITH_PORT: &str = "https://foobar.com:12345";
const OTHER: &str = "https://other.foo.com";
const BOTH: Option<&str> = Some("x-header-1, x-header-2");

const LISTED: [Expected<'_>; 5] = [
    ("allow-methods", &["GET,OPTIONS"]),
    ("allow-headers", &["x-header-1,x-header-2"]),
    ("expose-headers", &["x-header-3,x-header-4"]),
    ("max-age", &["3600"]),
    ("allow-credentials", &["true"]),
];
const DENIED: &[Expected<'_>] = &[("allow-origin", &[])];
const NO_CREDENTIALS: Expected<'_> = ("allow-credentials", &[]);

const LISTED_FOO: &[Expected<'_>] = &[
    ("allow-origin", &[FOO]),
    LISTED[0],
    LISTED[1],
    LISTED[2],
    LISTED[3],
    LISTED[4],
];
const LISTED_BAR: &[Expected<'_>] = &[
    ("allow-origin", &[BAR]),
    LISTED[0],
    LISTED[1],
    LISTED[2],
    LISTED[3],
    LISTED[4],
];
const LISTED_DEEP: &[Expected<'_>] = &[
    ("allow-origin", &[DEEP]),
    LISTED[0],
    LISTED[1],
    LISTED[2],
    LISTED[3],
    LISTED[4],
];

/// The cases of the conformance test, in its order.
const CASES: &[Case<'_>] = &[
    ("/cors-1", "OPTIONS", FOO, Some("GET"), BOTH, LISTED_FOO),
    ("/cors-1", "OPTIONS", BAR, Some("GET"), BOTH, LISTED_BAR),
    ("/cors-1", "OPTIONS", DEEP, Some("GET"), BOTH, LISTED_DEEP),
    ("/cors-1", "OPTIONS", FOOBAR, Some("GET"), None, DENIED),
    (
        "/cors-1",
        "GET",
        FOO,
        Some("GET"),
        BOTH,
        &[("allow-origin", &[FOO])],
    ),
    (
        "/cors-1",
        "GET",
        BAR,
        Some("GET"),
        BOTH,
        &[("allow-origin", &[BAR])],
    ),
    ("/cors-1", "GET", FOOBAR, Some("GET"), None, DENIED),
    (
        "/cors-2",
        "OPTIONS",
        FOO,
        Some("POST"),
        None,
        &[
            ("allow-methods", &["POST", "*"]),
            ("allow-origin", &[FOO]),
            NO_CREDENTIALS,
        ],
    ),
    (
        "/cors-wildcard-origin",
        "OPTIONS",
        FOOBAR,
        Some("PUT"),
        None,
        &[
            ("allow-origin", &[FOOBAR, "*"]),
            ("allow-methods", &["PUT"]),
            NO_CREDENTIALS,
        ],
    ),
    (
        "/cors-wildcard-origin",
        "OPTIONS",
        WITH_PORT,
        Some("PUT"),
        None,
        &[
            ("allow-origin", &[WITH_PORT, "*"]),
            ("allow-methods", &["PUT"]),
            NO_CREDENTIALS,
        ],
    ),
    (
        "/cors-wildcard-origin",
        "PUT",
        WITH_PORT,
        None,
        None,
        &[("allow-origin", &[WITH_PORT, "*"])],
    ),
    (
        "/cors-wildcard-origin",
        "PUT",
        FOOBAR,
        None,
        None,
        &[("allow-origin", &[FOOBAR, "*"]), NO_CREDENTIALS],
    ),
    (
        "/cors-wildcard-methods-headers",
        "OPTIONS",
        OTHER,
        Some("PUT"),
        BOTH,
        &[
            ("allow-origin", &[OTHER]),
            ("allow-methods", &["PUT"]),
            ("allow-headers", &["x-header-1,x-header-2"]),
            ("allow-credentials", &["true"]),
        ],
    ),
    (
        "/cors-wildcard-methods-headers-unauth",
        "OPTIONS",
        OTHER,
        Some("PUT"),
        BOTH,
        &[
            ("allow-origin", &[OTHER, "*"]),
            ("allow-methods", &["PUT", "*"]),
            ("allow-headers", &["x-header-1,x-header-2", "*"]),
            NO_CREDENTIALS,
        ],
    ),
    (
        "/cors-wildcard-methods-headers",
        "GET",
        OTHER,
        None,
        None,
        &[("allow-origin", &[OTHER]), ("allow-credentials", &["true"])],
    ),
    (
        "/cors-wildcard-methods-headers-unauth",
        "GET",
        OTHER,
        None,
        None,
        &[("allow-origin", &[OTHER, "*"]), NO_CREDENTIALS],
    ),
];

fn conformance_rules() -> [Value; 5] {
    let wildcards = |credentials: bool| {
        json!({
            "allowOrigins": ["*"],
            "allowMethods": ["*"],
            "allowHeaders": ["*"],
            "allowCredentials": credentials,
        })
    };
    let rule = |path: &str, cors: Value| with_cors(path, "echo", &cors);
    [
        rule(
            "/cors-1",
            json!({
                "allowOrigins": [FOO, "https://*.bar.com"],
                "allowMethods": ["GET", "OPTIONS"],
                "allowHeaders": ["x-header-1", "x-header-2"],
                "exposeHeaders": ["x-header-3", "x-header-4"],
                "allowCredentials": true,
                "maxAge": 3600,
            }),
        ),
        rule(
            "/cors-2",
            json!({"allowOrigins": [FOO], "allowMethods": ["*"]}),
        ),
        rule(
            "/cors-wildcard-origin",
            json!({"allowOrigins": ["*"], "allowMethods": ["PUT"], "allowCredentials": false}),
        ),
        rule("/cors-wildcard-methods-headers", wildcards(true)),
        rule("/cors-wildcard-methods-headers-unauth", wildcards(false)),
    ]
}

#[tokio::test]
async fn cases_of_the_conformance_test() {
    let echo = Origin::echo("echo").await;
    let objects = gateway().service("echo", &[echo.address]);
    let scene = start(objects.route("route", &conformance_rules()));
    for mut client in clients(&scene).await {
        for case in CASES {
            let (path, method, origin, requested, names, expected) = *case;
            let mut fields = vec![(ORIGIN, origin)];
            fields.extend(requested.map(|method| (METHOD, method)));
            fields.extend(names.map(|names| (HEADERS, names)));
            let forwarded = echo.requests();
            let answer = fetch(&mut client, method, path, &fields).await;
            if method == "OPTIONS" {
                assert_eq!((answer.status, answer.text()), (204, ""), "{case:?}");
                assert_eq!(echo.requests(), forwarded, "{case:?}");
            } else {
                assert_eq!(answer.received()["method"], method, "{case:?}");
            }
            for (name, valid) in expected {
                let value = answer.headers.get(format!("access-control-{name}"));
                let value = value.map(|value| value.to_str().expect("text").replace(' ', ""));
                match value {
                    Some(value) => assert!(valid.contains(&value.as_str()), "{case:?}: {value}"),
                    None => assert!(valid.is_empty(), "{case:?}: no {name}"),
                }
            }
        }
    }
}
