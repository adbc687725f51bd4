//! The guardian's last words, which are one message in a file.

use snakepit_core::obituary::{Ended, Obituary, Used};
use snakepit_core::wire::{decode, encode};

use super::script::Script;
use super::wire::message;

pub fn check(bytes: &[u8]) {
    message::<Obituary>(bytes);
    let obituary = obituary(&mut Script(bytes));
    assert_eq!(decode(&encode(&obituary)), Some(obituary));
}

pub fn obituary(script: &mut Script) -> Obituary {
    let mut obituary = Obituary {
        run_id: text(script),
        beam_pid: script.signed(),
        detected_at: script.signed(),
        detected_by: text(script),
        duration_ms: script.number(),
        used: used(script),
        ..Obituary::default()
    };
    while !script.is_over() {
        if script.byte() % 2 == 0 {
            obituary.survivors.push(script.signed());
        } else {
            obituary.processes.push(Ended {
                worker_id: text(script),
                pid: script.signed(),
                killed: script.byte() % 2 == 0,
                after_ms: script.number(),
                used: used(script),
            });
        }
    }
    obituary
}

fn used(script: &mut Script) -> Used {
    let [user_us, system_us, max_rss_kb] = [(); 3].map(|()| script.number());
    Used { user_us, system_us, max_rss_kb }
}

fn text(script: &mut Script) -> String {
    String::from_utf8_lossy(script.string()).into_owned()
}
