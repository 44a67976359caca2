//! Conditions on requests, of rules and of limits. Must not know what has them.

use std::ops::Deref;

use http::{HeaderName, Method};
use serde::{Serialize, Serializer};

use super::Pattern;
use super::canonical_path::CanonicalPath;
use super::serialized;
use super::sharing::Text;

/// A condition on the path, and others, which must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Match {
    /// Path.
    pub path: PathMatch,
    /// What else must hold.
    #[serde(flatten)]
    pub others: OtherConditions,
}

/// The conditions of a match, the path aside. Most matches have none, which takes no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OtherConditions(Option<Box<Conditions>>);

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Conditions {
    /// Set in GRPCRoutes: only gRPC requests match, and the preflight requests of browsers for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Method.
    #[serde(serialize_with = "method")]
    pub method: Option<Method>,
    /// Headers; each name once.
    pub headers: Vec<HeaderMatch>,
    /// Query parameters; each name once.
    pub query: Vec<QueryMatch>,
}

static NO_CONDITIONS: Conditions = Conditions {
    grpc: None,
    method: None,
    headers: Vec::new(),
    query: Vec::new(),
};

impl OtherConditions {
    /// Reports whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<Conditions> for OtherConditions {
    fn from(conditions: Conditions) -> Self {
        Self((conditions != NO_CONDITIONS).then(|| Box::new(conditions)))
    }
}

impl Deref for OtherConditions {
    type Target = Conditions;

    #[inline]
    fn deref(&self) -> &Conditions {
        self.0.as_deref().unwrap_or(&NO_CONDITIONS)
    }
}

impl Serialize for OtherConditions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Conditions::serialize(self, serializer)
    }
}

impl From<PathMatch> for Match {
    fn from(path: PathMatch) -> Self {
        Self {
            path,
            others: OtherConditions::default(),
        }
    }
}

impl Match {
    /// Returns the patterns of all conditions.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let (path, call) = match &self.path {
            PathMatch::Regex(pattern) => (Some(pattern), None),
            PathMatch::Call(call) => (None, Some(call)),
            PathMatch::Exact(_) | PathMatch::Prefix(_) => (None, None),
        };
        let call = call.into_iter();
        let call = call.flat_map(|call| call.service.iter().chain(&call.method));
        let headers = self.others.headers.iter().map(|header| &header.value);
        let query = self.others.query.iter().map(|parameter| &parameter.value);
        let values = call
            .chain(headers)
            .chain(query)
            .filter_map(|value| match value {
                ValueMatch::Regex(pattern) => Some(pattern),
                ValueMatch::Exact(_) => None,
            });
        path.into_iter().chain(values)
    }
}

/// How specific a match of a GRPCRoute is. Its condition on service and method is a path condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcMatch {
    /// Number of characters of the service or its pattern; 0 without one.
    pub service: usize,
    /// Number of characters of the method or its pattern; 0 without one.
    pub method: usize,
}

/// A path condition, in canonical form like the path that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PathMatch {
    /// The whole path.
    Exact(Text),
    /// Whole path elements at the start. Has no `/` at the end, so that `/` is the empty string.
    Prefix(Text),
    /// A pattern that the whole path matches.
    Regex(Pattern),
    /// Conditions on the parts of a gRPC path, `/service/method`.
    Call(Box<GrpcCall>),
}

impl PathMatch {
    /// Reports whether it matches every path.
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Prefix(prefix) if prefix.is_empty())
    }

    /// Reports whether a path meets the condition. Does not allocate.
    #[inline]
    pub fn matches(&self, path: CanonicalPath<'_>) -> bool {
        let path = path.as_str();
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Prefix(prefix) => path
                .strip_prefix(&**prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Regex(pattern) => pattern.matches(path),
            Self::Call(call) => call.matches(path),
        }
    }
}

/// Conditions on service and method of a gRPC call, each compared as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcCall {
    /// Service; `None` matches every service.
    pub service: Option<ValueMatch>,
    /// Method; `None` matches every method.
    pub method: Option<ValueMatch>,
}

impl GrpcCall {
    /// Returns service and method of a path. Only the last `/` separates them (gRPC over HTTP/2, "Requests").
    pub fn parts(path: &str) -> Option<(&str, &str)> {
        let parts = path.strip_prefix('/')?.rsplit_once('/')?;
        let (service, method) = parts;
        (!service.is_empty() && !method.is_empty()).then_some(parts)
    }

    fn matches(&self, path: &str) -> bool {
        let Self { service, method } = self;
        Self::parts(path).is_some_and(|(called, of)| {
            let fits = |condition: &ValueMatch, text: &str| match condition {
                ValueMatch::Exact(exact) => **exact == *text,
                ValueMatch::Regex(pattern) => pattern.matches(text),
            };
            let is_service = match service {
                Some(condition) => fits(condition, called),
                // A service has no `/`, unless a pattern says otherwise.
                None => !called.contains('/'),
            };
            is_service && method.as_ref().is_none_or(|condition| fits(condition, of))
        })
    }
}

/// A header condition. Repeated headers are one value, joined by `,`. Values that are equal but for empty elements and the
/// whitespace around commas are equal ([`super::header_list`]); patterns see the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HeaderMatch {
    /// Name.
    #[serde(serialize_with = "serialized::name")]
    pub name: HeaderName,
    /// Value.
    pub value: ValueMatch,
}

/// A query parameter condition. The first of repeated parameters counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QueryMatch {
    /// Name, case-sensitive.
    pub name: Text,
    /// Value.
    pub value: ValueMatch,
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ValueMatch {
    /// Equal.
    Exact(Text),
    /// Matches as a whole.
    Regex(Pattern),
}

fn method<S: Serializer>(method: &Option<Method>, serializer: S) -> Result<S::Ok, S::Error> {
    match method {
        Some(method) => serializer.serialize_str(method.as_str()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(path: &str) -> CanonicalPath<'_> {
        CanonicalPath::new(path).unwrap()
    }

    fn exact(value: &str) -> ValueMatch {
        ValueMatch::Exact(value.into())
    }

    fn regex(value: &str) -> ValueMatch {
        ValueMatch::Regex(Pattern::new(value).unwrap())
    }

    #[test]
    fn prefixes_match_whole_path_elements() {
        let fits = |prefix: &str, path| PathMatch::Prefix(prefix.into()).matches(canonical(path));
        assert!(fits("/foo", "/foo"));
        assert!(fits("/foo", "/foo/"));
        assert!(fits("/foo", "/foo/bar"));
        assert!(!fits("/foo", "/foobar"));
        assert!(!fits("/foo", "/Foo"));
        assert!(fits("", "/anything"));
        assert!(!fits("", "*"));
    }

    #[test]
    fn escaped_slashes_end_no_path_element() {
        let prefix = |text: &str| PathMatch::Prefix(text.into());
        for (path, condition, expected) in [
            ("/admin%2Fx", prefix(""), true),
            ("/admin%2Fx", prefix("/admin"), false),
            ("/api/admin%2Fx", prefix("/api"), true),
            ("/api%2Fx", PathMatch::Exact("/api%2Fx".into()), true),
        ] {
            assert_eq!(condition.matches(canonical(path)), expected, "{path}");
        }
    }

    #[test]
    fn service_and_method_match_apart() {
        let fits = |service, method, path| {
            let call = Box::new(GrpcCall { service, method });
            PathMatch::Call(call).matches(canonical(path))
        };
        let (any, some) = (None, |text| Some(regex(text)));
        for anchored in ["^foo$", "^foo", "foo$", "foo", "^(foo|bar)$"] {
            assert!(fits(some(anchored), None, "/foo/Get"), "{anchored}");
            assert!(fits(any.clone(), some(anchored), "/s/foo"), "{anchored}");
            for other in ["/foo.Bar/Get", "/afoo/Get", "/Get", "/foo", "//Get"] {
                assert!(!fits(some(anchored), None, other), "{anchored} {other}");
            }
        }
        assert!(fits(some("^a$"), some("^b$"), "/a/b"));
        assert!(!fits(some("^a$"), some("^b$"), "/a/bc"));
        assert!(fits(any.clone(), Some(exact("Get")), "/a.B/Get"));
        assert!(!fits(any.clone(), Some(exact("Get")), "/a/B/Get"));
        assert!(fits(some("a/B"), Some(exact("Get")), "/a/B/Get"));
        assert!(!fits(any.clone(), Some(exact("Get")), "/Get"));
        assert!(!fits(any.clone(), any, "/a/"));
    }
}
