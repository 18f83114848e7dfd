//! The screen of `farshore top`.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as Shown, Table};

use super::table;
use crate::args::Column;
use farshore_client::look::{Row, Status};

/// What is on it.
#[derive(Debug)]
pub struct Screen {
    /// In the order of `column`.
    rows: Vec<Row>,
    interval: Duration,
    column: Column,
    reversed: bool,
    paused: bool,
    /// Rows that are above the first one.
    scrolled: usize,
    /// Whether a look was shown yet.
    looked: bool,
}

/// What a key does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Sorts by the column at the right, or at the left.
    Beside(bool),
    /// Sorts the other way round.
    Reverse,
    /// Stops, or goes on.
    Pause,
    /// Scrolls by so many rows.
    Scroll(isize),
}

/// What the columns are worth, where not all have room; and the room of each, with one between two.
const WORTH: [(Part, usize); 11] = [
    (Part::Of(Column::Pid), 7),
    (Part::Of(Column::Name), 15),
    (Part::Of(Column::Resident), 8),
    (Part::Of(Column::Stall), 6),
    (Part::Of(Column::Faults), 9),
    (Part::Of(Column::Family), 8),
    (Part::Of(Column::Limit), 6),
    (Part::Of(Column::Slowed), 8),
    (Part::Of(Column::Out), 6),
    (Part::Bars, 8),
    (Part::Of(Column::Evicted), 8),
];
/// The most that bars get: a character a second.
const BARS_MOST: usize = 60;

/// A column of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Of(Column),
    Bars,
}

impl Screen {
    /// An empty one.
    pub fn new(interval: Duration, column: Column) -> Screen {
        Screen { rows: Vec::new(), interval, column, reversed: false, paused: false, scrolled: 0, looked: false }
    }

    /// Takes what was seen, unless it is stopped.
    pub fn take(&mut self, rows: Vec<Row>) {
        if !self.paused {
            (self.rows, self.looked) = (rows, true);
            table::sort(&mut self.rows, self.column, self.reversed);
        }
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Key) {
        match key {
            Key::Beside(right) => (self.column, self.reversed) = (self.column.beside(right), false),
            Key::Reverse => self.reversed = !self.reversed,
            Key::Pause => self.paused = !self.paused,
            Key::Scroll(by) => self.scrolled = self.scrolled.saturating_add_signed(by).min(self.rows.len().saturating_sub(1)),
        }
        table::sort(&mut self.rows, self.column, self.reversed);
    }

    /// Draws it.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(self.summary(), head);
        if self.rows.is_empty() {
            let told = if self.looked { "No program runs under Farshore: farshore run --memory SIZE -- PROGRAM" } else { "" };
            frame.render_widget(Paragraph::new(told).centered(), body);
        } else {
            let room = usize::from(body.height.saturating_sub(1)).max(1);
            self.scrolled = self.scrolled.min(self.rows.len().saturating_sub(room));
            frame.render_widget(self.table(usize::from(body.width)), body);
        }
        let keys = " left, right: sort   r: reverse   p: stop   up, down: scroll   q: end";
        frame.render_widget(Line::styled(keys, Modifier::DIM), foot);
    }

    /// The line above all.
    fn summary(&self) -> Line<'static> {
        let count = |status: fn(&Status) -> bool| self.rows.iter().filter(|row| status(&row.status)).count();
        let (dormant, silent) = (
            count(|status| *status == Status::Dormant),
            count(|status| matches!(status, Status::Silent(_) | Status::Refuses(_) | Status::Unasked(_))),
        );
        let sum = |of: fn(&Row) -> Option<u64>| table::size(self.rows.iter().filter_map(of).fold(0, u64::saturating_add));
        let mut text = format!(" farshore top: {} program{}", self.rows.len(), if self.rows.len() == 1 { "" } else { "s" });
        for (count, what) in [(dormant, "dormant"), (silent, "without an answer")] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text.push_str(&format!(
            "; {} resident, {} out; every {} s",
            sum(|row| row.resident),
            sum(|row| row.out),
            self.interval.as_secs_f64()
        ));
        let mut spans = vec![Span::styled(text, Modifier::BOLD)];
        if self.paused {
            spans.push(Span::styled("  [stopped]", Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD)));
        }
        Line::from(spans)
    }

    fn table(&self, width: usize) -> Table<'_> {
        let parts = self.parts(width);
        let right = |text: String| Text::from(text).right_aligned();
        let head = parts.iter().map(|(part, width)| match part {
            Part::Bars => Cell::from("last minute".chars().take(*width).collect::<String>()),
            Part::Of(column) => {
                let mark = match (*column == self.column, self.reversed) {
                    (false, _) => "",
                    // The one with most is above, or the first of the alphabet.
                    (true, false) => "▼",
                    (true, true) => "▲",
                };
                let text = format!("{}{mark}", column.head());
                if is_left(*column) { Cell::from(text) } else { Cell::from(right(text)) }
            }
        });
        let rows = self.rows.iter().skip(self.scrolled).map(|row| {
            let style = if row.status == Status::Answers { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
            let cells = parts.iter().map(|(part, width)| match part {
                Part::Bars => Cell::from(Span::styled(table::bars(&row.history, *width), Color::Cyan)),
                Part::Of(column) if is_left(*column) => Cell::from(column.cell(row)),
                Part::Of(column) => Cell::from(right(column.cell(row)).style(colour(*column, row))),
            });
            Shown::new(cells).style(style)
        });
        let head = Shown::new(head).style(Style::new().add_modifier(Modifier::REVERSED));
        Table::new(rows, parts.iter().map(|(_, width)| Constraint::Length(*width as u16))).header(head).column_spacing(1)
    }

    /// The columns that have room, in their order, each with its width.
    fn parts(&self, room: usize) -> Vec<(Part, usize)> {
        let needed = |part: Part, least: usize| match part {
            // What a row tells in place of numbers.
            Part::Of(Column::Family) => {
                let longest = self.rows.iter().map(|row| Column::Family.cell(row).chars().count()).max().unwrap_or(0);
                longest.clamp(least, 32)
            }
            _ => least,
        };
        let chosen = self.rows.iter().any(|row| row.slowed.is_some());
        let mut left = room;
        let mut shown: Vec<(Part, usize)> = WORTH
            .into_iter()
            .filter(|(part, _)| chosen || *part != Part::Of(Column::Slowed))
            .filter_map(|(part, least)| {
                let width = needed(part, least);
                left = left.checked_sub(width + 1)?;
                Some((part, width))
            })
            .collect();
        if let Some((_, width)) = shown.iter_mut().find(|(part, _)| *part == Part::Bars) {
            *width = (*width + left).min(BARS_MOST);
        }
        // Bars stand behind the rate that they show.
        let place = |part: &Part| match part {
            Part::Bars => (Column::Faults as usize, 1),
            Part::Of(column) => (*column as usize, 0),
        };
        shown.sort_by_key(|(part, _)| place(part));
        shown
    }
}

fn is_left(column: Column) -> bool {
    column.is_text() || column == Column::Family
}

/// Waiting is what one looks for.
fn colour(column: Column, row: &Row) -> Style {
    match row.rates {
        Some(rates) if column == Column::Stall && rates.stall >= 0.5 => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Some(rates) if column == Column::Stall && rates.stall >= 0.1 => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::tests::some;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn shown(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it needs no terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("it needs no terminal");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(Duration::from_secs(1), Column::Stall);
        screen.take(some());
        screen
    }

    #[test]
    fn a_wide_screen_shows_all() {
        let lines = shown(&mut screen(), 120, 7);
        println!("{}", lines.join("\n"));
        assert_eq!(
            lines,
            [
                " farshore top: 4 programs, 1 dormant, 1 without an answer; 180M resident, 4.5G out; every 1 s",
                "    PID NAME             LIMIT RESIDENT    OUT  FAULTS/S last minute        EVICT/S STALL▼   SLOWED FAMILY",
                "    412 redis-server       64M      60M   1.5G     12346 ▁▁▂▂▃▃▄▄▅▅▆▆▆▇▇██      9.9   123%        - -",
                "      7 sh                 64M      60M   1.5G         0                          0     0%   2.6/5% 20M of 3",
                "     90 stopped           1.0T      60M   1.5G         -                          -      -        - no answer for 2 min",
                "4194303 python3            64M        -      -         -                          -      -        - dormant",
                " left, right: sort   r: reverse   p: stop   up, down: scroll   q: end",
            ]
        );
    }

    #[test]
    fn what_no_program_has_is_left_out() {
        let mut screen = screen();
        screen.take(some().into_iter().map(|row| Row { slowed: None, ..row }).collect());
        let head = "    PID NAME             LIMIT RESIDENT    OUT  FAULTS/S last minute                 EVICT/S STALL▼ FAMILY";
        assert_eq!(shown(&mut screen, 120, 7)[1], head);
    }

    #[test]
    fn a_narrow_one_shows_what_is_worth_most() {
        for (width, heads) in [
            (80, &["PID", "NAME", "RESIDENT", "FAULTS/S", "STALL▼", "FAMILY"][..]),
            (40, &["PID", "NAME", "RESIDENT", "STALL▼"]),
            (8, &["PID"]),
        ] {
            let lines = shown(&mut screen(), width, 7);
            let found: Vec<&str> = lines[1].split_whitespace().collect();
            assert!(heads.iter().all(|head| found.contains(head)), "{width}: {lines:#?}");
        }
        // Too small for anything is no reason to fall.
        for (width, height) in [(1, 1), (1, 3), (0, 0), (200, 2)] {
            shown(&mut screen(), width, height);
        }
    }

    #[test]
    fn keys_sort_stop_and_scroll() {
        let mut screen = screen();
        let first = |screen: &mut Screen| shown(screen, 120, 7)[2].split_whitespace().next().map(String::from);
        assert_eq!(first(&mut screen).as_deref(), Some("412"));
        screen.press(Key::Beside(true));
        assert_eq!(first(&mut screen).as_deref(), Some("7"), "by what is slowed");
        screen.press(Key::Beside(true));
        assert_eq!(first(&mut screen).as_deref(), Some("7"), "by family");
        screen.press(Key::Beside(true));
        screen.press(Key::Reverse);
        assert_eq!(first(&mut screen).as_deref(), Some("4194303"), "by number, backwards");
        screen.press(Key::Pause);
        screen.take(Vec::new());
        let lines = shown(&mut screen, 120, 7);
        assert!(lines[0].ends_with("[stopped]") && lines[2].contains("python3"), "{lines:#?}");
        // Two rows have room.
        screen.press(Key::Scroll(3));
        assert_eq!(
            shown(&mut screen, 120, 5)[2..4].iter().map(|line| line.split_whitespace().next()).collect::<Vec<_>>(),
            [Some("90"), Some("7")]
        );
        screen.press(Key::Scroll(-9));
        assert_eq!(first(&mut screen).as_deref(), Some("4194303"));
        screen.press(Key::Pause);
        screen.take(Vec::new());
        let lines = shown(&mut screen, 120, 7);
        assert!(lines[0].contains("0 programs") && lines[1].contains("farshore run --memory"), "{lines:#?}");
    }
}
