//! Modules of `src/upstream`, under the paths that they have in the program.

pub(crate) mod http1;
pub(crate) mod outgoing {
    pub(crate) use portcullis::upstream::{HeadLimits, Outgoing};
}

pub(crate) use portcullis::upstream::SendError;
