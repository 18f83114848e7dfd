//! `farshore record`: writes what happens to a program's memory to a file, for `farshore report`.
//!
//! It hears the program as a policy does that wishes for nothing. One thread takes events from the ring and makes blocks of them; another writes
//! them, so that a slow disk costs no event until 32 MiB wait for it.
//!
//! | module | what it does |
//! |---|---|
//! | [`file`](mod@file) | the format: entries to bytes and back |
//! | [`maps`] | the mappings of the process |

pub mod file;
pub mod maps;

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farshore_beside::{Attachment, Event, Kind};
use farshore_client::client::mask;
use farshore_command::process::told;
use farshore_command::refusal::Refusal;
use farshore_config::control::WAKER;

use crate::args::RecordArgs;
use crate::plan::follow::{Ended, Over, pass_on, start};
use crate::plan::signals::Signals;
use file::{End, Entry, Happened, What, Writer};
use maps::Looks;

/// Sleeps between looks at the ring: where much comes, and where nothing does.
const SLEEP: (Duration, Duration) = (Duration::from_micros(250), Duration::from_millis(4));
/// Events of a look after which the next one comes soon.
const MANY: usize = 256;
/// A block that is not full is written after this time: so much is lost at most when this command is killed.
const BLOCK_TIME: Duration = Duration::from_millis(500);
/// Blocks that wait for the disk.
const WAITING: usize = 512;

const KINDS: [Kind; 7] = [Kind::Fault, Kind::Fetched, Kind::Evicted, Kind::Rescued, Kind::Limit, Kind::Mapped, Kind::Unmapped];

/// Records a program.
///
/// # Errors
/// It cannot be started (125 and more), or not be heard, or the file not be written (1).
pub fn record(arguments: &RecordArgs, farshore: Option<PathBuf>) -> Result<u8, Refusal> {
    let signals = Signals::new()?;
    let Some(pid) = arguments.pid else { return of_child(arguments, farshore, &signals) };
    let path = arguments.output.clone().unwrap_or_else(|| format!("farshore-{pid}.rec").into());
    // Before a dormant program is woken for nothing; and a process that cannot be heard is to leave no file behind.
    if !arguments.force && path.symlink_metadata().is_ok() {
        return Err(is_there(&path));
    }
    let dormant = is_dormant(pid);
    let attachment = farshore_beside::attach(pid)?;
    let disk = Disk::open(&path, arguments.force)?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default().trim_ascii_end().to_vec();
    let mut recorder = Recorder::new(pid, &name, disk);
    recorder.attached(attachment);
    let woken = if dormant { ", which was dormant and is woken," } else { "" };
    eprintln!("{}", line(&format!("recording process {pid}{woken} to '{}'; Ctrl-C ends it", path.display())));
    recorder.until_the_end(&Over::Somebodys(pid), &signals);
    recorder.finish(&path)?;
    Ok(0)
}

fn of_child(arguments: &RecordArgs, farshore: Option<PathBuf>, signals: &Signals) -> Result<u8, Refusal> {
    let path = arguments.output.clone().unwrap_or_else(|| format!("farshore-{}.rec", std::process::id()).into());
    let disk = Disk::open(&path, arguments.force)?;
    let child = start(farshore, arguments.memory, &arguments.swap, &arguments.command, signals)?;
    let pid = child.id();
    let name = arguments.command.first().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    let mut recorder = Recorder::new(pid, &name, disk);
    let ended = recorder.until_the_end(&Over::child(child), signals);
    let status = ended.status();
    // What there is to say of one that could not be started, `farshore run` has said.
    if (125..=127).contains(&status) && !recorder.heard {
        recorder.close();
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
        return Ok(status);
    }
    recorder.finish(&path)?;
    Ok(status)
}

/// Whether a process waits to be woken by Farshore's signal.
fn is_dormant(pid: u32) -> bool {
    mask(&told(pid, "status").unwrap_or_default(), "SigCgt:").is_some_and(|caught| caught >> (WAKER - 1) & 1 != 0)
}

fn is_there(path: &Path) -> Refusal {
    let place = path.display();
    Refusal::cannot_start(format!("'{place}' is there already: name another file with --output, or overwrite it with --force"))
}

/// A line for the screen, whatever names have in them.
pub fn line(text: &str) -> String {
    format!("farshore: {}", farshore_config::plain(text))
}

/// The time of events.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The file, and the thread that writes it.
struct Disk {
    blocks: SyncSender<Vec<u8>>,
    failed: Arc<OnceLock<std::io::Error>>,
    thread: JoinHandle<()>,
}

impl Disk {
    fn open(path: &Path, force: bool) -> Result<Disk, Refusal> {
        let mut options = OpenOptions::new();
        // The file tells what the program does, so it is for its user alone.
        options.write(true).mode(0o600);
        let options = if force { options.create(true).truncate(true) } else { options.create_new(true) };
        // A pipe without a reader would be waited for.
        if force && path.metadata().is_ok_and(|is| is.file_type().is_fifo()) {
            return Err(Refusal::cannot_start(format!("'{}' is a pipe: name a file with --output", path.display())));
        }
        let mut file: File = options.open(path).map_err(|why| {
            Refusal::cannot_start(match why.kind() {
                std::io::ErrorKind::AlreadyExists => return is_there(path),
                _ => format!("cannot write '{}' ({why}): name another file with --output", path.display()),
            })
        })?;
        if file.metadata().is_ok_and(|is| is.is_file()) {
            // It may have been there, for all to read. One of another user's stays as it is.
            let _ = file.set_permissions(Permissions::from_mode(0o600));
        }
        let (blocks, come) = sync_channel::<Vec<u8>>(WAITING);
        let failed = Arc::<OnceLock<std::io::Error>>::default();
        let told = failed.clone();
        let thread = std::thread::spawn(move || {
            for block in come {
                if let Err(why) = file.write_all(&block) {
                    let _ = told.set(why);
                    return;
                }
            }
        });
        let _ = blocks.send(Writer::head());
        Ok(Disk { blocks, failed, thread })
    }
}

/// A recording on its way.
struct Recorder {
    pid: u32,
    attachment: Option<Attachment>,
    looks: Looks,
    writer: Writer,
    disk: Option<Disk>,
    written: Instant,
    /// Events that this attachment has lost, as far as the file tells.
    lost: u64,
    lost_of_all: u64,
    events: u64,
    heard: bool,
    failed: Option<std::io::Error>,
}

impl Recorder {
    fn new(pid: u32, name: &[u8], disk: Disk) -> Recorder {
        let mut recorder = Recorder {
            pid,
            attachment: None,
            looks: Looks::new(pid),
            writer: Writer::default(),
            disk: Some(disk),
            written: Instant::now(),
            lost: 0,
            lost_of_all: 0,
            events: 0,
            heard: false,
            failed: None,
        };
        let date = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        recorder.put(&Entry::Program { pid, ns: now(), date, name: name.to_vec() });
        recorder
    }

    fn attached(&mut self, mut attachment: Attachment) {
        attachment.want(&KINDS);
        let limit = attachment.state().limit_bytes;
        self.attachment = Some(attachment);
        (self.heard, self.lost) = (true, 0);
        self.put(&Entry::Attached { ns: now(), limit });
        self.look(true);
    }

    fn put(&mut self, entry: &Entry) {
        if self.writer.put(entry) {
            self.send();
        }
    }

    fn send(&mut self) {
        self.written = Instant::now();
        let Some(block) = self.writer.take() else { return };
        // The receiver is gone when a write has failed.
        if self.disk.as_ref().is_some_and(|disk| disk.blocks.send(block).is_err()) {
            self.close();
        }
    }

    /// Ends the writing thread; what was wrong is known then.
    fn close(&mut self) {
        let Some(Disk { blocks, failed, thread }) = self.disk.take() else { return };
        drop(blocks);
        let _ = thread.join();
        self.failed = Arc::into_inner(failed).and_then(OnceLock::into_inner);
        if self.failed.is_some() {
            self.attachment = None;
        }
    }

    /// Whether the file can still be written.
    fn is_well(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.failed.get().is_none())
    }

    fn until_the_end(&mut self, over: &Over, signals: &Signals) -> Ended {
        let (mut sleep, mut looked) = (SLEEP.0, Instant::now());
        let (ended, how) = loop {
            let count = self.take();
            sleep = if count >= MANY { SLEEP.0 } else { (sleep * 2).min(SLEEP.1) };
            if looked.elapsed() >= SLEEP.1 {
                looked = Instant::now();
                if let Some(ended) = over.look() {
                    break (ended, End::Over);
                }
                if let Some(ended) = pass_on(self.pid, over, signals) {
                    break (ended, End::Stopped);
                }
                if self.is_well() {
                    self.attach_again(over);
                    self.look(false);
                    if self.written.elapsed() >= BLOCK_TIME {
                        self.send();
                    }
                } else {
                    self.close();
                    if matches!(over, Over::Somebodys(_)) {
                        return Ended::Watching;
                    }
                }
            }
            std::thread::sleep(sleep);
        };
        // What it said last.
        self.take();
        self.look(true);
        self.put(&Entry::End { ns: now(), how });
        self.send();
        ended
    }

    /// At the beginning, and after an exec, which ends attachments.
    fn attach_again(&mut self, over: &Over) {
        if self.attachment.as_ref().is_some_and(Attachment::is_there) {
            return;
        }
        self.take();
        self.attachment = None;
        // One that is over by now, and was waited for, may be another process.
        if over.look().is_none()
            && let Ok(attachment) = farshore_beside::attach(self.pid)
        {
            self.attached(attachment);
        }
    }

    /// Takes what the ring has; how many.
    fn take(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.attachment.as_mut().and_then(Attachment::take) {
            if let Some(happened) = happened(&event) {
                if matches!(happened.what, What::Mapped | What::Unmapped) {
                    self.looks.changed();
                }
                self.put(&Entry::Happened(happened));
            }
            count += 1;
        }
        self.events += count as u64;
        let lost = self.attachment.as_ref().map_or(self.lost, |attachment| attachment.state().events_lost);
        if lost > self.lost {
            let events = lost - std::mem::replace(&mut self.lost, lost);
            self.lost_of_all += events;
            self.put(&Entry::Lost { ns: now(), events });
        }
        count
    }

    fn look(&mut self, at_once: bool) {
        if self.attachment.is_none() {
            return;
        }
        if let Some(mappings) = self.looks.look(at_once) {
            self.put(&Entry::Maps { ns: now() });
            mappings.into_iter().for_each(|mapping| self.put(&Entry::Mapping(mapping)));
        }
    }

    fn finish(mut self, path: &Path) -> Result<(), Refusal> {
        self.close();
        let place = path.display();
        if let Some(why) = self.failed {
            return Err(Refusal::failed(format!(
                "cannot write '{place}' any more ({why}), and stopped recording: is its disk full?"
            )));
        }
        if !self.heard {
            // The exit status is the program's all the same.
            eprintln!("{}", line(&format!("the program ended before it could be heard: '{place}' has no events")));
            return Ok(());
        }
        let lost = if self.lost_of_all > 0 {
            format!("; {} more were lost, since the machine was busy", self.lost_of_all)
        } else {
            String::new()
        };
        eprintln!("{}", line(&format!("recorded {} events to '{place}'{lost}", self.events)));
        Ok(())
    }
}

fn happened(event: &Event) -> Option<Happened> {
    let what = match event.kind {
        Kind::Fault => What::Fault,
        Kind::Fetched => What::Fetched,
        Kind::Evicted => What::Evicted,
        Kind::Rescued => What::Rescued,
        Kind::Limit => What::Limit,
        Kind::Mapped => What::Mapped,
        Kind::Unmapped => What::Unmapped,
        Kind::Pages | Kind::Parameter | Kind::Scanned => return None,
    };
    let Event { detail, ns, address, pages, thread, more: [instruction, ..], .. } = *event;
    Some(Happened { what, detail, ns, address, pages, thread, instruction })
}
