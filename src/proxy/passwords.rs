//! Threads that verify passwords, which takes up to a second of CPU time each. Fair between namespaces, and between the
//! clients of one. Must not know passwords, policies or requests.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{panic, thread};

use rustc_hash::FxHashMap;

use crate::ir::cidr::client_network;
use crate::ir::sharing::Text;

/// Passwords of a namespace that wait.
const MAX_WAITING: usize = 32;
/// Passwords of a client that wait, of those of a namespace.
const MAX_WAITING_OF_CLIENT: usize = 4;
/// Verifies a password.
type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when no password waits.
#[derive(Clone)]
pub(crate) struct PasswordThreads(Arc<Mutex<Queues>>);

/// Too many passwords wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy;

/// The passwords that wait.
struct Queues {
    by_namespace: FxHashMap<Text, Queue>,
    /// The namespaces whose next password may be verified, the one that has waited longest first.
    ready: VecDeque<Text>,
    threads: usize,
    max_threads: usize,
}

/// The passwords of a namespace.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(IpAddr, Job)>,
    /// Number of threads that verify one.
    running: usize,
    is_ready: bool,
}

impl PasswordThreads {
    /// Creates them, as many as there are workers, and two at least.
    pub(crate) fn new(workers: usize) -> Self {
        Self(Arc::new(Mutex::new(Queues {
            by_namespace: FxHashMap::default(),
            ready: VecDeque::new(),
            threads: 0,
            max_threads: workers.max(2),
        })))
    }

    /// Runs a job for a client of a namespace on a thread, in its turn.
    ///
    /// # Errors
    /// When too many passwords of the namespace or the client wait, or no thread can be started.
    pub(crate) fn run(&self, namespace: &Text, client: IpAddr, job: Job) -> Result<(), Busy> {
        let mut queues = self.lock();
        queues.add(namespace, client, job)?;
        if queues.ready.is_empty() || queues.threads == queues.max_threads {
            return Ok(());
        }
        let own = self.clone();
        let thread = thread::Builder::new().name("passwords".to_owned());
        match thread.spawn(move || own.work()) {
            Ok(_) => queues.threads += 1,
            Err(error) if queues.threads == 0 => {
                tracing::warn!(%error, "cannot start a thread that verifies passwords");
                queues.by_namespace.clear();
                queues.ready.clear();
                return Err(Busy);
            }
            // Others get to it.
            Err(_) => {}
        }
        Ok(())
    }

    /// Verifies passwords until none waits.
    fn work(self) {
        lower_priority();
        let mut queues = self.lock();
        while let Some((namespace, job)) = queues.take() {
            drop(queues);
            // A job that panics ends without a result, and the thread goes on.
            let _ = panic::catch_unwind(AssertUnwindSafe(job));
            queues = self.lock();
            queues.finish(&namespace);
        }
        queues.threads -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn add(&mut self, namespace: &Text, client: IpAddr, job: Job) -> Result<(), Busy> {
        let client = client_network(client);
        let queue = self.by_namespace.entry(namespace.clone()).or_default();
        let of_client = queue.waiting.iter().filter(|(of, _)| *of == client);
        if queue.waiting.len() >= MAX_WAITING || of_client.count() >= MAX_WAITING_OF_CLIENT {
            return Err(Busy);
        }
        queue.waiting.push_back((client, job));
        self.make_ready(namespace);
        Ok(())
    }

    /// Takes the next job. Half of the threads are for other namespaces.
    fn take(&mut self) -> Option<(Text, Job)> {
        let namespace = self.ready.pop_front()?;
        let queue = self.by_namespace.get_mut(&namespace)?;
        queue.is_ready = false;
        let (_, job) = queue.waiting.pop_front()?;
        queue.running += 1;
        self.make_ready(&namespace);
        Some((namespace, job))
    }

    fn finish(&mut self, namespace: &Text) {
        if let Some(queue) = self.by_namespace.get_mut(namespace) {
            queue.running -= 1;
            if queue.running == 0 && queue.waiting.is_empty() {
                self.by_namespace.remove(namespace);
                return;
            }
        }
        self.make_ready(namespace);
    }

    fn make_ready(&mut self, namespace: &Text) {
        let max_running = self.max_threads / 2;
        if let Some(queue) = self.by_namespace.get_mut(namespace)
            && !queue.is_ready
            && !queue.waiting.is_empty()
            && queue.running < max_running
        {
            queue.is_ready = true;
            self.ready.push_back(namespace.clone());
        }
    }
}

/// Gives this thread less CPU time than the workers have. If that fails, passwords only take more time from requests.
#[cfg(target_os = "linux")]
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Elsewhere, the priority is that of the process.
#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// A job that reports its beginning, and ends when the other side sends something.
    fn blocked() -> (Job, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (began, begins) = mpsc::channel();
        let (ends, end) = mpsc::channel();
        let job = Box::new(move || {
            let _ = began.send(());
            let _ = end.recv();
        });
        (job, begins, ends)
    }

    #[test]
    fn namespace_leaves_threads_to_others() {
        let threads = PasswordThreads::new(1);
        let (one, other): (Text, Text) = ("one".into(), "other".into());
        let (job, begins, end) = blocked();
        threads.run(&one, client(1), job).unwrap();
        begins.recv_timeout(TIMEOUT).unwrap();
        let (second, second_begins, _end) = blocked();
        threads.run(&one, client(2), second).unwrap();
        let (job, begins, _) = blocked();
        threads.run(&other, client(1), job).unwrap();
        begins.recv_timeout(TIMEOUT).unwrap();
        assert!(second_begins.try_recv().is_err());
        drop(end);
        second_begins.recv_timeout(TIMEOUT).unwrap();
    }

    #[test]
    fn queues_of_namespaces_and_clients_are_bounded() {
        let threads = PasswordThreads::new(1);
        let (one, other): (Text, Text) = ("one".into(), "other".into());
        let (job, begins, end) = blocked();
        threads.run(&one, client(0), job).unwrap();
        begins.recv_timeout(TIMEOUT).unwrap();
        let mut admitted = 0;
        for last in 1..20 {
            for _ in 0..10 {
                admitted += usize::from(threads.run(&one, client(last), Box::new(|| ())).is_ok());
            }
            assert!(admitted <= MAX_WAITING_OF_CLIENT * usize::from(last));
        }
        assert_eq!(admitted, MAX_WAITING);
        let (done, is_done) = mpsc::channel();
        let job = Box::new(move || done.send(()).unwrap_or_default());
        threads.run(&other, client(1), job).unwrap();
        is_done.recv_timeout(TIMEOUT).unwrap();
        drop(end);
    }

    #[test]
    fn threads_end_and_start_again() {
        let threads = PasswordThreads::new(4);
        let namespace: Text = "one".into();
        for _ in 0..3 {
            let (sender, receiver) = mpsc::channel();
            for last in 0..8 {
                let sender = sender.clone();
                let job = Box::new(move || sender.send(()).unwrap_or_default());
                threads.run(&namespace, client(last), job).unwrap();
            }
            drop(sender);
            assert_eq!(receiver.iter().count(), 8);
        }
    }
}
