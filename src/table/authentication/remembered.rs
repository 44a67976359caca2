//! What tokens and sessions have led to lately, by tags that only this process can compute: clients cannot choose the tag of a
//! text, and the time of a look-up tells nothing of those of others. Must not know what the texts are.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use rand::Rng;

use super::remembered_bytes::{CountedBytes, NamespaceBytes, PolicyBytes};

/// Number of texts that are remembered. A new one may take the place of another.
const REMEMBERED: usize = 256;

/// Length of tags, in bytes.
const TAG: usize = 16;

/// Bytes of an entry beside those of its value.
const ENTRY: usize = 256;

/// What texts have led to, as far as the namespace of the policy has memory for it.
pub(super) struct Remembered<T> {
    /// `None` remembers nothing.
    key: Option<LessSafeKey>,
    places: Box<[ArcSwapOption<Known<T>>]>,
    bytes: Arc<PolicyBytes>,
}

struct Known<T> {
    tag: [u8; TAG],
    value: T,
    _bytes: CountedBytes,
}

/// The place of a text.
pub(super) struct RememberedSlot<'a, T> {
    tag: [u8; TAG],
    remembered: &'a Remembered<T>,
    index: usize,
}

/// Prints neither the key nor what is remembered.
impl<T> fmt::Debug for Remembered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remembered")
    }
}

impl<T> Remembered<T> {
    /// Remembers nothing yet, and takes memory of this namespace.
    pub(super) fn new(namespace: &Arc<NamespaceBytes>) -> Self {
        let mut key = [0; 16];
        rand::rng().fill_bytes(&mut key);
        let key = UnboundKey::new(&AES_128_GCM, &key);
        Self {
            key: key.ok().map(LessSafeKey::new),
            places: (0..REMEMBERED).map(|_| ArcSwapOption::empty()).collect(),
            bytes: PolicyBytes::new(namespace),
        }
    }

    /// Returns the place of a text, which may be that of another one.
    pub(super) fn place(&self, text: &[u8]) -> Option<RememberedSlot<'_, T>> {
        // With one nonce for all, the tag of a text without a message (GMAC) is a universal hash with a secret key: without
        // the key, another text with the same tag is found by chance only. Nothing discloses a tag, and the key encrypts nothing.
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let key = self.key.as_ref()?;
        let found = key.seal_in_place_separate_tag(nonce, Aad::from(text), &mut []);
        let tag: [u8; TAG] = found.ok()?.as_ref().try_into().ok()?;
        let index = usize::from(u16::from_le_bytes([tag[0], tag[1]])) % REMEMBERED;
        Some(RememberedSlot {
            tag,
            remembered: self,
            index,
        })
    }

    /// Counts bytes for a place. While they have no room, forgets what is there and at the places behind it.
    fn count(&self, index: usize, bytes: usize) -> Option<CountedBytes> {
        let (before, behind) = self.places.split_at(index);
        let mut places = behind.iter().chain(before);
        loop {
            let counted = self.bytes.count(bytes);
            if counted.is_some() {
                return counted;
            }
            places.next()?.store(None);
        }
    }
}

impl<T> RememberedSlot<'_, T> {
    /// Returns what `of` finds in what the text has led to, if that is remembered.
    pub(super) fn find<R>(&self, of: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let known = self.remembered.places[self.index].load();
        let known = known.as_ref()?;
        let is_same = verify_slices_are_equal(&known.tag, &self.tag).is_ok();
        is_same.then(|| of(&known.value)).flatten()
    }

    /// Remembers what the text has led to, a value that refers to this many bytes. It may have no room.
    pub(super) fn set(&self, value: T, bytes: usize) {
        let Some(counted) = self.remembered.count(self.index, bytes + ENTRY) else {
            return;
        };
        let known = Known {
            tag: self.tag,
            value,
            _bytes: counted,
        };
        self.remembered.places[self.index].store(Some(Arc::new(known)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_a_text_and_no_other() {
        let remembered = Remembered::new(&Arc::default());
        let place = |text: &str| remembered.place(text.as_bytes()).unwrap();
        let found = |text: &str| place(text).find(|it| Some(*it));
        assert_eq!(found("a"), None);
        place("a").set(1, 0);
        assert_eq!(found("a"), Some(1));
        for other in ["", "b", "aa"] {
            assert_eq!(found(other), None, "{other}");
        }
        for text in 0..4 * REMEMBERED {
            place(&text.to_string()).set(text, 0);
        }
        let is_known = |text: &usize| found(&text.to_string()).is_some();
        let known = (0..4 * REMEMBERED).filter(is_known);
        assert!(known.count() <= REMEMBERED);
    }

    #[test]
    fn large_values_take_the_place_of_each_other() {
        const LARGE: usize = 1024 * 1024;
        let namespace = Arc::default();
        let policies: Vec<_> = (0..20).map(|_| Remembered::new(&namespace)).collect();
        for policy in &policies {
            for text in 0..REMEMBERED {
                let text = text.to_string();
                policy.place(text.as_bytes()).unwrap().set((), LARGE);
            }
        }
        let known = |policy: &Remembered<()>| {
            let places = policy.places.iter();
            places.filter(|place| place.load().is_some()).count()
        };
        let known: Vec<_> = policies.iter().map(known).collect();
        assert!(known.iter().sum::<usize>() < 16, "{known:?}");
        assert!((4..8).contains(&known[0]), "{known:?}");
        let last = (REMEMBERED - 1).to_string();
        let place = policies[0].place(last.as_bytes()).unwrap();
        assert_eq!(place.find(|()| Some(())), Some(()));
    }

    #[test]
    fn tags_of_two_processes_differ() {
        let tag = || {
            let one = Remembered::<()>::new(&Arc::default());
            one.place(b"text").unwrap().tag
        };
        assert_ne!(tag(), tag());
    }
}
