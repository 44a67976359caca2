//! A name server on loopback, over UDP, with records set by the test. Encodes messages without the
//! library under test.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::TEST_TIMEOUT;

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
/// Flags of a response: recursion desired and available.
const RESPONSE: u16 = 0x8180;
const SERVER_FAILURE: u16 = 2;
const NO_SUCH_NAME: u16 = 3;

/// Records of a name.
#[derive(Clone, Debug)]
pub(crate) enum Records {
    /// Addresses with a TTL in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// A CNAME with a TTL in seconds. The response contains the records of its target too.
    Alias(String, u32),
    /// The server responds with SERVFAIL.
    Failure,
}

#[derive(Default)]
struct Zone {
    names: BTreeMap<String, Records>,
    /// Number of A queries by name.
    queries: BTreeMap<String, usize>,
}

/// A name server; stopped on drop.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    /// Notified on each query.
    asked: watch::Receiver<()>,
    task: AbortHandle,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("bound");
        let zone = Arc::<Mutex<Zone>>::default();
        let served = zone.clone();
        let (news, asked) = watch::channel(());
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let response = lock(&served).respond(&buffer[..length]);
                news.send_replace(());
                if let Some(response) = response {
                    let _ = socket.send_to(&response, peer).await;
                }
            }
        });
        Self {
            address,
            zone,
            asked,
            task: task.abort_handle(),
        }
    }

    /// Sets the addresses of a name.
    pub(crate) fn set(&self, name: &str, addresses: &[&str], ttl: u32) {
        let addresses = addresses.iter().map(|it| it.parse().expect("an address"));
        self.put(name, Records::Addresses(addresses.collect(), ttl));
    }

    pub(crate) fn put(&self, name: &str, records: Records) {
        lock(&self.zone).names.insert(name.to_owned(), records);
    }

    /// Waits until a name has been queried `times` times.
    pub(crate) async fn wait_for_queries(&self, name: &str, times: usize) {
        let mut asked = self.asked.clone();
        let enough = asked.wait_for(|()| self.queries(name) >= times);
        let enough = timeout(TEST_TIMEOUT, enough).await;
        assert!(
            enough.is_ok(),
            "fewer than {times} queries for {name} in time"
        );
    }

    /// Returns number of lookups of a name.
    pub(crate) fn queries(&self, name: &str) -> usize {
        lock(&self.zone)
            .queries
            .get(name)
            .copied()
            .unwrap_or_default()
    }
}

impl Zone {
    fn respond(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        let (name, end) = read_name(query)?;
        let kind = u16::from_be_bytes([*query.get(end)?, *query.get(end + 1)?]);
        let question = query.get(12..end + 4)?;
        if kind == A {
            *self.queries.entry(name.clone()).or_default() += 1;
        }
        let mut answers = Vec::new();
        let code = self.answer(&name, kind, &mut answers);
        let count = u16::try_from(answers.len()).ok()?;
        let mut response = query.get(..2)?.to_vec();
        for field in [RESPONSE | code, 1, count, 0, 0] {
            response.extend(field.to_be_bytes());
        }
        response.extend(question);
        response.extend(answers.concat());
        Some(response)
    }

    /// Adds the records of a name. Returns the response code.
    fn answer(&self, name: &str, kind: u16, answers: &mut Vec<Vec<u8>>) -> u16 {
        match self.names.get(name) {
            None => NO_SUCH_NAME,
            Some(Records::Failure) => SERVER_FAILURE,
            Some(Records::Alias(target, ttl)) => {
                answers.push(record(name, CNAME, *ttl, &write_name(target)));
                self.answer(target, kind, answers)
            }
            Some(Records::Addresses(addresses, ttl)) => {
                for address in addresses {
                    match address {
                        IpAddr::V4(it) if kind == A => {
                            answers.push(record(name, A, *ttl, &it.octets()));
                        }
                        IpAddr::V6(it) if kind == AAAA => {
                            answers.push(record(name, AAAA, *ttl, &it.octets()));
                        }
                        IpAddr::V4(_) | IpAddr::V6(_) => {}
                    }
                }
                0
            }
        }
    }
}

fn record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    const INTERNET: u16 = 1;
    let mut record = write_name(name);
    record.extend(kind.to_be_bytes());
    record.extend(INTERNET.to_be_bytes());
    record.extend(ttl.to_be_bytes());
    let length = u16::try_from(data.len()).expect("short");
    record.extend(length.to_be_bytes());
    record.extend(data);
    record
}

/// Returns the name of the question, in lower case, and its end.
fn read_name(query: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = query.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}

fn write_name(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("short"));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
