//! On which NUMA node each processor is, as the kernel tells at the start: a core without slots asks its neighbours first.

use std::fs;
use std::path::Path;

/// For each processor its node. Of those of which nothing is known: 0.
pub fn of_cores() -> impl FnMut(usize) -> u8 {
    let nodes = read(Path::new("/sys/devices/system/node"));
    move |core| nodes.iter().find(|(_, cores)| cores.contains(&core)).map_or(0, |(node, _)| *node)
}

/// File by file: to list a directory makes libc's heap, before the program's own is managed.
fn read(directory: &Path) -> Vec<(u8, Vec<usize>)> {
    let list_in = |file: &Path| cores(fs::read_to_string(directory.join(file)).ok()?.trim());
    let nodes = list_in(Path::new("online")).unwrap_or_default();
    // One node has all of the processors.
    if nodes.len() <= 1 {
        return Vec::new();
    }
    let node = |number: usize| Some((number.try_into().ok()?, list_in(&Path::new(&format!("node{number}")).join("cpulist"))?));
    nodes.into_iter().filter_map(node).collect()
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
        assert!(
            read(Path::new("/sys/devices/system/node")).iter().all(|(_, cores)| cores.len() <= 4096),
            "what there is can be read"
        );
    }
}
