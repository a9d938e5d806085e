//! What does Ctrl-C do?
//!
//! Where a command listens, Ctrl-C stops what can be stopped: while something [`Stoppable`] runs, the first one asks it
//! to stop, and the next ends the process. While nothing such runs, the first one ends the process. Commands that do not
//! listen end at once, as the system has it.

use std::ops::ControlFlow;
use std::process;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::printer::Printer;

/// Exit code of a process that Ctrl-C ended, as shells report it: 128 and the number of the signal.
pub(crate) const EXIT_CODE: u8 = 130;

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const STOPPING: u8 = 2;

/// There is one Ctrl-C for the whole process, so there is one state.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// From now on the first Ctrl-C does this, and the next ends the process.
pub(crate) fn listen_once(printer: Printer, mut stop: impl FnMut() + Send + 'static) {
    STATE.store(RUNNING, Ordering::SeqCst);
    install(move || {
        if STATE.swap(STOPPING, Ordering::SeqCst) == RUNNING {
            stop();
        } else {
            printer.end_line();
            process::exit(i32::from(EXIT_CODE));
        }
    });
}

/// From now on Ctrl-C does what this module says.
pub(crate) fn listen(printer: Printer) {
    install(move || {
        if STATE
            .compare_exchange(RUNNING, STOPPING, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            printer.end_line();
            process::exit(i32::from(EXIT_CODE));
        }
    });
}

fn install(handler: impl FnMut() + Send + 'static) {
    let installed = ctrlc::set_handler(handler);
    // Without it Ctrl-C ends the process at any time, which is no reason not to work.
    if let Err(error) = installed {
        tracing::debug!("Ctrl-C cannot be listened for: {error}");
    }
}

/// Something that Ctrl-C stops, until this is dropped. Whoever runs it asks [`flow`](Self::flow) now and then.
pub(crate) struct Stoppable(());

impl Stoppable {
    pub(crate) fn begin() -> Self {
        STATE.store(RUNNING, Ordering::SeqCst);
        Self(())
    }

    /// Whether to go on, as the engine's callbacks answer.
    #[expect(clippy::unused_self, reason = "nobody can be asked to stop who has not begun")]
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if STATE.load(Ordering::SeqCst) == STOPPING {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
