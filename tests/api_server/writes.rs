//! Write requests: create, replace, merge patch of a status, delete; rejected with a conflict for
//! another resourceVersion.

use serde_json::{Value, json};

use super::http::{ParsedRequest, failure};
use super::{Api, State, text};

impl Api {
    pub(super) fn write(
        &self,
        method: &str,
        asked: &ParsedRequest<'_>,
        body: &[u8],
    ) -> (u16, Value) {
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        self.change(|state| match (method, asked.name) {
            ("POST", None) => state.create(asked, object),
            ("PUT", Some(_)) => state.replace(asked, object),
            ("PATCH", Some(_)) if asked.is_status => state.patch_status(asked, &object),
            ("DELETE", Some(_)) => state.remove(asked),
            _ => (405, failure(405)),
        })
    }
}

impl State {
    fn create(&mut self, asked: &ParsedRequest<'_>, mut object: Value) -> (u16, Value) {
        object["kind"] = asked.kind.name.into();
        object["apiVersion"] = asked.kind.version.into();
        if asked.kind.name == "TokenReview" {
            let known = self.reviews.get(&text(&object["spec"]["token"]));
            let invalid = || json!({"authenticated": false, "error": "invalid bearer token"});
            object["status"] = known.cloned().unwrap_or_else(invalid);
            return (201, object);
        }
        if let Some(namespace) = asked.namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        let name = text(&object["metadata"]["name"]);
        let asked = ParsedRequest {
            name: Some(&name),
            ..*asked
        };
        if self.objects.contains_key(&asked.key()) {
            return (409, failure(409));
        }
        self.put(object);
        (201, self.objects[&asked.key()].clone())
    }

    fn replace(&mut self, asked: &ParsedRequest<'_>, mut object: Value) -> (u16, Value) {
        if let Err(refused) = self.check_version(asked, &object) {
            return refused;
        }
        object["kind"] = asked.kind.name.into();
        object["apiVersion"] = asked.kind.version.into();
        self.put(object);
        (200, self.objects[&asked.key()].clone())
    }

    fn patch_status(&mut self, asked: &ParsedRequest<'_>, patch: &Value) -> (u16, Value) {
        let mut object = match self.check_version(asked, patch) {
            Ok(object) => object,
            Err(refused) => return refused,
        };
        merge(&mut object["status"], &patch["status"]);
        if let (Some(dropped), Some(status)) = (&self.dropped, object["status"].as_object_mut()) {
            status.remove(dropped);
        }
        self.put(object);
        (200, self.objects[&asked.key()].clone())
    }

    fn remove(&mut self, asked: &ParsedRequest<'_>) -> (u16, Value) {
        let (kind, namespace, name) = asked.key();
        let Some(object) = self.objects.get(&asked.key()).cloned() else {
            return (404, failure(404));
        };
        self.delete(&kind, &namespace, &name);
        (200, object)
    }

    /// The stored object; a conflict if the request contains another resourceVersion.
    fn check_version(
        &self,
        asked: &ParsedRequest<'_>,
        written: &Value,
    ) -> Result<Value, (u16, Value)> {
        let Some(object) = self.objects.get(&asked.key()) else {
            return Err((404, failure(404)));
        };
        let version = &written["metadata"]["resourceVersion"];
        if version.is_null() || *version == object["metadata"]["resourceVersion"] {
            return Ok(object.clone());
        }
        Err((409, failure(409)))
    }
}

/// A merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    for (name, value) in members {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => {
                target.remove(name);
            }
            _ => merge(&mut target[name], value),
        }
    }
}
