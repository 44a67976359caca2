//! The objects in docs/shifting-traffic.md are accepted unchanged.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Outcome;

/// The Gateway to which the examples refer.
const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: shop}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: 80, protocol: HTTP}]
";

/// Returns a Service as created by `helm create`.
fn service(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  ports: [{{name: http, port: 80, targetPort: http}}]
  selector: {{app.kubernetes.io/name: shop, app.kubernetes.io/instance: {name}}}
"
    )
}

/// Returns the YAML blocks of a document.
fn blocks(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut blocks = Vec::new();
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            inside = language == "yaml";
            if inside {
                blocks.push(String::new());
            }
        } else if let Some(block) = blocks.last_mut().filter(|_| inside) {
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

#[test]
fn objects_of_the_guide_are_accepted() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/shifting-traffic.md");
    let services = ["shop", "shop-v1", "shop-v2", "shop-stable", "shop-canary"];
    let fixture = GATEWAY.to_owned() + &services.map(service).concat();
    let mut tried = 0;
    for block in blocks(&fs::read_to_string(document).unwrap()) {
        // A part of an object of another project.
        if block.starts_with("- ") {
            let steps: serde_json::Value = serde_saphyr::from_str(&block).unwrap();
            assert!(steps.is_array(), "{block}");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fixture.yaml"), &fixture).unwrap();
        fs::write(folder.path().join("example.yaml"), &block).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        check.args(["check", "--quiet"]).arg(folder.path());
        let Outcome { code, stdout, .. } = Outcome::of(check.output().unwrap());
        // The Services of the fixture have no pods.
        let is_expected = |line: &str| {
            line.contains("is not a kind that Portcullis reads")
                || line.contains("has no ready endpoint")
        };
        assert!(stdout.lines().all(is_expected), "{block}\n{stdout}");
        assert_eq!(code, Some(0), "{block}\n{stdout}");
        tried += 1;
    }
    assert!(tried >= 5, "only {tried} examples were found");
}
