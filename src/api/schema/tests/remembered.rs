//! Values for which CEL rules are known to hold.

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
