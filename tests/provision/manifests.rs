//! The files of `deploy` against the program: CRDs against the embedded schemas, rights against what is watched and made,
//! copies against their originals.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use portcullis::api::Kind;
use portcullis::provision::ChildKind;
use serde_json::{Map, Value, json};

use crate::documents;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of the files in a folder.
fn names(folder: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join(folder)).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A schema of a CRD without what has no part in validation, spelled as ours are.
fn of_crd(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut out = Map::new();
            for (key, value) in fields {
                match key.as_str() {
                    "description" if value.is_string() => {}
                    "x-kubernetes-validations" => {
                        out.insert("rules".to_owned(), value.clone());
                    }
                    // Names of properties are no keywords.
                    "properties" => {
                        let members = value.as_object().unwrap().iter();
                        let members = members.map(|(name, schema)| (name.clone(), of_crd(schema)));
                        out.insert(key.clone(), Value::Object(members.collect()));
                    }
                    "default" | "enum" => {
                        out.insert(key.clone(), value.clone());
                    }
                    _ => {
                        out.insert(key.clone(), of_crd(value));
                    }
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items.iter().map(of_crd).collect(),
        leaf => leaf.clone(),
    }
}

/// An embedded schema with its shared parts in their places.
fn of_ours(node: &Value, shared: &[Value]) -> Value {
    match node {
        Value::Object(fields) => match fields.get("ref").and_then(Value::as_u64) {
            Some(index) => of_ours(&shared[index as usize], shared),
            None => {
                let fields = fields.iter().filter(|(key, _)| *key != "defs");
                let fields = fields.map(|(key, value)| (key.clone(), of_ours(value, shared)));
                Value::Object(fields.collect())
            }
        },
        Value::Array(items) => items.iter().map(|item| of_ours(item, shared)).collect(),
        leaf => leaf.clone(),
    }
}

#[test]
fn crds_agree_with_the_schemas_that_folders_are_checked_against() {
    for file in names("deploy/crds") {
        let crd = documents(&read(&format!("deploy/crds/{file}"))).remove(0);
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let version = &spec["versions"][0];
        let api_version = format!("{}/{}", text(&spec["group"]), text(&version["name"]));
        let kind = Kind::find(&api_version, &text(&spec["names"]["kind"])).expect(&file);
        assert_eq!(spec["scope"] == "Namespaced", kind.namespaced, "{file}");
        let mut expected = of_crd(&version["schema"]["openAPIV3Schema"]);
        for envelope in ["apiVersion", "kind", "metadata", "status"] {
            expected["properties"]
                .as_object_mut()
                .unwrap()
                .remove(envelope);
        }
        let stem = file.strip_suffix(".yaml").unwrap();
        let ours: Value =
            serde_json::from_str(&read(&format!("src/api/schema/{stem}.json"))).unwrap();
        let shared = ours["defs"].as_array().unwrap();
        assert_eq!(
            of_ours(&ours, shared),
            expected,
            "{file}: src/api/schema/generate writes the schema anew"
        );
    }
}

#[test]
fn every_field_of_a_crd_is_described() {
    fn undescribed(schema: &Value, place: &str, found: &mut Vec<String>) {
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            if !member["description"].is_string() {
                found.push(place.clone());
            }
            undescribed(member, &place, found);
            undescribed(&member["items"], &place, found);
        }
    }
    for file in names("deploy/crds") {
        let crd = documents(&read(&format!("deploy/crds/{file}"))).remove(0);
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = Vec::new();
        undescribed(&schema["properties"]["spec"], "spec", &mut found);
        assert!(found.is_empty(), "{file}: {found:?}");
    }
}

#[test]
fn the_chart_carries_the_crds() {
    let chart = "deploy/helm/portcullis/crds";
    assert_eq!(
        names("deploy/crds"),
        names(chart),
        "deploy/render copies them"
    );
    for file in names(chart) {
        let (one, two) = (
            read(&format!("deploy/crds/{file}")),
            read(&format!("{chart}/{file}")),
        );
        assert!(
            one == two,
            "{chart}/{file} differs: deploy/render copies it"
        );
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = documents(&read("deploy/helm/portcullis/Chart.yaml")).remove(0);
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let image = format!(
        "image: \"ghcr.io/portcullis/portcullis:{}\"",
        env!("CARGO_PKG_VERSION")
    );
    assert!(
        read("deploy/install.yaml").contains(&image),
        "deploy/render writes it"
    );
}

/// Every value of the chart is in the schema of values, and has another value where all are tried.
#[test]
fn every_value_of_the_chart_is_checked_and_tried() {
    fn compare(values: &Value, tried: &Value, schema: &Value, place: &str, seen: &mut usize) {
        let fields = values.as_object().filter(|fields| !fields.is_empty());
        // A map is a value where its keys are not ours.
        match fields.filter(|_| schema["additionalProperties"] == false) {
            Some(fields) => {
                let known = schema["properties"].as_object().unwrap().keys();
                let known: BTreeSet<_> = known.filter(|name| *name != "global").collect();
                assert_eq!(fields.keys().collect::<BTreeSet<_>>(), known, "{place}");
                for (name, value) in fields {
                    let (tried, schema) = (&tried[name], &schema["properties"][name]);
                    compare(value, tried, schema, &format!("{place}.{name}"), seen);
                }
            }
            None => {
                *seen += 1;
                let excluded = [".gatewayClass.create", ".gatewayClass.parametersRef"];
                assert!(
                    excluded.contains(&place) || values != tried,
                    "{place} is not tried"
                );
            }
        }
    }
    let values = documents(&read("deploy/helm/portcullis/values.yaml")).remove(0);
    let tried = documents(&read("tests/deploy/values.yaml")).remove(0);
    let schema = read("deploy/helm/portcullis/values.schema.json");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let mut seen = 0;
    compare(&values, &tried, &schema, "", &mut seen);
    assert!(seen > 20, "only {seen} values");
}

/// What a ClusterRole of `install.yaml` allows, as `group/resource verb`.
fn rights(role: &str) -> BTreeSet<String> {
    let manifests = documents(&read("deploy/install.yaml"));
    let role = manifests
        .iter()
        .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == role)
        .unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut rights = BTreeSet::new();
    for rule in list(&role["rules"]) {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                for verb in list(&rule["verbs"]) {
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    rights.insert(format!(
                        "{}/{} {}",
                        text(&group),
                        text(&resource),
                        text(&verb)
                    ));
                }
            }
        }
    }
    rights
}

/// The resource of a watched kind.
fn resource(kind: &Kind) -> String {
    let name = kind.kind.to_lowercase();
    let plural = match name.as_str() {
        "gatewayparameters" => name,
        "gatewayclass" => format!("{name}es"),
        "backendtlspolicy" => "backendtlspolicies".to_owned(),
        _ => format!("{name}s"),
    };
    format!("{}/{plural}", kind.group)
}

#[test]
fn data_planes_may_read_what_is_watched_and_nothing_else() {
    let verbs = |kind: &Kind| match kind.kind {
        // Read one by one when something begins to name them.
        "Secret" | "ConfigMap" => vec!["get", "list", "watch"],
        _ => vec!["list", "watch"],
    };
    let rights_to = |kind: &Kind| {
        let resource = resource(kind);
        let verbs = verbs(kind).into_iter();
        verbs
            .map(|verb| format!("{resource} {verb}"))
            .collect::<Vec<_>>()
    };
    let expected: BTreeSet<String> = Kind::all().iter().flat_map(rights_to).collect();
    assert_eq!(rights("portcullis-data-plane"), expected);
    assert!(rights("portcullis-controller").is_superset(&expected));
}

#[test]
fn the_controller_may_make_what_gateways_need() {
    let rights = rights("portcullis-controller");
    for kind in ChildKind::ALL {
        for verb in ["list", "watch", "create", "patch", "delete"] {
            let right = format!("{}/{} {verb}", kind.group(), kind.plural());
            assert!(rights.contains(&right), "{right}");
        }
    }
    let everything = json!(["*"]);
    assert!(!read("deploy/install.yaml").contains(&everything.to_string()));
    assert!(
        rights.iter().all(|right| !right.contains('*')),
        "{rights:?}"
    );
}
