//! Finds the lines of fields in the text of a document. Must not know what the fields mean.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use granit_parser::{Event, Parser};

/// Lines of fields within a document, from 1.
pub(super) type Lines = BTreeMap<String, usize>;

/// Returns the line of each field path, such as `spec.rules[0].name`. A field that the document
/// does not contain has the line of the nearest field that contains it. The document is YAML or
/// JSON. One pass, however many fields there are.
pub(super) fn lines(text: &str, fields: &BTreeSet<&str>) -> Lines {
    let mut locator = Locator {
        fields,
        lines: Lines::new(),
        open: Vec::new(),
    };
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        if !locator.on_event(&event, span.start.line()) {
            break;
        }
    }
    locator.lines
}

struct Locator<'a> {
    fields: &'a BTreeSet<&'a str>,
    lines: Lines,
    open: Vec<Collection>,
}

/// A collection whose end has not been read.
struct Collection {
    /// `None` if no field is inside it.
    path: Option<String>,
    place: NextNode,
}

/// What the next node of a collection is.
enum NextNode {
    /// A list item with this index.
    Item(usize),
    /// The key of an entry.
    Key,
    /// The value of the entry at this path; `None` if no field is inside it.
    Value(Option<String>),
}

impl Locator<'_> {
    /// Returns false after the document.
    fn on_event(&mut self, event: &Event<'_>, line: usize) -> bool {
        match event {
            Event::Scalar(text, ..) => {
                if self.is_at_key() {
                    self.on_key(text, line);
                } else {
                    self.enter(line);
                }
            }
            Event::Alias(_) => {
                self.enter(line);
            }
            Event::SequenceStart(..) => self.open(NextNode::Item(0), line),
            Event::MappingStart(..) => self.open(NextNode::Key, line),
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
            }
            Event::DocumentEnd => return false,
            _ => {}
        }
        true
    }

    fn is_at_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Collection {
                place: NextNode::Key,
                ..
            })
        )
    }

    fn on_key(&mut self, key: &str, line: usize) {
        let Some(mapping) = self.open.last() else {
            return;
        };
        let path = mapping.path.as_ref().and_then(|path| {
            let field = if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            };
            [field, format!("{path}[{key}]")]
                .into_iter()
                .find(|path| self.is_wanted(path))
        });
        if let Some(path) = &path {
            self.record(path, line);
        }
        if let Some(mapping) = self.open.last_mut() {
            mapping.place = NextNode::Value(path);
        }
    }

    fn open(&mut self, place: NextNode, line: usize) {
        let path = self.enter(line);
        self.open.push(Collection { path, place });
    }

    /// Enters the next node. Returns its path, if a field is inside it.
    fn enter(&mut self, line: usize) -> Option<String> {
        let Some(parent) = self.open.last_mut() else {
            return Some(String::new());
        };
        match &mut parent.place {
            // A key that is a collection. Its value has no path.
            NextNode::Key => {
                parent.place = NextNode::Value(None);
                None
            }
            NextNode::Value(path) => {
                let path = path.take();
                parent.place = NextNode::Key;
                path
            }
            NextNode::Item(index) => {
                let number = *index;
                *index += 1;
                let path = parent.path.as_ref()?;
                let path = format!("{path}[{number}]");
                self.is_wanted(&path).then(|| {
                    self.record(&path, line);
                    path
                })
            }
        }
    }

    /// Reports whether a field is at the path or inside it.
    fn is_wanted(&self, path: &str) -> bool {
        self.inside(path).next().is_some()
    }

    fn record(&mut self, path: &str, line: usize) {
        let fields: Vec<String> = self.inside(path).map(str::to_owned).collect();
        self.lines
            .extend(fields.into_iter().map(|field| (field, line)));
    }

    fn inside<'s>(&'s self, path: &'s str) -> impl Iterator<Item = &'s str> {
        let from = (Bound::Included(path), Bound::Unbounded);
        self.fields
            .range::<str, _>(from)
            .copied()
            .take_while(move |field| field.starts_with(path))
            .filter(move |field| {
                let rest = &field[path.len()..];
                rest.is_empty() || rest.starts_with(['.', '['])
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: &str = "\
kind: HTTPRoute # a comment
metadata:
  name: a
  annotations:
    portcullis.dev/x: \"1\"
spec:
  hostnames:
  - a.example.com
  - &b b.example.com
  rules:
    - matches: [{path: {value: /a}},
                {path: {value: /b}}]
      name: one
    - name: *b
";

    fn line_of(text: &str, field: &str) -> Option<usize> {
        lines(text, &BTreeSet::from([field])).get(field).copied()
    }

    #[test]
    fn finds_lines_of_fields() {
        for (field, line) in [
            ("kind", 1),
            ("metadata.annotations[portcullis.dev/x]", 5),
            ("spec", 6),
            ("spec.hostnames[1]", 9),
            ("spec.rules[0].matches[0].path.value", 11),
            ("spec.rules[0].matches[1].path.value", 12),
            ("spec.rules[0].name", 13),
            ("spec.rules[1].name", 14),
        ] {
            assert_eq!(line_of(ROUTE, field), Some(line), "{field}");
        }
    }

    #[test]
    fn missing_field_has_the_line_of_its_nearest_parent() {
        assert_eq!(line_of(ROUTE, "spec.rules[1].matches[3].path"), Some(14));
        assert_eq!(line_of(ROUTE, "metadata.namespace"), Some(2));
        assert_eq!(line_of(ROUTE, "status"), None);
        assert_eq!(line_of(ROUTE, "spe"), None);
    }

    #[test]
    fn finds_lines_in_json_and_in_lists() {
        let text = "{\n\t\"items\": [\n\t\t{\"spec\": {\n\t\t\t\"a\": 1}}]}";
        assert_eq!(line_of(text, "items[0].spec.a"), Some(4));
    }

    #[test]
    fn finds_all_fields_in_one_pass() {
        let fields = BTreeSet::from(["kind", "spec.rules", "spec.rules[0].name"]);
        let found = lines(ROUTE, &fields);
        let found: Vec<_> = found.into_values().collect();
        assert_eq!(found, [1, 10, 13]);
    }

    #[test]
    fn keys_that_are_collections_are_skipped() {
        let text = "? [a, b]\n: {c: 1}\n? {d: 1}\n: 2\nspec: 3\n";
        assert_eq!(line_of(text, "spec"), Some(5));
        assert_eq!(line_of("a: [", "a"), Some(1));
    }
}
