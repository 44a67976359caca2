//! What is wrong, as one type with its severity, cause, effect and remedy. `check`, the log, `status`, the page, `/api/v1/`,
//! metrics and exit codes render it. Must not know how it is found.

mod kind;
mod location;
mod order;
mod record;
mod severity;

pub use kind::Kind;
pub use location::{FileLocation, plain};
pub use order::order;
pub use record::{Finding, Source, Symptom};
pub use severity::Severity;
