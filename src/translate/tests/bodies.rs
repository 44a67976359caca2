//! Bodies of responses that the proxy makes.

use serde_json::json;

use super::{gateway, object, route, run};

#[test]
fn refuses_oversized_bodies_of_direct_responses() {
    const MOST: usize = 64 * 1024;
    for (length, is_refused) in [(MOST, false), (MOST + 1, true)] {
        let body = "x".repeat(length);
        let map = object(
            "v1",
            "ConfigMap",
            "texts",
            &json!({"data": {"text": &body}}),
        );
        let in_map = json!({"configMapRef": {"name": "texts", "key": "text"}});
        for mut response in [json!({"body": &body}), in_map] {
            response["status"] = json!(503);
            let spec = json!({"spec": {"directResponse": response}});
            let filter = object("portcullis.dev/v1alpha1", "RouteFilter", "page", &spec);
            let reference =
                json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": "page"});
            let used = json!([{"type": "ExtensionRef", "extensionRef": reference}]);
            let objects = [
                gateway(&json!({})),
                route(&json!({"filters": used})),
                filter,
                map.clone(),
            ];
            let translation = run(&objects, None);
            let problems = translation.report.problems();
            let problems: Vec<_> = problems.map(|(_, problem)| problem).collect();
            let refused = problems.iter().any(|it| it.contains("of at most 65536"));
            assert_eq!(refused, is_refused, "{problems:?}");
        }
    }
}
