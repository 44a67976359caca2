//! The format of what commands print on standard output.

use std::io::{self, Write};

use serde::Serialize;

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document, for programs
    Json,
}

/// The flag for the format.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputFlag {
    /// Format of the output
    #[arg(long, short, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Prints a value as one line of JSON.
pub(super) fn json(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}
