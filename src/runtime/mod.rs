//! What the threads of the process share: clocks, values per worker, shutdown, back-off, file descriptors. Must not
//! know the API of Kubernetes or HTTP.

pub mod after_work;
pub mod background;
pub mod backoff;
pub mod clock;
pub mod descriptors;
pub mod monotonic;
pub mod optional;
pub mod per_worker;
pub mod shutdown;
