//! The guide: its table of annotations is that of the program.

use std::fmt::Write;

use portcullis::migrate::annotations::ANNOTATIONS;

use crate::generated;

#[test]
fn guide_has_every_annotation() {
    let mut table = String::from("| annotation | outcome | what |\n|---|---|---|\n");
    for row in ANNOTATIONS {
        let text = row.text.replace('|', "\\|");
        writeln!(table, "| `{}` | {} | {text} |", row.name, row.outcome).unwrap();
    }
    generated::check("docs/from-ingress-nginx.md", "annotations", &table);
}
