use super::*;
use crate::artifacts::{
    BucketConfig, BucketCredentials, bucket_client, cause,
    fake_s3::{FakeResponse, FakeS3},
    http::BoundedConnector,
};
use object_store::{
    ClientOptions, GetOptions, StaticCredentialProvider,
    client::{HttpConnector, HttpRequest},
};
use serde_json::json;

/// What is in the bucket of a machine whose metadata service says this: a token, a role, and of it a key, a secret, a token.
async fn asked(said: [&str; 5]) -> std::result::Result<Bytes, String> {
    let said = said.map(str::to_owned);
    let fake = FakeS3::serve(move |asked| {
        let [word, role, key, secret, token] = &said;
        let keys = json!({"AccessKeyId": key, "SecretAccessKey": secret, "Token": token,
                          "Expiration": "2999-01-01T00:00:00Z"});
        let answer = match asked.path.as_str() {
            "/latest/api/token" => word.clone(),
            "/latest/meta-data/iam/security-credentials/" => role.clone(),
            "/bucket/a" => "bytes".to_owned(),
            _ => keys.to_string(),
        };
        FakeResponse::Answer(200, answer)
    });
    let machine = BucketConfig {
        credentials: BucketCredentials::Machine,
        ..fake.remote()
    };
    let builder = bucket_client::s3(&machine)
        .unwrap()
        .with_metadata_endpoint(&fake.address);
    let store = bucket_client::open_s3(builder).unwrap();
    let found = store
        .get("a", GetOptions::default())
        .await
        .map_err(|error| cause(&error))?;
    found.bytes().await.map_err(|error| cause(&error))
}

#[tokio::test]
async fn what_a_metadata_service_says_does_not_end_us() {
    let good = ["word==", "a-role", "AKID", "hush/+=", "token/+="];
    assert_eq!(asked(good).await.unwrap(), "bytes", "the control");
    let long = "SECRET".repeat(12_000);
    for (place, bad) in [
        (0, "SECRET\nx"),
        (0, "SECRET\n"),
        (0, &long),
        (1, "SECRET\nx"),
        (1, "SECRET x"),
        (1, "<SECRET>"),
        (1, &long),
        (2, "SECRET\nx"),
        (2, "SECRETé"),
        (3, "SECRET\nx"),
        (4, "SECRET\nx"),
        (4, "SECRET\0"),
        (4, "SECRET\u{7f}"),
    ] {
        let mut said = good;
        said[place] = bad;
        let why = asked(said).await.unwrap_err();
        assert!(
            why.starts_with("its credentials cannot be used: "),
            "{place}: {why}"
        );
        assert!(!why.contains("SECRET"), "{why}");
    }
}

#[tokio::test]
async fn a_time_that_no_clock_can_tell_does_not_end_us() {
    let client = BoundedConnector::Credentials
        .connect(&ClientOptions::new().with_allow_http(true))
        .unwrap();
    let asked = async |expires: u64| {
        let token = json!({"access_token": "t", "expires_in": expires}).to_string();
        let fake = FakeS3::serve(move |_| FakeResponse::Answer(200, token.clone()));
        let mut request = HttpRequest::new(String::new().into());
        *request.uri_mut() = format!("{}/computeMetadata/v1/token", fake.address)
            .parse()
            .unwrap();
        client
            .execute(request)
            .await
            .map(drop)
            .map_err(|error| Error::Generic {
                store: "",
                source: error.into(),
            })
    };
    assert!(asked(3600).await.is_ok(), "the control");
    let why = cause(&asked(u64::MAX).await.unwrap_err());
    assert!(why.contains("longer than a hundred years"), "{why}");
}

#[test]
fn what_is_not_read_as_the_client_would_is_refused() {
    let said =
        |text: &'static [u8]| check_metadata_response("/computeMetadata/v1/token", text.into());
    assert!(
        said(br#" {"access_token":"t","expires_in":3600,"x":"\u00ff"}"#).is_ok(),
        "the control"
    );
    for odd in [
        &br#"["t",18446744073709551615,null]"#[..],
        b" [",
        b"{\"access_token\":\"t\",\"expires_in\":18446744073709551615,\"x\":\"\xff\"}",
    ] {
        assert!(said(odd).is_err(), "{}", odd.escape_ascii());
    }
}

#[tokio::test]
async fn what_opens_a_bucket_is_looked_at_whoever_gives_it() {
    async fn given<C: fmt::Debug + Send + Sync + 'static>(
        credential: C,
        flaw: fn(&C) -> Option<&'static str>,
        file: Option<String>,
    ) -> std::result::Result<Arc<C>, String> {
        let from = Arc::new(StaticCredentialProvider::new(credential));
        ValidatingProvider { from, flaw, file }
            .get_credential()
            .await
            .map_err(|error| cause(&error))
    }
    let google = async |bearer: &str| {
        given(
            GcpCredential {
                bearer: bearer.to_owned(),
            },
            gcp_credential_flaw,
            None,
        )
        .await
    };
    assert!(google("ya29.good").await.is_ok(), "the control");
    assert!(
        google("SECRET\n")
            .await
            .is_err_and(|why| why.contains("access token") && !why.contains("SECRET"))
    );
    let aws = async |token: &str, file| {
        let [key_id, secret_key, token] = ["k", "s", token].map(str::to_owned);
        given(
            AwsCredential {
                key_id,
                secret_key,
                token: Some(token),
            },
            aws_credential_flaw,
            file,
        )
        .await
    };
    let file = std::env::temp_dir().join(format!("airlock-identity-{}", std::process::id()));
    for (letters, fits) in [(9_000, true), (70_000, false)] {
        std::fs::write(&file, "x".repeat(letters)).unwrap();
        assert_eq!(
            aws("good", Some(file.display().to_string())).await.is_ok(),
            fits
        );
    }
    std::fs::remove_file(file).unwrap();
    assert!(
        aws("SECRET\n", None)
            .await
            .is_err_and(|why| why.contains("session token") && !why.contains("SECRET"))
    );
}
