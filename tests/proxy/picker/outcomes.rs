//! Each script of a picker with each failure mode, version of HTTP and protocol of model servers. No body that is not whole ends
//! as if it were, and no request has two framings.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedReceiver;

use super::framing::{Seen, observed_model};
use super::scripts::{Ends, ROWS, Row};
use super::server::{Picker, Script};
use super::{Outcome, PROTOCOLS, clients, model, post, serve};
use crate::origin::{Origin, full};

impl Row {
    fn outcome(&self, ends: Ends, sent: &str) -> Outcome {
        match ends {
            Ends::Sent => Outcome::Whole(200, sent.to_owned()),
            Ends::Text => Outcome::Whole(200, self.text.expect("a text").to_owned()),
            Ends::Status(status) => Outcome::Whole(status, String::new()),
            Ends::Broken => Outcome::Broken(200),
        }
    }
}

/// Returns a body of this length.
fn body(size: usize) -> String {
    let mut text = "0123456789abcdef".repeat(size.div_ceil(16));
    text.truncate(size);
    text
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Whole(status, body) => format!("{status} with {} bytes", body.len()),
        Outcome::Broken(status) => format!("{status} that has broken off"),
    }
}

/// Returns a list in which addresses replace their names.
fn list(names: &str, addresses: &[(&str, SocketAddr)]) -> String {
    let names = names.split(',');
    let named = names.filter_map(|name| addresses.iter().find(|(of, _)| *of == name));
    let found: Vec<_> = named.map(|(_, address)| address.to_string()).collect();
    found.join(",")
}

/// Checks all that the model server has got so far: a request that has not broken off is that of its row.
fn check(seen: &mut UnboundedReceiver<Seen>) {
    while let Ok(Seen {
        path,
        is_sound,
        body: got,
    }) = seen.try_recv()
    {
        let index = path
            .rsplit('/')
            .next()
            .and_then(|it| it.parse::<usize>().ok());
        let row = index.and_then(|index| ROWS.get(index));
        let row = row.unwrap_or_else(|| panic!("a request to {path:?}"));
        assert!(is_sound, "{}: {path}", row.name);
        if let Some(got) = got {
            let is_right = got == body(row.size) || row.text.is_some_and(|text| got == text);
            assert!(is_right, "{}: {path}: {} bytes", row.name, got.len());
        }
    }
}

#[tokio::test]
async fn every_script_has_its_outcome() {
    let (own, mut seen) = observed_model().await;
    let foreign = model("foreign").await;
    let dead = [(); 3].map(|()| Origin::dead());
    let addresses = [
        ("own", own.address),
        ("foreign", foreign.address),
        ("dead0", dead[0]),
        ("dead1", dead[1]),
        ("dead2", dead[2]),
    ];
    let picker = Picker::start(Script::choosing("")).await;
    // A pool that fails open chooses from all its endpoints.
    let pools = [vec![own.address], [&dead[..], &[own.address]].concat()];
    let scenes = pools.map(|models| serve(&picker, &models));
    for (index, row) in ROWS.iter().enumerate() {
        let sent = body(row.size);
        let list = list(row.list, &addresses);
        let scene = &scenes[usize::from(row.list.contains("dead"))];
        picker.follow((row.script)(Script::choosing(&list)));
        for (prefix, _) in PROTOCOLS {
            for (path, ends) in [("open", row.open), ("close", row.close)] {
                let path = format!("{prefix}/{path}/{index}");
                for mut client in clients(scene).await {
                    let outcome = post(&mut client, &path, full(sent.clone())).await;
                    let is_right = outcome == row.outcome(ends, &sent);
                    assert!(is_right, "{}: {path}: {}", row.name, shown(&outcome));
                    check(&mut seen);
                }
            }
        }
    }
    assert_eq!(foreign.requests(), 0);
}
