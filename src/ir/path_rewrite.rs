//! Changes of a path by a regular expression, in time linear in the length of the path. What a thread keeps for it is
//! limited over all expressions. Must not know requests.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use regex_automata::Input;
use regex_automata::nfa::thompson::pikevm::{Cache, PikeVM};
use regex_automata::util::primitives::NonMaxUsize;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Pattern;

/// Maximum length of a changed path in bytes.
pub const MAX_PATH: usize = 64 * 1024;
/// Number of groups that a replacement may name, with group 0, which is the whole match.
const GROUPS: usize = 10;
/// Maximum memory that one thread keeps for searching, over all expressions, in bytes. Beyond it, the thread forgets all.
const MAX_KEPT: usize = 4 * 1024 * 1024;

/// A change of paths: every part that matches `pattern` becomes `replacement`.
#[derive(Debug, Serialize)]
pub struct PathRewrite {
    pattern: Pattern,
    replacement: Box<str>,
    #[serde(skip)]
    template: Box<[Piece]>,
    #[serde(skip)]
    program: OnceLock<Option<Program>>,
}

/// A piece of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Group(usize),
}

/// A compiled expression.
#[derive(Debug)]
struct Program {
    /// Identifies what a thread keeps of it.
    id: u64,
    vm: PikeVM,
}

/// What a thread keeps of all expressions.
#[derive(Default)]
struct Kept {
    by_program: FxHashMap<u64, Cache>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl PathRewrite {
    /// Creates a change.
    ///
    /// # Errors
    /// When the replacement is invalid, with a text that says why.
    pub fn new(pattern: Pattern, replacement: &str) -> Result<Self, String> {
        let template = template(replacement)?;
        let groups = regex_syntax::parse(pattern.source());
        let groups = groups.map_or(0, |it| it.properties().explicit_captures_len());
        let is_missing = |piece: &&Piece| matches!(piece, Piece::Group(index) if *index > groups);
        if let Some(Piece::Group(index)) = template.iter().find(is_missing) {
            return Err(format!("${index} is no group: the pattern has {groups}"));
        }
        Ok(Self {
            template,
            pattern,
            replacement: replacement.into(),
            program: OnceLock::new(),
        })
    }

    /// Returns the expression and the replacement, as written.
    pub fn source(&self) -> (&str, &str) {
        (self.pattern.source(), &self.replacement)
    }

    /// Returns the changed path; `None` if it would have more than [`MAX_PATH`] bytes. Compiles the expression if that has
    /// not happened yet.
    pub fn changed(&self, path: &str) -> Option<String> {
        let program = self.program.get_or_init(|| Program::new(&self.pattern));
        // What cannot be compiled is refused when the pattern is checked. If that missed something, nothing matches.
        let Some(program) = program else {
            return Some(path.to_owned());
        };
        KEPT.with_borrow_mut(|kept| {
            let Kept { by_program, bytes } = kept;
            let size = |cache: &Cache| size_of::<Cache>() + cache.memory_usage();
            let before = by_program.get(&program.id).map_or(0, size);
            let cache = by_program.entry(program.id);
            let cache = cache.or_insert_with(|| program.vm.create_cache());
            let changed = self.replace(&program.vm, cache, path);
            *bytes = *bytes + size(cache) - before;
            if *bytes > MAX_KEPT {
                *kept = Kept::default();
            }
            changed
        })
    }

    fn replace(&self, vm: &PikeVM, cache: &mut Cache, path: &str) -> Option<String> {
        let mut changed = String::with_capacity(path.len() + self.replacement.len());
        let mut slots: [Option<NonMaxUsize>; 2 * GROUPS] = [None; 2 * GROUPS];
        let known = vm.get_nfa().group_info().slot_len();
        let slots = &mut slots[..known.min(2 * GROUPS)];
        // End of the last match, and where to search on.
        let (mut done, mut at) = (0, 0);
        while at <= path.len() {
            let input = Input::new(path).range(at..);
            let found = vm.search_slots(cache, &input, slots);
            let Some((start, end)) = found.and_then(|_| group(slots, 0)) else {
                break;
            };
            let is_empty = start == end;
            // An empty match at the end of the one before is part of that.
            if !(is_empty && start == done && done > 0) {
                changed.push_str(&path[done..start]);
                self.expand(path, slots, &mut changed);
                done = end;
            }
            if changed.len() > MAX_PATH {
                return None;
            }
            let next = path[end..].chars().next().map_or(1, char::len_utf8);
            at = end + if is_empty { next } else { 0 };
        }
        changed.push_str(&path[done..]);
        Some(changed).filter(|changed| changed.len() <= MAX_PATH)
    }

    /// Appends the replacement of a match, and no further piece once the path is longer than [`MAX_PATH`].
    fn expand(&self, path: &str, slots: &[Option<NonMaxUsize>], changed: &mut String) {
        for piece in &self.template {
            if changed.len() > MAX_PATH {
                return;
            }
            match piece {
                Piece::Text(text) => changed.push_str(text),
                Piece::Group(index) => {
                    let (start, end) = group(slots, *index).unwrap_or_default();
                    changed.push_str(&path[start..end]);
                }
            }
        }
    }
}

fn group(slots: &[Option<NonMaxUsize>], index: usize) -> Option<(usize, usize)> {
    let slot = |at: usize| slots.get(at).copied().flatten().map(NonMaxUsize::get);
    Some((slot(2 * index)?, slot(2 * index + 1)?))
}

/// Parses a replacement: `$1` to `$9` are groups, `$0` is the whole match, and `$$` is `$`.
fn template(replacement: &str) -> Result<Box<[Piece]>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut characters = replacement.chars();
    while let Some(character) = characters.next() {
        if character != '$' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('$') => text.push('$'),
            Some(digit @ '0'..='9') => {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text).into()));
                }
                pieces.push(Piece::Group(digit as usize - '0' as usize));
            }
            _ => return Err("$ is followed by neither a digit nor $".to_owned()),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text.into()));
    }
    Ok(pieces.into())
}

impl Program {
    fn new(pattern: &Pattern) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Some(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            vm: PikeVM::new(pattern.source()).ok()?,
        })
    }
}

impl PartialEq for PathRewrite {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.replacement == other.replacement
    }
}

impl Eq for PathRewrite {}

impl Hash for PathRewrite {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pattern.hash(state);
        self.replacement.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rewrite(pattern: &str, replacement: &str) -> PathRewrite {
        PathRewrite::new(Pattern::new(pattern).unwrap(), replacement).unwrap()
    }

    #[test]
    fn replacement_ends_soon_after_the_longest_path() {
        let rewrite = rewrite("^.*$", &"$0".repeat(512));
        let path = format!("/{}", "a".repeat(MAX_PATH / 2));
        let slots = [NonMaxUsize::new(0), NonMaxUsize::new(path.len())];
        let mut changed = String::new();
        rewrite.expand(&path, &slots, &mut changed);
        assert!((MAX_PATH..MAX_PATH + path.len() + 1).contains(&changed.len()));
        assert_eq!(rewrite.changed(&path), None);
    }

    #[test]
    fn replaces_every_match() {
        for (pattern, replacement, path, expected) in [
            ("^/api(/|$)(.*)", "/$2", "/api/a/b", "/a/b"),
            ("^/api(/|$)(.*)", "/$2", "/api", "/"),
            ("^/api(/|$)(.*)", "/$2", "/apis", "/apis"),
            (
                "^/user/([^/]+)/orders$",
                "/orders/$1",
                "/user/7/orders",
                "/orders/7",
            ),
            ("/+", "/", "//a///b", "/a/b"),
            ("b", "[$0]", "/abcb", "/a[b]c[b]"),
            ("x*", "-", "/abxc", "-/-a-b-c-"),
            ("$", "/end", "/a", "/a/end"),
            ("(a)|(b)", "$1$2$1", "/ab", "/aab"),
            ("a", "$$1", "/a", "/$1"),
            ("é", "e", "/éa", "/ea"),
            (".", "", "/é", ""),
        ] {
            let changed = rewrite(pattern, replacement).changed(path);
            assert_eq!(changed.as_deref(), Some(expected), "{pattern} {path}");
        }
    }

    #[test]
    fn refuses_replacements_without_meaning() {
        for text in ["$", "/$a", "/${1}", "/$1$", "/$2"] {
            let pattern = Pattern::new("(a)").unwrap();
            assert!(PathRewrite::new(pattern, text).is_err(), "{text}");
        }
    }

    #[test]
    fn length_is_limited() {
        let rewrite = rewrite("(.*)", &"$1".repeat(100));
        assert!(rewrite.changed(&"a".repeat(1000)).is_none());
        assert_eq!(rewrite.changed("a").map(|it| it.len()), Some(100));
    }

    #[test]
    fn thread_keeps_a_limited_amount() {
        for number in 0..2000 {
            let rewrite = rewrite(&format!("(?i)a{number}[a-z]{{50}}"), "b");
            rewrite.changed("/a").unwrap();
            KEPT.with_borrow(|kept| {
                let size: usize = kept.by_program.values().map(Cache::memory_usage).sum();
                assert!(size <= MAX_KEPT, "{size}");
            });
        }
    }

    proptest! {
        #[test]
        fn replaces_what_the_library_replaces(
            pattern in "[ab/.*+?()|^$]{1,8}",
            replacement in "[a/]{0,2}(\\$[0-3])?[b]{0,1}",
            path in "/[ab/é]{0,12}",
        ) {
            let (Ok(ours), Ok(theirs)) = (Pattern::new(&pattern), regex::Regex::new(&pattern)) else {
                return Ok(());
            };
            // The library reads `$1b` as a group of this name.
            let template = replacement.replace('b', "");
            let Ok(ours) = PathRewrite::new(ours, &template) else {
                return Ok(());
            };
            let expected = theirs.replace_all(&path, template.as_str());
            prop_assert_eq!(ours.changed(&path).unwrap(), expected.into_owned());
        }
    }
}
