//! A real browser for tests of pages: headless Chromium, as npm packages bring it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that bring a browser and drive it, and their versions.
const PACKAGES: [&str; 2] = ["@sparticuz/chromium@147.0.0", "puppeteer-core@24.43.1"];

/// The folder with the browser, installed once per checkout.
pub(crate) fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGES.join("+").replace('/', "-"));
    let npm = ["install", "--no-audit", "--no-fund", "--save-exact", "--prefix"];
    installed(&folder, Command::new("npm").args(npm).arg(&folder).args(PACKAGES));
    folder
}

/// Runs a script in the browser's folder, where its packages are found; it says that all is as expected, or what is not.
pub(crate) fn run(name: &str, script: &str, arguments: &[&OsStr]) {
    let folder = folder();
    std::fs::write(folder.join("browser.mjs"), include_str!("browser.mjs")).expect("the folder can be written");
    let path = folder.join(name);
    std::fs::write(&path, script).expect("the folder can be written");
    let output = Command::new("node")
        .arg(path)
        .args(arguments)
        .output()
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all as expected"), "{said}");
}

/// Installs the packages of a foreign client into a folder, once. What cannot be installed fails: a test that only seems
/// to have run is worse.
pub(crate) fn installed(folder: &Path, install: &mut Command) {
    // Written when all is there, so that an interrupted installation is begun anew.
    let complete = folder.join("complete");
    if complete.exists() {
        return;
    }
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let advice = "this test needs it and the network once; `--skip real_client` leaves it out";
    let output = install
        .output()
        .unwrap_or_else(|error| panic!("{install:?} does not start ({error}); {advice}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{install:?} failed; {advice}:\n{said}");
    std::fs::write(complete, "").expect("the folder can be written");
}
