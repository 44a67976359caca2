//! Which names lead to a path, through symlinks. Must not know what is at it.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

/// Maximum number of symlinks that are followed, as in Linux.
const MAX_LINKS: usize = 40;

/// Returns the names whose change makes an absolute path lead elsewhere, each with the real path of its directory: the symlinks on
/// the way in their order, and last what is at the path, or the first name that does not exist, or a directory that this process
/// may not search.
pub(super) fn on_the_way(path: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let mut at = PathBuf::new();
    let mut rest: Vec<OsString> = reversed(path).collect();
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        // The root replaces all before it.
        let next = at.join(&name);
        match fs::read_link(&next) {
            Ok(target) if names.len() < MAX_LINKS => {
                rest.extend(reversed(&target));
                names.push(next);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                names.push(next);
                return names;
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            Ok(_) | Err(_) => at = next,
        }
    }
    names.push(at);
    names
}

/// Returns the components of a path, the last one first.
fn reversed(path: &Path) -> impl Iterator<Item = OsString> {
    let components = path.components().rev();
    let components = components.filter(|component| *component != Component::CurDir);
    components.map(|component| component.as_os_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_are_those_of_symlinks_and_of_their_target() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = fs::canonicalize(root.path()).expect("it exists");
        fs::create_dir_all(root.join("v1/conf")).expect("created");
        symlink("v1", root.join("current")).expect("linked");
        symlink(root.join("v1/../current"), root.join("live")).expect("linked");
        symlink("loop", root.join("loop")).expect("linked");
        for (path, expected) in [
            ("v1/conf", "v1/conf"),
            ("live/./conf", "live current v1/conf"),
            ("live/conf/../../v1", "live current v1"),
            ("current/away/a.yaml", "current v1/away"),
        ] {
            let expected: Vec<_> = expected.split(' ').map(|name| root.join(name)).collect();
            assert_eq!(on_the_way(&root.join(path)), expected, "{path}");
        }
        assert_eq!(on_the_way(&root.join("loop")).len(), MAX_LINKS + 1);
        assert_eq!(on_the_way(Path::new("/")), [Path::new("/")]);
    }
}
