//! `tree`: the processes of each run, below each other.

use std::collections::HashMap;
use std::fmt::Write;

use snakepit_core::table::Arguments;

use super::json::Json;
use super::options::Options;
use super::ps;
use super::survey::{Member, RunSurvey, Survey};
use super::text::{lines, printable};
use super::{Failure, Status};

pub fn run(options: &Options) -> Result<Status, Failure> {
    let surveys = ps::surveys(options)?;
    if options.json {
        super::print_json("tree", vec![("data_dirs", Json::list(&surveys, json))])?;
    } else {
        let width = super::width(options);
        let mut text = String::new();
        for survey in &surveys {
            text.push_str(&ps::heading(&survey.data_dir, width));
            for run in &survey.runs {
                text.push_str(&lines([title(run)], width));
                text.push_str(&lines(descent(&run.members), width));
            }
            if !survey.strays.is_empty() {
                text.push_str("runs whose directory is gone\n");
                text.push_str(&lines(descent(&survey.strays), width));
            }
        }
        super::print(&text)?;
    }
    Ok(Status::Fine)
}

fn title(run: &RunSurvey) -> String {
    let mut line = format!("run {}  {}", run.id, run.standing.name());
    if let Some(pid) = run.ledger.run.as_ref().and_then(|record| record.beam_pid) {
        let _ = write!(line, "  beam {pid}");
    }
    if let Some(guardian) = &run.guardian {
        let _ = write!(line, "  guardian {}", guardian.pid);
    }
    line
}

/// Returns a line for each process, indented below its parent. They come parents first.
fn descent(members: &[Member]) -> impl Iterator<Item = String> {
    let mut depths: HashMap<i32, usize> = HashMap::new();
    members.iter().map(move |member| {
        let pid = member.entry.pid.as_raw();
        let depth = depths.get(&member.entry.parent).map_or(1, |depth| depth + 1);
        depths.insert(pid, depth);
        let worker = printable(member.worker.as_bytes());
        let worker =
            if member.below || worker.is_empty() { String::new() } else { format!("[{worker}] ") };
        format!("{}{pid} {worker}{}", "  ".repeat(depth), command(&member.entry.arguments))
    })
}

/// Returns a command line for people.
pub fn command(arguments: &Arguments) -> String {
    let words: Vec<String> = arguments.iter().map(printable).collect();
    if words.is_empty() { "(no command line)".into() } else { words.join(" ") }
}

fn json(survey: &Survey) -> Json {
    let runs = Json::list(&survey.runs, |run| {
        let mut fields = ps::run_fields(run);
        fields.push(("processes", Json::list(&run.members, member_json)));
        Json::Object(fields)
    });
    Json::Object(vec![
        ("path", Json::lossy(survey.data_dir.as_os_str().as_encoded_bytes())),
        ("runs", runs),
        ("strays", Json::list(&survey.strays, member_json)),
    ])
}

fn member_json(member: &Member) -> Json {
    let worker = if member.worker.is_empty() { Json::Null } else { member.worker.clone().into() };
    Json::Object(vec![
        ("os_pid", member.entry.pid.as_raw().into()),
        ("parent", member.entry.parent.into()),
        ("worker_id", worker),
        ("command", Json::list(member.entry.arguments.iter(), Json::lossy)),
    ])
}
