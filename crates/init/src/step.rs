//! The steps of containment. Each is reported when it is done; barriers are concluded from these
//! reports only.

/// One step, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// The launcher's own namespaces.
    LauncherNamespaces,
    /// The root that all sandboxes of a launcher start from.
    Template,
    /// The root becomes read-only.
    ReadOnlyRoot,
    /// The pid namespace of the sandbox.
    PidNamespace,
    /// Its mount namespace.
    MountNamespace,
    /// Its network namespace.
    NetNamespace,
    /// Its IPC namespace.
    IpcNamespace,
    /// Its UTS namespace, with its own host name.
    UtsNamespace,
    /// Its cgroup namespace.
    CgroupNamespace,
    /// Host paths are opened.
    OpenPaths,
    /// The size-limited tmpfs for everything that is written and not kept.
    Scratch,
    /// `/proc`, with masks.
    Proc,
    /// Fake files in `/proc` and `/sys` show the limits of the run instead of the host's resources.
    ShowLimits,
    /// `/workspace` and its protected names.
    Workspace,
    /// Other mounts.
    Mounts,
    /// Loopback and the listeners of doors.
    Doors,
    /// Transparent proxying: every address is local, with listeners; if asked for.
    TransparentProxy,
    /// A terminal of the sandbox's own, if asked for.
    Terminal,
    /// The user namespace of the program.
    MakeUserNamespace,
    /// The program joins the namespaces of pid 1.
    JoinNamespaces,
    /// It enters its user namespace.
    EnterUserNamespace,
    /// It changes to its user, which is not the host's root.
    Credentials,
    /// Every capability set is emptied.
    NoCapabilities,
    /// `no_new_privs`: exec cannot gain privileges.
    NoNewPrivileges,
    /// The standard streams are in place, all other descriptors close at exec.
    Descriptors,
    /// Landlock.
    PathRules,
    /// Resource limits.
    ResourceLimits,
    /// The CPU affinity is as large as the CPU limit. A hint, not a limit: the program may undo it.
    Affinity,
    /// The seccomp filter.
    SyscallFilter,
    /// The environment is exactly the plan's.
    EmptyEnvironment,
    /// The program is executed.
    Exec,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 31] = [
        Step::LauncherNamespaces,
        Step::Template,
        Step::ReadOnlyRoot,
        Step::PidNamespace,
        Step::MountNamespace,
        Step::NetNamespace,
        Step::IpcNamespace,
        Step::UtsNamespace,
        Step::CgroupNamespace,
        Step::OpenPaths,
        Step::Scratch,
        Step::Proc,
        Step::ShowLimits,
        Step::Workspace,
        Step::Mounts,
        Step::Doors,
        Step::TransparentProxy,
        Step::Terminal,
        Step::MakeUserNamespace,
        Step::JoinNamespaces,
        Step::EnterUserNamespace,
        Step::Credentials,
        Step::NoCapabilities,
        Step::NoNewPrivileges,
        Step::Descriptors,
        Step::PathRules,
        Step::ResourceLimits,
        Step::Affinity,
        Step::SyscallFilter,
        Step::EmptyEnvironment,
        Step::Exec,
    ];

    /// The name of the step, for messages and `--explain`.
    pub const fn name(self) -> &'static str {
        match self {
            Step::LauncherNamespaces => "launcher namespaces",
            Step::Template => "template root",
            Step::ReadOnlyRoot => "read-only root",
            Step::PidNamespace => "pid namespace",
            Step::MountNamespace => "mount namespace",
            Step::NetNamespace => "network namespace",
            Step::IpcNamespace => "ipc namespace",
            Step::UtsNamespace => "uts namespace",
            Step::CgroupNamespace => "cgroup namespace",
            Step::OpenPaths => "open host paths",
            Step::Scratch => "scratch space",
            Step::Proc => "proc",
            Step::ShowLimits => "show limits",
            Step::Workspace => "workspace",
            Step::Mounts => "mounts",
            Step::Doors => "doors",
            Step::TransparentProxy => "transparent proxy",
            Step::Terminal => "terminal",
            Step::MakeUserNamespace => "make user namespace",
            Step::JoinNamespaces => "join namespaces",
            Step::EnterUserNamespace => "enter user namespace",
            Step::Credentials => "credentials",
            Step::NoCapabilities => "no capabilities",
            Step::NoNewPrivileges => "no new privileges",
            Step::Descriptors => "descriptors",
            Step::PathRules => "path rules",
            Step::ResourceLimits => "resource limits",
            Step::Affinity => "affinity",
            Step::SyscallFilter => "system call filter",
            Step::EmptyEnvironment => "environment",
            Step::Exec => "exec",
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Step> {
        Step::ALL.get(usize::from(number)).copied()
    }
}

/// A set of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Steps(u64);

impl Steps {
    /// Every step.
    pub const ALL: Steps = Steps((1 << Step::ALL.len()) - 1);

    /// Whether it holds a step.
    pub const fn has(self, step: Step) -> bool {
        self.0 & 1 << step as u8 != 0
    }

    /// Adds a step.
    pub const fn add(&mut self, step: Step) {
        self.0 |= 1 << step as u8;
    }

    /// Without a step.
    pub const fn without(self, step: Step) -> Steps {
        Steps(self.0 & !(1 << step as u8))
    }

    /// Both together.
    pub const fn and(self, other: Steps) -> Steps {
        Steps(self.0 | other.0)
    }

    /// The set as a bit mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set of a bit mask; unknown bits are dropped.
    pub const fn from_bits(bits: u64) -> Steps {
        Steps(bits & Steps::ALL.0)
    }
}

/// A step that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// The step.
    pub step: Step,
    /// The errno.
    pub errno: i32,
    /// What was tried.
    pub detail: String,
}

impl StepFailure {
    /// From the fields of a message; an unknown step becomes the last one.
    pub fn from_parts(step: u8, errno: i32, detail: String) -> StepFailure {
        StepFailure {
            step: Step::from_number(step).unwrap_or(Step::Exec),
            errno,
            detail,
        }
    }
}
