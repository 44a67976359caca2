//! What compiled patterns of routes allocate: no more than the bound by which they are accepted, with the version of
//! `regex-automata` that is in use.

use allocation_counter::measure;
use portcullis::ir::Pattern;
use portcullis::ir::pattern::MAX_COST;

/// Parts of patterns, of all kinds whose bounds differ.
const PARTS: &[&str] = &[
    "a",
    "é",
    "/",
    ".",
    "(?s:.)",
    "[^/]",
    "[a-f]",
    "[a-f0-9_-]",
    "[é-€]",
    "[^a-z€]",
    "[[:alpha:]]",
    "[[:^alpha:]]",
    "\\d",
    "\\D",
    "\\s",
    "\\S",
    "\\w",
    "\\W",
    "\\pL",
    "\\PL",
    "\\p{Cn}",
    "\\p{Any}",
    "\\p{sc=Common}",
    "[\\w--\\d]",
    "\\b",
    "^",
    "$",
    "(?:a|b)",
    "(a|bc|d*)",
    "a*",
    "a+?",
    "(?:a?)",
    "(?:a{0,3})",
    "(?:é{2,})",
    "(?i:k)",
    "(?i:[a-k])",
    "(?i:ß)",
];

/// Returns the pattern of so many parts, if it is accepted.
fn of_parts(part: &str, count: usize, is_repetition: bool) -> Option<Pattern> {
    let source = match is_repetition {
        true => format!("(?:{part}){{{count}}}"),
        false => part.repeat(count),
    };
    Pattern::new(&source).ok()
}

/// Returns the largest pattern of such parts that is accepted.
fn largest(part: &str, is_repetition: bool) -> Pattern {
    let is_accepted = |count| of_parts(part, count, is_repetition).is_some();
    // From below, since a long source takes long, and most parts are accepted only a few times.
    let mut refused = 2;
    while refused < MAX_COST && is_accepted(refused) {
        refused *= 2;
    }
    let mut accepted = refused / 2;
    while refused - accepted > 1 {
        let count = usize::midpoint(accepted, refused);
        match is_accepted(count) {
            true => accepted = count,
            false => refused = count,
        }
    }
    of_parts(part, accepted, is_repetition).expect("one part is accepted")
}

/// Returns what a compiled pattern keeps allocated. What is allocated once for all patterns does not count.
fn allocated(pattern: Pattern) -> usize {
    let source = pattern.source().to_owned();
    pattern.compile();
    drop(pattern);
    let pattern = Pattern::new(&source).expect("it was accepted");
    assert!(!pattern.is_compiled());
    let kept = measure(|| pattern.compile()).bytes_current;
    usize::try_from(kept).expect("it keeps something")
}

#[test]
fn patterns_at_the_bound_allocate_no_more() {
    let mut most = 0;
    for part in PARTS {
        for is_repetition in [false, true] {
            let pattern = largest(part, is_repetition);
            let cost = pattern.cost();
            let allocated = allocated(pattern);
            assert!(
                cost <= MAX_COST && allocated <= cost,
                "{part:?} allocates {allocated} bytes and costs {cost}"
            );
            most = most.max(allocated);
        }
    }
    // Bytes are counted, and the bound refuses little that would fit.
    assert!(most > MAX_COST / 2, "{most}");
}
