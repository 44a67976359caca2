//! Goldens of the objects that a Gateway needs in a cluster. Each `<rule>.yaml` contains a Gateway
//! with its class and parameters, and then the resulting objects, which `UPDATE_GOLDEN=1` rewrites.
//! Also checks that the files in `deploy` match the program.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod manifests;
mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis::api::gateway::Gateway;
use portcullis::api::{self, Resource};
use portcullis::provision::{self, Child, StreamEndpoint};
use portcullis::snapshot::Snapshot;
use portcullis::translate::{Mode, Options, translate};
use serde_json::{Value, json};

/// Separator of the two parts of a golden.
const NEEDS: &str = "--- # Needs:\n";
/// Begins the line with the arguments that the controller has for all pods.
const ARGUMENTS: &str = "# Arguments: ";
/// The image that a controller gives its pods.
const IMAGE: &str = "ghcr.io/portcullis/portcullis:0.2.0";
/// The uid of every Gateway.
const UID: &str = "00000000-0000-0000-0000-000000000001";

fn goldens() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provision");
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    assert!(files.len() >= 10, "only {} goldens", files.len());
    files
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Returns the arguments of all pods, from the line of a golden that begins with [`ARGUMENTS`].
fn arguments(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(ARGUMENTS));
    let words = line.into_iter().flat_map(str::split_whitespace);
    words.map(str::to_owned).collect()
}

/// Returns the desired objects of the Gateways in `values`, whose pods all have these arguments.
fn desired_objects(values: Vec<Value>, arguments: Vec<String>) -> Vec<Child> {
    let mut snapshot = Snapshot::default();
    for mut value in values {
        if value["kind"] == "Gateway" {
            value["metadata"]["uid"] = json!(UID);
        }
        let admission = api::admit(value);
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        snapshot.insert(admission.object.unwrap());
    }
    let options = Options {
        mode: Mode::Dedicated,
        ..Options::default()
    };
    let translation = translate(&snapshot, None, &options);
    let problems: Vec<_> = translation.report.problems().collect();
    assert!(
        translation.data_planes.len() == snapshot.gateways.len(),
        "{problems:?}"
    );
    let stream = StreamEndpoint {
        url: "https://portcullis-controller-stream.portcullis-system.svc:19443".to_owned(),
        arguments,
        ca: "certificates\n".to_owned(),
    };
    let children = |gateway: &Arc<Gateway>| {
        let data_plane = &translation.data_planes[&gateway.object_ref()];
        provision::children(gateway, data_plane, IMAGE, &stream)
    };
    snapshot.gateways.iter().flat_map(children).collect()
}

#[test]
fn provisions_objects_as_in_goldens() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut failures = Vec::new();
    for path in goldens() {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{}: tell the rule", path.display());
        let (input, expected) = text.split_once(NEEDS).unwrap_or((&text, ""));
        let documents = desired_objects(documents(input), arguments(input))
            .iter()
            .map(|child| serde_saphyr::to_string(&child.object).unwrap())
            .collect::<Vec<_>>();
        let actual = documents.join("---\n");
        if update {
            fs::write(&path, format!("{input}{NEEDS}{actual}")).unwrap();
        } else if expected != actual {
            failures.push(path.display().to_string());
        }
    }
    assert!(
        failures.is_empty(),
        "other objects than in {failures:?}; after review, UPDATE_GOLDEN=1 rewrites them"
    );
}

#[test]
fn child_metadata_matches_its_object() {
    for path in goldens() {
        let text = fs::read_to_string(&path).unwrap();
        let (input, _) = text.split_once(NEEDS).unwrap();
        let children = desired_objects(documents(input), arguments(input));
        let mut names: Vec<_> = children
            .iter()
            .map(|child| (child.kind, &child.name))
            .collect();
        let order: Vec<_> = names.iter().map(|(kind, _)| *kind).collect();
        assert!(order.is_sorted(), "{}: {order:?}", path.display());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), children.len(), "{}", path.display());
        for child in &children {
            let metadata = &child.object["metadata"];
            assert_eq!(child.object["apiVersion"], child.kind.api_version());
            assert_eq!(child.object["kind"], child.kind.name());
            assert_eq!(metadata["name"], child.name.as_str());
            assert_eq!(metadata["namespace"], child.namespace.as_str());
            assert_eq!(metadata["ownerReferences"][0]["uid"], UID);
        }
    }
}

/// Reports whether `run` has a flag that reads this environment variable.
fn is_variable_of_run(name: &str) -> bool {
    let command = portcullis::cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut variables = run
        .get_arguments()
        .filter_map(|argument| argument.get_env());
    variables.any(|variable| variable == name)
}

#[test]
fn run_accepts_the_arguments_and_variables_of_pods() {
    let mut seen = 0;
    for path in goldens() {
        let text = fs::read_to_string(&path).unwrap();
        let (_, objects) = text.split_once(NEEDS).unwrap();
        for object in documents(objects) {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            let Some(arguments) = container["args"].as_array() else {
                continue;
            };
            for variable in container["env"].as_array().unwrap() {
                let name = variable["name"].as_str().unwrap();
                // Of parameters, which may set others.
                if !name.starts_with("PORTCULLIS_") {
                    continue;
                }
                assert!(is_variable_of_run(name), "{}: {name}", path.display());
            }
            seen += 1;
            let arguments = arguments.iter().map(|text| text.as_str().unwrap());
            let line = ["portcullis"].into_iter().chain(arguments);
            let parsed = portcullis::cli::command().try_get_matches_from(line);
            if let Err(error) = parsed {
                panic!("{}: {error}", path.display());
            }
        }
    }
    assert!(seen >= 10, "only {seen} workloads");
}
