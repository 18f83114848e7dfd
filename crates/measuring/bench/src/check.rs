//! Whether a comparison can be made here: memory and disk, with numbers.

use std::path::Path;

use farshore_load::size::Bytes;

use crate::plan::Experiment;
use crate::proc;
use crate::targets::spec::Spec;

/// What is left to the rest of the machine, in bytes.
const LEFT_FREE: u64 = 128 << 20;

/// What an experiment needs at most at one time, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// RAM.
    pub memory_bytes: u64,
    /// Space in the directory.
    pub disk_bytes: u64,
}

/// What `experiment` needs. `uses_device` tells whether a target's pages go to the directory.
#[must_use]
pub fn need(experiment: &Experiment, uses_device: &dyn Fn(&Spec) -> bool) -> Need {
    let data = experiment.data_bytes();
    // A graph is made once, and lies in the directory.
    let mut need = Need {
        memory_bytes: 0,
        disk_bytes: if matches!(experiment.workload().as_str(), "pagerank" | "bfs" | "cc") { data } else { 0 },
    };
    for target in &experiment.targets {
        // One runs at a time, but swap files stay from round to round.
        let (memory, disk) = match target.kind() {
            // Without a limit: all data, and as much again for programs of which nothing is known.
            "native" | "command" => (data.max(experiment.memory_bytes).saturating_add(data / 4), 0),
            "farshore" if uses_device(target) => {
                (experiment.memory_bytes.saturating_add(experiment.pool_bytes), data.max(experiment.swap_bytes / 2))
            }
            // Spaces in RAM, and compressed RAM at its worst: nothing can be compressed.
            "farshore" | "zram" => (experiment.memory_bytes.saturating_add(data.max(experiment.swap_bytes / 2)), 0),
            // linux-swap and zswap: written in full.
            _ => (experiment.memory_bytes, experiment.swap_bytes.saturating_add(u64::from(experiment.swap_files) * (64 << 20))),
        };
        need.memory_bytes = need.memory_bytes.max(memory);
        need.disk_bytes = need.disk_bytes.saturating_add(disk);
    }
    need
}

/// Refuses what this machine has no room for. `device_file` is what the device is measured on before, in bytes.
///
/// # Errors
/// What is needed and what there is: one line.
pub fn check(
    experiment: &Experiment,
    device_file: u64,
    directory: &Path,
    uses_device: &dyn Fn(&Spec) -> bool,
) -> Result<(), String> {
    let free = rustix::fs::statvfs(directory)
        .map(|space| space.f_bavail.saturating_mul(space.f_frsize))
        .map_err(|error| format!("cannot look at '{}' ({error}): name another directory by --dir", directory.display()))?;
    let need = need(experiment, uses_device);
    let need = Need { disk_bytes: need.disk_bytes.max(device_file), ..need };
    enough(experiment, need, proc::available_memory_bytes(), free, directory)
}

fn enough(experiment: &Experiment, need: Need, memory: u64, disk: u64, directory: &Path) -> Result<(), String> {
    let whole = |bytes: u64| Bytes(bytes >> 20 << 20);
    let wanted = need.memory_bytes.saturating_add(LEFT_FREE);
    if wanted > memory {
        return Err(format!(
            "not enough memory for '{}': it needs {}, {} of them to be left free, and {} are available: make it smaller (--size, --memory), or leave out native and zram",
            experiment.name,
            whole(wanted),
            whole(LEFT_FREE),
            whole(memory)
        ));
    }
    let wanted = need.disk_bytes.saturating_add(LEFT_FREE);
    if wanted > disk {
        return Err(format!(
            "not enough room in '{}' for '{}': it needs {}, {} of them to be left free, and {} are free: make it smaller (--size, --swap-size), or name another directory by --dir",
            directory.display(),
            experiment.name,
            whole(wanted),
            whole(LEFT_FREE),
            whole(disk)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Subject;
    use crate::targets::spec;

    fn experiment(targets: &str) -> Experiment {
        Experiment {
            name: "x".into(),
            subject: Subject::Program(vec!["true".into()]),
            memory_bytes: 100 << 20,
            pool_bytes: 0,
            swap_bytes: 400 << 20,
            swap_files: 1,
            sweep: None,
            targets: spec::parse_list(targets).unwrap(),
            family: String::new(),
            paper: None,
            raised: None,
        }
    }

    fn need(experiment: &Experiment) -> Need {
        super::need(experiment, &|target| !target.to_string().contains("delay"))
    }

    #[test]
    fn disk_adds_up_and_memory_is_the_largest() {
        assert_eq!(need(&experiment("native")).disk_bytes, 0);
        assert_eq!(need(&experiment("linux-swap,farshore")).disk_bytes, (464 + 200) << 20);
        assert_eq!(need(&experiment("linux-swap,farshore")).memory_bytes, 100 << 20);
        assert_eq!(need(&experiment("zram")), Need { memory_bytes: 300 << 20, disk_bytes: 0 });
        assert_eq!(need(&experiment("farshore:swap=delay:10us")), Need { memory_bytes: 300 << 20, disk_bytes: 0 });
    }

    #[test]
    fn too_little_is_refused_with_numbers() {
        let experiment = experiment("linux-swap");
        let need = need(&experiment);
        let directory = Path::new("/d");
        assert_eq!(enough(&experiment, need, 228 << 20, 592 << 20, directory), Ok(()));
        let why = enough(&experiment, need, 227 << 20, 592 << 20, directory).unwrap_err();
        assert!(why.contains("228M") && why.contains("227M"), "{why}");
        let why = enough(&experiment, need, 228 << 20, 591 << 20, directory).unwrap_err();
        assert!(why.contains("592M") && why.contains("591M"), "{why}");
        assert!(check(&experiment, 0, Path::new("/nowhere/at/all"), &|_| true).is_err());
    }
}
