//! The configuration stream from the controller to the pods of Gateways: each pod gets the objects of its own Gateway, and
//! reports what it serves.

pub mod message;
