//! Patterns: what they match, what they cost and when they are compiled.

use proptest::prelude::*;

use super::*;

fn pattern(source: &str) -> Pattern {
    Pattern::new(source).unwrap()
}

#[test]
fn matches_whole_values_only() {
    let pattern = pattern("/v[0-9]+|/x");
    assert!(pattern.matches("/v12"));
    assert!(pattern.matches("/x"));
    assert!(!pattern.matches("/v12/y"));
    assert!(!pattern.matches("a/x"));
    assert!(!pattern.matches("/v12\n"));
}

#[test]
fn comment_in_verbose_mode_does_not_hide_the_anchor() {
    let pattern = pattern("(?x)/a # tail");
    assert!(pattern.matches("/a"));
    assert!(!pattern.matches("/ab"));
}

#[test]
fn refuses_invalid_and_oversized_patterns() {
    for invalid in [
        "a)(b",
        "(",
        "\\p{Nope}",
        "(?-u:\\xff)",
        "a{2,1}",
        "(?<n>a)(?<n>b)",
    ] {
        let error = Pattern::new(invalid).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{invalid}: {error}");
    }
    let large = [
        "(a{100}){100}".repeat(4),
        "\\w{20}".to_owned(),
        "a{4294967295}".to_owned(),
    ];
    for large in large {
        let error = Pattern::new(&large).unwrap_err();
        assert!(error.contains("262144 bytes"), "{large}: {error}");
    }
}

#[test]
fn pattern_is_compiled_once_for_all_its_uses_and_only_when_used() {
    let (one, other) = (pattern("/once-[a-f]+"), pattern("/once-[a-f]+"));
    assert!(!one.is_compiled());
    assert!(other.matches("/once-abc"));
    assert!(one.is_compiled());
    assert!(Arc::ptr_eq(&one.0, &other.0));
    drop((one, other));
    assert!(!pattern("/once-[a-f]+").is_compiled());
}

#[test]
fn word_boundaries_match_beyond_ascii() {
    let pattern = pattern(r".*\bé\b.*");
    assert!(pattern.matches("a é b"));
    assert!(!pattern.matches("aéb"));
}

#[test]
fn thread_keeps_a_limited_amount_of_memory_for_matching() {
    // The DFA of each of these patterns has a thousand states, and this value visits most of them.
    let mut seed = 1_u32;
    let value: String = std::iter::repeat_with(|| {
        // Xorshift32.
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        if seed.is_multiple_of(2) { 'a' } else { 'b' }
    })
    .take(4096)
    .collect();
    let mut peak = 0;
    for number in 0..200 {
        pattern(&format!("(a|b)*a(a|b){{9}}{number}")).matches(&value);
        peak = peak.max(program::kept());
    }
    assert!(peak > 4 << 20 && peak <= 8 << 20, "{peak}");
}

/// Checks that the cost of a pattern is at least its size. Returns both.
fn compare(source: &str) -> Option<(usize, usize)> {
    let cost = check(source).ok()?;
    let size = Program::new(source).unwrap().size();
    assert!(
        size <= cost,
        "{source:?} takes {size} bytes and costs {cost}"
    );
    Some((cost, size))
}

#[test]
fn cost_is_an_upper_bound_for_every_class_of_unicode() {
    let classes = [
        "\\w",
        "\\W",
        "\\d",
        "\\D",
        "\\s",
        "\\S",
        ".",
        "(?s).",
        "[^/]",
        "\\pL",
        "\\PL",
        "\\p{Any}",
        "\\p{Alphabetic}",
        "[\\w--\\d]",
        "[\\w~~\\pL]",
        "[^\\w&&\\pL]",
        "\\p{Unassigned}",
        "\\P{Cn}",
        "\\p{ID_Continue}",
        "\\p{XID_Start}",
        "\\p{Grapheme_Cluster_Break=LVT}",
        "\\p{Age=V5_2}",
        "\\p{sc=Common}",
        "\\p{scx=Latin}",
        "\\p{Lowercase}",
        "\\p{Case_Ignorable}",
        "\\p{Changes_When_NFKC_Casefolded}",
        "[\\u{80}-\\u{ffff}]",
        "[\\u{7ff}-\\u{10ffff}]",
        "[[:alpha:]é-ü€]",
        "[^[:word:]]",
        "é",
        "\\x{1F600}",
        "k",
        "[a-z]",
        "[akK]",
        "\\b",
        "\\b{start-half}",
        "",
    ];
    for class in classes {
        for source in ["{}", "(?i){}", "({})+", "({}|x)*", "{}{3}", "({}){0,2}"] {
            compare(&source.replace("{}", class));
        }
    }
    let (cost, size) = compare("/api/(v1|v2)/users/[0-9]+/[^/]+").unwrap();
    assert!(cost < 4 * size, "{cost} for {size} bytes");
}

/// Patterns from parts, most of which are valid.
fn source(parts: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    let parts = proptest::collection::vec(proptest::sample::select(parts), 0..most);
    (any::<bool>(), parts).prop_map(|(ignores_case, parts)| {
        let flags = if ignores_case { "(?i)" } else { "" };
        flags.to_owned() + &parts.concat()
    })
}

const PARTS: &[&str] = &[
    "a",
    "k",
    "z",
    "/",
    r"\.",
    "é",
    "ß",
    "[a-f0-9é]",
    "[^a-z€]",
    "[é-€]",
    r"\d",
    r"\s",
    r"\pN",
    ".",
    "(a|bc|d*)",
    "(x[a-z]?)",
    "(?:k|é)",
    "{1,7}",
    "{3}",
    "{2,}",
    "*",
    "+",
    "?",
    "|",
    "(",
    ")",
    "^",
    "$",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cost_is_an_upper_bound_of_the_size(source in source(PARTS, 20)) {
        compare(&source);
    }

    #[test]
    fn matches_like_the_regex_crate(
        source in source(&["a", "b", "é", "[a-b]", "[^a]", r"\b", "^", "$", "(a|b)", ".", "{1,3}", "*", "+", "?", "|"], 10),
        values in proptest::collection::vec("[abAé/ ]{0,6}", 1..8),
    ) {
        if let (Ok(ours), Ok(theirs)) = (Pattern::new(&source), regex::Regex::new(&format!("^(?:{source})$"))) {
            for value in values {
                prop_assert_eq!(ours.matches(&value), theirs.is_match(&value), "{} of {:?}", source, value);
            }
        }
    }
}
