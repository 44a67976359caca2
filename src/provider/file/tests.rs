//! Broken directories and files: each is reported, bounded, and does not affect the others.

mod changes;
mod locations;
mod time;
mod unreadable;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{FileProvider, Load, parse};
use crate::finding::Severity;

const ROUTE: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\nspec: {}\n";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        write(directory.path(), name, text);
    }
    directory
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("created");
    fs::write(path, text).expect("written");
}

fn load(files: &[(&str, &str)]) -> Load {
    let directory = directory(files);
    FileProvider::new(directory.path().to_owned())
        .load()
        .expect("readable")
}

fn config_map(name: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}\n")
}

fn names(load: &Load) -> Vec<&str> {
    load.snapshot
        .config_maps
        .iter()
        .map(|object| object.metadata.name.as_str())
        .collect()
}

#[test]
fn finds_files_by_extension_at_any_depth() {
    let load = load(&[
        ("a.yaml", &config_map("a")),
        ("sub/b.yml", &config_map("b")),
        (
            "sub/deep/c.json",
            "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"c\"}}",
        ),
        (".hidden.yaml", &config_map("hidden")),
        ("..data/d.yaml", &config_map("d")),
        ("e.txt", &config_map("e")),
    ]);
    assert_eq!(names(&load), ["a", "b", "c"]);
    let problems: Vec<_> = load.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("note: ") && problems[0].contains("/e.txt: not read"));
}

#[test]
fn notes_that_nothing_is_read() {
    let load = load(&[("route.YAML", ROUTE), ("route.yaml~", ROUTE)]);
    let problems: Vec<_> = load.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems
            .iter()
            .any(|it| it.contains("route.YAML: not read"))
    );
    assert!(problems.iter().any(|it| it.contains("nothing is served")));
}

#[test]
fn problems_have_the_line_of_their_field() {
    let text = format!(
        "# a comment\n{ROUTE}---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata:\n  name: a\nspec:\n  \
         gatewayClassName: portcullis\n  listeners:\n  - name: one\n    port: 1\n    protocol: HTTP\n    hostname: A\n"
    );
    let line = text
        .lines()
        .position(|line| line == "    hostname: A")
        .unwrap()
        + 1;
    let load = load(&[("a.yaml", &text)]);
    let [problem] = load.problems.as_slice() else {
        panic!("{:?}", load.problems)
    };
    assert_eq!(
        (problem.location.line, &*problem.field),
        (line, "spec.listeners[0].hostname")
    );
    assert!(
        load.snapshot
            .invalid
            .iter()
            .any(|object| &*object.name == "a")
    );
}

#[test]
fn frequent_mistakes_in_yaml_have_sentences_of_their_own() {
    for (text, line, message) in [
        ("a:\n\tb: 1\n", 2, "indented with a tab"),
        ("a:\n  b: {{ .Values.b }}\n", 2, "expression of a template"),
        (
            "a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> x\n",
            2,
            "merge conflict",
        ),
        ("a:\n- *.example.com\n", 2, "`*.example.com`, needs quotes"),
        ("a: *\n", 1, "`*.example.com`, needs quotes"),
        ("a: @b\n", 1, "a value that begins with it needs quotes"),
        ("a: b: c\n", 1, "a value that contains `: ` needs quotes"),
        ("a: [0-9]+\n", 1, "begins with `[` or `{` needs quotes"),
        ("a:\n  b: 1\n c: 2\n", 3, "check the indentation"),
        ("a: 1\nb:2\n", 2, "write `: `, with a space"),
        ("a: \"\\d+\"\n", 1, "in single quotes"),
        ("a: \"b\nc: 1\n", 2, "close the quote"),
        (
            "a: |\n  \tb\nc: '{{ d }}'\n\ne: 1\ne: 2\n",
            6,
            "\"e\" appears twice",
        ),
    ] {
        let load = load(&[("a.yaml", text)]);
        let problem = &load.problems[0];
        assert_eq!(problem.location.line, line, "{problem}");
        assert!(problem.message.contains(message), "{problem}");
    }
}

#[test]
fn missing_kind_or_version_says_what_may_be_meant() {
    for (text, message) in [
        (
            "apiversion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
            "apiVersion: Required value; write apiVersion instead of apiversion",
        ),
        (
            "apiVersion: v1\nKind: ConfigMap\nmetadata: {name: a}\n",
            "kind: Required value; write kind instead of Kind",
        ),
        (
            "resources: [a.yaml]\nid: 1\n",
            "perhaps a file of Kustomize or Helm: use what these render",
        ),
        ("metadata: {name: a}\nkind: 3\n", "kind: Required value"),
    ] {
        let load = load(&[("a.yaml", text)]);
        let problem = load.problems[0].to_string();
        assert!(problem.contains(message), "{problem}");
    }
}

#[test]
fn flattens_lists_and_counts_documents() {
    let list = format!(
        "# nothing\n---\n---\nkind: List\napiVersion: v1\nitems:\n- {}- {}---\nkind: Nonsense\n",
        config_map("a"),
        config_map("b")
    );
    let load = load(&[("a.yaml", &list)]);
    assert_eq!(names(&load), ["a", "b"]);
    let problem = &load.problems[0];
    assert_eq!(
        (
            problem.location.document,
            problem.location.line,
            problem.field.as_str()
        ),
        (2, 10, "apiVersion")
    );
}

#[test]
fn list_items_have_a_path_and_inherit_the_kind() {
    let list = "\
kind: List
apiVersion: v1
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {b: 1}}
- 3
- null
- {kind: List, items: [{metadata: {name: x}}]}
";
    let typed = "{apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: b}}]}";
    let load = load(&[
        ("a.yaml", list),
        ("b.yaml", typed),
        ("c.yaml", "{apiVersion: v1, kind: List, item: []}"),
        ("d.yaml", "{apiVersion: v1, kind: List, items: {a: b}}"),
    ]);
    assert_eq!(names(&load), ["b"]);
    let fields: Vec<_> = load.problems.iter().map(|it| it.field.as_str()).collect();
    let expected = [
        "items[0].data[b]",
        "items[1]",
        "items[3].items[0].kind",
        "items",
        "items",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn accepts_byte_order_marks_and_reports_invalid_bytes() {
    let object = |name: &str| config_map(name).replace(", ", ",\n ");
    let load = load(&[
        (
            "bom.yaml",
            &format!("\u{feff}{}---\n\u{feff}{}", object("a"), object("b")),
        ),
        (
            "bom.json",
            "\u{feff}{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"c\"}}",
        ),
        (
            "crlf.yaml",
            &format!("{}---\n{}", object("d"), object("e")).replace('\n', "\r\n"),
        ),
        ("empty.yaml", ""),
        ("comments.yaml", "# one\n---\n# two\n...\n---\n"),
        ("nul.yaml", "a: \u{0}\n"),
        ("tabs.yaml", "kind: ConfigMap\nmetadata:\n\tname: x\n"),
    ]);
    assert_eq!(names(&load), ["a", "b", "c", "d", "e"]);
    let [nul, tabs] = load.problems.as_slice() else {
        panic!("{:?}", load.problems)
    };
    assert!(nul.message.contains("unexpected character"), "{nul}");
    assert_eq!(
        (tabs.location.document, tabs.location.line),
        (1, 3),
        "{tabs}"
    );

    let directory = directory(&[("a.yaml", "")]);
    let utf16: Vec<u8> = format!("\u{feff}{}", object("f"))
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let mark = "it is UTF-16, not UTF-8";
    for (bytes, message) in [
        (&utf16[..], mark),
        (&b"\xff\xfe"[..], mark),
        (&b"a: 1\n# \xe9\n"[..], "it is not UTF-8 in line 2"),
    ] {
        fs::write(directory.path().join("a.yaml"), bytes).expect("written");
        let load = FileProvider::new(directory.path().to_owned())
            .load()
            .expect("readable");
        assert!(
            load.problems[0].message.ends_with(message),
            "{:?}",
            load.problems
        );
    }
}

#[test]
fn reports_and_ignores_special_files() {
    let directory = directory(&[
        ("a.yaml", &config_map("a")),
        ("folder.yaml/b.yaml", &config_map("b")),
    ]);
    let at = |name: &str| directory.path().join(name);
    symlink("loop.yaml", at("loop.yaml")).expect("linked");
    symlink(".", at("again")).expect("linked");
    symlink("nothing", at("gone")).expect("linked");
    symlink("/dev/zero", at("zero.yaml")).expect("linked");
    let socket = UnixListener::bind(at("socket.yaml")).expect("bound");
    let load = FileProvider::new(directory.path().to_owned())
        .load()
        .expect("readable");
    assert_eq!(names(&load), ["a", "b"]);
    let messages: Vec<_> = load.problems.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 4, "{messages:#?}");
    for (line, (name, what)) in messages.iter().zip([
        ("gone", "is broken"),
        ("loop.yaml", "is broken"),
        ("socket.yaml", "neither a file nor a directory"),
        ("zero.yaml", "neither a file nor a directory"),
    ]) {
        assert!(
            line.contains(&format!("/{name}: ")) && line.contains(what),
            "{line}"
        );
    }
    drop(socket);
}

#[test]
fn does_not_block_on_a_pipe() {
    let directory = directory(&[]);
    let pipe = directory.path().join("a.yaml");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("started").success());
    super::entry::read(&pipe).expect_err("no file");
}

#[test]
fn problems_are_single_lines_and_bounded() {
    let forged = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"a\\nerror: b\\e[31m\"}\n\"c\\nd\": 1\n";
    let kind = "apiVersion: v1\nkind: \"X\\nY\"\nmetadata: {name: x}\n";
    let long = config_map(&"a".repeat(1_000_000));
    let scalars = format!("kind: List\nitems:\n{}", "- 1\n".repeat(5000));
    let load = load(&[
        ("a\nb.yaml", forged),
        ("kind.yaml", kind),
        ("long.yaml", &long),
        ("many.yaml", &"a\n---\n".repeat(100_001)),
        ("scalars.yaml", &scalars),
    ]);
    assert_eq!(load.problems.len(), 3 + 1 + 1 + 1001);
    for problem in &load.problems {
        let text = problem.to_string();
        assert!(!text.contains(char::is_control), "{text:?}");
        assert!(text.len() < 2000, "{text}");
    }
    let of = |name: &str| {
        let found = load
            .problems
            .iter()
            .find(|it| it.location.file.ends_with(name));
        found.expect("a problem").to_string()
    };
    assert!(of("many.yaml").contains("more than 100000 documents"));
    assert!(of("scalars.yaml").ends_with("and 4000 more"));
}

#[test]
fn only_an_unreadable_directory_is_an_error() {
    assert!(
        FileProvider::new("/nonexistent/portcullis".into())
            .load()
            .is_err()
    );
    let load = load(&[
        ("a.yaml", "\u{0}"),
        ("b.yaml", "]"),
        ("c.json", "{"),
        ("d.yaml", "- 1\n- a"),
        ("e.yaml", ""),
    ]);
    assert_eq!(load.snapshot.config_maps.len(), 0);
    assert!(
        load.problems
            .iter()
            .all(|problem| problem.severity == Severity::Error)
    );
    let messages: Vec<_> = load
        .problems
        .iter()
        .map(|problem| {
            problem
                .location
                .file
                .file_name()
                .expect("a name")
                .to_owned()
        })
        .collect();
    assert_eq!(messages, ["a.yaml", "b.yaml", "c.json", "d.yaml"]);
}

#[test]
fn syntax_error_names_its_line_and_drops_only_its_document() {
    let text = format!("{}---\nkind: ConfigMap\nmetadata: [\n", config_map("a"));
    let load = load(&[("a.yaml", &text)]);
    assert_eq!(names(&load), ["a"]);
    let problem = &load.problems[0];
    assert_eq!(problem.location.document, 2);
    assert!(problem.location.line >= 4, "{problem}");
    assert!(problem.to_string().contains("a.yaml:"), "{problem}");
}

#[test]
fn warns_of_unsupported_kinds() {
    let load = load(&[(
        "a.yaml",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: n}}",
    )]);
    let [problem] = load.problems.as_slice() else {
        panic!("{:?}", load.problems)
    };
    assert_eq!(problem.severity, Severity::Warning);
    assert!(
        problem
            .to_string()
            .contains("Deployment n/d: kind: Deployment of apps/v1 is not a kind"),
        "{problem}"
    );
}

#[test]
fn broken_file_does_not_keep_objects_defined_elsewhere() {
    let directory = directory(&[("a.yaml", &config_map("x")), ("b.yaml", ROUTE)]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    provider.load().expect("readable");
    write(directory.path(), "a.yaml", "[");
    write(
        directory.path(),
        "c.yaml",
        &config_map("x").replace("name: x", "name: x, labels: {new: 'yes'}"),
    );
    let load = provider.load().expect("readable");
    let object = load
        .snapshot
        .config_maps
        .get("default", "x")
        .expect("there");
    assert!(object.metadata.labels.contains_key("new"));
    assert_eq!(load.problems.len(), 1);
}

#[test]
fn oversized_file_keeps_its_objects() {
    let directory = directory(&[("a.yaml", &config_map("a"))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    provider.load().expect("readable");
    let size = usize::try_from(parse::MAX_FILE).expect("fits") + 1;
    write(directory.path(), "a.yaml", &"#".repeat(size));
    let load = provider.load().expect("readable");
    assert_eq!(names(&load), ["a"]);
    assert!(
        load.problems[0].message.contains("larger than 16 MiB"),
        "{:?}",
        load.problems
    );
    write(directory.path(), "a.yaml", &config_map("b"));
    assert_eq!(names(&provider.load().expect("readable")), ["b"]);
}

#[test]
fn does_not_revalidate_unchanged_documents() {
    let directory = directory(&[(
        "a.yaml",
        &format!("{}---\n{}", config_map("a"), config_map("b")),
    )]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let before = provider.load().expect("readable");
    write(
        directory.path(),
        "a.yaml",
        &format!("# moved\n---\n{}---\n{}", config_map("c"), config_map("b")),
    );
    let after = provider.load().expect("readable");
    let object = |load: &Load| {
        load.snapshot
            .config_maps
            .get("default", "b")
            .cloned()
            .expect("there")
    };
    assert!(std::sync::Arc::ptr_eq(&object(&before), &object(&after)));
    assert_eq!(names(&after), ["b", "c"]);
}
