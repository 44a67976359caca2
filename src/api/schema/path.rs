//! The path of a value in an object. It borrows its segments, and is formatted only for findings.

use std::fmt;

use serde_json::Value;

/// A path such as `spec.rules[0].name`.
#[derive(Debug, Default)]
pub(super) struct Path<'a>(Vec<Segment<'a>>);

#[derive(Clone, Copy, Debug)]
enum Segment<'a> {
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// Appends a field.
    pub(super) fn push_field(&mut self, name: &'a str) {
        self.0.push(Segment::Field(name));
    }

    /// Appends the key of a map entry.
    pub(super) fn push_key(&mut self, key: &'a str) {
        self.0.push(Segment::Key(key));
    }

    /// Appends the index of a list item.
    pub(super) fn push_index(&mut self, index: usize) {
        self.0.push(Segment::Index(index));
    }

    /// Removes the last segment.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// Returns the value at this path of another object.
    pub(super) fn value_in<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.0
            .iter()
            .try_fold(object, |value, segment| match segment {
                Segment::Field(name) | Segment::Key(name) => value.get(*name),
                Segment::Index(index) => value.get(*index),
            })
    }

    /// Returns the path of a nested field.
    pub(super) fn field(&self, name: &str) -> String {
        if self.0.is_empty() {
            name.to_owned()
        } else {
            format!("{self}.{name}")
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(name) if position == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
                Segment::Key(key) => write!(f, "[{key}]")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
