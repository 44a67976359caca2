//! Maps whose nodes are full. Must not know what is in them.

use std::collections::BTreeMap;

use imbl::OrdMap;

/// Returns the same map in as few nodes as possible. Worth it once after many insertions, which leave a third to a half of
/// the places in the nodes free. The result shares no nodes with `map`.
pub fn packed<K: Ord + Clone, V: Clone>(map: &OrdMap<K, V>) -> OrdMap<K, V> {
    // Ascending keys leave each node half full when it is split. The keys between them then fill the other half.
    let mut packed = OrdMap::new();
    for first in [0, 1] {
        let every_other = map.iter().skip(first).step_by(2);
        packed.extend(every_other.map(|(key, value)| (key.clone(), value.clone())));
    }
    packed
}

/// Moves the entries into as few nodes as possible. Worth it once after many insertions of ascending keys, which leave each
/// node half full.
pub fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_map_is_the_same_map() {
        for size in [0_u32, 1, 2, 15, 16, 17, 31, 1000] {
            let map: OrdMap<u32, String> = (0..size).map(|key| (key, key.to_string())).collect();
            assert_eq!(packed(&map), map);
        }
    }
}
