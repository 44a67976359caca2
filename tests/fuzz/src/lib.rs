//! The fuzz targets and what they share: objects of the goldens, requests, and changes that keep an input an input. Knows
//! nothing of libFuzzer, so that tests run the targets too.
//!
//! Some targets are about modules that the program keeps to itself. They are compiled from their source here, under the
//! same paths, since they name each other by them.

pub mod goldens;
#[allow(dead_code, reason = "only a part of the modules is called")]
mod http2;
#[allow(dead_code, reason = "only a part of the modules is called")]
mod http3;
pub mod mutate;
pub mod objects;
#[allow(dead_code, reason = "only a part of the modules is called")]
mod provider;
#[allow(dead_code, reason = "only a part of the modules is called")]
mod proxy;
pub mod random;
pub mod request;
pub mod targets;
#[allow(dead_code, reason = "only a part of the modules is called")]
mod upstream;

use portcullis::{byte_chain, filter, header_memory, ir, table, wire};
