//! The settings of the controller that are not read: which of them restrict access, so that nobody takes their absence for
//! a controller without restrictions.

use std::collections::BTreeMap;

use super::model::{Name, Source};
use super::report::Outcome::NotPossible;
use super::report::Report;

/// Keys of the ConfigMap of the controller that restrict access, or protect headers that backends trust.
const RESTRICTIONS: [&str; 11] = [
    "block-cidrs",
    "block-referers",
    "block-user-agents",
    "denylist-source-range",
    "enable-modsecurity",
    "global-auth-url",
    "http-snippet",
    "location-snippet",
    "proxy-set-headers",
    "server-snippet",
    "whitelist-source-range",
];

/// Reports that the ConfigMap of the controller is not read. `name` is what the command line says.
pub(super) fn report(source: &Source, name: Option<&Name>, report: &mut Report) {
    let keys = RESTRICTIONS.join(", ");
    if let Some(name) = name {
        let text = format!(
            "it is not in the input, so that no setting of the controller is read: add it. These keys restrict access: {keys}"
        );
        report.add(format!("ConfigMap {name}"), "", NotPossible, text);
        return;
    }
    report.notice(&format!(
        "Settings of the controller are not read without --controller-config. These keys of its ConfigMap restrict access: {keys}."
    ));
    for (name, data) in &source.config_maps {
        let found = restrictions(data);
        if !found.is_empty() {
            let text = format!(
                "it is not read. If it is that of the controller, it restricts access ({}): pass --controller-config {name}",
                found.join(", ")
            );
            report.add(format!("ConfigMap {name}"), "", NotPossible, text);
        }
    }
}

/// Returns the keys of a ConfigMap that restrict access.
fn restrictions(data: &BTreeMap<String, String>) -> Vec<&'static str> {
    let is_set = |key: &&str| {
        data.get(*key)
            .is_some_and(|value| !["", "false"].contains(&value.trim()))
    };
    RESTRICTIONS.into_iter().filter(is_set).collect()
}
