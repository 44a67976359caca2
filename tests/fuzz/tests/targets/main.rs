//! Runs every fuzz target over its seeds, and over some changes of them that are the same in every run. `tests/fuzz/run`
//! searches further.

#![allow(clippy::unwrap_used, reason = "a failed step ends a test")]

mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use portcullis_fuzz::mutate::MutateBytes;
use portcullis_fuzz::random::Random;
use portcullis_fuzz::targets;

/// Changed inputs for each target.
const CHANGED: u32 = 200;
/// Bytes that a change may add.
const GROWTH: usize = 2048;

/// A change of the first bytes of a buffer, as the targets have it: with a seed.
type Mutate = fn(&mut [u8], usize, usize, u32, MutateBytes<'_>) -> usize;

/// A test for each target, with what changes its inputs.
macro_rules! targets {
    ($($name:ident: $mutate:expr,)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                let check = |data: &[u8]| {
                    targets::$name::check(data);
                };
                run(stringify!($name), check, $mutate);
            }
        )*
    };
}

targets! {
    authorization: bytes,
    client_certificate: bytes,
    client_hello: targets::client_hello::mutate,
    credentials: bytes,
    grpc: bytes,
    http2_backend: bytes,
    http2_client: bytes,
    http3_client: bytes,
    proxy_protocol: bytes,
    response_head: bytes,
    route_match: bytes,
    session: bytes,
    stream: bytes,
    target: bytes,
    translate: targets::translate::mutate,
    yaml: targets::yaml::mutate,
}

fn bytes(data: &mut [u8], size: usize, max: usize, _: u32, mutate: MutateBytes<'_>) -> usize {
    mutate(data, size, max)
}

fn run(name: &str, check: impl Fn(&[u8]), mutate: Mutate) {
    let rows = table::rows();
    let row = rows.iter().find(|row| row.name == name).unwrap();
    let seeds = row.seeds();
    for path in &seeds {
        check_input(name, &fs::read(path).unwrap(), &check);
    }
    let mut random = Random::new(1);
    for seed in 0..CHANGED {
        let mut data = fs::read(random.one(&seeds).unwrap()).unwrap();
        let size = data.len();
        let max_size = size + GROWTH;
        data.resize(max_size, 0);
        let mut change = |data: &mut [u8], size, max_size| random.mutate(data, size, max_size);
        let size = mutate(&mut data, size, max_size, seed, &mut change);
        check_input(name, &data[..size], &check);
    }
}

/// Checks an input, and writes it to a file if that fails.
fn check_input(name: &str, data: &[u8], check: &impl Fn(&[u8])) {
    struct Finding<'a>(&'a str, &'a [u8]);
    impl Drop for Finding<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.0);
                fs::write(&path, self.1).unwrap();
                eprintln!("tests/fuzz/run --replay {} {}", path.display(), self.0);
            }
        }
    }
    let _finding = Finding(name, data);
    check(data);
}

#[test]
fn every_target_is_in_every_list() {
    let rows = table::rows();
    let rows: Vec<_> = rows.iter().map(|row| &row.name[..]).collect();
    assert_eq!(rows, TESTED, "targets.txt and the tests");
    let mut modules = table::modules("src/targets");
    modules.retain(|name| name != "mod");
    assert_eq!(modules, TESTED, "src/targets and the tests");
    let binaries = table::modules("libfuzzer/src/bin");
    assert_eq!(binaries, TESTED, "libfuzzer/src/bin and the tests");
}

/// Without `test = false`, `cargo test --workspace` would fuzz without end.
#[test]
fn no_binary_is_a_test() {
    let manifest = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/libfuzzer/Cargo.toml"));
    let manifest = fs::read_to_string(manifest).unwrap();
    for name in TESTED {
        let binary = format!("[[bin]]\nname = \"{name}\"\ntest = false\nbench = false\n");
        assert!(manifest.contains(&binary), "the manifest lacks {binary}");
    }
}
