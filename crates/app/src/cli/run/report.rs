//! Messages on stderr after the program's output: why it was stopped, denials, limits, and weaker
//! enforcement.

use super::super::message::Message;
use spec::{Denial, Enforcer, ErrorCode, LimitName, RunResult, Status};

const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

/// All messages about a run whose output was printed as it arrived.
pub(super) fn lines(result: &RunResult) -> Vec<Message> {
    let mut lines = error(result);
    lines.extend(signal(result));
    lines.extend(notes(result));
    lines
}

/// With `--json`, only a refusal is reported on stderr, too.
pub(super) fn refusal(result: &RunResult) -> Vec<Message> {
    match result.status {
        Status::NotStarted => error(result),
        Status::Queued
        | Status::Running
        | Status::Succeeded
        | Status::Failed
        | Status::TimedOut
        | Status::OomKilled
        | Status::Cancelled
        | Status::Lost => Vec::new(),
    }
}

/// Notes that do not depend on the output: limits, denials, artifacts, weaker enforcement.
pub(super) fn notes(result: &RunResult) -> Vec<Message> {
    let limits = result
        .limits_hit
        .iter()
        .filter(|limit| !is_in_error(result, **limit))
        .map(limit_note);
    let denials = result.denials.iter().map(denial_note);
    let kept = result.artifacts.iter().map(|kept| {
        format!(
            "kept `{}` as version {} ({} bytes)",
            kept.name, kept.version, kept.size_bytes
        )
    });
    let notes = result.notes.iter().cloned();
    limits
        .chain(denials)
        .chain(kept)
        .chain(notes)
        .map(Message::Note)
        .collect()
}

fn denial_note(denial: &Denial) -> String {
    let Denial {
        what,
        target,
        rule,
        allow_with,
    } = denial;
    let tried = if target.is_empty() {
        what.clone()
    } else {
        format!("{what} `{target}`")
    };
    match allow_with.as_str() {
        "nothing" => format!("denied: {tried} (by {rule}; nothing allows it)"),
        option => format!("denied: {tried} (by {rule}; {option} allows it)"),
    }
}

fn error(result: &RunResult) -> Vec<Message> {
    match &result.error {
        Some(error) => {
            vec![
                Message::Error(error.message.clone()),
                Message::Hint(error.hint.clone().unwrap_or_default()),
            ]
        }
        None => Vec::new(),
    }
}

/// Reports the signal that killed the program, as a shell would.
fn signal(result: &RunResult) -> Option<Message> {
    let number = result.signal.filter(|_| result.error.is_none())?;
    // Without a cgroup, an allocation beyond the limit fails instead of killing the program, and
    // few programs handle that.
    let by_process = result.enforced_by.get("memory") == Some(&Enforcer::Rlimit);
    let perhaps = if by_process && [SIGABRT, SIGBUS, SIGSEGV].contains(&number) {
        "; possibly it ran out of memory (--memory)"
    } else {
        ""
    };
    Some(Message::Note(format!(
        "the program was killed by signal {number}{perhaps}"
    )))
}

fn is_in_error(result: &RunResult, limit: LimitName) -> bool {
    let code = result.error.as_ref().map(|error| error.code);
    match limit {
        LimitName::WallTime => code == Some(ErrorCode::Timeout),
        LimitName::Memory => code == Some(ErrorCode::OomKilled),
        // The limit applies to the copy in the result; the printed output is complete.
        LimitName::Output => true,
        LimitName::Pids
        | LimitName::CpuTime
        | LimitName::FileSize
        | LimitName::OpenFiles
        | LimitName::Disk
        | LimitName::Budget
        | LimitName::Egress => false,
    }
}

fn limit_note(limit: &LimitName) -> String {
    let (name, option) = match limit {
        LimitName::Memory => ("memory", "--memory"),
        LimitName::Pids => ("pids", "--pids"),
        LimitName::CpuTime => ("cpu_time", "--cpu-time"),
        LimitName::WallTime => ("wall_time", "--timeout"),
        LimitName::FileSize => ("file_size", "--file-size"),
        LimitName::OpenFiles => ("open_files", "--open-files"),
        LimitName::Disk => ("disk", "--disk"),
        LimitName::Output => ("output", "--output"),
        LimitName::Budget => return "the budget is spent (budget)".to_owned(),
        LimitName::Egress => {
            return "a limit of the egress door was reached; egress_limits or its rule sets it (egress)"
                .to_owned();
        }
    };
    format!("the limit {name} was reached; {option} sets it")
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::render, *};
    use spec::{ArtifactRef, ErrorInfo, Id, Timestamp, Truncation, Usage};

    fn result(status: Status) -> RunResult {
        RunResult {
            phase_times: Default::default(),
            run_id: Id::new("r").unwrap(),
            task_id: None,
            job_id: None,
            status,
            exit_code: None,
            signal: None,
            exit_status: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
            truncated: Truncation::default(),
            output: None,
            error: None,
            started_at: Timestamp(0),
            ended_at: Timestamp(0),
            duration_ms: 0,
            usage: Usage::default(),
            limits_hit: Default::default(),
            denials: Vec::new(),
            artifacts: Vec::new(),
            backend: "native",
            profile: "restrictive".into(),
            barriers: Vec::new(),
            enforced_by: Default::default(),
            notes: Vec::new(),
            learned: Vec::new(),
            workspace: None,
            git: Vec::new(),
        }
    }

    fn error(code: ErrorCode, message: &str) -> Option<ErrorInfo> {
        Some(ErrorInfo {
            code,
            message: message.into(),
            hint: Some("give it more".into()),
        })
    }

    fn denial(what: &str, target: &str, rule: &str, allow_with: &str) -> Denial {
        let [what, target, rule, allow_with] = [what, target, rule, allow_with].map(str::to_owned);
        Denial {
            what,
            target,
            rule,
            allow_with,
        }
    }

    #[test]
    fn a_plain_success_says_nothing() {
        assert_eq!(lines(&result(Status::Succeeded)), []);
    }

    #[test]
    fn a_timeout_is_told_once() {
        let stopped = RunResult {
            signal: Some(9),
            error: error(ErrorCode::Timeout, "stopped after 2s (wall_time)"),
            limits_hit: [LimitName::WallTime].into(),
            ..result(Status::TimedOut)
        };
        let text = "airlock: error: stopped after 2s (wall_time)\nairlock: hint: give it more\n";
        assert_eq!(render(&lines(&stopped)), text);
    }

    #[test]
    fn a_crash_where_memory_is_limited_by_process_is_perhaps_for_want_of_it() {
        let crashed = |signal, enforcer| {
            let result = RunResult {
                signal: Some(signal),
                enforced_by: [("memory", enforcer)].into(),
                ..result(Status::Failed)
            };
            render(&lines(&result)).contains("possibly it ran out of memory (--memory)")
        };
        assert!(crashed(SIGSEGV, Enforcer::Rlimit) && crashed(SIGABRT, Enforcer::Rlimit));
        assert!(!crashed(15, Enforcer::Rlimit) && !crashed(SIGSEGV, Enforcer::CgroupV2));
    }

    #[test]
    fn limits_denials_kept_files_and_notes_are_told_in_this_order() {
        let rich = RunResult {
            signal: Some(11),
            limits_hit: [LimitName::Pids, LimitName::Output].into(),
            denials: vec![
                denial("mount", "/mnt\x1b[2J", "syscall_filter", "nothing"),
                denial("keyctl", "", "syscall_filter", "nothing"),
                denial("connect", "1.2.3.4:443", "network", "--allow-host HOST"),
            ],
            artifacts: vec![ArtifactRef {
                name: "out.txt".into(),
                version: 2,
                size_bytes: 3,
                sha256: "…".into(),
            }],
            notes: vec!["memory is limited per process only".into()],
            ..result(Status::Failed)
        };
        let text = "airlock: note: the program was killed by signal 11\n\
                    airlock: note: the limit pids was reached; --pids sets it\n\
                    airlock: note: denied: mount `/mnt\\u{1b}[2J` (by syscall_filter; nothing allows it)\n\
                    airlock: note: denied: keyctl (by syscall_filter; nothing allows it)\n\
                    airlock: note: denied: connect `1.2.3.4:443` (by network; --allow-host HOST allows it)\n\
                    airlock: note: kept `out.txt` as version 2 (3 bytes)\n\
                    airlock: note: memory is limited per process only\n";
        assert_eq!(render(&lines(&rich)), text);
    }

    #[test]
    fn with_json_only_a_refusal_is_told_on_stderr() {
        let failed = RunResult {
            error: error(ErrorCode::Timeout, "late"),
            ..result(Status::TimedOut)
        };
        assert_eq!(refusal(&failed), []);
        let refused = RunResult {
            error: error(ErrorCode::BarrierMissing, "no"),
            ..result(Status::NotStarted)
        };
        assert_eq!(refusal(&refused).len(), 2);
    }
}
