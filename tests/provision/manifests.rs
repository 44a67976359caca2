//! Checks the files in `deploy` against the program: CRDs against the embedded schemas, RBAC rules
//! against watched and written kinds, copies against their originals.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use portcullis::api::Kind;
use portcullis::provider::verbs_to_follow;
use portcullis::provision::ChildKind;
use serde_json::{Map, Value, json};

use crate::documents;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns names of the files in a folder.
fn names(folder: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join(folder)).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Returns a CRD schema reduced to validation, in the form of the embedded schemas.
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
                    // Names of properties are not keywords.
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

/// Returns an embedded schema with shared parts inlined.
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
fn crds_match_embedded_schemas() {
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
        let stem = kind.kind.to_lowercase();
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
fn every_crd_field_has_a_description() {
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
fn chart_contains_the_crds() {
    let folder = |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join(name).canonicalize().unwrap()
    };
    assert_eq!(folder("deploy/helm/portcullis/crds"), folder("deploy/crds"));
}

#[test]
fn chart_version_matches_the_program() {
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

/// All chart values are in the values schema, and the test values override each of them.
#[test]
fn every_chart_value_is_in_the_schema_and_tested() {
    fn compare(values: &Value, tried: &Value, schema: &Value, place: &str, seen: &mut usize) {
        let fields = values.as_object().filter(|fields| !fields.is_empty());
        // A map with arbitrary keys counts as one value.
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
                let excluded = [
                    ".gatewayClass.create",
                    ".gatewayClass.parametersRef",
                    ".networkPolicy.enabled",
                ];
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

/// Returns the rules of a role of `install.yaml`.
fn rules(kind: &str, name: &str) -> Vec<Value> {
    let manifests = documents(&read("deploy/install.yaml"));
    let mut roles = manifests.iter();
    let role = roles.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    role.unwrap()["rules"].as_array().unwrap().clone()
}

/// Permissions as `group/resource verb`, with object names where restricted.
fn allowed(rules: &[Value]) -> BTreeSet<String> {
    let list = |value: &Value| {
        let texts = value.as_array().into_iter().flatten();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut allowed = BTreeSet::new();
    for rule in rules {
        let names = list(&rule["resourceNames"]);
        let names = match names.is_empty() {
            true => String::new(),
            false => format!(" {}", names.join(",")),
        };
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                for verb in list(&rule["verbs"]) {
                    allowed.insert(format!("{group}/{resource} {verb}{names}"));
                }
            }
        }
    }
    allowed
}

/// Cluster-wide permissions of the controller.
fn rights() -> BTreeSet<String> {
    allowed(&rules("ClusterRole", "portcullis-controller"))
}

/// Returns the resource of a watched kind.
fn resource(kind: &Kind) -> String {
    let name = kind.kind.to_lowercase();
    let plural = match name.as_str() {
        "gatewayparameters" => name,
        "gatewayclass" => format!("{name}es"),
        _ => match name.strip_suffix("policy") {
            Some(stem) => format!("{stem}policies"),
            None => format!("{name}s"),
        },
    };
    format!("{}/{plural}", kind.group)
}

#[test]
fn controller_may_read_watched_kinds() {
    let rights = rights();
    for kind in Kind::all() {
        let resource = resource(kind);
        for verb in verbs_to_follow(kind) {
            let right = format!("{resource} {verb}");
            assert!(rights.contains(&right), "{right}");
        }
    }
}

#[test]
fn controller_may_write_statuses() {
    let rights = rights();
    for kind in Kind::all().iter().filter(|kind| kind.status.is_some()) {
        let resource = resource(kind);
        for right in [
            format!("{resource} get"),
            format!("{resource}/status patch"),
        ] {
            assert!(rights.contains(&right), "{right}");
        }
    }
}

/// The roles that docs/kubernetes.md gives, cluster-wide and by namespace.
#[test]
fn documented_roles_may_read_watched_kinds() {
    let page = read("docs/kubernetes.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    let mut seen = 0;
    for block in blocks.filter(|block| block.contains("kind: ClusterRole")) {
        let roles = documents(block);
        let rules = roles.iter().flat_map(|role| role["rules"].as_array());
        let rights = allowed(&rules.flatten().cloned().collect::<Vec<_>>());
        for kind in Kind::all() {
            for verb in verbs_to_follow(kind) {
                let right = format!("{} {verb}", resource(kind));
                assert!(rights.contains(&right), "docs/kubernetes.md: {right}");
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn controller_may_write_provisioned_kinds() {
    let rights = rights();
    for kind in ChildKind::ALL {
        for verb in ["get", "list", "watch", "create", "patch", "delete"] {
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

#[test]
fn controller_may_review_tokens_and_read_owners() {
    let rights = rights();
    for right in [
        "authentication.k8s.io/tokenreviews create",
        "/pods get",
        "apps/replicasets get",
        "apps/deployments get",
        "apps/daemonsets get",
        "/serviceaccounts get",
    ] {
        assert!(rights.contains(right), "{right}");
    }
    let own = allowed(&rules("Role", "portcullis-controller"));
    for right in [
        "/secrets create",
        "/secrets update portcullis-controller-ca",
    ] {
        assert!(own.contains(right), "{right} in {own:?}");
    }
}

/// A subject that may bind or change roles could grant permissions that pods of Gateways must not
/// have.
#[test]
fn no_role_can_escalate_privileges() {
    let of_roles = |right: &String| right.starts_with("rbac.authorization.k8s.io/");
    let of_roles: Vec<_> = rights().into_iter().filter(of_roles).collect();
    assert!(of_roles.is_empty(), "{of_roles:?}");
    let manifests = documents(&read("deploy/install.yaml"));
    let bound = manifests
        .iter()
        .filter_map(|object| object["subjects"].as_array());
    let bound: BTreeSet<_> = bound
        .flatten()
        .map(|subject| subject["name"].to_string())
        .collect();
    assert_eq!(bound, ["\"portcullis-controller\"".to_owned()].into());
}

/// The parts of the controller's stream refer to each other correctly.
#[test]
fn stream_service_selects_the_controller() {
    let manifests = documents(&read("deploy/install.yaml"));
    let find = |kind: &str, name: &str| {
        let mut objects = manifests.iter();
        let found =
            objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}")).clone()
    };
    let service = find("Service", "portcullis-controller-stream");
    let pods = &find("Deployment", "portcullis-controller")["spec"]["template"];
    let container = &pods["spec"]["containers"][0];
    let selector = service["spec"]["selector"].as_object().unwrap();
    for (label, value) in selector {
        assert_eq!(pods["metadata"]["labels"][label], *value);
    }
    assert_ne!(service["spec"]["publishNotReadyAddresses"], true);
    let port = &service["spec"]["ports"][0];
    let named = container["ports"].as_array().unwrap().iter();
    let named: Vec<_> = named
        .filter(|named| named["name"] == port["targetPort"])
        .collect();
    let number = named[0]["containerPort"].as_u64().unwrap();
    let arguments = container["args"].as_array().unwrap();
    let url = format!(
        "--stream-url=https://portcullis-controller-stream.portcullis-system.svc:{}",
        port["port"]
    );
    for argument in [format!("--stream-address=[::]:{number}"), url] {
        assert!(arguments.contains(&json!(argument)), "{argument}");
    }
    let policy = find("NetworkPolicy", "portcullis-controller");
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    let mut rules = rules.iter();
    let stream = rules.find(|rule| rule["ports"][0]["port"] == "stream");
    // Only pods of Gateways, in all namespaces.
    let label = json!({"key": "gateway.networking.k8s.io/gateway-name", "operator": "Exists"});
    let pods = json!({"namespaceSelector": {}, "podSelector": {"matchExpressions": [label]}});
    assert_eq!(stream.unwrap()["from"], json!([pods]));
}
