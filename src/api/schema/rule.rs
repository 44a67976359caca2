//! CEL rules of CRDs: compiles them on first use, with the functions that Kubernetes adds to CEL. Contains no rule of a
//! particular kind, and must not know the values that rules are about.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cel::common::types::{CelBool, CelInt, CelString};
use cel::{DeclarationError, Env, ExecutionError, Program};
use serde::Deserialize;

use super::pattern;
use super::valid::ValidValues;
use crate::api::duration;

/// A rule, and the message for objects that violate it.
#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    pub(super) rule: String,
    pub(super) message: String,
    #[serde(skip)]
    program: OnceLock<Result<Arc<Program>, String>>,
}

impl Rule {
    /// Whether this is a transition rule, which compares with the previous version of the object. An API server does
    /// not evaluate it on create.
    pub(super) fn is_transition(&self) -> bool {
        self.rule.contains("oldSelf")
    }

    pub(super) fn program(&self) -> Result<&Program, String> {
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
    pub(super) valid: ValidValues,
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
pub(super) fn environment() -> Arc<Env> {
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
