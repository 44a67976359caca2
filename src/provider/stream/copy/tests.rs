//! Copies on disk: complete, torn, removed.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::wire::SessionSecrets;

fn gateway(name: &str) -> Key {
    Key::new("infra", name)
}

fn write(dir: &Path, state: &GatewayObjects) -> Result<(), WriteFailure> {
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
    let other = state_of_another_controller();
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
    let mut state = state_with_key(None, 11);
    for accepted in [Some("old-session-secret"), None] {
        state.session_secret = Some(Arc::new(SessionSecrets {
            secret: "session-secret".to_owned(),
            accepted: accepted.map(str::to_owned),
        }));
        journal.write(state.clone()).unwrap();
    }
    assert!(!text(dir.path()).contains("old-session-secret"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Returns a state of another controller, which replaces the whole file.
fn state_of_another_controller() -> GatewayObjects {
    let mut other = state("edge");
    other.position.as_mut().unwrap().instance = "77aa".to_owned();
    other
}

#[test]
fn copy_that_cannot_be_rewritten_is_removed() {
    for next in [state_with_key(None, 9), state_of_another_controller()] {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path().to_owned());
        journal.write(state_with_key(Some("Zmlyc3Q="), 8)).unwrap();
        // The next copy cannot be created beside a folder of its name.
        fs::create_dir(dir.path().join(NEXT_FILE)).unwrap();
        let failure = journal.write(next.clone()).unwrap_err();
        assert!(!failure.is_copy_left, "{failure}");
        assert!(!dir.path().join(FILE).exists());
        fs::remove_dir(dir.path().join(NEXT_FILE)).unwrap();
        journal.write(next.clone()).unwrap();
        assert_eq!(read(dir.path(), &gateway("edge")), Some(next));
    }
}

#[test]
fn only_a_missing_file_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let copy_at = |position| Stored::Copy {
        position,
        failure: None,
    };
    assert_eq!(stored(dir.path(), None), Stored::Nothing);
    assert_eq!(stored(&dir.path().join("not/there"), None), Stored::Nothing);
    let state = state("edge");
    write(dir.path(), &state).unwrap();
    assert_eq!(stored(dir.path(), Some(&state)), copy_at(state.position));
    // A copy that could not be read this time.
    assert_eq!(stored(dir.path(), None), copy_at(None));
}

/// Writes states as a pod does. Returns where to send them, and what a restarted container begins with.
fn writer(dir: &Path, before: Stored) -> (watch::Sender<GatewayObjects>, watch::Receiver<Stored>) {
    let (sender, states) = watch::channel(GatewayObjects::default());
    let (store, stored) = watch::channel(before);
    tokio::spawn(write_all(dir.to_owned(), states, store));
    (sender, stored)
}

fn stored_copy_of(state: &GatewayObjects) -> Stored {
    Stored::copy_of(state.position.clone().unwrap())
}

#[test]
fn state_is_stored_once_its_write_is_complete() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (state_with_maps(0, 8), state_with_maps(1, 9));
    runtime.block_on(async {
        let (sender, mut stored) = writer(dir.path(), stored_copy_of(&state("edge")));
        sender.send_replace(first.clone());
        let is_copied = |copied: &GatewayObjects| {
            let wanted = stored_copy_of(copied);
            move |stored: &Stored| *stored == wanted
        };
        stored.wait_for(is_copied(&first)).await.unwrap();
        // The only thread for writes is busy.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv());
        sender.send_replace(second.clone());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*stored.borrow(), stored_copy_of(&first));
        drop(release);
        assert!(busy.await.unwrap().is_err());
        stored.wait_for(is_copied(&second)).await.unwrap();
    });
    assert_eq!(read(dir.path(), &gateway("edge")), Some(second));
}

#[tokio::test]
async fn nothing_is_stored_while_the_copy_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut stored) = writer(dir.path(), stored_copy_of(&state("edge")));
    let first = state_with_maps(0, 8);
    sender.send_replace(first.clone());
    let is_copied = |stored: &Stored| *stored == stored_copy_of(&first);
    stored.wait_for(is_copied).await.unwrap();
    fs::create_dir(dir.path().join(NEXT_FILE)).unwrap();
    sender.send_replace(state_of_another_controller());
    let is_nothing = |stored: &Stored| *stored == Stored::Nothing;
    stored.wait_for(is_nothing).await.unwrap();
    assert_eq!(read(dir.path(), &gateway("edge")), None);
}

#[tokio::test(start_paused = true)]
async fn copy_that_can_be_neither_written_nor_removed_stays_what_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    // A folder in its place cannot be replaced.
    fs::create_dir(dir.path().join(FILE)).unwrap();
    let first = state_with_maps(0, 8);
    let (sender, mut stored) = writer(dir.path(), stored_copy_of(&first));
    let second = state_with_maps(1, 9);
    sender.send_replace(second.clone());
    let has_failure = |stored: &Stored| {
        matches!(
            stored,
            Stored::Copy {
                failure: Some(_),
                ..
            }
        )
    };
    let after = stored.wait_for(has_failure).await.unwrap().clone();
    let Stored::Copy { position, failure } = after else {
        panic!("{after:?}");
    };
    assert_eq!(position, first.position);
    let failure = failure.unwrap();
    assert!(
        failure.contains("neither be written nor removed"),
        "{failure}"
    );
    // It is written later.
    fs::remove_dir(dir.path().join(FILE)).unwrap();
    let is_copied = |stored: &Stored| *stored == stored_copy_of(&second);
    stored.wait_for(is_copied).await.unwrap();
    assert_eq!(read(dir.path(), &gateway("edge")), Some(second));
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
    let (store, stored) = watch::channel(Stored::Nothing);
    let writing = tokio::spawn(write_all(dir.path().to_owned(), states, store));
    sender.send_replace(state("other"));
    sender.send_replace(state("edge"));
    drop(sender);
    // The last change is written without any further change.
    writing.await.unwrap();
    assert_eq!(*stored.borrow(), stored_copy_of(&state("edge")));
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
