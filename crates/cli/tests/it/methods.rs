//! `methods`: the list, an explanation, JSON, wrong names.

use serde_json::Value;

use crate::support::{World, stderr, success};

#[test]
fn the_list_and_two_explanations() {
    let world = World::new();
    insta::assert_snapshot!("methods-list", success(&world.run(&["methods"])));
    insta::assert_snapshot!("methods-kvzip", success(&world.run(&["methods", "kvzip:masked=true"])));
    let joined = "snapkv:ratio=0.5+inertia:refresh=4";
    insta::assert_snapshot!("methods-joined", success(&world.run(&["methods", joined])));
}

#[test]
fn json_says_what_the_list_says() {
    let world = World::new();
    let list: Vec<Value> = serde_json::from_str(&success(&world.run(&["methods", "--json"]))).unwrap();
    let find = |name: &str| list.iter().find(|method| method["name"] == name).unwrap();
    assert_eq!(find("full")["memory_freed"], false);
    assert_eq!(find("tova")["stages"], serde_json::json!(["prefill", "decode"]));
    // Every name can be used, and is explained under itself.
    for method in &list {
        let name = method["name"].as_str().unwrap();
        let text = success(&world.run(&["methods", name, "--json"]));
        let explained: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(explained["method"], name);
        assert_eq!(explained["rules"][0]["name"], name);
    }
    let masked = success(&world.run(&["methods", "adakv-ea:masked=true", "--json"]));
    let masked: Value = serde_json::from_str(&masked).unwrap();
    assert_eq!(masked["rules"][0]["memory_freed"], false);
    assert_eq!(masked["rules"][0]["stage"], "prefill");
}

#[test]
fn what_differs_from_the_preset_is_said() {
    let world = World::new();
    let method = "inertia:kernel=max15,tokens=400";
    let text = success(&world.run(&["methods", method]));
    assert!(
        text.contains("changed from the preset: tokens=400, kernel=max15\n"),
        "{text}"
    );
    assert!(!success(&world.run(&["methods", "inertia"])).contains("changed"));
    let json: Value = serde_json::from_str(&success(&world.run(&["methods", method, "--json"]))).unwrap();
    let settings = json["rules"][0]["settings"].as_array().unwrap();
    let changed = settings.iter().filter(|setting| setting["changed"] == true);
    let changed: Vec<&str> = changed.map(|setting| setting["key"].as_str().unwrap()).collect();
    assert_eq!(changed, ["tokens", "kernel"]);
}

#[test]
fn a_wrong_method_names_the_right_ones() {
    let world = World::new();
    let message = usage_error(&world.run(&["methods", "snapvk"]));
    assert!(message.contains("snapkv") && message.contains("kvzip"), "{message}");
    let message = usage_error(&world.run(&["methods", "kvzip:at=decode"]));
    assert!(
        message.contains("decode") && message.contains("at prefill"),
        "{message}"
    );
}

fn usage_error(output: &std::process::Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    stderr(output)
}
