//! docs/versions.md: its versions are those that the chart asks for, and that tests and releases use.

use serde_json::Value;

use crate::{files, read};

/// Returns what is between two texts, the first time that they occur.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
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
    let install = format!("/gateway-api/releases/download/v{gateway_api}/standard-install.yaml");
    assert!(read("docs/install.md").contains(&install), "{install}");
    // Releases are built on machines of both architectures.
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("runner: [ubuntu-24.04, ubuntu-24.04-arm]\n"));
}

#[test]
fn own_kinds_have_the_version_that_may_change() {
    let paths = files("deploy/crds", "yaml");
    assert!(paths.len() > 5, "{paths:?}");
    for path in paths {
        let crd: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let names: Vec<_> = versions.iter().map(|it| &it["name"]).collect();
        assert_eq!(names, ["v1alpha1"], "{path}");
    }
    assert!(read("docs/versions.md").contains("`portcullis.dev/v1alpha1`"));
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
