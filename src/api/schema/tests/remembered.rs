//! Values that are known to be valid.

use serde_json::json;

use super::{findings, route};

#[test]
fn cel_rules_hold_for_the_same_value_again_and_for_no_other() {
    let matching = |value: &str| {
        let path = json!({"type": "PathPrefix", "value": value});
        findings(route(json!({"rules": [{"matches": [{"path": path}]}]})))
    };
    for _ in 0..2 {
        for number in 0..200 {
            assert_eq!(matching(&format!("/{number}")), Vec::<String>::new());
            assert_eq!(matching(&format!("/{number}//")).len(), 1);
        }
    }
}

/// After an error elsewhere, such as an unknown field, some rules are not evaluated: the rest is not known to be valid then.
#[test]
fn an_object_with_an_error_elsewhere_is_not_remembered_as_valid() {
    let path = json!({"type": "PathPrefix", "value": "/not-valid//"});
    let spec = json!({"rules": [{"matches": [{"path": path}]}]});
    let mut misspelled = spec.clone();
    misspelled["hostnaems"] = json!(["a.example"]);
    assert_eq!(findings(route(misspelled)).len(), 2);
    assert_eq!(findings(route(spec)).len(), 1);
}
