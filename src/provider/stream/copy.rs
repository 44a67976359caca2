//! A copy of the objects in an in-memory directory, so that a restarted container does not have to
//! wait for a controller. Owns the file.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::lines::parse;
use super::objects::{State, Step, UpdateDecoder};
use crate::api::Key;

/// File name of the copy, and of the next copy while it is being written.
const FILE: &str = "objects.ndjson";
const NEXT_FILE: &str = "objects.ndjson.next";
/// Minimum interval between copies: changes often arrive together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The next copy waits for this multiple of the last write's duration: under constant change,
/// copies take at most 5 % of a core.
const IDLE_FACTOR: u32 = 19;
/// Delay before a retry after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reads the copy of a Gateway's objects; `None` if it is missing, incomplete or invalid, which is
/// logged.
pub(super) fn read(dir: &Path, gateway: &Key) -> Option<State> {
    let file = dir.join(FILE);
    let read = match fs::File::open(&file) {
        Ok(open) => read_lines(BufReader::new(open)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
    };
    let read = read.and_then(|state| {
        let gateways = &state.snapshot.gateways;
        let is_ours = gateways.get(&gateway.namespace, &gateway.name).is_some();
        is_ours
            .then_some(state)
            .ok_or_else(|| format!("it is not a copy of Gateway {gateway}"))
    });
    read.inspect_err(|reason| {
        let file = file.display();
        tracing::warn!("ignoring the copy {file}: {reason}");
    })
    .ok()
}

fn read_lines(lines: impl BufRead) -> Result<State, String> {
    let mut state = State::default();
    let mut intake = UpdateDecoder::default();
    let mut is_whole = false;
    for line in lines.split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        if let Some(update) = parse(&line)? {
            is_whole = intake.take(update, &mut state)? == Step::Committed;
        }
    }
    is_whole
        .then_some(state)
        .ok_or_else(|| "it does not end in a commit".to_owned())
}

/// Writes the latest state after every change while polled.
pub(super) async fn write_all(dir: PathBuf, mut states: watch::Receiver<State>) {
    // The first change after an idle time is written at once.
    let mut rested = Instant::now();
    let mut logged = String::new();
    while states.changed().await.is_ok() {
        sleep_until(rested).await;
        let state = states.borrow_and_update().clone();
        let begun = Instant::now();
        let target = dir.clone();
        let written = tokio::task::spawn_blocking(move || write(&target, &state)).await;
        rested = Instant::now() + DEBOUNCE.max(begun.elapsed() * IDLE_FACTOR);
        let failure = match written {
            Ok(Ok(())) => {
                logged.clear();
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if failure != logged {
            tracing::warn!(
                "the copy {} cannot be written: {failure}; a restarted container begins with an older one or waits for a \
                 controller",
                dir.join(FILE).display()
            );
        }
        logged = failure;
        states.mark_changed();
        rested = Instant::now() + RETRY_DELAY;
    }
}

/// Replaces the copy atomically.
fn write(dir: &Path, state: &State) -> io::Result<()> {
    let Some(updates) = state.updates() else {
        return Ok(());
    };
    fs::create_dir_all(dir)?;
    let next = dir.join(NEXT_FILE);
    // An unfinished file of a previous run may have another mode.
    if let Err(error) = fs::remove_file(&next)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)?;
    let mut file = BufWriter::new(file);
    for update in updates {
        serde_json::to_writer(&mut file, &update)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    fs::rename(next, dir.join(FILE))
}

/// Warns if the directory is not on an in-memory file system, as far as that can be determined.
pub(super) fn warn_unless_in_memory(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(filesystem) = fs::canonicalize(dir)
        .ok()
        .and_then(|dir| filesystem(&mounts, &dir))
    else {
        return;
    };
    if !matches!(filesystem, "tmpfs" | "ramfs") {
        tracing::warn!(
            "the state directory {} is not in memory but on {filesystem}: private keys are written to it; use an emptyDir \
             of medium Memory",
            dir.display()
        );
    }
}

/// The file system type of a path, from `/proc/self/mountinfo`.
fn filesystem<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        let is_above = path.starts_with(&point);
        is_above.then_some((point.len(), filesystem.split(' ').next()?))
    };
    let above = mounts.lines().filter_map(mount);
    // Of two mounts at one path, the later one hides the earlier one.
    above.max_by_key(|(length, _)| *length).map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;
    use crate::stream::message::Update;

    fn gateway(name: &str) -> Key {
        Key::new("infra", name)
    }

    fn state(name: &str) -> State {
        let mut state = State::default();
        let mut intake = UpdateDecoder::default();
        for update in [
            Update::Begin {
                instance: "5f2c".to_owned(),
                base: None,
            },
            Update::Put(json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "Gateway",
                "metadata": {"name": name, "namespace": "infra"},
                "spec": {"gatewayClassName": "portcullis", "listeners": []},
            })),
            Update::Commit { revision: 7 },
        ] {
            intake.take(update, &mut state).unwrap();
        }
        state
    }

    #[test]
    fn reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("not/there/yet");
        assert_eq!(read(&dir, &gateway("edge")), None);
        for _ in 0..2 {
            write(&dir, &state("edge")).unwrap();
            assert_eq!(read(&dir, &gateway("edge")), Some(state("edge")));
        }
        let mode = fs::metadata(dir.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }

    #[test]
    fn replaces_unfinished_copy() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NEXT_FILE), "torn").unwrap();
        write(dir.path(), &state("edge")).unwrap();
        assert_eq!(read(dir.path(), &gateway("edge")), Some(state("edge")));
    }

    #[test]
    fn ignores_torn_and_foreign_copies() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &state("edge")).unwrap();
        assert_eq!(read(dir.path(), &gateway("other")), None);
        let file = dir.path().join(FILE);
        let whole = fs::read(&file).unwrap();
        // A copy that lacks only the final line feed is complete.
        for end in 0..whole.len() - 1 {
            fs::write(&file, &whole[..end]).unwrap();
            assert_eq!(read(dir.path(), &gateway("edge")), None, "{end}");
        }
        for garbage in ["garbage\n", "{}\n", "\u{0}"] {
            fs::write(&file, garbage).unwrap();
            assert_eq!(read(dir.path(), &gateway("edge")), None);
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(read(dir.path(), &gateway("edge")), None);
    }

    #[tokio::test]
    async fn writes_the_latest_state() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, states) = watch::channel(State::default());
        let writing = tokio::spawn(write_all(dir.path().to_owned(), states));
        sender.send_replace(state("other"));
        sender.send_replace(state("edge"));
        drop(sender);
        // The last change is written even without a further change.
        writing.await.unwrap();
        assert_eq!(read(dir.path(), &gateway("edge")), Some(state("edge")));
    }

    #[test]
    fn file_system_type_is_that_of_the_closest_mount() {
        let mounts = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /var/lib/port\\040cullis rw - tmpfs tmpfs rw
24 22 0:6 / /proc rw - proc proc rw
25 22 0:7 / /over rw - ext4 /dev/sdb rw
26 22 0:8 / /over rw - tmpfs tmpfs rw";
        let of = |path: &str| filesystem(mounts, Path::new(path));
        assert_eq!(of("/var/lib/port cullis/deeper"), Some("tmpfs"));
        assert_eq!(of("/var/lib/portcullis"), Some("ext4"));
        assert_eq!(of("/over"), Some("tmpfs"));
        assert_eq!(filesystem("", Path::new("/")), None);
        assert_eq!(filesystem("nonsense", Path::new("/")), None);
    }
}
