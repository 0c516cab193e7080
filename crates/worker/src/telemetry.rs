//! Telemetry: turns events into metrics and log lines, in one place.

use crate::{
    log::{CallIds, Log, LogEntry, LogSeverity, OutputStream, ToolOutput},
    metrics::{InvocationOutcome, LossReason, Metrics},
    sam::{AnswerStatus, CallDetails, EventSink, RequestIds, WorkerEvent},
    transport::{LinkNotice, LinkState},
};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Records events.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Log.
    pub log: Log,
    /// Host paths that are removed from the output of tools.
    pub hidden: Arc<Vec<PathBuf>>,
}

impl Telemetry {
    /// The sink for the main loop.
    pub fn into_sink(self) -> EventSink {
        Arc::new(move |event| self.record(event))
    }

    /// Records an event. Does not block.
    pub fn record(&self, event: WorkerEvent) {
        self.count(&event);
        self.metrics.set_log_dropped(self.log.dropped());
        if let WorkerEvent::Ran { request, seen } = &event {
            self.output(request, seen);
        }
        if let Some(line) = line(event) {
            self.log.write(line);
        }
    }

    fn count(&self, event: &WorkerEvent) {
        let metrics = &self.metrics;
        match event {
            WorkerEvent::Refused { request, refusal } => {
                metrics.record_end(
                    &request.tool,
                    InvocationOutcome::Refused(refusal.code),
                    None,
                );
            }
            WorkerEvent::Started { queued, .. } => metrics.record_wait(*queued),
            WorkerEvent::Ran { seen, .. } => {
                metrics.count_start(seen.was_warm);
                metrics.add_artifacts_in(seen.bytes_in);
                metrics.add_artifacts_out(seen.bytes_out);
            }
            WorkerEvent::Answered {
                request, how, took, ..
            } => metrics.record_end(&request.tool, end(how), Some(*took)),
            WorkerEvent::Duplicate {
                request,
                is_answered: true,
            } => metrics.record_end(&request.tool, InvocationOutcome::Again, None),
            WorkerEvent::Status(_) => metrics.count_status(),
            WorkerEvent::Unanswerable { .. } => metrics.count_loss(LossReason::Unanswerable),
            WorkerEvent::PublishFailed { .. } => metrics.count_loss(LossReason::Unsent),
            WorkerEvent::Link(state) => metrics.set_link(state),
            WorkerEvent::Notice(LinkNotice::PassedOver(_)) => {
                metrics.count_loss(LossReason::Oversize)
            }
            WorkerEvent::Load { waiting, running } => metrics.set_load(*waiting, *running),
            WorkerEvent::Received(_)
            | WorkerEvent::Duplicate {
                is_answered: false, ..
            }
            | WorkerEvent::Cancelled(_)
            | WorkerEvent::UnknownProfile { .. }
            | WorkerEvent::ProfileTooWide { .. }
            | WorkerEvent::StatusesDropped { .. }
            | WorkerEvent::Delayed { .. }
            | WorkerEvent::Announced { .. }
            | WorkerEvent::Notice(LinkNotice::Weaker(_))
            | WorkerEvent::Draining { .. }
            | WorkerEvent::Cutting { .. } => {}
        }
    }

    fn output(&self, request: &RequestIds, seen: &CallDetails) {
        let mut output = ToolOutput::new(self.log.clone(), call_ids(request), self.hidden.to_vec());
        output.take(OutputStream::Stderr, &seen.stderr);
        output.take(OutputStream::Stdout, &seen.stdout);
        output.end();
    }
}

fn end(how: &AnswerStatus) -> InvocationOutcome {
    match how {
        AnswerStatus::Success { .. } => InvocationOutcome::Success,
        AnswerStatus::TimedOut => InvocationOutcome::TimedOut,
        AnswerStatus::Cancelled => InvocationOutcome::Cancelled,
        AnswerStatus::Error(refusal) => InvocationOutcome::Refused(refusal.code),
    }
}

fn call_ids(request: &RequestIds) -> CallIds {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    CallIds {
        trace: request.trace.clone(),
        task: some(&request.task),
        correlation: some(&request.correlation),
        tool: some(&request.tool),
    }
}

/// The log line of an event, if it has one.
fn line(event: WorkerEvent) -> Option<LogEntry> {
    let of = |level, event, request: &RequestIds| {
        LogEntry::new(level, event).for_call(&call_ids(request))
    };
    let line = match event {
        WorkerEvent::Received(_) | WorkerEvent::Status(_) | WorkerEvent::Load { .. } => {
            return None;
        }
        WorkerEvent::Refused { request, refusal } => {
            let line = of(LogSeverity::Warn, "refused", &request).message(refusal.message);
            line.with("outcome", InvocationOutcome::Refused(refusal.code).name())
        }
        WorkerEvent::Started {
            request,
            profile,
            time,
            queued,
        } => of(LogSeverity::Info, "started", &request)
            .with("profile", format!("{profile:?}").to_lowercase())
            .with("timeout_ms", millis(time))
            .with("queue_ms", millis(queued)),
        WorkerEvent::Ran { request, seen } => return ran(&request, &seen),
        WorkerEvent::Answered {
            request,
            how,
            took,
            queued,
        } => answered(&request, how, took, queued),
        WorkerEvent::Duplicate {
            request,
            is_answered,
        } => of(LogSeverity::Info, "duplicate", &request).with("is_answered", is_answered),
        WorkerEvent::Cancelled(request) => of(LogSeverity::Info, "cancelled", &request),
        WorkerEvent::UnknownProfile {
            request,
            name,
            instead,
        } => of(LogSeverity::Warn, "unknown_profile", &request)
            .message("nobody knows this profile; that of SANDBOX_DEFAULT_PROFILE is used")
            .with("profile", name)
            .with("instead", instead.name()),
        WorkerEvent::ProfileTooWide {
            request,
            name,
            instead,
        } => of(LogSeverity::Info, "profile_too_wide", &request)
            .message("a request gets no wider profile than SANDBOX_DEFAULT_PROFILE; a manifest may")
            .with("profile", name)
            .with("instead", instead.name()),
        WorkerEvent::StatusesDropped { request, count } => {
            of(LogSeverity::Warn, "statuses_dropped", &request).with("count", count)
        }
        WorkerEvent::Unanswerable { topic, refusal } => {
            LogEntry::new(LogSeverity::Warn, "unanswerable")
                .message(refusal.message)
                .with("topic", topic)
        }
        WorkerEvent::PublishFailed {
            request,
            topic,
            why,
        } => {
            let line = LogEntry::new(LogSeverity::Error, "publish_failed")
                .message(why)
                .with("topic", topic);
            request.map_or(line.clone(), |request| line.for_call(&call_ids(&request)))
        }
        WorkerEvent::Delayed { request, why } => {
            of(LogSeverity::Warn, "answer_delayed", &request).message(why)
        }
        WorkerEvent::Announced { tools } => {
            LogEntry::new(LogSeverity::Info, "announced").with("tools", tools)
        }
        WorkerEvent::Link(state) => link(state),
        WorkerEvent::Notice(LinkNotice::PassedOver(what)) => {
            LogEntry::new(LogSeverity::Warn, "passed_over").message(what)
        }
        WorkerEvent::Notice(LinkNotice::Weaker(what)) => {
            LogEntry::new(LogSeverity::Warn, "weaker").message(what)
        }
        WorkerEvent::Draining { running } => {
            LogEntry::new(LogSeverity::Info, "draining").with("running", running)
        }
        WorkerEvent::Cutting { running } => {
            LogEntry::new(LogSeverity::Warn, "cutting").with("running", running)
        }
    };
    Some(line)
}

/// The log line of a finished run, if there is something to report.
fn ran(request: &RequestIds, seen: &CallDetails) -> Option<LogEntry> {
    let warning = seen.spent.as_ref().and_then(|spent| spent.warning.clone());
    let is_quiet = seen.limits_hit.is_empty() && seen.notes.is_empty() && warning.is_none();
    let spent = seen.spent.as_ref().filter(|spent| spent.questions > 0);
    let level = match (is_quiet, spent) {
        (true, None) => return None,
        (true, Some(_)) => LogSeverity::Info,
        (false, _) => LogSeverity::Warn,
    };
    let limits = serde_json::to_value(&seen.limits_hit).unwrap_or_default();
    let line = LogEntry::new(level, "ran")
        .for_call(&call_ids(request))
        .message(
            seen.notes
                .iter()
                .chain(&warning)
                .cloned()
                .collect::<Vec<_>>()
                .join("; "),
        );
    let line = line.with("limits_hit", limits);
    Some(match spent {
        Some(spent) => line
            .with("model_questions", spent.questions)
            .with("model_usd", spent.usd.clone()),
        None => line,
    })
}

fn answered(request: &RequestIds, how: AnswerStatus, took: Duration, queued: Duration) -> LogEntry {
    let outcome = end(&how).name();
    let level = if matches!(how, AnswerStatus::Success { .. }) {
        LogSeverity::Info
    } else {
        LogSeverity::Warn
    };
    let line = LogEntry::new(level, "answered")
        .for_call(&call_ids(request))
        .with("outcome", outcome)
        .took(took);
    let line = line.with("queue_ms", millis(queued));
    match how {
        AnswerStatus::Success { artifacts } => line.with("artifacts", artifacts),
        AnswerStatus::Error(refusal) => line.message(refusal.message),
        AnswerStatus::TimedOut | AnswerStatus::Cancelled => line,
    }
}

fn link(state: LinkState) -> LogEntry {
    match state {
        LinkState::Connected => LogEntry::new(LogSeverity::Info, "broker_connected"),
        LinkState::Connecting { why, .. } if why.is_empty() => {
            LogEntry::new(LogSeverity::Info, "broker_connecting")
        }
        LinkState::Connecting { why, .. } => {
            LogEntry::new(LogSeverity::Warn, "broker_connecting").message(why)
        }
        LinkState::Lost { why } => LogEntry::new(LogSeverity::Error, "broker_lost").message(why),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::code::{CallRefusal, MeshErrorCode};
    use serde_json::{Value, json};
    use spec::LogFormat;
    use std::{
        io::{self, Write},
        sync::Mutex,
    };

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .map_err(|_| io::Error::from(io::ErrorKind::Other))?
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_call_is_counted_and_told_with_its_ids() {
        let kept = SharedBuffer::default();
        let log = Log::new(LogFormat::Json, kept.clone()).unwrap();
        let hidden = Arc::new(vec![PathBuf::from("/srv/work")]);
        let teller = Telemetry {
            metrics: Arc::new(Metrics::new()),
            log: log.clone(),
            hidden,
        };
        teller.metrics.set_tools(["echo"]);
        let text = |text: &str| text.to_owned();
        let request = Arc::new(RequestIds {
            id: text("i"),
            tool: text("echo"),
            task: text("k"),
            correlation: text("c"),
            trace: Some(text("t")),
        });
        let seen = CallDetails {
            stderr: b"at /srv/work/x\n".to_vec(),
            was_warm: true,
            ..CallDetails::default()
        };
        let took = Duration::from_millis(7);
        let queued = Duration::from_millis(2);
        let refusal = CallRefusal::new(MeshErrorCode::ToolError, "it broke");
        teller.record(WorkerEvent::Ran {
            request: request.clone(),
            seen,
        });
        teller.record(WorkerEvent::Answered {
            request: request.clone(),
            how: AnswerStatus::Error(refusal),
            took,
            queued,
        });
        teller.record(WorkerEvent::Load {
            waiting: 3,
            running: 1,
        });
        log.flush();
        let written = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = written
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!((lines.len(), &lines[0]["msg"]), (2, &json!("at …/x")));
        let Value::Object(mut answered) = lines[1].clone() else {
            panic!("{lines:?}")
        };
        answered.remove("time");
        let expected = json!({"level": "WARN", "event": "answered", "msg": "it broke", "traceID": "t", "taskID": "k",
            "corrID": "c", "tool": "echo", "outcome": "TOOL_ERROR", "duration_ms": 7, "queue_ms": 2});
        assert_eq!(Value::Object(answered), expected);
        let numbers = teller.metrics.text().unwrap();
        for number in [
            "airlock_worker_invocations_total{tool=\"echo\",outcome=\"TOOL_ERROR\"} 1",
            "airlock_worker_starts_total{reason=\"warm\"} 1",
            "airlock_worker_calls_waiting 3",
        ] {
            assert!(numbers.contains(number), "{number} is not in {numbers}");
        }
    }
}
