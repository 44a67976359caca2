//! Strategic merge patches for the workload and the Services of a Gateway: which fields they may not set, and how they are
//! merged. Must not know who may set the others.

mod merge;
mod patched;
mod rules;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub use self::merge::merge;
pub use self::patched::Patched;
pub use self::rules::check;

use self::rules::{Fields, fields};

/// Returns the fields that one of two patches sets otherwise than the other, without the elements of lists: such as
/// `spec.template.spec.containers.resources`.
pub fn differences(
    patched: Patched,
    one: &Map<String, Value>,
    other: &Map<String, Value>,
) -> BTreeSet<String> {
    let (one, other) = (fields(patched, one), fields(patched, other));
    let differing = |of: &Fields, against: &Fields| -> BTreeSet<String> {
        let differing = of
            .iter()
            .filter(|(path, value)| against.get(*path) != Some(value));
        differing.map(|(path, _)| without_elements(path)).collect()
    };
    let mut all = differing(&one, &other);
    all.append(&mut differing(&other, &one));
    all
}

/// Removes `[…]` from a path.
fn without_elements(path: &str) -> String {
    let mut depth = 0_u32;
    let outside = path.chars().filter(|character| match character {
        '[' => {
            depth += 1;
            false
        }
        ']' => {
            depth = depth.saturating_sub(1);
            false
        }
        _ => depth == 0,
    });
    outside.collect()
}

#[cfg(test)]
mod tests;
