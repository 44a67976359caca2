//! How much memory the policies of a namespace take for what they remember. Must not know what that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum bytes of a namespace. Each policy leaves as many to others as it has: some hundred usual tokens of each of a dozen
/// policies fit.
const MAX_OF_NAMESPACE: usize = 16 * 1024 * 1024;

/// What the policies of a namespace remember, in bytes.
#[derive(Debug, Default)]
pub(super) struct NamespaceBytes(AtomicUsize);

/// What one policy remembers, in bytes.
pub(super) struct PolicyBytes {
    own: AtomicUsize,
    namespace: Arc<NamespaceBytes>,
}

/// Bytes that count until they are dropped.
pub(super) struct CountedBytes {
    bytes: usize,
    policy: Arc<PolicyBytes>,
}

impl PolicyBytes {
    pub(super) fn new(namespace: &Arc<NamespaceBytes>) -> Arc<Self> {
        Arc::new(Self {
            own: AtomicUsize::new(0),
            namespace: namespace.clone(),
        })
    }

    /// Counts this many bytes more; `None` if there is no room for them.
    pub(super) fn count(self: &Arc<Self>, bytes: usize) -> Option<CountedBytes> {
        let own = self.own.fetch_add(bytes, Relaxed) + bytes;
        let all = self.namespace.0.fetch_add(bytes, Relaxed) + bytes;
        let counted = CountedBytes {
            bytes,
            policy: self.clone(),
        };
        (all + own <= MAX_OF_NAMESPACE).then_some(counted)
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.policy.own.fetch_sub(self.bytes, Relaxed);
        self.policy.namespace.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn policy_leaves_as_much_to_others_as_it_has() {
        let namespace = Arc::default();
        let greedy = || {
            let policy = PolicyBytes::new(&namespace);
            std::iter::from_fn(|| policy.count(64 * KIB)).collect::<Vec<_>>()
        };
        let held: Vec<_> = (0..4).map(|_| greedy()).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [128, 64, 32, 16]);
        drop(held);
        assert_eq!(namespace.0.load(Relaxed), 0);
    }

    #[test]
    fn what_has_no_room_does_not_count() {
        let namespace = Arc::default();
        let policy = PolicyBytes::new(&namespace);
        assert!(policy.count(MAX_OF_NAMESPACE / 2 + 1).is_none());
        assert!(policy.count(MAX_OF_NAMESPACE / 2).is_some());
        assert_eq!(namespace.0.load(Relaxed), 0);
    }
}
