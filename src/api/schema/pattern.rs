//! Regular expressions of schemas and CEL rules. They are few and all embedded in the program, so each is compiled
//! once, when it is first needed, and kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

/// Bytes of lazily built automaton that one expression may hold.
const CACHE: usize = 64 << 10;

/// A regular expression in RE2 syntax, unanchored unless it says otherwise.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub(super) struct Pattern {
    source: String,
    regex: OnceLock<Option<Arc<Regex>>>,
}

impl From<String> for Pattern {
    fn from(source: String) -> Self {
        Self {
            source,
            regex: OnceLock::new(),
        }
    }
}

impl Pattern {
    /// The expression as written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Whether the expression occurs in the text; `None` when the expression itself is broken.
    pub(super) fn is_match(&self, text: &str) -> Option<bool> {
        self.regex
            .get_or_init(|| compile(&self.source))
            .as_ref()
            .map(|regex| regex.is_match(text))
    }
}

/// The compiled form of an expression of a schema or rule, shared by all that use it: a clone of a `Regex` would start
/// with caches of its own.
pub(super) fn compile(source: &str) -> Option<Arc<Regex>> {
    static COMPILED: Mutex<BTreeMap<String, Arc<Regex>>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(regex) = compiled.get(source) {
        return Some(Arc::clone(regex));
    }
    let regex = Arc::new(
        RegexBuilder::new(source)
            .dfa_size_limit(CACHE)
            .build()
            .ok()?,
    );
    compiled.insert(source.to_owned(), Arc::clone(&regex));
    Some(regex)
}
