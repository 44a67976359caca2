//! The form of a translation in goldens: what differs from that of healthy objects. Different translations have different
//! forms, except for the fingerprints of certificates, which are generated for each run.

use std::collections::BTreeMap;

use portcullis::ir::BindReport;
use portcullis::status::BoundReport;
use portcullis::translate::Translation;
use serde_json::{Value, json};

use crate::configuration::{short_data_planes, short_ir};
use crate::status::short_status;

pub(crate) use crate::yaml::yaml;

pub(crate) fn difference(expected: &str, actual: &str) -> String {
    let first = expected
        .lines()
        .zip(actual.lines())
        .position(|(one, two)| one != two);
    let from = first.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    let part = |text: &str| {
        let lines: Vec<_> = text.lines().skip(from.saturating_sub(3)).take(12).collect();
        lines.join("\n")
    };
    format!("expected\n{}\nbut got\n{}", part(expected), part(actual))
}

pub(crate) fn shown(translation: &Translation, binds: &Option<BindReport>) -> Value {
    short(&full(translation, binds))
}

/// Returns everything that a translation serializes.
pub(crate) fn full(translation: &Translation, binds: &Option<BindReport>) -> Value {
    let report = match binds {
        Some(binds) => BoundReport::default().follow(translation.report.clone(), binds),
        None => translation.report.clone(),
    };
    let planes = translation.data_planes.iter();
    let planes: BTreeMap<_, _> = planes
        .map(|(name, plane)| (name.to_string(), plane))
        .collect();
    json!({
        "dataPlanes": planes,
        "ir": translation.ir,
        "problems": report.problems().count(),
        "status": report,
    })
}

/// Omits what healthy objects have.
pub(crate) fn short(full: &Value) -> Value {
    let (planes, ir) = (&full["dataPlanes"], &full["ir"]);
    let mut shown = json!({"ir": short_ir(ir), "status": short_status(&full["status"], ir)});
    if *planes != json!({}) {
        shown["dataPlanes"] = short_data_planes(planes);
    }
    if full["problems"] != 0 {
        shown["problems"] = full["problems"].clone();
    }
    shown
}
