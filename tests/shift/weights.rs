//! Changes of weights.

use crate::Scene;
use crate::api::Fault;

const MANAGER_OF_V3: &str = "kubectl-client-side-apply";

#[test]
fn shifts_a_share_and_prints_how_to_roll_back() {
    let scene = Scene::new();
    let printed = scene.shifted(&["shop/shop", "v2=10%"]);
    let expected = "\
RELEASE  READY  WEIGHT   SHARE
v1       3      90       100% -> 90%
v2       2      0 -> 10  0% -> 10%
v3       0      0        0%

To roll back: portcullis shift shop/shop v2=0
";
    assert_eq!(printed, expected);
    assert_eq!(scene.weights(), "v1=90 v2=10 v3=0");
    assert_eq!(scene.owners("v2"), ["portcullis-shift-v2"]);
    assert!(scene.owners("v1").is_empty());
    let rollback = printed
        .lines()
        .last()
        .unwrap()
        .split_once("shift ")
        .unwrap()
        .1;
    scene.shifted(&rollback.split(' ').collect::<Vec<_>>());
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
}

#[test]
fn prints_the_outcome_as_json() {
    let scene = Scene::new();
    let printed = scene.shifted(&["shop/shop", "v2=10%", "-o", "json"]);
    let outcome: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(outcome["releases"][1]["weightBefore"], 0);
    assert_eq!(outcome["releases"][1]["weight"], 10);
    assert_eq!(outcome["releases"][1]["share"], "10%");
    assert_eq!(outcome["rollback"], "portcullis shift shop/shop v2=0");
}

#[test]
fn scales_other_weights_for_an_exact_share() {
    let scene = Scene::new();
    scene.shifted(&["shop/shop", "v1=100"]);
    let printed = scene.shifted(&["shop/shop", "v2=10%"]);
    assert!(
        printed.contains("v1       3      100 -> 90  100% -> 90%"),
        "{printed}"
    );
    assert!(
        printed.contains("Weights of other releases (v1) are scaled, so that v2 gets exactly 10%"),
        "{printed}"
    );
    assert!(
        printed.contains("To roll back: portcullis shift shop/shop v1=100 v2=0"),
        "{printed}"
    );
    assert_eq!(scene.weights(), "v1=90 v2=10 v3=0");
}

#[test]
fn each_release_has_its_own_field_manager() {
    let scene = Scene::new();
    scene.shifted(&["shop/shop", "v1=80", "v2=20"]);
    scene.shifted(&["shop/shop", "v2=30"]);
    assert_eq!(scene.weights(), "v1=80 v2=30 v3=0");
    assert_eq!(scene.owners("v1"), ["portcullis-shift-v1"]);
    assert_eq!(scene.owners("v2"), ["portcullis-shift-v2"]);
    assert_eq!(scene.owners("v3"), [MANAGER_OF_V3]);
}

#[test]
fn prints_the_weights_without_a_change() {
    let scene = Scene::new();
    let expected = "\
RELEASE  READY  WEIGHT  SHARE
v1       3      90      100%
v2       2      0       0%
v3       0      0       0%
";
    assert_eq!(scene.shifted(&["shop/shop"]), expected);
    let printed = scene.shifted(&["shop/shop", "v1=90"]);
    assert_eq!(printed, format!("{expected}\nNothing to change.\n"));
    assert!(scene.owners("v1").is_empty());
}

#[test]
fn rejects_unlisted_release_unless_adding_is_allowed() {
    let scene = Scene::new();
    let refused = scene.shift(&["shop/shop", "v9=5"]);
    refused.assert_failed(&["ReleaseBackend shop/shop", "v9", "v1, v2, v3", "--add"]);
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
    let printed = scene.shifted(&["shop/shop", "v9=10%", "--add"]);
    assert!(
        printed.contains("v9       -      - -> 10  0% -> 10%"),
        "{printed}"
    );
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0 v9=10");
    assert_eq!(scene.owners("v9"), ["portcullis-shift-v9"]);
}

#[test]
fn conflict_changes_nothing_and_force_takes_the_field() {
    let scene = Scene::new();
    let refused = scene.shift(&["shop/shop", "v2=5", "v3=5"]);
    refused.assert_failed(&[
        "the weight of release v3 cannot be set",
        "field spec.releases[value=\"v3\"].weight belongs to kubectl-client-side-apply",
        "--force",
        "may then reset it",
    ]);
    // v2 has no conflict, but is not written either.
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
    scene.shifted(&["shop/shop", "v2=5", "v3=5", "--force"]);
    assert_eq!(scene.weights(), "v1=90 v2=5 v3=5");
    assert_eq!(scene.owners("v3"), ["portcullis-shift-v3"]);
    // Later changes need no force.
    scene.shifted(&["shop/shop", "v3=6"]);
    assert_eq!(scene.weights(), "v1=90 v2=5 v3=6");
}

#[test]
fn dry_run_changes_nothing() {
    let scene = Scene::new();
    let printed = scene.shifted(&["shop/shop", "v1=50", "v2=50", "--dry-run"]);
    assert!(
        printed.contains("v2       2      0 -> 50   0% -> 50%"),
        "{printed}"
    );
    assert!(
        printed.contains("Dry run: the API server accepts the change; nothing was changed."),
        "{printed}"
    );
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
    let refused = scene.shift(&["shop/shop", "v3=5", "--dry-run"]);
    refused.assert_failed(&["kubectl-client-side-apply"]);
}

#[test]
fn weights_are_rolled_back_when_a_later_one_is_refused() {
    let scene = Scene::new();
    scene.api.refuse_applies("portcullis-shift-v1");
    let refused = scene.shift(&["shop/shop", "v1=0", "v2=100"]);
    refused.assert_failed(&[
        "release v1",
        "status 403",
        "The weights that were changed before are rolled back",
    ]);
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
    // The rising weight is written first, so that at least one release always has a weight.
    assert_eq!(scene.owners("v2"), ["portcullis-shift-v2"]);
}

#[test]
fn warns_of_short_releases_and_of_none_that_serves() {
    let scene = Scene::new();
    let printed = scene.shifted(&["shop/shop", "v3=5", "--force"]);
    let warning = "Release v3 has 0 ready endpoints, fewer than minReady 1: until it has enough, its share goes to the others.";
    assert!(printed.contains(warning), "{printed}");
    let printed = scene.shifted(&["shop/shop", "v1=0", "v3=0"]);
    assert!(
        printed.contains("No listed release has a weight above 0: requests get status 503."),
        "{printed}"
    );
}

#[test]
fn names_the_object_that_cannot_be_read() {
    let scene = Scene::new();
    scene
        .shift(&["shop/other", "v2=5"])
        .assert_failed(&["ReleaseBackend shop/other does not exist"]);
    scene.api.fail("ReleaseBackend", Some(Fault::Status(403)));
    scene
        .shift(&["shop/shop", "v2=5"])
        .assert_failed(&["ReleaseBackend shop/shop cannot be read", "403 Forbidden"]);
}

#[test]
fn wrong_usage_exits_with_2_before_any_request() {
    let scene = Scene::new();
    for (arguments, part) in [
        (&["shop/shop", "v2"][..], "v2=10%"),
        (&["shop", "v2=10"], "NAMESPACE/NAME"),
        (
            &["shop/shop", "v1=10%", "v2=20%"],
            "a percentage excludes other changes",
        ),
        (
            &["shop/shop", "v2=1", "v2=2"],
            "a release must not be named twice",
        ),
    ] {
        let outcome = scene.shift(arguments);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(part), "{outcome:?}");
    }
    assert!(scene.api.requests("").is_empty());
}
