//! Where lines go: standard output or error, or a file that is reopened when it was moved or on
//! request. A sink that fails is tried again with the next lines.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of the checks whether the file was moved or deleted.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The target of a log.
pub(in crate::telemetry) struct Sink {
    /// What the messages about this sink call its log.
    log: &'static str,
    output: Box<dyn Write + Send>,
    file: Option<LogFile>,
    /// Whether the last line was written in part.
    is_torn: bool,
    /// Whether the last write failed, so that the log says it once.
    is_failing: bool,
}

struct LogFile {
    path: PathBuf,
    /// Device and inode of the open file.
    id: (u64, u64),
    checked: Instant,
    /// Whether the last attempt to reopen it failed.
    is_failing: bool,
}

impl Sink {
    /// A sink that is neither checked nor reopened.
    pub(in crate::telemetry) fn new(
        log: &'static str,
        output: impl Write + Send + 'static,
    ) -> Self {
        Self {
            log,
            output: Box::new(output),
            file: None,
            is_torn: false,
            is_failing: false,
        }
    }

    /// Standard output, without the buffer of [`io::stdout`], since lines come in buffers.
    pub(in crate::telemetry) fn stdout(log: &'static str) -> io::Result<Self> {
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::new(log, File::from(output)))
    }

    /// Standard error.
    pub(in crate::telemetry) fn stderr(log: &'static str) -> io::Result<Self> {
        let output = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::new(log, File::from(output)))
    }

    /// Opens a file to append to.
    pub(in crate::telemetry) fn file(log: &'static str, path: &Path) -> io::Result<Self> {
        let (output, id) = open(path)?;
        Ok(Self {
            file: Some(LogFile {
                path: path.to_owned(),
                id,
                checked: Instant::now(),
                is_failing: false,
            }),
            ..Self::new(log, output)
        })
    }

    /// Reports whether the last write failed.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Reopens the file, if this is one. Keeps the open one if that fails.
    pub(super) fn reopen(&mut self) {
        let Some(file) = &mut self.file else { return };
        match open(&file.path) {
            Ok((output, id)) => {
                self.output = Box::new(output);
                self.is_torn = false;
                file.id = id;
                file.is_failing = false;
            }
            Err(error) if file.is_failing => {
                tracing::debug!(
                    "the {} is still written to the previous file: {error}",
                    self.log
                );
            }
            Err(error) => {
                tracing::warn!(
                    "the {} is still written to the previous file: {error}",
                    self.log
                );
                file.is_failing = true;
            }
        }
    }

    /// Writes `text`, which ends with a line. Returns how many bytes were written.
    pub(super) fn write(&mut self, text: &[u8]) -> usize {
        self.reopen_if_replaced();
        let mut written = 0;
        let result = self.write_from(text, &mut written);
        match result {
            Ok(()) if self.is_failing => tracing::info!("the {} is written again", self.log),
            Err(error) if !self.is_failing => {
                tracing::warn!("cannot write the {}, lines are dropped: {error}", self.log);
            }
            _ => {}
        }
        self.is_failing = written < text.len();
        written
    }

    fn write_from(&mut self, text: &[u8], written: &mut usize) -> io::Result<()> {
        if self.is_torn {
            self.output.write_all(b"\n")?;
            self.is_torn = false;
        }
        while *written < text.len() {
            match self.output.write(&text[*written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    *written += bytes;
                    self.is_torn = text.get(*written - 1) != Some(&b'\n');
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.flush()
    }

    /// Reopens the file if there is another one, or none, at its path.
    fn reopen_if_replaced(&mut self) {
        let Some(file) = &mut self.file else { return };
        if file.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        file.checked = Instant::now();
        let current = std::fs::metadata(&file.path);
        if current.map(|current| id(&current)).ok() != Some(file.id) {
            self.reopen();
        }
    }
}

fn open(path: &Path) -> io::Result<(File, (u64, u64))> {
    let named = |error: io::Error| {
        let text = format!("cannot open {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    };
    let options = OpenOptions::new().append(true).create(true).open(path);
    let file = options.map_err(named)?;
    let metadata = file.metadata().map_err(named)?;
    Ok((file, id(&metadata)))
}

fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes as many bytes per write as it is given; 0 is an error.
    struct Faulty {
        takes: VecDeque<usize>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Faulty {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let takes = self.takes.pop_front().unwrap_or(usize::MAX);
            if takes == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            let taken = &bytes[..takes.min(bytes.len())];
            self.written.lock().unwrap().extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_after_a_failed_write_begins_a_line() {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let mut sink = Sink::new(
            "log",
            Faulty {
                takes: [3, 6, 0, 0].into(),
                written: written.clone(),
            },
        );
        assert_eq!(sink.write(b"one\ntwo\nthree\n"), 9);
        assert_eq!(sink.write(b"four\n"), 0);
        assert_eq!(sink.write(b"five\n"), 5);
        assert_eq!(*written.lock().unwrap(), b"one\ntwo\nt\nfive\n");
    }

    #[test]
    fn names_the_file_that_cannot_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/access.log");
        let error = Sink::file("log", &path).err().unwrap().to_string();
        assert!(error.contains("missing/access.log"), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn appends_to_a_file_and_reopens_it_when_moved_or_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        fs::write(&path, "before\n").unwrap();
        let mut sink = Sink::file("log", &path).unwrap();
        let mut write = |text: &str, is_due: bool| {
            if let Some(file) = sink.file.as_mut().filter(|_| is_due) {
                file.checked -= CHECK_INTERVAL;
            }
            sink.write(text.as_bytes());
        };
        write("one\n", true);
        fs::rename(&path, &moved).unwrap();
        write("two\n", false);
        write("three\n", true);
        assert_eq!(fs::read_to_string(&moved).unwrap(), "before\none\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        write("four\n", true);
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
    }

    #[test]
    fn keeps_the_open_file_while_it_cannot_be_reopened() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::create_dir(&old).unwrap();
        let mut sink = Sink::file("log", &old.join("log")).unwrap();
        fs::rename(&old, &new).unwrap();
        sink.reopen();
        assert_eq!(sink.write(b"one\n"), 4);
        assert_eq!(fs::read_to_string(new.join("log")).unwrap(), "one\n");
        fs::create_dir(&old).unwrap();
        sink.reopen();
        assert_eq!(sink.write(b"two\n"), 4);
        assert_eq!(fs::read_to_string(old.join("log")).unwrap(), "two\n");
    }
}
