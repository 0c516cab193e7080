//! Requests that the egress door looks into: what they say of themselves, what they hide, and the credentials that are
//! put into them (groups C and D).

use crate::{
    Case, Control, Finding, Outcome, Trouble, case,
    egress::NO_DOOR,
    internet::Internet,
    nothing, oracle,
    probe::{ALLOWED, PROXY, Probe, arrives, every_host, get, judged, open, rule, said, ways},
    world::{Door, Ground, each, mount},
};
use doors::{egress as doors_egress, secrets::KeySource};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use spec::{EgressMode, EgressRule, RunRequest};
use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

const fn door(id: &'static str, title: &'static str, run: fn(&Ground<'_>) -> Outcome) -> Case {
    case(id, title, run, Control::Given, NO_DOOR)
}

pub(crate) const CASES: &[Case] = &[
    door(
        "C59",
        "one host asked for, another named in TLS or in the request; no name; a hidden one",
        fronting,
    ),
    door("C60", "a second request hidden in the first", smuggling),
    door("C61", "paths that lead out of the allowed ones", paths),
    door(
        "C62",
        "an answer that leads elsewhere, and takes the credential along",
        redirection,
    ),
    door("C63", "a request that becomes a tunnel", upgrading),
];

/// Group D, as far as it is about egress.
pub(crate) const CREDENTIALS: &[Case] = &[
    door(
        "D71",
        "a credential for a host that it is not bound to",
        unbound,
    ),
    door("D72", "a server that says the credential back", echoes),
    nothing(
        "D73",
        "placeholders in places where none is replaced",
        "there are no placeholders: the door sets one header of its own",
    ),
    nothing(
        "D74",
        "signatures for other services and regions",
        "this build signs no requests",
    ),
    door("D75", "the key of the door's own authority", authority),
    door(
        "D75d",
        "a server behind the door whose certificate is by nobody who is trusted",
        stranger,
    ),
];

fn inspect(host: &str, allow: &[&str], credential: bool) -> Result<EgressRule, Trouble> {
    let allow = allow
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, spec::BadRule>>();
    let allow = allow.map_err(|bad| Trouble::Broken(bad.to_string()))?;
    let credential = credential.then(|| "key".to_owned());
    let mode = EgressMode::Inspect {
        allow,
        credential,
        allow_upgrade: false,
    };
    Ok(EgressRule {
        mode,
        allow_plain_http: true,
        ..rule(host)?
    })
}

/// A door with a credential that is bound to these hosts; the credential.
fn open_with_key(
    ground: &Ground<'_>,
    internet: &Internet,
    rules: Vec<EgressRule>,
    hosts: &[&str],
) -> Result<String, Trouble> {
    let (file, key) = (ground.world.fresh("key").join("key"), ground.world.secret());
    fs::write(&file, &key)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let hosts = hosts
        .iter()
        .map(|host| host.parse())
        .collect::<Result<_, spec::BadHost>>();
    let hosts = hosts.map_err(|bad| Trouble::Broken(bad.to_string()))?;
    let inject = doors_egress::InjectionMethod::Bearer;
    let credential = doors_egress::Credential {
        key: KeySource::File(file),
        inject,
        hosts,
    };
    let mut settings = internet.settings();
    settings.credentials.insert("key".to_owned(), credential);
    ground.open_door(Door {
        rules,
        settings,
        ..Door::default()
    });
    Ok(key)
}

fn counted(width: usize, bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_be_bytes()[8 - width..], bytes].concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(2, value)].concat()
}

/// The first message of TLS, with the mark where sessions are named.
fn hello(mark: &str, name: Option<&str>, hidden: bool) -> Vec<u8> {
    let named = |name: &str| {
        extension(
            0,
            &counted(2, &[&[0][..], &counted(2, name.as_bytes())].concat()),
        )
    };
    let mut extensions = name.map(named).unwrap_or_default();
    if hidden {
        extensions.extend(extension(
            0xfe0d,
            &[
                &[0, 0, 1, 0, 1, 7][..],
                &counted(2, &[7; 32]),
                &counted(2, &[7; 64]),
            ]
            .concat(),
        ));
    }
    let session: Vec<u8> = mark
        .bytes()
        .chain(std::iter::repeat(b'.'))
        .take(32)
        .collect();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &counted(1, &session),
        &[0, 2, 0x13, 1, 1, 0],
        &counted(2, &extensions),
    ]
    .concat();
    let message = [&[1][..], &counted(3, &body)].concat();
    [&[22, 3, 1][..], &counted(2, &message)].concat()
}

/// To that host by `CONNECT`.
fn tunnel(mark: &str, host: &str, port: u16, words: &[u8]) -> Probe {
    let opening = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    Probe::new(mark, PROXY, &[opening.as_bytes(), words])
}

/// In the control whoever is named inside is also asked for outside, and granted.
fn fronting(ground: &Ground<'_>) -> Outcome {
    const EVIL: &str = "evil.example";
    let internet = Internet::new(ground.world)?;
    open(
        ground,
        &internet,
        if ground.is_control() {
            vec![every_host(false)]
        } else {
            vec![rule(ALLOWED)?]
        },
    );
    let (front, nameless) = if ground.is_control() {
        (EVIL, "93.184.216.77")
    } else {
        (ALLOWED, ALLOWED)
    };
    let good = [
        tunnel(
            "allowed-tls",
            ALLOWED,
            443,
            &hello("allowed-tls", Some(ALLOWED), false),
        ),
        Probe::new(
            "itself-tls",
            &format!("{ALLOWED}:443"),
            &[&hello("itself-tls", Some(ALLOWED), false)],
        ),
    ];
    let as_evil = |mark: &str| get(&format!("/{mark}"), EVIL);
    let absolute = get(&format!("http://{front}/absolute"), EVIL);
    let mut bad = vec![
        tunnel(
            "sni-other",
            front,
            443,
            &hello("sni-other", Some(EVIL), false),
        ),
        Probe::new(
            "itself-other",
            &format!("{front}:443"),
            &[&hello("itself-other", Some(EVIL), false)],
        ),
        tunnel("sni-none", nameless, 443, &hello("sni-none", None, false)),
        tunnel(
            "sni-hidden",
            ALLOWED,
            443,
            &hello("sni-hidden", Some(ALLOWED), true),
        ),
        tunnel("host-tunnel", front, 80, as_evil("host-tunnel").as_bytes()),
        Probe::new(
            "host-itself",
            &format!("{front}:80"),
            &[as_evil("host-itself").as_bytes()],
        ),
        Probe::new("/absolute", PROXY, &[absolute.as_bytes()]),
    ];
    if !ground.is_control() {
        let second = format!(
            "GET /second HTTP/1.1\r\nHost: {ALLOWED}\r\nHost: {EVIL}\r\nConnection: close\r\n\r\n"
        );
        let inner = get(&format!("http://{EVIL}/inner"), ALLOWED);
        bad.push(tunnel("/second", ALLOWED, 80, second.as_bytes()));
        bad.push(tunnel("/inner", ALLOWED, 80, inner.as_bytes()));
        bad.push(tunnel(
            "not-tls",
            ALLOWED,
            443,
            get("/not-tls", ALLOWED).as_bytes(),
        ));
    }
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// Heads that one reader ends elsewhere than another.
const FRAMINGS: [&str; 14] = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n",
    "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Content-Length: 0\r\nContent-Length: 60\r\n\r\n",
    "Content-Length: 0, 60\r\n\r\n",
    "Content-Length: +0\r\n\r\n",
    "Connection: Content-Length\r\nContent-Length: 60\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n1;\na\r\n0\r\n\r\n",
    "X: a\n\nContent-Length: 0\r\n\r\n",
];

/// In the control the second request is no secret, and is granted.
fn smuggling(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let allow: &[&str] = if ground.is_control() {
        &[]
    } else {
        &["GET /ok/**", "POST /ok/**"]
    };
    open(ground, &internet, vec![inspect(ALLOWED, allow, false)?]);
    let hidden = get("/smuggled", ALLOWED);
    let mut probes = Vec::new();
    for (number, framing) in FRAMINGS
        .iter()
        .chain(&["Content-Length: 0\r\n\r\n"])
        .enumerate()
    {
        let mark = format!("framing{number}");
        let with = |target: &str| {
            format!("POST {target}/ok/{mark} HTTP/1.1\r\nHost: {ALLOWED}\r\n{framing}{hidden}")
        };
        probes.push(Probe::new(
            &mark,
            PROXY,
            &[with(&format!("http://{ALLOWED}")).as_bytes()],
        ));
        probes.push(Probe::new(
            &mark,
            &format!("{ALLOWED}:80"),
            &[with("").as_bytes()],
        ));
    }
    let second = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{hidden}");
    probes.push(tunnel("second", ALLOWED, 80, second.as_bytes()));
    let good = ways("ok/good", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &probes].concat())?;
    arrives(&internet, &good)?;
    let requests = internet.requests();
    let smuggled = requests.iter().find(|head| {
        head.split(' ')
            .nth(1)
            .is_some_and(|path| path.ends_with("/smuggled"))
    });
    let unclear = requests.iter().find(|head| {
        let head = head.to_ascii_lowercase();
        head.matches("\ncontent-length").count() + head.matches("\ntransfer-encoding").count() > 1
    });
    let found = smuggled.or(unclear.filter(|_| !ground.is_control()));
    Ok(found.map_or(Finding::Nothing, |head| {
        Finding::Escape(format!("{:?} arrived", head.lines().next()))
    }))
}

fn paths(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let (allow, tricks): (&[&str], &[&str]) = match ground.is_control() {
        true => (&[], &["/closed", "/OPEN/x"]),
        false => (
            &["GET /open/**"],
            &[
                "/closed",
                "/OPEN/x",
                "/open/../closed",
                "/open/x/../../closed",
                "/open/%2e%2e/closed",
                "/open/.%2E/closed",
                "/open/..%2fclosed",
                "/open%2f..%2fclosed",
                "/open/..;/closed",
                "/open/..;x=y/closed",
                "/open/..\\closed",
                "/open/..%5cclosed",
                "/open/..%00/closed",
                "//open/../closed",
                "/open//../../closed",
                "/./closed",
                "/opened",
            ],
        ),
    };
    open(ground, &internet, vec![inspect(ALLOWED, allow, false)?]);
    let mut bad = Vec::new();
    for (number, trick) in tricks.iter().enumerate() {
        let [plain, own] = ["p", "i"].map(|way| format!("trick{number}{way}"));
        let asked = get(&format!("http://{ALLOWED}{trick}?{plain}"), ALLOWED);
        bad.push(Probe::new(&plain, PROXY, &[asked.as_bytes()]));
        let asked = get(&format!("{trick}?{own}"), ALLOWED);
        bad.push(Probe::new(
            &own,
            &format!("{ALLOWED}:80"),
            &[asked.as_bytes()],
        ));
    }
    let good = ways("open/good", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// Whether a request to that host had this in it.
fn was_told(internet: &Internet, host: &str, secret: &str) -> bool {
    let host = format!("host: {host}");
    let requests = internet.requests();
    requests
        .iter()
        .any(|head| head.to_ascii_lowercase().contains(&host) && head.contains(secret))
}

/// In the control the credential is the other host's, too.
fn redirection(ground: &Ground<'_>) -> Outcome {
    const OTHER: &str = "other.example";
    let internet = Internet::new(ground.world)?;
    let other = if ground.is_control() {
        inspect(OTHER, &[], true)?
    } else {
        rule(OTHER)?
    };
    let key = open_with_key(
        ground,
        &internet,
        vec![inspect(ALLOWED, &[], true)?, other],
        &[ALLOWED, OTHER],
    )?;
    let leads = get(
        &format!("http://{ALLOWED}/leads?to=http://{OTHER}/followed"),
        ALLOWED,
    );
    let first = Probe::new("/leads", PROXY, &[leads.as_bytes()]);
    let good = [vec![first], ways("followed", OTHER, 80)].concat();
    said(ground, "speak", &[], &good)?;
    arrives(&internet, &good)?;
    if !was_told(&internet, ALLOWED, &key) {
        return Err(Trouble::Broken(
            "the credential does not reach its own host".to_owned(),
        ));
    }
    Ok(Finding::when(
        was_told(&internet, OTHER, &key),
        "the credential went to the other host",
    ))
}

/// The control may upgrade.
fn upgrading(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let mut rule = inspect(ALLOWED, &["GET /ok/**"], false)?;
    if let EgressMode::Inspect { allow_upgrade, .. } = &mut rule.mode {
        *allow_upgrade = ground.is_control();
    }
    open(ground, &internet, vec![rule]);
    let kinds: &[&str] = if ground.is_control() {
        &["websocket"]
    } else {
        &["websocket", "h2c", "TLS/1.3", "anything"]
    };
    let mut bad = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let more = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nHTTP2-Settings: AAMAAABkAAQAAP__";
        let asked = format!(
            "GET /ok/up HTTP/1.1\r\nHost: {ALLOWED}\r\nConnection: Upgrade\r\nUpgrade: {kind}\r\n{more}\r\n\r\n"
        );
        let [own, by_connect] = ["itself", "connect"].map(|way| format!("tunnelled{number}-{way}"));
        bad.push(Probe::new(
            &own,
            &format!("{ALLOWED}:80"),
            &[asked.as_bytes(), own.as_bytes()],
        ));
        let opening = format!("CONNECT {ALLOWED}:80 HTTP/1.1\r\nHost: {ALLOWED}:80\r\n\r\n");
        bad.push(Probe::new(
            &by_connect,
            PROXY,
            &[opening.as_bytes(), asked.as_bytes(), by_connect.as_bytes()],
        ));
    }
    let good = ways("ok/good", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// The rule of the other host names the credential. Only in the control the credential's own list of hosts does, too.
fn unbound(ground: &Ground<'_>) -> Outcome {
    const OTHER: &str = "other.example";
    let internet = Internet::new(ground.world)?;
    let rules = vec![
        inspect(ALLOWED, &[], true)?,
        inspect(OTHER, &[], true)?,
        rule("third.example")?,
    ];
    let hosts: &[&str] = if ground.is_control() {
        &[ALLOWED, OTHER]
    } else {
        &[ALLOWED]
    };
    let key = open_with_key(ground, &internet, rules, hosts)?;
    let good = [
        ways("bound", ALLOWED, 80),
        ways("third", "third.example", 80),
    ]
    .concat();
    said(
        ground,
        "speak",
        &[],
        &[good.clone(), ways("other", OTHER, 80)].concat(),
    )?;
    arrives(&internet, &good)?;
    let told = |host: &str| was_told(&internet, host, &key);
    match told(ALLOWED) {
        true => Ok(Finding::when(
            told(OTHER) || told("third.example"),
            "the credential went to another host",
        )),
        false => Err(Trouble::Broken(
            "the credential does not reach its own host".to_owned(),
        )),
    }
}

/// In the control it is no credential of the door's, but what the program says itself.
fn echoes(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let own = !ground.is_control();
    let key = open_with_key(
        ground,
        &internet,
        vec![inspect(ALLOWED, &[], own)?],
        &[ALLOWED],
    )?;
    let told = if own { "mine".to_owned() } else { key.clone() };
    let places = [
        "echo",
        "echo-header",
        "echo-error",
        "echo-chunks",
        "echo-location",
    ];
    // An older client, so that no framing stands between the parts of an answer.
    let probes = places.map(|place| {
        let head = format!("GET http://{ALLOWED}/{place} HTTP/1.0\r\nHost: {ALLOWED}\r\n");
        let asked = format!("{head}Authorization: Bearer {told}\r\nConnection: close\r\n\r\n");
        Probe::new(&format!("/{place}"), PROXY, &[asked.as_bytes()])
    });
    let report = said(ground, "speak", &[], &probes)?;
    arrives(&internet, &probes)?;
    if !was_told(&internet, ALLOWED, &key) {
        return Err(Trouble::Broken(
            "the credential does not reach its host".to_owned(),
        ));
    }
    each(
        ground,
        probes.iter().map(|probe| {
            let heard = report
                .value(&format!("{} hears", probe.mark))
                .unwrap_or_default();
            (
                probe.mark.clone(),
                Finding::when(
                    heard.contains(&key),
                    &format!("it came back in `{}`", probe.mark),
                ),
            )
        }),
    )
}

/// The control has a key, in a folder that is mounted.
fn authority(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![inspect(ALLOWED, &[], false)?]);
    let given = ground.world.fresh("given");
    fs::write(given.join("key"), "-----BEGIN PRIVATE KEY-----\n")?;
    let (mut found, mut certificates) = (Finding::Nothing, Vec::new());
    for _ in 0..2 {
        let mut attack = ground.attack("find-key", ["/given/key"]);
        if ground.is_control() {
            attack.mounts.push(mount(&given, "/given", "ro"));
        }
        let report = ground.run(RunRequest { ..attack })?.finished()?;
        found = found.or(|| report.claims());
        certificates.push(
            report
                .value("certificate")
                .filter(|text| text.contains("END")),
        );
    }
    let [Some(first), Some(second)] = &certificates[..] else {
        return Err(Trouble::Broken("there is no certificate inside".to_owned()));
    };
    let kept = oracle::folder_has(&ground.state(), "PRIVATE KEY")?;
    let left = oracle::folder_has(&ground.state().join("doors"), "BEGIN CERTIFICATE")?;
    Ok(found
        .or(|| Finding::when(first == second, "two runs have the same authority"))
        .or(|| Finding::when(kept, "its key lies in the state folder"))
        .or(|| Finding::when(left, "its certificate outlives the run")))
}

/// How to be the server of a name, by an authority that nobody knows; the authority.
fn strangers(name: &str) -> Result<(Arc<ServerConfig>, String), Box<dyn std::error::Error>> {
    let (key, authority_key) = (KeyPair::generate()?, KeyPair::generate()?);
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&authority_key)?.pem();
    let leaf = CertificateParams::new([name.to_owned()])?;
    let leaf = leaf.signed_by(&key, &Issuer::new(params, authority_key))?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)?;
    Ok((Arc::new(config), pem))
}

/// The control trusts that authority.
fn stranger(ground: &Ground<'_>) -> Outcome {
    const MARK: &str = "said-secretly";
    let internet = Internet::new(ground.world)?;
    let (config, pem) = strangers(ALLOWED).map_err(|error| Trouble::Broken(error.to_string()))?;
    internet.secure(config)?;
    let file = ground.world.fresh("authority").join("authority.pem");
    fs::write(&file, pem)?;
    let mut settings = internet.settings();
    settings.ca = ground.is_control().then_some(file);
    ground.open_door(Door {
        rules: vec![inspect(ALLOWED, &[], false)?],
        settings,
        ..Door::default()
    });
    let report = ground
        .run(ground.attack("speak-secretly", [ALLOWED, MARK]))?
        .finished()?;
    if !internet
        .dialled()
        .iter()
        .any(|address| address.port() == 443)
    {
        let heard = report.value("hears").unwrap_or_default();
        return Err(Trouble::Broken(format!(
            "the door does not go there: {heard}"
        )));
    }
    Ok(Finding::when(
        internet.heard(MARK),
        "the request was sent to whoever that is",
    ))
}
