//! Migration from ingress-nginx. Each folder of `cases` has the objects of an application (`input.yaml`), what they become
//! (`output.yaml`) and the report (`report.txt`), which `UPDATE_GOLDEN=1` rewrites, and a table of requests with the answers of
//! ingress-nginx (`answers.txt`).

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(
    dead_code,
    reason = "what the tests of the proxy share has more than these need"
)]

mod canaries;
#[path = "../proxy/client.rs"]
mod client;
mod controller;
#[path = "../harness/generated.rs"]
mod generated;
mod guide;
#[path = "../harness/mod.rs"]
mod harness;
mod hostile;
mod hosts;
mod order;
#[path = "../proxy/origin.rs"]
mod origin;
mod requests;
mod restrictions;
#[allow(unused_imports, reason = "it re-exports what tests of the proxy need")]
#[path = "../proxy/scene.rs"]
mod scene;
mod served;
mod services;
mod surroundings;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use portcullis::migrate::annotations::ANNOTATIONS;
use portcullis::migrate::{Migration, Name, Outcome, Settings, migrate};
use portcullis::provider::file::written;

pub(crate) fn name(text: &str) -> Name {
    let (namespace, name) = text.split_once('/').unwrap();
    Name {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        ingress_class: "nginx".to_owned(),
        gateway: name("portcullis/ingress"),
        gateway_class: Some("portcullis".to_owned()),
        controller_config: None,
        default_certificate: None,
    }
}

/// Settings of a case, from comments such as `# parent: infra/web` at its beginning.
pub(crate) fn settings_of(text: &str) -> Settings {
    let mut settings = settings();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        let Some((key, value)) = line.trim_start_matches("# ").split_once(": ") else {
            continue;
        };
        match key {
            "parent" => {
                settings.gateway = name(value);
                settings.gateway_class = None;
            }
            "controller-config" => settings.controller_config = Some(name(value)),
            "default-certificate" => settings.default_certificate = Some(name(value)),
            _ => {}
        }
    }
    settings
}

pub(crate) fn migrated(text: &str, settings: &Settings) -> Migration {
    let (objects, problems) = written::of_text(Path::new("input.yaml"), text).unwrap();
    assert_eq!(problems, []);
    migrate(&objects, settings).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

pub(crate) fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migrate/cases");
    let entries = fs::read_dir(folder).unwrap();
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

pub(crate) fn run(case: &Path) -> Migration {
    let text = fs::read_to_string(case.join("input.yaml")).unwrap();
    assert!(
        text.starts_with("# "),
        "{}: the first line says what it is",
        case.display()
    );
    migrated(&text, &settings_of(&text))
}

#[test]
fn goldens() {
    let mut differing = Vec::new();
    for case in cases() {
        let migration = run(&case);
        let files = migration.output.files().unwrap();
        let output: String = files.into_iter().map(|(_, text)| text).collect();
        for (file, found) in [
            ("output.yaml", output),
            ("report.txt", migration.report.text()),
        ] {
            let path = case.join(file);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::write(&path, &found).unwrap();
            } else if fs::read_to_string(&path).unwrap_or_default() != found {
                differing.push(format!("{}\n{found}", path.display()));
            }
        }
        assert_eq!(
            migration.report.faults,
            Vec::<String>::new(),
            "{}",
            case.display()
        );
    }
    assert!(
        differing.is_empty(),
        "UPDATE_GOLDEN=1 rewrites:\n{}",
        differing.join("\n")
    );
}

#[test]
fn every_annotation_is_in_a_case() {
    let inputs = cases().into_iter().map(|case| case.join("input.yaml"));
    let inputs: String = inputs
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let is_missing =
        |name: &&str| !inputs.contains(&format!("nginx.ingress.kubernetes.io/{name}: "));
    let names = ANNOTATIONS.iter().map(|row| row.name);
    let missing: Vec<_> = names.filter(is_missing).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn users_with_hashes_that_do_not_count_need_a_hand() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migrate/cases/search/input.yaml");
    let text = fs::read_to_string(case).unwrap();
    let bcrypt = "$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu";
    assert!(text.contains(bcrypt));
    for (hash, expected) in [
        ("$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", false),
        ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", false),
        // Of `htpasswd -d`.
        ("rqXexS6ZhobKA", true),
    ] {
        let text = text.replace(bcrypt, hash);
        let report = migrated(&text, &settings_of(&text)).report;
        assert_eq!(report.needs_hand(), expected, "{}", report.text());
    }
}

#[test]
fn every_annotation_has_a_line() {
    for case in cases() {
        let text = fs::read_to_string(case.join("input.yaml")).unwrap();
        let migration = run(&case);
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in documents.iter().filter(|it| it["kind"] == "Ingress") {
            let (metadata, lines) = (&object["metadata"], &migration.report.lines);
            let namespace = metadata["namespace"].as_str().unwrap_or("default");
            let id = format!("Ingress {namespace}/{}", metadata["name"].as_str().unwrap());
            let is_left = lines
                .iter()
                .any(|line| line.object == id && line.outcome == Outcome::Left);
            for key in metadata["annotations"]
                .as_object()
                .into_iter()
                .flat_map(|map| map.keys())
            {
                let Some(setting) = key.strip_prefix("nginx.ingress.kubernetes.io/") else {
                    continue;
                };
                let has = lines
                    .iter()
                    .any(|line| line.object == id && line.setting == setting);
                assert!(has || is_left, "{}: {id}: {setting}", case.display());
            }
        }
    }
}
