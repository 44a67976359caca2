//! Random requests for the hosts and paths that configurations have.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use portcullis::ir::canonical_path::CanonicalPath;
use portcullis::table::RequestView;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;

use crate::{HOSTS, PATHS};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) host: &'static str,
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) query: Option<&'static str>,
    pub(crate) headers: HeaderMap,
}

impl Request {
    pub(crate) fn view(&self) -> RequestView<'_> {
        RequestView {
            host: self.host,
            method: &self.method,
            path: CanonicalPath::new(self.path).unwrap(),
            query: self.query,
            headers: &self.headers,
            added: &[],
            upgrade: None,
        }
    }
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let method = select(vec![Method::GET, Method::POST]);
    let queries = vec![
        "p=1",
        "q=2&p=1",
        "p=%31&q=+&p=2",
        "p",
        "q=%C3%A9",
        "p=%ff",
        "",
    ];
    let values = select(vec!["1", "2", "1,2", "é", "", "\u{7f}"]);
    let names = select(vec!["x-a", "x-b"]);
    let headers = vec((names, values), 0..4).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            // The one value that is invalid as a header represents one that is not UTF-8.
            let value = HeaderValue::from_bytes(value.as_bytes())
                .unwrap_or_else(|_| HeaderValue::from_bytes(b"\xff").unwrap());
            headers.append(name, value);
        }
        headers
    });
    let headers = (headers, any::<bool>()).prop_map(|(mut headers, is_grpc)| {
        if is_grpc {
            let value = HeaderValue::from_static("application/grpc");
            headers.insert(CONTENT_TYPE, value);
        }
        headers
    });
    let query = weighted(0.7, select(queries));
    (
        select(&HOSTS[..]),
        method,
        select(&PATHS[..]),
        query,
        headers,
    )
        .prop_map(|(host, method, path, query, headers)| Request {
            host,
            method,
            path,
            query,
            headers,
        })
}
