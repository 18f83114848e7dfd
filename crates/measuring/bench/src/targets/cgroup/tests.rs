//! Version 2 against a directory tree that looks like one: what the kernel would do there is done by the tests.

use super::*;

/// A tree with `memory` in the top's controllers, and our own cgroup two levels below it.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for (folder, processes) in [("", "1\n"), ("user.slice", ""), ("user.slice/session.scope", "7\n")] {
            fs::create_dir_all(tree.at(folder)).unwrap();
            tree.put(folder, "cgroup.controllers", "cpu io memory pids\n");
            tree.put(folder, CONTROL, "cpu pids\n");
            tree.put(folder, "cgroup.procs", processes);
            if !folder.is_empty() {
                tree.put(folder, "cgroup.type", "domain\n");
            }
        }
        tree
    }

    fn at(&self, folder: &str) -> PathBuf {
        self.0.path().join(folder)
    }

    fn put(&self, folder: &str, file: &str, text: &str) {
        fs::write(self.at(folder).join(file), text).unwrap();
    }

    fn hierarchy(&self) -> Hierarchy {
        let told = "0::/user.slice/session.scope\n";
        Hierarchy::find_among(&[Path::new("/nonexistent"), self.0.path()], Path::new("/nonexistent"), told).unwrap()
    }
}

#[test]
fn version_2_is_taken_where_it_has_the_controller() {
    let tree = Tree::new();
    let found = tree.hierarchy();
    assert_eq!((found.version, found.base.as_path()), (Version::Two, tree.0.path()));
    assert_eq!(found.own, Path::new("user.slice/session.scope"));
    // Without it, version 1.
    tree.put("", "cgroup.controllers", "cpu hugetlb\n");
    let one = tempfile::tempdir().unwrap();
    let told = "4:cpu,memory:/docker/x\n0::/y\n";
    let why = Hierarchy::find_among(&[tree.0.path()], one.path(), told).unwrap_err();
    assert!(why.contains("no memory cgroup") && !why.contains('\n'), "{why}");
    fs::write(one.path().join("memory.limit_in_bytes"), "9\n").unwrap();
    let found = Hierarchy::find_among(&[tree.0.path()], one.path(), told).unwrap();
    assert_eq!((found.version, found.own.as_path()), (Version::One, Path::new("docker/x")));
    // That path is not visible from here.
    assert_eq!(found.parent().unwrap(), Parent { path: one.path().into(), enable: false });
    fs::create_dir_all(one.path().join("docker/x")).unwrap();
    fs::write(one.path().join("docker/x/cgroup.procs"), "1\n").unwrap();
    assert_eq!(found.parent().unwrap().path, one.path().join("docker/x"));
}

#[test]
fn the_nearest_that_has_the_controller_for_its_children_is_taken() {
    let tree = Tree::new();
    tree.put("", CONTROL, "cpu memory\n");
    assert_eq!(tree.hierarchy().parent().unwrap(), Parent { path: tree.at(""), enable: false });
    tree.put("user.slice", CONTROL, "memory\n");
    assert_eq!(tree.hierarchy().parent().unwrap(), Parent { path: tree.at("user.slice"), enable: false });
}

#[test]
fn else_the_nearest_that_can_be_given_it() {
    let tree = Tree::new();
    assert_eq!(tree.hierarchy().parent().unwrap(), Parent { path: tree.at("user.slice"), enable: true });
    // Processes of its own are in the way, but not in the root.
    tree.put("user.slice", "cgroup.procs", "9\n");
    assert_eq!(tree.hierarchy().parent().unwrap(), Parent { path: tree.at(""), enable: true });
    // In a container the top is not the root.
    tree.put("", "cgroup.type", "domain\n");
    let why = tree.hierarchy().parent().unwrap_err();
    assert!(why.contains("cgroup.subtree_control") && !why.contains('\n'), "{why}");
    tree.hierarchy().enable(&tree.at("user.slice")).unwrap();
    assert_eq!(fs::read_to_string(tree.at("user.slice").join(CONTROL)).unwrap(), "+memory");
}

#[test]
fn a_controller_that_others_rely_on_stays() {
    let tree = Tree::new();
    assert_eq!(disable(&tree.at("user.slice"), "memory"), Ok(true), "it is not on");
    tree.put("user.slice", CONTROL, "cpu memory\n");
    tree.put("user.slice/session.scope", "memory.max", "4096\n");
    assert_eq!(disable(&tree.at("user.slice"), "memory"), Ok(false));
    tree.put("user.slice/session.scope", "memory.max", "max\n");
    fs::create_dir(tree.at("user.slice/farshore-bench-1-2-3")).unwrap();
    assert_eq!(disable(&tree.at("user.slice"), "memory"), Ok(false));
    fs::remove_dir(tree.at("user.slice/farshore-bench-1-2-3")).unwrap();
    assert_eq!(disable(&tree.at("user.slice"), "memory"), Ok(true));
    assert_eq!(fs::read_to_string(tree.at("user.slice").join(CONTROL)).unwrap(), "-memory");
}

#[test]
fn a_cgroup_is_made_read_and_removed() {
    let tree = Tree::new();
    let cgroup = Cgroup::at(tree.at("farshore-bench-1-2-1"), Version::Two);
    cgroup.make(12 << 20).unwrap();
    assert_eq!(fs::read_to_string(cgroup.path.join("memory.max")).unwrap(), "12582912");
    assert!(cgroup.make(1).unwrap_err().contains("File exists"));
    assert_eq!((cgroup.peak_bytes(), cgroup.killed()), (0, 0), "nothing is told yet");
    fs::write(cgroup.path.join("memory.peak"), "8192\n").unwrap();
    fs::write(cgroup.path.join("memory.events"), "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\noom_group_kill 0\n").unwrap();
    assert_eq!((cgroup.peak_bytes(), cgroup.killed()), (8192, 2));
    for file in fs::read_dir(&cgroup.path).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert_eq!(remove(&cgroup.path), Ok(true));
    assert_eq!(remove(&cgroup.path), Ok(false));
    assert!(remove(&tree.at("user.slice")).is_err(), "it is not named as ours");
    assert!(tree.at("user.slice").is_dir());
}

#[test]
fn own_cgroups_are_found_in_what_proc_tells() {
    let told = "9:name=systemd:/a\n4:cpu,memory:/b/c\n0::/d:e\n";
    assert_eq!(own_of(told, "memory"), Path::new("b/c"));
    assert_eq!(own_of(told, ""), Path::new("d:e"));
    assert_eq!(own_of(told, "pids"), Path::new(""));
    assert_eq!(own_of("0::/../x\n", ""), Path::new(""), "outside of what is visible");
}

/// The mechanics against the kernel's own version 2, with whatever controller is there, since the memory controller may be version 1's.
#[test]
fn the_kernels_version_2_does_as_it_is_told() {
    let bases = BASES.0.map(PathBuf::from);
    let Some(base) = bases.iter().find(|base| base.join("cgroup.controllers").exists()) else {
        return println!("skipped: no cgroup of version 2 is mounted");
    };
    let top = base.join(format!("farshore-bench-test-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&top) {
        return println!("skipped: no cgroup can be made ({error})");
    }
    let cgroup = Cgroup::at(top.join("farshore-bench-inner"), Version::Two);
    fs::create_dir(&cgroup.path).unwrap();
    // It enters, becomes the program, and leaves a child behind.
    let mut child = cgroup.command(&["sleep".into(), "1000".into()]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let name = || fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    let has_entered = || words_of(&cgroup.path.join("cgroup.procs")) == [child.id().to_string()];
    while !(has_entered() && name().trim() == "sleep") && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    let name = name();
    let inside = words_of(&cgroup.path.join("cgroup.procs"));
    assert_eq!(remove(&cgroup.path), Ok(true));
    let status = child.wait().unwrap();
    assert_eq!(remove(&top), Ok(true));
    assert_eq!((name.trim(), inside), ("sleep", vec![child.id().to_string()]));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}
