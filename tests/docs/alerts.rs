//! The alerts of the chart: each has a row in docs/operations.md that says what to do, and leads to it.

use serde_json::Value;

use crate::read;

#[test]
fn page_says_what_to_do_about_each_alert() {
    let rules = read("deploy/helm/portcullis/monitoring/rules.yaml");
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let page = read("docs/operations.md");
    let head = "| alert | severity | what to do |\n|---|---|---|\n";
    let (_, table) = page.split_once(head).unwrap();
    let rows: Vec<&str> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), rules.len());
    for (row, rule) in rows.iter().zip(rules) {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        let anchor = name.to_lowercase();
        let begin = format!("| <a id=\"{anchor}\"></a>{name} | {severity} | ");
        assert!(row.starts_with(&begin), "{row}\nis not about {name}");
        let page = format!("docs/operations.md#{anchor}");
        assert_eq!(rule["annotations"]["runbook_url"], page, "{name}");
    }
}
