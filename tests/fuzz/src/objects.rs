//! From the text of an input to objects, a snapshot and a table. Unlike a provider it validates nothing: what comes after
//! admission has to bear anything.

use std::collections::HashSet;
use std::sync::Arc;

use portcullis::api::object::{Kind, Object};
use portcullis::snapshot::Snapshot;
use portcullis::table::Table;
use portcullis::translate::{Options, translate};
use serde_json::Value;

use crate::goldens;

const SEPARATOR: &str = "\n---\n";

/// The documents of a text; `None` when one of them is neither JSON nor YAML.
pub fn documents(text: &str) -> Option<Vec<Value>> {
    let document = |text: &str| {
        // Mutated inputs are JSON, which is read many times faster.
        let json = serde_json::from_str(text).ok();
        json.or_else(|| serde_saphyr::from_str(text).ok())
    };
    text.split(SEPARATOR).map(document).collect()
}

/// The text of documents, in JSON; a provider would read it as YAML.
pub fn text(documents: &[Value]) -> String {
    let lines: Vec<String> = documents.iter().map(Value::to_string).collect();
    lines.join(SEPARATOR)
}

/// The objects among documents, each name once, with the certificates of the goldens.
pub fn decode(documents: &[Value]) -> Vec<Object> {
    let mut seen = HashSet::new();
    documents
        .iter()
        .filter_map(|value| {
            let text = |name: &str| value.get(name).and_then(Value::as_str);
            let kind = Kind::find(text("apiVersion")?, text("kind")?)?;
            let mut value = value.clone();
            goldens::with_certificates(&mut value);
            let object = kind.decode(&value).ok()?;
            let meta = object.meta();
            let name = (kind.kind, meta.namespace.clone(), meta.name.clone());
            seen.insert(name).then_some(object)
        })
        .collect()
}

/// A snapshot of these objects, put in in this order.
pub fn snapshot<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for object in objects {
        snapshot.insert(object.clone());
    }
    snapshot
}

/// The table that serves these documents.
pub fn table(documents: &[Value]) -> Table {
    let objects = decode(documents);
    let translation = translate(&snapshot(&objects), None, &Options::default());
    Table::build(Arc::new(translation.ir), None)
}
