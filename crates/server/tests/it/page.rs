//! The page in a real browser.

use inertiakv::testing::TinyModel;
use inertiakv_server::ServerOptions;

use crate::browser;
use crate::support::World;

#[test]
fn real_client_chromium_chats_and_shows_what_stays() {
    // Room for an answer that no browser is too slow to stop.
    let model = TinyModel {
        layers: 48,
        context: 1 << 17,
        ..TinyModel::default()
    };
    let world = World::over(&model, ServerOptions::default(), Some(64 << 20));
    let screenshot = browser::folder().join("page.png");
    browser::run(
        "page_client.mjs",
        include_str!("page_client.mjs"),
        &[world.address.to_string().as_ref(), screenshot.as_os_str()],
    );
}
