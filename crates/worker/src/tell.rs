//! What happens, as numbers and as lines of the log: the one place where both learn of it.

use crate::{
    log::{About, Level, Line, Log, Stream, ToolOutput},
    metrics::{End, Lost, Metrics},
    sam::{How, Note, Noted, Seen, Which},
    transport::{LinkState, Notice},
};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Tells.
#[derive(Clone, Debug)]
pub struct Teller {
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// The log.
    pub log: Log,
    /// Paths of this machine that what tools print may not tell.
    pub hidden: Arc<Vec<PathBuf>>,
}

impl Teller {
    /// As the loop wants it.
    pub fn note(self) -> Note {
        Arc::new(move |noted| self.tell(noted))
    }

    /// Something happened. Does not wait.
    pub fn tell(&self, noted: Noted) {
        self.count(&noted);
        self.metrics.log_dropped(self.log.dropped());
        if let Noted::Ran { which, seen } = &noted {
            self.output(which, seen);
        }
        if let Some(line) = line(noted) {
            self.log.tell(line);
        }
    }

    fn count(&self, noted: &Noted) {
        let metrics = &self.metrics;
        match noted {
            Noted::Refused { which, refusal } => {
                metrics.ended(&which.tool, End::Refused(refusal.code), None);
            }
            Noted::Started { queued, .. } => metrics.waited(*queued),
            Noted::Ran { seen, .. } => {
                metrics.started(seen.was_warm);
                metrics.artifacts_in(seen.bytes_in);
                metrics.artifacts_out(seen.bytes_out);
            }
            Noted::Answered {
                which, how, took, ..
            } => metrics.ended(&which.tool, end(how), Some(*took)),
            Noted::Duplicate {
                which,
                is_answered: true,
            } => metrics.ended(&which.tool, End::Again, None),
            Noted::Status(_) => metrics.status(),
            Noted::Unanswerable { .. } => metrics.lost(Lost::Unanswerable),
            Noted::PublishFailed { .. } => metrics.lost(Lost::Unsent),
            Noted::Link(state) => metrics.link(state),
            Noted::Notice(Notice::PassedOver(_)) => metrics.lost(Lost::Oversize),
            Noted::Load { waiting, running } => metrics.load(*waiting, *running),
            Noted::Received(_)
            | Noted::Duplicate {
                is_answered: false, ..
            }
            | Noted::Cancelled(_)
            | Noted::UnknownProfile { .. }
            | Noted::ProfileTooWide { .. }
            | Noted::StatusesDropped { .. }
            | Noted::Delayed { .. }
            | Noted::Announced { .. }
            | Noted::Notice(Notice::Weaker(_))
            | Noted::Draining { .. }
            | Noted::Cutting { .. } => {}
        }
    }

    fn output(&self, which: &Which, seen: &Seen) {
        let mut output = ToolOutput::new(self.log.clone(), about(which), self.hidden.to_vec());
        output.take(Stream::Stderr, &seen.stderr);
        output.take(Stream::Stdout, &seen.stdout);
        output.end();
    }
}

fn end(how: &How) -> End {
    match how {
        How::Success { .. } => End::Success,
        How::TimedOut => End::TimedOut,
        How::Cancelled => End::Cancelled,
        How::Error(refusal) => End::Refused(refusal.code),
    }
}

fn about(which: &Which) -> About {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    About {
        trace: which.trace.clone(),
        task: some(&which.task),
        correlation: some(&which.correlation),
        tool: some(&which.tool),
    }
}

/// The line that something is worth, if any.
fn line(noted: Noted) -> Option<Line> {
    let of = |level, event, which: &Which| Line::new(level, event).about(&about(which));
    let line = match noted {
        Noted::Received(_) | Noted::Status(_) | Noted::Load { .. } => return None,
        Noted::Refused { which, refusal } => {
            let line = of(Level::Warn, "refused", &which).message(refusal.message);
            line.with("outcome", End::Refused(refusal.code).name())
        }
        Noted::Started {
            which,
            profile,
            time,
            queued,
        } => of(Level::Info, "started", &which)
            .with("profile", format!("{profile:?}").to_lowercase())
            .with("timeout_ms", millis(time))
            .with("queue_ms", millis(queued)),
        Noted::Ran { which, seen } => return ran(&which, &seen),
        Noted::Answered {
            which,
            how,
            took,
            queued,
        } => answered(&which, how, took, queued),
        Noted::Duplicate { which, is_answered } => {
            of(Level::Info, "duplicate", &which).with("is_answered", is_answered)
        }
        Noted::Cancelled(which) => of(Level::Info, "cancelled", &which),
        Noted::UnknownProfile {
            which,
            name,
            instead,
        } => of(Level::Warn, "unknown_profile", &which)
            .message("nobody knows this profile; that of SANDBOX_DEFAULT_PROFILE is used")
            .with("profile", name)
            .with("instead", instead.name()),
        Noted::ProfileTooWide {
            which,
            name,
            instead,
        } => of(Level::Info, "profile_too_wide", &which)
            .message("a request gets no wider profile than SANDBOX_DEFAULT_PROFILE; a manifest may")
            .with("profile", name)
            .with("instead", instead.name()),
        Noted::StatusesDropped { which, count } => {
            of(Level::Warn, "statuses_dropped", &which).with("count", count)
        }
        Noted::Unanswerable { topic, refusal } => Line::new(Level::Warn, "unanswerable")
            .message(refusal.message)
            .with("topic", topic),
        Noted::PublishFailed { which, topic, why } => {
            let line = Line::new(Level::Error, "publish_failed")
                .message(why)
                .with("topic", topic);
            which.map_or(line.clone(), |which| line.about(&about(&which)))
        }
        Noted::Delayed { which, why } => of(Level::Warn, "answer_delayed", &which).message(why),
        Noted::Announced { tools } => Line::new(Level::Info, "announced").with("tools", tools),
        Noted::Link(state) => link(state),
        Noted::Notice(Notice::PassedOver(what)) => {
            Line::new(Level::Warn, "passed_over").message(what)
        }
        Noted::Notice(Notice::Weaker(what)) => Line::new(Level::Warn, "weaker").message(what),
        Noted::Draining { running } => Line::new(Level::Info, "draining").with("running", running),
        Noted::Cutting { running } => Line::new(Level::Warn, "cutting").with("running", running),
    };
    Some(line)
}

/// What a run met, if anything.
fn ran(which: &Which, seen: &Seen) -> Option<Line> {
    let trouble = seen.spent.as_ref().and_then(|spent| spent.trouble.clone());
    let is_quiet = seen.limits_hit.is_empty() && seen.notes.is_empty() && trouble.is_none();
    let spent = seen.spent.as_ref().filter(|spent| spent.questions > 0);
    let level = match (is_quiet, spent) {
        (true, None) => return None,
        (true, Some(_)) => Level::Info,
        (false, _) => Level::Warn,
    };
    let limits = serde_json::to_value(&seen.limits_hit).unwrap_or_default();
    let line = Line::new(level, "ran").about(&about(which)).message(
        seen.notes
            .iter()
            .chain(&trouble)
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

fn answered(which: &Which, how: How, took: Duration, queued: Duration) -> Line {
    let outcome = end(&how).name();
    let level = if matches!(how, How::Success { .. }) {
        Level::Info
    } else {
        Level::Warn
    };
    let line = Line::new(level, "answered")
        .about(&about(which))
        .with("outcome", outcome)
        .took(took);
    let line = line.with("queue_ms", millis(queued));
    match how {
        How::Success { artifacts } => line.with("artifacts", artifacts),
        How::Error(refusal) => line.message(refusal.message),
        How::TimedOut | How::Cancelled => line,
    }
}

fn link(state: LinkState) -> Line {
    match state {
        LinkState::Connected => Line::new(Level::Info, "broker_connected"),
        LinkState::Connecting { why, .. } if why.is_empty() => {
            Line::new(Level::Info, "broker_connecting")
        }
        LinkState::Connecting { why, .. } => {
            Line::new(Level::Warn, "broker_connecting").message(why)
        }
        LinkState::Lost { why } => Line::new(Level::Error, "broker_lost").message(why),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::code::{Code, Refusal};
    use serde_json::{Value, json};
    use spec::LogFormat;
    use std::{
        io::{self, Write},
        sync::Mutex,
    };

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
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
        let kept = Kept::default();
        let log = Log::new(LogFormat::Json, kept.clone()).unwrap();
        let hidden = Arc::new(vec![PathBuf::from("/srv/work")]);
        let teller = Teller {
            metrics: Arc::new(Metrics::new()),
            log: log.clone(),
            hidden,
        };
        teller.metrics.tools(["echo"]);
        let text = |text: &str| text.to_owned();
        let which = Arc::new(Which {
            id: text("i"),
            tool: text("echo"),
            task: text("k"),
            correlation: text("c"),
            trace: Some(text("t")),
        });
        let seen = Seen {
            stderr: b"at /srv/work/x\n".to_vec(),
            was_warm: true,
            ..Seen::default()
        };
        let (took, queued) = (Duration::from_millis(7), Duration::from_millis(2));
        let refusal = Refusal::new(Code::ToolError, "it broke");
        teller.tell(Noted::Ran {
            which: which.clone(),
            seen,
        });
        teller.tell(Noted::Answered {
            which: which.clone(),
            how: How::Error(refusal),
            took,
            queued,
        });
        teller.tell(Noted::Load {
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
