//! Code that changes while it is asked, and what takes long to say what it is.

use super::*;

/// Before it answers, something else in the folder has changed, and that was seen.
struct Restless {
    top: PathBuf,
    asked: Mutex<usize>,
    seen: channel::Receiver<usize>,
}

impl SchemaProbe for Restless {
    async fn ask(&self, _: ProbeRequest) -> Result<Vec<u8>, CallRefusal> {
        let number = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *asked += 1;
            put(&self.top, "unrelated", &"#".repeat(*asked));
            manifest(
                &self.top,
                &format!("  p: {{executable: p}}\n  odd{asked}: 7\n"),
            );
            *asked
        };
        _ = self.seen.clone().wait_for(|seen| *seen >= number).await;
        Ok(json!({"tools": {"x": {"description": number.to_string()}}})
            .to_string()
            .into_bytes())
    }
}

#[tokio::test]
async fn what_changes_all_the_time_is_served_as_it_said_last() {
    let top = std::env::temp_dir().join(format!("airlock-catalog-restless-{}", std::process::id()));
    fs::create_dir_all(&top).unwrap();
    manifest(&top, "  p: {executable: p}\n");
    put(&top, "p", "");
    let (saw, seen) = channel::channel(0);
    let asker = Arc::new(Restless {
        top: top.clone(),
        asked: Mutex::default(),
        seen,
    });
    let (mut catalog, mut reports) = watch(settings(&top, Duration::from_millis(20)), asker);
    let see = async {
        loop {
            if let ToolReport::Problem(ToolProblem {
                tool: Some(odd), ..
            }) = reports.recv().await.unwrap()
            {
                saw.send_replace(odd.strip_prefix("odd").unwrap().parse().unwrap());
            }
        }
    };
    let follow = async {
        let mut last = 0;
        while last < 3 {
            catalog.changed().await.unwrap();
            let now = catalog.borrow_and_update().clone();
            let Some(tool) = now.get("p") else { continue };
            let says: usize = tool.card.description.as_deref().unwrap().parse().unwrap();
            assert!(says >= last, "older words come back: {says} after {last}");
            last = says;
        }
    };
    tokio::select! {
        () = see => {}
        followed = tokio::time::timeout(PATIENCE, follow) => followed.expect("it is served"),
    }
    drop(catalog);
    fs::remove_dir_all(top).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_still_being_prepared_after_a_while_is_told() {
    let mut held = None;
    let mut place = Place::every(SCAN_INTERVAL, "slow", |top, fake| {
        held = Some(fake.hold());
        manifest(top, "  p: {executable: p}\n");
        put(top, "p", "");
    });
    let told = tokio::time::timeout(2 * FIRST_CATALOG_TIMEOUT, place.reports.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(&told, ToolReport::Note(text) if text.contains("still being prepared") && text.contains("`p`")),
        "{told:?}"
    );
    drop(held);
}
