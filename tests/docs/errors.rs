//! docs/errors.md explains every text of a response by the program itself, and docs/l4.md why connections end.

use crate::read;

/// The string literals of a text that are sentences.
fn sentences(code: &str) -> Vec<String> {
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let literals = code.split('"').skip(1).step_by(2);
    literals
        .filter(|text| text.contains(' '))
        .map(str::to_owned)
        .collect()
}

/// The part of a file from one line on, to the end of the item.
fn item(path: &str, begin: &str, end: &str) -> String {
    let text = read(path);
    let at = text
        .find(begin)
        .unwrap_or_else(|| panic!("{path} has no {begin}"));
    let rest = &text[at..];
    rest[..rest.find(end).unwrap()].to_owned()
}

#[test]
fn every_text_is_explained() {
    let page = read("docs/errors.md");
    let mut texts = sentences(&item("src/proxy/error.rs", "fn message(self)", "\n    }\n"));
    texts.extend(sentences(&item(
        "src/upstream/send_error.rs",
        "impl SendError",
        "\n}\n",
    )));
    texts.extend(sentences(&item(
        "src/upstream/send_error.rs",
        "impl From<ExchangeError>",
        "\n}\n",
    )));
    texts.extend(sentences(&item(
        "src/upstream/connector.rs",
        "fn connect_error",
        "\n}\n",
    )));
    texts.extend(sentences(&item(
        "src/table/stats.rs",
        "fn cause(self)",
        "\n    }\n",
    )));
    texts.extend(sentences(&item(
        "src/proxy/sign_in_fault.rs",
        "fn message(self)",
        "\n    }\n",
    )));
    for path in ["src/proxy/request/request.rs", "src/proxy/client.rs"] {
        let text = read(path);
        let found = text.split("NotFound(\"").skip(1);
        texts.extend(found.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    assert!(texts.len() > 40, "only {} texts", texts.len());
    for text in texts {
        assert!(
            page.contains(&format!("`{text}`")),
            "docs/errors.md lacks `{text}`"
        );
    }
}

#[test]
fn every_end_of_a_connection_is_explained() {
    let page = read("docs/l4.md");
    let path = "src/telemetry/access_log/connection_end.rs";
    let code = item(path, "fn text(self)", "\n    }\n");
    let texts: Vec<_> = code.split('"').skip(1).step_by(2).collect();
    assert!(texts.len() > 15, "only {} texts", texts.len());
    for text in texts {
        assert!(
            page.contains(&format!("`{text}`")),
            "docs/l4.md lacks `{text}`"
        );
    }
}
