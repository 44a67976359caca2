//! Maps by what authors of objects and clients choose, such as hostnames, paths and addresses. Their hashes depend on a key of the
//! process: nobody can choose names that meet the entries of others, whose look-ups would then pass by all of them. Must not
//! know what the keys are.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// A map by chosen keys. Its order differs between processes.
pub type KeyedMap<K, V> = HashMap<K, V, Keyed>;

/// Makes hashes under the key of the process. Takes no memory of a map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keyed;

struct Key {
    seed: u64,
    shared: SharedSeed,
}

static KEY: LazyLock<Key> = LazyLock::new(|| {
    let random = RandomState::new();
    Key {
        seed: random.hash_one("seed"),
        shared: SharedSeed::from_u64(random.hash_one("shared")),
    }
});

impl BuildHasher for Keyed {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        let key = &*KEY;
        FoldHasher::with_seed(key.seed, &key.shared)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use foldhash::quality::FixedState;
    use rustc_hash::FxBuildHasher;

    use super::*;

    /// The place in a table of 4,096, as hashbrown takes it.
    fn place(hash: u64) -> u64 {
        hash % 4096
    }

    #[test]
    fn names_that_meet_under_a_known_hash_are_spread() {
        for known in [
            &(|name: &str| FxBuildHasher.hash_one(name)) as &dyn Fn(&str) -> u64,
            &|name| FixedState::default().hash_one(name),
        ] {
            let wanted = place(known("shop.example.com"));
            let names: Vec<_> = (0..)
                .map(|number| format!("{number}.attacker.example.com"))
                .filter(|name| place(known(name)) == wanted)
                .take(64)
                .collect();
            let places: HashSet<_> = names
                .iter()
                .map(|name| place(Keyed.hash_one(name)))
                .collect();
            assert!(places.len() > 32, "{} places", places.len());
        }
    }
}
