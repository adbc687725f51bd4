//! What follows from facts that are made up.

use super::*;
use crate::Pid;
use crate::self_test::Refusal;

fn facts() -> Facts {
    Facts {
        pid: Pid::current(),
        table: Table::Own,
        pidfd: None,
        handles: true,
        lock_limit: None,
        hides: false,
        boot: true,
        filtered: false,
    }
}

fn place() -> Place {
    Place {
        release: "6.18.0".into(),
        version: Some((6, 18)),
        subreaper: Ok(()),
        children_listed: true,
        capabilities: vec![("CAP_KILL", true)],
        descriptors: None,
        processes: None,
        group_processes: None,
        container: None,
        first_process: b"init".to_vec(),
        directories: vec![Directory::default()],
    }
}

fn worst(facts: &Facts, place: &Place) -> (Level, &'static str) {
    let findings = findings(facts, place);
    for one in &findings {
        let fine = one.level == Level::Fine;
        assert_eq!(fine, one.cost.is_empty(), "{one:?}");
        assert_eq!(fine, one.remedy.is_empty(), "{one:?}");
    }
    // Of those that are equally bad, the first.
    let worst = findings.iter().map(|one| one.level).max().unwrap();
    (worst, findings.iter().find(|one| one.level == worst).unwrap().check)
}

#[test]
fn each_missing_thing_is_found_and_has_a_cost_and_a_remedy() {
    assert_eq!(worst(&facts(), &place()).0, Level::Fine);
    let refusal = Refusal { call: "pidfd_open", errno: Errno::EPERM };
    for (facts, expected) in [
        (Facts { table: Table::Foreign(7), ..facts() }, (Level::Broken, "process table")),
        (
            Facts { table: Table::Absent(Errno::ENOENT), ..facts() },
            (Level::Broken, "process table"),
        ),
        (Facts { pidfd: Some(refusal), ..facts() }, (Level::Broken, "pidfd")),
        (Facts { handles: false, ..facts() }, (Level::Note, "handles")),
        (Facts { lock_limit: Some(8), ..facts() }, (Level::Weaker, "lineage")),
        (Facts { hides: true, ..facts() }, (Level::Weaker, "visibility")),
        (Facts { boot: false, ..facts() }, (Level::Weaker, "boot")),
        (Facts { filtered: true, ..facts() }, (Level::Note, "seccomp")),
    ] {
        assert_eq!(worst(&facts, &place()), expected);
    }
    let of = |directory| vec![directory];
    for (place, expected) in [
        (Place { version: Some((5, 8)), ..place() }, (Level::Broken, "kernel")),
        (Place { subreaper: Err(Errno::EPERM), ..place() }, (Level::Broken, "subreaper")),
        (Place { children_listed: false, ..place() }, (Level::Note, "children")),
        (
            Place { capabilities: vec![("CAP_KILL", false)], ..place() },
            (Level::Note, "capabilities"),
        ),
        (Place { descriptors: Some(256), ..place() }, (Level::Note, "descriptors")),
        (Place { directories: Vec::new(), ..place() }, (Level::Note, "data directory")),
        (
            Place { container: Some("docker".into()), first_process: b"sh".to_vec(), ..place() },
            (Level::Note, "container"),
        ),
        (
            Place {
                directories: of(Directory { shared: true, ..Directory::default() }),
                ..place()
            },
            (Level::Broken, "data directory"),
        ),
        (
            Place {
                directories: of(Directory {
                    failed: Some(("flock", Errno::ENOLCK)),
                    ..Directory::default()
                }),
                ..place()
            },
            (Level::Broken, "data directory"),
        ),
        (
            Place {
                directories: of(Directory { free_bytes: Some(1), ..Directory::default() }),
                ..place()
            },
            (Level::Weaker, "data directory"),
        ),
        (
            Place {
                directories: of(Directory { in_memory: true, ..Directory::default() }),
                ..place()
            },
            (Level::Note, "data directory"),
        ),
    ] {
        assert_eq!(worst(&facts(), &place), expected);
    }
}
