//! The annotation that moves the matches of a route before or after those of other routes.

use std::ops::RangeInclusive;

use crate::api::ObjectMeta;
use crate::ir::ObjectRef;
use crate::status::Note;

/// Name of the annotation. Its value is an integer.
const ANNOTATION: &str = "portcullis.dev/priority";
/// Permitted priorities.
const PERMITTED: RangeInclusive<i16> = -1000..=1000;

/// Returns the priority of a route, 0 without the annotation. The error continues a sentence that begins with its name.
pub(super) fn read(meta: &ObjectMeta) -> Result<i16, String> {
    let Some(value) = meta.annotations.get(ANNOTATION) else {
        return Ok(0);
    };
    let priority = value.parse().ok();
    let priority = priority.filter(|priority| PERMITTED.contains(priority));
    priority.ok_or_else(|| {
        format!(
            "annotation {ANNOTATION} is {value:?}, which is ignored (priority 0); set an integer from -1000 to 1000"
        )
    })
}

/// Returns a note on an invalid priority.
pub(super) fn note(meta: &ObjectMeta, object: &ObjectRef) -> Option<Note> {
    let message = read(meta).err()?;
    let object = object.clone();
    Some(Note { object, message })
}
