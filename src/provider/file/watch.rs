//! Notices changes below a directory and publishes what it then holds. Owns the timing: nothing is read while it is
//! being written, changes that come together are published together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{Draft, FileProvider, Load, scan};
use crate::api::Severity;
use crate::provider::Problem;

/// A change is read when nothing more has happened for this long…
const QUIET: Duration = Duration::from_millis(5);
/// …or at the latest this long after its beginning.
const STORM: Duration = Duration::from_millis(50);
/// Time for events of what happened during a load to arrive.
const SETTLE: Duration = Duration::from_millis(2);
/// A file that was written to and not closed counts as finished after this long.
const STALLED: Duration = Duration::from_secs(1);
/// How often a directory is read when there are no events.
const POLL: Duration = Duration::from_millis(500);
/// Time in which a file must not change to be taken for finished when there are no events.
const POLL_SETTLE: Duration = Duration::from_millis(20);
/// Loads of one change that are thrown away because more changed meanwhile.
const RETRIES: usize = 5;

impl FileProvider {
    /// Publishes the directory's state, now and whenever it changes or a reload is asked for, until every receiver is
    /// gone. A state with the same objects and problems as the last is not published again.
    pub async fn watch(self, sender: watch::Sender<Arc<Load>>, reload: mpsc::Receiver<()>) {
        let changes = Changes::new(&self.directory);
        self.follow(changes, sender, reload).await;
    }

    async fn follow(
        mut self,
        mut changes: Changes,
        sender: watch::Sender<Arc<Load>>,
        mut reload: mpsc::Receiver<()>,
    ) {
        loop {
            self.refresh(&mut changes, &sender).await;
            tokio::select! {
                () = sender.closed() => return,
                () = changes.next() => {}
                () = requested(&mut reload) => {}
            }
        }
    }

    /// Reads the directory until nothing changes meanwhile, and publishes the result.
    async fn refresh(&mut self, changes: &mut Changes, sender: &watch::Sender<Arc<Load>>) {
        let mut seen = None;
        for retry in 0..=RETRIES {
            let draft = match self.draft(&changes.unfinished()) {
                Ok(draft) => draft,
                Err(error) => {
                    changes.follow(BTreeSet::new());
                    let message = format!("{error:#}; the last configuration stays");
                    let problem = Problem::of_file(Severity::Error, &self.directory, message);
                    let snapshot = Arc::clone(&sender.borrow().snapshot);
                    return publish(
                        sender,
                        Load {
                            position: None,
                            snapshot,
                            problems: vec![problem],
                        },
                    );
                }
            };
            changes.files.clone_from(&draft.real_files);
            let is_new = changes.follow(draft.directories.clone());
            let is_disturbed = changes.settle(&draft, &mut seen).await;
            if (is_new || is_disturbed) && retry < RETRIES {
                // What is new was perhaps being written before it was watched.
                if is_new {
                    sleep(QUIET).await;
                }
                continue;
            }
            let mut load = self.accept(draft);
            load.problems.extend(changes.warning.clone());
            return publish(sender, load);
        }
    }
}

fn publish(sender: &watch::Sender<Arc<Load>>, mut load: Load) {
    sender.send_if_modified(|current| {
        if current.snapshot == load.snapshot {
            load.snapshot = Arc::clone(&current.snapshot);
            if current.problems == load.problems {
                return false;
            }
        }
        *current = Arc::new(load);
        true
    });
}

/// Waits for a reload to be asked for; for ever when nobody can ask.
async fn requested(reload: &mut mpsc::Receiver<()>) {
    if reload.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// What happened to a path, as far as it matters.
#[derive(Debug)]
enum Change {
    Created(PathBuf),
    Written(PathBuf),
    Closed(PathBuf),
    /// Gone from its name, or replaced under it.
    Removed(PathBuf),
    Other(Vec<PathBuf>),
    /// Events may have been lost.
    Unknown,
}

/// What a change means for what was read before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Nothing,
    /// A write has begun: the file must not be read until it has ended.
    Begun,
    /// There is something new to read.
    Changed,
}

impl Change {
    fn of(event: notify::Event) -> Option<Self> {
        let is_lossy = event.need_rescan();
        let mut paths = event.paths;
        match event.kind {
            _ if is_lossy => Some(Self::Unknown),
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                Some(Self::Closed(paths.pop()?))
            }
            EventKind::Access(_) => None,
            EventKind::Create(CreateKind::File) => Some(Self::Created(paths.pop()?)),
            EventKind::Modify(ModifyKind::Data(_)) => Some(Self::Written(paths.pop()?)),
            EventKind::Modify(ModifyKind::Name(RenameMode::From | RenameMode::To))
            | EventKind::Remove(_) => Some(Self::Removed(paths.pop()?)),
            _ => Some(Self::Other(paths)),
        }
    }

    fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Created(path)
            | Self::Written(path)
            | Self::Closed(path)
            | Self::Removed(path) => std::slice::from_ref(path),
            Self::Other(paths) => paths,
            Self::Unknown => &[],
        }
    }
}

/// Device and number of a directory, to tell it from another that took its place.
type Inode = (u64, u64);

/// Changes of the watched directories.
struct Changes {
    /// Absent when the system gives no events: then the directory is read every now and then.
    watcher: Option<RecommendedWatcher>,
    events: mpsc::UnboundedReceiver<Change>,
    /// Why there are no events.
    warning: Option<Problem>,
    watched: BTreeMap<PathBuf, Inode>,
    /// The directory itself as an entry of its parent, which is watched for this one name.
    anchor: Option<PathBuf>,
    /// Whether that parent is watched for nothing else.
    has_neighbours: bool,
    /// Files that were written to and not closed since, with the time of the last write.
    unfinished: BTreeMap<PathBuf, Instant>,
    /// The real files of the last draft.
    files: BTreeSet<PathBuf>,
    directory: PathBuf,
}

impl Changes {
    fn new(directory: &Path) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let change = event.map_or(Some(Change::Unknown), Change::of);
            if let Some(change) = change {
                // The receiver is gone only when nobody watches any more.
                drop(sender.send(change));
            }
        });
        let name = std::path::absolute(directory).ok();
        let parent = name
            .as_deref()
            .and_then(Path::parent)
            .and_then(|parent| fs::canonicalize(parent).ok());
        let anchor = parent.and_then(|parent| Some(parent.join(name.as_deref()?.file_name()?)));
        let mut changes = Self {
            watcher: None,
            events,
            warning: None,
            watched: BTreeMap::new(),
            anchor,
            has_neighbours: true,
            unfinished: BTreeMap::new(),
            files: BTreeSet::new(),
            directory: directory.to_owned(),
        };
        match watcher {
            Ok(watcher) => changes.watcher = Some(watcher),
            Err(error) => changes.poll(&error),
        }
        changes
    }

    /// Gives up on events.
    fn poll(&mut self, error: &notify::Error) {
        self.watcher = None;
        self.watched.clear();
        self.unfinished.clear();
        let message = format!(
            "changes are found by reading every {} ms: {error}",
            POLL.as_millis()
        );
        tracing::warn!(directory = %self.directory.display(), "{message}");
        self.warning = Some(Problem::of_file(
            Severity::Warning,
            &self.directory,
            message,
        ));
    }

    /// Watches these directories, and the parent of the configuration directory. True when any of them is new: what
    /// happened in it before is unknown.
    fn follow(&mut self, mut directories: BTreeSet<PathBuf>) -> bool {
        if let Some(parent) = self.anchor.as_deref().and_then(Path::parent) {
            self.has_neighbours = directories.insert(parent.to_owned());
        }
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let mut is_new = false;
        let mut failure = None;
        self.watched.retain(|path, _| {
            let stays = directories.contains(path);
            if !stays {
                // Fails when the directory is gone, and its watch with it.
                drop(watcher.unwatch(path));
            }
            stays
        });
        for path in directories {
            let Ok(inode) = fs::metadata(&path).map(|metadata| (metadata.dev(), metadata.ino()))
            else {
                continue;
            };
            if self.watched.get(&path) == Some(&inode) {
                continue;
            }
            if self.watched.remove(&path).is_some() {
                drop(watcher.unwatch(&path));
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    is_new = true;
                    self.watched.insert(path, inode);
                }
                Err(error) if !path.exists() => {
                    tracing::debug!("{} is gone: {error}", path.display())
                }
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            self.poll(&error);
        }
        is_new
    }

    /// Files that must not be read now.
    fn unfinished(&mut self) -> BTreeSet<PathBuf> {
        let now = Instant::now();
        self.unfinished
            .retain(|_, written| now < *written + STALLED);
        self.unfinished.keys().cloned().collect()
    }

    /// Waits for the next change to be complete.
    async fn next(&mut self) {
        if self.watcher.is_none() {
            return sleep(POLL).await;
        }
        loop {
            let stalled = self
                .unfinished
                .values()
                .min()
                .map(|written| *written + STALLED);
            let change = match stalled {
                None => self.events.recv().await,
                Some(stalled) => tokio::select! {
                    change = self.events.recv() => change,
                    () = sleep_until(stalled) => return,
                },
            };
            let Some(change) = change else {
                return std::future::pending().await;
            };
            if self.note(change) == Effect::Changed {
                break;
            }
        }
        let latest = Instant::now() + STORM;
        loop {
            // What is being written now probably belongs to the same change.
            let until = if self.unfinished.is_empty() {
                latest.min(Instant::now() + QUIET)
            } else {
                latest
            };
            let Ok(Some(change)) = timeout_at(until, self.events.recv()).await else {
                return;
            };
            self.note(change);
        }
    }

    /// Waits for news of what happened while a draft was made. True when the draft may be of two states at once.
    async fn settle(&mut self, draft: &Draft, seen: &mut Option<Vec<(PathBuf, u64)>>) -> bool {
        if self.watcher.is_none() {
            sleep(POLL_SETTLE).await;
            let digests = Some(draft.digests());
            let is_new = *seen != digests;
            *seen = digests;
            return is_new;
        }
        let until = Instant::now() + SETTLE;
        let mut is_disturbed = false;
        while let Ok(Some(change)) = timeout_at(until, self.events.recv()).await {
            is_disturbed |= self.note(change) > Effect::Nothing;
        }
        is_disturbed
    }

    /// Takes note of a change, and tells what it means.
    fn note(&mut self, change: Change) -> Effect {
        let paths = change.paths();
        if !paths.is_empty() && paths.iter().all(|path| self.is_foreign(path)) {
            return Effect::Nothing;
        }
        match change {
            Change::Created(path) if self.is_read(&path) && is_written_in_place(&path) => {
                self.begin(path)
            }
            Change::Written(path) if self.is_read(&path) => self.begin(path),
            Change::Closed(path) if self.is_read(&path) => {
                self.unfinished.remove(&path);
                Effect::Changed
            }
            Change::Closed(_) | Change::Written(_) => Effect::Nothing,
            Change::Created(_) | Change::Other(_) => Effect::Changed,
            Change::Removed(path) => {
                self.unfinished.remove(&path);
                // A watch goes with its directory; another of the same name needs its own.
                if let (Some(_), Some(watcher)) = (self.watched.remove(&path), &mut self.watcher) {
                    drop(watcher.unwatch(&path));
                }
                Effect::Changed
            }
            Change::Unknown => {
                self.unfinished.clear();
                Effect::Changed
            }
        }
    }

    fn begin(&mut self, path: PathBuf) -> Effect {
        let is_known = self.unfinished.insert(path, Instant::now()).is_some();
        if is_known {
            Effect::Nothing
        } else {
            Effect::Begun
        }
    }

    /// Whether a file's content matters: by its name, or because a symlink leads to it.
    fn is_read(&self, path: &Path) -> bool {
        scan::has_extension(path) || self.files.contains(path)
    }

    /// Whether a path is a neighbour of the configuration directory.
    fn is_foreign(&self, path: &Path) -> bool {
        let Some(anchor) = &self.anchor else {
            return false;
        };
        self.has_neighbours
            && path != anchor
            && (path.parent() == anchor.parent() || Some(path) == anchor.parent())
    }
}

/// Whether a new file is one that its writer will close. A link to a file that exists is not.
fn is_written_in_place(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_events_the_directory_is_read_every_now_and_then() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let object =
            |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
        fs::write(directory.path().join("a.yaml"), object("a")).expect("written");
        let mut changes = Changes::new(directory.path());
        changes.poll(&notify::Error::new(notify::ErrorKind::MaxFilesWatch));
        let (sender, mut receiver) = watch::channel(Arc::new(Load::default()));
        let (_reload, requests) = mpsc::channel(1);
        let provider = FileProvider::new(directory.path().to_owned());
        let task = tokio::spawn(provider.follow(changes, sender, requests));
        let has = |name: &'static str| {
            move |load: &Arc<Load>| load.snapshot.config_maps.get("default", name).is_some()
        };
        let load = receiver.wait_for(has("a")).await.expect("alive").clone();
        assert!(
            load.problems[0]
                .message
                .starts_with("changes are found by reading every 500 ms")
        );
        fs::write(directory.path().join("b.yaml"), object("b")).expect("written");
        receiver.wait_for(has("b")).await.expect("alive");
        drop(receiver);
        task.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_file_that_stays_open_is_read_after_a_while() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (sender, mut receiver) = watch::channel(Arc::new(Load::default()));
        let (_reload, requests) = mpsc::channel(1);
        let task =
            tokio::spawn(FileProvider::new(directory.path().to_owned()).watch(sender, requests));
        let mut file = fs::File::create(directory.path().join("a.yaml")).expect("opened");
        let text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        receiver
            .wait_for(|load| load.snapshot.config_maps.len() == 1)
            .await
            .expect("alive");
        drop((file, receiver));
        task.await.expect("no panic");
    }
}
