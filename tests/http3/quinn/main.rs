//! A client of quinn, with h3 for HTTP/3. Each line of standard input is a command in JSON; an answer with the same id is a line of
//! standard output. Commands run at the same time. The argument is a file with the authorities of servers.

mod connect;
mod message;
mod request;
mod wire;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use std::{env, io, thread};

use anyhow::Context as _;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use connect::Connector;
use message::{Answer, Command, Task};
use request::Requests;

/// Only a failure takes so long. Less than the test waits for an answer, so that the answer says what has not come.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Client {
    connector: Rc<Connector>,
    requests: Requests,
}

impl Client {
    fn new(authorities: &Path) -> anyhow::Result<Self> {
        let connector = Rc::new(Connector::new(authorities)?);
        let requests = Requests::new(connector.clone());
        Ok(Self {
            connector,
            requests,
        })
    }

    async fn run(&self, command: Command) -> Answer {
        let answer = match command.task {
            Task::Request(sent) => self.requests.run(command.id, &sent).await,
            Task::Cancel { target } => {
                self.requests.cancel(target);
                Answer::default()
            }
            Task::Wire(sent) => match within(wire::run(&self.connector, &sent)).await {
                Ok(received) => Answer::received(&received),
                Err(error) => Answer::failed(&error),
            },
            Task::Connect(sent) => match within(self.connector.handshake(&sent)).await {
                Ok(names) => Answer::served(names),
                Err(error) => Answer::failed(&error),
            },
        };
        Answer {
            id: command.id,
            ..answer
        }
    }
}

/// The result of what may take no longer than an answer takes.
async fn within<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    timeout(TIMEOUT, work).await?
}

/// The lines of standard input.
fn lines() -> UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

async fn serve(client: &Rc<Client>) -> anyhow::Result<()> {
    let mut lines = lines();
    while let Some(line) = lines.recv().await {
        let command: Command = serde_json::from_str(&line)?;
        let client = client.clone();
        spawn_local(async move {
            let answer = client.run(command).await;
            let line = serde_json::to_string(&answer).expect("an answer is JSON");
            println!("{line}");
        });
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let authorities = env::args_os().nth(1).context("no file of authorities")?;
    let client = Rc::new(Client::new(Path::new(&authorities))?);
    LocalSet::new().run_until(serve(&client)).await
}
