//! A file as of its last read: its documents, each admitted once while its text is the same. Must not know other files.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use imbl::OrdMap;

use super::locate::{self, Lines};
use super::parse::{self, SyntaxError};
use crate::api::{self, Admission, ObjectRef};

/// Maximum number of documents in a file.
const MAX_DOCUMENTS: usize = 100_000;
/// A file that has not changed for this long before it was read has another time of change after the next change: the
/// resolution of these times in file systems is lower.
const STAMP_RESOLUTION: Duration = Duration::from_secs(2);

/// Files by user-visible path. Versions share what is equal.
pub(super) type Files = OrdMap<Arc<Path>, Arc<Entry>>;

/// A file as of its last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) digest: u64,
    /// Identifies this version of the content without reading it; `None` if that is not certain.
    stamp: Option<Stamp>,
    pub(super) documents: Box<[Document]>,
    /// Why the last read failed. `documents` are then those of the previous read.
    pub(super) failure: Option<String>,
    /// While the file is broken: its objects when it was last valid. They stay in service.
    pub(super) retained: BTreeSet<ObjectRef>,
}

/// Two reads are equal if they are the same read.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Entry {}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of the last change of content or metadata.
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the stamp if every later change gives the file another one.
    fn if_certain(metadata: &Metadata, read_at: SystemTime) -> Option<Self> {
        let stamp = Self::of(metadata);
        let (seconds, nanoseconds) = stamp.changed;
        let seconds = Duration::from_secs(u64::try_from(seconds).ok()?);
        let changed = UNIX_EPOCH + seconds + Duration::from_nanos(u64::try_from(nanoseconds).ok()?);
        (changed + STAMP_RESOLUTION < read_at).then_some(stamp)
    }
}

/// A document of a file.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) line: usize,
    digest: u64,
    pub(super) outcome: Result<Admissions, Box<SyntaxError>>,
    /// Lines of the fields that have findings, from 1 at `line`.
    pub(super) fields: Option<Arc<Lines>>,
}

/// The objects of a document. Nearly always there is one, stored inline.
#[derive(Clone, Debug)]
pub(super) enum Admissions {
    One(Admission),
    Many(Arc<[Admission]>),
}

impl From<Vec<Admission>> for Admissions {
    fn from(mut all: Vec<Admission>) -> Self {
        match all.pop() {
            Some(only) if all.is_empty() => Self::One(only),
            last => Self::Many(all.into_iter().chain(last).collect()),
        }
    }
}

impl Deref for Admissions {
    type Target = [Admission];

    fn deref(&self) -> &[Admission] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Many(all) => all,
        }
    }
}

impl Entry {
    /// Reports whether a part of the file cannot be read.
    pub(super) fn is_broken(&self) -> bool {
        let mut documents = self.documents.iter();
        self.failure.is_some() || documents.any(|document| document.outcome.is_err())
    }

    /// Reports whether the objects of the last valid version stay in service.
    pub(super) fn keeps_previous(&self) -> bool {
        !self.retained.is_empty() && self.is_broken()
    }

    /// Returns all admitted objects, each with the index of its document.
    pub(super) fn admissions(&self) -> impl Iterator<Item = (usize, &Admission)> {
        let documents = self.documents.iter().enumerate();
        documents.flat_map(|(index, document)| {
            let admissions = document.outcome.iter().flat_map(|all| all.iter());
            admissions.map(move |admission| (index, admission))
        })
    }

    /// Returns the objects that this file may define or keep in service.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        let defined = self.admissions();
        let defined = defined.filter_map(|(_, admission)| admission.id.as_ref());
        defined.chain(&self.retained)
    }

    /// Reports whether the file is certainly the same as when it was read.
    pub(super) fn is_unchanged(&self, real: &Path) -> bool {
        let now = || fs::metadata(real).ok().map(|metadata| Stamp::of(&metadata));
        self.failure.is_none() && self.stamp.is_some() && self.stamp == now()
    }
}

/// Reads a file and reuses unchanged documents. `None` if the file was deleted.
pub(super) fn read_entry(
    path: &Path,
    real: &Path,
    previous: Option<&Arc<Entry>>,
) -> Option<Arc<Entry>> {
    let failed = |failure: String| {
        let known = previous.map(|previous| Entry::clone(previous));
        Some(Arc::new(Entry {
            digest: 0,
            stamp: None,
            failure: Some(failure),
            retained: retained(previous),
            ..known.unwrap_or_default()
        }))
    };
    let (text, stamp) = match read(real) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return failed(format!("cannot be read: {error}")),
    };
    let digest = parse::digest(text.as_bytes());
    if let Some(previous) =
        previous.filter(|previous| previous.failure.is_none() && previous.digest == digest)
    {
        return Some(match previous.stamp == stamp {
            true => Arc::clone(previous),
            false => Arc::new(Entry {
                stamp,
                ..Entry::clone(previous)
            }),
        });
    }
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let known = previous
        .into_iter()
        .flat_map(|previous| &previous.documents);
    let known: HashMap<u64, &Document> =
        known.map(|document| (document.digest, document)).collect();
    let sources = if is_json {
        vec![parse::DocumentText {
            line: 1,
            text: text.strip_prefix('\u{feff}').unwrap_or(&text),
        }]
    } else {
        parse::documents(&text)
    };
    if sources.len() > MAX_DOCUMENTS {
        return failed(format!("it has more than {MAX_DOCUMENTS} documents"));
    }
    let documents = sources
        .into_iter()
        .map(|source| read_document(source, is_json, &known))
        .collect();
    let mut entry = Entry {
        digest,
        stamp,
        documents,
        failure: None,
        retained: BTreeSet::new(),
    };
    if entry.is_broken() {
        entry.retained = retained(previous);
    }
    Some(Arc::new(entry))
}

/// Returns the objects of a file when it was last valid.
fn retained(previous: Option<&Arc<Entry>>) -> BTreeSet<ObjectRef> {
    match previous {
        Some(previous) if previous.is_broken() => previous.retained.clone(),
        Some(previous) => previous.objects().cloned().collect(),
        None => BTreeSet::new(),
    }
}

fn read_document(
    source: parse::DocumentText<'_>,
    is_json: bool,
    known: &HashMap<u64, &Document>,
) -> Document {
    let digest = source.digest();
    if let Some(document) = known.get(&digest) {
        return Document {
            line: source.line,
            ..Document::clone(document)
        };
    }
    let admit = |item: parse::Item| api::admit_at(&item.path, item.value);
    let outcome = parse::parse(source, is_json);
    let outcome = outcome.map(|items| items.into_iter().map(admit).collect::<Vec<_>>());
    let outcome = outcome.map(Admissions::from).map_err(Box::new);
    let admissions = outcome.iter().flat_map(|all| all.iter());
    let findings = admissions.flat_map(|admission| &admission.findings);
    let fields: BTreeSet<&str> = findings
        .map(|finding| &*finding.field)
        .filter(|field| !field.is_empty())
        .collect();
    let fields = (!fields.is_empty()).then(|| Arc::new(locate::lines(source.text, &fields)));
    Document {
        line: source.line,
        digest,
        outcome,
        fields,
    }
}

/// Returns the text of a file, and its stamp if that is certain.
pub(super) fn read(path: &Path) -> io::Result<(String, Option<Stamp>)> {
    let read_at = SystemTime::now();
    // The file may have been replaced since the scan, and opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    let file = File::open(path)?;
    let stamp = Stamp::if_certain(&file.metadata()?, read_at);
    let limit = parse::MAX_FILE;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", limit >> 20),
        ));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?;
    Ok((text, stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_of_a_recent_change_is_not_certain() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let now = SystemTime::now();
        assert_eq!(Stamp::if_certain(&metadata, now), None);
        let later = now + 2 * STAMP_RESOLUTION;
        assert_eq!(
            Stamp::if_certain(&metadata, later),
            Some(Stamp::of(&metadata))
        );
    }
}
