//! The engine as a library: from a command to its result in ten lines.

use spec::{Policy, RunRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = engine::Engine::open(engine::Settings::new(
        std::env::temp_dir().join("airlock-embed"),
    ))?;
    let command = vec!["python3".into(), "-c".into(), "print(6 * 7)".into()];
    let spec = Policy::default().admit(RunRequest {
        command,
        ..RunRequest::default()
    })?;
    let result = engine.run(spec).await;
    print!("{}", String::from_utf8_lossy(&result.stdout));
    println!(
        "{:?} behind {} barriers in {} ms",
        result.status,
        result.barriers.len(),
        result.duration_ms
    );
    Ok(())
}
