//! A file as of its last read: its documents, each admitted once while its text is the same. Must not know other files.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::string::FromUtf8Error;
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
    /// What only a broken file has. Boxed, since few are.
    broken: Option<Box<Broken>>,
}

/// The state of a file of which a part cannot be read.
#[derive(Clone, Debug, Default)]
struct Broken {
    /// Why the last read failed. The documents are then those of the previous read.
    failure: Option<Box<str>>,
    /// Its objects when it was last valid, or else when it was first read. They stay in service.
    retained: BTreeSet<ObjectRef>,
}

/// Two reads are equal if they are the same read.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Entry {}

/// A digest of what changes when a file is written or replaced: device, inode, size, and the time of the last change of
/// content or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
        let changed = [seconds.to_ne_bytes(), nanoseconds.to_ne_bytes()];
        let file = [metadata.dev(), metadata.ino(), metadata.size()].map(u64::to_ne_bytes);
        Self(parse::digest(&[file.concat(), changed.concat()].concat()))
    }

    /// Returns the stamp if every later change gives the file another one.
    fn if_certain(metadata: &Metadata, read_at: SystemTime) -> Option<Self> {
        let seconds = Duration::from_secs(u64::try_from(metadata.ctime()).ok()?);
        let nanoseconds = Duration::from_nanos(u64::try_from(metadata.ctime_nsec()).ok()?);
        let changed = UNIX_EPOCH + seconds + nanoseconds;
        (changed + STAMP_RESOLUTION < read_at).then(|| Self::of(metadata))
    }
}

/// A document of a file.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) line: usize,
    digest: u64,
    pub(super) outcome: Result<Admissions, Box<SyntaxError>>,
}

/// The objects of a document. Nearly always there is one without findings, stored inline.
#[derive(Clone, Debug)]
pub(super) enum Admissions {
    One(Admission),
    Other(Arc<Others>),
}

#[derive(Debug)]
pub(super) struct Others {
    all: Vec<Admission>,
    places: Places,
}

/// Lines within a document, from 1 at its own line.
#[derive(Debug, Default)]
struct Places {
    /// The line of each object of a list; none in a document that is an object.
    items: Box<[usize]>,
    /// Lines of the fields that have findings.
    fields: Option<Lines>,
}

/// The place of an object in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemPosition {
    /// Index of its document.
    pub(super) document: usize,
    /// Index of the object in the document.
    pub(super) item: usize,
}

impl Admissions {
    fn new(mut all: Vec<Admission>, places: Places) -> Self {
        let is_plain = places.items.is_empty() && places.fields.is_none();
        match all.pop() {
            Some(only) if all.is_empty() && is_plain => Self::One(only),
            last => {
                all.extend(last);
                Self::Other(Arc::new(Others { all, places }))
            }
        }
    }

    /// Returns the line of an object, from 1 at the line of the document.
    pub(super) fn line(&self, item: usize) -> usize {
        let line = match self {
            Self::One(_) => None,
            Self::Other(others) => others.places.items.get(item),
        };
        line.copied().unwrap_or(1)
    }

    /// Returns the lines of the fields that have findings, if there are any.
    pub(super) fn fields(&self) -> Option<&Lines> {
        match self {
            Self::One(_) => None,
            Self::Other(others) => others.places.fields.as_ref(),
        }
    }
}

impl Deref for Admissions {
    type Target = [Admission];

    fn deref(&self) -> &[Admission] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Other(others) => &others.all,
        }
    }
}

impl Entry {
    /// Reports whether a part of the file cannot be read.
    pub(super) fn is_broken(&self) -> bool {
        let mut documents = self.documents.iter();
        self.failure().is_some() || documents.any(|document| document.outcome.is_err())
    }

    /// Returns why the last read failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.broken.as_ref()?.failure.as_deref()
    }

    /// Returns the objects that a broken file had when it was last valid, or else when it was first read.
    pub(super) fn retained(&self) -> &BTreeSet<ObjectRef> {
        static NONE: BTreeSet<ObjectRef> = BTreeSet::new();
        self.broken
            .as_ref()
            .map_or(&NONE, |broken| &broken.retained)
    }

    /// Reports whether the objects of the last valid version stay in service.
    pub(super) fn keeps_previous(&self) -> bool {
        !self.retained().is_empty() && self.is_broken()
    }

    /// Reports whether an object may be in a part of the file that cannot be read: in a text that has its kind and its name, or
    /// in all of it.
    pub(super) fn may_define(&self, id: &ObjectRef) -> bool {
        let errors = self.documents.iter();
        let errors = errors.filter_map(|document| document.outcome.as_ref().err());
        let mut texts = errors.filter_map(|error| error.text.as_deref());
        let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '.';
        let has = |text: &str, name: &str| {
            let mut words = text.split(|it: char| !is_of_name(it));
            words.any(|word| word == name)
        };
        self.failure().is_some() || texts.any(|text| has(text, &id.kind) && has(text, &id.name))
    }

    /// Returns all admitted objects, each with its place.
    pub(super) fn admissions(&self) -> impl Iterator<Item = (ItemPosition, &Admission)> {
        let documents = self.documents.iter().enumerate();
        documents.flat_map(|(index, document)| {
            let admissions = document.outcome.iter().flat_map(|all| all.iter());
            admissions.enumerate().map(move |(item, admission)| {
                let place = ItemPosition {
                    document: index,
                    item,
                };
                (place, admission)
            })
        })
    }

    /// Returns the objects that this file defines, or keeps in service.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        let is_read = !self.keeps_previous();
        let admissions = self.admissions().filter(move |_| is_read);
        let defined = admissions.filter_map(|(_, admission)| defined(admission));
        defined.chain(self.retained())
    }

    /// Reports whether the file is certainly the same as when it was read.
    pub(super) fn is_unchanged(&self, real: &Path) -> bool {
        let now = || fs::metadata(real).ok().map(|metadata| Stamp::of(&metadata));
        self.failure().is_none() && self.stamp.is_some() && self.stamp == now()
    }
}

/// Returns the object that an admission defines, validly or not.
pub(super) fn defined(admission: &Admission) -> Option<&ObjectRef> {
    let is_defined = admission.object.is_some() || admission.has_errors();
    admission.id.as_ref().filter(|_| is_defined)
}

/// Reads a file and reuses unchanged documents. `None` if the file was deleted.
pub(super) fn read_entry(
    path: &Path,
    real: &Path,
    previous: Option<&Arc<Entry>>,
) -> Option<Arc<Entry>> {
    Some(match read(real) {
        Ok((text, stamp)) => entry_of(path, (&text, stamp), previous),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => failed(previous, format!("cannot be read: {error}")),
    })
}

/// Returns the state of a file that could not be read: its documents are those of the previous read.
fn failed(previous: Option<&Arc<Entry>>, failure: String) -> Arc<Entry> {
    let known = previous.map(|previous| Entry::clone(previous));
    Arc::new(Entry {
        digest: 0,
        stamp: None,
        broken: Some(Box::new(Broken {
            failure: Some(failure.into()),
            retained: retained(previous),
        })),
        ..known.unwrap_or_default()
    })
}

/// Parses the text of a file, which is JSON if its name says so, and reuses unchanged documents.
pub(super) fn entry_of(
    path: &Path,
    (text, stamp): (&str, Option<Stamp>),
    previous: Option<&Arc<Entry>>,
) -> Arc<Entry> {
    let digest = parse::digest(text.as_bytes());
    if let Some(previous) =
        previous.filter(|previous| previous.failure().is_none() && previous.digest == digest)
    {
        return match previous.stamp == stamp {
            true => Arc::clone(previous),
            false => Arc::new(Entry {
                stamp,
                ..Entry::clone(previous)
            }),
        };
    }
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let known = previous
        .into_iter()
        .flat_map(|previous| &previous.documents);
    let known: HashMap<u64, &Document> =
        known.map(|document| (document.digest, document)).collect();
    let sources = match is_json {
        true => parse::json_document(text),
        false => parse::documents(text),
    };
    if sources.len() > MAX_DOCUMENTS {
        return failed(
            previous,
            format!("it has more than {MAX_DOCUMENTS} documents"),
        );
    }
    let documents = sources
        .into_iter()
        .map(|source| read_document(source, is_json, &known))
        .collect();
    let mut entry = Entry {
        digest,
        stamp,
        documents,
        broken: None,
    };
    if entry.is_broken() {
        entry.broken = Some(Box::new(Broken {
            failure: None,
            retained: retained(previous),
        }));
    }
    Arc::new(entry)
}

/// Returns the objects of a file when it was last valid, or else those that could be read when it was first read.
fn retained(previous: Option<&Arc<Entry>>) -> BTreeSet<ObjectRef> {
    let objects = previous.into_iter().flat_map(|previous| previous.objects());
    objects.cloned().collect()
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
    let admit = |item: parse::Item| (api::admit_at(&item.path, item.value), item.path);
    let outcome = parse::parse(source, is_json);
    let outcome = outcome.map(|items| {
        let (all, paths): (Vec<_>, Vec<_>) = items.into_iter().map(admit).unzip();
        let places = places(source.text, &all, &paths);
        Admissions::new(all, places)
    });
    Document {
        line: source.line,
        digest,
        outcome: outcome.map_err(Box::new),
    }
}

/// Returns the lines of the objects of a list, which are at these paths, and of the fields that have findings.
fn places(text: &str, admissions: &[Admission], paths: &[String]) -> Places {
    let findings = admissions.iter().flat_map(|admission| &admission.findings);
    let fields = findings.map(|finding| &*finding.field);
    let fields: BTreeSet<&str> = fields.filter(|field| !field.is_empty()).collect();
    let items = paths.iter().map(|path| &**path);
    let items: Vec<&str> = items.filter(|path| !path.is_empty()).collect();
    if fields.is_empty() && items.is_empty() {
        return Places::default();
    }
    let wanted = fields.iter().chain(&items).copied().collect();
    let mut lines = locate::lines(text, &wanted);
    let line = |path: &&str| lines.get(*path).copied().unwrap_or(1);
    let items = items.iter().map(line).collect();
    lines.retain(|field, _| fields.contains(&**field));
    Places {
        items,
        fields: (!fields.is_empty()).then_some(lines),
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
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, not_utf8(&error)))?;
    Ok((text, stamp))
}

/// Returns what the text of a file is instead of UTF-8, or else where it is not.
fn not_utf8(error: &FromUtf8Error) -> String {
    let bytes = error.as_bytes();
    // The byte order marks of UTF-16, in which some shells of Windows write.
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return "it is UTF-16, not UTF-8".to_owned();
    }
    let valid = &bytes[..error.utf8_error().valid_up_to()];
    let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
    format!("it is not UTF-8 in line {line}")
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
