//! Limits one by one: what is reached is named, what is not held is not claimed.

use crate::{
    runner::Proof,
    world::{Outcome, Without, World, allowed, outcome, quick},
};
use init::step::Step;
use spec::{Barrier, Enforcer, ErrorCode, LimitName, LimitSet, RunRequest, RunResult, Status};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        the_result_says_what_holds_each_limit,
        one_process_over_its_memory_is_stopped,
        pids_are_limited_without_cgroups_too,
        pids_are_limited_without_resource_limits_where_there_are_cgroups,
        a_file_that_grows_too_large_ends_the_program,
        open_files_are_limited,
        stack_locked_memory_message_queues_and_priority_are_limited,
        many_sandboxes_at_once_leave_each_its_open_files,
        full_scratch_space_is_named,
        too_much_output_is_cut_and_said,
        no_cpu_limit_is_claimed_where_none_was_asked_for,
        a_required_barrier_that_cannot_be_had_refuses_the_run,
    ]
}

fn limited(request: RunRequest, limits: LimitSet) -> RunRequest {
    let limits = LimitSet {
        wall_time: quick().wall_time,
        ..limits
    };
    RunRequest { limits, ..request }
}

fn hit(result: &RunResult) -> Vec<LimitName> {
    result.limits_hit.iter().copied().collect()
}

fn the_result_says_what_holds_each_limit(world: &World) {
    assert_eq!(
        world.run(world.command(&["true"])).enforced_by,
        world.enforced_by()
    );
}

/// A cgroup kills it; a resource limit refuses it the memory.
fn one_process_over_its_memory_is_stopped(world: &World) {
    let limits = LimitSet {
        memory: "64M".parse().ok(),
        ..LimitSet::default()
    };
    let request = limited(world.probe(&["take-own-memory", "128"]), limits);
    let result = world.run(request.clone());
    let code = result.error.as_ref().map(|error| error.code);
    if world.has_cgroups() {
        let got = (result.status, result.exit_status, code, hit(&result));
        assert_eq!(
            got,
            (
                Status::OomKilled,
                137,
                Some(ErrorCode::OomKilled),
                vec![LimitName::Memory]
            )
        );
    } else {
        assert_eq!(
            (result.status, outcome(&result)),
            (Status::Succeeded, Outcome::Refused(libc::ENOMEM))
        );
    }
    let unlimited = Without {
        steps: vec![Step::ResourceLimits],
        cgroups: true,
    };
    assert_eq!(outcome(&world.run_without(request, &unlimited)), allowed());
}

fn forks(world: &World) -> RunRequest {
    let limits = LimitSet {
        pids: Some(16),
        ..LimitSet::default()
    };
    limited(world.probe(&["take-pids", "40"]), limits)
}

fn pids_are_limited_without_cgroups_too(world: &World) {
    let result = world.run_without(
        forks(world),
        &Without {
            steps: vec![],
            cgroups: true,
        },
    );
    assert_eq!(outcome(&result), Outcome::Refused(libc::EAGAIN));
    assert!(result.barriers.contains(&Barrier::PidsLimit));
    // Each box has its own count: a second one at the same time has as many.
    let within = limited(
        world.probe(&["take-pids", "12"]),
        LimitSet {
            pids: Some(16),
            ..LimitSet::default()
        },
    );
    let engine = world.engine(&Without {
        steps: vec![],
        cgroups: true,
    });
    let holding = world.probe(&["hold-pids", "12"]);
    let first = world.start_ready(
        &engine,
        limited(
            holding,
            LimitSet {
                pids: Some(16),
                ..LimitSet::default()
            },
        ),
    );
    assert_eq!(outcome(&world.run_in(&engine, within)), allowed());
    assert_eq!(outcome(&world.finish(first)), allowed());
}

fn pids_are_limited_without_resource_limits_where_there_are_cgroups(world: &World) {
    let result = world.run_without(
        forks(world),
        &Without {
            steps: vec![Step::ResourceLimits],
            cgroups: false,
        },
    );
    let expected = if world.has_cgroups() {
        (Outcome::Refused(libc::EAGAIN), true, vec![LimitName::Pids])
    } else {
        (allowed(), false, vec![])
    };
    let listed = result.barriers.contains(&Barrier::PidsLimit);
    assert_eq!((outcome(&result), listed, hit(&result)), expected);
}

fn a_file_that_grows_too_large_ends_the_program(world: &World) {
    let limits = LimitSet {
        file_size: "2M".parse().ok(),
        ..LimitSet::default()
    };
    let fill = |mebibytes| {
        limited(
            world.probe(&["fill", "/tmp/file", mebibytes]),
            limits.clone(),
        )
    };
    let result = world.run(fill("3"));
    assert_eq!(
        (outcome(&result), hit(&result)),
        (Outcome::Killed(libc::SIGXFSZ), vec![LimitName::FileSize])
    );
    assert_eq!(world.attempt(fill("2")), allowed());
}

fn open_files_are_limited(world: &World) {
    let limits = LimitSet {
        open_files: Some(20),
        ..LimitSet::default()
    };
    let open = |count| limited(world.probe(&["open-files", count]), limits.clone());
    assert_eq!(world.attempt(open("30")), Outcome::Refused(libc::EMFILE));
    assert_eq!(world.attempt(open("10")), allowed());
    assert_eq!(
        world.attempt_without(open("30"), &[Step::ResourceLimits]),
        allowed()
    );
}

fn stack_locked_memory_message_queues_and_priority_are_limited(world: &World) {
    let limits = LimitSet {
        stack: "4M".parse().ok(),
        locked_memory: "16K".parse().ok(),
        message_queues: "400K".parse().ok(),
        nice: Some(15),
        ..LimitSet::default()
    };
    let probe = |arguments: &[&str]| limited(world.probe(arguments), limits.clone());
    let got = format!("{} {} 15", 4 << 20, 400 << 10);
    assert_eq!(world.attempt(probe(&["standing"])), Outcome::Allowed(got));
    assert_eq!(
        world.attempt(probe(&["lock-memory", "48"])),
        Outcome::Refused(libc::ENOMEM)
    );
    assert_eq!(world.attempt(probe(&["lock-memory", "4"])), allowed());
    assert_eq!(
        world.attempt_without(probe(&["lock-memory", "48"]), &[Step::ResourceLimits]),
        allowed()
    );
    // More than the host gives is no reason not to begin.
    let most = LimitSet {
        stack: "1T".parse().ok(),
        message_queues: "1T".parse().ok(),
        ..LimitSet::default()
    };
    assert!(matches!(
        world.attempt(limited(world.probe(&["standing"]), most)),
        Outcome::Allowed(_)
    ));
}

/// Each has some handles in the launcher, more in sum than the usual limit of one program. A container has a first
/// process of its own instead.
fn many_sandboxes_at_once_leave_each_its_open_files(world: &World) {
    let engine = world.engine(&Default::default());
    let count = if world.maker.is_some() { 4 } else { 24 };
    let running: Vec<_> = (0..count)
        .map(|_| world.start_ready(&engine, world.probe(&["hold", "handles"])))
        .collect();
    let last = world.run_in(&engine, world.probe(&["open-files", "100"]));
    let ended = running
        .into_iter()
        .map(|run| outcome(&world.finish(run)))
        .all(|ended| ended == allowed());
    assert_eq!((outcome(&last), ended), (allowed(), true));
}

fn full_scratch_space_is_named(world: &World) {
    // In a container each place has a part of its own: three eighths for this one.
    let disk = if world.maker.is_some() { "16M" } else { "8M" };
    let limits = LimitSet {
        disk: disk.parse().ok(),
        ..LimitSet::default()
    };
    let fill = |mebibytes| {
        limited(
            world.probe(&["fill", "/tmp/file", mebibytes]),
            limits.clone(),
        )
    };
    let full = world.run(fill("9"));
    assert_eq!(
        (outcome(&full), hit(&full)),
        (Outcome::Refused(libc::ENOSPC), vec![LimitName::Disk])
    );
    let room = world.run(fill("4"));
    assert_eq!((outcome(&room), hit(&room)), (allowed(), vec![]));
}

fn too_much_output_is_cut_and_said(world: &World) {
    let limits = LimitSet {
        output: "1K".parse().ok(),
        ..LimitSet::default()
    };
    let print = |count| {
        let script = format!("head -c {count} /dev/zero; printf end >&2");
        let result = world.run(limited(
            world.command(&["sh", "-c", &script]),
            limits.clone(),
        ));
        (
            result.truncated.stdout,
            result.truncated.stderr,
            hit(&result),
            result.status,
            result.stderr,
        )
    };
    assert_eq!(
        print(1025),
        (
            true,
            false,
            vec![LimitName::Output],
            Status::Succeeded,
            b"end".to_vec()
        )
    );
    assert_eq!(
        print(1024),
        (false, false, vec![], Status::Succeeded, b"end".to_vec())
    );
}

/// The profile `agent` limits neither the time nor the share of CPUs.
fn no_cpu_limit_is_claimed_where_none_was_asked_for(world: &World) {
    let agent = |limits| RunRequest {
        profile: Some("agent".into()),
        ..limited(world.command(&["true"]), limits)
    };
    let claimed = |limits| {
        let result = world.run(agent(limits));
        (
            result.barriers.contains(&Barrier::CpuLimit),
            result.enforced_by["cpu"],
        )
    };
    assert_eq!(claimed(LimitSet::default()), (false, Enforcer::Nothing));
    let limits = LimitSet {
        cpu_time: "10s".parse().ok(),
        ..LimitSet::default()
    };
    assert_eq!(claimed(limits), (world.has_cgroups(), world.enforcer));
}

fn a_required_barrier_that_cannot_be_had_refuses_the_run(world: &World) {
    let require = |barrier| {
        let result = world.run(RunRequest {
            require: vec![barrier],
            ..world.command(&["true"])
        });
        (
            result.status,
            result.exit_status,
            result.error.map(|error| error.code),
        )
    };
    let refused = (Status::NotStarted, 125, Some(ErrorCode::BarrierMissing));
    let ran = (Status::Succeeded, 0, None);
    assert_eq!(require(Barrier::OwnKernel), refused);
    assert_eq!(require(Barrier::DoorsOnly), refused);
    assert_eq!(require(Barrier::NoNetwork), ran);
    assert_eq!(
        require(Barrier::MemoryLimit),
        if world.has_cgroups() { ran } else { refused }
    );
}
