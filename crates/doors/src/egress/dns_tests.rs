use super::*;
use crate::{
    egress::EgressSettings,
    ledger::{Durability, Ledger},
    secrets::Secrets,
};
use spec::{EgressGrant, EgressLimits, EgressRule};
use std::path::PathBuf;

/// A door with these rules in a temporary folder.
pub(crate) struct Door {
    pub(crate) egress: Arc<Egress>,
    folder: PathBuf,
}

impl Door {
    pub(crate) async fn open(test: &str, rules: Vec<EgressRule>) -> Door {
        Door::limited(
            test,
            EgressGrant {
                rules,
                ..EgressGrant::default()
            },
        )
        .await
    }

    async fn limited(test: &str, grant: EgressGrant) -> Door {
        let folder =
            std::env::temp_dir().join(format!("airlock-egress-{test}-{}", std::process::id()));
        let ledger = Arc::new(Ledger::open(&folder, "run", Durability::Process).unwrap());
        let (settings, secrets) = (EgressSettings::default(), Secrets::default());
        Door {
            egress: Egress::open("run", &grant, &settings, &secrets, ledger)
                .await
                .unwrap(),
            folder,
        }
    }

    /// A door with tunnel rules for these hosts.
    async fn to(test: &str, hosts: &[&str]) -> Door {
        Door::open(
            test,
            hosts
                .iter()
                .map(|host| EgressRule::from_option(host).unwrap())
                .collect(),
        )
        .await
    }

    /// A DNS client.
    async fn asker(&self, range: RangeInclusive<Ipv4Addr>) -> tokio::net::UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        self.egress.serve_dns(socket, range).unwrap();
        let asker = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        asker.connect(address).await.unwrap();
        asker
    }

    pub(crate) fn denied(&self) -> Vec<(String, String)> {
        let denials = self.egress.log.take_denials();
        denials
            .into_iter()
            .map(|denial| (denial.target, denial.allow_with))
            .collect()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

const RANGE: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(198, 18, 0, 1)..=Ipv4Addr::new(198, 19, 255, 254);
const AAAA: u16 = 28;
/// A public address that the tests never dial.
const SOMEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(1, 2, 3, 4));

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&[kind.to_be_bytes(), [0, 1]].concat());
    bytes
}

/// Response code and address.
fn told(answer: &[u8]) -> (u8, Option<Ipv4Addr>) {
    let end = answer.len();
    let address =
        (answer[7] == 1).then(|| Ipv4Addr::from(<[u8; 4]>::try_from(&answer[end - 4..]).unwrap()));
    (answer[3] & 15, address)
}

async fn ask(asker: &tokio::net::UdpSocket, name: &str, kind: u16) -> (u8, Option<Ipv4Addr>) {
    asker.send(&query(name, kind)).await.unwrap();
    let mut answer = [0; 600];
    let length = asker.recv(&mut answer).await.unwrap();
    told(&answer[..length])
}

#[tokio::test]
async fn an_allowed_name_has_an_address_that_leads_back_to_it() {
    let door = Door::to("allowed", &["a.example", "*.b.example"]).await;
    for name in ["a.example", "x.b.example"] {
        door.egress.dialer.store_cached(name, &[SOMEWHERE]);
    }
    let asker = door.asker(RANGE).await;
    let first = ask(&asker, "a.example", A).await.1.unwrap();
    let second = ask(&asker, "x.B.example", A).await.1.unwrap();
    assert_eq!(
        (first, second),
        ("198.18.0.1".parse().unwrap(), "198.18.0.2".parse().unwrap())
    );
    assert_eq!(
        ask(&asker, "A.Example", A).await,
        (0, Some(first)),
        "the same again"
    );
    assert_eq!(ask(&asker, "a.example", AAAA).await, (0, None));
    assert_eq!(ask(&asker, "a.example", 65).await, (0, None));
    let names = &door.egress.names;
    assert_eq!(names.name_at(first).as_deref(), Some("a.example"));
    assert_eq!(names.name_at(second).as_deref(), Some("x.b.example"));
    for nobody in ["198.18.0.0", "198.18.0.3", "1.2.3.4", "255.255.255.255"] {
        assert_eq!(names.name_at(nobody.parse().unwrap()), None, "{nobody}");
    }
    assert_eq!(door.denied(), []);
}

#[tokio::test]
async fn a_denied_name_is_not_looked_up() {
    let door = Door::to("denied", &["a.example"]).await;
    let asker = door.asker(RANGE).await;
    let tunnelled = "c2vjcmv0.evil.example";
    for kind in [A, AAAA, 16, 15, 255] {
        assert_eq!(ask(&asker, tunnelled, kind).await, (3, None));
    }
    assert_eq!(ask(&asker, "4.3.2.1.in-addr.arpa", PTR).await, (3, None));
    assert_eq!(
        door.denied(),
        [(tunnelled.to_owned(), format!("--allow-host {tunnelled}"))]
    );
    // By the rules alone: whatever is to be looked up comes out of this as such, and nothing else is.
    assert!(matches!(
        door.egress.decide_query(&query(tunnelled, A)),
        QueryAction::Respond(_)
    ));
    assert!(
        matches!(
            door.egress.decide_query(&query("a.example", A)),
            QueryAction::Resolve(_)
        ),
        "the control"
    );
    assert!(matches!(
        door.egress.decide_query(&query("a.example", AAAA)),
        QueryAction::Respond(_)
    ));
    door.egress
        .grant(EgressRule::from_option("*").unwrap(), None)
        .unwrap();
    assert!(
        matches!(
            door.egress.decide_query(&query(tunnelled, A)),
            QueryAction::Resolve(_)
        ),
        "the control"
    );
}

#[tokio::test]
async fn a_name_that_is_private_or_does_not_exist_has_no_address() {
    let door = Door::to("private", &["*"]).await;
    let private = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    door.egress
        .dialer
        .store_cached("inside.example", &[private]);
    door.egress
        .dialer
        .store_cached("outside.example", &[private, SOMEWHERE]);
    let asker = door.asker(RANGE).await;
    assert_eq!(ask(&asker, "inside.example", A).await, (3, None));
    assert!(
        ask(&asker, "outside.example", A).await.1.is_some(),
        "the control"
    );
    // RFC 6761 reserves this top-level domain.
    assert_eq!(ask(&asker, "nobody.invalid", A).await, (3, None));
    assert_eq!(ask(&asker, "127.1", A).await, (3, None));
    assert_eq!(ask(&asker, "metadata.google.internal", A).await, (3, None));
    let allow_private = "a rule with allow_private = true in the configuration".to_owned();
    let expected = [
        ("inside.example".to_owned(), allow_private),
        ("127.0.0.1".to_owned(), "nothing".to_owned()),
        ("metadata.google.internal".to_owned(), "nothing".to_owned()),
    ];
    assert_eq!(door.denied(), expected);
}

#[tokio::test]
async fn the_box_is_its_own_localhost_whatever_the_rules_say() {
    let door = Door::to("localhost", &[]).await;
    let asker = door.asker(RANGE).await;
    for name in ["localhost", "LOCALHOST", "x.localhost"] {
        assert_eq!(ask(&asker, name, A).await, (0, Some(Ipv4Addr::LOCALHOST)));
        assert_eq!(ask(&asker, name, AAAA).await, (0, None));
    }
    assert_eq!(ask(&asker, "notlocalhost", A).await, (3, None));
}

#[tokio::test]
async fn what_is_no_question_does_not_stop_the_door() {
    let door = Door::to("noise", &[]).await;
    let asker = door.asker(RANGE).await;
    for noise in [&b""[..], b"x", &[0xff; 5000], &[0x80; 12]] {
        asker.send(noise).await.unwrap();
    }
    assert_eq!(
        ask(&asker, "localhost", A).await,
        (0, Some(Ipv4Addr::LOCALHOST))
    );
}

#[test]
fn addresses_run_out_and_are_never_somebody_elses() {
    let names = FakeAddresses::default();
    assert_eq!(names.address_of("a.example"), None, "there is no range yet");
    let (first, second) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2));
    names.range.set(first..=second).unwrap();
    assert_eq!(names.address_of("a.example"), Some((first, true)));
    assert_eq!(names.address_of("b.example"), Some((second, true)));
    assert_eq!(names.address_of("c.example"), None);
    assert_eq!(names.address_of("a.example"), Some((first, false)));
    assert_eq!(
        address(&(Ipv4Addr::BROADCAST..=Ipv4Addr::BROADCAST), 1),
        None
    );
    assert_eq!(names.name_at(Ipv4Addr::new(198, 18, 0, 0)), None);
}

#[tokio::test]
async fn the_number_of_names_has_a_bound_that_is_named() {
    let door = Door::to("bound", &["*"]).await;
    let asker = door.asker(RANGE).await;
    for number in 0..MAX_NAMES {
        assert!(
            door.egress
                .names
                .address_of(&format!("n{number}.example"))
                .is_some()
        );
    }
    door.egress
        .dialer
        .store_cached("late.example", &[SOMEWHERE]);
    door.egress.dialer.store_cached("n7.example", &[SOMEWHERE]);
    assert_eq!(ask(&asker, "late.example", A).await, (2, None));
    assert_eq!(
        ask(&asker, "n7.example", A).await,
        (0, Some(Ipv4Addr::new(198, 18, 0, 8)))
    );
    assert_eq!(
        door.denied(),
        [("late.example".to_owned(), "nothing".to_owned())]
    );
}

#[tokio::test]
async fn questions_end_with_their_door() {
    let door = Door::to("end", &[]).await;
    let asker = door.asker(RANGE).await;
    assert_eq!(ask(&asker, "localhost", A).await.0, 0);
    door.egress.close().await;
    // The socket is closed as soon as its task is: from then on the kernel says that nobody is there. What arrived
    // before that is not answered any more.
    let mut answer = [0; 600];
    loop {
        let asked = asker.send(&query("localhost", A)).await;
        let heard = tokio::time::timeout(Duration::from_millis(100), asker.recv(&mut answer)).await;
        if asked.is_err() || matches!(heard, Ok(Err(_))) {
            break;
        }
    }
}

#[tokio::test]
async fn names_that_are_looked_up_count_until_a_limit_is_spent() {
    let by_number = EgressLimits {
        per_minute: Some(2),
        ..EgressLimits::default()
    };
    let by_length = EgressLimits {
        sent: Some(spec::Size(20)),
        ..EgressLimits::default()
    };
    for (test, limits) in [("per-minute", by_number), ("sent", by_length)] {
        let rules = vec![EgressRule::from_option("*").unwrap()];
        let door = Door::limited(
            test,
            EgressGrant {
                rules,
                limits,
                ..EgressGrant::default()
            },
        )
        .await;
        for name in ["a1.example", "a2.example", "a3.example"] {
            door.egress.dialer.store_cached(name, &[SOMEWHERE]);
        }
        let asker = door.asker(RANGE).await;
        for name in ["a1.example", "a2.example", "a1.example"] {
            assert_eq!(ask(&asker, name, A).await.0, 0, "{name}");
        }
        assert_eq!(
            ask(&asker, "a3.example", A).await,
            (5, None),
            "a third one is too many"
        );
        assert_eq!(
            ask(&asker, "a2.example", A).await.0,
            0,
            "and what is known tells nobody anything"
        );
        let denied = door.denied();
        assert!(
            denied.len() == 1 && denied[0].1.contains(&test.replace('-', "_")),
            "{denied:?}"
        );
        assert!(door.egress.log.limit_hit());
    }
}

#[tokio::test]
async fn the_proxy_knows_whose_a_made_up_address_is() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let rule = EgressRule {
        allow_private: true,
        ..EgressRule::from_option(&format!("a.example:{port}")).unwrap()
    };
    let door = Door::open("made-up", vec![rule]).await;
    door.egress
        .dialer
        .store_cached("a.example", &["127.0.0.1".parse().unwrap()]);
    let address = ask(&door.asker(RANGE).await, "a.example", A)
        .await
        .1
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    door.egress.serve(listener).unwrap();
    let request =
        format!("GET http://{address}:{port}/ HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut heard = [0; 64];
    let mut answer = [0; 64];
    tokio::select! {
        accepted = server.accept() => {
            let length = accepted.unwrap().0.read(&mut heard).await.unwrap();
            let heard = String::from_utf8_lossy(&heard[..length]);
            assert!(heard.contains(&format!("host: a.example:{port}\r\n")), "{heard}");
        }
        length = client.read(&mut answer) => panic!("{}", String::from_utf8_lossy(&answer[..length.unwrap()])),
    }
}
