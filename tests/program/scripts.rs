//! Scripts that run the program: weak scaling on this machine, and the templates of jobs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::Stage;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn weak_scaling(stage: &Stage, arguments: &str) -> Output {
    Command::new(scripts().join("weak-scaling"))
        .args(arguments.split_whitespace())
        .current_dir(stage.path("."))
        .env("QUADRILLE", env!("CARGO_BIN_EXE_quadrille"))
        .output()
        .expect("bash")
}

#[test]
fn weak_scaling_on_this_machine_prints_a_table_and_draws_it() {
    let stage = Stage::new();
    // One thread each: by default a worker has as many quadrants as the machine has NUMA nodes.
    let flags = "--solver solver.prototxt --threads 1 --quadrants 1";
    let output =
        weak_scaling(&stage, &format!("--local --counts 1,2 --iterations 3 --out scaled -- {flags}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["workers", "cores", "time", "(s)", "efficiency"], "{said}");
    for (line, count) in lines[1..].iter().zip(["1", "2"]) {
        assert_eq!(line[..2], [count, count], "{said}");
        assert!(line[2].parse::<f64>().is_ok_and(|seconds| seconds >= 0.0), "{said}");
    }
    assert_eq!((lines.len(), lines[1][3]), (3, "100.0"), "{said}");
    let text = |name: &str| std::fs::read_to_string(stage.path(name)).expect(name);
    assert_eq!(text("scaled/table.txt"), said);
    let svg = text("scaled/efficiency.svg");
    assert!(svg.ends_with("</svg>\n") && svg.matches("<circle").count() == 2, "{svg}");
    assert_eq!(stage.summary("scaled/2")["workers"], 2);
    assert_eq!(stage.summary("scaled/1")["iterations"], 3);
    // The same table again from what is there.
    let again = weak_scaling(&stage, "--collect --local --counts 1,2 --out scaled");
    assert_eq!(String::from_utf8_lossy(&again.stdout), said);
}

#[test]
fn weak_scaling_refuses_what_it_cannot_do() {
    let stage = Stage::new();
    stage.write("there", "");
    for (flags, code, says) in [
        ("--counts 1,x", 2, "--counts 1,x"),
        ("--iterations 0", 2, "--iterations 0"),
        ("--local --out there", 2, "it is there already"),
        ("--what", 2, "unknown argument"),
        ("--local --out new -- --solver none.prototxt", 66, "none.prototxt"),
        ("--collect --out nothing", 66, "has a summary"),
    ] {
        let output = weak_scaling(&stage, flags);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), wrong.contains(says)), (Some(code), true), "{flags}: {wrong}");
    }
}

/// It runs as root and removes its folder.
#[test]
fn a_cluster_of_slurm_touches_no_folder_of_somebody_else() {
    let stage = Stage::new();
    let slurm_local = |arguments: &[&str], folder: &str| {
        let mut command = Command::new(scripts().join("slurm-local"));
        command.args(arguments).env("SLURM_LOCAL_DIR", stage.path(folder));
        command.output().expect("bash")
    };
    for arguments in [&["down"][..], &["up"], &["run", "true"]] {
        let output = slurm_local(arguments, "shapes");
        let wrong = String::from_utf8_lossy(&output.stderr);
        let says = "is no folder of this script; SLURM_LOCAL_DIR names another";
        assert_eq!((output.status.code(), wrong.contains(says)), (Some(2), true), "{arguments:?}: {wrong}");
        assert!(std::fs::read_dir(stage.path("shapes")).expect("the folder").count() > 1, "{arguments:?}");
    }
    assert_eq!(slurm_local(&["down"], "none").status.code(), Some(0));
}

#[test]
fn templates_of_jobs_are_sound_and_say_what_clusters_need() {
    let folder = scripts().join("slurm");
    let names = ["cpu", "knl-quad-cache", "knl-quad-flat", "knl-snc4-flat", "xeon-max-snc4-flat"];
    for name in names {
        let path = folder.join(format!("{name}.sbatch"));
        let check = Command::new("bash").arg("-n").arg(&path).output().expect("bash");
        assert!(check.status.success(), "{name}: {}", String::from_utf8_lossy(&check.stderr));
        let text = std::fs::read_to_string(&path).expect("a template");
        for needed in [
            "srun -K1",
            "#SBATCH --signal=USR1@",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            "--resume auto",
            "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\"",
            "scontrol requeue",
            "Untested",
        ] {
            assert!(text.contains(needed), "{name} has no {needed:?}");
        }
        // Directives behind the first command are not read.
        let (first, last) = (text.find("\nset "), text.rfind("\n#SBATCH"));
        assert!(last < first, "{name}");
        if name.starts_with("knl") {
            let mode = name.trim_start_matches("knl-").replace('-', ",");
            assert!(text.contains(&format!("#SBATCH --constraint=knl,{mode}")), "{name}");
        }
    }
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), names.len(), "each is in the list");
}

/// A template as Slurm would run it, with commands in place of Slurm's: the flags come through, 75 goes back into the queue,
/// any other code stays.
#[test]
fn a_job_that_was_stopped_goes_back_into_the_queue() {
    let stage = Stage::new();
    std::fs::create_dir(stage.path("bin")).expect("a folder");
    let command = |name: &str, text: &str| {
        stage.write(&format!("bin/{name}"), format!("#!/bin/bash\n{text}\n"));
        let status = Command::new("chmod").arg("+x").arg(stage.path(&format!("bin/{name}"))).status();
        assert!(status.expect("chmod").success());
    };
    command("srun", "echo srun \"$@\"; exit $CODE");
    command("scontrol", "echo scontrol \"$@\"");
    for (code, requeued) in [(0, false), (75, true), (77, false)] {
        let path = format!("{}:{}", stage.path("bin").display(), std::env::var("PATH").expect("a path"));
        let output = Command::new("bash")
            .arg(scripts().join("slurm/knl-quad-flat.sbatch"))
            .args(["--solver", "my solver.prototxt"])
            .envs([("PATH", path.as_str()), ("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "272")])
            .env("CODE", code.to_string())
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.contains("scontrol requeue 7"), requeued, "{said}");
        let flags = "train --solver my solver.prototxt --quadrants auto --fast-memory prefer --run runs/slurm-7 --resume auto";
        assert!(
            said.contains("-K1") && said.contains("--cpus-per-task=272") && said.contains(flags),
            "{said}"
        );
    }
}
