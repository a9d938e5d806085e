//! How much memory does this process hold, and how much is there?
//!
//! Linux tells in `/proc`; other systems do not tell here.

use std::fs;

/// Most resident bytes since the start of the process or the last [`reset_peak`].
#[must_use]
pub fn peak_resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "VmHWM:")
}

/// Bytes of memory that the machine has.
#[must_use]
pub fn physical() -> Option<usize> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Lets [`peak_resident`] count from now on, where the system allows it.
pub fn reset_peak() {
    // A system that refuses goes on counting from the start, which is a peak too.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// A line such as `VmHWM:     1234 kB`, in bytes.
fn field(status: &str, name: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn lines_are_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(field(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(field(status, "VmSwap:"), None);
        assert_eq!(field("VmHWM: many kB", "VmHWM:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_holds_memory() {
        super::reset_peak();
        assert!(super::peak_resident() < super::physical());
        assert!(super::peak_resident().is_some_and(|bytes| bytes > 1 << 16));
    }
}
