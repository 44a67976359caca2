//! Symlinks in the directory and on the way to it: whatever leads elsewhere, what is there is published.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Followed, config_map};

/// Creates `conf/a.yaml` with a version in a directory.
fn release(directory: &Path, version: &str) {
    fs::create_dir_all(directory.join("conf")).expect("created");
    fs::write(directory.join("conf/a.yaml"), config_map("a", version)).expect("written");
}

/// Replaces `current` by a symlink to a target.
fn switch(root: &Path, target: &str) {
    symlink(target, root.join("next")).expect("linked");
    fs::rename(root.join("next"), root.join("current")).expect("renamed");
}

#[tokio::test]
async fn a_directory_that_is_a_symlink_can_be_swapped() {
    let mut followed = Followed::start(|directory| {
        let root = directory.parent().expect("a parent");
        for version in ["1", "2"] {
            fs::create_dir(root.join(version)).expect("created");
            fs::write(root.join(version).join("a.yaml"), config_map("a", version))
                .expect("written");
        }
        fs::remove_dir(directory).expect("removed");
        symlink("1", directory).expect("linked");
    })
    .await;
    followed.until_version("a", "1").await;
    symlink("2", followed.root.path().join("next")).expect("linked");
    fs::rename(followed.root.path().join("next"), &followed.directory).expect("renamed");
    followed.until_version("a", "2").await;
}

#[tokio::test]
async fn a_symlink_on_the_way_to_the_directory_can_be_swapped() {
    let mut followed = Followed::start_at("current/conf", |root| {
        release(&root.join("1"), "1");
        release(&root.join("2"), "2");
        switch(root, "1");
    })
    .await;
    followed.until_version("a", "1").await;
    switch(followed.root.path(), "2");
    followed.until_version("a", "2").await;
    // The watches are those of the new directory.
    followed.write("a.yaml", &config_map("a", "3"));
    followed.until_version("a", "3").await;
}

#[tokio::test]
async fn the_parent_of_the_directory_can_be_replaced() {
    let mut followed = Followed::start_at("app/conf", |root| {
        release(&root.join("app"), "1");
        release(&root.join("new"), "2");
    })
    .await;
    followed.until_version("a", "1").await;
    let path = |name: &str| followed.root.path().join(name);
    fs::rename(path("app"), path("old")).expect("renamed");
    fs::rename(path("new"), path("app")).expect("renamed");
    followed.until_version("a", "2").await;
    followed.write("a.yaml", &config_map("a", "3"));
    followed.until_version("a", "3").await;
}

#[tokio::test]
async fn a_symlink_on_the_way_to_a_file_or_a_directory_can_be_swapped() {
    for target in ["../current/conf/a.yaml", "../current/conf"] {
        let mut followed = Followed::start(|directory| {
            let root = directory.parent().expect("a parent");
            release(&root.join("1"), "1");
            release(&root.join("2"), "2");
            switch(root, "1");
            symlink(target, directory.join("link.yaml")).expect("linked");
        })
        .await;
        followed.until_version("a", "1").await;
        switch(followed.root.path(), "2");
        followed.until_version("a", "2").await;
    }
}

#[tokio::test]
async fn the_missing_target_of_a_symlink_is_awaited() {
    let mut followed = Followed::start(|directory| {
        symlink("../away/conf/a.yaml", directory.join("a.yaml")).expect("linked");
    })
    .await;
    followed.until(|load| !load.problems.is_empty()).await;
    release(&followed.root.path().join("away"), "1");
    followed.until_version("a", "1").await;
}

#[tokio::test]
async fn a_file_behind_a_symlink_is_followed() {
    let mut followed = Followed::start(|directory| {
        let root = directory.parent().expect("a parent");
        fs::write(root.join("shared.txt"), config_map("a", "1")).expect("written");
        symlink("../shared.txt", directory.join("a.yaml")).expect("linked");
    })
    .await;
    fs::write(
        followed.root.path().join("shared.txt"),
        config_map("a", "2"),
    )
    .expect("written");
    followed.until_version("a", "2").await;
}
