//! Ways to write a request that mean the same. Must not know what is decided about it.

use std::fmt::Write;

use super::configuration::SamePaths;
use super::dice::Dice;
use super::meaning::Meaning;

/// Headers that the proxy says or decides by in some configurations.
pub(super) const PROTECTED: [&str; 9] = [
    "x-user",
    "x-client",
    "x-groups",
    "x-roles",
    "x-team",
    "x-env",
    "x-tenant",
    "x-api-key",
    "x-client-address",
];
/// What a client says of itself by other spellings.
pub(super) const FORGED: &str = "forged";

type Lines = Vec<(String, String)>;

/// A request as it is written.
#[derive(Clone, Debug)]
pub(super) struct Spelled {
    pub(super) is_http2: bool,
    /// The scheme of a target in absolute form.
    pub(super) absolute: Option<&'static str>,
    /// In the target, if it is absolute or of HTTP/2. Else in the header.
    pub(super) host: String,
    /// A further header with a host.
    pub(super) other_host: Option<String>,
    /// Path and query.
    pub(super) target: String,
    pub(super) lines: Lines,
    /// Whether there are blanks around values.
    pub(super) is_padded: bool,
    pub(super) trailers: Lines,
}

impl Spelled {
    /// Spells a request in the usual way.
    pub(super) fn plain(meaning: &Meaning) -> Self {
        let mut lines = Lines::new();
        let mut add = |name: &str, value: String| lines.push((name.to_owned(), value));
        for (name, list) in &meaning.lists {
            add(name, list.join(","));
        }
        let cookies: Vec<_> = meaning
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !cookies.is_empty() {
            add("cookie", cookies.join("; "));
        }
        for (scheme, credentials) in &meaning.authorization {
            add("authorization", format!("{scheme} {credentials}"));
        }
        for key in &meaning.keys {
            add("x-api-key", (*key).to_owned());
        }
        add("x-forwarded-for", meaning.forwarded_for.join(", "));
        add("x-client-address", meaning.client.to_owned());
        let query: Vec<_> = meaning
            .query
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Self {
            is_http2: false,
            absolute: None,
            host: meaning.host.to_owned(),
            other_host: None,
            target: with_query(meaning.path.clone(), &query),
            lines,
            is_padded: false,
            trailers: Lines::new(),
        }
    }

    /// Spells a request at random. Clients say nothing by the headers that are `said` by the proxy.
    pub(super) fn new(dice: &mut Dice, meaning: &Meaning, same: SamePaths, said: &[&str]) -> Self {
        let is_http2 = dice.chance(45);
        let absolute = (!is_http2 && dice.chance(20)).then(|| match meaning.is_tls {
            true => dice.one(&["https", "HTTPS"]),
            false => dice.one(&["http", "HTTP", "Http"]),
        });
        let host = host(dice, meaning, is_http2 || absolute.is_some());
        let other_host = match (is_http2, absolute) {
            (true, _) if dice.chance(20) => Some(host.to_uppercase()),
            (false, Some(_)) => Some(dice.one(&["other.example.org", "b.example.com"]).to_owned()),
            _ => None,
        };
        let path = path(dice, &meaning.path, same);
        let query = meaning.query.iter().map(|(name, value)| {
            let (name, value) = (escaped(dice, name), escaped(dice, value));
            format!("{name}={value}")
        });
        let target = with_query(path, &query.collect::<Vec<_>>());
        let mut groups = groups(dice, meaning);
        groups.extend(aliases(dice).into_iter().map(|line| vec![line]));
        groups.extend(
            said.iter()
                .map(|name| vec![((*name).to_owned(), FORGED.to_owned())]),
        );
        if !is_http2 && dice.chance(10) {
            let upgrade = [
                ("Connection", "Upgrade, HTTP2-Settings"),
                ("Upgrade", "h2c"),
                ("HTTP2-Settings", "AAMAAABk"),
            ];
            let upgrade = upgrade.map(|(name, value)| (name.to_owned(), value.to_owned()));
            groups.push(upgrade.into());
        }
        dice.shuffle(&mut groups);
        let mut lines: Lines = groups.into_iter().flatten().collect();
        if !is_http2 {
            for (name, _) in &mut lines {
                *name = cased(dice, name);
            }
        }
        let trailers = match meaning.method == "POST" && dice.chance(60) {
            true => trailers(dice),
            false => Lines::new(),
        };
        Self {
            is_http2,
            absolute,
            host,
            other_host,
            target,
            lines,
            is_padded: !is_http2 && dice.chance(30),
            trailers,
        }
    }

    /// Writes the request in HTTP/1.1.
    pub(super) fn text(&self, method: &str) -> String {
        let (host, target) = match self.absolute {
            Some(scheme) => (
                &self.other_host,
                format!("{scheme}://{}{}", self.host, self.target),
            ),
            None => (&None, self.target.clone()),
        };
        let host = host.as_ref().unwrap_or(&self.host);
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        let (before, after) = if self.is_padded {
            ("\t  ", " \t")
        } else {
            (" ", "")
        };
        let host = ("Host".to_owned(), host.clone());
        for (name, value) in std::iter::once(&host).chain(&self.lines) {
            write!(text, "{name}:{before}{value}{after}\r\n").expect("text takes everything");
        }
        match (method, &*self.trailers) {
            ("POST", []) => text.push_str("Content-Length: 1\r\n\r\na"),
            ("POST", trailers) => {
                text.push_str("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n");
                for (name, value) in trailers {
                    write!(text, "{name}: {value}\r\n").expect("text takes everything");
                }
                text.push_str("\r\n");
            }
            _ => text.push_str("\r\n"),
        }
        text
    }
}

/// Returns a host with an escape, which means the same and is not accepted.
pub(super) fn escaped_host(host: &str) -> String {
    format!("%{:02x}{}", host.as_bytes()[0], &host[1..])
}

fn with_query(path: String, query: &[String]) -> String {
    match query.is_empty() {
        true => path,
        false => format!("{path}?{}", query.join("&")),
    }
}

/// Names whose hosts are the same, whatever the port is.
fn host(dice: &mut Dice, meaning: &Meaning, is_in_target: bool) -> String {
    let name = cased(dice, meaning.host);
    let dot = dice.one(&["", "", "."]);
    let own = if meaning.is_tls { ":443" } else { ":80" };
    let empty = if is_in_target { "" } else { ":" };
    let port = dice.one(&["", "", own, ":8080", empty]);
    format!("{name}{dot}{port}")
}

fn cased(dice: &mut Dice, name: &str) -> String {
    match dice.below(3) {
        0 => name.to_owned(),
        1 => name.to_uppercase(),
        _ => name
            .chars()
            .map(|letter| match dice.chance(50) {
                true => letter.to_ascii_uppercase(),
                false => letter,
            })
            .collect(),
    }
}

fn path(dice: &mut Dice, path: &str, same: SamePaths) -> String {
    let mut slashes = vec!["/", "/"];
    if same.with_more_slashes {
        slashes.extend(["//", "///"]);
    }
    if same.with_dot_segments {
        slashes.extend(["/./", "/%2E/", "/x/../", "/x/%2e%2E/"]);
    }
    let mut spelled = String::new();
    let mut rest = path;
    while let Some(character) = rest.chars().next() {
        let (one, others) = rest.split_at(if character == '%' { 3 } else { 1 });
        rest = others;
        match character {
            '%' => spelled.push_str(&cased(dice, one)),
            '/' => spelled.push_str(dice.one(&slashes)),
            _ => spelled.push_str(&escaped(dice, one)),
        }
    }
    spelled
}

/// Escapes some of the characters that need no escape.
fn escaped(dice: &mut Dice, text: &str) -> String {
    let mut spelled = String::new();
    for character in text.chars() {
        let is_unreserved = character.is_ascii_alphanumeric() || "-._~".contains(character);
        match dice.below(4) {
            0 if is_unreserved => {
                write!(spelled, "%{:02X}", u32::from(character)).expect("text takes everything");
            }
            1 if is_unreserved => {
                write!(spelled, "%{:02x}", u32::from(character)).expect("text takes everything");
            }
            _ => spelled.push(character),
        }
    }
    spelled
}

/// The lines of each header. Those of one header keep their order.
fn groups(dice: &mut Dice, meaning: &Meaning) -> Vec<Lines> {
    let mut groups = Vec::new();
    let group = |name: &str, values: Vec<String>| -> Lines {
        values
            .into_iter()
            .map(|value| (name.to_owned(), value))
            .collect()
    };
    for (name, elements) in &meaning.lists {
        groups.push(group(name, list(dice, elements)));
    }
    groups.push(group("cookie", cookies(dice, &meaning.cookies)));
    let mut credentials: Vec<_> = meaning
        .authorization
        .iter()
        .map(|(scheme, credentials)| {
            let blanks = dice.one(&[" ", "  "]);
            format!("{}{blanks}{credentials}", cased(dice, scheme))
        })
        .collect();
    dice.shuffle(&mut credentials);
    groups.push(group("authorization", credentials));
    groups.push(group(
        "x-api-key",
        meaning.keys.iter().map(|it| (*it).to_owned()).collect(),
    ));
    let chain: Vec<_> = meaning
        .forwarded_for
        .iter()
        .map(|it| address(dice, it))
        .collect();
    let chain: Vec<_> = chain.iter().map(|it| &**it).collect();
    groups.push(group("x-forwarded-for", list(dice, &chain)));
    groups.push(group(
        "x-client-address",
        vec![address(dice, meaning.client)],
    ));
    groups
}

/// One list in one line or several.
fn list(dice: &mut Dice, elements: &[&str]) -> Vec<String> {
    let line = match dice.below(8) {
        0 => elements.join(", "),
        1 => elements.join("\t ,\t"),
        2 => elements.join(",,"),
        3 => format!(",{}", elements.join(", ,")),
        4 => elements.join(","),
        5 => {
            return elements
                .iter()
                .flat_map(|it| ["", *it])
                .map(str::to_owned)
                .collect();
        }
        _ => return elements.iter().map(|it| (*it).to_owned()).collect(),
    };
    vec![line]
}

/// Cookies in one header or several, and their values with or without quotes.
fn cookies(dice: &mut Dice, cookies: &[(&str, &str)]) -> Vec<String> {
    let mut pairs: Vec<String> = cookies
        .iter()
        .map(|(name, value)| match dice.below(4) {
            0 => format!("{name}=\"{value}\""),
            1 => format!("{name} = {value}"),
            _ => format!("{name}={value}"),
        })
        .collect();
    pairs.extend(dice.chance(30).then(|| "a=\"b\"".to_owned()));
    pairs.extend(dice.chance(20).then(|| "flag".to_owned()));
    dice.shuffle(&mut pairs);
    let mut lines: Vec<String> = Vec::new();
    for pair in pairs {
        match lines.last_mut() {
            Some(line) if dice.chance(50) => {
                line.push_str(dice.one(&["; ", ";", " ;  "]));
                line.push_str(&pair);
            }
            _ => lines.push(pair),
        }
    }
    lines
}

fn address(dice: &mut Dice, address: &str) -> String {
    match dice.below(5) {
        0 => format!("{address}:4711"),
        1 => format!("::ffff:{address}"),
        2 => format!("[::ffff:{address}]:4711"),
        _ => address.to_owned(),
    }
}

/// Other spellings of headers, by which nothing is said.
fn aliases(dice: &mut Dice) -> Lines {
    let mut lines = Lines::new();
    for name in PROTECTED {
        if dice.chance(25) {
            let symbol = dice.one(&["_", ".", "~", "!"]);
            let value = dice.one(&[FORGED, "red", "192.0.2.7", "key-of-shop"]);
            lines.push((name.replace('-', symbol), value.to_owned()));
        }
    }
    lines
}

/// Names of headers in every spelling, by which trailers say nothing.
fn trailers(dice: &mut Dice) -> Lines {
    let mut lines = aliases(dice);
    for name in PROTECTED.into_iter().chain(["authorization", "cookie"]) {
        if dice.chance(25) {
            lines.push((name.to_owned(), FORGED.to_owned()));
        }
    }
    lines
}
