//! Regular expressions of schemas and CEL rules. All of them are embedded in the program, so the cache of compiled
//! expressions needs no eviction.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

/// Maximum size in bytes of the lazy DFA of one expression.
const CACHE: usize = 64 << 10;

/// A regular expression in RE2 syntax. It is not anchored implicitly.
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
    /// Returns the source of the expression.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Reports whether the expression matches a part of the text; `None` if the expression is invalid.
    pub(super) fn is_match(&self, text: &str) -> Option<bool> {
        self.regex
            .get_or_init(|| compile(&self.source))
            .as_ref()
            .map(|regex| regex.is_match(text))
    }
}

/// Compiles an expression. Equal expressions share one `Regex` behind an `Arc`, because a clone of a `Regex` gets its
/// own pool of caches.
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
