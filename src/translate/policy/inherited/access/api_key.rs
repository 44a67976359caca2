//! `apiKey`: keys of clients, and where requests have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::AUTHORIZATION;

use crate::api::access_policy::{ApiKey, KeySource};
use crate::api::core::Secret;
use crate::ir::authentication::{self as ir, KeyPlace};

use super::super::policy::Content;
use super::secret::{References, forwarded_header, header};
use crate::translate::gateway::certificate::value;
use crate::translate::reason::{Fault, all, invalid};

/// Maximum length of a key.
const MAX_KEY: usize = 1024;

/// Parses the section.
pub(super) fn read(references: &mut References<'_>, section: &ApiKey) -> Result<Content, Fault> {
    let ApiKey {
        secret_refs,
        from,
        forward_client,
        keep,
    } = section;
    let from = from.iter().enumerate();
    let from = from.map(|(index, source)| place(source, &format!("spec.apiKey.from[{index}]")));
    let from: Box<[_]> = all(from)?;
    if from.is_empty() {
        return invalid("spec.apiKey.from: names no place of the key".to_owned());
    }
    let forward_client = forwarded_header(forward_client.as_deref(), "spec.apiKey.forwardClient")?;
    let mut keys = BTreeMap::new();
    for (index, reference) in secret_refs.iter().enumerate() {
        let field = format!("spec.apiKey.secretRefs[{index}]");
        references.read(reference, &field, |secret| add_keys(secret, &mut keys))?;
    }
    if keys.is_empty() {
        return invalid("spec.apiKey.secretRefs: names no Secret".to_owned());
    }
    let keys = keys.into_iter();
    let keys = keys.map(|(text, client)| ir::ApiKey { client, text });
    let mut keys: Box<[_]> = keys.collect();
    keys.sort_by(|one, other| (&one.client, &one.text).cmp(&(&other.client, &other.text)));
    Ok(Content::ApiKey(Arc::new(ir::ApiKeys {
        policy: references.origin.clone(),
        keys,
        from,
        forward_client,
        keep: *keep,
    })))
}

/// Parses the place of a key or token at `field`.
pub(super) fn place(source: &KeySource, field: &str) -> Result<KeyPlace, Fault> {
    let KeySource { kind, name } = source;
    match kind.as_str() {
        "Header" => {
            let name = header(name, &format!("{field}.name"), &[AUTHORIZATION])?;
            Ok(KeyPlace::Header(name))
        }
        "Query" if !name.is_empty() => Ok(KeyPlace::Query(name.as_str().into())),
        "Cookie" if is_token(name) => Ok(KeyPlace::Cookie(name.as_str().into())),
        "Query" | "Cookie" => invalid(format!("{field}.name: {name:?} is not a name")),
        other => invalid(format!(
            "{field}.type: {other:?} is none of Header, Query and Cookie"
        )),
    }
}

/// Reports whether text is a token (RFC 9110, 5.6.2), as names of cookies are.
pub(super) fn is_token(text: &str) -> bool {
    let is_symbol = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte) || byte.is_ascii_alphanumeric();
    !text.is_empty() && text.bytes().all(is_symbol)
}

/// Adds the keys of a Secret, in which each has the name of its client. Returns how many of them are left out, as a problem. Who may
/// write policies may not read Secrets, so that it names no client, and does not say which keys are equal.
fn add_keys(
    secret: &Secret,
    keys: &mut BTreeMap<Box<[u8]>, Box<str>>,
) -> Result<((), Vec<String>), String> {
    let mut names: Vec<&str> = secret.data.keys().collect();
    names.extend(secret.string_data.keys());
    names.sort();
    names.dedup();
    let mut add = |client: &str| {
        let value = value(secret, client).ok()?;
        let key = value.trim_ascii_end();
        let is_key = (1..=MAX_KEY).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
        let known = is_key.then(|| keys.entry(key.into()).or_insert_with(|| client.into()))?;
        (**known == *client).then_some(())
    };
    let all = names.len();
    let found = names.into_iter().filter_map(&mut add).count();
    let rule = format!("a key has up to {MAX_KEY} visible characters, and one client");
    match (found, all - found) {
        (0, 0) => Err("has no key".to_owned()),
        (0, _) => Err(format!("has no key that can be used: {rule}")),
        (_, 0) => Ok(((), Vec::new())),
        (_, unusable) => {
            let problem = format!("{unusable} of {all} keys cannot be used: {rule}");
            Ok(((), vec![problem]))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(secrets: &[Value]) -> Result<(Vec<String>, Vec<String>), String> {
        let mut keys = BTreeMap::new();
        let mut all = Vec::new();
        for values in secrets {
            let secret = json!({"metadata": {"name": "s"}, "stringData": values});
            let secret = serde_json::from_value(secret).unwrap();
            all.extend(add_keys(&secret, &mut keys)?.1);
        }
        let mut clients: Vec<_> = keys.into_values().map(String::from).collect();
        clients.sort();
        Ok((clients, all))
    }

    #[test]
    fn client_has_a_key_in_each_secret() {
        let secrets = [
            json!({"one": "1234\n", "two": "5678"}),
            json!({"one": "abcd", "two": "5678"}),
        ];
        let clients = ["one", "one", "two"].map(str::to_owned).to_vec();
        assert_eq!(read(&secrets), Ok((clients, Vec::new())));
    }

    #[test]
    fn leaves_out_keys_that_no_request_can_have() {
        let secrets = [json!({"one": "1234", "two": "1234", "three": "1 2", "four": "\n"})];
        let (clients, problems) = read(&secrets).unwrap();
        assert_eq!(clients, ["one"]);
        let rule = "a key has up to 1024 visible characters, and one client";
        assert_eq!(problems, [format!("3 of 4 keys cannot be used: {rule}")]);
        let unusable = Err(format!("has no key that can be used: {rule}"));
        assert_eq!(read(&[json!({"three": "1 2"})]), unusable);
        assert_eq!(read(&[json!({})]), Err("has no key".to_owned()));
    }
}
