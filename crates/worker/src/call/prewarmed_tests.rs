//! Calls in sandboxes that were made ahead.

use super::*;

const LEAVES: &str = r#"
import os
def which(): return {"code": "old", "found": sorted(os.listdir("/tmp")) + sorted(os.listdir("/workspace/output"))}
def leaves():
    open("/tmp/left", "w").close()
    open("/workspace/output/left", "w").close()
    return which()
"#;

/// With at most two sandboxes made ahead.
fn with_spares(name: &str) -> Place {
    let place = Place::new(name, LEAVES);
    let settings = CallSettings {
        python: "/usr/bin/python3".into(),
        largest_result: 10_000,
        max_warm: 0,
        max_warm_bytes: 0,
        max_prewarmed: 2,
        hidden: Vec::new(),
    };
    let caller = CallRunner::new(place.engine.clone(), place.store.clone(), None, settings);
    Place { caller, ..place }
}

async fn until_ready(place: &Place, count: usize) {
    let waiting = async {
        while place.caller.0.prewarmed.ready() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Long: a machine whose disk is busy makes none for a while. It decides nothing but when to give up.
    let came = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    assert!(
        came.is_ok(),
        "{count} are wanted, and there is {:?}",
        place.caller.0.prewarmed
    );
}

#[tokio::test]
async fn a_box_made_ahead_serves_one_call_of_its_kind() {
    let place = with_spares("spare");
    success(&place.call("leaves", json!({})).await);
    until_ready(&place, 1).await;
    // A sandbox shows what lay there when it was made: by that it is told from one that is made now.
    let tools = place.top.join("tools");
    fs::rename(&tools, place.top.join("before")).unwrap();
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("tool.py"), LEAVES.replace("\"old\"", "\"new\"")).unwrap();
    let other = CallOrder {
        profile: ToolProfile::Standard,
        ..place.order("which", json!({}))
    };
    assert_eq!(
        success(&place.carry_out(other).await.0).0["code"],
        "new",
        "another profile, another box"
    );
    until_ready(&place, 2).await;
    let (found, _) = success(&place.call("which", json!({})).await);
    assert_eq!(
        (&found["code"], &found["found"]),
        (&json!("old"), &json!([])),
        "another tool of the same code"
    );
    until_ready(&place, 2).await;
    let (found, _) = success(&place.call("which", json!({})).await);
    assert_eq!(found["code"], "new", "none serves twice");
    place.close().await;
}

#[tokio::test]
async fn boxes_made_ahead_are_few_and_go_with_their_code() {
    let place = with_spares("spares");
    let one = || place.call("which", json!({}));
    let (first, second, third, fourth) = tokio::join!(one(), one(), one(), one());
    [first, second, third, fourth]
        .iter()
        .for_each(|done| _ = success(done));
    until_ready(&place, 2).await;
    place.caller.forget(&place.tool("which").code);
    assert_eq!(place.caller.0.prewarmed.ready(), 0);
    success(&place.call("which", json!({})).await);
    until_ready(&place, 1).await;
    // Whoever closes waits for them, and none is made after that.
    place.caller.close().await;
    success(&place.call("which", json!({})).await);
    assert_eq!(place.caller.0.prewarmed.ready(), 0);
    place.close().await;
}
