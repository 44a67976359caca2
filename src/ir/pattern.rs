//! Regular expressions of matches. They always match the whole value, in time linear in its length.

use std::fmt;
use std::hash::{Hash, Hasher};

use regex::{Regex, RegexBuilder};
use serde::{Serialize, Serializer};

use crate::per_worker::{PerWorker, WorkerId};

/// Maximum size of one compiled pattern, in bytes.
const SIZE_LIMIT: usize = 256 * 1024;

/// A compiled pattern. Patterns with the same source are equal.
pub struct Pattern {
    source: Box<str>,
    regex: Regex,
    /// Clones share the compiled program, and have memory for matching of their own. That of one `Regex` has a lock for
    /// all threads but the first.
    by_worker: PerWorker<Regex>,
}

impl Clone for Pattern {
    fn clone(&self) -> Self {
        Self::of(self.source.clone(), self.regex.clone())
    }
}

impl Pattern {
    /// Compiles a pattern of RE2 syntax. Fails with a one-line reason on bad syntax or excessive size.
    pub fn new(source: &str) -> Result<Self, String> {
        // Compiled without anchors first: `a)(b` must be refused, and would be valid between `^(?:` and `)$`.
        let build = |text: &str| RegexBuilder::new(text).size_limit(SIZE_LIMIT).build();
        build(source)
            .and_then(|_| {
                build(&format!("^(?:{source})$")).or_else(|_| build(&format!("^(?:{source}\n)$")))
            })
            .map(|regex| Self::of(source.into(), regex))
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!("the pattern compiles to more than {limit} bytes")
                }
                other => other
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or("bad pattern")
                    .trim()
                    .to_owned(),
            })
    }

    fn of(source: Box<str>, regex: Regex) -> Self {
        Self {
            source,
            regex,
            by_worker: PerWorker::default(),
        }
    }

    /// Reports whether the whole of `value` matches, on a thread of this worker.
    pub fn matches(&self, value: &str, worker: WorkerId) -> bool {
        let regex = self.by_worker.get(worker, || self.regex.clone());
        regex.is_match(value)
    }

    /// Returns the pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_whole_values_only() {
        let pattern = Pattern::new("/v[0-9]+|/x").unwrap();
        assert!(pattern.matches("/v12", WorkerId::ONLY));
        assert!(pattern.matches("/x", WorkerId::ONLY));
        assert!(!pattern.matches("/v12/y", WorkerId::ONLY));
        assert!(!pattern.matches("a/x", WorkerId::ONLY));
        assert!(!pattern.matches("/v12\n", WorkerId::ONLY));
    }

    #[test]
    fn comment_in_verbose_mode_does_not_hide_the_anchor() {
        let pattern = Pattern::new("(?x)/a # tail").unwrap();
        assert!(pattern.matches("/a", WorkerId::ONLY));
        assert!(!pattern.matches("/ab", WorkerId::ONLY));
    }

    #[test]
    fn refuses_invalid_and_oversized_patterns() {
        assert!(Pattern::new("a)(b").is_err());
        assert!(Pattern::new("(").is_err());
        assert!(
            Pattern::new(&"(a{100}){100}".repeat(4))
                .unwrap_err()
                .contains("bytes")
        );
    }
}
