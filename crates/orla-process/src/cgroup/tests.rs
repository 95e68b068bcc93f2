use super::*;

/// A directory with the files of a group.
fn fake(controllers: &str, processes: &str) -> (tempfile::TempDir, place::Place) {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("cgroup.events", "populated 1\n"),
        ("cgroup.controllers", controllers),
        ("cgroup.procs", processes),
        ("cgroup.subtree_control", ""),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    fs::create_dir(folder.path().join(SERVER)).unwrap();
    fs::write(folder.path().join(SERVER).join("cgroup.procs"), "").unwrap();
    let place = place::Place { directory: folder.path().to_owned(), is_top: true };
    (folder, place)
}

fn read(folder: &tempfile::TempDir, file: &str) -> String {
    fs::read_to_string(folder.path().join(file)).unwrap()
}

#[test]
fn a_delegated_group_passes_its_controllers_on_when_this_process_has_left_it() {
    let (folder, place) = fake("cpu memory pids\n", &format!("{}\n", std::process::id()));
    let delegated = Delegated::of(place).unwrap();
    assert_eq!(delegated.directory(), folder.path());
    assert_eq!(read(&folder, "orla.server/cgroup.procs"), "0");
    assert_eq!(read(&folder, "cgroup.subtree_control"), "+memory +pids");
}

#[test]
fn a_process_in_a_group_of_a_delegated_one_uses_that() {
    let (folder, place) = fake("memory pids", "");
    fs::write(folder.path().join("cgroup.subtree_control"), "pids\n").unwrap();
    let inside = place::Place { directory: place.directory.join(SERVER), is_top: false };
    let delegated = Delegated::of(inside).unwrap();
    assert_eq!(delegated.directory(), folder.path());
    assert_eq!(read(&folder, "orla.server/cgroup.procs"), "", "it stays where it is");
    assert_eq!(read(&folder, "cgroup.subtree_control"), "+memory");
}

#[test]
fn a_group_that_is_not_delegated_stays_as_it_is() {
    let own = std::process::id().to_string();
    let cases = [
        (fake("memory", &own), "the controller pids is not delegated"),
        (fake("memory pids", &format!("1\n{own}\n")), "other processes run in"),
        (
            {
                // Nobody has marked it, and it is not the topmost.
                let (folder, place) = fake("memory pids", &own);
                (folder, place::Place { is_top: false, ..place })
            },
            "is not delegated to it",
        ),
        (
            {
                let (folder, place) = fake("memory pids", "");
                let call = place.directory.join("orla.call.1-0");
                (folder, place::Place { directory: call, is_top: false })
            },
            "runs in the control group of a call",
        ),
        (
            {
                // Another group beside its own shows that somebody else manages the group around both.
                let (folder, place) = fake("memory pids", "");
                fs::create_dir(place.directory.join("app.slice")).unwrap();
                let inside = place.directory.join(SERVER);
                (folder, place::Place { directory: inside, is_top: false })
            },
            "is not delegated to it",
        ),
    ];
    for ((folder, place), expected) in cases {
        let err = Delegated::of(place).unwrap_err();
        assert!(err.contains(expected), "{err}");
        assert_eq!(read(&folder, "cgroup.subtree_control"), "");
        assert_eq!(read(&folder, "orla.server/cgroup.procs"), "");
    }
}

#[test]
fn limits_become_settings_of_a_group() {
    let limits = Limits { memory: Some(1 << 20), processes: Some(8), ..Limits::default() };
    let all =
        [("memory.max", 1 << 20), ("memory.swap.max", 0), ("memory.oom.group", 1), ("pids.max", 9)];
    assert_eq!(settings(&limits), all);
    assert_eq!(settings(&Limits { cpu_seconds: Some(1), ..Limits::default() }), []);
}

#[test]
fn a_group_is_made_for_a_compartment_and_removed_with_it() {
    let (folder, place) = fake("memory pids", "");
    let delegated = Delegated::of(place).unwrap();
    let limits = Limits { cpu_seconds: Some(1), ..Limits::default() };
    let groups = || {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(CALL)).count()
    };
    let (one, other) = (delegated.group(&limits).unwrap(), delegated.group(&limits).unwrap());
    assert_eq!(groups(), 2);
    drop((one, other));
    assert_eq!(groups(), 0);
}

#[test]
fn only_groups_that_no_instance_holds_are_swept() {
    let (folder, place) = fake("memory pids", "");
    let delegated = Delegated::of(place).unwrap();
    let held = delegated.group(&Limits::default()).unwrap();
    let left = folder.path().join("orla.call.1-0");
    let foreign = folder.path().join("other");
    fs::create_dir(&left).unwrap();
    fs::create_dir(&foreign).unwrap();
    sweep(folder.path());
    assert!(!left.exists());
    assert!(foreign.exists() && folder.path().join(SERVER).exists());
    assert!(held.path.exists());
}
