//! What the terminal shows: the list of figures, and what came of one.

use super::judge::{self, Judged};
use super::plan;
use super::{Figure, all};
use crate::table::grid::{self, Cell, Column, Tone};

/// All figures, with what each needs and how long it takes.
#[must_use]
pub fn list(rounds: u32, colours: bool, width: usize) -> String {
    let figures: Vec<&Figure> = all().collect();
    let column = |title: &str, right: bool, dispensable: u32, cell: &dyn Fn(&Figure) -> String| Column {
        title: title.into(),
        right,
        dispensable,
        cells: figures.iter().map(|figure| Cell::from(cell(figure))).collect(),
    };
    let columns = vec![
        column("figure", false, 0, &|figure| figure.name.into()),
        column("of", false, 1, &Figure::place),
        column("what", false, 3, &|figure| figure.title.into()),
        column("needs", false, 2, &|figure| plan::needs_text(figure)),
        column("minutes", true, 0, &|figure| format!("{:.0}", (plan::seconds(figure, rounds, false) / 60.0).ceil())),
    ];
    let most: f64 = figures.iter().map(|figure| plan::seconds(figure, rounds, false)).sum();
    grid::render(columns, width, colours)
        + &format!(
            "Minutes are for {rounds} rounds on two processors, {:.0} for all; --quick takes less than one for each. Without root the kernel's targets are left out.\n",
            most / 60.0
        )
}

/// What came of a figure.
#[must_use]
pub fn figure(figure: &Figure, judged: &[Judged], colours: bool, width: usize) -> String {
    let column = |title: &str, right: bool, dispensable: u32, cell: &dyn Fn(&Judged) -> Cell| Column {
        title: title.into(),
        right,
        dispensable,
        cells: judged.iter().map(cell).collect(),
    };
    let plain = |text: String| Cell::from(text.replace('\u{a0}', " "));
    let columns = vec![
        column("what", false, 1, &|one| one.claim.what.into()),
        column("of", false, 2, &|one| one.claim.system.into()),
        column("paper", true, 0, &|one| plain(judge::papers(one.claim))),
        column("here", true, 0, &|one| plain(judge::ours(one))),
        column("verdict", false, 0, &|one| Cell { text: one.words().into(), tone: tone(one) }),
    ];
    let head = Tone::Strong.paint(&format!("{}: {}, {}", figure.name, figure.place(), figure.title), colours);
    let [agrees, differs] = judge::sentences(judged).map(|sentence| sentence.replace('\u{a0}', " "));
    let marked = judged.iter().any(|one| !one.claim.from.is_empty());
    let star = if marked { "* computed from the paper's digits, or a bound: the sentences say from what.\n" } else { "" };
    format!("{head}\n{}{star}{agrees}\n{differs}\n", grid::render(columns, width, colours))
}

fn tone(judged: &Judged) -> Tone {
    match judged.agrees() {
        Some(true) => Tone::Good,
        Some(false) if judged.verdict != judge::Verdict::Open => Tone::Bad,
        _ => Tone::Plain,
    }
}
