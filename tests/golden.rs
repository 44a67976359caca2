//! Rules pinned by example: every `tests/golden/<area>/<rule>.yaml` holds Kubernetes objects and, as its last document,
//! the IR and the status that they translate to. `UPDATE_GOLDEN=1` rewrites that document. Also holds the properties
//! that must be true of every such input: order does not matter, and no object makes the translation panic.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use portcullis::api::object::Kind;
use portcullis::api::{self, Object};
use portcullis::ir::{Bind, BindReport, Ir};
use portcullis::snapshot::Snapshot;
use portcullis::translate::{Mode, Options, Translation, translate};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Longer files pin more than one rule.
const MAX_LINES: usize = 150;
/// Fewer files mean that some were lost.
const MIN_FILES: usize = 60;

#[test]
fn goldens() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut failures = Vec::new();
    for path in files() {
        if let Err(failure) = check(&path, update) {
            failures.push(format!("{}: {failure}", path.display()));
        }
    }
    let count = failures.len();
    assert!(
        failures.is_empty(),
        "{count} goldens fail; after review, UPDATE_GOLDEN=1 rewrites them\n\n{}",
        failures.join("\n\n")
    );
}

/// All goldens; whatever else lies in the folder is an error.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = Vec::new();
    for area in children(&root) {
        assert!(
            area.is_dir(),
            "{}: expected a folder for an area",
            area.display()
        );
        let rules = children(&area);
        assert!(!rules.is_empty(), "{}: holds no golden", area.display());
        for rule in rules {
            let is_golden = rule.is_file() && rule.extension().is_some_and(|end| end == "yaml");
            assert!(is_golden, "{}: expected <area>/<rule>.yaml", rule.display());
            files.push(rule);
        }
    }
    assert!(files.len() >= MIN_FILES, "only {} goldens", files.len());
    files
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
}

fn check(path: &Path, update: bool) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let golden = Golden::parse(&text)?;
    let objects = golden.objects()?;
    let translation = run(&objects, None, &golden.options);
    let shown = shown(&translation, &golden.binds);
    let actual = serde_yaml::to_string(&shown).map_err(|error| error.to_string())?;
    if update {
        let text = format!("{}---\n{actual}", golden.input);
        fs::write(path, text).map_err(|error| error.to_string())?;
    } else if golden.expected != actual {
        return Err(difference(golden.expected, &actual));
    }
    let lines = fs::read_to_string(path)
        .map_err(|error| error.to_string())?
        .lines()
        .count();
    if lines > MAX_LINES {
        return Err(format!(
            "{lines} lines are too many for one rule; at most {MAX_LINES}"
        ));
    }
    Ok(())
}

/// A golden, taken apart.
struct Golden<'a> {
    /// The text of everything but the last document.
    input: &'a str,
    values: Vec<Value>,
    expected: &'a str,
    options: Options,
    /// What binding came to, where the golden says so.
    binds: Option<BindReport>,
}

impl<'a> Golden<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        if !text.starts_with("# ") {
            return Err("the first line has to tell the rule: # …".to_owned());
        }
        let (input, expected) = match text.rsplit_once("\n---\n") {
            Some((input, last)) if last.starts_with("ir:") || last.starts_with("status:") => {
                (&text[..=input.len()], last)
            }
            _ => (text, ""),
        };
        let mut values = Vec::new();
        let (mut options, mut binds) = (Options::default(), None);
        for document in serde_yaml::Deserializer::from_str(input) {
            let value: Value =
                serde::Deserialize::deserialize(document).map_err(|error| error.to_string())?;
            if let Some(test) = value.get("test") {
                for key in test.as_object().into_iter().flat_map(Map::keys) {
                    match key.as_str() {
                        "mode" => options.mode = Mode::Kubernetes,
                        "binds" => binds = Some(read_binds(&test["binds"])?),
                        other => return Err(format!("unknown test setting {other}")),
                    }
                }
            } else {
                values.push(with_certificates(value));
            }
        }
        Ok(Self {
            input,
            values,
            expected,
            options,
            binds,
        })
    }

    /// The objects, admitted as a provider admits them.
    fn objects(&self) -> Result<Vec<Object>, String> {
        let admit = |value: &Value| {
            let admission = api::admit(value.clone());
            match admission.findings.first() {
                Some(finding) => Err(format!("an object of the golden is not clean: {finding:?}")),
                None => admission
                    .object
                    .ok_or_else(|| "an object is of no watched kind".to_owned()),
            }
        };
        self.values.iter().map(admit).collect()
    }
}

fn run(objects: &[Object], previous: Option<&Ir>, options: &Options) -> Translation {
    let mut snapshot = Snapshot::default();
    for object in objects {
        snapshot.insert(object.clone());
    }
    translate(&snapshot, previous, options)
}

/// `{"*:80": "error", "127.0.0.1:80": ok}`
fn read_binds(value: &Value) -> Result<BindReport, String> {
    let mut binds = BindReport::new();
    for (bind, outcome) in value.as_object().into_iter().flatten() {
        let (address, port) = bind.rsplit_once(':').ok_or("a bind is ADDRESS:PORT")?;
        let bind = Bind {
            address: address.parse().ok(),
            port: port.parse().map_err(|_| "a bind has a port")?,
        };
        let outcome = match outcome.as_str() {
            Some("ok") => Ok(([127, 0, 0, 1], bind.port).into()),
            other => Err(other.unwrap_or_default().into()),
        };
        binds.insert(bind, outcome);
    }
    Ok(binds)
}

fn difference(expected: &str, actual: &str) -> String {
    let first = expected
        .lines()
        .zip(actual.lines())
        .position(|(one, two)| one != two);
    let from = first.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    let part = |text: &str| {
        let lines: Vec<_> = text.lines().skip(from.saturating_sub(3)).take(12).collect();
        lines.join("\n")
    };
    format!("expected\n{}\nbut got\n{}", part(expected), part(actual))
}

fn shown(translation: &Translation, binds: &Option<BindReport>) -> Value {
    let ir = serde_json::to_value(&translation.ir).expect("an IR is serializable");
    let report = match binds {
        Some(binds) => translation.report.clone().with_binds(binds),
        None => translation.report.clone(),
    };
    let status = serde_json::to_value(&report).expect("a report is serializable");
    let problems: Vec<_> = report
        .problems()
        .map(|(object, problem)| format!("{object}: {problem}"))
        .collect();
    let shown = json!({"ir": ir, "status": status, "problems": problems.len()});
    shorten(shown).unwrap_or(Value::Null)
}

/// Leaves out what is empty, and writes on one line what reads well so. `None` when nothing is left.
fn shorten(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let items = items
                .into_iter()
                .map(|item| shorten(item).unwrap_or(json!({})));
            Some(Value::Array(items.collect()))
        }
        Value::Object(fields) => {
            if let Some(line) = one_line(&fields) {
                return Some(Value::String(line));
            }
            let kept: Map<_, _> = fields
                .into_iter()
                .filter(|(name, value)| !(name == "attachedListenerSets" && *value == 0))
                .filter_map(|(name, value)| {
                    let value = match name.as_str() {
                        "sha256" | "not_after" => return None,
                        "ir" | "status" => shorten(value).unwrap_or(json!({})),
                        // Here nothing means something: 500, 503, no route at all.
                        "Forward" | "endpoints" | "supportedKinds" => {
                            shorten(value).unwrap_or(json!([]))
                        }
                        _ => shorten(value)?,
                    };
                    Some((name, value))
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        leaf => Some(leaf),
    }
}

fn one_line(fields: &Map<String, Value>) -> Option<String> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let names: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
    if names == BTreeSet::from(["index", "name", "route"]) {
        let name = text("name")
            .map(|name| format!(" {name}"))
            .unwrap_or_default();
        return Some(format!("{}{name}", fields["index"]));
    }
    if names == BTreeSet::from(["name", "origin"]) {
        return Some(format!("{} listener {}", text("origin")?, text("name")?));
    }
    if names == BTreeSet::from(["group", "kind"]) {
        return text("kind").map(str::to_owned);
    }
    if names.contains("observedGeneration") {
        let mut line = format!("{} {} {}", text("type")?, text("status")?, text("reason")?);
        if fields["observedGeneration"] != 0 {
            line.push_str(&format!(" @{}", fields["observedGeneration"]));
        }
        if let Some(message) = text("message").filter(|message| !message.is_empty()) {
            line.push_str(&format!(": {message}"));
        }
        return Some(line);
    }
    None
}

thread_local! {
    /// Certificate and key by names, made once: no key is in the repository.
    static CERTIFICATES: RefCell<BTreeMap<String, (String, String)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Replaces `${cert:NAME,NAME}`, `${key:NAME,NAME}` and their base64 forms `${cert64:…}`, `${key64:…}`.
fn with_certificates(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(expand(&text)),
        Value::Array(items) => items.into_iter().map(with_certificates).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, with_certificates(value)))
            .collect(),
        leaf => leaf,
    }
}

fn expand(text: &str) -> String {
    let Some((before, rest)) = text.split_once("${") else {
        return text.to_owned();
    };
    let (placeholder, after) = rest.split_once('}').expect("a placeholder ends");
    let (kind, names) = placeholder
        .split_once(':')
        .expect("a placeholder has names");
    let (certificate, key) = CERTIFICATES.with_borrow_mut(|known| {
        known
            .entry(names.to_owned())
            .or_insert_with(|| generate(names))
            .clone()
    });
    let value = match kind {
        "cert" => certificate,
        "key" => key,
        "cert64" => base64(certificate.as_bytes()),
        "key64" => base64(key.as_bytes()),
        "encrypted" => key.replace(" PRIVATE KEY", " ENCRYPTED PRIVATE KEY"),
        other => panic!("unknown placeholder {other}"),
    };
    format!("{before}{value}{}", expand(after))
}

/// A self-signed certificate. A part `cn=NAME` is the subject's common name and no alternative name.
fn generate(names: &str) -> (String, String) {
    let (common, alternative): (Vec<&str>, Vec<&str>) =
        names.split(',').partition(|name| name.starts_with("cn="));
    let alternative: Vec<String> = alternative.into_iter().map(str::to_owned).collect();
    let mut parameters = rcgen::CertificateParams::new(alternative).expect("names are valid");
    for name in common {
        let name = name.trim_start_matches("cn=");
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
    }
    let key = rcgen::KeyPair::generate().expect("a key is made");
    let certificate = parameters.self_signed(&key).expect("a certificate is made");
    (certificate.pem(), key.serialize_pem())
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let symbol = ALPHABET[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(symbol)
            });
        }
    }
    text
}

/// The parsed inputs of all goldens.
fn corpus() -> Vec<Vec<Value>> {
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a golden is readable");
        Golden::parse(&text).expect("a golden parses").values
    };
    files().into_iter().map(parse).collect()
}

fn bytes(translation: &Translation) -> String {
    let ir = serde_json::to_string(&translation.ir).expect("an IR is serializable");
    let report = serde_json::to_string(&translation.report).expect("a report is serializable");
    format!("{ir}\n{report}")
}

/// The objects of all goldens together, each golden in namespaces of its own where it names none. Of equal names the
/// first counts; classes are left out, so that `portcullis` stays ours.
fn everything(corpus: &[Vec<Value>]) -> Vec<Object> {
    let mut objects = BTreeMap::new();
    for (index, values) in corpus.iter().enumerate() {
        for value in values
            .iter()
            .filter(|value| value["kind"] != "GatewayClass")
        {
            let mut value = value.clone();
            if value["kind"] != "Namespace" && value["metadata"].get("namespace").is_none() {
                value["metadata"]["namespace"] = json!(format!("area{index}"));
            }
            let admission = api::admit(value);
            if let (Some(id), Some(object)) = (admission.id, admission.object) {
                objects.entry(id).or_insert(object);
            }
        }
    }
    objects.into_values().collect()
}

/// Changes one place of a value to something its author did not mean.
fn mutate(value: &mut Value, path: &[usize], replacement: &Value) {
    let step = path.first().copied().unwrap_or_default();
    let deeper = path.get(1..).unwrap_or_default();
    match value {
        Value::Object(fields) if !fields.is_empty() && !path.is_empty() => {
            let name = fields
                .keys()
                .nth(step % fields.len())
                .cloned()
                .unwrap_or_default();
            if matches!(name.as_str(), "apiVersion" | "kind") && deeper.is_empty() {
                return;
            }
            if deeper.is_empty() && replacement.is_null() {
                fields.remove(&name);
            } else if let Some(field) = fields.get_mut(&name) {
                mutate(field, deeper, replacement);
            }
        }
        Value::Array(items) if !items.is_empty() && !path.is_empty() => {
            let index = step % items.len();
            if deeper.is_empty() {
                items.push(items[index].clone());
            } else {
                mutate(&mut items[index], deeper, replacement);
            }
        }
        leaf => *leaf = replacement.clone(),
    }
}

/// Reads an object without validation: translation has to bear what no API server would store.
fn decode(value: &Value) -> Option<Object> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let kind = Kind::find(text("apiVersion")?, text("kind")?)?;
    kind.decode(value.clone()).ok()
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!("")),
        Just(json!("*.")),
        Just(json!("/")),
        Just(json!("${")),
        Just(json!("portcullis")),
        Just(json!("RegularExpression")),
        Just(json!("(?P<")),
        any::<u16>().prop_map(|number| json!(number)),
        any::<String>().prop_map(|text| json!(text)),
        "[a-zA-Z/.*:%-]{0,12}".prop_map(|text| json!(text)),
    ]
}

#[test]
fn the_order_of_objects_does_not_matter() {
    let objects = everything(&corpus());
    let options = Options::default();
    let expected = bytes(&run(&objects, None, &options));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let orders = Just((0..objects.len()).collect::<Vec<_>>()).prop_shuffle();
    let result = runner.run(&orders, |order| {
        let shuffled: Vec<Object> = order.iter().map(|index| objects[*index].clone()).collect();
        let same = bytes(&run(&shuffled, None, &options)) == expected;
        prop_assert!(same, "another order gives other bytes");
        Ok(())
    });
    result.expect("every order gives the same bytes");
}

#[test]
fn no_object_makes_the_translation_panic() {
    let corpus = corpus();
    let options = Options::default();
    let change = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<prop::sample::Index>(), 1..9),
        replacement(),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let changes = (
        any::<prop::sample::Index>(),
        prop::collection::vec(change, 1..6),
    );
    let result = runner.run(&changes, |(golden, changes)| {
        let mut values = golden.get(&corpus).clone();
        let before: Vec<Object> = values.iter().filter_map(decode).collect();
        let previous = run(&before, None, &options).ir;
        for (object, _, path, replacement) in changes {
            let path: Vec<usize> = path.iter().map(|step| step.index(64)).collect();
            let index = object.index(values.len());
            mutate(&mut values[index], &path, &replacement);
        }
        let objects: Vec<Object> = values.iter().filter_map(decode).collect();
        let translation = run(&objects, Some(&previous), &options);
        prop_assert!(!bytes(&translation).is_empty());
        prop_assert_eq!(
            translation.report.problems().count(),
            translation.report.problems().count()
        );
        Ok(())
    });
    result.expect("no panic");
}
