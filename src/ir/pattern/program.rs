//! The compiled form of a pattern: one automaton for the whole value, run as a lazy DFA or, where that would thrash, as a
//! simulation. What a thread keeps of its matches is limited over all patterns.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use regex_automata::hybrid::dfa::{Cache as LazyCache, DFA};
use regex_automata::nfa::thompson::pikevm::{Cache as VmCache, PikeVM};
use regex_automata::nfa::thompson::{Compiler, Config, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, Look};
use rustc_hash::FxHashMap;

/// Maximum memory that one thread keeps for the DFA states of one pattern, in bytes.
const MAX_STATES: usize = 128 * 1024;
/// Maximum memory that one thread keeps for matching, over all patterns, in bytes. Beyond it, the thread forgets all
/// states and builds those that it needs again.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// The lazy DFA gives up when it has to clear its states this often while it reads fewer bytes per state than this.
const MAX_CLEARS: usize = 3;
const MIN_BYTES_PER_STATE: usize = 10;

/// A compiled pattern.
pub(super) struct Program {
    /// Identifies what a thread keeps of it.
    id: u64,
    /// `None` if the pattern is too large for [`MAX_STATES`].
    dfa: Option<DFA>,
    vm: PikeVM,
}

/// What a thread keeps of one pattern.
#[derive(Default)]
struct Kept {
    dfa: Option<LazyCache>,
    vm: Option<VmCache>,
    bytes: usize,
}

/// What a thread keeps of all patterns.
#[derive(Default)]
struct AllKept {
    by_program: FxHashMap<u64, Kept>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<AllKept> = RefCell::default();
}

impl Program {
    /// Compiles a pattern. `None` if it is invalid.
    pub(super) fn new(source: &str) -> Option<Self> {
        /// Kept, because a new compiler begins by allocating a third of a megabyte.
        static COMPILER: Mutex<Option<Compiler>> = Mutex::new(None);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let inner = regex_syntax::parse(source).ok()?;
        let whole = Hir::concat(vec![Hir::look(Look::Start), inner, Hir::look(Look::End)]);
        let nfa = {
            let mut compiler = COMPILER.lock().unwrap_or_else(PoisonError::into_inner);
            let compiler = compiler.get_or_insert_with(|| {
                let mut compiler = Compiler::new();
                compiler.configure(Config::new().which_captures(WhichCaptures::None));
                compiler
            });
            compiler.build_from_hir(&whole).ok()?
        };
        let config = DFA::config()
            .cache_capacity(MAX_STATES)
            .unicode_word_boundary(true)
            .minimum_cache_clear_count(Some(MAX_CLEARS))
            .minimum_bytes_per_state(Some(MIN_BYTES_PER_STATE));
        Some(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            dfa: DFA::builder()
                .configure(config)
                .build_from_nfa(nfa.clone())
                .ok(),
            vm: PikeVM::new_from_nfa(nfa).ok()?,
        })
    }

    /// Reports whether the whole of `value` matches.
    pub(super) fn matches(&self, value: &str) -> bool {
        KEPT.with_borrow_mut(|all| {
            let kept = all.by_program.entry(self.id).or_default();
            let is_match = self.run(value, kept);
            let size = kept.size();
            let previous = std::mem::replace(&mut kept.bytes, size);
            all.bytes = all.bytes - previous + kept.bytes;
            if all.bytes > MAX_KEPT {
                *all = AllKept::default();
            }
            is_match
        })
    }

    fn run(&self, value: &str, kept: &mut Kept) -> bool {
        let input = Input::new(value).anchored(Anchored::Yes).earliest(true);
        if let Some(dfa) = &self.dfa {
            let cache = kept.dfa.get_or_insert_with(|| dfa.create_cache());
            // An error means that the DFA thrashes, or that a Unicode word boundary meets a byte beyond ASCII.
            if let Ok(found) = dfa.try_search_fwd(cache, &input) {
                return found.is_some();
            }
        }
        let cache = kept.vm.get_or_insert_with(|| self.vm.create_cache());
        self.vm.is_match(cache, input)
    }

    /// Returns the memory of the program in bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        let dfa = self.dfa.as_ref().map_or(0, DFA::memory_usage);
        size_of::<Self>() + self.vm.get_nfa().memory_usage() + dfa
    }
}

impl Kept {
    fn size(&self) -> usize {
        let dfa = self.dfa.as_ref().map_or(0, LazyCache::memory_usage);
        let vm = self.vm.as_ref().map_or(0, VmCache::memory_usage);
        size_of::<Self>() + dfa + vm
    }
}

/// Returns what this thread keeps of all patterns, in bytes.
#[cfg(test)]
pub(super) fn kept() -> usize {
    KEPT.with_borrow(|all| all.bytes)
}
