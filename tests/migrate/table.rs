//! Tables of requests and answers (`answers.txt`), written from the documentation of ingress-nginx and nginx: what a client
//! asks, what it gets, and what the backend gets. Does not know how requests are sent.
//!
//! ```text
//! METHOD URL [BYTES OF THE BODY]     GRPC is a call over HTTP/2
//! from ADDRESS                       the client in a PROXY protocol header
//! > NAME: VALUE                      header of the request
//! STATUS [SERVICE [PATH]]            without a Service, no backend answers
//! < NAME: VALUE                      header of the response
//! >> NAME: VALUE                     header that the backend gets
//! ! SETTING                          the answer differs here, as the report says of this setting
//! ```
//!
//! `-` is a header that is absent, and `…` any text. A status of 0 is a connection without a response. An empty line ends a row.

use http::HeaderMap;
use serde_json::Value;

/// Names and values of headers.
type Headers = Vec<(String, String)>;

/// A request, and what ingress-nginx answers.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// The first line in the table, from 1.
    pub(crate) line: usize,
    pub(crate) method: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) body: usize,
    pub(crate) from: Option<String>,
    pub(crate) headers: Headers,
    status: u16,
    service: Option<String>,
    backend_path: Option<String>,
    response: Headers,
    received: Headers,
    /// The setting of which the report says that the answer differs.
    pub(crate) differs: Option<String>,
}

/// What a client gets: the status is 0 without a response.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// What the backend says that it got; null if no backend answers.
    pub(crate) received: Value,
}

impl Row {
    fn new(line: usize, text: &str) -> Self {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap_or_default().to_owned();
        let (method, url, body) = (next(), next(), next());
        let (scheme, rest) = url.split_once("://").unwrap();
        let (host, path) = rest.split_at(rest.find('/').unwrap());
        Self {
            line,
            method,
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
            body: body.parse().unwrap_or_default(),
            ..Self::default()
        }
    }

    fn add(&mut self, line: &str) {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        let header = || {
            let (name, value) = rest.split_once(": ").unwrap_or((rest, ""));
            (name.to_owned(), value.to_owned())
        };
        match mark {
            "from" => self.from = Some(rest.to_owned()),
            ">" => self.headers.push(header()),
            "<" => self.response.push(header()),
            ">>" => self.received.push(header()),
            "!" => self.differs = Some(rest.to_owned()),
            status => {
                let mut words = rest.split(' ').filter(|word| !word.is_empty());
                self.status = status.parse().unwrap();
                self.service = words.next().map(str::to_owned);
                self.backend_path = words.next().map(str::to_owned);
            }
        }
    }

    /// Returns what of an answer is not as ingress-nginx answers.
    pub(crate) fn differences(&self, served: &Served) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, expected: &str, got: &str| {
            if !fits(expected, got) {
                found.push(format!("{what} is `{got}` and not `{expected}`"));
            }
        };
        let received = |name: &str| served.received[name].as_str().unwrap_or(ABSENT);
        compare(
            "the status",
            &self.status.to_string(),
            &served.status.to_string(),
        );
        let service = self.service.as_deref().unwrap_or(ABSENT);
        compare("the Service", service, received("service"));
        if let Some(path) = &self.backend_path {
            compare("the path of the backend", path, received("path"));
        }
        for (name, expected) in &self.response {
            let values = served.headers.get_all(name.as_str()).iter();
            let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
            let values: Vec<String> = values.map(|value| value.into_owned()).collect();
            let matching = values.iter().find(|value| fits(expected, value));
            let got = matching.or(values.first()).map_or(ABSENT, String::as_str);
            compare(name, expected, got);
        }
        for (name, expected) in &self.received {
            let got = served.received["headers"][name.as_str()].as_str();
            let what = format!("{name} of the backend");
            compare(&what, expected, got.unwrap_or(ABSENT));
        }
        found
    }
}

/// Stands for a header or a Service that is absent.
const ABSENT: &str = "-";

/// Reports whether a text is as expected, where `…` is any text.
fn fits(expected: &str, got: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| got.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    // A header that is absent has no value.
    got != ABSENT && rest.ends_with(last)
}

/// Parses a table.
pub(crate) fn rows(text: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        match line {
            "" => is_open = false,
            comment if comment.starts_with('#') => {}
            line if is_open => rows.last_mut().unwrap().add(line),
            line => {
                is_open = true;
                rows.push(Row::new(index + 1, line));
            }
        }
    }
    rows
}

#[test]
fn rows_are_judged() {
    let table = "# A table.\n\nGET https://a.example.com/x?y=z\n> accept: text/html\n200 one /x…\n< location: -\n\
                 < set-cookie: a=…; Path=/…\n>> x-real-ip: 127.0.0.1\n\nPOST http://b.example.com/ 7\nfrom 10.0.0.1\n413\n! body\n";
    let rows = rows(table);
    let [first, second] = &*rows else {
        panic!("{rows:#?}")
    };
    assert_eq!((&*first.host, &*first.path), ("a.example.com", "/x?y=z"));
    assert_eq!((second.line, second.body), (10, 7));
    assert_eq!(second.from.as_deref(), Some("10.0.0.1"));
    assert_eq!(second.differs.as_deref(), Some("body"));
    let served = |path: &str, cookie: &str| Served {
        status: 200,
        headers: HeaderMap::from_iter([(http::header::SET_COOKIE, cookie.parse().unwrap())]),
        received: serde_json::json!({
            "service": "one", "path": path, "headers": {"x-real-ip": "127.0.0.1"},
        }),
    };
    let none = Vec::<String>::new();
    let good = served("/x?y=z", "a=1; Path=/; HttpOnly");
    assert_eq!(first.differences(&good), none);
    for (path, cookie) in [("/y", "a=1; Path=/"), ("/x", "b=1; Path=/")] {
        assert_eq!(first.differences(&served(path, cookie)).len(), 1);
    }
    assert_eq!(first.differences(&Served::default()).len(), 5);
    // A backend that must not answer has answered.
    assert_eq!(second.differences(&good).len(), 2);
}
