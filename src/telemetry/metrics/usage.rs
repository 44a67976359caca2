//! What the process takes of its machine, as the kernel says. Must not know metrics.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::param::clock_ticks_per_second;
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
        // One is that of the listing.
        let descriptors = fs::read_dir("/proc/self/fd").map(|all| all.count() as u64 - 1);
        Self {
            cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
            resident: resident(),
            descriptors: descriptors.ok(),
            max_descriptors: getrlimit(Resource::Nofile).current,
            start: start(),
        }
    }
}

/// The memory of the process and what it may have.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUse {
    /// Resident memory in bytes.
    pub resident: u64,
    /// The limit of its control group in bytes.
    pub limit: u64,
}

impl MemoryUse {
    /// Asks the kernel. `None` without a limit.
    pub fn now() -> Option<Self> {
        Some(Self {
            resident: resident()?,
            limit: limit()?,
        })
    }
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    // In KiB: proc_pid_status(5).
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// Returns the limit of memory of the control group: cgroups(7). Version 1 shows none as a very large number.
fn limit() -> Option<u64> {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = format!("/sys/fs/cgroup/{}/memory.max", group.unwrap_or_default());
    let v1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
    let texts = [own.as_str(), v1].into_iter().map(fs::read_to_string);
    let mut limits = texts.flatten().flat_map(|text| text.trim().parse());
    limits.next()
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
