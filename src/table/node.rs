//! Comparison of nodes that tables share.

use std::sync::Arc;

/// Reports whether both slices hold the same nodes, by address.
pub(super) fn same_nodes<T>(one: &[Arc<T>], two: &[Arc<T>]) -> bool {
    one.len() == two.len() && one.iter().zip(two).all(|(one, two)| Arc::ptr_eq(one, two))
}
