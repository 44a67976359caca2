//! Tests of the normalization of paths.

use proptest::prelude::*;

use super::DuplicateSlashes::{Forward, Keep, Merge};
use super::*;

#[test]
fn keeps_ordinary_paths() {
    for path in [
        "/",
        "/a/b.html",
        "/a.b/..c/...",
        "/a%2Fb%5C",
        "/a;v=1/b",
        "/a;..",
        "/caf%C3%A9",
        "/%252e%252e/x",
    ] {
        assert!(
            matches!(normalize(path), Ok(Cow::Borrowed(same)) if same == path),
            "{path}"
        );
    }
}

fn settings(
    escaped_slashes: EscapedSlashes,
    duplicate_slashes: DuplicateSlashes,
    dot_segments: DotSegments,
) -> PathSettings {
    PathSettings {
        escaped_slashes,
        duplicate_slashes,
        dot_segments,
        policy: crate::ir::ObjectRef::core("Policy", "ns", "name"),
    }
}

/// The path and whether it is ambiguous.
fn with(settings: &PathSettings, path: &str) -> Result<(String, bool), BadPath> {
    let normalized = normalize_with(path, Some(settings))?;
    Ok((normalized.path.into_owned(), normalized.is_ambiguous))
}

fn all_settings() -> impl Iterator<Item = PathSettings> {
    EscapedSlashes::ALL.into_iter().flat_map(|escaped| {
        let each =
            move |dots| DuplicateSlashes::ALL.map(|duplicates| settings(escaped, duplicates, dots));
        DotSegments::ALL.into_iter().flat_map(each)
    })
}

/// Parts that paths are put together from.
const PARTS: [&str; 14] = [
    "/", ".", "..", "%2f", "%2E", "%5C", "\\", ";", "a", "%252f", "%61", "%c3%a9", "\u{e9}", "%3B",
];

proptest! {
    #[test]
    fn normalized_paths_are_as_the_policy_says(
        parts in proptest::collection::vec(proptest::sample::select(&PARTS), 0..10)
    ) {
        let path = format!("/{}", parts.concat());
        for settings in all_settings() {
            let Ok(normalized) = normalize_with(&path, Some(&settings)) else {
                continue;
            };
            let canonical = normalized.canonical().to_owned();
            let Normalized { path: forwarded, is_ambiguous, is_decoded, .. } = normalized;
            prop_assert!(forwarded.starts_with('/') && canonical.starts_with('/'));
            prop_assert_eq!(&spelled(&canonical), &canonical);
            let has_dots = has_dot_segment(&canonical).unwrap();
            prop_assert!(!has_dots || settings.dot_segments == DotSegments::Keep);
            let duplicates = settings.duplicate_slashes;
            prop_assert!(duplicates == Keep || !canonical.contains("//"));
            prop_assert!(duplicates != Merge || !forwarded.contains("//"));
            let keeps = settings.escaped_slashes == EscapedSlashes::Keep;
            prop_assert!(keeps || !has_escaped_slash(&canonical));
            prop_assert_eq!(is_ambiguous, has_dots || canonical.contains("//"));
            // What the backend gets decides like what the client has sent, and the client of a redirect gets what it asks for.
            let again = normalize_with(&forwarded, Some(&settings)).unwrap();
            prop_assert_eq!(again.canonical(), &canonical);
            prop_assert_eq!(&again.path, &forwarded);
            prop_assert!(!again.is_decoded);
            // Unless the policy changes it, the path is forwarded as it is.
            let resolves = has_dot_segment(&path).unwrap();
            if !is_decoded && duplicates != Merge && !resolves {
                prop_assert_eq!(&forwarded, &path);
            }
        }
    }

    #[test]
    fn equivalent_spellings_get_one_decision(
        parts in proptest::collection::vec(proptest::sample::select(&PARTS), 0..8)
    ) {
        let path = format!("/{}", parts.concat());
        let canonical = spelled(&path);
        for settings in all_settings() {
            let one = normalize_with(&path, Some(&settings));
            let two = normalize_with(&canonical, Some(&settings));
            let decided = |it: Normalized<'_>| {
                (it.canonical().to_owned(), it.is_ambiguous, it.is_decoded)
            };
            prop_assert_eq!(one.map(decided), two.map(decided));
        }
    }

    #[test]
    fn what_a_filter_makes_does_not_escape(
        parts in proptest::collection::vec(proptest::sample::select(&PARTS), 0..10)
    ) {
        let path = format!("/{}", parts.concat());
        for settings in all_settings() {
            let Ok(rewritten) = rewritten(path.clone(), Some(&settings)) else {
                continue;
            };
            prop_assert!(!has_dot_segment(&rewritten).unwrap());
            let again = normalize_with(&rewritten, Some(&settings)).unwrap();
            prop_assert_eq!(again.path, rewritten.clone());
            prop_assert_eq!(again.canonical, None);
        }
    }
}

#[test]
fn path_is_forwarded_as_it_is() {
    for (path, canonical) in [
        ("/%61dmin", "/admin"),
        ("//admin//x/", "/admin/x/"),
        ("/a%2fb", "/a%2Fb"),
        ("/a\\b", "/a%5Cb"),
        ("/\u{e9}", "/%C3%A9"),
    ] {
        let normalized = normalize_with(path, None).unwrap();
        assert_eq!(normalized.path, path);
        assert_eq!(normalized.canonical(), canonical);
        assert_eq!(normalize(path).unwrap(), canonical);
        assert!(!normalized.is_ambiguous && !normalized.is_decoded);
    }
}

#[test]
fn policy_of_the_defaults_is_the_default() {
    let usual = settings(EscapedSlashes::Keep, Forward, DotSegments::Reject);
    for path in [
        "/",
        "/a",
        "/a%2Fb",
        "/a;b",
        "//a",
        "/a/../b",
        "/a%2f..",
        "/%zz",
        "/%00",
        "/a\\..",
        "/.a",
        "/a/..;b/c",
        "/a//",
        "/%252e%252e",
    ] {
        let set = normalize_with(path, Some(&usual));
        assert_eq!(set, normalize_with(path, None), "{path}");
        let canonical = set.map(|it| it.canonical().to_owned());
        assert_eq!(normalize(path).map(Cow::into_owned), canonical, "{path}");
    }
}

#[test]
fn resolves_dot_segments() {
    let normalizing = settings(EscapedSlashes::Keep, Merge, DotSegments::Normalize);
    for (path, expected) in [
        ("/a/b", "/a/b"),
        ("/x/../admin", "/admin"),
        ("/x//../admin", "/admin"),
        ("/../../admin", "/admin"),
        ("/a/./b/.", "/a/b/"),
        ("/a/b/..", "/a/"),
        ("/..", "/"),
        ("/x/%2e%2E/admin", "/admin"),
        ("/x/.%2e/./admin/", "/admin/"),
        ("/a/...", "/a/..."),
        ("/a%2fb/../c", "/c"),
        ("/a;v=1/../c", "/c"),
    ] {
        assert_eq!(
            with(&normalizing, path),
            Ok((expected.to_owned(), false)),
            "{path}"
        );
    }
    // What some read as a dot segment and others do not.
    for path in [
        "/admin%2f..",
        "/x/..%2fadmin",
        "/x\\..\\admin",
        "/x/..;a/admin",
        "/x%5c..%5cadmin",
    ] {
        assert_eq!(with(&normalizing, path), Err(DOT_SEGMENT), "{path}");
    }
    assert!(with(&normalizing, "/a/../%00").is_err());
}

#[test]
fn decodes_or_rejects_escaped_slashes() {
    let rejecting = settings(EscapedSlashes::Reject, Merge, DotSegments::Reject);
    let decoding = settings(EscapedSlashes::Decode, Merge, DotSegments::Normalize);
    for (path, decoded) in [
        ("/a%2fb%2Fc", "/a/b/c"),
        ("/a%5cb", "/a/b"),
        ("/a\\b", "/a/b"),
        ("/x%2f..%2fadmin", "/admin"),
        ("/%2f%2fhost", "/host"),
    ] {
        assert!(with(&rejecting, path).is_err(), "{path}");
        let normalized = normalize_with(path, Some(&decoding)).unwrap();
        assert!(normalized.is_decoded, "{path}");
        assert_eq!(normalized.path, decoded, "{path}");
    }
    for path in ["/a%252fb", "/a%20b", "/%41"] {
        assert_eq!(with(&rejecting, path), Ok((path.to_owned(), false)));
        assert!(!normalize_with(path, Some(&decoding)).unwrap().is_decoded);
    }
}

#[test]
fn kept_paths_may_be_read_in_several_ways() {
    let keeping = settings(EscapedSlashes::Keep, Keep, DotSegments::Keep);
    for (path, others) in [
        ("//admin", &["/admin", "/"][..]),
        ("//x/admin", &["/x/admin", "/admin"]),
        ("/x/../admin", &["/admin"]),
        ("/x//../admin", &["/x/admin", "/admin"]),
        ("/a%2fb/../admin", &["/admin", "/a/admin"]),
        ("/x%2f..%2fadmin", &["/admin"]),
        ("/x/..;p/admin", &["/admin"]),
        ("/admin%2f..", &["/"]),
        ("/x\\..\\admin", &["/admin"]),
    ] {
        assert_eq!(with(&keeping, path), Ok((path.to_owned(), true)), "{path}");
        assert_eq!(readings(path), others, "{path}");
    }
    for path in ["/a", "/a%2fb", "/a;b", "/%61dmin"] {
        assert_eq!(with(&keeping, path), Ok((path.to_owned(), false)), "{path}");
    }
}

#[test]
fn several_slashes_at_the_beginning_may_name_a_host() {
    for (path, behind) in [
        ("/a", None),
        ("/", None),
        ("/a//b", None),
        ("*", None),
        ("//", Some("/")),
        ("//x", Some("/")),
        ("//x/admin", Some("/admin")),
        ("///x//admin", Some("//admin")),
        ("/\\x\\admin", Some("/admin")),
        ("//\u{e9}/admin", Some("/admin")),
    ] {
        assert_eq!(behind_host(path).as_deref(), behind, "{path}");
    }
    let keeping = settings(EscapedSlashes::Keep, Keep, DotSegments::Keep);
    let made = rewritten("//x//admin".to_owned(), Some(&keeping));
    assert_eq!(made.unwrap(), "/x//admin");
}

#[test]
fn merges_duplicate_slashes() {
    assert_eq!(normalize("//admin").unwrap(), "/admin");
    assert_eq!(normalize("/a///b//").unwrap(), "/a/b/");
}

#[test]
fn rejects_disguised_dot_segments() {
    for path in [
        "/a/../admin",
        "/a/..",
        "/./admin",
        "/.",
        "/a/%2e%2e/admin",
        "/a/.%2E",
        "/a/..;/admin",
        "/a/..;x=1/admin",
        "/a%2f..%2fadmin",
        "/a%5c..",
        "/a\\..\\admin",
        "/a/..%2fadmin",
        "/%00",
        "/%zz",
        "/%c0%ae",
        "/a%",
        "/a%2",
    ] {
        assert!(normalize(path).is_err(), "{path}");
    }
}
