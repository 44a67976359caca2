//! How the file provider follows a directory: what it publishes for each way that files change under it.

mod symlinks;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::finding::Severity;
use portcullis::provider::{FileProvider, Load};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Far more than any change takes; only a broken provider is waited for this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory and what is published of it.
struct Followed {
    root: TempDir,
    directory: PathBuf,
    receiver: watch::Receiver<Arc<Load>>,
    reload: mpsc::Sender<()>,
    task: JoinHandle<()>,
}

impl Followed {
    /// Follows `root/config`, which `prepare` has filled.
    async fn start(prepare: impl FnOnce(&Path)) -> Self {
        Self::start_at("config", |root| {
            let directory = root.join("config");
            fs::create_dir(&directory).expect("created");
            prepare(&directory);
        })
        .await
    }

    /// Follows a path below the root, in which `prepare` has created it.
    async fn start_at(path: &str, prepare: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = root.path().join(path);
        prepare(root.path());
        let (sender, mut receiver) = watch::channel(Arc::new(Load::default()));
        let (reload, requests) = mpsc::channel(1);
        let task = tokio::spawn(FileProvider::new(directory.clone()).watch(sender, requests));
        if directory.read_dir().expect("readable").next().is_some() {
            timeout(TEST_TIMEOUT, receiver.changed())
                .await
                .expect("in time")
                .expect("published");
        }
        receiver.mark_unchanged();
        Self {
            root,
            directory,
            receiver,
            reload,
            task,
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).expect("written");
    }

    /// Waits until a published state satisfies the condition.
    async fn until(&mut self, condition: impl FnMut(&Arc<Load>) -> bool) -> Arc<Load> {
        let found = timeout(TEST_TIMEOUT, self.receiver.wait_for(condition)).await;
        Arc::clone(&found.expect("in time").expect("the provider lives"))
    }

    async fn until_version(&mut self, name: &str, version: &str) -> Arc<Load> {
        self.until(|load| version_of(load, name).as_deref() == Some(version))
            .await
    }
}

fn config_map(name: &str, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{version: '{version}'}}\n"
    )
}

fn version_of(load: &Load, name: &str) -> Option<String> {
    load.snapshot
        .config_maps
        .get("default", name)?
        .data
        .get("version")
        .cloned()
}

fn errors(load: &Load) -> Vec<String> {
    let errors = load
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error);
    errors.map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_write_in_place_is_published() {
    let mut followed = Followed::start(hundred_objects).await;
    followed.write("object-7.yaml", &config_map("object-7", "2"));
    let load = followed.until_version("object-7", "2").await;
    assert_eq!(load.snapshot.config_maps.len(), 100);
}

fn hundred_objects(directory: &Path) {
    for number in 0..100 {
        let name = format!("object-{number}");
        let file = directory.join(format!("{name}.yaml"));
        fs::write(file, config_map(&name, "1")).expect("written");
    }
}

/// A write that waits for a poll, or for the end of what might be a longer write, takes more than a hundred times as long.
#[tokio::test]
#[ignore = "compares times"]
async fn a_write_in_place_is_published_as_fast_as_a_rename() {
    const TIMES: usize = 9;
    let mut followed = Followed::start(hundred_objects).await;
    let (mut in_place, mut renamed) = (Vec::new(), Vec::new());
    for version in 0..2 * TIMES {
        let text = config_map("object-7", &format!("new-{version}"));
        let start = Instant::now();
        let times = if version % 2 == 0 {
            followed.write("object-7.yaml", &text);
            &mut in_place
        } else {
            followed.write(".draft", &text);
            let [from, to] = [".draft", "object-7.yaml"].map(|it| followed.directory.join(it));
            fs::rename(from, to).expect("renamed");
            &mut renamed
        };
        followed
            .until_version("object-7", &format!("new-{version}"))
            .await;
        times.push(start.elapsed());
    }
    in_place.sort();
    renamed.sort();
    let (found, reference) = (in_place[TIMES / 2], renamed[TIMES / 2]);
    assert!(
        found <= 10 * reference,
        "{found:?}, and {reference:?} for a rename"
    );
}

#[tokio::test]
async fn a_file_renamed_over_another_is_published() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    followed.write(".a.yaml.swp", &config_map("a", "2"));
    fs::rename(
        followed.directory.join(".a.yaml.swp"),
        followed.directory.join("a.yaml"),
    )
    .expect("renamed");
    followed.until_version("a", "2").await;
}

#[tokio::test]
async fn an_editor_that_moves_the_original_away_loses_nothing() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    fs::rename(
        followed.directory.join("a.yaml"),
        followed.directory.join("a.yaml~"),
    )
    .expect("renamed");
    followed.write("a.yaml", &config_map("a", "2"));
    fs::remove_file(followed.directory.join("a.yaml~")).expect("removed");
    followed.until_version("a", "2").await;
}

/// Writes a version of two files as a kubelet writes a volume.
fn mount(directory: &Path, version: &str) {
    let data = directory.join(format!("..{version}"));
    fs::create_dir(&data).expect("created");
    for name in ["a", "b"] {
        fs::write(data.join(format!("{name}.yaml")), config_map(name, version)).expect("written");
        let link = directory.join(format!("{name}.yaml"));
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(format!("{name}.yaml")), link).expect("linked");
        }
    }
    symlink(
        data.file_name().expect("a name"),
        directory.join("..data_tmp"),
    )
    .expect("linked");
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("renamed");
}

#[tokio::test]
async fn a_kubernetes_volume_changes_as_a_whole() {
    let mut followed = Followed::start(|directory| mount(directory, "0")).await;
    followed.until_version("b", "0").await;
    for version in 1..20 {
        let (old, new) = (format!("{}", version - 1), format!("{version}"));
        mount(&followed.directory, &new);
        fs::remove_dir_all(followed.directory.join(format!("..{old}"))).expect("removed");
        let load = followed
            .until(|load| {
                assert_eq!(
                    version_of(load, "a"),
                    version_of(load, "b"),
                    "{:?}",
                    load.problems
                );
                version_of(load, "a").as_deref() == Some(&new)
            })
            .await;
        assert_eq!(load.snapshot.config_maps.len(), 2);
        assert!(load.problems.is_empty(), "{:?}", load.problems);
    }
}

#[tokio::test]
async fn a_volume_in_a_subdirectory_changes_as_a_whole() {
    let mut followed = Followed::start(|directory| {
        fs::create_dir(directory.join("volume")).expect("created");
        mount(&directory.join("volume"), "0");
    })
    .await;
    mount(&followed.directory.join("volume"), "1");
    let load = followed.until_version("a", "1").await;
    assert_eq!(version_of(&load, "b").as_deref(), Some("1"));
}

#[tokio::test]
async fn new_directories_are_followed_and_deleted_files_are_gone() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    let nested = followed.directory.join("one/two");
    fs::create_dir_all(&nested).expect("created");
    fs::write(nested.join("b.yml"), config_map("b", "1")).expect("written");
    followed.until_version("b", "1").await;
    fs::write(nested.join("b.yml"), config_map("b", "2")).expect("written");
    followed.until_version("b", "2").await;
    fs::remove_file(followed.directory.join("a.yaml")).expect("removed");
    followed.until(|load| version_of(load, "a").is_none()).await;
    fs::remove_dir_all(followed.directory.join("one")).expect("removed");
    followed
        .until(|load| load.snapshot.config_maps.is_empty())
        .await;
    fs::create_dir_all(&nested).expect("created");
    fs::write(nested.join("b.yml"), config_map("b", "3")).expect("written");
    followed.until_version("b", "3").await;
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read() {
    let whole = format!("{}---\n{}", config_map("a", "1"), config_map("b", "1"));
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("both.yaml"), &whole).expect("written")
    })
    .await;
    let mut file = File::create(followed.directory.join("both.yaml")).expect("opened");
    // Valid as far as it goes: only the open file tells that more is to come.
    file.write_all(config_map("a", "2").as_bytes())
        .expect("written");
    followed.write("other.yaml", &config_map("other", "1"));
    let load = followed.until_version("other", "1").await;
    assert_eq!(
        (
            version_of(&load, "a").as_deref(),
            version_of(&load, "b").as_deref()
        ),
        (Some("1"), Some("1"))
    );
    file.write_all(format!("---\n{}", config_map("b", "2")).as_bytes())
        .expect("written");
    drop(file);
    let load = followed.until_version("a", "2").await;
    assert_eq!(version_of(&load, "b").as_deref(), Some("2"));
}

#[tokio::test]
async fn a_file_that_does_not_parse_keeps_its_objects() {
    let whole = format!("{}---\n{}", config_map("a", "1"), config_map("b", "1"));
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("both.yaml"), &whole).expect("written")
    })
    .await;
    followed.write(
        "both.yaml",
        &format!("{}---\nkind: [\n", config_map("a", "2")),
    );
    let load = followed.until(|load| !load.problems.is_empty()).await;
    assert_eq!(
        (
            version_of(&load, "a").as_deref(),
            version_of(&load, "b").as_deref()
        ),
        (Some("1"), Some("1"))
    );
    assert_eq!(
        (
            load.problems[0].location.document,
            load.problems[0].severity
        ),
        (2, Severity::Error)
    );
    followed.write("both.yaml", &config_map("a", "3"));
    let load = followed.until_version("a", "3").await;
    assert_eq!(version_of(&load, "b"), None);
    assert!(load.problems.is_empty());
}

#[tokio::test]
async fn an_invalid_object_keeps_its_valid_version_and_the_others_change() {
    let service = |port: u32| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{ports: [{{port: {port}}}]}}\n"
        )
    };
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("s.yaml"), service(80)).expect("written")
    })
    .await;
    followed.write(
        "s.yaml",
        &format!("{}---\n{}", service(70000), config_map("a", "1")),
    );
    let load = followed.until_version("a", "1").await;
    let kept = load
        .snapshot
        .services
        .get("default", "s")
        .expect("the previous version");
    assert_eq!(kept.spec.ports[0].port, 80);
    let first = &load.problems[0];
    assert_eq!(
        (
            first.location.document,
            first.location.line,
            first.field.as_str()
        ),
        (1, 4, "spec.ports[0].port")
    );
    assert_eq!(first.rule, "maximum: 65535");
    assert_eq!(
        first.object.as_ref().map(ToString::to_string).as_deref(),
        Some("Service default/s")
    );
    followed.write("s.yaml", &service(81));
    let port = |load: &Arc<Load>| {
        load.snapshot
            .services
            .get("default", "s")
            .map(|service| service.spec.ports[0].port)
    };
    followed.until(|load| port(load) == Some(81)).await;
}

#[tokio::test]
async fn duplicates_are_reported_with_both_places() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("x", "a")).expect("written");
    })
    .await;
    followed.write("b.yaml", &config_map("x", "b"));
    let load = followed.until(|load| !load.problems.is_empty()).await;
    assert_eq!(version_of(&load, "x").as_deref(), Some("a"));
    let error = &errors(&load)[0];
    assert!(
        error.contains("b.yaml:1 (document 1): ConfigMap default/x") && error.contains("a.yaml:1"),
        "{error}"
    );
    fs::remove_file(followed.directory.join("a.yaml")).expect("removed");
    followed.until_version("x", "b").await;
}

#[tokio::test]
async fn the_same_content_is_not_published_again() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    followed.write("a.yaml", &format!("# a comment\n{}", config_map("a", "1")));
    followed.reload.send(()).await.expect("heard");
    followed.write("b.yaml", &config_map("b", "1"));
    let mut loads = 0;
    let before = followed.receiver.borrow_and_update().clone();
    while version_of(&followed.receiver.borrow_and_update().clone(), "b").is_none() {
        timeout(TEST_TIMEOUT, followed.receiver.changed())
            .await
            .expect("in time")
            .expect("published");
        loads += 1;
    }
    assert!(loads <= 1, "{loads}");
    let after = followed.receiver.borrow().clone();
    let object = |load: &Load| {
        load.snapshot
            .config_maps
            .get("default", "a")
            .cloned()
            .expect("there")
    };
    assert!(version_of(&before, "b").is_some() || Arc::ptr_eq(&object(&before), &object(&after)));
}

#[tokio::test]
async fn problems_alone_are_published_with_the_same_snapshot() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    let before = followed.receiver.borrow().clone();
    followed.write(
        "b.yaml",
        "apiVersion: example.com/v1\nkind: Other\nmetadata: {name: b}\n",
    );
    let load = followed.until(|load| !load.problems.is_empty()).await;
    assert_eq!(load.problems[0].severity, Severity::Warning);
    assert!(Arc::ptr_eq(&before.snapshot, &load.snapshot));
}

#[tokio::test]
async fn a_directory_that_vanishes_keeps_its_objects_until_it_is_back() {
    let mut followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    let away = followed.root.path().join("away");
    fs::rename(&followed.directory, &away).expect("renamed");
    let load = followed.until(|load| !load.problems.is_empty()).await;
    assert_eq!(version_of(&load, "a").as_deref(), Some("1"));
    fs::create_dir(&followed.directory).expect("created");
    followed.write("a.yaml", &config_map("a", "2"));
    let load = followed.until_version("a", "2").await;
    assert!(load.problems.is_empty(), "{:?}", load.problems);
    followed.write("a.yaml", &config_map("a", "3"));
    followed.until_version("a", "3").await;
}

#[tokio::test]
async fn watching_ends_with_the_last_receiver() {
    let followed = Followed::start(|directory| {
        fs::write(directory.join("a.yaml"), config_map("a", "1")).expect("written");
    })
    .await;
    drop(followed.reload);
    drop(followed.receiver);
    timeout(TEST_TIMEOUT, followed.task)
        .await
        .expect("in time")
        .expect("no panic");
}
