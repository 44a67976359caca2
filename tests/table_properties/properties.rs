//! Properties of the table of every configuration.

use std::sync::Arc;

use portcullis::ir::ListenerKey;
use portcullis::ir::canonical_path::CanonicalPath;
use portcullis::ir::path_normalization::normalize_with;
use portcullis::table::{self, MatchVerdict, RequestView, Table};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use crate::BIND;
use crate::configuration::{copy, ir, mixed};
use crate::request::{Request, request};
use crate::scan::{fits, scan};

fn find<'a>(
    table: &'a Table,
    request: &Request,
) -> Option<(&'a ListenerKey, Option<&'a table::Rule>)> {
    let listener = table.port(&BIND)?.listener(request.host)?;
    let rule = listener.find(&request.view());
    Some((&listener.ir.key, rule.map(|rule| &**rule)))
}

/// Returns a comparable description of what a table does with a request.
fn outcome(table: &Table, request: &Request) -> String {
    let Some((listener, rule)) = find(table, request) else {
        return "no listener".into();
    };
    let mut text = listener.to_string();
    let Some(rule) = rule else {
        return text + ", no rule";
    };
    text += &format!(", {:?}", rule.ir);
    let shares = rule.backends().iter();
    let shares = shares.flat_map(|share| {
        let of_filters = share.filters().into_iter().flat_map(|own| own.targets());
        [&share.target].into_iter().chain(of_filters)
    });
    for target in shares.chain(rule.filters().targets()) {
        text += &match target {
            table::BackendTarget::Backend(backend) => {
                let addresses = backend.endpoints();
                let addresses: Vec<_> = addresses.iter().map(|it| it.address).collect();
                format!(", {} {:?} {addresses:?}", backend.id, backend.protocol)
            }
            table::BackendTarget::Invalid(reason) => format!(", {reason}"),
        };
    }
    text
}

/// Spells a path in another way that RFC 3986, 6.2.2 calls equivalent, with more slashes.
fn disguised(path: &str, choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut rest = path;
    let mut text = String::new();
    while let Some(character) = rest.chars().next() {
        let choice = choices.next().unwrap_or_default() % 3;
        let escape = rest.get(..3).filter(|_| character == '%');
        let (taken, spelled) = match (escape, choice) {
            (Some(escape), 0) => (3, escape.to_ascii_lowercase()),
            (Some(escape), _) => (3, escape.to_owned()),
            (None, 1) if character.is_ascii_alphanumeric() => {
                (1, format!("%{:02x}", u32::from(character)))
            }
            (None, 2) if character.is_ascii_alphanumeric() => {
                (1, format!("%{:02X}", u32::from(character)))
            }
            (None, 2) if character == '/' => (1, "//".to_owned()),
            (None, _) => (character.len_utf8(), character.to_string()),
        };
        text.push_str(&spelled);
        rest = &rest[taken..];
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn finds_what_a_scan_finds(ir in ir(), requests in vec(request(), 20)) {
        let table = Table::build(Arc::new(ir), None);
        for request in requests {
            let found = find(&table, &request);
            let found = found.map(|(listener, rule)| (listener, rule.map(|rule| &rule.ir.id)));
            prop_assert_eq!(found, scan(&table.ir, &request), "{:?}", request);
        }
    }

    #[test]
    fn equivalent_spellings_find_one_rule(
        ir in ir(),
        requests in vec((request(), vec(any::<u8>(), 1..12)), 20),
    ) {
        let table = Table::build(Arc::new(ir), None);
        let port = table.port(&BIND).unwrap();
        for (request, choices) in requests {
            let (Some(listener), true) = (port.listener(request.host), request.path.starts_with('/')) else {
                continue;
            };
            let spelled = disguised(request.path, &choices);
            let find = |path: &str| {
                let normalized = normalize_with(path, None).unwrap();
                let path = CanonicalPath::new(normalized.canonical()).unwrap();
                let found = listener.find(&RequestView { path, ..request.view() });
                (path.to_string(), found.map(|rule| rule.ir.id.clone()))
            };
            prop_assert_eq!(find(&spelled), find(request.path), "{}", spelled);
        }
    }

    #[test]
    fn explains_what_it_finds(ir in ir(), requests in vec(request(), 10)) {
        let table = Table::build(Arc::new(ir), None);
        let port = table.port(&BIND).unwrap();
        for request in requests {
            let Some(listener) = port.listener(request.host) else {
                continue;
            };
            let considered = listener.explain(&request.view());
            let chosen = considered.iter().find(|it| it.verdict == MatchVerdict::Chosen);
            let found = listener.find(&request.view());
            prop_assert_eq!(chosen.map(|it| &it.rule.ir.id), found.map(|rule| &rule.ir.id));
            for it in &considered {
                let differs = matches!(it.verdict, MatchVerdict::Differs(_));
                prop_assert_eq!(!differs, fits(&it.rule.ir.matches[it.index], &request));
            }
        }
    }

    #[test]
    fn result_does_not_depend_on_the_previous_table(
        one in ir(),
        two in ir(),
        requests in vec(request(), 20),
    ) {
        let first = Table::build(Arc::new(one), None);
        let two = Arc::new(two);
        let second = Table::build(two.clone(), Some(&first));
        let fresh = Table::build(two, None);
        prop_assert_eq!(second.generation, 2);
        prop_assert_eq!(second.rules().count(), fresh.rules().count());
        for request in requests {
            prop_assert_eq!(outcome(&second, &request), outcome(&fresh, &request));
        }
    }

    #[test]
    fn serves_the_same_after_a_sequence_of_changes(
        steps in vec((ir(), vec(any::<u8>(), 16)), 5),
        requests in vec(request(), 20),
    ) {
        let mut table = Table::empty();
        for (step, choices) in steps {
            let ir = Arc::new(mixed(&table.ir, &step, &choices));
            table = Table::build(ir.clone(), Some(&table));
            let fresh = Table::build(ir, None);
            prop_assert_eq!(table.rules().count(), fresh.rules().count());
            for request in &requests {
                prop_assert_eq!(outcome(&table, request), outcome(&fresh, request));
            }
        }
    }

    #[test]
    fn reuses_every_node_of_an_equal_configuration(ir in ir()) {
        let first = Table::build(Arc::new(copy(&ir)), None);
        let second = Table::build(Arc::new(ir), Some(&first));
        prop_assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
        for (one, two) in first.rules().zip(second.rules()) {
            prop_assert!(Arc::ptr_eq(one, two));
        }
        for (one, two) in first.backends().zip(second.backends()) {
            prop_assert!(Arc::ptr_eq(one, two));
        }
    }
}
