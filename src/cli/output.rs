//! The format of what commands print on standard output, and the exit codes of those that have nothing to print or that judge.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use super::visible;
use crate::finding::Severity;

/// Exit code of a command that cannot read what it judges or shows: a folder, a cluster or a proxy.
pub(super) const UNREACHABLE: u8 = 3;

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document, for programs
    Json,
}

/// The format of the output of a command that shows findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FindingsFormat {
    /// For people, a line for each problem
    #[default]
    Text,
    /// For people, with each field of a problem on a line of its own
    Wide,
    /// One JSON document, for programs
    Json,
    /// One YAML document with the same fields
    Yaml,
}

/// What ends with exit code 1 among what a command finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// An error: an object is not accepted or has another problem, or requests fail
    #[value(alias = "problem")]
    Error,
    /// Also a warning
    Warning,
}

impl FailOn {
    /// Reports whether a finding ends with exit code 1. Without the name of a severity, it counts as an error.
    pub(super) fn includes(self, severity: Option<&str>) -> bool {
        self == Self::Warning || severity != Some(Severity::Warning.name())
    }
}

/// The flag for the format.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputFlag {
    /// Format of the output
    #[arg(long, short, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Prints a value as a document of YAML.
pub(super) fn yaml(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    let text =
        serde_saphyr::to_string(value).map_err(|error| io::Error::other(error.to_string()))?;
    writeln!(out, "---\n{}", visible::lines(text.trim_end()))
}

/// Prints a value as one line of JSON.
pub(super) fn json(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    // JSON has to escape only some control characters.
    let text = serde_json::to_string(value)?;
    writeln!(out, "{}", visible::line(&text))
}

/// Prints a text for people.
pub(super) fn text(text: &impl Display, out: &mut impl Write) -> io::Result<()> {
    out.write_all(visible::lines(&text.to_string()).as_bytes())
}
