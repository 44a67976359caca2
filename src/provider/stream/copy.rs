//! A copy of the objects in an in-memory directory, so that a restarted container does not have to
//! wait for a controller. The copy is a journal: changes are appended, and the file is rewritten
//! when they outgrow the state, and at once when a key is removed or replaced. A copy that cannot be written is removed,
//! since it may permit more than what is served. Owns the file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::lines::parse;
use super::objects::{GatewayObjects, UpdateDecoder};
use super::reports::Stored;
use crate::api::Key;
use crate::wire::Update;

/// File name of the copy, and of the next copy while it is being written.
pub(super) const FILE: &str = "objects.ndjson";
const NEXT_FILE: &str = "objects.ndjson.next";
/// Minimum size of the appended changes, in bytes, before the file is rewritten.
const MIN_APPENDED: u64 = 256 << 10;
/// The next write waits for this multiple of the last write's duration, so that short writes take at most
/// 5 % of a core under constant change.
const IDLE_FACTOR: u32 = 19;
/// Maximum delay of the next write, since a state is reported once it is written. Long writes are rare: the file is
/// rewritten after changes of half its size.
const MAX_REST: Duration = Duration::from_millis(100);
/// Delay before a retry after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reads the copy of a Gateway's objects; `None` if it is missing. Also returns `None`, and logs
/// it, if the copy is incomplete or invalid.
pub(super) fn read(dir: &Path, gateway: &Key) -> Option<GatewayObjects> {
    let file = dir.join(FILE);
    let read = match fs::File::open(&file) {
        Ok(open) => read_lines(BufReader::new(open)),
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
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

/// Returns what a restarted container begins with before the first write, given what [`read`] returned.
pub(super) fn stored(dir: &Path, read: Option<&GatewayObjects>) -> Stored {
    if read.is_none() && is_missing(&dir.join(FILE)) {
        return Stored::Nothing;
    }
    Stored::Copy {
        position: read.and_then(|state| state.position.clone()),
        failure: None,
    }
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

/// Writes the latest state after every change while polled. Says in `stored` what a restarted container begins with.
pub(super) async fn write_all(
    dir: PathBuf,
    mut states: watch::Receiver<GatewayObjects>,
    stored: watch::Sender<Stored>,
) {
    let mut journal = Journal::new(dir);
    // The first change after an idle time is written at once.
    let mut rested = Instant::now();
    let mut logged = String::new();
    while states.changed().await.is_ok() {
        let state = next(&mut states, &journal, rested).await;
        let Some(position) = state.position.clone() else {
            continue;
        };
        // The first copy exists before its write is known to be complete. No later state may be reported meanwhile.
        stored.send_if_modified(|stored| {
            let is_first = *stored == Stored::Nothing;
            if is_first {
                *stored = Stored::copy_of(position.clone());
            }
            is_first
        });
        let begun = Instant::now();
        let result = write(&mut journal, state).await;
        rested = Instant::now() + (begun.elapsed() * IDLE_FACTOR).min(MAX_REST);
        let Err(failure) = result else {
            stored.send_replace(Stored::copy_of(position));
            logged.clear();
            continue;
        };
        let text = failure.to_string();
        if text != logged {
            let file = journal.dir.join(FILE);
            tracing::warn!("the copy {} cannot be written: {text}", file.display());
        }
        logged = text;
        failure.record(&stored);
        states.mark_changed();
        rested = Instant::now() + RETRY_DELAY;
    }
}

/// Writes a state on another thread.
async fn write(journal: &mut Journal, state: GatewayObjects) -> Result<(), WriteFailure> {
    let next = Journal::new(journal.dir.clone());
    let mut taken = std::mem::replace(journal, next);
    let writing = tokio::task::spawn_blocking(move || {
        let result = taken.write(state);
        (taken, result)
    });
    match writing.await {
        Ok((written, result)) => {
            *journal = written;
            result
        }
        Err(panic) => Err(WriteFailure {
            reason: panic.to_string(),
            is_copy_left: true,
        }),
    }
}

/// Why a state is not in the copy.
#[derive(Debug)]
pub(super) struct WriteFailure {
    reason: String,
    /// Whether an older copy is left, which could not be removed.
    is_copy_left: bool,
}

impl WriteFailure {
    /// Says what a restarted container begins with.
    fn record(self, stored: &watch::Sender<Stored>) {
        stored.send_modify(|stored| match stored {
            Stored::Copy { failure, .. } if self.is_copy_left => {
                let reason = self.reason;
                *failure = Some(format!(
                    "its copy of the configuration can neither be written nor removed: {reason}"
                ));
            }
            _ => *stored = Stored::Nothing,
        });
    }
}

impl fmt::Display for WriteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = if self.is_copy_left {
            "nor can the previous one be removed, so that the controller gets no report of later states"
        } else {
            "it is removed, so that a restarted container waits for a controller"
        };
        write!(f, "{}; {effect}", self.reason)
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
    /// The last written state; `None` before the first write, when a previous container may have left a copy, and after a
    /// failure.
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

    /// Brings the copy to a state. If that fails, the copy is removed: it may have keys that the state does not have, and
    /// its policies may permit more.
    pub(super) fn write(&mut self, state: GatewayObjects) -> Result<(), WriteFailure> {
        let Err(mut error) = self.try_write(state.clone()) else {
            return Ok(());
        };
        let mut is_copy_left = self.remove();
        // The removed copy has left room.
        if error.kind() == ErrorKind::StorageFull && !is_copy_left {
            match self.try_write(state) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
            is_copy_left = self.remove();
        }
        Err(WriteFailure {
            reason: error.to_string(),
            is_copy_left,
        })
    }

    /// Removes the copy. Returns whether it is left.
    fn remove(&mut self) -> bool {
        (self.file, self.written) = (None, None);
        let _ = fs::remove_file(self.dir.join(NEXT_FILE));
        let file = self.dir.join(FILE);
        // A read-only file system refuses the removal of a missing file, too.
        fs::remove_file(&file).is_err() && !is_missing(&file)
    }

    fn try_write(&mut self, state: GatewayObjects) -> io::Result<()> {
        // A failed append may leave a torn line. There is no `file` then, so that the next write rewrites it.
        if let (Some(file), Some(previous)) = (self.file.take(), self.written.clone())
            && !self.holds_keys_missing_in(&state)
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

/// Reports whether there is certainly no file.
fn is_missing(file: &Path) -> bool {
    fs::symlink_metadata(file)
        .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

/// Replaces the copy atomically. Returns the open file.
fn replace(dir: &Path, updates: impl Iterator<Item = Update>) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let next = dir.join(NEXT_FILE);
    // An unfinished file of a previous run may have a different mode.
    if let Err(error) = fs::remove_file(&next)
        && error.kind() != ErrorKind::NotFound
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
mod tests;
