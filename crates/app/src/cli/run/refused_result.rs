//! The result of a refused run, so that `--json` always prints a result.

use super::super::{message, message::Failure};
use spec::{Id, RunResult};

/// The caller's identifiers of a run, before validation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub(super) run_id: Option<String>,
    pub(super) task_id: Option<String>,
    pub(super) job_id: Option<String>,
    pub(super) profile: Option<String>,
}

/// Prints the result of a refused run on stdout.
pub(crate) fn print_refusal(identity: &Identity, failure: &Failure) {
    if let Err(unwritten) = super::super::print_json(&refused(identity, failure)) {
        message::print(&unwritten.lines());
    }
}

fn refused(identity: &Identity, failure: &Failure) -> RunResult {
    let checked = |text: &Option<String>| text.as_deref().and_then(|text| Id::new(text).ok());
    let run_id = checked(&identity.run_id).unwrap_or_else(engine::fresh_id);
    let profile = identity
        .profile
        .clone()
        .unwrap_or_else(|| spec::Policy::default().default_profile);
    RunResult {
        task_id: checked(&identity.task_id),
        job_id: checked(&identity.job_id),
        error: Some(failure.info()),
        ..RunResult::blank(run_id, profile, engine::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_result_with_the_callers_identifiers() {
        let identity = Identity {
            run_id: Some("mine".into()),
            task_id: Some("../no".into()),
            job_id: Some("job-1".into()),
            profile: None,
        };
        let result = refused(&identity, &Failure::invalid("bad", "mend it"));
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(
            (&json["run_id"], &json["job_id"]),
            (&"mine".into(), &"job-1".into())
        );
        assert_eq!(json["task_id"], serde_json::Value::Null);
        assert_eq!(
            (&json["status"], &json["exit_status"]),
            (&"not_started".into(), &125.into())
        );
        let error =
            serde_json::json!({ "code": "invalid_spec", "message": "bad", "hint": "mend it" });
        assert_eq!(json["error"], error);
    }
}
