//! Requests at random for the configuration: each begins as one that a rule is for, and most differ from it a little.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::sent::Sent;

/// Hosts that other requests are for, or that no route has.
const HOSTS: [&str; 8] = [
    "shop.example.com",
    "www.web.example.com",
    "web.example.com",
    "broken.example.com",
    "keyed.example.com",
    "only.example.org",
    "example.com",
    "other.net",
];

const METHODS: [&str; 8] = [
    "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "TRACE", "get",
];

/// Names and values of headers.
type Headers = &'static [(&'static str, &'static str)];

/// The host, paths and headers of requests that rules are for.
const MEANT: [(&str, &[&str], Headers); 10] = [
    (
        "shop.example.com",
        &[
            "/exact",
            "/prefix",
            "/prefix/a",
            "/item/17",
            "/prefix?q=1",
            "/prefix?page=7",
            "/prefix/deep?q=1",
            "/prefix/deep/er?a&q=1&b",
        ],
        &[],
    ),
    (
        "shop.example.com",
        &["/prefix", "/prefix/deep?q=1", "/prefix/deep"],
        &[("x-version", "two")],
    ),
    (
        "shop.example.com",
        &["/prefix", "/prefix/b?page=1"],
        &[("x-id", "17")],
    ),
    (
        "www.web.example.com",
        &[
            "/redirect/scheme/a?b",
            "/redirect/host/a",
            "/redirect/prefix/a",
            "/redirect/prefix",
            "/redirect/full/a?b=c",
            "/rewrite/prefix/a",
            "/rewrite/prefix",
            "/rewrite/full/a?b",
            "/rewrite/regex/a/b",
            "/respond",
            "/nothing",
            "/headers/a",
            "/split",
        ],
        &[("x-secret", "hidden")],
    ),
    (
        "broken.example.com",
        &[
            "/missing", "/half", "/zero", "/empty", "/none", "/partly", "/filter",
        ],
        &[],
    ),
    ("denied.example.com", &["/", "/a"], &[]),
    ("allowed.example.com", &["/", "/a?b"], &[]),
    (
        "keyed.example.com",
        &["/", "/missing"],
        &[("x-api-key", "key-of-shop")],
    ),
    (
        "keyed.example.com",
        &[
            "/?key=key-of-billing",
            "/missing?a&key=key-of-shop",
            "/a?key=other",
        ],
        &[],
    ),
    ("only.example.org", &["/", "/a"], &[]),
];

/// The host and path of calls of gRPC that rules are for.
const CALLS: [(&str, &[&str]); 3] = [
    (
        "calls.example.com",
        &[
            "/shop.Cart/Get",
            "/shop.Cart/Put",
            "/shop.Item/ListAll",
            "/shop.Missing/Get",
            "/shop.Empty/Get",
        ],
    ),
    ("denied-calls.example.com", &["/shop.Cart/Get"]),
    // An HTTPRoute forwards calls, too.
    ("broken.example.com", &["/missing", "/empty", "/a.B/C"]),
];

/// Requests in an order that the seed determines.
pub(super) struct Dice {
    random: StdRng,
    seed: u64,
    number: usize,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            seed,
            number: 0,
        }
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of.choose(&mut self.random).expect("not empty")
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// Returns the next request.
    pub(super) fn request(&mut self) -> Sent {
        self.number += 1;
        let mut sent = match self.chance(20) {
            true => self.call(),
            false => self.plain(),
        };
        if self.chance(25) {
            sent.path = self.other_path(&sent.path);
        }
        if self.chance(15) {
            sent.path = self.other_query(&sent.path);
        }
        if self.chance(15) {
            sent.method = self.one(&METHODS);
        }
        if self.chance(15) {
            sent.host = self.other_host(&sent.host, sent.http2);
        }
        if self.chance(25) {
            self.change_headers(&mut sent);
        }
        sent
    }

    /// A request that a rule of an HTTPRoute is for.
    fn plain(&mut self) -> Sent {
        let meant = MEANT.choose_weighted(&mut self.random, |(_, paths, _)| paths.len());
        let (host, paths, headers) = *meant.expect("not empty");
        let method = if self.chance(20) { "POST" } else { "GET" };
        let http2 = self.chance(25);
        self.meant(host, (method, self.number), (paths, headers), http2)
    }

    /// A call that a rule of a GRPCRoute is for.
    fn call(&mut self) -> Sent {
        let meant = CALLS.choose_weighted(&mut self.random, |(_, paths)| paths.len());
        let (host, paths) = *meant.expect("not empty");
        let headers: Headers = match self.chance(50) {
            true => &[
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("x-version", "two"),
            ],
            false => &[
                ("content-type", "application/grpc+proto"),
                ("te", "trailers"),
            ],
        };
        self.meant(host, ("POST", self.number), (paths, headers), true)
    }

    fn meant(
        &mut self,
        host: &str,
        (method, number): (&'static str, usize),
        (paths, headers): (&[&str], Headers),
        http2: bool,
    ) -> Sent {
        let is_only = host == "only.example.org";
        let port = match self.chance(if is_only { 80 } else { 3 }) {
            true => 81,
            false if self.chance(35) => 443,
            false => 80,
        };
        let name = if self.chance(85) {
            host
        } else {
            self.one(&HOSTS)
        };
        let headers = headers.iter();
        Sent {
            id: format!("{}/{number}", self.seed),
            port,
            name: name.to_owned(),
            host: host.to_owned(),
            method,
            path: self.one(paths).to_owned(),
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            http2,
        }
    }

    /// A path that is like this one: in case, encoding, slashes or dot segments.
    fn other_path(&mut self, target: &str) -> String {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (target, String::new()),
        };
        let (first, last) = path.split_at(path.len() - 1);
        let path = match self.random.random_range(0..16) {
            0 | 1 => format!("{path}/"),
            2 => path.to_uppercase(),
            3 => format!("/{path}"),
            4 => format!("{path}//a"),
            5 => format!("{path}/../a"),
            6 => format!("/.{path}"),
            7 => format!("/a/%2E%2e{path}"),
            8 if first.starts_with('/') => format!("{first}%{:02x}", last.as_bytes()[0]),
            9 => format!("{path}%2fa"),
            10 => format!("{path}%2"),
            11 => format!("{path};v=1"),
            12 => format!("{path}x"),
            13 => format!("{path}/%252e%252e/a"),
            14 => format!("/{}", first.trim_start_matches('/')),
            _ => format!("{path}/caf%C3%A9/~a"),
        };
        path + &query
    }

    fn other_query(&mut self, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, "q=1"));
        let query = match self.random.random_range(0..10) {
            0 => String::new(),
            1 => "q".to_owned(),
            2 => "q=".to_owned(),
            3 => "q=1&q=2".to_owned(),
            4 => "q=2&q=1".to_owned(),
            5 => "q=%31".to_owned(),
            6 => "page=1x&q=".to_owned(),
            7 => query.to_uppercase(),
            8 => format!("{query}&{query}"),
            _ => format!("&&{query}&="),
        };
        format!("{path}?{query}")
    }

    fn other_host(&mut self, host: &str, http2: bool) -> String {
        match self.random.random_range(0..10) {
            0 | 1 => host.to_uppercase(),
            2 => format!("{host}."),
            3 => format!("{host}:80"),
            4 => format!("{host}:8080"),
            5 => format!("a.{host}"),
            6 => host.replacen(".example", "-example", 1),
            7 if !http2 => format!("{host}:"),
            _ => self.one(&HOSTS).to_owned(),
        }
    }

    fn change_headers(&mut self, sent: &mut Sent) {
        let headers = &mut sent.headers;
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        match self.random.random_range(0..16) {
            0 => add("x-version", "two"),
            1 => add("x-version", "Two"),
            2 => add("x-version", ""),
            3 => add("x-id", "1"),
            4 => add("x-id", "22"),
            5 => add("x-api-key", "key-of-billing"),
            6 => add("x-api-key", ""),
            7 => add("x-secret", "more"),
            8 => add("x_version", "two"),
            9 => add("expect", "a-miracle"),
            10 if !sent.http2 => add("connection", "x-version, x-secret"),
            11 if !sent.http2 => add("host", &sent.host),
            12 => headers.clear(),
            13 => {
                let again = headers.clone();
                headers.extend(again);
            }
            other => {
                // HTTP/2 has no other value of TE.
                let headers = headers.iter_mut().filter(|(name, _)| name != "te");
                headers.for_each(|(_, value)| match other {
                    14 => *value = value.to_uppercase(),
                    _ => value.push('0'),
                });
            }
        }
    }
}
