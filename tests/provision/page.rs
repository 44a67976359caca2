//! The documentation of installation and GatewayParameters: examples are valid, and the field table
//! matches the CRD.

use std::fs;
use std::path::PathBuf;

use portcullis::api;
use portcullis::cli::value::Span;
use portcullis::provision::{GATEWAY_CLASS_LABEL, GATEWAY_LABEL};
use portcullis::settings::container_port;
use serde_json::Value;

use crate::documents;

/// The line before the table.
const HEAD: &str = "| field | type | what |\n|---|---|---|\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/gateway-parameters.md")
}

#[test]
fn examples_are_accepted() {
    let mut seen = 0;
    for page in ["first-route.md", "gateway-parameters.md", "install.md"] {
        let page = fs::read_to_string(path().with_file_name(page)).unwrap();
        let blocks = page.split("```yaml\n").skip(1);
        let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
        for value in blocks.flat_map(documents) {
            if value["kind"] == "NetworkPolicy" {
                check_policy(&value);
                continue;
            }
            // The demo backend.
            if value["kind"] == "Deployment" {
                continue;
            }
            let admission = api::admit(value.clone());
            assert!(admission.findings.is_empty(), "{:?}", admission.findings);
            assert!(admission.object.is_some(), "of no watched kind: {value}");
            seen += 1;
        }
    }
    assert!(seen >= 6, "only {seen} examples");
}

/// The NetworkPolicy of a Gateway's pods admits clients on the container ports.
fn check_policy(policy: &Value) {
    let spec = &policy["spec"];
    let selected = spec["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(selected.contains_key(GATEWAY_LABEL) && selected.contains_key(GATEWAY_CLASS_LABEL));
    let ports = spec["ingress"][0]["ports"].as_array().unwrap().iter();
    let ports: Vec<_> = ports.map(|port| port["port"].as_u64().unwrap()).collect();
    assert_eq!(ports, [80, 443].map(|port| u64::from(container_port(port))));
}

#[test]
fn table_lists_all_crd_fields() {
    let crd = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/crds/gatewayparameters.yaml");
    let crd = documents(&fs::read_to_string(crd).unwrap()).remove(0);
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut table = String::new();
    for (name, group) in schema["properties"]["spec"]["properties"]
        .as_object()
        .unwrap()
    {
        table.push_str(&row(name, group));
        for (field, schema) in group["properties"].as_object().into_iter().flatten() {
            table.push_str(&row(&format!("{name}.{field}"), schema));
        }
    }
    let page = fs::read_to_string(path()).unwrap();
    let (text, known) = page.split_once(HEAD).unwrap_or((&page, ""));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(), format!("{text}{HEAD}{table}")).unwrap();
        return;
    }
    assert!(
        known == table,
        "UPDATE_DOCS=1 writes the table of the page anew"
    );
}

fn row(name: &str, schema: &Value) -> String {
    let allowed = schema["enum"].as_array().map(|values| {
        let values = values
            .iter()
            .map(|value| format!("`{}`", value.as_str().unwrap()));
        values.collect::<Vec<_>>().join(", ")
    });
    let kind = match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => "number or text".to_owned(),
        Some("array") => "list".to_owned(),
        Some("object") if schema["additionalProperties"].is_object() => "map".to_owned(),
        Some("string")
            if schema["pattern"]
                .as_str()
                .is_some_and(|pattern| pattern.contains("ms")) =>
        {
            "time".to_owned()
        }
        Some("string") => allowed.unwrap_or_else(|| "text".to_owned()),
        other => other.unwrap_or_default().to_owned(),
    };
    let what = schema["description"].as_str().unwrap();
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("| `{name}` | {kind} | {} |\n", what.replace('|', "\\|"))
}

/// Defaults in the CRD's descriptions match those of the flags.
#[test]
fn crd_time_defaults_match_flags() {
    let crd = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/crds/gatewayparameters.yaml");
    let crd = documents(&fs::read_to_string(crd).unwrap()).remove(0);
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let command = portcullis::cli::command();
    let run = command.find_subcommand("run").unwrap();
    let flags: Vec<_> = run.get_arguments().collect();
    let mut compared = 0;
    for (group, ending) in [("timeouts", "_timeout"), ("drain", "")] {
        for (field, schema) in spec["properties"][group]["properties"].as_object().unwrap() {
            let mut flag = if group == "drain" {
                "drain_".to_owned()
            } else {
                String::new()
            };
            for letter in field.chars() {
                if letter.is_uppercase() {
                    flag.push('_');
                }
                flag.push(letter.to_ascii_lowercase());
            }
            flag.push_str(ending);
            let argument = flags
                .iter()
                .find(|argument| argument.get_id() == flag.as_str());
            let default = argument
                .unwrap_or_else(|| panic!("no flag {flag}"))
                .get_default_values();
            let default: Span = default[0].to_str().unwrap().parse().unwrap();
            let text = schema["description"].as_str().unwrap();
            let described = text
                .strip_suffix(" by default.")
                .and_then(|text| text.rsplit(' ').next());
            assert_eq!(
                described.unwrap().parse::<Span>().unwrap(),
                default,
                "{field}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}
