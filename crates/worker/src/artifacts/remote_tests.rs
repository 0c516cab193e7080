use super::*;

fn remote(kind: Kind, endpoint: Option<&str>, credentials: Credentials) -> Remote {
    Remote {
        kind,
        bucket: "bucket".to_owned(),
        region: "us-east-1".to_owned(),
        endpoint: endpoint.map(str::to_owned),
        credentials,
    }
}

fn keys() -> Credentials {
    let (key, secret) = ("AKIDSECRET".to_owned(), "hushSECRET".to_owned());
    Credentials::Keys { key, secret, token: Some("tokenSECRET".to_owned()) }
}

#[test]
fn nothing_that_opens_a_bucket_is_printed() {
    let broken = "{\"private_key\": \"hushSECRET\", \"client_email\": 7}";
    let all = [
        remote(Kind::S3, None, keys()),
        remote(Kind::Gcs, None, Credentials::ServiceAccount(broken.to_owned())),
        remote(Kind::S3, Some("https://me:hushSECRET@host"), keys()),
    ];
    let [good, account, address] = all.each_ref().map(Store::open);
    let opened = good.unwrap();
    let printed = format!("{opened:?} {:?} {:?}", all[0], all[1]);
    assert!(!printed.contains("SECRET"), "{printed}");
    for refused in [account, address] {
        let why = refused.unwrap_err().0;
        assert!(!why.contains("SECRET") && why.starts_with("the bucket `bucket` cannot be used"), "{why}");
    }
}

#[test]
fn addresses_and_credentials_must_fit() {
    let machine = || Credentials::Machine;
    assert!(Store::open(&remote(Kind::S3, Some("http://10.0.0.1:9000"), keys())).is_ok());
    assert!(Store::open(&remote(Kind::Gcs, Some("http://127.0.0.1:1"), machine())).is_ok());
    let bad = [
        remote(Kind::Gcs, Some("http://10.0.0.1"), machine()),
        remote(Kind::Gcs, Some("http://127.0.0.1.example.org"), machine()),
        remote(Kind::S3, Some("10.0.0.1:9000"), keys()),
        remote(Kind::S3, Some("ftp://host"), keys()),
        remote(Kind::Gcs, None, keys()),
        remote(Kind::S3, None, Credentials::File("/nothing".to_owned())),
        Remote { bucket: String::new(), ..remote(Kind::S3, None, keys()) },
    ];
    for bad in bad {
        assert!(Store::open(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn keys_of_gcs_are_encoded_but_for_their_separators() {
    assert_eq!(encoded("a/b c%2F?#é~"), "a/b%20c%252F%3F%23%C3%A9~");
}

#[tokio::test]
async fn a_server_that_is_away_is_said_to_be_so_without_its_address() {
    // Nobody listens on a port that was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store = Store::open(&remote(Kind::S3, Some(&format!("http://127.0.0.1:{port}")), keys())).unwrap();
    let error = store.get("a", GetOptions::default()).await.unwrap_err();
    let told = cause(&error);
    assert!(told.contains("does not answer") && told.contains("refused"), "{told}");
    assert!(!told.contains("SECRET") && !told.contains(&port.to_string()), "{told}");
}
