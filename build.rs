//! Passes what `portcullis --version` prints to the compiler: the commit and the profile of the build.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PORTCULLIS_COMMIT");
    println!("cargo::rustc-env=PORTCULLIS_PROFILE={}", profile());
    println!("cargo::rustc-env=PORTCULLIS_COMMIT={}", commit());
}

/// The name of the profile: the output is in `target/PROFILE/build/PACKAGE/out`.
fn profile() -> String {
    let out = env::var("OUT_DIR").unwrap_or_default();
    let folder = Path::new(&out).ancestors().nth(3);
    let name = folder.and_then(Path::file_name);
    name.map_or_else(
        || "unknown".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// The commit that `PORTCULLIS_COMMIT` names, or else that of the packaged crate or of the repository. Only optimized builds
/// read the repository, so that a commit does not rebuild others.
fn commit() -> String {
    let given = env::var("PORTCULLIS_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    if let Some(commit) = given {
        return commit;
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return "unknown".to_owned();
    }
    // Without a repository of its own, it is a packaged crate, or in that of something else.
    if !Path::new(".git").exists() {
        return packaged().unwrap_or_else(|| "unknown".to_owned());
    }
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists())
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}

/// The commit that Cargo writes into a packaged crate, with as many digits as git shows below.
fn packaged() -> Option<String> {
    let written = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    if written.contains("\"dirty\": true") {
        return None;
    }
    let (_, commit) = written.split_once("\"sha1\": \"")?;
    commit.get(..12).map(str::to_owned)
}

/// Runs git in the folder of the package. `None` without git or outside of a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
