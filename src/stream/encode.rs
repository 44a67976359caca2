//! Encodes objects and changes as lines of the stream.

use bytes::{BufMut, Bytes, BytesMut};

use crate::api::Object;
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;
use crate::translate::closure::ObjectChange;
use crate::wire::{Deleted, Update};

/// Target size of a chunk in bytes.
const CHUNK: usize = 64 << 10;

/// Encodes a change.
pub(super) fn change(change: &ObjectChange) -> Bytes {
    let mut lines = BytesMut::new();
    match change {
        ObjectChange::Put(object) => put(&mut lines, object),
        ObjectChange::Delete(name) => line(&mut lines, &delete(name)),
    }
    lines.freeze()
}

/// Encodes a single update.
pub(super) fn update(update: &Update) -> Bytes {
    let mut lines = BytesMut::new();
    line(&mut lines, update);
    lines.freeze()
}

/// Encodes all objects in chunks, lazily.
pub(super) fn full_state(objects: &Snapshot) -> impl Iterator<Item = Bytes> {
    let mut objects = objects.objects();
    std::iter::from_fn(move || {
        let mut lines = BytesMut::new();
        while lines.len() < CHUNK
            && let Some(object) = objects.next()
        {
            put(&mut lines, &object);
        }
        (!lines.is_empty()).then(|| lines.freeze())
    })
}

fn put(lines: &mut BytesMut, object: &Object) {
    match object.to_value() {
        Ok(value) => line(lines, &Update::Put(value)),
        Err(error) => {
            let name = &object.meta().name;
            tracing::error!("{} {name} cannot be encoded: {error}", object.kind().kind);
        }
    }
}

fn delete(name: &ObjectRef) -> Update {
    Update::Delete(Deleted {
        group: name.group.to_string(),
        kind: name.kind.to_string(),
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
    })
}

fn line(lines: &mut BytesMut, update: &Update) {
    let before = lines.len();
    let mut writer = lines.writer();
    if let Err(error) = serde_json::to_writer(&mut writer, update) {
        tracing::error!("a line cannot be encoded: {error}");
        return lines.truncate(before);
    }
    lines.put_u8(b'\n');
}
