//! What `reap` says: what it has found or ended, and what it has left alone and why.

use std::fmt::Write;
use std::path::Path;

use snakepit_core::dead_runs::Proof;

use super::super::json::Json;
use super::super::options::{Options, Reap};
use super::super::text::{lines, printable};
use super::super::{Failure, Status, print, print_json, ps, width};
use super::{Row, Section, Spared};

pub fn show(
    options: &Options,
    reap: &Reap,
    data_dir: Option<&Path>,
    sections: &[Section],
    spared: &[Spared],
) -> Result<Status, Failure> {
    if options.json {
        print_json("reap", fields(reap, data_dir, sections, spared))?;
    } else if let Some(data_dir) = data_dir {
        let width = width(options);
        let text = text(reap, sections, spared);
        print(&(ps::heading(data_dir, width) + &lines(text.lines(), width)))?;
    }
    let count = if reap.yes { left(sections) } else { found(sections) + left(sections) };
    Ok(if count == 0 { Status::Fine } else { Status::Attention })
}

fn found(sections: &[Section]) -> usize {
    sections.iter().map(|section| section.rows.len()).sum()
}

/// How many are there that were not or cannot be ended.
fn left(sections: &[Section]) -> usize {
    let of = |one: &Section| one.ambiguous.len() + one.survivors.len() + usize::from(one.stuck);
    sections.iter().map(of).sum()
}

fn text(reap: &Reap, sections: &[Section], spared: &[Spared]) -> String {
    let mut text = String::new();
    for section in sections {
        if section.id.is_none() && section.rows.is_empty() {
            continue;
        }
        let _ = match &section.id {
            Some(id) => {
                let beam = section.beam_pid.map(|pid| format!(", its BEAM was {pid}"));
                writeln!(text, "run {id}  dead{}", beam.unwrap_or_default())
            }
            None => writeln!(text, "runs whose directory is gone"),
        };
        describe(section, reap.yes, &mut text);
    }
    for (id, reason) in spared {
        let _ = writeln!(text, "run {id}  left alone: {reason}");
    }
    let _ = match (reap.yes, found(sections)) {
        (_, 0) => writeln!(text, "no process of a dead run was found here"),
        (false, count) => writeln!(text, "nothing was ended; 'reap --yes' ends these {count}"),
        (true, count) => writeln!(text, "{} of {count} ended", count - survivors(sections)),
    };
    text
}

fn survivors(sections: &[Section]) -> usize {
    let rows = sections.iter().flat_map(|section| &section.rows);
    rows.filter(|row| !matches!(row.ended, Some("killed" | "stopped"))).count()
}

fn describe(section: &Section, yes: bool, text: &mut String) {
    if let Some(pid) = section.guardian {
        let _ = match (yes, section.stuck) {
            (false, _) => writeln!(
                text,
                "  its guardian {pid} is still ending them; --yes waits for it first"
            ),
            (true, false) => writeln!(text, "  its guardian {pid} was waited for"),
            (true, true) => writeln!(text, "  its guardian {pid} cannot be ended"),
        };
    }
    for row in &section.rows {
        let ended = match row.ended {
            Some("killed") => "killed (SIGKILL)  ",
            Some("stopped") => "ended when asked  ",
            Some(_) => "could not be ended  ",
            None if yes => "not ended  ",
            None => "",
        };
        let worker = printable(row.worker.as_bytes());
        let worker = if worker.is_empty() { worker } else { format!("[{worker}] ") };
        let command: Vec<String> = row.command.iter().map(|word| printable(word)).collect();
        let (pid, proof) = (row.os_pid, explain(row.proof));
        let _ = writeln!(text, "  {pid}  {ended}{worker}{}  ({proof})", command.join(" "));
    }
    for pid in &section.ambiguous {
        let _ = writeln!(text, "  {pid}  left alone: it may be another process by now");
    }
}

fn explain(proof: Proof) -> &'static str {
    match proof {
        Proof::Recorded => "it is the process that the run has recorded",
        Proof::Marked => "its environment names this instance and a BEAM that is gone",
        Proof::Lineage => "it has inherited the lineage of the run",
        Proof::Descends => "it descends from one of the others",
    }
}

fn fields(
    reap: &Reap,
    data_dir: Option<&Path>,
    sections: &[Section],
    spared: &[Spared],
) -> Vec<(&'static str, Json)> {
    let path = data_dir.map(|path| path.to_string_lossy().into_owned());
    let runs = sections.iter().filter(|section| section.id.is_some());
    let strays = sections.iter().filter(|section| section.id.is_none());
    let spared = Json::list(spared, |(id, reason)| {
        Json::Object(vec![("run_id", id.to_string().into()), ("reason", reason.clone().into())])
    });
    vec![
        ("data_dir", path.into()),
        ("ended", reap.yes.into()),
        ("runs", Json::list(runs, section_json)),
        ("strays", Json::list(strays.flat_map(|section| &section.rows), row_json)),
        ("spared", spared),
    ]
}

fn section_json(section: &Section) -> Json {
    Json::Object(vec![
        ("run_id", section.id.map(|id| id.to_string()).into()),
        ("beam_pid", section.beam_pid.into()),
        ("guardian_pid", section.guardian.into()),
        ("guardian_stuck", section.stuck.into()),
        ("processes", Json::list(&section.rows, row_json)),
        ("ambiguous", Json::list(section.ambiguous.iter().copied(), Json::from)),
    ])
}

fn row_json(row: &Row) -> Json {
    let proof = match row.proof {
        Proof::Recorded => "recorded",
        Proof::Marked => "marked",
        Proof::Lineage => "lineage",
        Proof::Descends => "descends",
    };
    let worker = if row.worker.is_empty() { Json::Null } else { row.worker.clone().into() };
    Json::Object(vec![
        ("os_pid", row.os_pid.into()),
        ("worker_id", worker),
        ("command", Json::list(&row.command, |word| Json::lossy(word))),
        ("proof", proof.into()),
        ("outcome", row.ended.into()),
    ])
}
