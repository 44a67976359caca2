//! Portcullis: a Kubernetes Gateway API data plane.
//!
//! Configuration flows one way: a provider publishes an immutable snapshot of Gateway API objects, which is translated
//! into the intermediate representation (IR) and a status report. The table indexes the IR for matching, and the proxy
//! serves each request from the table that is current when it arrives. `tests/layering/layers.rs` pins which module may
//! import which.
//!
//! | Module | What it is |
//! |---|---|
//! | [`api`] | types of the watched kinds, their defaults and validation |
//! | [`snapshot`] | all objects at one time |
//! | [`provider`] | where objects come from: a folder, a cluster, a controller's stream |
//! | [`translate`] | from a snapshot to the IR and the status report |
//! | [`ir`] | the configuration of a data plane as validated values |
//! | [`table`] | the IR, indexed for requests |
//! | [`filter`] | changes of heads: pure functions |
//! | [`tls`] | TLS configurations from the IR |
//! | [`proxy`] | ports, connections and requests of clients |
//! | [`upstream`] | connections and responses of backends |
//! | `http2`, [`byte_chain`], [`header_memory`] | what waits in memory, and frames that h2 does not report |
//! | `http3`, [`quic`] | streams and messages of HTTP/3, without I/O; connections of QUIC on a UDP socket |
//! | [`datagrams`] | datagrams in batches, for `proxy` and `upstream` |
//! | [`dns`] | addresses of backends with a hostname |
//! | [`https`] | requests to servers that policies name |
//! | [`key_requests`] | keys that tokens name and that are unknown |
//! | [`key_sets`] | keys of token issuers, which are fetched |
//! | [`peers`] | other pods of the Gateway, which share its limits |
//! | [`token_endpoint`] | tokens of OpenID providers, for sign-ins and sessions |
//! | [`status`] | conditions, and how they are written |
//! | [`provision`] | the pods and other objects of a Gateway in a cluster |
//! | [`stream`], [`wire`] | the stream from the controller to pods, and its messages |
//! | [`cluster`] | what all requests to an API server share |
//! | [`control`] | the two control loops |
//! | [`process`] | the two processes and their threads |
//! | [`finding`] | what is wrong, as commands, logs, documents and metrics show it |
//! | [`explain`] | what a configuration does with a request that nobody sends |
//! | [`migrate`] | Ingresses of ingress-nginx as Gateway API objects and policies |
//! | [`admin`], [`telemetry`] | the admin server; logs and metrics |
//! | [`settings`], [`cli`] | settings at start, and the commands that read them |
//! | [`runtime`] | clocks, shutdown, values per worker |

pub mod admin;
pub mod api;
pub mod byte_chain;
pub mod cli;
pub mod cluster;
pub mod control;
pub mod datagrams;
pub mod dns;
pub mod explain;
pub mod filter;
pub mod finding;
pub mod header_memory;
mod http2;
mod http3;
pub mod https;
pub mod ir;
pub mod key_requests;
pub mod key_sets;
pub mod migrate;
pub mod peers;
pub mod process;
pub mod provider;
pub mod provision;
pub mod proxy;
pub mod quic;
pub mod runtime;
#[cfg(test)]
#[path = "../tests/harness/scale.rs"]
mod scale;
pub mod settings;
pub mod snapshot;
pub mod status;
pub mod stream;
pub mod table;
pub mod telemetry;
pub mod tls;
pub mod token_endpoint;
pub mod translate;
pub mod upstream;
pub mod wire;
