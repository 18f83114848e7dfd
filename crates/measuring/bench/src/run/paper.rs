//! `farshore bench paper`: the list, a figure measured, a figure drawn again.

use std::path::Path;

use super::{Failure, SERVE, as_root, beside, is_bad, swap_directory, there};
use crate::args::{BenchArgs, PaperArgs};
use crate::paper::{self, Figure, index, judge, model, page, plan::Plan, text};
use crate::result::Results;
use crate::session::{Series, Session, Signals};
use crate::{machine, output};

/// Does what the command line says.
pub(super) fn bench(arguments: &BenchArgs, paper: &PaperArgs, farshore: &Path, words: &[String]) -> Result<u8, Failure> {
    refuse_foreign(arguments)?;
    let wanted = paper.figure.as_deref();
    if let Some(raw) = &paper.from {
        return draw_again(raw, wanted, &paper.out);
    }
    let figures: Vec<&'static Figure> = match wanted {
        None if paper.quick => return Err(Failure::Usage("--quick: name the figure, or all".into())),
        None => return output::print(&text::list(arguments.rounds(), output::colours(), output::width())).map(|()| 0),
        Some("all") => paper::all().collect(),
        Some(name) => vec![paper::find(name).map_err(Failure::Usage)?],
    };
    let signals = Signals::watch()?;
    let mut status = 0;
    for figure in figures {
        let measured = measure(arguments, paper, figure, farshore, words, &signals);
        let failed = match measured {
            Ok(bad) => bad,
            // Of all, the others are measured all the same.
            Err(Failure::Failed(why)) if wanted == Some("all") && !signals.stopped() => {
                output::tell(&format!("{}: {why}", figure.name));
                true
            }
            Err(failure) => return Err(failure),
        };
        if signals.stopped() {
            eprintln!("farshore: ended by a signal: what was measured so far is in {}", paper.out.display());
            return Ok(signals.status());
        }
        status = status.max(u8::from(failed));
    }
    Ok(status)
}

/// Measures a figure, and writes its page. Says whether a run of ours went wrong.
fn measure(
    arguments: &BenchArgs,
    paper: &PaperArgs,
    figure: &'static Figure,
    farshore: &Path,
    words: &[String],
    signals: &Signals,
) -> Result<bool, Failure> {
    let folder = paper.out.join(figure.name);
    output::check_directory("--out", &folder)?;
    let raw = folder.join(page::RAW);
    let kept = index::is_kept(&folder);
    if kept && paper.quick {
        return Err(Failure::Usage(format!(
            "--quick: '{}' has results, and the quick form's are none: name another --out",
            raw.display()
        )));
    }
    if figure.is_modelled() {
        output::tell(&format!("{}: {}, {}; modelled", figure.name, figure.place(), figure.title));
        let machine = machine::describe(&swap_directory(arguments)?);
        let results = model::results(figure, paper.quick, words, output::now(), machine);
        return tell(&results, figure, &paper.out).map(|()| false);
    }
    let load = there(beside(farshore, "farshore-load", "FARSHORE_LOAD"), "FARSHORE_LOAD")?;
    let serve = beside(farshore, SERVE.0, SERVE.1);
    if figure.needs_server() {
        there(serve.clone(), SERVE.1)?;
    }
    if figure.needs_memcached() {
        crate::uthread::memcached::need().map_err(Failure::Failed)?;
    }
    let directory = swap_directory(arguments)?;
    let plan = Plan::new(figure, paper.quick, arguments, serve).map_err(Failure::Failed)?;
    let mut machine = machine::describe(&directory);
    machine.settings.extend(plan.bound().map(|bound| ("cores".to_string(), bound)));
    if let Some(line) = as_root(arguments) {
        output::tell(&line);
    }
    let unfinished = folder.join(index::UNFINISHED);
    let session = Session {
        arguments,
        farshore,
        load: &load,
        directory: &directory,
        words: words.to_vec(),
        signals,
        json: Some(&unfinished),
    };
    output::tell(&format!(
        "{}: {}, {}; about {:.0} minutes",
        figure.name,
        figure.place(),
        figure.title,
        (paper::plan::seconds(figure, arguments.rounds(), paper.quick) / 60.0).ceil()
    ));
    let needs = plan.needs();
    let (results, ended) = session.measure(&needs, Series::Paper(&plan), machine)?;
    let finished = ended.is_ok() && !signals.stopped();
    // Also what was measured before an error or Ctrl-C: nothing is lost. But it replaces nothing.
    if !results.experiments.is_empty() && (finished || !kept) {
        tell(&results, figure, &paper.out)?;
        // Without it nothing is amiss: its rows are in the other file.
        let _ = std::fs::remove_file(&unfinished);
    } else if !results.experiments.is_empty() {
        output::tell(&format!(
            "'{}' and its page stay as they were: this run did not end. Its rows are in '{}', which --from draws",
            raw.display(),
            unfinished.display()
        ));
    }
    ended?;
    Ok(is_bad(&needs, &results))
}

/// Writes the page, and says what came of it.
fn tell(results: &Results, figure: &'static Figure, out: &Path) -> Result<(), Failure> {
    let page = index::write(results, figure, out).map_err(Failure::Failed)?;
    let judged = judge::all(results, figure);
    output::print(&text::figure(figure, &judged, output::colours(), output::width()))?;
    output::tell(&format!("the page is '{}', all figures are in '{}'", page.display(), out.join("index.html").display()));
    Ok(())
}

fn draw_again(raw: &Path, wanted: Option<&str>, out: &Path) -> Result<u8, Failure> {
    if let Some(name) = wanted {
        paper::find(name).map_err(Failure::Usage)?;
    }
    let (results, figure) = index::read(raw, wanted).map_err(Failure::Failed)?;
    output::check_directory("--out", &out.join(figure.name))?;
    tell(&results, figure, out).map(|()| 0)
}

/// Options of other comparisons.
fn refuse_foreign(arguments: &BenchArgs) -> Result<(), Failure> {
    let given = [
        ("--against", !arguments.against.is_empty()),
        ("--builds", arguments.builds.is_some()),
        ("--sweep", arguments.sweep.is_some()),
        ("--memory", arguments.memory.is_some()),
        ("--pool", arguments.pool.is_some()),
        ("--swap-size", arguments.swap_size.is_some()),
        ("--swap-files", arguments.swap_files != 1),
        ("--json", arguments.json.is_some()),
        ("--report", arguments.report.is_some()),
        ("--results", arguments.results.is_some()),
        ("a PROGRAM", !arguments.program.is_empty()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "paper does not go with {option}: a figure has its own targets, sizes and points, and --out says where its files go"
        ))),
        None => Ok(()),
    }
}
