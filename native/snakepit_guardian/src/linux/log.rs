//! The guardian's log: lines for the BEAM's logger while there is one, for a file afterwards.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Write};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use snakepit_core::run_directory;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The most lines that are kept between two calls of [`take`].
const MAX_LINES: usize = 1000;

thread_local! {
    static LINES: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
    static LEVEL: Cell<Option<Level>> = const { Cell::new(Some(Level::DEBUG)) };
}

/// Drops lines below this level from now on; all of them for `none`.
pub fn set_level(name: &str) {
    LEVEL.set(name.parse().ok());
}

/// Appends a line to the file that is for when the BEAM is gone.
pub fn write(directory: &Path, level: Level, message: &str) {
    let file =
        OpenOptions::new().append(true).create(true).open(directory.join(run_directory::LOG));
    let now = super::shell::wall_clock_ms();
    let _ = file.and_then(|mut file| writeln!(file, "{now} {level} {message}"));
}

/// Returns the lines since the last call.
pub fn take() -> Vec<(Level, String)> {
    LINES.with_borrow_mut(std::mem::take)
}

/// From here on `tracing`'s events are kept for [`take`].
pub fn start() {
    // Fails only if there is a subscriber already, and then that one is it.
    let _ = tracing::subscriber::set_global_default(LogBuffer);
}

struct LogBuffer;

impl Subscriber for LogBuffer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        LEVEL.get().is_some_and(|level| *metadata.level() <= level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        LINES.with_borrow_mut(|lines| {
            if lines.len() < MAX_LINES {
                lines.push((*event.metadata().level(), line.0));
            }
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The message first, then `name=value` for each field.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}
