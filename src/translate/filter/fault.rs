//! The fault of a filter that cannot be applied as written.

use crate::translate::reason::{Fault, Reason};

pub(super) fn unsupported(field: &str, message: &str) -> Fault {
    Fault::new(Reason::UnsupportedValue, format!("{field}: {message}"))
}
