//! Namespace selection: `Same`, `All`, `Selector`, `None`. Values that are not known select nothing.

use std::collections::BTreeMap;

use crate::api::core::Namespace;
use crate::api::gateway::{LabelExpression, LabelSelector, NamespacesFrom};

use crate::translate::input::Input;

/// Label that the API server sets on every namespace. In a folder, the Namespace object may be missing.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Reports whether `from` selects `namespace`. `own` is the namespace that `Same` selects.
pub(in crate::translate) fn allows(
    input: &Input<'_>,
    from: Option<&NamespacesFrom>,
    default: &str,
    own: &str,
    namespace: &str,
) -> bool {
    let kind = from.and_then(|from| from.from.as_deref());
    match kind.unwrap_or(default) {
        "All" => true,
        "Same" => own == namespace,
        "Selector" => from
            .and_then(|from| from.selector.as_ref())
            .is_some_and(|selector| matches(selector, &labels(input, namespace))),
        _ => false,
    }
}

/// The labels of a namespace.
struct Labels {
    all: BTreeMap<String, String>,
    /// Whether it has no others. In a cluster, a route may arrive before its namespace.
    are_known: bool,
}

fn labels(input: &Input<'_>, namespace: &str) -> Labels {
    let object = input.get::<Namespace>("", namespace);
    let are_known = object.is_some() || input.options.are_of_a_folder();
    let labels = object.map(|object| BTreeMap::clone(&object.metadata.labels));
    let mut all = labels.unwrap_or_default();
    all.insert(NAME_LABEL.to_owned(), namespace.to_owned());
    Labels { all, are_known }
}

fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let mut equal = selector.match_labels.iter();
    equal.all(|(key, value)| labels.all.get(key) == Some(value))
        && selector
            .match_expressions
            .iter()
            .all(|expression| holds(expression, labels))
}

fn holds(expression: &LabelExpression, labels: &Labels) -> bool {
    let value = labels.all.get(&expression.key);
    let listed = value.is_some_and(|value| expression.values.contains(value));
    let is_known = value.is_some() || labels.are_known;
    match expression.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed && is_known,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none() && is_known,
        _ => false,
    }
}
