//! A schema in memory: the subset of OpenAPI that CRDs use, with repeated subtrees shared. Contains data and no
//! validation.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::format::Format;
use super::path::Path;
use super::pattern::Pattern;
use super::rule::Rules;
use super::valid::ValidValues;

/// A kind's schema.
#[derive(Debug, Deserialize)]
pub(super) struct Schema {
    /// The schema of the object.
    #[serde(flatten)]
    pub(super) root: Node,
    /// Subtrees that others refer to by number.
    defs: Box<[Node]>,
    /// Objects, without their metadata, that satisfy the schema and its rules.
    #[serde(skip)]
    pub(super) valid: ValidValues,
}

impl Schema {
    /// Parses a schema in the format of the `generate` script.
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the node itself, or the node that it refers to.
    pub(super) fn resolve<'a>(&'a self, node: &'a Node) -> &'a Node {
        node.reference
            .and_then(|index| self.defs.get(index))
            .unwrap_or(node)
    }
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    /// The type's name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// When two items of a list are duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ListType {
    /// Never.
    #[default]
    Atomic,
    /// If they are equal.
    Set,
    /// If their keys are equal.
    Map,
}

/// The schema of one value. The fields are the keywords of the CRD.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Node {
    #[serde(rename = "ref")]
    reference: Option<usize>,
    #[serde(rename = "type")]
    pub(super) kind: Option<Type>,
    pub(super) format: Option<Format>,
    pub(super) nullable: bool,
    pub(super) default: Option<Value>,
    #[serde(rename = "enum")]
    pub(super) allowed: Box<[Value]>,
    pub(super) pattern: Option<Pattern>,
    pub(super) minimum: Option<f64>,
    pub(super) maximum: Option<f64>,
    pub(super) min_length: Option<usize>,
    pub(super) max_length: Option<usize>,
    pub(super) min_items: Option<usize>,
    pub(super) max_items: Option<usize>,
    pub(super) min_properties: Option<usize>,
    pub(super) max_properties: Option<usize>,
    pub(super) required: Box<[String]>,
    pub(super) properties: Properties,
    pub(super) additional_properties: Option<Box<Self>>,
    pub(super) property_names: Option<Box<Self>>,
    pub(super) items: Option<Box<Self>>,
    pub(super) one_of: Box<[Self]>,
    pub(super) any_of: Box<[Self]>,
    pub(super) all_of: Box<[Self]>,
    pub(super) not: Option<Box<Self>>,
    pub(super) rules: Rules,
    #[serde(rename = "x-kubernetes-list-type")]
    pub(super) list_type: ListType,
    #[serde(rename = "x-kubernetes-list-map-keys")]
    pub(super) list_map_keys: Box<[String]>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub(super) preserves_unknown_fields: bool,
    #[serde(rename = "x-kubernetes-int-or-string")]
    pub(super) is_int_or_string: bool,
}

/// Members in the order of their names. A boxed slice takes less memory than a map, and schemas have many small lists
/// of members.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, Node>")]
pub(super) struct Properties(Box<[(Box<str>, Node)]>);

impl From<BTreeMap<Box<str>, Node>> for Properties {
    fn from(members: BTreeMap<Box<str>, Node>) -> Self {
        Self(members.into_iter().collect())
    }
}

impl Properties {
    /// Returns the member with this name.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(name));
        index.ok().map(|index| &self.0[index].1)
    }

    /// Reports whether there is a member with this name.
    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Iterates over all members, in the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(name, node)| (&**name, node))
    }
}

impl Node {
    /// Reports whether a field that is not among the properties is an unknown one.
    pub(super) fn is_closed(&self) -> bool {
        !self.preserves_unknown_fields && self.additional_properties.is_none()
    }

    /// Returns the schema of a member: of the declared property, or else of additional properties.
    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        self.properties
            .get(name)
            .or(self.additional_properties.as_deref())
    }

    /// Visits each direct member or item of a value that has a schema, with its path.
    pub(super) fn each<'a>(
        &'a self,
        value: &'a Value,
        path: &mut Path<'a>,
        mut visit: impl FnMut(&'a Self, &'a Value, &mut Path<'a>),
    ) {
        match value {
            Value::Array(items) => {
                let Some(node) = &self.items else { return };
                for (index, item) in items.iter().enumerate() {
                    path.push_index(index);
                    visit(node, item, path);
                    path.pop();
                }
            }
            Value::Object(map) => {
                for (name, value) in map {
                    let additional = self.additional_properties.as_deref();
                    match (self.properties.get(name), additional) {
                        (Some(node), _) => {
                            path.push_field(name);
                            visit(node, value, path);
                        }
                        (None, Some(node)) => {
                            path.push_key(name);
                            visit(node, value, path);
                        }
                        (None, None) => continue,
                    }
                    path.pop();
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
impl Schema {
    /// Every node, for tests that must reach them all.
    pub(super) fn nodes(&self) -> Vec<&Node> {
        let mut nodes = Vec::new();
        let mut open: Vec<&Node> = self.defs.iter().chain([&self.root]).collect();
        while let Some(node) = open.pop() {
            nodes.push(node);
            let single = [
                &node.additional_properties,
                &node.property_names,
                &node.items,
                &node.not,
            ];
            open.extend(single.into_iter().flatten().map(Box::as_ref));
            open.extend(
                node.properties
                    .iter()
                    .map(|(_, node)| node)
                    .chain(&node.one_of)
                    .chain(&node.any_of)
                    .chain(&node.all_of),
            );
        }
        nodes
    }
}
