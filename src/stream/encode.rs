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

/// Encodes [`Update::Put`] without its [`serde_json::Value`].
fn put(lines: &mut BytesMut, object: &Object) {
    let before = lines.len();
    lines.put_slice(b"{\"put\":");
    if let Err(error) = object.write_json(lines.writer()) {
        let name = &object.meta().name;
        tracing::error!("{} {name} cannot be encoded: {error}", object.kind().kind);
        return lines.truncate(before);
    }
    lines.put_slice(b"}\n");
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Kind;

    #[test]
    fn object_is_encoded_as_an_update() {
        let objects = [
            (
                "v1",
                "Secret",
                json!({"type": "Opaque", "data": {"a": "Yg=="}}),
            ),
            (
                "gateway.networking.k8s.io/v1",
                "HTTPRoute",
                json!({"spec": {"hostnames": ["a.test"], "rules": [{}]}}),
            ),
        ];
        for (version, kind, mut object) in objects {
            object["metadata"] = json!({"namespace": "ns", "name": "a \"quoted\" name"});
            let kind = Kind::find(version, kind).unwrap();
            let object = kind.decode(&object).unwrap();
            let line = change(&ObjectChange::Put(object.clone()));
            let (last, text) = line.split_last().unwrap();
            assert_eq!(*last, b'\n');
            assert!(!text.contains(&b'\n') && !text.windows(4).any(|it| it == b"null"));
            let update: Update = serde_json::from_slice(text).unwrap();
            assert_eq!(update, Update::Put(object.to_value().unwrap()));
        }
    }
}
