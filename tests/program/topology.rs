//! `topo`: what it shows of this machine and of others, for people and for programs.

use serde_json::Value;

use crate::common::{Outcome, Stage};

fn fixture(name: &str) -> String {
    format!("{}/numa/tests/numa/fixtures/{name}.xml", env!("CARGO_MANIFEST_DIR"))
}

fn topo(arguments: &str, variable: &str, value: &str) -> Outcome {
    let prepare = |command: &mut std::process::Command| {
        command.env(variable, value);
    };
    Stage::new().start_in(arguments, prepare).finish()
}

#[test]
fn the_object_of_this_machine_names_every_cpu_once() {
    let printed = Stage::new().succeed("topo --json").stdout;
    let object: Value = serde_json::from_str(&printed).expect("JSON");
    let quadrants = object["quadrants"].as_array().expect("quadrants");
    let cpus = |of: &Value| of.as_array().expect("CPUs").iter().filter_map(Value::as_u64).collect::<Vec<_>>();
    let mut all: Vec<u64> = quadrants.iter().flat_map(|quadrant| cpus(&quadrant["cpus"])).collect();
    all.sort_unstable();
    assert_eq!(all, cpus(&object["machine"]["cpus"]));
    assert!(object["machine"]["here"].as_bool().expect("a truth") && object["warnings"].is_array());
    let threads = object["threads"].as_array().expect("threads");
    assert!(threads.iter().any(|thread| thread["role"] == "compute"), "{printed}");
    assert!(threads.iter().all(|t| t["cpu"].as_u64().is_none_or(|cpu| all.contains(&cpu))), "{printed}");
}

#[test]
fn parts_are_chosen_by_what_a_training_copies() {
    let stage = Stage::new();
    let printed = stage.succeed("topo --model net.prototxt --quadrants auto").stdout;
    assert!(printed.contains("\nparts        1 part(s) of each worker: a copy of "), "{printed}");
    assert!(printed.contains("--quadrants auto takes "), "{printed}");
    let trained =
        stage.succeed("train --solver solver.prototxt --run a --max-iter 1 --quadrants auto").stdout;
    assert!(trained.contains("note        --quadrants auto takes "), "{trained}");
    let refused = stage.run("topo --quadrants many");
    assert_eq!((refused.code, refused.stderr.contains("auto or l3")), (Some(2), true), "{}", refused.stderr);
}

#[test]
fn quadrants_are_cut_at_third_level_caches_if_that_is_asked_for() {
    let stage = Stage::new();
    for command in ["topo", "train --solver solver.prototxt --run a --max-iter 1 --workers 1"] {
        let here = stage.run(&format!("{command} --quadrants l3"));
        match here.code {
            Some(0) => {
                assert!(here.stdout.contains("as asked: one for each third-level cache"), "{}", here.stdout)
            }
            code => {
                assert_eq!(code, Some(2), "{}", here.stderr);
                assert!(here.stderr.contains("ask for a number of quadrants"), "{}", here.stderr);
            }
        }
    }
    if !cfg!(feature = "hwloc") {
        println!("skipped: built without the feature hwloc, which alone makes machines up");
        return;
    }
    let epyc = "pack:1 numa:1 l3:6 core:8 pu:2";
    let cut = topo("topo --quadrants l3", "HWLOC_SYNTHETIC", epyc);
    assert!(
        cut.stdout.contains("6 quadrants as asked: one for each third-level cache; 8 threads each"),
        "{}",
        cut.stdout
    );
    let whole = topo("topo", "HWLOC_SYNTHETIC", epyc);
    assert!(
        whole.stdout.contains("6 third-level caches, at which --quadrants l3 would cut"),
        "{}",
        whole.stdout
    );
    let unknown = topo("topo --quadrants l3", "HWLOC_SYNTHETIC", "pack:1 numa:1 core:8 pu:2");
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("ask for a number of quadrants"), "{}", unknown.stderr);
}

/// A Knights Landing whose fast memory holds more copies of LeNet than it has nodes.
#[test]
fn more_parts_than_nodes_where_copies_fit_fast_memory() {
    let outcome = topo("topo --quadrants auto", "HWLOC_XMLFILE", &fixture("knl-snc4-flat"));
    if !cfg!(feature = "hwloc") {
        println!("skipped: built without the feature hwloc, files of hwloc are only refused");
        assert_eq!(outcome.code, Some(71), "{}", outcome.stderr);
        return;
    }
    assert!(outcome.stdout.contains("16 part(s) of each"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("--quadrants auto takes 16: "), "{}", outcome.stdout);
}

#[test]
fn a_machine_that_is_not_here_is_described() {
    let outcome = topo("topo --json", "HWLOC_XMLFILE", &fixture("knl-mcdram-node-7"));
    if !cfg!(feature = "hwloc") {
        println!("skipped: built without the feature hwloc, files of hwloc are only refused");
        assert_eq!(outcome.code, Some(71), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("--features hwloc"), "{}", outcome.stderr);
        return;
    }
    let object: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let first = &object["quadrants"][0];
    let expected = serde_json::json!({"node": 7, "bytes": 4u64 << 30, "bandwidth": 90_000});
    assert_eq!((&first["fast"], &first["dram"]["node"]), (&expected, &Value::from(0)));
    let drawn = topo("topo", "HWLOC_XMLFILE", &fixture("knl-mcdram-node-7")).stdout;
    assert!(drawn.contains("MCDRAM  node 7: 4 GiB, 88 GiB/s"), "{drawn}");
}

#[test]
fn a_description_that_cannot_be_read_ends_with_71_and_its_name() {
    for (variable, value) in [
        ("HWLOC_XMLFILE", "nowhere.xml"),
        ("HWLOC_XMLFILE", "."),
        ("HWLOC_FSROOT", "nowhere"),
        ("HWLOC_SYNTHETIC", "a cat"),
    ] {
        let outcome = topo("topo", variable, value);
        assert_eq!(outcome.code, Some(71), "{variable}={value}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(&format!("{variable}={value}: ")), "{}", outcome.stderr);
    }
}

#[test]
fn cores_are_kept_for_threads_that_do_not_compute_if_asked() {
    let stage = Stage::new();
    let object: Value =
        serde_json::from_str(&stage.succeed("topo --json --reserve none").stdout).expect("JSON");
    let place = |object: &Value, role: &str| {
        let threads = object["threads"].as_array().expect("threads");
        threads.iter().find(|thread| thread["role"] == role).map(|thread| thread["cpu"].clone())
    };
    assert_eq!((place(&object, "main"), place(&object, "comm")), (Some(Value::Null), None));
    let cores = object["machine"]["cores"].as_u64().expect("a number");
    let object: Value =
        serde_json::from_str(&stage.succeed("topo --json --reserve main").stdout).expect("JSON");
    let own = place(&object, "main").expect("a main thread");
    let quadrants = object["quadrants"].as_array().expect("quadrants").len() as u64;
    assert_eq!(own.is_u64(), cores > quadrants, "{own} with {cores} cores");
    let refused = stage.run("topo --reserve main=2");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("such as main,comm,io=2"), "{}", refused.stderr);
}

#[test]
fn training_reads_the_machine_that_it_is_on_and_says_so() {
    let stage = Stage::new();
    let arguments = "train --solver solver.prototxt --run a --max-iter 1";
    let prepare = |command: &mut std::process::Command| {
        command.env("HWLOC_XMLFILE", "/nowhere.xml");
    };
    let outcome = stage.start_in(arguments, prepare).finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("HWLOC_XMLFILE describes another machine"), "{}", outcome.stdout);
}
