use super::*;
use crate::egress::dns::tests::Door;
use spec::{EgressRule, HostPattern, Ports};
use std::net::SocketAddr;

/// An echo server for the first bytes; returns its port.
async fn repeater() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

/// A door with a tunnel rule for this local port, and its address.
async fn door(test: &str, port: u16) -> (Door, SocketAddr) {
    let rule = |host: &str| {
        let host = HostPattern::Exactly(host.parse().unwrap());
        EgressRule {
            allow_private: true,
            ..EgressRule::tunnel("own", host, Ports::These(vec![port]))
        }
    };
    let door = Door::open(
        test,
        vec![rule("localhost"), rule("127.0.0.1"), rule("::1")],
    )
    .await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    door.egress.serve(listener).unwrap();
    (door, address)
}

fn by_name(name: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, name.len() as u8], name, &port.to_be_bytes()].concat()
}

fn by_address(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, kind], address, &port.to_be_bytes()].concat()
}

async fn greeted(door: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(door).await.unwrap();
    client.write_all(&[5, 2, 0, 2]).await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), [5, 0]);
    client
}

/// The reply code of a request, and the connection.
async fn asked(door: SocketAddr, request: &[u8]) -> (u8, TcpStream) {
    let mut client = greeted(door).await;
    client.write_all(request).await.unwrap();
    let [version, code, rest @ ..] = read::<10>(&mut client).await.unwrap();
    assert_eq!((version, rest), (5, [0, 1, 0, 0, 0, 0, 0, 0]));
    (code, client)
}

async fn repeats(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
    let mut repeated = vec![0; bytes.len()];
    client.read_exact(&mut repeated).await.unwrap();
    assert_eq!(repeated, bytes);
}

#[tokio::test]
async fn a_client_gets_where_the_rules_let_it() {
    let port = repeater().await;
    let (_door, at) = door("socks", port).await;
    for request in [
        by_name(b"LocalHost", port),
        by_name(b"127.0.0.1", port),
        by_address(1, &[127, 0, 0, 1], port),
    ] {
        let (code, mut client) = asked(at, &request).await;
        assert_eq!(code, 0, "{request:?}");
        repeats(&mut client, b"hello").await;
    }
}

#[tokio::test]
async fn bytes_may_come_one_by_one_or_all_at_once() {
    let port = repeater().await;
    let (_door, at) = door("pace", port).await;
    let mut slow = TcpStream::connect(at).await.unwrap();
    slow.set_nodelay(true).unwrap();
    for byte in [&[5, 1, 0][..], &by_name(b"localhost", port)].concat() {
        slow.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(
        read(&mut slow).await.unwrap(),
        [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    );
    repeats(&mut slow, b"slow").await;
    let mut hasty = TcpStream::connect(at).await.unwrap();
    let all = [&[5, 1, 0][..], &by_name(b"localhost", port), b"hasty"].concat();
    hasty.write_all(&all).await.unwrap();
    let heard: [u8; 17] = read(&mut hasty).await.unwrap();
    assert_eq!(
        heard[12..],
        *b"hasty",
        "what came behind the request is the server's"
    );
}

#[tokio::test]
async fn what_the_rules_do_not_allow_is_refused_and_written_down() {
    let port = repeater().await;
    let (door, at) = door("refused", port).await;
    let refused = [
        by_name(b"evil\0.localhost", port),
        by_name(b"localhost\0", port),
        by_name(b"localhost\r\n", port),
        by_name(b"", port),
        by_name("löcalhost".as_bytes(), port),
        by_name(b"\xff\xfe", port),
        by_name(b"other.example", port),
        by_name(b"169.254.169.254", port),
        by_address(4, &[0xfe; 16], port),
    ];
    for request in &refused {
        assert_eq!(asked(at, request).await.0, 2, "{request:?}");
    }
    assert_eq!(
        asked(at, &by_name(b"localhost", port)).await.0,
        0,
        "the control"
    );
    assert_eq!(door.denied().len(), refused.len());
    assert_eq!(
        asked(at, &by_name(b"localhost", 1)).await.0,
        2,
        "another port"
    );
}

#[tokio::test]
async fn nobody_there_is_told_from_not_allowed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let (_door, at) = door("nobody", port).await;
    assert_eq!(asked(at, &by_name(b"localhost", port)).await.0, 4);
}

#[tokio::test]
async fn only_connect_without_a_password_is_spoken() {
    let port = repeater().await;
    let (_door, at) = door("methods", port).await;
    for methods in [&[5, 1, 2][..], &[5, 0]] {
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(methods).await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), [5, 0xff]);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "and that is all");
    }
    let mut request = by_name(b"localhost", port);
    for command in [0, 2, 3] {
        request[1] = command;
        assert_eq!(asked(at, &request).await.0, 7);
    }
    assert_eq!(asked(at, &by_address(2, &[], port)).await.0, 8);
    assert_eq!(asked(at, &by_name(b"localhost", 0)).await.0, 1);
}
