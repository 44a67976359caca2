//! Feeds requests to the tables of all goldens, as they come and as the proxy would normalise their paths. Checks that
//! finding a rule and applying its filters never panics, that `explain` chooses what `find` finds, and that no filter
//! leads to a target without a path.

use std::sync::LazyLock;

use http::request::Parts;
use portcullis::filter::{self, Level, RequestFacts, ResponsePhase, Scheme, Verdict};
use portcullis::ir::canonical_path::CanonicalPath;
use portcullis::ir::cors::is_preflight;
use portcullis::ir::path_normalization as target;
use portcullis::ir::request_path::RequestPath;
use portcullis::table::{Listener, MatchVerdict, Port, RequestView, Table};

use crate::{goldens, objects, request};

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let tables = goldens::ALL.iter().map(|golden| objects::table(golden));
    tables
        .filter(|table| table.rules().next().is_some())
        .collect()
});

/// Checks one input. False for what is no request.
pub fn check(data: &[u8]) -> bool {
    let Some(parts) = request::read(data) else {
        return false;
    };
    let host = parts
        .headers
        .get("host")
        .and_then(|host| host.to_str().ok());
    let host = host
        .or(parts.uri.host())
        .unwrap_or_default()
        .to_ascii_lowercase();
    for port in TABLES.iter().flat_map(Table::ports) {
        check_port(port, &parts, &host);
    }
    true
}

fn check_port(port: &Port, parts: &Parts, host: &str) {
    port.server(Some(host));
    let Some(listener) = port.listener(host) else {
        return;
    };
    let path = parts.uri.path();
    try_path(port, listener, parts, host, path);
    if let Ok(normal) = target::normalize(path)
        && normal != path
    {
        try_path(port, listener, parts, host, &normal);
    }
}

fn try_path(port: &Port, listener: &Listener, parts: &Parts, host: &str, path: &str) {
    let Some(path) = CanonicalPath::new(path) else {
        return;
    };
    let view = RequestView {
        host,
        method: &parts.method,
        path,
        query: parts.uri.query(),
        headers: &parts.headers,
        added: &[],
        upgrade: None,
    };
    let rule = listener.find(&view);
    let considered = listener.explain(&view);
    let chosen = considered
        .iter()
        .find(|one| one.verdict == MatchVerdict::Chosen);
    assert_eq!(
        chosen.map(|one| &one.rule.ir.id),
        rule.map(|rule| &rule.ir.id),
        "{view:?}"
    );
    let Some(rule) = rule else {
        return;
    };
    let facts = RequestFacts {
        scheme: Scheme::Http,
        host,
        listener_port: port.bind().port,
        is_preflight: is_preflight(&parts.method, &parts.headers),
    };
    let (mut changed, mut known) = (parts.clone(), RequestPath::default());
    let of_backend = rule.select(rule.draw(None));
    let of_backend = of_backend.and_then(|backend| backend.filters());
    let of_backend = of_backend.map_or(&[][..], |filters| filters.all);
    let mut phase = ResponsePhase::default();
    let levels = [
        (&rule.ir.filters[..], Level::Rule),
        (of_backend, Level::Backend),
    ];
    for (filters, level) in levels {
        let mut run = filters.iter().map(|filter| {
            filter::request(
                filter,
                level,
                (&mut changed, &mut known),
                &facts,
                &mut phase,
            )
        });
        if run.all(|verdict| matches!(verdict, Ok(Verdict::Continue))) {
            let path = changed.uri.path();
            assert!(
                path.starts_with('/') || path == parts.uri.path(),
                "{}",
                changed.uri
            );
        }
    }
    phase.apply(&mut changed.headers);
}
