//! What a run is: data and its checks. No I/O, no async.
//!
//! A front parses its own bytes into a [`RunRequest`]; [`Policy::admit`] turns that into a checked
//! [`RunSpec`]. Nothing behind this crate checks again what a `RunSpec` already says.

pub mod address;
mod barrier;
mod bounds;
mod contract;
mod day;
mod egress;
mod exact;
mod grant;
mod host;
mod id;
mod image;
mod image_pattern;
mod image_policy;
mod limits;
mod log;
mod moment;
mod money;
mod nearest;
mod paths;
mod policy;
mod pool;
mod protected;
mod quantity;
mod request_path;
mod result;
mod run;
mod session;
mod steps;
mod tenant;
mod trace_parent;
mod workspace;

pub use barrier::Barrier;
pub use bounds::{ArtifactLimits, Bounds, JobBounds, Retention};
pub use contract::{Contract, Json, is_of_the_parser};
pub use day::{BadDay, Day, Span};
pub use egress::{
    BadRule, EGRESS_PORT, EgressGrant, EgressLimits, EgressMode, EgressRule, NAMES_PORT, Operation,
    PASSING_PORT, Ports, RefPattern, Repository, WEB_PORTS, host_and_ports,
};
pub use exact::{Exact, FileId};
pub use grant::{
    BadModelPattern, Budget, Grants, INFERENCE_PORT, LLM_PORT, LlmGrant, ModelPattern,
};
pub use host::{BadHost, Destination, Host, HostPattern};
pub use id::{BadId, Id};
pub use image::{BadImageRef, DEFAULT_REGISTRY, Digest, ImageConfig, ImageRef};
pub use image_pattern::{BadImagePattern, ImagePattern};
pub use image_policy::{
    AGENT_LABEL, Admitted, AllowedImage, Capability, ImageFacts, ImagePolicy, ImageRule, ImageUse,
    Refused, RequireMark, Who, decide,
};
pub use limits::{LimitName, Limits, Maximum};
pub use log::{LogFile, LogFormat, LogLevel, LogSettings};
pub use money::{BadMoney, MOST_TOKENS_OF_CALL, Money};
pub use nearest::nearest;
pub use paths::{BadPath, InsidePath, WorkspacePath};
pub use policy::{CopyBounds, ExtraMounts, Policy, Profile, WorkspacePolicy};
pub use pool::Pool;
pub use protected::{PROTECTED, ProtectedName};
pub use quantity::{BadQuantity, Cpus, Size, Time};
pub use request_path::{BadRequestPath, PathPattern, RequestPath};
pub use result::base64;
pub use result::{
    ArtifactRef, BadTimestamp, Conflict, Denial, EgressUsage, Enforcer, ErrorCode, ErrorInfo,
    Event, GitHead, GitImport, GitIndex, GitLeft, GitRef, HeldBack, HoldReason, LayerKind,
    LayerUse, LearnedRule, LlmUsage, MAX_LISTED_CHANGES, Moments, RunResult, Status, Stream,
    Timestamp, Truncated, Usage, WorkspaceChanges, WorkspaceMode,
};
pub use run::{
    Access, Backend, DEFAULT_ID, DEFAULT_PATH, EnvName, HOME, InputSource, MAX_ARTIFACT_PATHS,
    Mount, Network, Root, RunRequest, RunSpec, SandboxSpec, SpecError, TerminalSize, User, Volume,
    WORKSPACE, WorkspaceOverlay,
};
pub use session::{
    DEFAULT_IDLE, DEFAULT_LIFETIME, ExecRequest, LONGEST_LIFETIME, SessionRequest, SessionSpec,
};
pub use steps::{
    BadJob, Constraints, ExecutionMode, Inference, InferenceSource, JobContext, MOST_JOB_BYTES,
    MOST_STEP_OUTPUT, MOST_STEPS, STEPS_PROTOCOL, Step, StepAction, StepArtifact, StepJob,
    StepResult, StepStatus, StepsResult,
};
pub use tenant::{Quota, Tenants};
pub use trace_parent::TraceParent;
pub use workspace::{Hidden, Hide, ProtectedNames};
