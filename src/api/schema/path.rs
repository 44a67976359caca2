//! The way from an object's root to one of its values, written out only when something is wrong there.

use std::fmt;

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
    /// Enters a field.
    pub(super) fn push_field(&mut self, name: &'a str) {
        self.0.push(Segment::Field(name));
    }

    /// Enters an entry of a map.
    pub(super) fn push_key(&mut self, key: &'a str) {
        self.0.push(Segment::Key(key));
    }

    /// Enters an item of a list.
    pub(super) fn push_index(&mut self, index: usize) {
        self.0.push(Segment::Index(index));
    }

    /// Leaves what was entered last.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// The path of a field below this one.
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
