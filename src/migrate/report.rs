//! What becomes of each object and annotation: one line each, for people and for Markdown.

use std::collections::HashSet;
use std::fmt::{self, Write};

use super::model::Name;
use crate::ir::named::named;

named! {
    /// What becomes of a setting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Outcome {
        /// It has an equal in the output.
        Converted = "converted",
        /// It is how Portcullis works without a setting.
        DefaultAlready = "default already",
        /// The output does almost the same; the text says what differs.
        ChangedMeaning = "changed meaning",
        /// Not a part of this migration.
        Left = "left",
        /// Somebody has to do what the text says.
        NotPossible = "not possible",
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The object, such as `Ingress shop/web`.
    pub object: String,
    /// An annotation, a field or a key; empty for the whole object.
    pub setting: String,
    /// What becomes of it.
    pub outcome: Outcome,
    /// Where it is now, what differs or what to do.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.outcome, self.object)?;
        if !self.setting.is_empty() {
            write!(f, ": {}", self.setting)?;
        }
        write!(f, ": {}", self.text)
    }
}

/// The report of a migration.
#[derive(Debug, Default)]
pub struct Report {
    /// Lines, by object.
    pub lines: Vec<Line>,
    /// What an operator must know, whatever the object.
    pub notices: Vec<String>,
    /// Problems of the output itself, which are faults of this program.
    pub faults: Vec<String>,
    /// The lines, to add each once.
    seen: HashSet<Line>,
    /// Objects and settings that have a line.
    settings: HashSet<(String, String)>,
}

impl Report {
    /// Reports a setting of an Ingress.
    pub(super) fn ingress(
        &mut self,
        name: &Name,
        setting: &str,
        outcome: Outcome,
        text: impl Into<String>,
    ) {
        self.add(format!("Ingress {name}"), setting, outcome, text);
    }

    /// Adds a line, once.
    pub(super) fn add(
        &mut self,
        object: String,
        setting: &str,
        outcome: Outcome,
        text: impl Into<String>,
    ) {
        let line = Line {
            object,
            setting: plain(setting),
            outcome,
            text: plain(&text.into()),
        };
        if self.seen.insert(line.clone()) {
            let setting = (line.object.clone(), line.setting.clone());
            self.settings.insert(setting);
            self.lines.push(line);
        }
    }

    /// Adds a notice, once.
    pub(super) fn notice(&mut self, text: &str) {
        if !self.notices.iter().any(|notice| notice == text) {
            self.notices.push(text.to_owned());
        }
    }

    /// Reports whether a setting of an Ingress has a line.
    pub(super) fn has(&self, name: &Name, setting: &str) -> bool {
        self.has_setting(&format!("Ingress {name}"), setting)
    }

    /// Reports whether a setting of an object has a line.
    pub(super) fn has_setting(&self, object: &str, setting: &str) -> bool {
        let setting = (object.to_owned(), plain(setting));
        self.settings.contains(&setting)
    }

    /// Returns the number of lines with an outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let lines = self.lines.iter();
        lines.filter(|line| line.outcome == outcome).count()
    }

    /// Reports whether somebody has to do something by hand.
    pub fn needs_hand(&self) -> bool {
        self.count(Outcome::NotPossible) + self.faults.len() > 0
    }

    /// Returns the report as text, a line each.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        for notice in &self.notices {
            let _ = writeln!(text, "notice: {notice}");
        }
        for fault in &self.faults {
            let _ = writeln!(text, "fault: {fault}; please report it");
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    /// Returns the report as a Markdown page.
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
        let mut page = format!("# Migration\n\n{}.\n\n", self.summary());
        let _ = writeln!(
            page,
            "| object | setting | outcome | what |\n|---|---|---|---|"
        );
        for line in &self.lines {
            let (object, setting) = (cell(&line.object), cell(&line.setting));
            let text = cell(&line.text);
            let _ = writeln!(page, "| {object} | {setting} | {} | {text} |", line.outcome);
        }
        for notice in &self.notices {
            let _ = writeln!(page, "\n- {}", cell(notice));
        }
        for fault in &self.faults {
            let _ = writeln!(page, "\n- Fault: {}", cell(fault));
        }
        page
    }

    fn summary(&self) -> String {
        let counts = Outcome::ALL.map(|outcome| format!("{outcome}: {}", self.count(outcome)));
        counts.join(", ")
    }
}

/// Returns text that stays on its line.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}
