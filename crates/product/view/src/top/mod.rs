//! `farshore top`.
//!
//! Three threads: one looks at the programs, one reads the keys, and this one draws. So no program and no look that takes long keeps a key waiting.

pub mod screen;
pub mod table;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use farshore_command::refusal::Refusal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::TopArgs;
use crate::print;
use farshore_client::look::{Looker, Row};
use screen::{Key, Screen};

/// What comes to the thread that draws.
enum News {
    Looked(Vec<Row>),
    Pressed(Key),
    /// The screen has another size, or somebody has written on it.
    Redraw,
    End,
    Signal(i32),
    /// Keys cannot be read any more.
    Broken(std::io::Error),
}

/// Shows all programs.
///
/// # Errors
/// The terminal cannot be used (1).
pub fn top(arguments: &TopArgs) -> Result<u8, Refusal> {
    let looker = Looker::new(rustix::process::geteuid().as_raw());
    if arguments.once || !std::io::stdout().is_terminal() {
        return once(arguments, looker);
    }
    let (sender, news) = channel();
    watch_signals(sender.clone())?;
    let mut terminal = ratatui::try_init().map_err(|error| cannot_show(&error))?;
    let interval = arguments.interval;
    let keys = sender.clone();
    std::thread::spawn(move || read_keys(&keys));
    std::thread::spawn(move || look(looker, interval, &sender));
    let mut screen = Screen::new(interval, arguments.sort);
    let done = show(&mut terminal, &mut screen, &news);
    ratatui::restore();
    done
}

/// Looks twice, and prints.
fn once(arguments: &TopArgs, mut looker: Looker) -> Result<u8, Refusal> {
    looker.look();
    std::thread::sleep(arguments.interval);
    let mut rows = looker.look();
    table::sort(&mut rows, arguments.sort, false);
    print(&table::plain(&rows))?;
    looker.trouble().map_or(Ok(0), |why| Err(Refusal::failed(why)))
}

/// Draws until it is to end.
fn show(terminal: &mut ratatui::DefaultTerminal, screen: &mut Screen, news: &Receiver<News>) -> Result<u8, Refusal> {
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(|error| cannot_show(&error))?;
        match news.recv() {
            Ok(News::Looked(rows)) => screen.take(rows),
            Ok(News::Pressed(key)) => screen.press(key),
            Ok(News::Redraw) => terminal.clear().map_err(|error| cannot_show(&error))?,
            Ok(News::Signal(signal)) => return Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
            Ok(News::Broken(error)) => return Err(cannot_show(&error)),
            // (The other threads end with this one.)
            Ok(News::End) | Err(_) => return Ok(0),
        }
    }
}

fn look(mut looker: Looker, interval: Duration, sender: &Sender<News>) {
    // The second look comes soon: without it there are no rates.
    let mut next = Instant::now() + interval.min(Duration::from_secs(1));
    while sender.send(News::Looked(looker.look())).is_ok() {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // A look that took longer than the interval is not made up for.
        next = (next + interval).max(Instant::now());
    }
}

fn read_keys(sender: &Sender<News>) {
    loop {
        let news = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => meaning(key),
            Ok(Event::Resize(..)) => Some(News::Redraw),
            Ok(_) => None,
            Err(error) => {
                let _ = sender.send(News::Broken(error));
                return;
            }
        };
        if news.is_some_and(|news| sender.send(news).is_err()) {
            return;
        }
    }
}

fn meaning(key: KeyEvent) -> Option<News> {
    let pressed = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Some(News::End),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(News::End),
        KeyCode::Char('l') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(News::Redraw),
        KeyCode::Right => Key::Beside(true),
        KeyCode::Left => Key::Beside(false),
        KeyCode::Char('r') => Key::Reverse,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Down => Key::Scroll(1),
        KeyCode::Up => Key::Scroll(-1),
        KeyCode::PageDown => Key::Scroll(10),
        KeyCode::PageUp => Key::Scroll(-10),
        _ => return None,
    };
    Some(News::Pressed(pressed))
}

/// Signals that end it come as news, so that the terminal is as it was before.
fn watch_signals(sender: Sender<News>) -> Result<(), Refusal> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(|error| Refusal::failed(format!("cannot listen for signals ({error}): is there memory left?")))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = sender.send(News::Signal(signal));
        }
    });
    Ok(())
}

fn cannot_show(error: &std::io::Error) -> Refusal {
    Refusal::failed(format!("cannot use the terminal ({error}): 'farshore top --once' needs none"))
}
