//! Writes what the fuzzer starts from: one folder a target, below the folder named as the argument.
//! Made afresh for every run, so that seeds can never be of an older form than what reads them.

mod dialect;
mod egress;

use doors::ledger::{CallOutcome, Durability, Ledger, ModelCall};
use init::{
    plan::{
        ExecArgs, FileId, HostOwner, HostPath, Ids, ImageRoot, InterceptPlan, LandlockScope,
        NamespacePoolPlan, ProgramPlan, ResourceLimit, RootEntry, RootEntryKind, SandboxPlan,
        TemplatePlan, WorkspaceName,
    },
    protocol::{InterceptHandles, LauncherRequest, Payload, ProcessExit, Report, SandboxCommand},
    step::{Step, StepFailure, Steps},
    wire::{Wire, encode},
};
use spec::Money;
use std::{
    ffi::{CStr, CString},
    fs, io,
    path::Path,
};

fn main() -> io::Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or_else(|| io::Error::other("usage: airlock-seeds FOLDER"))?;
    let folder = Path::new(&folder);
    write(&folder.join("plan"), plans()?)?;
    write(&folder.join("request"), requests())?;
    write(&folder.join("address"), addresses())?;
    write(&folder.join("config"), settings())?;
    write(&folder.join("node_yaml"), node_files())?;
    write(&folder.join("registry"), registries())?;
    write(&folder.join("screen"), screens())?;
    write(&folder.join("events"), events())?;
    write(&folder.join("layer"), layers())?;
    write(&folder.join("manifest"), manifests())?;
    write(&folder.join("entry"), entries())?;
    write(&folder.join("contract"), results())?;
    write(&folder.join("diff"), diffs())?;
    write(&folder.join("job_spec"), jobs())?;
    write(&folder.join("ask"), dialect::asks())?;
    write(&folder.join("tap"), dialect::taps())?;
    write(&folder.join("head"), dialect::heads())?;
    write(&folder.join("host"), egress::hosts())?;
    write(&folder.join("hello"), egress::hellos())?;
    write(&folder.join("question"), egress::questions())?;
    write(&folder.join("request_path"), egress::request_paths())?;
    write(&folder.join("trace"), traces())?;
    write(&folder.join("http"), exchanges())?;
    write(&folder.join("pkt"), pushes())?;
    write(&folder.join("sam_wire"), mesh_messages())?;
    write(&folder.join("sam_manifest"), tool_manifests())?;
    write(&folder.join("mqtt"), packets())?;
    write(&folder.join("amqp"), frames())?;
    // Lines are lines: what the ledger writes is a journal, too.
    write(&folder.join("journal"), ledgers(folder)?)?;
    write(&folder.join("ledger"), ledgers(folder)?)
}

/// What callers say of traces and moments.
fn traces() -> Vec<Vec<u8>> {
    let texts = [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more",
        "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "fw529a3039@dt=x y, b=",
        "2026-01-31T12:00:00.123Z",
        "2024-02-29t23:59:60.5-23:59",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// As `targets/sam_wire.rs` reads them: a topic, NUL, properties, NUL, a payload.
fn mesh_messages() -> Vec<Vec<u8>> {
    let invoke = r#"{"jsonrpc":"2.0","id":"1","method":"sam_remote_tool/invoke","params":{"task_id":"1","tool_name":"t","args":{"a":[1]},
        "tool_config":{},"app_name":"A","user_id":"u","session_id":"s","timeout_seconds":300,"sandbox_profile":"standard",
        "preloaded_artifacts":{"p":{"filename":"f","content":"aGk=","mime_type":"text/plain","version":0,"metadata":{}}},
        "artifact_references":{"p[0]":{"filename":"f","version":null}}}}"#;
    let question = r#"{"jsonrpc":"2.0","id":"1","method":"sam_remote_tool/init_request","params":{"tool_name":"t","tool_config":{}}}"#;
    let schema = r##"{"$ref":"#/$defs/A","$defs":{"A":{"type":["object","null"],"required":["a"],"properties":{"a":{"oneOf":[
        {"type":"integer","exclusiveMinimum":0},{"const":null}]},"b":{"items":[{"enum":[1,"x"]}],"examples":[1]},"c":{"$ref":"#/$defs/A"}}}}}"##;
    let all = "replyTo=n/a2a/v1/sam_remote_tool/response/A/1\nstatusTo=n/a2a/v1/sam_remote_tool/status/A/1\n\
               clientId=A\ntimestamp=1763170145210\ntraceId=0198c5d2\na2aUserConfig={}";
    let odd = invoke.replace(
        "[1]",
        r#"[NaN, Infinity, -Infinity, 1208925819614629174706176, "\ud83d \ud83d\ude00"]"#,
    );
    let messages: [(&str, &str, &str); 8] = [
        ("invoke/t", all, invoke),
        ("invoke/t", "", invoke),
        ("invoke/t", all, &odd),
        ("n/a2a/v1/sam_remote_tool/init_request/t", all, question),
        ("init/t", all, question),
        ("cancel/1", "n/a2a/v1/*/cancel/>", ""),
        (
            "n/a2a/v1/discovery/agentcards",
            "n/a2a/v1/discovery/>",
            schema,
        ),
        ("invoke/t", "replyTo=elsewhere\na2aStatusTopic=x", "{"),
    ];
    let joined = messages
        .iter()
        .map(|(topic, properties, payload)| format!("{topic}\0{properties}\0{payload}"));
    joined.map(String::into_bytes).collect()
}

/// Manifests of tools, and what tools say of themselves.
fn tool_manifests() -> Vec<Vec<u8>> {
    let texts = [
        "version: 1\ntools:\n  a: {runtime: python, module: m.n, function: f, sandbox_profile: restrictive}\n  \
         b: {module: m, class_name: C, package: 'p[x]', version: '>=0.29,<2', timeout_seconds: 60}\n",
        "tools:\n  w:\n    tool_dir: w\n    executable: python/bin/w\n    schema_refresh_seconds: 600\n    \
         resource_limits: {max_cpu_seconds: 60, max_file_size_mb: 100, max_open_files: 9, max_processes: 3, max_stack_size_mb: 6}\n",
        "tools: {a: {module: m, function: f, description: d, parameters: {type: OBJECT, properties: {x: {type: STRING}}}, \
         artifact_params: {x: {is_list: true}}, instructions: i, config_schema: [{key: k, type: integer}]}}",
        "tools: {a: {executable: ../x}, b: 5, c: {modul: m}}",
        "version: 2\n? [a]\n: &x b\n...\n---\n",
        r#"{"tools":{"t":{"description":"d","parameters":{"type":"object","properties":{}},"artifact_params":{"a":{"is_optional":true,
         "filename_key":"k"}},"instructions":"i","auth":{"type":"bearer"},"volume_params":[],"config_schema":[{"key":"k"}],"timeout_seconds":60}}}"#,
        r#"{"description":"d","ctx_facade_param_name":"ctx"}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// As `targets/diff.rs` reads them: a text, NUL, a diff.
fn diffs() -> Vec<Vec<u8>> {
    let diffs: [&str; 6] = [
        "a\nb\nc\n\0--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n",
        "a\0--- x\t2026-01-01\n+++ x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n",
        "\0diff --git a/x b/x\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n",
        "\0diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n",
        "a\n\0diff --git \"a/\\303\\244\" \"b/\\303\\244\"\nold mode 100644\nnew mode 100755\n",
        "\0diff --git a/x b/x\nGIT binary patch\nliteral 1\n",
    ];
    diffs.iter().map(|diff| diff.as_bytes().to_vec()).collect()
}

/// As `targets/job_spec.rs` reads them.
fn jobs() -> Vec<Vec<u8>> {
    let step = |kind: &str, args: &str| {
        format!(
            r#"{{"protocol_version":"1.0","job_id":"j","constraints":{{"max_runtime_seconds":1,"max_output_bytes":1}},
            "steps":[{{"type":"{kind}","args":{args},"on_failure":"continue"}}]}}"#
        )
    };
    let jobs = [
        step("run_command", r#"{"argv":["a"],"cwd":"b"}"#),
        step("write_file", r#"{"path":"a","content":"b"}"#),
        step("read_file", r#"{"path":"a","start_line":1,"end_line":2}"#),
        step("apply_unified_diff", r#"{"diff":"x"}"#),
        step("search_files", r#"{"pattern":"x","path":"y","include":"*"}"#),
        r#"{"protocol_version":"1.1","job_id":"j","constraints":{"max_runtime_seconds":1,"max_output_bytes":1},
        "persona":{"title":"t","description":"d"},"inference":{"allowed_models":["m*"],"source":"worker"},
        "context":{"task_context":"t","requirements":["r"],"preferences":{"a":1}}}"#
            .to_owned(),
    ];
    jobs.map(String::into_bytes).into()
}

/// As `targets/events.rs` reads them: where they are cut, and what a server sends.
fn events() -> Vec<Vec<u8>> {
    let streams: [&[u8]; 6] = [
        b"id: 1.0\nevent: started\ndata: {}\n\n: still here\n\nid: 2.5\nevent: output\ndata: {\"offset\":0}\n\n",
        b"id: 2\r\nevent: output\r\ndata: a\r\ndata: b\r\n\r\n",
        b"event: gap\ndata:{\"from\":65536,\"stream\":\"stdout\",\"to\":null}\n\nretry: 5\n\n",
        b"data\n\ndata: \xc3\xa4\n\n:\n\nid\ndata: x\n\n",
        b"id: a\0b\nevent\ndata:  two\n\n",
        b"event: x\n\ndata: lonely\n\xff\n",
    ];
    streams
        .iter()
        .map(|stream| [b"\x09", *stream].concat())
        .collect()
}

/// As `targets/mqtt.rs` reads them: version and where they are cut, and what brokers send.
fn packets() -> Vec<Vec<u8>> {
    let streams: [&[u8]; 10] = [
        b"\x05\x20\x12\x01\x00\x0f\x21\x00\x14\x24\x01\x27\x00\x01\x86\xa0\x2a\x01\x13\x00\x3c",
        b"\x05\x20\x0b\x00\x87\x08\x1f\x00\x05sorry\x20\x02\x00\x01",
        b"\x15\x90\x04\x00\x01\x00\x01\xd0\x00\xb0\x04\x00\x02\x00\x00",
        b"\x25\x32\x1a\x00\x03a/b\x00\x09\x0a\x26\x00\x02to\x00\x03x/y{\"id\":1}",
        b"\x05\x30\x13\x00\x01a\x0e\x01\x01\x02\x00\x00\x00\x09\x0b\x81\x01\x09\x00\x01z!",
        b"\x05\x40\x02\x00\x01\x40\x03\x00\x02\x10\xe0\x01\x8e",
        b"\x04\x20\x02\x00\x00\x90\x03\x00\x01\x01\x30\x07\x00\x03a/bhi\x32\x06\x00\x01a\x00\x07!",
        b"\x05\x10\x14\x00\x04MQTT\x05\xc2\x00\x1e\x00\x00\x01w\x00\x01u\x00\x01p",
        b"\x05\x82\x09\x00\x01\x00\x00\x03a/#\x21\xa2\x08\x00\x02\x00\x00\x03a/#",
        b"\x05\x32\x80\x80\x40\x00\x01a\x00\x05\x00too large",
    ];
    streams.iter().map(|stream| stream.to_vec()).collect()
}

/// As `targets/amqp.rs` reads them: where they are cut, and what brokers send. Behind each size: two words of header, and its kind.
fn frames() -> Vec<Vec<u8>> {
    let frame = |kind: u8, body: &[u8]| {
        let size = u32::try_from(8 + body.len()).unwrap_or(u32::MAX);
        [&size.to_be_bytes()[..], &[2, kind, 0, 0], body].concat()
    };
    let mechanisms = frame(1, b"\x00\x53\x40\xc0\x0c\x01\xa3\x09ANONYMOUS");
    let let_in = frame(1, b"\x00\x53\x44\xc0\x03\x01\x50\x00");
    let open = frame(0, b"\x00\x53\x10\xc0\x04\x01\xa1\x01b");
    let begin = frame(
        0,
        b"\x00\x53\x11\xc0\x09\x04\x60\x00\x00\x43\x52\x64\x52\x64",
    );
    let flow = frame(
        0,
        b"\x00\x53\x13\xc0\x0b\x07\x43\x52\x64\x43\x52\x64\x43\x43\x52\x0a",
    );
    let transfer = b"\x00\x53\x14\xc0\x08\x05\x43\x43\xa0\x01t\x43\x42";
    let properties = b"\x00\x53\x73\xc0\x0b\x04\x40\x40\xa1\x05a.b.c\x40";
    let application =
        b"\x00\x53\x74\xc1\x11\x04\xa1\x01t\x83\x00\x00\x01\x8b\xcf\xe5\x68\x00\xa1\x01f\x41";
    let body = b"\x00\x53\x75\xa0\x02{}";
    let message = frame(0, &[&transfer[..], properties, application, body].concat());
    let rejected = b"\x00\x53\x15\xc0\x1d\x05\x41\x43\x43\x41\x00\x53\x25\xc0\x13\x01\x00\x53\x1d\xc0\x0d\x02\xa3\x06amqp:x\xa1\x02no";
    let array = b"\xe0\x06\x02\xa3\x01a\x01b\x72\x7f\xc0\x00\x00\x45\x98\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
    let large = [&u32::MAX.to_be_bytes()[..], &[2, 0, 0, 0]].concat();
    let streams = [
        [mechanisms, let_in].concat(),
        [open, begin, flow].concat(),
        message,
        frame(0, rejected),
        frame(0, b"\x00\xa3\x10amqp:detach:list\xc0\x03\x02\x43\x41"),
        [frame(0, b""), large].concat(),
        array.to_vec(),
    ];
    streams
        .iter()
        .map(|stream| [b"\x20", &stream[..]].concat())
        .collect()
}

/// As `targets/pkt.rs` reads them: where they are cut, and what git sends.
fn pushes() -> Vec<Vec<u8>> {
    let (none, one) = ("0".repeat(40), "1".repeat(40));
    let words = "report-status-v2 side-band-64k object-format=sha1 agent=git/2.47.3";
    let line = |text: String| format!("{:04x}{text}", text.len() + 4);
    let create = line(format!("{none} {one} refs/heads/agent/a\0 {words}"));
    let update = line(format!("{one} {one} refs/heads/agent/b\n"));
    let delete = line(format!("{one} {none} refs/heads/agent/c"));
    let shallow = line(format!("shallow {one}"));
    let cert = line(format!("push-cert\0{words} push-options"));
    let pushes = [
        format!("{create}0000PACK"),
        format!("{shallow}{create}{update}0000"),
        format!("{create}{delete}0000"),
        format!("{cert}{create}0000"),
        "0000".to_owned(),
    ];
    pushes
        .iter()
        .map(|push| [b"\x07", push.as_bytes()].concat())
        .collect()
}

/// What a run writes that is served once and dies in its second call.
fn ledgers(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let place = folder.join("ledger-of-seeds");
    let ledger = Ledger::open(&place, "owner", Durability::Process)?;
    let call = ModelCall {
        run: "r".into(),
        tenant: "t\u{1}\"".into(),
        model: "m".into(),
        ..ModelCall::default()
    };
    let first = ledger.reserve(&call, Money(100), 10)?;
    ledger.settle(first, &CallOutcome::unknown(Money(100), "dropped"))?;
    ledger.record_injection("r".into(), "secret", "VARIABLE")?;
    ledger.record_revocation("r", "s")?;
    ledger.reserve(&call, Money(u64::MAX), 10)?;
    drop(ledger);
    let text = fs::read(place.join("owner.jsonl"))?;
    fs::remove_dir_all(place)?;
    let torn = &text[..text.len() - 10];
    Ok([&text[..], torn]
        .into_iter()
        .map(|text| [&[0, 77, b'x'][..], text].concat())
        .collect())
}

fn write(folder: &Path, seeds: Vec<Vec<u8>>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut numbered = seeds.iter().enumerate();
    numbered.try_for_each(|(number, seed)| fs::write(folder.join(format!("seed-{number}")), seed))
}

/// A tar of a pax header and a file, and one of GNU's with holes and a long name.
fn layers() -> Vec<Vec<u8>> {
    let pax = b"20 path=folder/name\n27 GNU.sparse.map=0,1,5,1\n";
    let first = [
        block(b"x", b'x', pax.len()),
        padded(pax),
        block(b"a", b'0', 2),
        padded(b"hi"),
    ]
    .concat();
    let mut holes = block(b"s", b'S', 2);
    holes[386..410].copy_from_slice(b"00000000005 00000000002 ");
    holes[483..495].copy_from_slice(b"00000000100 ");
    let second = [
        block(b"l", b'L', 5),
        padded(b"long\0"),
        summed(holes),
        padded(b"hi"),
    ]
    .concat();
    [first, second]
        .into_iter()
        .map(|bytes| [vec![100], bytes, vec![0; 1024]].concat())
        .collect()
}

fn block(name: &[u8], flag: u8, size: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    summed(block)
}

fn summed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    block
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

fn manifests() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let one = format!(
        r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":1,"platform":{{"os":"linux","architecture":"amd64"}},"annotations":{{"a":"b"}}}}"#
    );
    vec![
        format!(r#"d{{"schemaVersion":2,"manifests":[{one}]}}"#).into_bytes(),
        format!(r#"d{{"schemaVersion":2,"config":{one},"layers":[{one}]}}"#).into_bytes(),
        format!(r#"c{{"os":"linux","architecture":"arm64","variant":"v8","rootfs":{{"diff_ids":["{digest}"]}},"config":{{"User":"agent","Env":["A=b"],"Cmd":null,"Labels":{{"a":"b"}}}}}}"#).into_bytes(),
        br#"s[{"Config":"a.json","RepoTags":["a:1"],"Layers":["b/layer.tar"]}]"#.to_vec(),
    ]
}

fn addresses() -> Vec<Vec<u8>> {
    let v4 = [&[2, 0, 1, 187, 1, 2, 3, 4][..], &[0; 8]].concat();
    let v6 = [
        &[10, 0, 0, 80, 0, 0, 0, 0][..],
        &[0; 10],
        &[255, 255, 127, 0, 0, 1],
        &[0; 4],
    ]
    .concat();
    vec![v4, v6, b"\x01\0/socket\0".to_vec()]
}

fn plans() -> io::Result<Vec<Vec<u8>>> {
    fn of_kind<T: Wire>(kind: u8, value: &T) -> Vec<u8> {
        [vec![kind], encode(value)].concat()
    }
    let ended = ProcessExit {
        status: 256,
        cpu_us: 1500,
        peak_bytes: 4 << 20,
        alone: true,
    };
    let (plan, _) = Payload::new(&IDS)?;
    let pool = NamespacePoolPlan {
        depth: 8,
        ids: IDS,
        outer_count: 65_536,
        first_turn: 3,
    };
    let failure = StepFailure {
        step: Step::Mounts,
        errno: 2,
        detail: "/data".to_owned(),
    };
    Ok(vec![
        of_kind(b't', &template()),
        of_kind(b'b', &sandbox_plan()),
        of_kind(b'p', &program()),
        of_kind(
            b'q',
            &LauncherRequest::Template {
                plan: plan.clone(),
                first: Some(IDS),
            },
        ),
        of_kind(
            b'q',
            &LauncherRequest::Sandbox {
                plan: plan.clone(),
                cgroup: true,
            },
        ),
        of_kind(b'q', &LauncherRequest::CgroupForker),
        of_kind(b'q', &LauncherRequest::NamespacePool(pool)),
        of_kind(b'c', &SandboxCommand::Exec(plan.clone())),
        of_kind(b'c', &SandboxCommand::Prepare(plan.clone())),
        of_kind(b'c', &SandboxCommand::StartExec(plan)),
        of_kind(b'c', &SandboxCommand::Terminal),
        of_kind(b'c', &SandboxCommand::Signal(9)),
        of_kind(b'c', &SandboxCommand::Destroy),
        of_kind(b'r', &Report::Hello(Steps::ALL)),
        of_kind(
            b'r',
            &Report::Ready {
                steps: Steps::ALL,
                ids: IDS,
                unmapped: vec![0, 2],
                covered: vec![c"/workspace/proc".to_owned()],
                intercept: InterceptHandles::default(),
            },
        ),
        of_kind(b'r', &Report::Started(Steps::ALL)),
        of_kind(b'r', &Report::Terminal),
        of_kind(b'r', &Report::Ended(ended)),
        of_kind(b'r', &Report::Failed(failure)),
        of_kind(b'r', &Report::Gone(ended)),
    ])
}

const IDS: Ids = Ids {
    uid: 1000,
    gid: 1000,
    outer_uid: 200_000,
    outer_gid: 200_000,
    drop_groups: true,
};

fn template() -> TemplatePlan {
    let place = |path: &CStr, kind, content: &CStr| RootEntry {
        path: path.to_owned(),
        kind,
        content: content.to_owned(),
    };
    TemplatePlan {
        steps: Steps::ALL,
        image: Some(ImageRoot {
            path: c"/images/alpine".to_owned(),
            id: FileId {
                device: 1,
                inode: 2,
            },
        }),
        entries: vec![
            place(c"usr", RootEntryKind::Bind, c"/usr"),
            place(c"bin", RootEntryKind::Link, c"usr/bin"),
            place(c"etc", RootEntryKind::Directory, c""),
            place(
                c"etc/passwd",
                RootEntryKind::File,
                c"user:x:1000:1000::/workspace/.home:/bin/sh\n",
            ),
            place(c"dev/null", RootEntryKind::Device, c"/dev/null"),
            place(c"etc", RootEntryKind::HostOverlay, c"/etc"),
            place(c"etc/shadow", RootEntryKind::Whiteout, c""),
        ],
    }
}

fn workspace_name(path: &CStr) -> WorkspaceName {
    let path = path.to_owned();
    WorkspaceName { path, inode: 7 }
}

fn sandbox_plan() -> SandboxPlan {
    let host_path = |host: &CStr, inside: &CStr, owner: Option<HostOwner>| HostPath {
        host: host.to_owned(),
        device: 65025,
        inode: 131_073,
        inside: inside.to_owned(),
        writable: owner.is_some(),
        owner,
    };
    SandboxPlan {
        steps: Steps::ALL,
        ids: IDS,
        any_outer_id: true,
        warm: true,
        hostname: c"airlock".to_owned(),
        own_network: true,
        doors: vec![8080, 3128],
        intercept: Some(InterceptPlan {
            ports: vec![80, 443],
            redirect_port: Some(3129),
            dns_port: 53,
        }),
        terminal: true,
        stays: true,
        scratch_bytes: 256 << 20,
        scratch_files: 65536,
        writable_folders: vec![c"/usr".to_owned()],
        overlay: None,
        workspace: Some(host_path(
            c"/home/u/project",
            c"/workspace",
            Some(HostOwner {
                uid: 1000,
                gid: 1000,
            }),
        )),
        protected: vec![workspace_name(c".envrc"), workspace_name(c"sub/.git")],
        watch_mounts: true,
        hidden: vec![workspace_name(c".env")],
        workspace_directories: vec![c".artifacts".to_owned(), c"data".to_owned()],
        home_directories: vec![c".cache".to_owned()],
        mounts: vec![host_path(c"/data", c"/data", None)],
    }
}

fn program() -> ProgramPlan {
    let strings =
        |all: &[&CStr]| -> Vec<CString> { all.iter().map(|&text| text.to_owned()).collect() };
    ProgramPlan {
        steps: Steps::ALL,
        ids: IDS,
        exec_args: Some(ExecArgs {
            argv: strings(&[c"python3", c"-c", c"print(1)"]),
            env: strings(&[c"HOME=/workspace/.home", c"PATH=/usr/bin:/bin"]),
            candidates: strings(&[c"/usr/bin/python3", c"/bin/python3"]),
        }),
        last: true,
        directory: c"/workspace".to_owned(),
        rlimits: vec![ResourceLimit {
            resource: 7,
            soft: 128,
            hard: 128,
        }],
        writable: strings(&[c"/tmp", c"/workspace"]),
        landlock_scope: LandlockScope::SignalsAndSockets,
        nice: None,
        cpus: Some(2),
        terminal: true,
    }
}

/// Records as `targets/request.rs` reads them.
fn requests() -> Vec<Vec<u8>> {
    let all: [&[&str]; 5] = [
        &[
            "cpython3",
            "c-c",
            "cprint(1)",
            "rrun-1",
            "ttask.2",
            "jjob_3",
            "M64M",
            "T1m30s",
            "C1.5",
            "N32",
        ],
        &[
            "ctrue",
            "m/data:/data:ro",
            "m/a:b:/workspace/sub:rw",
            "w.",
            "I/images/alpine",
            "u1000:1000",
        ],
        &[
            "ctrue",
            "ia/b=file",
            "ix=artifact:out.txt@3",
            "aout.txt",
            "a/workspace/dir/./x",
            "p.git/hooks",
        ],
        &[
            "ctrue",
            "eLANG=C.UTF-8",
            "ePATH=/x",
            "Pagent",
            "ndoors",
            "d8080",
            "bnative",
            "qmemory_limit",
        ],
        &[
            "ctrue",
            "m/x:/a/../etc:rw",
            "i../x=y",
            "a..",
            "r../x",
            "nhost",
            "T500ms",
            "M2G",
            "C0.01",
        ],
    ];
    all.iter()
        .map(|records| records.join("\x1e").into_bytes())
        .collect()
}

/// A challenge, then a document, as `targets/registry.rs` reads them.
fn registries() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let blob = |kind: &str| {
        format!(r#"{{"mediaType":"application/vnd.{kind}","digest":"{digest}","size":3}}"#)
    };
    let (config, layer) = (
        blob("oci.image.config.v1+json"),
        blob("oci.image.layer.v1.tar+gzip"),
    );
    let foreign = blob("docker.image.rootfs.foreign.diff.tar.gzip");
    let image =
        |layer: &str| format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#);
    let entry = blob("oci.image.manifest.v1+json");
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{entry}]}}"#
    );
    let bearer = r#"Bearer realm="https://a.example/token",service="r",scope="repository:x:pull""#;
    let pairs = [
        (bearer, image(&layer)),
        (r#"Basic realm="a, \"b\"""#, image(&foreign)),
        ("Digest nonce=1, Bearer realm=x", index),
        (
            "Negotiate a==",
            r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(),
        ),
    ];
    pairs
        .iter()
        .map(|(header, document)| format!("{header}\0{document}").into_bytes())
        .collect()
}

/// What programs write to terminals, after a byte for the level and one for where it is cut.
fn screens() -> Vec<Vec<u8>> {
    let all = [
        "plain\r\n\x1b[1;38:2::1:2:3mcolour\x1b[m\tä€𝄞",
        "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[10;20H\x1b[2;9r\x1b(0lqk\x1b(B\x0e\x0f\x1b=\x1b[4 q\x1b[4h",
        "\x1b[6n\x1b[c\x1b[>c\x1b[21t\x1b[3J\x1b[201~\x1b[5i\x1bc\x05",
        "\x1b]52;c;eA==\x07\x1b]0;title\x1b\\\x1bP$qm\x1b\\\x1b_G\x1b\\\x1bkx\x1b\\",
        "\u{9b}2J\u{9d}52;c;?\u{9c}\x1b[?25;1048l\x18\x1b\x1b[",
    ];
    let level = |level: u8| {
        all.iter()
            .map(move |text| [&[level, 3], text.as_bytes()].concat())
    };
    level(0).chain(level(1)).collect()
}

/// Settings of a worker node.
fn node_files() -> Vec<Vec<u8>> {
    let files = [
        "version: 1\nworker_api: {listen_host: 0.0.0.0, listen_port: 12090, max_request_bytes: 1000}\n",
        "sandbox:\n  mode: allow\n  runtime: native\n  allowed_images: [alpine, 'registry.example/team/*']\n  resources:\n    max_cpu_cores: 1.5\n",
        "node: {id: n, labels: {zone: a}}\nlogging: {level: info, format: json}\nstorage: {state_dir: /s}\n",
        "a: &a [1]\nb: [*a, *a]\n<<: {c: d}\n---\n!!x\n",
    ];
    files.iter().map(|file| file.as_bytes().to_vec()).collect()
}

/// The operator's file, then a local one, as `targets/config.rs` reads them.
fn settings() -> Vec<Vec<u8>> {
    let operators = "[profile.ci]\nbase = \"standard\"\nnetwork = \"none\"\nmemory = \"1G\"\ncpus = 1.5\n\
                     pids = 64\nenv.inherit = [\"LANG\"]\n[maximum]\nmemory = \"2G\"\nwall_time = \"10m\"\n";
    let restrictive = "[profile.restrictive]\nbase = \"agent\"\ndisk = \"1G\"\nopen_files = 64\n";
    let narrow = "network = \"none\"\nmemory = \"64M\"\nwall_time = \"30s\"\ncpu_time = \"5s\"\noutput = 4096\n";
    let choice = "profile = \"ci\"\nfile_size = \"1M\"\npids = 8\n";
    let listed =
        "[images]\npolicy = \"allowed\"\nrequire_mark = \"always\"\nmay_add = [\"root\", 7]\n";
    let models = "[provider.a]\ndialect = \"openai\"\nbase = \"http://0x7f.1:80/v1\"\nallow_private = true\n\
                  allow_plain_http = true\nkey = { env = \"K\" }\nforward_headers = [\"x-title\"]\nretries = 1\n\
                  [model.m]\ntargets = [\"a/b\"]\n[prices.\"b*\"]\ninput = 0.5\noutput = 1e-3\n[inference]\ntime = 5\n\
                  [vault]\naddress = \"https://[::1]:1\"\ntoken = { file = \"/t\" }\n[secrets]\nkeyring = true\n\
                  [tenant.t]\nday_usd = 5\n[profile.restrictive]\nallow_models = [\"b*\"]\nallow_secrets = false\n\
                  budget = { run_usd = 2.0, requests = 9 }\n[ledger]\ndurability = \"power\"\n";
    let fewer = "allow_models = [\"b1\"]\nbudget = { run_usd = 1.5, concurrent = 1 }\n";
    let doors = "[[profile.restrictive.egress]]\nhost = \"*.a.com\"\nmode = \"tunnel\"\nports = [443, 8443]\n\
                 [[profile.restrictive.egress]]\nhost = \"api.b.com\"\nmode = \"inspect\"\nallow = [\"GET /v1/**\"]\n\
                 credential = \"c\"\nper_minute = 9\nsent = \"1M\"\n[[profile.restrictive.egress]]\nhost = \"g.com\"\n\
                 mode = \"git\"\nrepos = [{ repo = \"a/*\", push = [\"refs/heads/x/*\"], update = false }]\n\
                 [profile.less]\nnetwork = \"doors\"\negress_limits = { per_minute = 3 }\n[[profile.less.egress]]\n\
                 host = \"x.a.com\"\nmode = \"tunnel\"\nports = [443]\n[[profile.less.egress]]\nhost = \"y.a.com\"\nmode = \"deny\"\n\
                 [credential.c]\nkey = { secret = \"c\" }\ninject = \"header:x-key\"\nhosts = [\"*.b.com\"]\n\
                 [egress]\nca = \"/ca\"\n[maximum]\nallow_hosts = [\"*\"]\n";
    let (list_on, list_off) = ("images.policy = \"allowed\"", "images.policy = \"open\"");
    let pairs = [
        (operators, narrow),
        (restrictive, narrow),
        (restrictive, choice),
        ("", choice),
        ("", list_on),
        (listed, list_off),
        (models, fewer),
        (models, "budget.requests = 10"),
        (doors, "allow_hosts = [\"x.a.com\"]"),
        (doors, "profile = \"less\""),
        (doors, "network = \"none\""),
    ];
    // One word too much in each, so that no other one hides that it was let through.
    let wide = [
        "network = \"doors\"",
        "network = \"open\"",
        "network = \"host\"",
        "profile = \"agent\"",
        "memory = \"1T\"",
        "wall_time = \"24h\"",
        "cpu_time = 100000",
        "pids = 100000",
        "open_files = 100000",
        "env.inherit = [\"TOKEN\"]",
        "maximum.disk = \"1T\"",
        "images.require_mark = \"never\"",
        "provider.a.base = \"https://a.example\"",
        "secrets.keyring = true",
    ];
    let pairs = pairs.into_iter().chain(wide.map(|local| ("", local)));
    pairs
        .map(|(operators, local)| format!("{operators}\0{local}").into_bytes())
        .collect()
}

/// As `targets/entry.rs` reads them.
fn entries() -> Vec<Vec<u8>> {
    let passwd =
        "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000:A:/home/agent:/bin/sh\ntoor:x:0:0::/:\n";
    let group = "root:x:0:\nagent:x:1000:\ntools:x:2000:agent,other\n";
    let users = ["agent", "1000:1000", "agent:tools", "toor", "0"]
        .map(|name| format!("u{name}\0{passwd}\0{group}"));
    let others = [
        r#"j["sh", "-c", "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00", ""]"#,
        "j[]",
        "wa  'b c'\td\n",
        "lhttp://proxy.local:8090/prefix/",
        "lhttp://[::1]:80",
        "lunix:///run/s",
        "a127.0.0.1 a.b\nnameserver 127.0.0.11\n",
        "a\u{1}a\0\0\u{1}\0\u{1}\0\0\0\u{1}\0\u{4}\u{a}\0\0\u{2}",
    ];
    users
        .into_iter()
        .map(String::into_bytes)
        .chain(others.map(|text| text.as_bytes().to_vec()))
        .collect()
}

/// As `targets/contract.rs` reads them.
fn results() -> Vec<Vec<u8>> {
    let all = [
        (
            b't',
            0,
            r#"{"task_id":"t","status":"completed","result":"r","error":null,"tool_calls":[{"tool":"s","input":{},"output":1}],"tokens_used":{"input":1,"output":2}}"#,
        ),
        (b't', 1, r#"{"task_id":"t","status":"failed","error":"e"}"#),
        (
            b'e',
            0,
            r#"{"payloads":[{"text":"a","mediaUrl":null}],"meta":{"durationMs":1,"error":null,"aborted":false,"agentMeta":{"model":"m","usage":[1e3]}}}"#,
        ),
        (
            b'e',
            1,
            r#"{"payloads":[],"meta":{"durationMs":1,"error":{"kind":"k","message":"m"},"litellmCallId":"c"}}"#,
        ),
    ];
    all.iter()
        .map(|(kind, code, text)| [&[*kind, *code], text.as_bytes()].concat())
        .collect()
}

/// As `targets/http.rs` reads them.
fn exchanges() -> Vec<Vec<u8>> {
    let requests = [
        "GET /v1/models?a=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nConnection: keep-alive\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Api-Key: k\r\n\r\nhelloGET / HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /a/%2e%2e/b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nbody",
    ];
    requests
        .iter()
        .map(|request| [&[7], request.as_bytes()].concat())
        .collect()
}
