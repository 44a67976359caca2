//! Feeds sets of objects that begin as those of a golden and lose, double, move and change fields on the way. They are
//! not validated: what comes after admission has to bear anything. Checks that nothing panics up to the table, and that
//! the result depends on nothing but the objects: not on chance, on their order or on an earlier translation of them.

use std::collections::HashSet;
use std::sync::Arc;

use portcullis::ir::Ir;
use portcullis::snapshot::Snapshot;
use portcullis::table::{Port, Table};
use portcullis::translate::{Mode, Options, Translation, translate};
use serde_json::Value;

use crate::mutate::{self, MutateBytes};
use crate::objects;

/// Checks one input. False for what is no set of documents.
pub fn check(data: &[u8]) -> bool {
    let text = std::str::from_utf8(data).ok();
    let documents = text.and_then(objects::documents);
    documents.as_deref().map(check_documents).is_some()
}

/// Changes the first `size` bytes of `data`, and returns how many there are then.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    bytes: MutateBytes<'_>,
) -> usize {
    mutate::documents(data, size, max_size, seed, bytes)
        .unwrap_or_else(|| bytes(data, size, max_size))
}

fn check_documents(documents: &[Value]) {
    let in_cluster = |value: &Value| value.pointer("/test/mode").is_some();
    let mut options = Options::default();
    if documents.iter().any(in_cluster) {
        options.mode = Mode::Kubernetes;
    }
    let objects = objects::decode(documents);
    let translated = |snapshot: &Snapshot, previous: Option<&Ir>| {
        let translation = translate(snapshot, previous, &options);
        (bytes(&translation), translation.ir)
    };
    let snapshot = objects::snapshot(&objects);
    let (first, ir) = translated(&snapshot, None);
    assert!(
        translated(&snapshot, None).0 == first,
        "the same objects give other bytes"
    );
    let shuffled = objects::snapshot(
        objects
            .iter()
            .skip(1)
            .step_by(2)
            .rev()
            .chain(objects.iter().step_by(2)),
    );
    assert!(
        translated(&shuffled, None).0 == first,
        "another order gives other bytes"
    );
    let (second, same) = translated(&snapshot, Some(&ir));
    assert!(
        second == first,
        "an earlier translation of the same objects gives other bytes"
    );

    let table = Table::build(Arc::new(ir), None);
    let next = Table::build(Arc::new(same), Some(&table));
    for (before, after) in table.ports().iter().zip(next.ports()) {
        let same = Arc::ptr_eq(before, after);
        assert!(
            same || !has_own_names(before),
            "{:?} is built again",
            before.bind()
        );
    }
}

/// Whether no two listeners have one name, as admission would see to.
fn has_own_names(port: &Port) -> bool {
    let names: HashSet<_> = port
        .ir
        .listeners
        .iter()
        .map(|listener| &listener.key)
        .collect();
    names.len() == port.ir.listeners.len()
}

/// What the world sees of a translation.
fn bytes(translation: &Translation) -> String {
    let ir = serde_json::to_string(&translation.ir).expect("an IR is serializable");
    let report = serde_json::to_string(&translation.report).expect("a report is serializable");
    let problems = translation.report.problems();
    let problems: String = problems
        .map(|(object, problem)| format!("\n{object}: {problem}"))
        .collect();
    format!("{ir}\n{report}{problems}")
}
