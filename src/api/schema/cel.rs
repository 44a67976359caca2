//! CEL rules of CRDs: compiles them on first use, and evaluates them with the functions that Kubernetes adds to CEL.
//! Contains no rule of a particular kind.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
};
use cel::common::value::Val;
use cel::{Context, DeclarationError, Env, ExecutionError, Program, Value as CelValue};
use serde::Deserialize;
use serde_json::Value;

use super::faulty::Faulty;
use super::node::{Node, Schema};
use super::path::Path;
use super::pattern;
use super::valid::{Digest, ValidValues};
use crate::api::duration;
use crate::api::finding::Finding;

/// Reserved words of CEL. Rules refer to a property with such a name as `__name__`.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A rule, and the message for objects that violate it.
#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    rule: String,
    message: String,
    #[serde(skip)]
    program: OnceLock<Result<Arc<Program>, String>>,
}

impl Rule {
    /// Whether this is a transition rule, which compares with the previous version of the object. An API server does
    /// not evaluate it on create.
    fn is_transition(&self) -> bool {
        self.rule.contains("oldSelf")
    }

    fn program(&self) -> Result<&Program, String> {
        match self.program.get_or_init(|| compile(&self.rule)) {
            Ok(program) => Ok(program),
            Err(error) => Err(error.clone()),
        }
    }
}

/// The rules of a node.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Box<[Rule]>")]
pub(super) struct Rules {
    all: Box<[Rule]>,
    /// Values for which all rules hold.
    valid: ValidValues,
}

impl From<Box<[Rule]>> for Rules {
    fn from(all: Box<[Rule]>) -> Self {
        Self {
            all,
            valid: ValidValues::default(),
        }
    }
}

impl Deref for Rules {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.all
    }
}

/// The rules of an object that are evaluated.
pub(super) struct Evaluation<'s, 'f> {
    pub(super) schema: &'s Schema,
    /// Values that do not match the schema. A rule may fail on them, because it expects their type.
    pub(super) faulty: &'f Faulty,
    pub(super) findings: &'f mut Vec<Finding>,
}

impl<'s> Evaluation<'s, '_> {
    /// Evaluates the rules of a value and of all nested values, except for those with a faulty value inside.
    pub(super) fn check(&mut self, node: &'s Node, value: &'s Value, path: &mut Path<'s>) {
        let node = self.schema.resolve(node);
        if !node.rules.is_empty() && !self.faulty.has_within(path) {
            let digest = Digest::of(value);
            if !node.rules.valid.contains(digest) {
                let found = self.findings.len();
                self.rules(node, value, path);
                if self.findings.len() == found {
                    node.rules.valid.insert(digest);
                }
            }
        }
        // A list that is too long may have any number of items.
        if !self.faulty.has(path) {
            node.each(value, path, |node, value, path| {
                self.check(node, value, path);
            });
        }
    }

    fn rules(&mut self, node: &Node, value: &Value, path: &Path<'_>) {
        let mut context = Context::with_env(environment());
        context.add_variable_as_val("self", convert(self.schema, node, value));
        for rule in node.rules.iter().filter(|rule| !rule.is_transition()) {
            let outcome = rule
                .program()
                .and_then(|program| evaluate(program, &context).map_err(|error| error.to_string()));
            let message = match outcome {
                Ok(true) => continue,
                Ok(false) => rule.message.clone(),
                Err(error) => format!("{error} evaluating rule: {}", rule.message),
            };
            self.findings.push(Finding {
                rule: rule.rule.clone(),
                ..Finding::error(path.to_string(), message)
            });
        }
    }
}

fn evaluate(program: &Program, context: &Context<'_, '_>) -> Result<bool, ExecutionError> {
    match program.execute(context)? {
        CelValue::Bool(holds) => Ok(holds),
        _ => Err(ExecutionError::function_error(
            "rule",
            "the result of the rule is not a bool",
        )),
    }
}

/// Compiles a rule. Equal rules of different schemas share a program.
fn compile(rule: &str) -> Result<Arc<Program>, String> {
    static PROGRAMS: Mutex<BTreeMap<String, Arc<Program>>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = programs.get(rule) {
        return Ok(Arc::clone(program));
    }
    // `matches` of the cel crate compiles its pattern at each call; `matchesPattern` caches it.
    let source = rule.replace(".matches(", ".matchesPattern(");
    // Rules use only this function of the format library of Kubernetes.
    let source = source.replace(
        "format.dns1123Label().validate(self) == null",
        "isDnsLabel(self)",
    );
    let program = environment()
        .compile(&source)
        .map_err(|error| error.to_string())?;
    let program = Arc::new(program);
    programs.insert(rule.to_owned(), Arc::clone(&program));
    Ok(program)
}

/// The CEL environment with the Kubernetes extensions that rules use.
fn environment() -> Arc<Env> {
    static ENVIRONMENT: OnceLock<Arc<Env>> = OnceLock::new();
    Arc::clone(ENVIRONMENT.get_or_init(|| {
        let mut env = Env::stdlib();
        // `declare` fails only on duplicate names. The test `every_rule_compiles` would detect that.
        drop(declare(&mut env));
        Arc::new(env)
    }))
}

fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_extension(cel::extensions::strings)?;
    cel::add_overload!(env, fn is_ip: (CelString) -> CelBool, name = "isIP")?;
    cel::add_overload!(env, fn is_dns_label: (CelString) -> CelBool, name = "isDnsLabel")?;
    cel::add_overload!(env, fn duration: (CelString) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn matches_pattern: (CelString, CelString) -> Result<CelBool>)
}

fn is_ip(text: &CelString) -> CelBool {
    // Kubernetes refuses IPv6 zones. Go's parser accepts them, but Rust's does not, so no check is needed.
    CelBool::from(text.inner().parse::<IpAddr>().is_ok())
}

fn is_dns_label(text: &CelString) -> CelBool {
    let text = text.inner();
    let is_end = |byte: Option<&u8>| byte.is_some_and(|it| *it != b'-');
    let is_label = (1..=63).contains(&text.len())
        && is_end(text.as_bytes().first())
        && is_end(text.as_bytes().last())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    CelBool::from(is_label)
}

/// Returns a duration as milliseconds, the smallest unit of the Gateway API. The duration type of the cel crate would
/// add a time zone database, and rules only compare durations.
fn duration(text: &CelString) -> Result<CelInt, ExecutionError> {
    let duration = duration::parse(text.inner())
        .ok_or_else(|| ExecutionError::function_error("duration", "not a duration"))?;
    // No overflow: a duration has at most four parts of five digits.
    Ok(CelInt::from(duration.as_millis() as i64))
}

fn matches_pattern(text: &CelString, source: &CelString) -> Result<CelBool, ExecutionError> {
    let regex = pattern::compile(source.inner())
        .ok_or_else(|| ExecutionError::function_error("matches", "not a regular expression"))?;
    Ok(CelBool::from(regex.is_match(text.inner())))
}

/// Converts a JSON value to a CEL value. Strings are borrowed.
fn convert<'v>(schema: &Schema, node: &Node, value: &'v Value) -> Box<dyn Val + 'v> {
    let node = schema.resolve(node);
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Box::new(CelInt::from(number)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let anything = Node::default();
            let item_node = node.items.as_deref().unwrap_or(&anything);
            let items: Vec<_> = items
                .iter()
                .map(|item| convert(schema, item_node, item))
                .collect();
            Box::new(CelList::from(items))
        }
        Value::Object(map) => {
            let anything = Node::default();
            let members = map.iter().map(|(name, value)| {
                let key = if RESERVED.contains(&name.as_str()) && node.properties.contains_key(name)
                {
                    CelMapKey::from(format!("__{name}__"))
                } else {
                    CelMapKey::from(name.as_str())
                };
                (
                    key,
                    convert(schema, node.member(name).unwrap_or(&anything), value),
                )
            });
            Box::new(CelMap::from(members.collect::<HashMap<_, _>>()))
        }
    }
}

#[cfg(test)]
impl Rule {
    /// Fails the test when the rule does not compile.
    pub(super) fn assert_compiles(&self) {
        assert_eq!(self.program().map(|_| ()), Ok(()), "{}", self.rule);
    }

    /// Whether the rule has been compiled, or is never evaluated because it is a transition rule.
    pub(super) fn was_evaluated(&self) -> bool {
        self.is_transition() || self.program.get().is_some()
    }

    /// The rule's text.
    pub(super) fn text(&self) -> &str {
        &self.rule
    }
}
