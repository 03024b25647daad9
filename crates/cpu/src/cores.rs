//! Which cores this process may use, and how a thread stays on one.

use std::collections::BTreeSet;
use std::io;

/// A processor of each core that this process may run on, ascending: hardware threads of one core share
/// its units, so that a second one of them would gain nothing. Never empty.
pub(crate) fn physical_cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.and_then(|list| parse_list(list.trim())).filter(|list| !list.is_empty());
    // Where the system does not tell, every processor counts as a core.
    let allowed = allowed.unwrap_or_else(|| (0..processors()).collect());
    one_of_each_core(&allowed, |cpu| {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(topology).ok()
    })
}

/// Threads that a pool gets by default: one per physical core, and no more than the share of processor
/// time that a control group leaves this process.
pub(crate) fn default_threads() -> usize {
    physical_cores().len().min(processors())
}

/// Processors worth of time, by affinity and control groups.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The first processor of each core among `allowed`; `siblings` names the core of a processor.
fn one_of_each_core(allowed: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let first_of_core = |cpu: &usize| siblings(*cpu).is_none_or(|core| seen.insert(core));
    allowed.iter().copied().filter(first_of_core).collect()
}

/// A list like `0-3,8`, as Linux writes it.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(all)
}

/// Keeps the calling thread, and threads that it starts, on one processor.
///
/// # Errors
/// When the system refuses, or has no such call.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::other(format!("processor {cpu} is beyond what a mask can name")));
    }
    // SAFETY: a mask is plain bits, and all zeros are an empty one; `cpu` is inside it, as was checked; 0
    // is the calling thread, and the mask is as long as is said.
    let refused = unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut mask);
        libc::sched_setaffinity(0, size_of_val(&mask), &mask) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As on Linux, where this is possible.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_cpu: usize) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "threads can be pinned on Linux only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        // Four cores of two threads each; the last processor's core is not known.
        let core = |cpu: usize| (cpu < 8).then(|| format!("{},{}", cpu % 4, cpu % 4 + 4));
        assert_eq!(one_of_each_core(&[0, 1, 2, 3, 4, 5, 6, 7], core), [0, 1, 2, 3]);
        assert_eq!(one_of_each_core(&[1, 5], core), [1], "an affinity to one core, both of its threads");
        assert_eq!(one_of_each_core(&[3, 4, 7, 8, 9], core), [3, 4, 8, 9]);
    }

    #[test]
    fn lists_are_read_as_linux_writes_them() {
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("0-"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        let last = *physical_cores().last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            // SAFETY: takes nothing, and gives the processor that runs this thread.
            assert_eq!(unsafe { libc::sched_getcpu() }, last as i32);
            assert!(pin(usize::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
