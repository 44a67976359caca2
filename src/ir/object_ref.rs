//! The name of a Kubernetes object, with its group and kind. Must not know the contents of objects.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::LazyLock;

use serde::{Serialize, Serializer};
use triomphe::Arc;

use super::sharing::{self, Digest, Shared, Text};

/// Group of the Gateway API's own kinds.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// Returns the `apiVersion` of a version of a group. That of the core group, which is empty, is the version.
pub fn api_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// Splits an `apiVersion` into group and version. The core group is empty.
pub fn group_and_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Returns group and kind of the released API for those of an experimental kind with the same fields, else the same.
/// XListenerSets were released in Gateway API 1.5.
pub fn released<'a>(group: &'a str, kind: &'a str) -> (&'a str, &'a str) {
    match (group, kind) {
        ("gateway.networking.x-k8s.io", "XListenerSet") => (GATEWAY_GROUP, "ListenerSet"),
        other => other,
    }
}

/// Frequent groups and kinds, which need no look-up.
static WORDS: LazyLock<[Text; 8]> = LazyLock::new(|| {
    let words = [
        GATEWAY_GROUP,
        "",
        "HTTPRoute",
        "Gateway",
        "Service",
        "EndpointSlice",
        "Secret",
        "ListenerSet",
    ];
    words.map(Text::from)
});

/// What separates the name of a policy from the number of an earlier version. Names of Kubernetes objects are in lower case.
const EARLIER: &str = ".Earlier";

/// The names of all objects that the process knows of. A process may hold many thousands of them, each in many places.
static NAMES: LazyLock<Shared<Arc<ObjectName>>> = LazyLock::new(Shared::default);

fn word(text: &str) -> Text {
    let known = WORDS.iter().find(|word| ***word == *text);
    known.cloned().unwrap_or_else(|| text.into())
}

/// Group, kind, namespace and name of one object, which equal references share. Small and cheap to clone.
///
/// Prints as `Kind namespace/name` (`Kind name` when cluster-scoped), an earlier version of a policy with words that say so
/// after the name of the policy; orders by group, kind, and the text `namespace/name`.
#[derive(Clone)]
pub struct ObjectRef(Arc<ObjectName>);

/// What an [`ObjectRef`] refers to. The core group and the namespace of cluster-scoped objects are empty.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Equal for equal names.
    digest: u64,
    /// API group, empty for core kinds.
    pub group: Text,
    /// Kind, in the API's spelling.
    pub kind: Text,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: Text,
    /// Name.
    pub name: Text,
}

impl Deref for ObjectRef {
    type Target = ObjectName;

    fn deref(&self) -> &ObjectName {
        &self.0
    }
}

impl Digest for ObjectName {
    fn digest(&self) -> u64 {
        self.digest
    }
}

impl ObjectRef {
    /// Creates a reference to an object. Names of experimental kinds become those of the released API, so that an
    /// XListenerSet and the ListenerSet that it is read as are one object.
    pub fn new(group: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let (group, kind) = released(group, kind);
        let digest = sharing::digest((group, kind, namespace, name));
        let is_same = |known: &Arc<ObjectName>| {
            (&*known.name, &*known.namespace) == (name, namespace)
                && (&*known.kind, &*known.group) == (kind, group)
        };
        let create = || {
            Arc::new(ObjectName {
                digest,
                group: word(group),
                kind: word(kind),
                namespace: namespace.into(),
                name: name.into(),
            })
        };
        Self(NAMES.get(digest, is_same, create))
    }

    /// Creates a reference to an object of the Gateway API's group.
    pub fn gateway_api(kind: &str, namespace: &str, name: &str) -> Self {
        Self::new(GATEWAY_GROUP, kind, namespace, name)
    }

    /// Creates a reference to an object of the core group, such as a Service or a Secret.
    pub fn core(kind: &str, namespace: &str, name: &str) -> Self {
        Self::new("", kind, namespace, name)
    }

    /// Returns the name under which an earlier version of a policy is in force beside the present one. `number` distinguishes
    /// it from others.
    pub fn earlier_name(policy: &str, number: u64) -> String {
        format!("{policy}{EARLIER}{number}")
    }

    /// Returns the name of the policy and the number of the version if this is an earlier version of a policy; `None` for
    /// objects, which have a status.
    pub fn earlier(&self) -> Option<(&str, &str)> {
        let (policy, number) = self.name.rsplit_once(EARLIER)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some((policy, number))
    }

    /// Returns the policy that this is an earlier version of; this object if it is none.
    pub fn present(&self) -> Self {
        match self.earlier() {
            Some((name, _)) => Self::new(&self.group, &self.kind, &self.namespace, name),
            None => self.clone(),
        }
    }

    /// Reports whether this is an object of the core group with this kind.
    pub fn is_core(&self, kind: &str) -> bool {
        self.group.is_empty() && *self.kind == *kind
    }
}

impl PartialEq for ObjectRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for ObjectRef {}

impl Hash for ObjectRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Ord for ObjectRef {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        // Equal groups and kinds are mostly one shared string: comparing addresses first avoids comparing the text.
        let part = |one: &Text, two: &Text| match one.is_same(two) {
            true => Ordering::Equal,
            false => one.cmp(two),
        };
        part(&self.group, &other.group)
            .then_with(|| part(&self.kind, &other.kind))
            .then_with(|| match self.namespace.is_same(&other.namespace) {
                true => self.name.cmp(&other.name),
                false => by_text(
                    (&self.namespace, &self.name),
                    (&other.namespace, &other.name),
                ),
            })
    }
}

/// Compares objects by the text `{namespace}/{name}`, byte by byte, as the API breaks ties: `app-x/r` is before `app/r`.
pub fn by_text(one: (&str, &str), other: (&str, &str)) -> Ordering {
    let order = one.0.cmp(other.0);
    match order {
        Ordering::Equal => one.1.cmp(other.1),
        _ if one.0.len() == other.0.len() => order,
        // The character after the shorter namespace decides.
        _ if one.0.starts_with(other.0) || other.0.starts_with(one.0) => {
            text(one).cmp(text(other)).then(order)
        }
        _ => order,
    }
}

/// The bytes of `{namespace}/{name}`, or of the name of a cluster-scoped object.
fn text<'a>((namespace, name): (&'a str, &'a str)) -> impl Iterator<Item = u8> + 'a {
    let separator = (!namespace.is_empty()).then_some(b'/');
    namespace.bytes().chain(separator).chain(name.bytes())
}

/// Namespace and name: identifies an object among those of its kind. In the order of [`by_text`], so that all steps break
/// ties as the API does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Namespace, empty when cluster-scoped.
    pub namespace: Text,
    /// Name.
    pub name: Text,
}

impl Key {
    /// Creates a key.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl ObjectName {
    /// Returns the name without group and kind.
    pub fn key(&self) -> Key {
        Key {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        by_text(
            (&self.namespace, &self.name),
            (&other.namespace, &other.name),
        )
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialOrd for ObjectRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, when) = match self.earlier() {
            Some((policy, _)) => (policy, " before a recent change"),
            None => (&*self.name, ""),
        };
        if self.namespace.is_empty() {
            write!(f, "{} {name}{when}", self.kind)
        } else {
            write!(f, "{} {}/{name}{when}", self.kind, self.namespace)
        }
    }
}

impl Serialize for ObjectRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_version_of_a_policy_is_shown_under_the_name_of_the_policy() {
        let policy = |name: &str| ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", name);
        let earlier = policy(&ObjectRef::earlier_name("one", 12));
        assert_eq!(earlier.earlier(), Some(("one", "12")));
        let text = "AccessPolicy shop/one before a recent change";
        assert_eq!(earlier.to_string(), text);
        assert_eq!(earlier.present(), policy("one"));
        for name in ["one", "one.earlier1", "one.Earlier", "one.Earlierx"] {
            assert_eq!(policy(name).earlier(), None);
            assert_eq!(policy(name).present(), policy(name));
            let text = format!("AccessPolicy shop/{name}");
            assert_eq!(policy(name).to_string(), text);
        }
    }

    #[test]
    fn ties_are_broken_by_the_text_of_namespace_and_name() {
        let sorted = [
            ("", "a"),
            ("app-x", "r"),
            ("app", "r"),
            ("app", "r-1"),
            ("app0", "a"),
            ("b", "a"),
        ];
        for (at, one) in sorted.into_iter().enumerate() {
            for (other_at, other) in sorted.into_iter().enumerate() {
                let expected = at.cmp(&other_at);
                assert_eq!(by_text(one, other), expected, "{one:?} {other:?}");
                let name = |(namespace, name)| ObjectRef::core("Secret", namespace, name);
                assert_eq!(name(one).cmp(&name(other)), expected);
            }
        }
    }
}
