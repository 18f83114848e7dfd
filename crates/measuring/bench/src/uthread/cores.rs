//! Which cores the server's workers have, and which the generator.
//!
//! Only those are bound: the server's other threads (its evictors, the one that sends its replies) run anywhere.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Who has which cores; nothing is bound where both are empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Split {
    /// The server's workers.
    pub server: Vec<usize>,
    /// The generator.
    pub generator: Vec<usize>,
}

impl Split {
    /// The first `count` of the cores that this process may use are the server's, the others the generator's.
    ///
    /// # Errors
    /// None would be left: one line.
    pub fn new(count: usize) -> Result<Split, String> {
        Split::of(&allowed(), count)
    }

    fn of(cores: &[usize], count: usize) -> Result<Split, String> {
        // On one core there is nothing to be divided.
        if count == 0 || cores.len() < 2 {
            return Ok(Split::default());
        }
        if count >= cores.len() {
            return Err(format!(
                "--cores {count} leaves none of {} for the generator: give less, or 0 to bind nothing",
                cores.len()
            ));
        }
        let (server, generator) = cores.split_at(count);
        Ok(Split { server: server.to_vec(), generator: generator.to_vec() })
    }

    /// For a reader.
    #[must_use]
    pub fn text(&self) -> String {
        if self.server.is_empty() {
            return "nothing is bound to cores".into();
        }
        let named = |cores: &[usize]| format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, list(cores));
        format!(
            "workers on {}, generator on {}, other threads of the server anywhere",
            named(&self.server),
            named(&self.generator)
        )
    }
}

/// Numbers with commas between them.
#[must_use]
pub fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// As the kernel has them.
#[must_use]
pub fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// The cores that this process may use.
fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Does `work` on these cores; processes that it starts inherit them. On none: it is just done.
///
/// # Errors
/// They cannot be had: one line.
pub fn on<T>(cores: &[usize], work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    if cores.is_empty() {
        return work();
    }
    let cannot = |error| format!("cannot use cores {} ({error}): --cores 0 binds nothing", list(cores));
    let before = sched_getaffinity(None).map_err(cannot)?;
    sched_setaffinity(None, &set(cores)).map_err(cannot)?;
    let done = work();
    sched_setaffinity(None, &before).map_err(cannot)?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gets_what_is_left() {
        let split = |cores: &[usize], count| Split::of(cores, count).map(|split| (split.server, split.generator));
        assert_eq!(split(&[0, 1], 1), Ok((vec![0], vec![1])));
        assert_eq!(split(&[2, 3, 5, 7], 2), Ok((vec![2, 3], vec![5, 7])));
        assert_eq!(split(&[4], 1), Ok((vec![], vec![])));
        assert_eq!(split(&[0, 1], 0), Ok((vec![], vec![])));
        assert!(split(&[0, 1], 2).is_err());
        let text = Split { server: vec![0], generator: vec![1, 3] }.text();
        assert_eq!(text, "workers on core 0, generator on cores 1,3, other threads of the server anywhere");
        assert!(Split::default().text().contains("nothing"));
    }

    #[test]
    fn children_inherit_cores_and_this_thread_has_its_own_back() {
        let before = allowed();
        let first = &before[..1];
        let seen = on(first, || std::process::Command::new("nproc").output().map_err(|error| error.to_string())).unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), "1");
        assert_eq!(allowed(), before);
        assert_eq!(on(&[], || Ok(1)), Ok(1));
        assert!(on(&[CpuSet::MAX_CPU - 1], || Ok(1)).is_err_and(|why| why.contains("--cores")));
        assert_eq!(allowed(), before);
    }
}
