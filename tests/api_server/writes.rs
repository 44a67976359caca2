//! Write requests: create, replace, merge patch of a status or an Event, delete. Another resourceVersion than
//! the stored one is a conflict.

use serde_json::{Value, json};

use super::http::{ParsedRequest, failure};
use super::kinds::KINDS;
use super::{Api, Fault, State, text};

impl Api {
    pub(super) fn write(
        &self,
        method: &str,
        request: &ParsedRequest<'_>,
        body: &[u8],
    ) -> (u16, Value) {
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        self.change(|state| match (method, request.name) {
            ("POST", None) => state.create(request, object),
            ("PUT", Some(_)) => state.replace(request, object),
            ("PATCH", Some(_)) if request.is_status => state.patch_status(request, &object),
            ("PATCH", Some(_)) if request.kind.name == "Event" => state.patch(request, &object),
            ("DELETE", Some(_)) => state.remove(request),
            _ => (405, failure(405)),
        })
    }
}

impl State {
    fn create(&mut self, request: &ParsedRequest<'_>, mut object: Value) -> (u16, Value) {
        object["kind"] = request.kind.name.into();
        object["apiVersion"] = request.kind.version.into();
        if request.kind.name == "TokenReview" {
            let known = self.reviews.get(&text(&object["spec"]["token"]));
            let invalid = || json!({"authenticated": false, "error": "invalid bearer token"});
            object["status"] = known.cloned().unwrap_or_else(invalid);
            return (201, object);
        }
        if request.kind.name == "SelfSubjectAccessReview" {
            let allowed = self.permits(&object["spec"]["resourceAttributes"]);
            object["status"] = json!({"allowed": allowed});
            return (201, object);
        }
        if let Some(namespace) = request.namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        let name = text(&object["metadata"]["name"]);
        let request = ParsedRequest {
            name: Some(&name),
            ..*request
        };
        if self.objects.contains_key(&request.key()) {
            return (409, failure(409));
        }
        self.put(object);
        (201, self.objects[&request.key()].clone())
    }

    /// Reports whether requests are permitted: those that fail with 403 are not.
    fn permits(&self, asked: &Value) -> bool {
        let (namespace, resource) = (text(&asked["namespace"]), text(&asked["resource"]));
        let Some(kind) = KINDS.iter().find(|kind| kind.plural == resource) else {
            return false;
        };
        let of_watches = self.watch_faults.get(kind.name);
        let of_watches = of_watches.filter(|_| asked["verb"] == "watch");
        let fault = of_watches.or(self.faults.get(kind.name));
        let permitted = self.permitted.as_ref().filter(|_| kind.namespaced);
        permitted.is_none_or(|permitted| permitted.contains(&namespace))
            && !matches!(fault, Some(Fault::Status(403)))
    }

    fn replace(&mut self, request: &ParsedRequest<'_>, mut object: Value) -> (u16, Value) {
        if let Err(refused) = self.check_version(request, &object) {
            return refused;
        }
        object["kind"] = request.kind.name.into();
        object["apiVersion"] = request.kind.version.into();
        self.put(object);
        (200, self.objects[&request.key()].clone())
    }

    fn patch_status(&mut self, request: &ParsedRequest<'_>, patch: &Value) -> (u16, Value) {
        let mut object = match self.check_version(request, patch) {
            Ok(object) => object,
            Err(refused) => return refused,
        };
        merge(&mut object["status"], &patch["status"]);
        if let (Some(dropped), Some(status)) = (&self.dropped, object["status"].as_object_mut()) {
            status.remove(dropped);
        }
        self.put(object);
        (200, self.objects[&request.key()].clone())
    }

    fn patch(&mut self, request: &ParsedRequest<'_>, patch: &Value) -> (u16, Value) {
        let Some(mut object) = self.objects.get(&request.key()).cloned() else {
            return (404, failure(404));
        };
        merge(&mut object, patch);
        self.put(object);
        (200, self.objects[&request.key()].clone())
    }

    fn remove(&mut self, request: &ParsedRequest<'_>) -> (u16, Value) {
        let (kind, namespace, name) = request.key();
        let Some(object) = self.objects.get(&request.key()).cloned() else {
            return (404, failure(404));
        };
        self.delete(&kind, &namespace, &name);
        (200, object)
    }

    /// Returns the stored object; a conflict if the request contains another resourceVersion.
    fn check_version(
        &self,
        request: &ParsedRequest<'_>,
        written: &Value,
    ) -> Result<Value, (u16, Value)> {
        let Some(object) = self.objects.get(&request.key()) else {
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
