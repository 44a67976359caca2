//! What `portcullis check` says of Ingresses, which are not served, and which files `portcullis migrate` reads.

use std::fs;
use std::process::Command;

use crate::check::{PLAIN, check_says};
use crate::{output, stdout};

/// An Ingress, and another one in a list.
const INGRESSES: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: web
  annotations:
    example.com/owner: team-a
    nginx.ingress.kubernetes.io/rewrite-target: /$1
    nginx.ingress.kubernetes.io/limit-rate: '100'
---
apiVersion: v1
kind: List
items:
- apiVersion: networking.k8s.io/v1
  kind: Ingress
  metadata: {name: blog, annotations: {nginx.ingress.kubernetes.io/no-such-setting: 'on'}}
";

#[test]
fn check_says_what_a_migration_makes_of_each_annotation() {
    let next = "Ingress of networking.k8s.io/v1 is not a kind that Portcullis reads; ignored; `portcullis migrate` converts \
                those of ingress-nginx to routes and policies";
    let prefix = "metadata.annotations[nginx.ingress.kubernetes.io/";
    let rewrite = format!(
        "a.yaml:8 (document 1): Ingress web/shop: {prefix}rewrite-target]: ignored; `portcullis migrate`: converted: RouteFilter"
    );
    let rate = format!(
        "a.yaml:9 (document 1): Ingress web/shop: {prefix}limit-rate]: ignored; `portcullis migrate`: not possible: "
    );
    let unknown =
        format!("{prefix}no-such-setting]: ignored; `portcullis migrate` knows no such annotation");
    let parts = [next, &rewrite, &rate, &unknown];
    // Notes and warnings are no faults: the rest is served.
    let text = check_says(&["--quiet"], &format!("{INGRESSES}---\n{PLAIN}"), 0, &parts);
    assert_eq!(text.matches(prefix).count(), 3, "{text}");
    assert!(!text.contains("example.com/owner"), "{text}");
}

/// An Ingress with a byte order mark, as some editors write it.
const WITH_MARK: &str = "\u{feff}{\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"Ingress\", \
     \"metadata\": {\"name\": \"shop\"}, \"spec\": {\"ingressClassName\": \"nginx\", \"rules\": [{\"host\": \"a.example.com\", \
     \"http\": {\"paths\": [{\"path\": \"/\", \"pathType\": \"Prefix\", \"backend\": {\"service\": \
     {\"name\": \"shop\", \"port\": {\"number\": 80}}}}]}}]}}";

#[test]
fn migrate_reads_a_folder_with_other_files_and_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::create_dir(&input).unwrap();
    fs::write(input.join("shop.json"), WITH_MARK).unwrap();
    fs::write(input.join("README.md"), "Ingresses").unwrap();
    let of_folder = output(&["migrate", input.to_str().unwrap()]);
    assert!(stdout(&of_folder).contains("HTTPRoute"), "{of_folder:?}");
    let said = String::from_utf8_lossy(&of_folder.stderr);
    assert!(said.contains("README.md: not read"), "{said}");

    // A terminal would obey the name.
    fs::write(input.join("\u{1b}[2J.md"), "Ingresses").unwrap();
    let escaped = output(&["migrate", input.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&escaped.stderr);
    assert!(said.contains("\\u{1b}[2J.md: not read"), "{said:?}");
    assert!(!said.contains('\u{1b}'), "{said:?}");

    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let to = pipe.clone();
    let writer = std::thread::spawn(move || fs::write(to, WITH_MARK));
    let of_pipe = output(&["migrate", pipe.to_str().unwrap()]);
    writer.join().unwrap().unwrap();
    assert!(stdout(&of_pipe).contains("HTTPRoute"), "{of_pipe:?}");

    fs::write(input.join("broken.yaml"), b"# \xe9").unwrap();
    fs::write(input.join("other.yaml"), "a: [").unwrap();
    let broken = output(&["migrate", input.to_str().unwrap()]);
    assert_eq!(broken.status.code(), Some(3), "{broken:?}");
    let said = String::from_utf8_lossy(&broken.stderr);
    assert!(
        said.contains("broken.yaml: ") && said.contains("other.yaml:1 "),
        "{said}"
    );
}
