//! A copy of the objects in an in-memory directory, so that a restarted container does not have to
//! wait for a controller. The copy is a journal: changes are appended, and the file is rewritten
//! when they outgrow the state, and at once when a key is removed or replaced. Owns the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::lines::parse;
use super::objects::{GatewayObjects, UpdateDecoder};
use crate::api::Key;
use crate::wire::Update;

/// File name of the copy, and of the next copy while it is being written.
pub(super) const FILE: &str = "objects.ndjson";
const NEXT_FILE: &str = "objects.ndjson.next";
/// Minimum size of the appended changes, in bytes, before the file is rewritten.
const MIN_APPENDED: u64 = 256 << 10;
/// The next write waits for this multiple of the last write's duration, so that writes take at most
/// 5 % of a core under constant change.
const IDLE_FACTOR: u32 = 19;
/// Delay before a retry after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reads the copy of a Gateway's objects; `None` if it is missing. Also returns `None`, and logs
/// it, if the copy is incomplete or invalid.
pub(super) fn read(dir: &Path, gateway: &Key) -> Option<GatewayObjects> {
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

/// Reads the last committed state. Ignores a torn write at the end.
fn read_lines(mut lines: impl BufRead) -> Result<GatewayObjects, String> {
    let mut state = GatewayObjects::default();
    let mut decoder = UpdateDecoder::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = lines.read_until(b'\n', &mut line);
        if length.map_err(|error| error.to_string())? == 0 || !line.ends_with(b"\n") {
            break;
        }
        if let Some(update) = parse(&line)? {
            decoder.take(update, &mut state)?;
        }
    }
    let is_committed = state.position.is_some();
    is_committed
        .then_some(state)
        .ok_or_else(|| "it has no commit".to_owned())
}

/// Writes the latest state after every change while polled.
pub(super) async fn write_all(dir: PathBuf, mut states: watch::Receiver<GatewayObjects>) {
    let mut journal = Journal::new(dir);
    // The first change after an idle time is written at once.
    let mut rested = Instant::now();
    let mut logged = String::new();
    while states.changed().await.is_ok() {
        let state = next(&mut states, &journal, rested).await;
        let begun = Instant::now();
        let next = Journal::new(journal.dir.clone());
        let mut taken = std::mem::replace(&mut journal, next);
        let writing = tokio::task::spawn_blocking(move || {
            let result = taken.write(state);
            (taken, result)
        });
        let result = match writing.await {
            Ok((written, result)) => {
                journal = written;
                result
            }
            Err(panic) => Err(io::Error::other(panic)),
        };
        rested = Instant::now() + begun.elapsed() * IDLE_FACTOR;
        let Err(failure) = result.map_err(|error| error.to_string()) else {
            logged.clear();
            continue;
        };
        if failure != logged {
            tracing::warn!(
                "the copy {} cannot be written: {failure}; a restarted container begins with an older one or waits for a \
                 controller",
                journal.dir.join(FILE).display()
            );
        }
        logged = failure;
        states.mark_changed();
        rested = Instant::now() + RETRY_DELAY;
    }
}

/// Waits until the next write is due, and returns what to write. A state without a key that the file contains is due at
/// once.
async fn next(
    states: &mut watch::Receiver<GatewayObjects>,
    journal: &Journal,
    rested: Instant,
) -> GatewayObjects {
    loop {
        let state = states.borrow_and_update().clone();
        if journal.holds_keys_missing_in(&state) {
            return state;
        }
        tokio::select! {
            () = sleep_until(rested) => return states.borrow_and_update().clone(),
            changed = states.changed() => if changed.is_err() {
                return state;
            },
        }
    }
}

/// Writes states to the copy.
pub(super) struct Journal {
    dir: PathBuf,
    /// The last written state; `None` before the first write, when a previous container may have left a copy.
    written: Option<GatewayObjects>,
    /// The file to append to. `None` if the file must be rewritten.
    file: Option<File>,
    /// Bytes of the last rewrite.
    rewritten: u64,
    /// Bytes appended since.
    appended: u64,
}

impl Journal {
    /// Creates a journal that has not written yet.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            written: None,
            file: None,
            rewritten: 0,
            appended: 0,
        }
    }

    /// Reports whether the file contains keys that are not part of a state.
    fn holds_keys_missing_in(&self, state: &GatewayObjects) -> bool {
        let written = self.written.as_ref();
        written.is_some_and(|written| state.lacks_keys_of(written))
    }

    /// Brings the copy to a state. If that fails, the copy is removed rather than left with keys that the state may not
    /// have.
    pub(super) fn write(&mut self, state: GatewayObjects) -> io::Result<()> {
        let is_outdated = self.written.is_none() || self.holds_keys_missing_in(&state);
        let result = self.try_write(state, is_outdated);
        if result.is_err() {
            let _ = fs::remove_file(self.dir.join(NEXT_FILE));
            if is_outdated {
                let _ = fs::remove_file(self.dir.join(FILE));
            }
        }
        result
    }

    fn try_write(&mut self, state: GatewayObjects, is_outdated: bool) -> io::Result<()> {
        // A failed append may leave a torn line. There is no `file` then, so that the next write rewrites it.
        if let (Some(file), Some(previous)) = (self.file.take(), self.written.clone())
            && !is_outdated
            && let Some(file) = self.append(&previous, &state, file)?
        {
            self.file = Some(file);
            self.written = Some(state);
            return Ok(());
        }
        let Some(updates) = state.updates() else {
            return Ok(());
        };
        let file = replace(&self.dir, updates)?;
        self.rewritten = file.metadata()?.len();
        self.appended = 0;
        self.file = Some(file);
        self.written = Some(state);
        Ok(())
    }

    /// Appends the changes since `previous`. `None` if the file must be rewritten instead.
    fn append(
        &mut self,
        previous: &GatewayObjects,
        state: &GatewayObjects,
        mut file: File,
    ) -> io::Result<Option<File>> {
        let Some(updates) = state.updates_since(previous) else {
            return Ok(None);
        };
        let mut lines = Vec::new();
        write_lines(&mut lines, updates)?;
        self.appended += lines.len() as u64;
        if self.appended > MIN_APPENDED.max(self.rewritten / 2) {
            return Ok(None);
        }
        file.write_all(&lines)?;
        Ok(Some(file))
    }
}

/// Replaces the copy atomically. Returns the open file.
fn replace(dir: &Path, updates: impl Iterator<Item = Update>) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let next = dir.join(NEXT_FILE);
    // An unfinished file of a previous run may have a different mode.
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
    write_lines(&mut file, updates)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(next, dir.join(FILE))?;
    Ok(file)
}

fn write_lines(to: &mut impl Write, updates: impl IntoIterator<Item = Update>) -> io::Result<()> {
    for update in updates {
        serde_json::to_writer(&mut *to, &update)?;
        to.write_all(b"\n")?;
    }
    Ok(())
}

/// Warns if the directory is not on an in-memory file system, as far as the mounts show it.
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

/// Returns the file system type of a path, from `/proc/self/mountinfo`.
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

    fn gateway(name: &str) -> Key {
        Key::new("infra", name)
    }

    fn write(dir: &Path, state: &GatewayObjects) -> io::Result<()> {
        Journal::new(dir.to_owned()).write(state.clone())
    }

    /// Returns a state with the Gateway and `maps` ConfigMaps of 10 kB.
    fn state_with_maps(maps: u64, revision: u64) -> GatewayObjects {
        let mut state = state("edge");
        let mut decoder = UpdateDecoder::default();
        let begin = Update::Begin {
            instance: "5f2c".to_owned(),
            base: Some(7),
        };
        let map = |number: u64| {
            Update::Put(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("map-{number}"), "namespace": "infra"},
                "data": {"ca.crt": "x".repeat(10_000)},
            }))
        };
        let commit = Update::Commit { revision };
        let updates = [begin]
            .into_iter()
            .chain((0..maps).map(map))
            .chain([commit]);
        for update in updates {
            decoder.take(update, &mut state).unwrap();
        }
        state
    }

    fn state(name: &str) -> GatewayObjects {
        let mut state = GatewayObjects::default();
        let mut decoder = UpdateDecoder::default();
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
            decoder.take(update, &mut state).unwrap();
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
    fn appends_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state("edge")).unwrap();
        let full = fs::read(&file).unwrap();
        for (maps, revision) in [(2, 8), (1, 9), (3, 10)] {
            let state = state_with_maps(maps, revision);
            journal.write(state.clone()).unwrap();
            assert_eq!(read(dir.path(), &gateway("edge")), Some(state));
        }
        let all = fs::read(&file).unwrap();
        assert!(all.starts_with(&full) && all.len() > full.len());
    }

    #[test]
    fn reads_previous_state_after_torn_append() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state("edge")).unwrap();
        let before = fs::read(&file).unwrap().len();
        journal.write(state_with_maps(2, 8)).unwrap();
        let all = fs::read(&file).unwrap();
        for end in (before..all.len()).step_by(997) {
            fs::write(&file, &all[..end]).unwrap();
            assert_eq!(
                read(dir.path(), &gateway("edge")),
                Some(state("edge")),
                "{end}"
            );
        }
    }

    #[test]
    fn rewrites_copy_after_many_changes_and_for_another_controller_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut journal = Journal::new(dir.path().to_owned());
        let large = state_with_maps(30, 8);
        journal.write(large).unwrap();
        let limit = MIN_APPENDED + 2 * fs::metadata(&file).unwrap().len();
        let mut revision = 8;
        for maps in [1, 30].repeat(5) {
            revision += 1;
            journal.write(state_with_maps(maps, revision)).unwrap();
            assert!(fs::metadata(&file).unwrap().len() < limit);
        }
        let mut other = state("edge");
        other.position.as_mut().unwrap().instance = "77aa".to_owned();
        journal.write(other.clone()).unwrap();
        assert_eq!(read(dir.path(), &gateway("edge")), Some(other));
    }

    /// Returns a state with the Gateway and a Secret with this key, if any.
    fn state_with_key(key: Option<&str>, revision: u64) -> GatewayObjects {
        let mut state = state("edge");
        let mut decoder = UpdateDecoder::default();
        let secret = key.map(|key| {
            Update::Put(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": "tls", "namespace": "infra"}, "data": {"tls.key": key},
            }))
        });
        let begin = Update::Begin {
            instance: "5f2c".to_owned(),
            base: Some(7),
        };
        let commit = Update::Commit { revision };
        for update in [begin].into_iter().chain(secret).chain([commit]) {
            decoder.take(update, &mut state).unwrap();
        }
        state
    }

    fn text(dir: &Path) -> String {
        fs::read_to_string(dir.join(FILE)).unwrap()
    }

    #[test]
    fn removed_and_replaced_keys_are_no_longer_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state_with_key(Some("Zmlyc3Q="), 8)).unwrap();
        assert!(text(dir.path()).contains("Zmlyc3Q="));
        journal.write(state_with_key(Some("c2Vjb25k"), 9)).unwrap();
        assert!(!text(dir.path()).contains("Zmlyc3Q="));
        journal.write(state_with_key(None, 10)).unwrap();
        assert!(!text(dir.path()).contains("c2Vjb25k"));
        // Neither is a former session secret.
        let mut secret = state_with_key(None, 11);
        secret.session_secret = Some("old-session-secret".into());
        journal.write(secret.clone()).unwrap();
        secret.session_secret = Some("new-session-secret".into());
        journal.write(secret).unwrap();
        assert!(!text(dir.path()).contains("old-session-secret"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn copy_with_a_removed_key_is_deleted_if_it_cannot_be_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state_with_key(Some("Zmlyc3Q="), 8)).unwrap();
        // The next copy cannot be created beside a folder of its name.
        fs::create_dir(dir.path().join(NEXT_FILE)).unwrap();
        assert!(journal.write(state_with_key(None, 9)).is_err());
        assert!(!dir.path().join(FILE).exists());
    }

    #[tokio::test(start_paused = true)]
    async fn removed_key_does_not_wait_for_the_next_write() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state_with_key(Some("Zmlyc3Q="), 8)).unwrap();
        let (sender, mut states) = watch::channel(state_with_key(Some("Zmlyc3Q="), 9));
        let begun = Instant::now();
        let rested = begun + Duration::from_secs(5);
        let other = next(&mut states, &journal, rested).await;
        assert_eq!(
            (other, Instant::now()),
            (state_with_key(Some("Zmlyc3Q="), 9), rested)
        );
        let rested = rested + Duration::from_secs(5);
        let change = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            sender.send_replace(state_with_key(None, 10));
        };
        let (state, ()) = tokio::join!(next(&mut states, &journal, rested), change);
        assert_eq!(state, state_with_key(None, 10));
        assert_eq!(Instant::now() - begun, Duration::from_secs(6));
    }

    #[test]
    fn ignores_torn_copies_and_copies_of_other_gateways() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &state("edge")).unwrap();
        assert_eq!(read(dir.path(), &gateway("other")), None);
        let file = dir.path().join(FILE);
        let whole = fs::read(&file).unwrap();
        for end in 0..whole.len() {
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
        let (sender, states) = watch::channel(GatewayObjects::default());
        let writing = tokio::spawn(write_all(dir.path().to_owned(), states));
        sender.send_replace(state("other"));
        sender.send_replace(state("edge"));
        drop(sender);
        // The last change is written without any further change.
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
