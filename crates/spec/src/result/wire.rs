//! The JSON form of a result.

use super::{LearnedRule, RunResult};
use crate::{GitImport, Timestamp, WorkspaceChanges, base64};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeStruct},
};

impl Serialize for LearnedRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rule = serializer.serialize_struct("LearnedRule", 3)?;
        rule.serialize_field("host", &self.host.to_string())?;
        rule.serialize_field("ports", &self.ports)?;
        rule.serialize_field("uses", &self.uses)?;
        rule.end()
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for RunResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("run_id", &self.run_id)?;
        map.serialize_entry("task_id", &self.task_id)?;
        map.serialize_entry("job_id", &self.job_id)?;
        map.serialize_entry("status", &self.status)?;
        map.serialize_entry("exit_code", &self.exit_code)?;
        map.serialize_entry("signal", &self.signal)?;
        map.serialize_entry("exit_status", &self.exit_status)?;
        output(&mut map, ["stdout", "stdout_base64"], &self.stdout)?;
        output(&mut map, ["stderr", "stderr_base64"], &self.stderr)?;
        map.serialize_entry("truncated", &self.truncated)?;
        map.serialize_entry("output", &self.output)?;
        map.serialize_entry("error", &self.error)?;
        map.serialize_entry("started_at", &self.started_at)?;
        map.serialize_entry("ended_at", &self.ended_at)?;
        map.serialize_entry("duration_ms", &self.duration_ms)?;
        map.serialize_entry("usage", &self.usage)?;
        map.serialize_entry("limits_hit", &self.limits_hit)?;
        map.serialize_entry("denials", &self.denials)?;
        map.serialize_entry("artifacts", &self.artifacts)?;
        map.serialize_entry("backend", &self.backend)?;
        map.serialize_entry("profile", &self.profile)?;
        map.serialize_entry("barriers", &self.barriers)?;
        map.serialize_entry("enforced_by", &self.enforced_by)?;
        map.serialize_entry("notes", &self.notes)?;
        map.serialize_entry("learned", &self.learned)?;
        if self.workspace.is_some() || !self.git.is_empty() {
            let (changes, git) = (self.workspace.as_ref(), self.git.as_slice());
            map.serialize_entry("workspace", &Workspace { changes, git })?;
        }
        map.end()
    }
}

/// Changes and imported commits under one key.
#[derive(serde::Serialize)]
struct Workspace<'a> {
    #[serde(flatten)]
    changes: Option<&'a WorkspaceChanges>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    git: &'a [GitImport],
}

/// A stream as text where it is UTF-8; otherwise in base64, under the second name.
fn output<M: SerializeMap>(map: &mut M, names: [&str; 2], bytes: &[u8]) -> Result<(), M::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => map.serialize_entry(names[0], text),
        Err(_) => map.serialize_entry(names[1], &base64(bytes)),
    }
}
