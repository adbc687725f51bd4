//! `history`: how runs have ended, and each of their processes. The newest comes first.

use std::fmt::Write;
use std::path::Path;

use snakepit_core::ledger::ClosedRun;
use snakepit_core::obituary::{self, Ended, Obituary};
use snakepit_core::run_id::RunId;

use super::data_dir;
use super::json::Json;
use super::options::Options;
use super::text::{duration, lines, moment, printable};
use super::{Failure, Status, ps};

/// A run that is over: closed, or dead with an obituary, which the next start closes.
struct Past {
    id: RunId,
    run: ClosedRun,
    /// How each process ended, by its obituary.
    processes: Vec<Ended>,
    /// Pids that were still there then.
    survivors: Vec<i64>,
    closed: bool,
}

pub fn run(options: &Options, limit: usize) -> Result<Status, Failure> {
    let mut directories = Vec::new();
    for data_dir in super::data_dirs(options)? {
        let past = read(&data_dir, limit)?;
        directories.push((data_dir, past));
    }
    if options.json {
        let list = Json::list(&directories, |(path, past)| {
            let runs = Json::list(past, json);
            Json::Object(vec![
                ("path", Json::lossy(path.as_os_str().as_encoded_bytes())),
                ("runs", runs),
            ])
        });
        super::print_json("history", vec![("data_dirs", list)])?;
    } else {
        let width = super::width(options);
        let mut text = String::new();
        for (path, past) in &directories {
            text.push_str(&ps::heading(path, width));
            if past.is_empty() {
                text.push_str("no runs have ended\n");
            }
            text.push_str(&lines(past.iter().flat_map(describe), width));
        }
        super::print(&text)?;
    }
    Ok(Status::Fine)
}

fn read(data_dir: &Path, limit: usize) -> Result<Vec<Past>, Failure> {
    let (own, foreign) = data_dir::runs(data_dir)?;
    super::warn_of_foreign(data_dir, &foreign);
    let mut past = Vec::new();
    for (id, files) in own {
        let directory = data_dir.join(id.to_string());
        let obituary = obituary::read(&directory);
        if data_dir::is_closed(&files) {
            match ClosedRun::read(&directory) {
                Ok(Some(run)) => past.push(Past::new(id, run, obituary, true)),
                Ok(None) => eprintln!(
                    "snakepit_guardian: {}/history is damaged and was left out",
                    directory.display()
                ),
                // It was removed meanwhile.
                Err(_) => {}
            }
        } else if let Some(obituary) = obituary {
            past.push(Past::new(id, not_closed(&obituary), Some(obituary), false));
        }
    }
    // Those that are not closed yet ended last.
    past.sort_by_key(|one| {
        std::cmp::Reverse((!one.closed, one.run.sequence, one.run.ended_at, one.id.to_string()))
    });
    past.truncate(limit);
    Ok(past)
}

impl Past {
    fn new(id: RunId, run: ClosedRun, obituary: Option<Obituary>, closed: bool) -> Self {
        let obituary = obituary.unwrap_or_default();
        Self { id, run, processes: obituary.processes, survivors: obituary.survivors, closed }
    }
}

/// What the next start will write, as far as the obituary has it.
fn not_closed(obituary: &Obituary) -> ClosedRun {
    let found = obituary.processes.len();
    let killed = obituary.processes.iter().filter(|one| one.killed).count();
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let by_reap = obituary.detected_by == obituary::BY_REAP;
    ClosedRun {
        terminated_by: if by_reap { "cleanup" } else { "guardian" }.into(),
        beam_pid: Some(obituary.beam_pid),
        ended_at: Some(obituary.detected_at),
        found: count(found),
        killed: count(killed),
        gone: count(found),
        used: (!by_reap).then_some(obituary.used),
        ..ClosedRun::default()
    }
}

fn describe(past: &Past) -> Vec<String> {
    let run = &past.run;
    let ended = run.ended_at.map_or_else(|| "at an unknown time".into(), moment);
    let lasted =
        run.started_at.zip(run.ended_at).and_then(|(from, to)| u64::try_from(to - from).ok());
    let mut line = format!("{}  {ended}  {}", past.id, explain(&run.terminated_by));
    if let Some(lasted) = lasted {
        let _ = write!(line, ", after {}", duration(lasted));
    }
    let _ = write!(line, "; {} processes, {} killed", run.found, run.killed);
    if run.ambiguous > 0 {
        let _ = write!(line, ", {} left alone", run.ambiguous);
    }
    if !past.closed {
        line.push_str("; not closed yet");
    }
    let mut lines = vec![line];
    lines.extend(past.processes.iter().map(|one| {
        let worker = printable(one.worker_id.as_bytes());
        let worker = if worker.is_empty() { "adopted".into() } else { format!("[{worker}]") };
        let how = if one.killed { "killed (SIGKILL)" } else { "ended when asked" };
        format!("  {} {worker} {how}, {} after the BEAM", one.pid, duration(one.after_ms))
    }));
    lines.extend(past.survivors.iter().map(|pid| format!("  {pid} could not be ended")));
    lines
}

fn explain(terminated_by: &str) -> String {
    match terminated_by {
        "clean_shutdown" => "stopped in order",
        "guardian" => "the BEAM died; the guardian ended everything",
        "cleanup" => "the BEAM died; a later start or 'reap' ended everything",
        "reboot" => "the machine was restarted",
        "elsewhere" => "it was elsewhere, and was forgotten",
        other => return printable(other.as_bytes()),
    }
    .to_owned()
}

fn json(past: &Past) -> Json {
    let run = &past.run;
    let used = run.used.map(|used| {
        Json::Object(vec![
            ("user_us", used.user_us.into()),
            ("system_us", used.system_us.into()),
            ("max_rss_kb", used.max_rss_kb.into()),
        ])
    });
    let processes = Json::list(&past.processes, |one| {
        let worker =
            if one.worker_id.is_empty() { Json::Null } else { one.worker_id.clone().into() };
        Json::Object(vec![
            ("os_pid", one.pid.into()),
            ("worker_id", worker),
            ("killed", one.killed.into()),
            ("after_ms", one.after_ms.into()),
        ])
    });
    Json::Object(vec![
        ("run_id", past.id.to_string().into()),
        ("closed", past.closed.into()),
        ("terminated_by", run.terminated_by.clone().into()),
        ("clean_shutdown", run.clean_shutdown.into()),
        ("beam_pid", run.beam_pid.into()),
        ("node", run.node.clone().into()),
        ("started_at", run.started_at.into()),
        ("ended_at", run.ended_at.into()),
        ("found", run.found.into()),
        ("killed", run.killed.into()),
        ("gone", run.gone.into()),
        ("ambiguous", run.ambiguous.into()),
        ("usage", used.unwrap_or(Json::Null)),
        ("processes", processes),
        ("survivors", Json::list(past.survivors.iter().copied(), Json::from)),
    ])
}
