//! `doctor`: what this place allows, what each missing thing costs and how to get it.

use std::fmt::Write;

use snakepit_core::doctor::{self, Finding, Level};

use super::data_dir::{self, Instance};
use super::json::Json;
use super::options::Options;
use super::{Failure, Status};

pub fn run(options: &Options) -> Result<Status, Failure> {
    let data_dirs = data_dir::choose(options.data_dir.as_deref())?;
    for path in &data_dirs {
        if let Ok(Instance::Newer(layout)) = data_dir::instance(path) {
            return Err(Failure::newer(path, layout));
        }
    }
    let findings = doctor::report(&data_dirs);
    let worst = findings.iter().map(|one| one.level).max().unwrap_or(Level::Fine);
    if options.json {
        let fields =
            vec![("level", worst.name().into()), ("findings", Json::list(&findings, json))];
        super::print_json("doctor", fields)?;
    } else {
        super::print(&text(&findings, worst))?;
    }
    Ok(match worst {
        Level::Fine | Level::Note => Status::Fine,
        Level::Weaker => Status::Attention,
        Level::Broken => Status::Failed,
    })
}

fn text(findings: &[Finding], worst: Level) -> String {
    let mut text = String::new();
    for one in findings {
        let _ = writeln!(text, "{:<6}  {:<14}  {}", one.level.name(), one.check, one.found);
        if one.level != Level::Fine {
            let _ = writeln!(text, "{:24}costs: {}", "", one.cost);
            let _ = writeln!(text, "{:24}to get it: {}", "", one.remedy);
        }
    }
    text.push_str(match worst {
        Level::Fine | Level::Note => "Snakepit keeps all its promises here\n",
        Level::Weaker => "Snakepit starts here, and some promises are weaker\n",
        Level::Broken => "Snakepit does not start here\n",
    });
    text
}

fn json(finding: &Finding) -> Json {
    Json::Object(vec![
        ("check", finding.check.into()),
        ("level", finding.level.name().into()),
        ("found", finding.found.clone().into()),
        ("cost", finding.cost.clone().into()),
        ("remedy", finding.remedy.clone().into()),
    ])
}
