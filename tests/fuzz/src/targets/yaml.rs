//! Feeds its bytes to the file provider, once as a YAML file and once as a JSON file: reading, defaults, admission. Checks
//! that nothing panics, that every complaint names the file and a line of it, that reading again gives the same, and that
//! objects stay when a whole file breaks.

use std::fs;
use std::path::Path;

use portcullis::finding::FileLocation;
use portcullis::provider::{FileProvider, Load, Problem};
use tempfile::TempDir;

use crate::mutate::{self, MutateBytes};

thread_local! {
    /// Where a thread writes its inputs.
    static FOLDER: TempDir = TempDir::new().expect("a folder is made");
}

/// Checks one input.
pub fn check(data: &[u8]) {
    FOLDER.with(|folder| {
        for form in ["yaml", "json"] {
            let folder = folder.path().join(form);
            fs::create_dir_all(&folder).expect("a folder is made");
            check_file(&folder.join("objects").with_extension(form), data);
        }
    });
}

/// Changes the first `size` bytes of `data`, and returns how many there are then.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    bytes: MutateBytes<'_>,
) -> usize {
    let structured = seed
        .is_multiple_of(2)
        .then(|| mutate::documents(data, size, max_size, seed, bytes));
    structured
        .flatten()
        .unwrap_or_else(|| bytes(data, size, max_size))
}

fn check_file(file: &Path, data: &[u8]) {
    let mut provider = FileProvider::new(file.with_file_name(""));
    let load = read(&mut provider, file, data);
    assert_eq!(read(&mut provider, file, data), load);
    if load.problems.is_empty() {
        let broken = [data, b"\n---\n{"].concat();
        let after = read(&mut provider, file, &broken);
        assert_eq!(
            after.snapshot, load.snapshot,
            "a broken file takes objects away"
        );
        assert!(
            !after.problems.is_empty(),
            "a broken file is taken for a whole one"
        );
    }
}

fn read(provider: &mut FileProvider, file: &Path, data: &[u8]) -> Load {
    fs::write(file, data).expect("the file is written");
    let load = provider.load().expect("the folder is readable");
    // To YAML all of these end a line; what is missing at the end is missed on the line behind the last.
    let breaks = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    let lines = String::from_utf8_lossy(data).split(breaks).count() + 1;
    for problem in &load.problems {
        let shown = problem.to_string();
        let Problem {
            location, message, ..
        } = problem;
        let FileLocation {
            file: named,
            document,
            line,
        } = location;
        assert_eq!(&**named, file, "{shown}");
        assert!(shown.contains(&*file.to_string_lossy()), "{shown}");
        assert!(!message.is_empty(), "{shown}");
        let in_file = (1..=lines).contains(line) || (*document, *line) == (0, 0);
        assert!(in_file, "of {lines} lines: {shown}");
    }
    load
}
