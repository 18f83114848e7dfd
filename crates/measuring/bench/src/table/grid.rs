//! Aligned columns, as many as a width has room for.

use farshore_config::plain_lines;
use unicode_width::UnicodeWidthStr;

/// Between two columns.
const GAP: &str = "  ";

/// What a text is, for the eye.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tone {
    /// Nothing of note.
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// Of less weight.
    Faint,
    /// Better.
    Good,
    /// Worse, or failed.
    Bad,
}

/// What a terminal is told, and nothing else ([`only_our_colours`]).
const CODES: [&str; 5] = ["\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"];

/// `text` with what [`Tone::paint`] puts into it. Everything else that a terminal would obey is shown by its number: names and errors are other people's.
pub fn only_our_colours(text: &str) -> String {
    let (mut all, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('\x1b') {
        all += &plain_lines(&rest[..at]);
        let code = CODES.into_iter().find(|code| rest[at..].starts_with(code));
        let end = at + code.map_or(1, str::len);
        match code {
            Some(code) => all += code,
            None => all += &plain_lines(&rest[at..end]),
        }
        rest = &rest[end..];
    }
    all + &plain_lines(rest)
}

impl Tone {
    /// `text` in this tone, if there are colours.
    pub fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Tone::Plain => return text.into(),
            Tone::Strong => 1,
            Tone::Faint => 2,
            Tone::Good => 32,
            Tone::Bad => 31,
        };
        if colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}

/// A place in a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

/// A column.
#[derive(Debug)]
pub struct Column {
    pub title: String,
    /// Numbers are aligned to the right.
    pub right: bool,
    /// When there is no room for all, the column with the highest goes first. 0 always stays.
    pub dispensable: u32,
    pub cells: Vec<Cell>,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().map(|cell| cell.text.width()).chain([self.title.width()]).max().unwrap_or(0)
    }

    /// Whether it says anything.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell.text.is_empty())
    }

    fn line(&self, cell: &Cell, last: bool, colours: bool) -> String {
        let blank = " ".repeat(self.width() - cell.text.width());
        let text = cell.tone.paint(&cell.text, colours);
        match (self.right, last) {
            (true, _) => blank + &text,
            (false, true) => text,
            (false, false) => text + &blank,
        }
    }
}

/// The table, a line a row, below a line of titles. Columns without any content and those for which `width` (in columns of the terminal) has no room are
/// left out.
pub fn render(mut columns: Vec<Column>, width: usize, colours: bool) -> String {
    columns.retain(|column| !column.is_empty());
    while wide(&columns) > width {
        let Some(most) = columns.iter().map(|column| column.dispensable).max().filter(|most| *most > 0) else { break };
        columns.retain(|column| column.dispensable != most);
    }
    let titles = columns.iter().map(|column| Cell { text: column.title.clone(), tone: Tone::Faint });
    let titles = line(&columns, &titles.collect::<Vec<_>>(), colours);
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let row = |index: usize| {
        let cells: Vec<Cell> = columns.iter().map(|column| column.cells.get(index).cloned().unwrap_or_default()).collect();
        line(&columns, &cells, colours)
    };
    std::iter::once(titles).chain((0..rows).map(row)).collect()
}

fn wide(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width() + GAP.len()).sum::<usize>().saturating_sub(GAP.len())
}

fn line(columns: &[Column], cells: &[Cell], colours: bool) -> String {
    let last = columns.len().saturating_sub(1);
    let cells = columns.iter().zip(cells).enumerate().map(|(index, (column, cell))| column.line(cell, index == last, colours));
    cells.collect::<Vec<String>>().join(GAP).trim_end().to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(title: &str, right: bool, dispensable: u32, cells: &[&str]) -> Column {
        Column { title: title.into(), right, dispensable, cells: cells.iter().map(|text| Cell::from(*text)).collect() }
    }

    fn columns() -> Vec<Column> {
        vec![
            column("target", false, 0, &["linux-swap", "日本", "é"]),
            column("µs", true, 1, &["1.5", "", "100 × (9–10)"]),
            column("nothing", true, 0, &["", ""]),
            column("note", false, 2, &["slower", "", "same"]),
        ]
    }

    #[test]
    fn aligned_by_what_is_seen() {
        let wanted = "\
target                µs  note
linux-swap           1.5  slower
日本
é           100 × (9–10)  same
";
        assert_eq!(render(columns(), 80, false), wanted);
    }

    #[test]
    fn narrow_ones_have_fewer_columns() {
        assert_eq!(render(columns(), 29, false).lines().next(), Some("target                µs"));
        assert_eq!(render(columns(), 23, false).lines().next(), Some("target"));
        // What always stays does so.
        assert_eq!(render(columns(), 3, false).lines().nth(1), Some("linux-swap"));
        assert_eq!(render(Vec::new(), 80, false), "\n");
    }

    #[test]
    fn a_terminal_obeys_our_colours_alone() {
        let foreign = "x\u{1b}[2J\u{9b}H\u{1b}]0;y\u{7}";
        for tone in [Tone::Plain, Tone::Strong, Tone::Faint, Tone::Good, Tone::Bad] {
            let painted = only_our_colours(&tone.paint(foreign, true));
            assert_eq!(painted, tone.paint("x\\u{1b}[2J\\u{9b}H\\u{1b}]0;y\\u{7}", true));
        }
        let coloured = render(columns(), 80, true);
        assert_eq!(only_our_colours(&coloured), coloured);
    }

    #[test]
    fn colours_take_no_room() {
        let mut coloured = columns();
        coloured[1].cells[0].tone = Tone::Bad;
        let text = render(coloured, 80, true);
        assert!(text.contains("         \x1b[31m1.5\x1b[0m  slower"), "{text:?}");
        assert_eq!(
            text.replace("\x1b[31m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").replace("titles", ""),
            render(columns(), 80, false)
        );
    }
}
