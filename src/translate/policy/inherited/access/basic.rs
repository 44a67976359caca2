//! `basic`: user names and passwords, as htpasswd files have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::access_policy::Basic;
use crate::api::core::Secret;
use crate::ir::authentication::{self as ir, PasswordHash, User};

use super::super::credential::USERS;
use super::super::policy::Content;
use super::secret::{References, forwarded_header};
use crate::translate::gateway::certificate::value;
use crate::translate::reason::{Fault, Reason};

/// Maximum length of the name of a user.
const MAX_NAME: usize = 255;

/// Parses the section.
pub(super) fn read(references: &mut References<'_>, section: &Basic) -> Result<Content, Fault> {
    let Basic {
        secret_ref,
        realm,
        forward_user,
    } = section;
    let realm = realm.as_deref().unwrap_or("restricted");
    if realm.is_empty() || realm.len() > 128 || realm.chars().any(char::is_control) {
        let message =
            "spec.basic.realm: is not a text of up to 128 bytes without control characters";
        return Err(Fault::new(Reason::Invalid, message));
    }
    let forward_user = forwarded_header(forward_user.as_deref(), "spec.basic.forwardUser")?;
    let users = references.read(secret_ref, "spec.basic.secretRef", users)?;
    Ok(Content::Basic(Arc::new(ir::Basic {
        policy: references.origin.clone(),
        realm: realm.into(),
        forward_user,
        users,
    })))
}

/// Returns the users in order of their names, and the lines that are no users. Messages have nothing of a line, but its
/// number.
fn users(secret: &Secret) -> Result<(Box<[User]>, Vec<String>), String> {
    let text = str::from_utf8(value(secret, USERS)?);
    let text = text.map_err(|_| format!("has an {USERS} that is not UTF-8"))?;
    let mut users: BTreeMap<Box<str>, PasswordHash> = BTreeMap::new();
    let mut problems = Vec::new();
    let lines = text.lines().map(str::trim_end).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    for (line, number) in lines {
        let added = user(line).and_then(|(name, hash)| match users.contains_key(name) {
            true => Err("has the user of a line before"),
            false => Ok((name, hash)),
        });
        match added {
            Ok((name, hash)) => drop(users.insert(name.into(), hash)),
            Err(problem) => problems.push(format!("line {number} of {USERS} {problem}")),
        }
    }
    if users.is_empty() {
        let why = problems.first().map(|it| format!(": {it}"));
        let why = why.unwrap_or_default();
        return Err(format!("has no user in {USERS}{why}"));
    }
    let users = users.into_iter();
    let users = users.map(|(name, password)| User { name, password });
    Ok((users.collect(), problems))
}

/// Parses a line. Errors continue a sentence that begins with the line.
fn user(line: &str) -> Result<(&str, PasswordHash), &'static str> {
    let (name, hash) = line.split_once(':').ok_or("has no colon")?;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err("has no user name of up to 255 bytes without control characters");
    }
    Ok((name, hash.parse()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HASH: &str = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";

    fn read(text: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"auth": text}});
        let (users, problems) = users(&serde_json::from_value(secret).unwrap())?;
        let names = users.iter().map(|user| user.name.to_string());
        Ok((names.collect(), problems))
    }

    #[test]
    fn reads_lines_of_htpasswd_files() {
        let text = format!("# users\n\nbob:{HASH}\r\nalice:{HASH}  \njürgen:{HASH}");
        let names = ["alice", "bob", "jürgen"].map(str::to_owned).to_vec();
        assert_eq!(read(&text), Ok((names, Vec::new())));
    }

    #[test]
    fn leaves_out_lines_that_are_not_users() {
        let text = format!("bob:{HASH}\nbob:{HASH}\nalice\n:{HASH}\ncarol:secret");
        let (names, problems) = read(&text).unwrap();
        assert_eq!(names, ["bob"]);
        let expected = [
            "line 2 of auth has the user of a line before",
            "line 3 of auth has no colon",
            "line 4 of auth has no user name of up to 255 bytes without control characters",
            "line 5 of auth has no hash of bcrypt ($2y$), SHA-crypt ($5$, $6$), $apr1$ or {SHA}",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn file_without_users_cannot_be_used() {
        let none = "has no user in auth: line 1 of auth has no colon";
        assert_eq!(read("alice"), Err(none.to_owned()));
        assert_eq!(read("# none"), Err("has no user in auth".to_owned()));
        assert_eq!(read(""), Err("has an empty auth".to_owned()));
    }
}
