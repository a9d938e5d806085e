//! The page in a real browser: headless Chromium, as npm packages bring it.

use std::path::{Path, PathBuf};
use std::process::Command;

use inertiakv::testing::TinyModel;
use inertiakv_server::ServerOptions;

use crate::support::{World, installed};

/// The packages that bring a browser and drive it, and their versions.
const PACKAGES: [&str; 2] = ["@sparticuz/chromium@147.0.0", "puppeteer-core@24.43.1"];

/// The folder with the browser, installed once per checkout.
fn browser() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGES.join("+").replace('/', "-"));
    let npm = ["install", "--no-audit", "--no-fund", "--save-exact", "--prefix"];
    installed(&folder, Command::new("npm").args(npm).arg(&folder).args(PACKAGES));
    folder
}

#[test]
fn real_client_chromium_chats_and_shows_what_stays() {
    let folder = browser();
    // Slow enough that a long answer is still under way when a person stops it.
    let model = TinyModel {
        layers: 48,
        ..TinyModel::default()
    };
    let world = World::over(&model, ServerOptions::default(), Some(64 << 20));
    // Packages are looked for beside the script.
    let script = folder.join("page_client.mjs");
    std::fs::write(&script, include_str!("page_client.mjs")).expect("the folder can be written");
    let output = Command::new("node")
        .arg(script)
        .arg(world.address.to_string())
        .arg(folder.join("page.png"))
        .output()
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all as expected"), "{said}");
}
