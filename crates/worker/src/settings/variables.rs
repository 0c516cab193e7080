//! Reference of all variables with defaults and meanings: for documentation, and for the test that
//! compares it with the code.

/// Name, default, meaning.
pub type VariableDescription = (&'static str, &'static str, &'static str);

/// All variables in the order of the documentation.
pub fn descriptions() -> &'static [VariableDescription] {
    DESCRIBED
}

/// Variables that are accepted and ignored, and why. Each causes a notice.
pub(super) const WITHOUT_MEANING: &[(&str, &str)] = &[
    ("SANDBOX_BWRAP_BIN", "sandboxes are made without bubblewrap"),
    (
        "STR_SECCOMP_BIND_DENY",
        "system calls are filtered in every sandbox, and nobody outside reaches what a tool binds",
    ),
    (
        "SANDBOX_WORK_DIR",
        "a call's files are in its sandbox, and gone with it",
    ),
    (
        "STR_WORK_BASE_DIR",
        "a call's files are in its sandbox, and gone with it",
    ),
    ("STR_RECONCILE_INTERVAL", "tools are looked at every second"),
    ("SAM_SKILLS_DIR", "skills are not served, only tools"),
    (
        "SAM_BUILTIN_SKILLS_DIR",
        "skills are not served, only tools",
    ),
    ("SAM_VOLUME_ROOT", "tools get no volumes"),
    ("SAM_DATA_DIR", "nothing is kept but what `--state` holds"),
    (
        "SAM_DISABLE_EMBEDDED_STR",
        "it is for the mesh, which then leaves tools to a worker such as this one",
    ),
    ("_SAM_SANDBOX_LIGHT", "it is set for every tool anyway"),
    ("GCS_PROJECT", "the name of a bucket is enough"),
    (
        "AZURE_CONTAINER_NAME",
        "Azure is not supported as object storage",
    ),
    (
        "AZURE_STORAGE_CONNECTION_STRING",
        "Azure is not supported as object storage",
    ),
    (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "Azure is not supported as object storage",
    ),
    (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "Azure is not supported as object storage",
    ),
];

const NONE: &str = "no meaning here";

const DESCRIBED: &[VariableDescription] = &[
    (
        "SAM_NAMESPACE",
        "solace-agent-mesh",
        "the mesh's namespace, the beginning of all topics",
    ),
    ("NAMESPACE", "", "the same"),
    (
        "SAM_WORKER_ID",
        "sandbox-worker-001",
        "the pool: workers with one id share the work",
    ),
    (
        "SAM_TRANSPORT",
        "",
        "the broker: mqtt://, mqtts://, amqp://, amqps:// or tcp:// (development broker), with HOST:PORT",
    ),
    (
        "SOLACE_BROKER_URL",
        "",
        "the broker as HOST:PORT or URL; the port (1883, 8883, 5672, 5671, 55554) or mqtt(s)://, amqp(s):// says how to speak",
    ),
    ("SOLACE_HOST", "", "the same"),
    (
        "SOLACE_BROKER_VPN",
        "default",
        "message VPN; another than `default` is sent as USER@VPN",
    ),
    ("SOLACE_VPN", "default", "the same"),
    (
        "SOLACE_BROKER_USERNAME",
        "admin",
        "user name at a broker that was named by SOLACE_…; with SAM_TRANSPORT none unless said",
    ),
    ("SOLACE_USERNAME", "admin", "the same"),
    (
        "SOLACE_BROKER_PASSWORD",
        "admin, with the user name's default",
        "password",
    ),
    ("SOLACE_PASSWORD", "", "the same"),
    (
        "SOLACE_TRUST_STORE_PATH",
        "the machine's authorities",
        "file or folder with the authorities (PEM) that may vouch for the broker",
    ),
    ("SOLACE_TLS_TRUST_STORE_DIR", "", "the same"),
    (
        "SOLACE_CLIENT_CERT_PATH",
        "",
        "our certificate (PEM), for brokers that ask for one",
    ),
    ("SOLACE_CLIENT_KEY_PATH", "", "its key"),
    (
        "SOLACE_RECONNECT_RETRIES",
        "10",
        "tries in a row to connect, then the worker ends; 0 or less is for ever",
    ),
    (
        "SOLACE_RECONNECT_DELAY_MS",
        "3000",
        "milliseconds between two tries",
    ),
    (
        "SAM_POOL",
        "shared",
        "how MQTT workers of one id share: `shared` subscriptions, or one `session` that one worker at a time has",
    ),
    (
        "SAM_MQTT_VERSION",
        "5, then 3",
        "the only version of MQTT to speak: 5 or 3",
    ),
    (
        "SAM_AMQP_ADDRESSES",
        "solace",
        "how an AMQP broker calls queues and topics: solace or rabbitmq",
    ),
    (
        "SAM_QUEUE",
        "NAMESPACE/q/str/SAM_WORKER_ID",
        "the pool's queue on an AMQP broker; it must be there",
    ),
    ("DEV_BROKER_HOST", "", "host of a development broker"),
    ("DEV_BROKER_PORT", "55555", "its port"),
    (
        "SAM_DEV_BROKER_HOST",
        "",
        "host of a development broker, newer name",
    ),
    ("SAM_DEV_BROKER_PORT", "55554", "its port, newer name"),
    (
        "SOLACE_DEV_MODE",
        "",
        "`true`: the development broker, at 127.0.0.1 unless its host is named; `false`: never",
    ),
    (
        "CONNECT_RETRIES",
        "0",
        "as SOLACE_RECONNECT_RETRIES, for the development broker",
    ),
    (
        "CONNECT_RETRY_DELAY_MS",
        "3000",
        "as SOLACE_RECONNECT_DELAY_MS, for the development broker",
    ),
    ("SAM_TOOLS_DIR", "/tools", "where tools are"),
    (
        "MANIFEST_PATH",
        "SAM_TOOLS_DIR/manifest.yaml",
        "the manifest",
    ),
    (
        "TOOLS_PYTHON_DIR",
        "SAM_TOOLS_DIR/python",
        "where Python modules of tools are",
    ),
    (
        "SAM_SITE_PACKAGES",
        "",
        "a folder of installed Python packages that every tool may import",
    ),
    (
        "PIP_INDEX_URL",
        "the public index",
        "where packages of the manifest come from; without credentials",
    ),
    (
        "PIP_TRUSTED_HOST",
        "",
        "a host whose packages are taken without TLS",
    ),
    (
        "SANDBOX_PYTHON_BIN",
        "python3 in /usr/local/bin or /usr/bin",
        "the interpreter of Python tools",
    ),
    ("SAM_STR_PYTHON", "", "the same"),
    (
        "DEFAULT_TIMEOUT_SECONDS",
        "300",
        "a tool's time where neither the request nor the manifest says one; agents always do",
    ),
    (
        "SANDBOX_DEFAULT_PROFILE",
        "standard",
        "restrictive, standard or permissive: the most that a request may wish, and what counts where nobody says",
    ),
    (
        "SANDBOX_MODE",
        "bwrap",
        "`bwrap`: every tool in a sandbox; `direct` and others are refused",
    ),
    ("STR_SANDBOX_MODE", "", "the same"),
    ("SANDBOX_MAX_CONCURRENT", "4", "calls at once"),
    (
        "SAM_MAX_WAITING",
        "256",
        "calls that wait for their turn; more are refused with RESOURCE_EXHAUSTED",
    ),
    (
        "SAM_DRAIN_SECONDS",
        "25",
        "how long calls under way may go on after SIGTERM",
    ),
    (
        "SAM_WARM",
        "2 for each call at once",
        "Python interpreters that are kept ready, at most, where a cgroup can be frozen; with 0 nothing is made ahead",
    ),
    (
        "SAM_LLM_PROVIDER",
        "",
        "provider of the configuration file whose model tools may ask, without its key",
    ),
    (
        "SAM_LLM_MODEL",
        "",
        "that model; without a price in the book or the configuration every question is refused, which is told at the start",
    ),
    (
        "SAM_LLM_BUDGET_USD",
        "1.00",
        "dollars that one call may spend on it",
    ),
    (
        "SAM_LLM_BUDGET_DAY_USD",
        "",
        "dollars that all calls may spend on it in a day (UTC)",
    ),
    (
        "ARTIFACT_SERVICE_TYPE",
        "memory",
        "where artifacts are: memory (256 MiB, shared with nobody; one user has at most half, the oldest are forgotten), filesystem, s3 or gcs",
    ),
    (
        "ARTIFACT_BASE_PATH",
        "/sam/artifacts",
        "folder of `filesystem`",
    ),
    ("ARTIFACT_S3_BUCKET", "", "bucket of `s3`"),
    ("ARTIFACT_S3_REGION", "AWS_REGION, us-east-1", "its region"),
    ("ARTIFACT_GCS_BUCKET", "", "bucket of `gcs`"),
    (
        "ARTIFACT_SCOPE",
        "namespace",
        "whose artifacts are shared: `namespace`, `app` (each agent's own), or `custom`",
    ),
    ("ARTIFACT_SCOPE_VALUE", "", "the name of a `custom` scope"),
    ("S3_ENDPOINT_URL", "", "another server that speaks S3"),
    ("AWS_ENDPOINT_URL", "", "the same"),
    ("AWS_REGION", "us-east-1", "region of buckets"),
    ("S3_REGION", "", "the same"),
    ("AWS_DEFAULT_REGION", "", "the same, where neither is set"),
    (
        "AWS_ACCESS_KEY_ID",
        "",
        "S3 key; without one, the machine's role",
    ),
    ("AWS_SECRET_ACCESS_KEY", "", "its secret"),
    (
        "AWS_SESSION_TOKEN",
        "",
        "its token, if it is a temporary one",
    ),
    (
        "AWS_ROLE_ARN",
        "",
        "role for which AWS_WEB_IDENTITY_TOKEN_FILE has a token, where there is no key",
    ),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "", "that file"),
    (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "",
        "file with a service account's key; without one, the machine's account",
    ),
    (
        "TOOL_SYNC_ENABLED",
        "false",
        "whether tools are fetched from object storage, from below NAMESPACE/str-runtime/",
    ),
    ("TOOL_SYNC_INTERVAL", "10", "seconds between two looks"),
    (
        "OBJECT_STORAGE_TYPE",
        "s3",
        "s3 or gcs; with TOOL_SYNC_ENABLED others are refused",
    ),
    (
        "STR_S3_BUCKET_NAME",
        "",
        "bucket that tools are fetched from",
    ),
    ("STR_S3_BUCKET", "", "the same"),
    ("OBJECT_STORAGE_BUCKET_NAME", "", "the same"),
    ("S3_BUCKET_NAME", "", "the same"),
    (
        "GCS_BUCKET_NAME",
        "STR_S3_BUCKET_NAME",
        "bucket that tools are fetched from, with gcs",
    ),
    (
        "HEALTH_PORT",
        "8081",
        "port of /healthz, /readyz, /startup, /health, /ready and /metrics; 0 is none",
    ),
    ("LOG_FORMAT", "json", "json or text, on stderr"),
    ("SANDBOX_BWRAP_BIN", "", NONE),
    ("SANDBOX_WORK_DIR", "", NONE),
    ("STR_WORK_BASE_DIR", "", NONE),
    ("STR_RECONCILE_INTERVAL", "", NONE),
    ("STR_SECCOMP_BIND_DENY", "", NONE),
    ("SAM_SKILLS_DIR", "", NONE),
    ("SAM_BUILTIN_SKILLS_DIR", "", NONE),
    ("SAM_VOLUME_ROOT", "", NONE),
    ("SAM_DATA_DIR", "", NONE),
    ("SAM_DISABLE_EMBEDDED_STR", "", NONE),
    ("_SAM_SANDBOX_LIGHT", "", NONE),
    ("GCS_PROJECT", "", NONE),
    ("AZURE_CONTAINER_NAME", "", NONE),
    ("AZURE_STORAGE_CONNECTION_STRING", "", NONE),
    ("AZURE_STORAGE_ACCOUNT_NAME", "", NONE),
    ("AZURE_STORAGE_ACCOUNT_KEY", "", NONE),
];
