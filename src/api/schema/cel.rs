//! Evaluates the CEL rules of CRDs for an object. Contains no rule of a particular kind.

use std::collections::HashMap;

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
};
use cel::common::value::Val;
use cel::{Context, ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use super::faulty::Faulty;
use super::node::{Node, Schema};
use super::path::Path;
use super::rule::environment;
use super::valid::Digest;
use crate::api::violation::Violation;

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

/// The rules of an object that are evaluated.
pub(super) struct Evaluation<'s, 'f> {
    pub(super) schema: &'s Schema,
    /// Values that do not match the schema. A rule may fail on them, because it expects their type.
    pub(super) faulty: &'f Faulty,
    pub(super) findings: &'f mut Vec<Violation>,
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
            self.findings.push(Violation {
                rule: rule.rule.clone(),
                ..Violation::error(path.to_string(), message)
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
