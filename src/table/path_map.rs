//! A map from paths to what matches there. A few paths take little memory and many take constant time. Must not know what
//! is stored.

use std::hash::BuildHasher;

use crate::ir::keyed::{Keyed, KeyedMap};
use crate::ir::sharing::Text;

/// Maximum number of paths that are searched one by one.
const FEW: usize = 32;

/// Values by path.
#[derive(Clone, Debug)]
pub(super) enum PathMap<T> {
    /// A hash table would take twice the memory.
    Few(Few<T>),
    Many(KeyedMap<Text, T>),
}

/// Paths in no order, beside their hashes. Only the path whose hash is that of the request is read.
#[derive(Clone, Debug)]
pub(super) struct Few<T> {
    hashes: Box<[u32]>,
    entries: Box<[(Text, T)]>,
}

impl<T> Default for PathMap<T> {
    fn default() -> Self {
        Self::Few(Few::default())
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            hashes: Box::default(),
            entries: Box::default(),
        }
    }
}

impl<T> PathMap<T> {
    /// Returns the value of a path.
    #[inline]
    pub(super) fn get(&self, path: &str) -> Option<&T> {
        match self {
            Self::Few(few) => few.get(path),
            Self::Many(all) => all.get(path),
        }
    }

    /// Replaces the value of a path.
    pub(super) fn insert(&mut self, path: Text, value: T) {
        match self {
            Self::Few(few) => {
                few.remove(&path);
                if few.entries.len() < FEW {
                    return few.push(path, value);
                }
                let known = std::mem::take(&mut few.entries).into_iter();
                *self = Self::Many(known.chain([(path, value)]).collect());
            }
            Self::Many(all) => drop(all.insert(path, value)),
        }
    }

    /// Removes a path.
    pub(super) fn remove(&mut self, path: &str) {
        match self {
            Self::Few(few) => few.remove(path),
            Self::Many(all) => drop(all.remove(path)),
        }
    }

    /// Frees the memory that later insertions would use.
    pub(super) fn shrink(&mut self) {
        let Self::Many(all) = self else {
            return;
        };
        all.shrink_to_fit();
        if all.len() <= FEW {
            let mut few = Few::default();
            all.drain().for_each(|(path, value)| few.push(path, value));
            *self = Self::Few(few);
        }
    }

    /// Returns the number of paths.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.entries.len(),
            Self::Many(all) => all.len(),
        }
    }

    /// Returns all paths, in no order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Text> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.entries.iter()), None),
            Self::Many(all) => (None, Some(all.keys())),
        };
        let few = few.into_iter().flatten().map(|(path, _)| path);
        few.chain(many.into_iter().flatten())
    }
}

impl<T> Few<T> {
    #[inline]
    fn get(&self, path: &str) -> Option<&T> {
        if self.hashes.is_empty() {
            return None;
        }
        let at = self.place(path)?;
        Some(&self.entries[at].1)
    }

    #[inline]
    fn place(&self, path: &str) -> Option<usize> {
        let wanted = hash(path);
        let mut hashes = self.hashes.iter().enumerate();
        let found = hashes.find(|(at, hash)| **hash == wanted && *self.entries[*at].0 == *path);
        found.map(|(at, _)| at)
    }

    fn push(&mut self, path: Text, value: T) {
        let mut hashes = std::mem::take(&mut self.hashes).into_vec();
        hashes.push(hash(&path));
        self.hashes = hashes.into();
        let mut entries = std::mem::take(&mut self.entries).into_vec();
        entries.push((path, value));
        self.entries = entries.into();
    }

    fn remove(&mut self, path: &str) {
        if let Some(at) = self.place(path) {
            let mut hashes = std::mem::take(&mut self.hashes).into_vec();
            hashes.swap_remove(at);
            self.hashes = hashes.into();
            let mut entries = std::mem::take(&mut self.entries).into_vec();
            entries.swap_remove(at);
            self.entries = entries.into();
        }
    }
}

fn hash(path: &str) -> u32 {
    Keyed.hash_one(path) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(count: usize) -> Vec<(Text, usize)> {
        (0..count)
            .map(|number| (Text::from(format!("/path/{number}")), number))
            .collect()
    }

    #[test]
    fn few_and_many_paths_are_found() {
        for count in [0, 1, 2, FEW, FEW + 1, 1000] {
            let mut map = PathMap::default();
            for (path, number) in paths(count) {
                map.insert(path.clone(), usize::MAX);
                map.insert(path, number);
            }
            assert_eq!(matches!(map, PathMap::Few(_)), count <= FEW);
            assert_eq!((map.len(), map.paths().count()), (count, count));
            for (path, number) in paths(count) {
                assert_eq!(map.get(&path), Some(&number));
            }
            for absent in ["", "/", "/path", "/path/", &format!("/path/{count}")] {
                assert_eq!(map.get(absent), None, "{absent}");
            }
        }
    }

    #[test]
    fn removed_paths_are_absent_and_few_take_little_memory_again() {
        let mut map = PathMap::default();
        let all = paths(FEW + 8);
        all.iter()
            .for_each(|(path, number)| map.insert(path.clone(), *number));
        for (removed, (path, _)) in all.iter().enumerate() {
            map.remove(path);
            map.remove(path);
            map.shrink();
            let left = all.len() - removed - 1;
            assert_eq!(matches!(map, PathMap::Few(_)), left <= FEW);
            let found = all.iter().filter(|(path, _)| map.get(path).is_some());
            assert_eq!((map.len(), found.count()), (left, left));
        }
    }
}
