//! A job of steps, and a result that a program left. No bytes make the readers panic; what is taken keeps to its bounds; what is
//! refused is told shortly and on one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{BadJob, ExecutionMode, Json, MAX_STEPS, StepJob, StepJobResult};

fuzz_target!(|input: &[u8]| {
    let Ok(document) = serde_json::from_slice::<Json>(input) else {
        return;
    };
    match StepJob::read(&document, None) {
        Ok(job) => {
            assert!(job.protocol_version.starts_with('1') && job.steps.len() <= MAX_STEPS);
            assert!(job.mode == ExecutionMode::AgentInference || !job.steps.is_empty());
            assert!(!job.constraints.max_runtime.is_zero() && job.constraints.max_output_bytes > 0);
            // A job is no result of itself.
            told(&StepJobResult::read(&document, &job).expect_err("its fields are others"));
        }
        Err(bad) => told(&bad),
    }
});

fn told(bad: &BadJob) {
    let text = bad.to_string();
    assert!(text.len() < 4096 && !text.contains('\n'), "{text:?}");
}
