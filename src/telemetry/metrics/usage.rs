//! What the process takes of its machine, as the kernel says. Must not know metrics.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// What the process takes. Omits what the kernel does not say.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// CPU time of all its threads, user and system.
    pub(super) cpu: Duration,
    /// Resident memory in bytes.
    pub(super) resident: Option<u64>,
    /// Open file descriptors.
    pub(super) descriptors: Option<u64>,
    /// Limit of open file descriptors.
    pub(super) max_descriptors: Option<u64>,
    /// Start of the process, since 1970.
    pub(super) start: Option<Duration>,
}

impl Usage {
    /// Asks the kernel.
    pub(super) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let memory = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        // Field 2, in pages: proc(5).
        let pages = memory.split(' ').nth(1).map(str::parse::<u64>);
        // One is that of the listing.
        let descriptors = fs::read_dir("/proc/self/fd").map(|all| all.count() as u64 - 1);
        Self {
            cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
            resident: pages
                .and_then(Result::ok)
                .map(|count| count * page_size() as u64),
            descriptors: descriptors.ok(),
            max_descriptors: getrlimit(Resource::Nofile).current,
            start: start(),
        }
    }
}

/// Returns when the process has started: proc(5) has it in ticks since the machine started.
fn start() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process, in parentheses, may contain blanks. The field is the 20th after it.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').nth(19)?.parse().ok()?;
    let after = Duration::from_millis(ticks * 1000 / clock_ticks_per_second());
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split(' ').next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let age = Duration::from_secs_f64(uptime).saturating_sub(after);
    now.checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_all() {
        let usage = Usage::now();
        assert!(usage.cpu > Duration::ZERO);
        let resident = usage.resident.unwrap();
        assert!(resident > 1 << 20, "{resident}");
        let descriptors = usage.descriptors.unwrap();
        assert!(descriptors > 2 && descriptors < usage.max_descriptors.unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age = now.saturating_sub(usage.start.unwrap());
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
