//! Watches a directory and publishes its content on changes. Owns the timing: does not read files
//! while they are being written, and publishes changes together that arrive together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;
use imbl::ordset::DiffItem;
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::change::{Change, Dirty, Effect};
use super::pending::PendingChanges;
use super::{Draft, FileProvider, Load, links, scan};
use crate::finding::Severity;
use crate::provider::Problem;

/// Debounce of changes.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Maximum debounce.
const MAX_DEBOUNCE: Duration = Duration::from_millis(50);
/// Time for pending events of changes during a load to arrive.
const EVENT_DELAY: Duration = Duration::from_millis(2);
/// A file that was written and not closed counts as complete after this time.
const UNCLOSED_TIMEOUT: Duration = Duration::from_secs(1);
/// Poll interval if file system events are unavailable.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// When polling, a file must be unchanged for this time to count as complete.
const POLL_DEBOUNCE: Duration = Duration::from_millis(20);
/// Maximum number of loads that are discarded because of concurrent changes.
const RETRIES: usize = 5;

impl FileProvider {
    /// Publishes the current state of the directory, and every change. Reads again on every reload
    /// request. Skips states with the same objects and problems. Ends when all receivers are
    /// dropped.
    pub async fn watch(self, sender: watch::Sender<Arc<Load>>, reload: mpsc::Receiver<()>) {
        let changes = Changes::new(&self.directory);
        self.watch_changes(changes, sender, reload).await;
    }

    async fn watch_changes(
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
                () = requested(&mut reload) => changes.dirty = Dirty::Everything,
            }
        }
    }

    /// Reads what has changed until no concurrent change occurs, and publishes the result.
    async fn refresh(&mut self, changes: &mut Changes, sender: &watch::Sender<Arc<Load>>) {
        let mut seen = None;
        for retry in 0..=RETRIES {
            let start = Instant::now();
            let unfinished = changes.unfinished();
            let dirty = std::mem::take(&mut changes.dirty);
            let draft = match self.draft(&dirty.extent(), &unfinished) {
                Ok(draft) => draft,
                Err(error) => {
                    changes.dirty = Dirty::Everything;
                    changes.watch_only(&OrdSet::new(), &BTreeSet::new());
                    let message = format!("{error:#}");
                    let problem = Problem::of_file(Severity::Error, &self.directory, message)
                        .with_effect("the last configuration stays in service")
                        .with_remedy(scan::REPAIR);
                    let snapshot = Arc::clone(&sender.borrow().snapshot);
                    return publish(
                        sender,
                        Load {
                            position: None,
                            snapshot,
                            problems: vec![problem],
                            waiting: Vec::new(),
                        },
                    );
                }
            };
            if draft.is_whole {
                changes.note_files(&draft);
                changes.watch_only(&draft.scan.directories, &draft.scan.on_the_way);
            } else {
                changes.watch_more(&self.scan.directories, &draft.scan.directories);
            }
            let is_disturbed = changes.wait_for_events(&draft, &mut seen).await;
            // A file in a new directory may have been in the middle of a write before the watch began.
            let is_new = changes
                .last_watch
                .is_some_and(|began| began + DEBOUNCE > start);
            if (is_new || is_disturbed) && retry < RETRIES {
                changes.dirty.add(dirty);
                self.discarded = draft.files;
                if is_new {
                    sleep(DEBOUNCE).await;
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

/// Completes on a reload request. Pending forever after the sender is dropped.
async fn requested(reload: &mut mpsc::Receiver<()>) {
    if reload.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Device and inode number of a directory, which change when it is replaced.
type Inode = (u64, u64);

/// Changes of the watched directories.
struct Changes {
    /// `None` if file system events are unavailable: the directory is polled.
    watcher: Option<RecommendedWatcher>,
    events: Arc<PendingChanges>,
    /// Why events are unavailable.
    warning: Option<Problem>,
    watched: BTreeMap<PathBuf, Inode>,
    /// When the last watch has begun. Earlier changes in its directory were not observed.
    last_watch: Option<Instant>,
    /// Names whose change makes the path of the directory, or a symlink in it, lead elsewhere.
    on_the_way: BTreeSet<PathBuf>,
    /// Directories that are watched for these names only.
    neighbours: BTreeSet<PathBuf>,
    /// Files that were written and not closed, with the time of the last write.
    unfinished: BTreeMap<PathBuf, Instant>,
    /// Real paths of the files of the last draft that only symlinks make configuration.
    files: BTreeSet<Arc<Path>>,
    /// The real configuration directory, if hidden files in it are irrelevant.
    plain: Option<PathBuf>,
    dirty: Dirty,
    directory: PathBuf,
}

impl Changes {
    fn new(directory: &Path) -> Self {
        let events = Arc::<PendingChanges>::default();
        let pending = events.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let change = event.map_or(Some(Change::Unknown), Change::of);
            if let Some(change) = change {
                pending.push(change);
            }
        });
        let mut changes = Self {
            watcher: None,
            events,
            warning: None,
            watched: BTreeMap::new(),
            last_watch: None,
            on_the_way: BTreeSet::new(),
            neighbours: BTreeSet::new(),
            unfinished: BTreeMap::new(),
            files: BTreeSet::new(),
            plain: None,
            dirty: Dirty::Somewhere,
            directory: directory.to_owned(),
        };
        match watcher {
            Ok(watcher) => changes.watcher = Some(watcher),
            Err(error) => changes.poll(&error),
        }
        changes
    }

    /// Switches from events to polling.
    fn poll(&mut self, error: &notify::Error) {
        self.watcher = None;
        self.watched.clear();
        self.unfinished.clear();
        let message = format!("file system events are unavailable: {error}");
        let effect = format!("it is polled every {} ms", POLL_INTERVAL.as_millis());
        tracing::warn!(directory = %self.directory.display(), "{message}: {effect}");
        let problem = Problem::of_file(Severity::Warning, &self.directory, message);
        self.warning = Some(problem.with_effect(effect).with_remedy(remedy(error)));
    }

    /// Notes which files of a draft are relevant.
    fn note_files(&mut self, draft: &Draft) {
        let scan = &draft.scan;
        let files = scan.files.values();
        self.files = files
            .filter(|real| !scan::has_extension(real))
            .cloned()
            .collect();
        self.plain = scan.is_plain().then(|| scan.real_root().to_owned());
    }

    /// Watches these directories, and those of the names that lead to the configuration directory and of `on_the_way`, and no
    /// others.
    fn watch_only(&mut self, directories: &OrdSet<Arc<Path>>, on_the_way: &BTreeSet<PathBuf>) {
        self.on_the_way.clone_from(on_the_way);
        if let Ok(path) = std::path::absolute(&self.directory) {
            self.on_the_way.extend(links::on_the_way(&path));
        }
        let parents = self.on_the_way.iter().filter_map(|name| name.parent());
        let neighbours = parents.filter(|parent| !directories.contains(*parent));
        let neighbours: BTreeSet<PathBuf> = neighbours.map(Path::to_owned).collect();
        let gone = |path: &&PathBuf| {
            !directories.contains(path.as_path()) && !neighbours.contains(path.as_path())
        };
        let gone: Vec<_> = self.watched.keys().filter(gone).cloned().collect();
        gone.iter().for_each(|path| self.unwatch(path));
        for path in directories.iter() {
            self.watch(path);
        }
        for path in &neighbours {
            self.watch(path);
        }
        self.neighbours = neighbours;
    }

    /// Watches the new directories, and no longer those that do not exist any more.
    fn watch_more(&mut self, previous: &OrdSet<Arc<Path>>, now: &OrdSet<Arc<Path>>) {
        for item in previous.diff(now) {
            match item {
                DiffItem::Add(path) => drop(self.watch(path)),
                DiffItem::Remove(path) => self.unwatch(path),
            }
        }
    }

    fn unwatch(&mut self, path: &Path) {
        if let (Some(_), Some(watcher)) = (self.watched.remove(path), &mut self.watcher) {
            // Fails if the directory was deleted, which also ends its watch.
            drop(watcher.unwatch(path));
        }
    }

    /// Watches a directory. Returns true if it is new.
    fn watch(&mut self, path: &Path) -> bool {
        let Ok(inode) = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())) else {
            return false;
        };
        if self.watched.get(path) == Some(&inode) {
            return false;
        }
        self.unwatch(path);
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        match watcher.watch(path, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.watched.insert(path.to_owned(), inode);
                self.last_watch = Some(Instant::now());
                return true;
            }
            Err(error) if !path.exists() => {
                tracing::debug!("{} no longer exists: {error}", path.display())
            }
            Err(error) => self.poll(&error),
        }
        false
    }

    /// Returns the files that must not be read yet.
    fn unfinished(&mut self) -> BTreeSet<PathBuf> {
        let now = Instant::now();
        let is_late = |written: &Instant| now >= *written + UNCLOSED_TIMEOUT;
        let dirty = &mut self.dirty;
        self.unfinished.retain(|path, written| {
            if is_late(written) {
                dirty.add_path(path);
            }
            !is_late(written)
        });
        self.unfinished.keys().cloned().collect()
    }

    /// Waits until the next change is complete.
    async fn next(&mut self) {
        if self.watcher.is_none() {
            self.dirty = Dirty::Everything;
            return sleep(POLL_INTERVAL).await;
        }
        // Whatever disturbed the last draft.
        while self.dirty.is_empty() {
            let stalled = self
                .unfinished
                .values()
                .min()
                .map(|written| *written + UNCLOSED_TIMEOUT);
            let change = match stalled {
                None => self.events.next().await,
                Some(stalled) => tokio::select! {
                    change = self.events.next() => change,
                    () = sleep_until(stalled) => return,
                },
            };
            if self.record(change) == Effect::Changed {
                break;
            }
        }
        let latest = Instant::now() + MAX_DEBOUNCE;
        while Instant::now() < latest {
            // A file in the middle of a write probably belongs to the same change.
            let until = if self.unfinished.is_empty() {
                latest.min(Instant::now() + DEBOUNCE)
            } else {
                latest
            };
            let Ok(change) = timeout_at(until, self.events.next()).await else {
                return;
            };
            self.record(change);
        }
    }

    /// Waits for pending events of changes during a draft. Returns true if the draft may mix two
    /// states.
    async fn wait_for_events(
        &mut self,
        draft: &Draft,
        seen: &mut Option<Vec<(Arc<Path>, u64)>>,
    ) -> bool {
        if self.watcher.is_none() {
            sleep(POLL_DEBOUNCE).await;
            let digests = Some(draft.digests());
            let is_new = *seen != digests;
            *seen = digests;
            return is_new;
        }
        let until = Instant::now() + EVENT_DELAY;
        let mut is_disturbed = false;
        while let Ok(change) = timeout_at(until, self.events.next()).await {
            // Changes that are not handled in time may be some during the draft.
            is_disturbed |= self.record(change) > Effect::Nothing || Instant::now() >= until;
            if Instant::now() >= until {
                break;
            }
        }
        is_disturbed
    }

    /// Records a change and returns its effect.
    fn record(&mut self, change: Change) -> Effect {
        let paths = change.paths();
        let is_irrelevant = |path: &PathBuf| self.is_foreign(path) || self.is_hidden(path);
        if !paths.is_empty() && paths.iter().all(is_irrelevant) {
            return Effect::Nothing;
        }
        let effect = self.effect(&change);
        match change {
            _ if effect != Effect::Changed => {}
            Change::Unknown => self.dirty.add(Dirty::Somewhere),
            change => {
                for path in change.paths() {
                    self.dirty.add_path(path);
                    // What else is there is no configuration.
                    if !self.leads(path) && !self.is_foreign(path) {
                        self.watch_new(path, 0);
                    }
                }
            }
        }
        effect
    }

    /// Watches a path if it is a directory that is not watched yet, and the directories in it. What is written there before
    /// the next draft is then observed like any change.
    fn watch_new(&mut self, path: &Path, depth: usize) {
        let is_directory = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
        if depth > scan::MAX_DEPTH || !is_directory || !self.watch(path) {
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !self.is_hidden(&path) {
                self.watch_new(&path, depth + 1);
            }
        }
    }

    fn effect(&mut self, change: &Change) -> Effect {
        match change {
            Change::Created(path) if self.is_read(path) && is_written_in_place(path) => {
                self.begin(path)
            }
            Change::Written(path) if self.is_read(path) => self.begin(path),
            Change::Closed(path) if self.is_read(path) => {
                self.unfinished.remove(path);
                Effect::Changed
            }
            Change::Closed(_) | Change::Written(_) => Effect::Nothing,
            Change::Created(_) | Change::Other(_) => Effect::Changed,
            Change::Removed(path) => {
                self.unfinished.remove(path);
                // A watch ends with its directory, also of those below one that is renamed. A new directory of the same
                // name needs a new watch.
                let watched = self.watched.range(path.clone()..);
                let below = watched.take_while(|(other, _)| other.starts_with(path));
                let gone: Vec<_> = below.map(|(path, _)| path.clone()).collect();
                gone.iter().for_each(|path| self.unwatch(path));
                Effect::Changed
            }
            Change::Unknown => {
                self.unfinished.clear();
                Effect::Changed
            }
        }
    }

    fn begin(&mut self, path: &Path) -> Effect {
        let is_known = self.unfinished.insert(path.to_owned(), Instant::now());
        let is_known = is_known.is_some();
        if is_known {
            Effect::Nothing
        } else {
            Effect::WriteStarted
        }
    }

    /// Reports whether the content of a file is relevant: by its name, or as a symlink target.
    fn is_read(&self, path: &Path) -> bool {
        scan::has_extension(path) || self.files.contains(path)
    }

    /// Reports whether a path is hidden, and nothing refers to it.
    fn is_hidden(&self, path: &Path) -> bool {
        let below = self
            .plain
            .as_deref()
            .and_then(|root| path.strip_prefix(root).ok());
        below.is_some_and(scan::is_hidden_below)
    }

    /// Reports whether a path leads to configuration: by its name, or as a directory that has such a name.
    fn leads(&self, path: &Path) -> bool {
        self.on_the_way.contains(path) || self.neighbours.contains(path)
    }

    /// Reports whether a path is in a directory that is watched for other names only.
    fn is_foreign(&self, path: &Path) -> bool {
        let parent = path.parent();
        !self.leads(path) && parent.is_some_and(|parent| self.neighbours.contains(parent))
    }
}

/// Returns what to do about file system events that are unavailable.
fn remedy(error: &notify::Error) -> &'static str {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "raise fs.inotify.max_user_watches of this host, and restart this process"
        }
        // EMFILE, which is nearly always the limit of inotify.
        ErrorKind::Io(error) if error.raw_os_error() == Some(24) => {
            "raise fs.inotify.max_user_instances of this host, and restart this process"
        }
        _ => scan::REPAIR,
    }
}

/// Reports whether a writer will close this new file. A hard link to an existing file is not
/// closed.
fn is_written_in_place(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn polls_the_directory_without_events() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let object =
            |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
        fs::write(directory.path().join("a.yaml"), object("a")).expect("written");
        let mut changes = Changes::new(directory.path());
        changes.poll(&notify::Error::new(notify::ErrorKind::MaxFilesWatch));
        let (sender, mut receiver) = watch::channel(Arc::new(Load::default()));
        let (_reload, requests) = mpsc::channel(1);
        let provider = FileProvider::new(directory.path().to_owned());
        let task = tokio::spawn(provider.watch_changes(changes, sender, requests));
        let has = |name: &'static str| {
            move |load: &Arc<Load>| load.snapshot.config_maps.get("default", name).is_some()
        };
        let load = receiver.wait_for(has("a")).await.expect("alive").clone();
        let problem = &load.problems[0];
        let message = &problem.message;
        assert!(message.starts_with("file system events are unavailable: "));
        assert_eq!(problem.effect, "it is polled every 500 ms");
        assert!(problem.remedy.contains("fs.inotify.max_user_watches"));
        fs::write(directory.path().join("b.yaml"), object("b")).expect("written");
        receiver.wait_for(has("b")).await.expect("alive");
        drop(receiver);
        task.await.expect("no panic");
    }

    #[test]
    fn names_the_limit_of_inotify_instances() {
        let error = notify::Error::io(std::io::Error::from_raw_os_error(24));
        assert!(remedy(&error).contains("fs.inotify.max_user_instances"));
    }

    /// The watches of a renamed directory and of those in it report its new path.
    #[tokio::test]
    async fn follows_files_of_renamed_directories() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| root.path().join(name);
        let write = |name: &str, version: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{v: {version}}}}}"
            );
            fs::write(path(name), text).expect("written");
        };
        fs::create_dir_all(path("z/team/routes")).expect("created");
        write("z/team/routes/a.yaml", "one");
        let (sender, mut receiver) = watch::channel(Arc::new(Load::default()));
        let (_reload, requests) = mpsc::channel(1);
        let provider = FileProvider::new(root.path().to_owned());
        let task = tokio::spawn(provider.watch(sender, requests));
        for (from, to, version) in [("z", "a", "two"), ("a", "z", "three")] {
            let has_one = |load: &Arc<Load>| load.snapshot.config_maps.len() == 1;
            receiver.wait_for(has_one).await.expect("alive");
            fs::rename(path(from), path(to)).expect("renamed");
            write(&format!("{to}/team/routes/a.yaml"), version);
            let is_new = |load: &Arc<Load>| {
                let map = load.snapshot.config_maps.get("default", "a");
                map.is_some_and(|map| map.data["v"] == version)
            };
            receiver.wait_for(is_new).await.expect("alive");
            // Only a watch of the file's directory shows this change, after that of its name.
            write(&format!("{to}/team/routes/a.yaml"), "later");
            let is_later = |load: &Arc<Load>| {
                let map = load.snapshot.config_maps.get("default", "a");
                map.is_some_and(|map| map.data["v"] == "later")
            };
            receiver.wait_for(is_later).await.expect("alive");
        }
        drop(receiver);
        task.await.expect("no panic");
    }

    #[tokio::test]
    async fn reads_a_file_that_stays_open_after_a_timeout() {
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
