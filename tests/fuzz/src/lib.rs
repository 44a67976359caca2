//! What the fuzz targets share: objects of the goldens, requests, and changes that keep an input an input. Knows no
//! property of the program.

pub mod goldens;
pub mod mutate;
pub mod objects;
pub mod request;
