//! `ps`: a line for each worker of each run.

use std::path::Path;
use std::time::Duration;

use nix::unistd::getppid;

use super::json::Json;
use super::options::Options;
use super::survey::{self, RunSurvey, Survey, Tree};
use super::text::{self, Align, Column, duration, printable, size};
use super::{Failure, Status};

const fn left(title: &'static str, shortest: usize) -> Column {
    Column { title, align: Align::Left, shortest }
}

const fn right(title: &'static str) -> Column {
    Column { title, align: Align::Right, shortest: 0 }
}

const COLUMNS: [Column; 10] = [
    left("RUN", 0),
    left("STATE", 0),
    left("WORKER", 8),
    right("OS_PID"),
    right("PROCS"),
    right("CPU"),
    right("MEMORY"),
    right("UPTIME"),
    right("HEARTBEAT"),
    right("RESTARTS"),
];

/// How many columns have something to say here, and from which width on the others are shown too.
const KNOWN: usize = 8;
const ROOMY: usize = 96;

/// What only the BEAM knows.
const UNKNOWN: &str = "-";

pub fn run(options: &Options) -> Result<Status, Failure> {
    let surveys = surveys(options)?;
    if options.json {
        let directories = Json::list(&surveys, json);
        super::print_json("ps", vec![("data_dirs", directories)])?;
    } else {
        super::print(&render(&surveys, super::width(options)))?;
    }
    Ok(Status::Fine)
}

/// Looks again and again, until it is interrupted or the program that has started it is gone.
pub fn watch(options: &Options, interval: Duration) -> Result<Status, Failure> {
    let parent = getppid();
    loop {
        let text = render(&surveys(options)?, super::width(options));
        let mut screen = String::from("\x1b[H");
        for line in text.lines() {
            screen.push_str(line);
            // What an earlier, longer line has left behind.
            screen.push_str("\x1b[K\n");
        }
        screen.push_str("\x1b[J");
        super::print(&screen)?;
        std::thread::sleep(interval);
        if getppid() != parent {
            return Ok(Status::Fine);
        }
    }
}

pub fn surveys(options: &Options) -> Result<Vec<Survey>, Failure> {
    let data_dirs = super::data_dirs(options)?;
    let surveys: Vec<Survey> =
        data_dirs.iter().map(|path| survey::of(path)).collect::<Result<_, _>>()?;
    for survey in &surveys {
        super::warn_of_foreign(&survey.data_dir, &survey.foreign);
    }
    Ok(surveys)
}

fn render(surveys: &[Survey], width: usize) -> String {
    let mut text = String::new();
    for survey in surveys {
        text.push_str(&heading(&survey.data_dir, width));
        let mut rows = Vec::new();
        for run in &survey.runs {
            rows.extend(rows_of(run));
        }
        if rows.is_empty() {
            text.push_str("no open runs\n");
        } else {
            let columns = if width < ROOMY { &COLUMNS[..KNOWN] } else { &COLUMNS };
            text.push_str(&text::table(columns, &rows, width));
        }
        if !survey.strays.is_empty() {
            let line = format!(
                "{} processes of runs whose directory is gone; 'reap' shows them\n",
                survey.strays.len()
            );
            text.push_str(&line);
        }
    }
    text
}

pub fn heading(data_dir: &Path, width: usize) -> String {
    let path = printable(data_dir.as_os_str().as_encoded_bytes());
    format!("{}\n", text::shortened(&path, width))
}

fn rows_of(run: &RunSurvey) -> Vec<Vec<String>> {
    let start = [run.id.to_string(), run.standing.name().to_owned()];
    let row = |worker: &str, tree: &Tree| {
        let os_pid = tree.os_pid.map_or_else(|| UNKNOWN.into(), |pid| pid.to_string());
        let worker = printable(worker.as_bytes());
        let uptime = tree.uptime_ms.map_or_else(|| UNKNOWN.into(), duration);
        let use_of = |text: String| if tree.processes == 0 { UNKNOWN.into() } else { text };
        let mut row = start.to_vec();
        row.extend([
            if worker.is_empty() { UNKNOWN.into() } else { worker },
            os_pid,
            tree.processes.to_string(),
            use_of(duration(tree.cpu_us / 1000)),
            use_of(size(tree.rss_bytes)),
            uptime,
            UNKNOWN.into(),
            UNKNOWN.into(),
        ]);
        row
    };
    if run.trees.is_empty() {
        return vec![row("", &Tree::default())];
    }
    run.trees.iter().map(|(worker, tree)| row(worker, tree)).collect()
}

fn json(survey: &Survey) -> Json {
    Json::Object(vec![
        ("path", Json::lossy(survey.data_dir.as_os_str().as_encoded_bytes())),
        ("instance", survey.instance.clone().into()),
        ("runs", Json::list(&survey.runs, |run| Json::Object(run_fields(run)))),
        ("strays", Json::list(&survey.strays, |one| one.entry.pid.as_raw().into())),
        ("unreadable", Json::list(&survey.foreign, |id| id.to_string().into())),
    ])
}

/// What `ps` and `tree` say of a run.
pub fn run_fields(run: &RunSurvey) -> Vec<(&'static str, Json)> {
    let record = run.ledger.run.as_ref();
    vec![
        ("run_id", run.id.to_string().into()),
        ("state", run.standing.name().into()),
        ("recorded_state", record.map(|record| record.state.clone()).into()),
        ("beam_pid", record.and_then(|record| record.beam_pid).into()),
        ("node", record.map(|record| record.node.clone()).into()),
        ("started_at", record.and_then(|record| record.started_at).into()),
        ("guardian_pid", run.guardian.as_ref().map(|one| one.pid.as_raw()).into()),
        ("damaged_records", run.ledger.bad.into()),
        ("workers", Json::list(&run.trees, |(worker, tree)| worker_json(worker, tree))),
    ]
}

fn worker_json(worker: &str, tree: &Tree) -> Json {
    let worker = if worker.is_empty() { Json::Null } else { worker.into() };
    Json::Object(vec![
        ("worker_id", worker),
        ("os_pid", tree.os_pid.into()),
        ("command", Json::list(&tree.command, |argument| Json::lossy(argument))),
        ("processes", tree.processes.into()),
        ("cpu_us", tree.cpu_us.into()),
        ("rss_bytes", tree.rss_bytes.into()),
        ("uptime_ms", tree.uptime_ms.into()),
    ])
}
