//! Only the routes of the table are served.

use super::*;

fn get(path: &str) -> Result<Route, RouteError> {
    route(&Method::GET, path, None)
}

fn post(path: &str) -> Result<Route, RouteError> {
    route(&Method::POST, path, None)
}

fn target(method: Method, path: &str, query: &str) -> Result<String, RouteError> {
    route(&method, path, Some(query)).map(|route| route.target)
}

#[test]
fn every_operation_has_its_path_and_dialect() {
    use Dialect::{Anthropic, Gemini, Ollama, OpenAi};
    let cases = [
        (
            Method::POST,
            "/v1/chat/completions",
            ModelOperation::Chat,
            Some(OpenAi),
        ),
        (
            Method::POST,
            "/v1/responses",
            ModelOperation::Responses,
            Some(OpenAi),
        ),
        (
            Method::POST,
            "/v1/embeddings",
            ModelOperation::Embeddings,
            Some(OpenAi),
        ),
        (Method::GET, "/v1/models", ModelOperation::Models, None),
        (
            Method::GET,
            "/v1/models/gpt-5",
            ModelOperation::Models,
            None,
        ),
        (
            Method::POST,
            "/v1/messages",
            ModelOperation::Messages,
            Some(Anthropic),
        ),
        (
            Method::POST,
            "/v1/messages/count_tokens",
            ModelOperation::CountTokens,
            Some(Anthropic),
        ),
        (
            Method::GET,
            "/v1beta/models",
            ModelOperation::GeminiModels,
            Some(Gemini),
        ),
        (
            Method::GET,
            "/v1beta/models/gemini-3",
            ModelOperation::GeminiModels,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/v1beta/models/g:generateContent",
            ModelOperation::Generate,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/v1/models/g:streamGenerateContent",
            ModelOperation::Generate,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/v1beta/models/g:countTokens",
            ModelOperation::GeminiCountTokens,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/v1beta/models/g:embedContent",
            ModelOperation::GeminiEmbed,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/v1beta/models/g:batchEmbedContents",
            ModelOperation::GeminiEmbed,
            Some(Gemini),
        ),
        (
            Method::POST,
            "/api/chat",
            ModelOperation::OllamaChat,
            Some(Ollama),
        ),
        (
            Method::POST,
            "/api/generate",
            ModelOperation::OllamaGenerate,
            Some(Ollama),
        ),
        (
            Method::POST,
            "/api/embed",
            ModelOperation::OllamaEmbed,
            Some(Ollama),
        ),
        (
            Method::POST,
            "/api/embeddings",
            ModelOperation::OllamaEmbed,
            Some(Ollama),
        ),
        (
            Method::GET,
            "/api/tags",
            ModelOperation::OllamaTags,
            Some(Ollama),
        ),
        (
            Method::POST,
            "/api/show",
            ModelOperation::OllamaShow,
            Some(Ollama),
        ),
        (
            Method::GET,
            "/api/ps",
            ModelOperation::OllamaRunning,
            Some(Ollama),
        ),
        (
            Method::GET,
            "/api/version",
            ModelOperation::OllamaVersion,
            Some(Ollama),
        ),
    ];
    for (method, path, operation, dialect) in cases {
        let found = route(&method, path, None).expect(path);
        assert_eq!(
            (found.operation, found.dialect, found.target.as_str()),
            (operation, dialect, path)
        );
        let other = if method == Method::GET {
            Method::POST
        } else {
            Method::GET
        };
        for wrong in [
            other,
            Method::PUT,
            Method::DELETE,
            Method::HEAD,
            Method::OPTIONS,
            Method::CONNECT,
        ] {
            assert_eq!(
                route(&wrong, path, None),
                Err(RouteError::WrongMethod),
                "{wrong} {path}"
            );
        }
    }
}

#[test]
fn a_stream_is_asked_for_by_the_path_of_gemini_alone() {
    assert!(post("/v1beta/models/g:streamGenerateContent").is_ok_and(|route| route.streams));
    assert!(post("/v1beta/models/g:generateContent").is_ok_and(|route| !route.streams));
    assert!(post("/v1/chat/completions").is_ok_and(|route| !route.streams));
}

#[test]
fn nothing_beside_the_table_is_found() {
    let paths = [
        "",
        "/",
        "/v1",
        "/v1/",
        "/health",
        "/v1/organization/admin_api_keys",
        "/v1/files",
        "/v1/fine_tuning/jobs",
        "/v1/completions",
        "/v1/batches",
        "/v1/messages/batches",
        "/v1/responses/r1",
        "/v1/responses/compact",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions/../files",
        "/v1/chat/completions/%2e%2e/files",
        "/v1%2fchat/completions",
        "/v1/chat/completions;x",
        "/v1/chat/completions%00",
        "/v1/chat/completions%3f",
        "/v1/chat/completions?",
        "/V1/chat/completions",
        "/v1/chat/Completions",
        "/v1/./chat/completions",
        "v1/chat/completions",
        "http://x/v1/chat/completions",
        "/v1/models/",
        "/v1/models/..",
        "/v1/models/.",
        "/v1/models/a/b",
        "/v1/models/a%2fb",
        "/v1/models/a b",
        "/v1/models/a?b",
        "/v1/models/a#b",
        "/v1/models/\u{e9}",
        "/v1beta/models/a:predict",
        "/v1beta/models/a:b:generateContent",
        "/v1beta/models/:generateContent",
        "/v1beta/models/..:generateContent",
        "/v1beta/models/a/b:generateContent",
        "/v1beta/models/a%2f:generateContent",
        "/v1beta/tunedModels/a:generateContent",
        "/v1beta/files",
        "/v1beta/cachedContents",
        "/v1alpha/models/a:generateContent",
        "/api/pull",
        "/api/delete",
        "/api/create",
        "/api/copy",
        "/api/push",
        "/api/blobs/sha256:0",
        "/api/chat/",
        "/api",
        "/chat/completions",
        "/openai/v1/chat/completions",
    ];
    for path in paths {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            assert_eq!(
                route(&method, path, None),
                Err(RouteError::NotFound),
                "{method} {path}"
            );
        }
    }
    assert_eq!(
        get(&format!("/v1/models/{}", "a".repeat(201))),
        Err(RouteError::NotFound)
    );
    assert!(get(&format!("/v1/models/{}", "a".repeat(200))).is_ok());
}

#[test]
fn models_are_plain_segments() {
    let model = |route: Result<Route, RouteError>| route.expect("it is found").model;
    assert_eq!(
        model(get("/v1/models/llama3.2:1b")).as_deref(),
        Some("llama3.2:1b")
    );
    assert_eq!(
        model(post("/v1beta/models/gemini-2.5_x:generateContent")).as_deref(),
        Some("gemini-2.5_x")
    );
    assert_eq!(model(get("/v1/models")), None);
}

#[test]
fn queries_are_put_together_anew_from_what_is_known() {
    let stream = "/v1beta/models/g:streamGenerateContent";
    let cases = [
        (Method::POST, stream, "alt=sse", "?alt=sse"),
        (Method::POST, stream, "key=secret&alt=sse&x=y", "?alt=sse"),
        (Method::POST, stream, "alt=proto", ""),
        (Method::POST, stream, "$alt=sse&%61lt=sse&ALT=sse&alt", ""),
        (
            Method::POST,
            "/v1beta/models/g:generateContent",
            "alt=sse&key=k",
            "",
        ),
        (
            Method::POST,
            "/v1/messages",
            "beta=true&api_key=x",
            "?beta=true",
        ),
        (Method::POST, "/v1/messages", "beta=false", ""),
        (
            Method::GET,
            "/v1/models",
            "limit=20&after_id=a-1&before_id=b%0d",
            "?limit=20&after_id=a-1",
        ),
        (Method::GET, "/v1/models", "limit=-1&after_id=", ""),
        (
            Method::GET,
            "/v1beta/models",
            "pageSize=5&pageToken=Ab_=",
            "?pageSize=5&pageToken=Ab_=",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            "base_url=http://x",
            "",
        ),
        (Method::POST, "/v1/chat/completions", "", ""),
    ];
    for (method, path, query, kept) in cases {
        assert_eq!(
            target(method, path, query),
            Ok(format!("{path}{kept}")),
            "{query}"
        );
    }
}

#[test]
fn a_name_twice_in_a_query_is_refused() {
    let path = "/v1beta/models/g:streamGenerateContent";
    assert_eq!(
        target(Method::POST, path, "alt=sse&alt=json"),
        Err(RouteError::NotFound)
    );
    assert_eq!(
        target(Method::POST, path, "alt=json&alt=sse"),
        Err(RouteError::NotFound)
    );
    assert!(target(Method::POST, path, "x=1&x=2&alt=sse").is_ok());
}

#[test]
fn another_model_takes_the_place_of_the_one_in_the_path() {
    let found = route(
        &Method::POST,
        "/v1/models/v1:streamGenerateContent",
        Some("alt=sse"),
    )
    .expect("it is found");
    assert_eq!(
        found.target_for("gemini-3").as_deref(),
        Some("/v1/models/gemini-3:streamGenerateContent?alt=sse")
    );
    assert_eq!(found.target_for("../x"), None);
    assert_eq!(found.target_for("a?b"), None);
    assert_eq!(
        post("/v1/messages").expect("it is found").target_for("x"),
        None
    );
}
