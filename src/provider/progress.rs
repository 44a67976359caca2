//! How far the first load of a configuration is. The loader writes it, and others read it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Progress of a first load.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Stage>);

/// What a load does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Waiting,
    Reading {
        done: usize,
        files: usize,
    },
    Translating {
        routes: usize,
    },
}

impl Progress {
    /// Records the number of files to read.
    pub fn reading(&self, files: usize) {
        self.set(|_| Stage::Reading { done: 0, files });
    }

    /// Records that a file has been read.
    pub fn has_read(&self) {
        self.set(|stage| match stage {
            Stage::Reading { done, files } => Stage::Reading {
                done: done + 1,
                files,
            },
            other => other,
        });
    }

    /// Records that all objects are read, with this number of routes.
    pub fn translating(&self, routes: usize) {
        self.set(|_| Stage::Translating { routes });
    }

    fn set(&self, next: impl FnOnce(Stage) -> Stage) {
        let mut stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = next(*stage);
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match stage {
            Stage::Waiting => f.write_str("waiting for the objects"),
            Stage::Reading { done, files } => write!(f, "read {done} of {files} files"),
            Stage::Translating { routes } => write!(f, "translating {routes} routes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_a_load_does_and_how_much_of_it_is_done() {
        let progress = Progress::default();
        assert_eq!(progress.to_string(), "waiting for the objects");
        progress.reading(3);
        progress.has_read();
        assert_eq!(progress.to_string(), "read 1 of 3 files");
        progress.translating(5000);
        progress.has_read();
        assert_eq!(progress.to_string(), "translating 5000 routes");
    }
}
