//! Texts of ConfigMaps that responses are made of. Must not know which objects refer to them.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::core::ConfigMap;
use crate::ir::ObjectRef;

use super::input::Input;

/// Maximum length of a text in bytes: each pod keeps it.
const MAX_TEXT: usize = 64 * 1024;

/// Returns the value of a key of a ConfigMap. It shares the memory of the object.
///
/// # Errors
/// Why it cannot be used: a sentence about the ConfigMap.
pub(super) fn text(input: &Input<'_>, name: &ObjectRef, key: &str) -> Result<Bytes, String> {
    let map = input.find::<ConfigMap>(name);
    let map = map.ok_or_else(|| format!("{name} {}", input.absence(name)))?;
    let text = map.data.get(key);
    let text = text.ok_or_else(|| format!("{name} has no {key} in data"))?;
    match text.len() {
        0..=MAX_TEXT => Ok(Bytes::from_owner(Value {
            map: map.clone(),
            key: key.to_owned(),
        })),
        length => Err(format!(
            "{name} has {length} bytes in {key}, of at most {MAX_TEXT}"
        )),
    }
}

/// A value of a ConfigMap.
struct Value {
    map: Arc<ConfigMap>,
    key: String,
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        let text = self.map.data.get(&self.key);
        text.map_or(&[], |text| text.as_bytes())
    }
}
