//! On which NUMA node each processor is, as the kernel tells at the start: a core without slots asks its neighbours first.

use std::fs;
use std::path::Path;

/// For each processor its node. Of those of which nothing is known: 0.
pub fn of_cores() -> impl FnMut(usize) -> u8 {
    let nodes = read(Path::new("/sys/devices/system/node"));
    move |core| nodes.iter().find(|(_, cores)| cores.contains(&core)).map_or(0, |(node, _)| *node)
}

fn read(directory: &Path) -> Vec<(u8, Vec<usize>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, cores(fs::read_to_string(entry.path().join("cpulist")).ok()?.trim())?))
    };
    entries.filter_map(node).collect()
}

/// A list as `0-3,8`.
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(cores("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cores(""), Some(vec![]), "a node may have memory alone");
        assert_eq!(cores("0-x"), None);
    }

    #[test]
    fn a_machine_without_nodes_has_one() {
        assert_eq!(read(Path::new("/nowhere")), []);
    }
}
