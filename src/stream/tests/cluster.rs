//! The updates about a cluster as pods get them.

use serde_json::{Value, json};

/// Returns a line as a controller of a later version says it: some policies have a section or a value that the pod cannot read.
fn of_later_version(line: &str) -> String {
    let mut line: Value = serde_json::from_str(line).unwrap();
    if let Some(put) = line
        .get_mut("put")
        .filter(|it| it["kind"] == "AccessPolicy")
    {
        let targets = put["spec"]["targetRefs"].clone();
        match put["metadata"]["generation"].as_u64().unwrap() % 5 {
            0 => put["spec"] = json!({"targetRefs": targets, "later": {}}),
            1 => put["spec"] = json!({"targetRefs": targets, "ipRules": {"deny": {"later": 1}}}),
            3 => put["spec"]["ipRules"] = json!({"later": ["192.0.2.1"]}),
            _ => {}
        }
    }
    line.to_string()
}

/// Returns an update whose objects come in another order, beside one of a kind that the pod does not know.
pub(super) fn reordered(update: &[u8], order: usize) -> Vec<u8> {
    let unknown = json!({"put": {"apiVersion": "portcullis.dev/v9", "kind": "Drawbridge", "metadata": {"name": "a"}}});
    let mut lines = Vec::new();
    let mut objects: Vec<String> = Vec::new();
    for line in std::str::from_utf8(update).unwrap().lines() {
        if line.starts_with("{\"put\"") || line.starts_with("{\"delete\"") {
            objects.push(of_later_version(line));
            continue;
        }
        if !objects.is_empty() {
            objects.push(unknown.to_string());
            let middle = order % objects.len();
            objects.rotate_left(middle);
            if order % 2 == 1 {
                objects.reverse();
            }
        }
        lines.append(&mut objects);
        lines.push(line.to_owned());
    }
    assert!(objects.is_empty(), "an update has no end");
    lines
        .iter()
        .flat_map(|it| format!("{it}\n").into_bytes())
        .collect()
}
