//! The page in a real browser: headless Chromium, as npm packages bring it.

use std::path::Path;
use std::process::Command;

use inertiakv::testing::TinyModel;
use inertiakv_server::ServerOptions;

use crate::support::World;

/// Installs the browser once per checkout; says whether it is there.
fn browser(folder: &Path) -> bool {
    if folder.join("node_modules/puppeteer-core").exists() && folder.join("node_modules/@sparticuz/chromium").exists() {
        return true;
    }
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let install = ["install", "--no-audit", "--no-fund", "--prefix"];
    let packages = ["@sparticuz/chromium", "puppeteer-core"];
    match Command::new("npm").args(install).arg(folder).args(packages).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("SKIPPED: npm cannot install a browser: {reason}");
            false
        }
        Err(error) => {
            eprintln!("SKIPPED: there is no npm: {error}");
            false
        }
    }
}

#[test]
fn a_person_can_chat_and_see_what_stays() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    if !browser(&folder) {
        return;
    }
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
