//! Regular expressions of matches. They always match the whole value, in time linear in its length. A pattern is
//! checked when it is created and compiled when it is first used, so that a process that only checks patterns needs
//! neither the time nor the memory.

mod cost;
mod program;

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use regex_syntax::ast::parse::Parser;
use regex_syntax::hir::translate::Translator;
use serde::{Serialize, Serializer};

use self::program::Program;

/// Maximum memory of one compiled pattern, in bytes.
pub const MAX_COST: usize = 256 * 1024;
/// Number of shared patterns from which unused ones are dropped.
const MIN_SHARED: usize = 256;

/// A valid pattern. Patterns with the same source are equal and share one program.
#[derive(Clone)]
pub struct Pattern(Arc<Shared>);

/// A pattern, in memory once for all routes.
struct Shared {
    source: Box<str>,
    cost: usize,
    program: OnceLock<Option<Program>>,
}

impl Pattern {
    /// Checks a pattern of RE2 syntax. Fails with a one-line reason on bad syntax or excessive size.
    ///
    /// # Errors
    /// When the syntax is invalid, or the program would take more than [`MAX_COST`] bytes.
    pub fn new(source: &str) -> Result<Self, String> {
        let mut known = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known.patterns.get(source).and_then(Weak::upgrade) {
            return Ok(Self(shared));
        }
        let shared = Arc::new(Shared {
            source: source.into(),
            cost: check(source)?,
            program: OnceLock::new(),
        });
        known.insert(&shared);
        Ok(Self(shared))
    }

    /// Reports whether the whole of `value` matches. Compiles the pattern if that has not happened yet.
    pub fn matches(&self, value: &str) -> bool {
        self.program().is_some_and(|program| program.matches(value))
    }

    /// Compiles the pattern, unless that has happened already.
    pub fn compile(&self) {
        self.program();
    }

    /// Reports whether the pattern is compiled.
    pub fn is_compiled(&self) -> bool {
        self.0.program.get().is_some()
    }

    /// Returns an upper bound for the memory of the compiled pattern, in bytes. Depends only on the source.
    pub fn cost(&self) -> usize {
        self.0.cost
    }

    /// Returns the pattern as written.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Returns the program. [`check`] refuses what cannot be compiled; if it missed something, nothing matches.
    fn program(&self) -> Option<&Program> {
        let program = self.0.program.get_or_init(|| Program::new(&self.0.source));
        program.as_ref()
    }
}

/// Checks a pattern. Returns its cost. The cost is known from the syntax tree, before the Unicode tables of its classes
/// are read, so that an expensive pattern is refused cheaply.
fn check(source: &str) -> Result<usize, String> {
    let one_line = |error: String| {
        let last = error.lines().last().unwrap_or("bad pattern").trim();
        last.to_owned()
    };
    let syntax = Parser::new().parse(source);
    let syntax = syntax.map_err(|error| one_line(error.to_string()))?;
    let cost = cost::of(&syntax);
    if cost > MAX_COST {
        return Err(format!(
            "the pattern compiles to more than {MAX_COST} bytes"
        ));
    }
    let meaning = Translator::new().translate(source, &syntax);
    meaning.map_err(|error| one_line(error.to_string()))?;
    Ok(cost)
}

/// The patterns in use, by source.
#[derive(Default)]
struct Known {
    patterns: HashMap<Box<str>, Weak<Shared>>,
    /// Number of patterns at which unused ones are dropped.
    full: usize,
}

static SHARED: std::sync::LazyLock<Mutex<Known>> = std::sync::LazyLock::new(Mutex::default);

impl Known {
    fn insert(&mut self, shared: &Arc<Shared>) {
        if self.patterns.len() >= self.full {
            self.patterns.retain(|_, known| known.strong_count() > 0);
            self.full = MIN_SHARED.max(self.patterns.len() * 2);
        }
        let source = shared.source.clone();
        self.patterns.insert(source, Arc::downgrade(shared));
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.source())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.source() == other.source()
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source().hash(state);
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.source())
    }
}

#[cfg(test)]
mod tests;
