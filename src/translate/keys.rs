//! Sets that mostly have a few keys, and of which there are thousands. Must not know what the keys are.

use std::collections::BTreeSet;

/// Keys in order. A few are a list, since a set would take twice the memory.
#[derive(Debug)]
pub(super) enum Keys<K> {
    Few(Vec<K>),
    Many(BTreeSet<K>),
}

/// Maximum number of keys in a list.
const FEW: usize = 32;

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<K> From<K> for Keys<K> {
    fn from(key: K) -> Self {
        Self::Few(vec![key])
    }
}

impl<K: Ord + Clone> Keys<K> {
    /// Adds a key. Returns whether it is new.
    pub(super) fn insert(&mut self, key: &K) -> bool {
        match self {
            Self::Few(few) => {
                let Err(at) = few.binary_search(key) else {
                    return false;
                };
                if few.len() == FEW {
                    let all = std::mem::take(few).into_iter().chain([key.clone()]);
                    *self = Self::Many(all.collect());
                } else {
                    few.reserve_exact(1);
                    few.insert(at, key.clone());
                }
                true
            }
            Self::Many(all) => all.insert(key.clone()),
        }
    }

    /// Removes a key. Returns whether it was there.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        match self {
            Self::Few(few) => {
                let place = few.binary_search(key);
                place.map(|at| few.remove(at)).is_ok()
            }
            Self::Many(all) => all.remove(key),
        }
    }

    /// Reports whether it has a key.
    pub(super) fn contains(&self, key: &K) -> bool {
        match self {
            Self::Few(few) => few.binary_search(key).is_ok(),
            Self::Many(all) => all.contains(key),
        }
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(all) => all.len(),
        }
    }

    /// Reports whether there are no keys.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all keys, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &K> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.iter()), None),
            Self::Many(all) => (None, Some(all.iter())),
        };
        let few = few.into_iter().flatten();
        few.chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_keys_are_as_few() {
        let mut keys = Keys::default();
        for key in (0..100_u32).rev() {
            assert!(keys.insert(&key) && !keys.insert(&key));
        }
        assert!(keys.iter().copied().eq(0..100));
        for key in 0..100 {
            assert!(keys.contains(&key) && keys.remove(&key) && !keys.remove(&key));
        }
        assert!(keys.is_empty());
    }
}
