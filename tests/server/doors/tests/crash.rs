//! The service is killed at any moment, again and again: what its ledger counts is never less than what the provider served.
//! doors.md 6, D 26. `AIRLOCK_FULL=1` kills 500 times instead of 20.

use doors_tests::{
    Door, House, Proxy,
    money::{Dice, Way, dollars, price, times, worst},
    proxy,
};
use provider::{Fault, Script};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

/// Ends the service as nobody can prepare for, and starts the next; what the one that ended had said.
fn kill(house: &mut House) -> String {
    let (_, said) = house.proxy.end(Signal::KILL);
    house.proxy = Proxy::start(&mut proxy(&house.folder, &[]));
    said
}

/// Reservations that nobody settled, and how many were settled as lost.
fn open_and_lost(house: &House) -> (usize, u64) {
    let mut open: BTreeSet<u64> = house
        .rows("reserve")
        .iter()
        .map(|row| row["n"].as_u64().expect("a number"))
        .collect();
    let settled = house.rows("settle");
    for row in &settled {
        assert!(
            open.remove(&row["of"].as_u64().expect("a number")),
            "settled once, after it was reserved: {row}"
        );
    }
    (
        open.len(),
        settled.iter().filter(|row| row["ending"] == "lost").count() as u64,
    )
}

/// How many lost calls a service said it found when it began.
fn told_lost(said: &str) -> u64 {
    let (_, rest) = said
        .split_once("calls without a recorded end: ")
        .unwrap_or(("", "0;"));
    rest.split(';')
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// Calls until nobody answers.
fn call_again_and_again(address: SocketAddr, requests: &[Vec<u8>]) {
    for request in requests.iter().cycle() {
        let Ok(mut connection) = TcpStream::connect(address) else {
            return;
        };
        let mut answer = Vec::new();
        let sent = connection
            .write_all(request)
            .and_then(|()| connection.read_to_end(&mut answer));
        if sent.is_err() || answer.is_empty() {
            return;
        }
    }
}

/// Calls of every kind on connections of their own, for sessions with and without a limit.
fn requests(house: &House) -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    for (way, stream) in Way::ALL
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        for budget in [json!({}), json!({ "usd": "1" })] {
            let session = house.session(way, &budget);
            let asked = way.request(
                &session.token,
                "m",
                stream,
                &way.body("m", stream, Some(40)),
            );
            let text = String::from_utf8(asked).expect("text");
            requests.push(
                text.replacen("\r\n", "\r\nconnection: close\r\n", 1)
                    .into_bytes(),
            );
        }
    }
    requests
}

#[test]
fn whenever_the_service_is_killed_no_less_is_counted_than_was_served() {
    let mut house = House::new();
    house.provider.set(Script {
        tokens: 12,
        pace_ms: 1,
        ..Script::default()
    });
    let (mut dice, mut served, mut told, mut found) = (Dice::new(), 0, 0, 0);
    for round in 0..times(20, 500) {
        let Door::Tcp(address) = house.proxy.listen else {
            panic!("it listens by TCP")
        };
        let requests = requests(&house);
        let pause = Duration::from_micros(2_000 + dice.roll(60_000));
        let said = thread::scope(|scope| {
            for lane in 0..4 {
                let requests = &requests[lane * 7..(lane + 1) * 7];
                scope.spawn(move || call_again_and_again(address, requests));
            }
            // The moment itself is what is random; nothing is waited for.
            thread::sleep(pause);
            kill(&mut house)
        });
        told += told_lost(&said);
        served += price(&house.all_served().tokens);
        house.provider.reset();
        let total = house.books(&[])["total"].clone();
        let counted = total["cost_nano_usd"].as_u64().expect("money");
        assert!(
            counted >= served,
            "round {round}: {counted} counted, {served} served: {total}"
        );
        let (open, lost) = open_and_lost(&house);
        assert_eq!(open, 0, "round {round}");
        assert_eq!(
            house.books(&["--verify"])["problems"],
            json!([]),
            "round {round}"
        );
        found = lost;
    }
    let (_, said) = house.proxy.end(Signal::TERM);
    assert!(
        served > 0 && found > 0,
        "something was served, and calls were under way: {served} {found}"
    );
    assert_eq!(told + told_lost(&said), found, "each was told of once");
}

#[test]
fn a_call_that_was_under_way_counts_in_full_and_is_told() {
    let mut house = House::new();
    let (way, cap) = (Way::Chat, 40);
    let session = house.session(way, &json!({ "usd": "1" }));
    house.provider.next(Fault::Hold(2));
    let body = way.body("m", true, Some(cap));
    let mut stream = house
        .proxy
        .listen
        .open(&way.request(&session.token, "m", true, &body));
    stream.until("tok1");
    assert_eq!(told_lost(&kill(&mut house)), 0);
    let money = worst(body.to_string().len(), cap);
    let served = price(&house.all_served().tokens);
    assert!(served > 0 && served < money);
    let total = &house.books(&[])["total"];
    assert_eq!(
        (
            &total["calls"],
            &total["cost_nano_usd"],
            &total["unsettled_calls"],
            &total["unsettled_nano_usd"]
        ),
        (&json!(1), &json!(money), &json!(1), &json!(money))
    );
    let (_, said) = house.proxy.end(Signal::TERM);
    let amount = dollars(money).trim_end_matches('0').to_owned();
    assert!(
        told_lost(&said) == 1 && said.contains(&format!(" {amount} USD")),
        "{said}"
    );
    house.proxy = Proxy::start(&mut proxy(&house.folder, &[]));
    assert_eq!(
        told_lost(&house.proxy.end(Signal::TERM).1),
        0,
        "and then it is over"
    );
    assert_eq!(
        (
            open_and_lost(&house),
            house.books(&["--verify"])["problems"].clone()
        ),
        ((0, 1), json!([]))
    );
}

#[test]
fn a_ledger_that_was_changed_is_found_out() {
    let mut house = House::new();
    let session = house.session(Way::Chat, &json!({}));
    assert_eq!(house.ask(&session, Way::Chat, false, None).status, 200);
    house.proxy.end(Signal::TERM);
    assert_eq!(house.books(&["--verify"])["problems"], json!([]));
    let path = house.folder.at("state/ledger/owner.jsonl");
    let text = std::fs::read_to_string(&path).expect("a ledger");
    let money = house.rows("settle")[0]["money"].as_u64().expect("money");
    std::fs::write(
        &path,
        text.replace(&format!("\"money\":{money}"), "\"money\":1"),
    )
    .expect("it is ours");
    let mut command = std::process::Command::new(cli::airlock());
    command
        .env_clear()
        .args(["usage", "--verify", "--json", "--state"])
        .arg(house.folder.at("state"));
    let output = command.output().expect("airlock starts");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (
            output.status.code(),
            told["problems"].as_array().map(Vec::len)
        ),
        (Some(1), Some(1)),
        "{told}"
    );
}
