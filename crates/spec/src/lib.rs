//! The specification of a run, its checks and its result: data without I/O and async.
//!
//! The command line and the server parse their input into a [`RunRequest`]; [`Policy::admit`]
//! checks it and returns a [`RunSpec`]. The engine relies on what a `RunSpec` says, and fills in
//! what only the machine knows.

pub mod address;
mod barrier;
mod base64;
mod closest_name;
mod contract;
mod day;
mod egress;
mod file_id;
mod git_import;
mod grant;
mod hidden_files;
mod host;
mod id;
mod image;
mod image_pattern;
mod image_policy;
mod json;
mod limits;
mod log_settings;
mod money;
mod paths;
mod policy;
mod pool_settings;
mod protected_names;
mod quantity;
mod request_path;
mod result;
mod rfc3339;
mod run;
mod server_limits;
mod session;
mod steps;
mod tenant;
mod timestamp;
mod trace_parent;
mod workspace_changes;

pub use barrier::Barrier;
pub use base64::base64;
pub use closest_name::closest_name;
pub use contract::Contract;
pub use day::{BadDay, Day, Period};
pub use egress::{
    BadRule, DNS_PORT, EGRESS_PORT, EgressGrant, EgressLimits, EgressMode, EgressRule, Operation,
    Ports, RefPattern, Repository, TRANSPARENT_PROXY_PORT, WEB_PORTS, host_and_ports,
};
pub use file_id::{FileId, PinnedPaths};
pub use git_import::{GitHead, GitImport, GitIndex, GitOmission, GitRef};
pub use grant::{
    BadModelPattern, Budget, Grants, INFERENCE_PORT, LLM_PORT, LlmGrant, ModelPattern,
};
pub use hidden_files::{HiddenFiles, HideDecision};
pub use host::{BadHost, Destination, Host, HostPattern};
pub use id::{BadId, Id};
pub use image::{BadImageRef, DEFAULT_REGISTRY, Digest, ImageConfig, ImageRef};
pub use image_pattern::{BadImagePattern, ImagePattern};
pub use image_policy::{
    AGENT_LABEL, AllowedImage, CandidateImage, Capability, ImageAdmission, ImagePolicy,
    ImageRefusal, ImageRule, ImageUse, LabelRequirement, LocalUser, admit_image,
};
pub use json::{Json, is_reserved_json_key};
pub use limits::{LimitName, LimitSet, Limits};
pub use log_settings::{LogFile, LogFormat, LogLevel, LogSettings};
pub use money::{BadMoney, MAX_TOKENS_PER_CALL, Money};
pub use paths::{BadPath, InsidePath, WorkspacePath};
pub use policy::{ExtraMounts, LayerCopyLimits, Policy, Profile, WorkspacePolicy};
pub use pool_settings::PoolSettings;
pub use protected_names::{PROTECTED, ProtectedName, ProtectedNames};
pub use quantity::{BadQuantity, Cpus, Size, Time};
pub use request_path::{BadRequestPath, PathPattern, RequestPath};
pub use result::{
    ArtifactRef, Denial, EgressUsage, Enforcer, ErrorCode, ErrorInfo, LearnedRule, LlmUsage,
    PhaseTimes, RunEvent, RunResult, Status, StdStream, Truncation, Usage,
};
pub use run::{
    Access, Backend, DEFAULT_ID, DEFAULT_PATH, EnvName, HOME, InputSource, MAX_ARTIFACT_PATHS,
    Mount, Network, Root, RunRequest, RunSpec, SandboxSpec, SpecError, TerminalSize, User, Volume,
    WORKSPACE, WorkspaceOverlay,
};
pub use server_limits::{ArtifactLimits, JobQueueLimits, Retention, ServerLimits};
pub use session::{
    DEFAULT_IDLE_TIMEOUT, DEFAULT_SESSION_LIFETIME, ExecRequest, MAX_SESSION_LIFETIME,
    SessionRequest, SessionSpec,
};
pub use steps::{
    BadJob, ExecutionMode, InferenceSource, JobConstraints, JobContext, JobInference,
    MAX_JOB_BYTES, MAX_STEP_OUTPUT, MAX_STEPS, STEPS_PROTOCOL, Step, StepAction, StepArtifact,
    StepJob, StepJobResult, StepResult, StepStatus,
};
pub use tenant::{Quota, TenantQuotas};
pub use timestamp::{BadTimestamp, Timestamp};
pub use trace_parent::TraceParent;
pub use workspace_changes::{
    Conflict, HeldBackPath, HoldReason, LayerKind, LayerUsage, MAX_LISTED_CHANGES,
    WorkspaceChanges, WorkspaceMode,
};
