//! docs/versions.md: its versions are those that the chart asks for, that the program reads, and that tests and releases use. What it
//! says of changes holds for the sections of the changelog.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portcullis::api::Kind;
use serde_json::Value;

use crate::security::rows;
use crate::{files, generated, read};

/// Returns what is between two texts, the first time that they occur.
pub(crate) fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).map(|(_, rest)| rest);
    let found = rest.and_then(|rest| rest.split_once(after));
    found.unwrap_or_else(|| panic!("no {before}…{after}")).0
}

/// Returns a version without its last number.
fn minor(version: &str) -> &str {
    version.rsplit_once('.').unwrap().0
}

#[test]
fn page_names_versions_that_are_asked_for_and_tested() {
    let page = read("docs/versions.md");
    let chart = read("deploy/helm/portcullis/Chart.yaml");
    let cluster = read("tests/cluster/go.mod");
    let least = between(&chart, "\nkubeVersion: \">=", ".0-0\"\n");
    let kubernetes = minor(between(&cluster, "\tk8s.io/kubernetes v", "\n"));
    let gateway_api = between(&cluster, "\tsigs.k8s.io/gateway-api v", "\n");
    let tools = read("deploy/tool");
    let helm = minor(between(&tools, "\nhelm) version=", " "));
    let packages = read("docs/packages.md");
    let glibc = between(&packages, "or later: glibc ", ". It");
    for row in [
        format!("| Kubernetes | {least} or later; tested with {kubernetes} |"),
        format!(
            "| Gateway API | CRDs of version 1.x of either channel; [fields](gateway-api.md) and conformance are those of {gateway_api} |"
        ),
        format!("| Helm | 3 or 4; tested with {helm} |"),
        format!("| platforms | Linux on amd64 and arm64, with glibc {glibc} or later: "),
    ] {
        assert!(page.contains(&row), "docs/versions.md lacks {row:?}");
    }
    // The format that Helm 3 and 4 read.
    assert!(chart.starts_with("apiVersion: v2\n"));
    let report = read("tests/conformance/report.yaml");
    assert!(report.contains(&format!("\ngatewayAPIVersion: v{gateway_api}\n")));
    for (path, text) in [
        (
            "docs/install.md",
            format!("/gateway-api/releases/download/v{gateway_api}/standard-install.yaml"),
        ),
        (
            "docs/install.md",
            format!("needs Kubernetes {least} or later"),
        ),
        (
            "docs/gateway-api.md",
            format!("field of Gateway API v{gateway_api}, "),
        ),
        (
            "src/api/schema/generate",
            format!("\"sigs.k8s.io/gateway-api@v{gateway_api}\""),
        ),
    ] {
        assert!(read(path).contains(&text), "{path} lacks {text:?}");
    }
    // Releases are built on machines of both architectures.
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("runner: [ubuntu-24.04, ubuntu-24.04-arm]\n"));
}

#[test]
fn own_kinds_have_the_version_that_may_change() {
    let mut defined = BTreeSet::new();
    for path in files("deploy/crds", "yaml") {
        let crd: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        let versions = crd["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1, "{path}");
        let version = &versions[0];
        assert_eq!(version["name"].as_str(), Some("v1alpha1"), "{path}");
        assert_eq!(version["served"].as_bool(), Some(true), "{path}");
        assert_eq!(version["storage"].as_bool(), Some(true), "{path}");
        defined.insert(crd["spec"]["names"]["kind"].as_str().unwrap().to_owned());
    }
    let own = Kind::all().iter().filter(|it| it.group == "portcullis.dev");
    let own: BTreeSet<String> = own.map(|kind| kind.kind.to_owned()).collect();
    assert_eq!(defined, own);
    assert!(read("docs/versions.md").contains("`portcullis.dev/v1alpha1`"));
}

/// A row for each group and versions, in the order of the table of kinds.
#[test]
fn page_lists_the_versions_of_kinds() {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for kind in Kind::all() {
        let group = if kind.group.is_empty() {
            "core"
        } else {
            kind.group
        };
        let mut row = format!("| {group} | {}", kind.versions.join(", "));
        if let Some(former) = kind.experimental {
            let (group, version) = (former.group, former.version);
            write!(row, ", {} of {group}/{version}", former.kind).unwrap();
        }
        match rows.iter_mut().find(|(known, _)| *known == row) {
            Some((_, kinds)) => kinds.push(kind.kind),
            None => rows.push((row, vec![kind.kind])),
        }
    }
    let mut table = "| group | versions | kinds |\n|---|---|---|\n".to_owned();
    for (row, kinds) in rows {
        writeln!(table, "{row} | {} |", kinds.join(", ")).unwrap();
    }
    generated::check("docs/versions.md", "kinds", &table);
}

/// Returns the versions of CRDs, controllers and pods that run together in the test of upgrades.
fn tested_skews() -> BTreeSet<[&'static str; 3]> {
    let code = read("tests/controller/upgrade.py");
    let (_, checks) = code.split_once("\n@check(").unwrap();
    let named = |release: &str| match release {
        "old" => "N−1",
        "new" => "N",
        other => panic!("{other} is not a version"),
    };
    let mut crds = None;
    let mut skews = BTreeSet::new();
    for line in checks.lines().map(str::trim) {
        if let Some(release) = line.strip_prefix("apply(") {
            crds = Some(named(release.trim_end_matches(".crds())")));
        } else if let Some(run) = line.strip_prefix("upgrade.run(controllers=") {
            let (controllers, pods) = run.trim_end_matches(')').split_once(", pods=").unwrap();
            skews.insert([crds.unwrap(), named(controllers), named(pods)]);
        }
    }
    skews
}

#[test]
fn page_lists_the_skews_that_are_tested() {
    let page = read("docs/versions.md");
    let mut listed = BTreeSet::new();
    for row in rows(&page, "| CRDs | controllers | pods | when |") {
        listed.extend(row[0].split(" or ").map(|crds| [crds, row[1], row[2]]));
    }
    let mut tested = tested_skews();
    tested.retain(|[crds, controllers, pods]| crds != controllers || controllers != pods);
    assert_eq!(listed, tested);

    let (load, older) = (
        read("tests/controller/guarded.py"),
        read("tests/controller/previous"),
    );
    let rate = between(&load, "\nRATE = ", "\n");
    let version = between(&older, "\n# Of ", ": ");
    for text in [
        format!("of an older commit of {version} by these"),
        format!("Clients send {rate} requests a second"),
    ] {
        assert!(page.contains(&text), "docs/versions.md lacks {text:?}");
    }
    let run = "tests/controller/run --image \"$program\" --from \"$older\"\n";
    assert!(read(".ci/long").contains(run), "{run}");
    let values: Value =
        serde_saphyr::from_str(&read("deploy/helm/portcullis/values.yaml")).unwrap();
    assert!(values.pointer("/dataPlane/image").is_some());
}

#[test]
fn page_names_the_marks_of_changes() {
    let (page, changes) = (read("docs/versions.md"), read("CHANGELOG.md"));
    for mark in ["Breaking", "Deprecated"] {
        assert!(page.contains(&format!("**{mark}**")), "{mark}");
        // A change that is marked in another way is not found by whoever upgrades.
        let end = format!("{}:", &mark[1..]);
        for line in changes.lines().filter(|line| line.contains(&end)) {
            assert!(line.starts_with(&format!("- **{mark}:** ")), "{line}");
        }
    }
    assert!(changes.contains("\n- **Breaking:** "));
}

/// Returns the sections of a changelog, the latest first, with their versions.
fn sections(changes: &str) -> Vec<([u32; 3], &str)> {
    let sections = changes.split("\n## ").skip(1);
    let sections = sections.map(|section| {
        let version = section.split([' ', '\n']).next().unwrap();
        let numbers: Vec<u32> = version.split('.').map(|it| it.parse().unwrap()).collect();
        let numbers: [u32; 3] = numbers.try_into().unwrap();
        (numbers, section)
    });
    sections.collect()
}

/// Returns the patch versions of a changelog that do more than to fix.
fn changing_patches(changes: &str) -> Vec<[u32; 3]> {
    let is_fix = |heading: &str| matches!(heading, "Fixed" | "Security");
    let changes_more = |section: &str| {
        let mut headings = section.lines().filter_map(|it| it.strip_prefix("### "));
        let is_marked = section.contains("\n- **Breaking:** ");
        is_marked || !headings.all(is_fix)
    };
    let patches = sections(changes).into_iter().filter(|(it, _)| it[2] > 0);
    let patches = patches.filter(|(_, section)| changes_more(section));
    patches.map(|(version, _)| version).collect()
}

#[test]
fn latest_version_gets_fixes_and_patches_are_nothing_else() {
    let fixed = read("SECURITY.md");
    assert_eq!(fixed.matches(" | yes |\n").count(), 1);
    assert!(changing_patches(&read("CHANGELOG.md")).is_empty());
    let changes = "# Changes\n\n## 0.2.2 (2026-01-02)\n\n### Added\n\n- a\n\n## 0.2.1 (2026-01-01)\n\n### Fixed\n\n- b\n\n## 0.2.0\n\n### Added\n\n- c\n";
    assert_eq!(changing_patches(changes), [[0, 2, 2]]);
}

/// Returns what the latest version of a changelog has only until it is removed.
fn deprecated(changes: &str) -> String {
    let sections = sections(changes);
    let ([major, latest, _], _) = sections[0];
    let mut table = "| deprecated in | works until | what |\n|---|---|---|\n".to_owned();
    let head = table.len();
    for ([of, minor, _], section) in sections {
        if (of, minor + 1) < (major, latest) {
            continue;
        }
        for entry in section.split("\n- **Deprecated:** ").skip(1) {
            let end = entry.find("\n- ").into_iter().chain(entry.find("\n\n"));
            let entry = &entry[..end.min().unwrap_or(entry.len())];
            let what = entry.split_whitespace().collect::<Vec<_>>().join(" ");
            let what = what.replace("](docs/", "](");
            writeln!(table, "| {of}.{minor} | {of}.{} | {what} |", minor + 1).unwrap();
        }
    }
    if table.len() == head {
        return "Nothing is deprecated.\n".to_owned();
    }
    table
}

#[test]
fn page_lists_what_is_deprecated() {
    let older = "## 0.2.0\n\n### Changed\n\n- **Deprecated:** `--a`: use\n  [`--b`](docs/b.md).\n- c\n- **Deprecated:** `--d`.\n";
    let next = format!("# Changes\n\n## 0.3.1 (2026-01-01)\n\n### Fixed\n\n- e\n\n{older}");
    assert_eq!(
        deprecated(&next),
        "| deprecated in | works until | what |\n|---|---|---|\n| 0.2 | 0.3 | `--a`: use [`--b`](b.md). |\n| 0.2 | 0.3 | `--d`. |\n"
    );
    let second = format!("# Changes\n\n## 0.4.0 (2026-01-01)\n\n{older}");
    assert_eq!(deprecated(&second), "Nothing is deprecated.\n");
    let table = deprecated(&read("CHANGELOG.md"));
    generated::check("docs/versions.md", "deprecated", &table);
}
