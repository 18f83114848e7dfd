//! What the device below a directory can do by itself: the limit that each result is set against.
//!
//! io_uring with O_DIRECT, so that neither the page cache nor threads are in the way, on a file of its own that has been written once all over with data
//! that cannot be made smaller. Each page bears its number, and each one that is read is checked.
//!
//! | file | what it does |
//! |---|---|
//! | `ring` | requests in flight; all that is unsafe |
//! | `file` | the file, and what is in it |
//!
//! One thread makes the requests. It manages several hundred thousand a second; a device that does more is measured too low at depth 32.

mod file;
mod ring;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farshore_load::outcome::Histogram;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use self::ring::{Buffer, Done, Kind, PAGE, Ring};
use crate::result::{Access, Device, DevicePoint};

/// What is said if the caller's flag ended it.
pub const INTERRUPTED: &str = "interrupted";

/// Pages of a large request: 1 MiB.
const LARGE_PAGES: usize = 256;
/// Large requests in flight.
const SEQUENTIAL_DEPTH: u32 = 4;
/// No request takes longer than this; if it does, this is what is noted.
const LONGEST: Duration = Duration::from_secs(60);
/// The first part of a point's time is not counted: the queue fills.
const NOT_COUNTED: f64 = 0.1;

/// What is measured, in this order. Reads come first: writes may leave a device with work that it does later.
const POINTS: [(Access, u32); 9] = [
    (Access::RandomRead, 1),
    (Access::RandomRead, 8),
    (Access::RandomRead, 32),
    (Access::SequentialRead, SEQUENTIAL_DEPTH),
    (Access::RandomMixed, 1),
    (Access::RandomMixed, 32),
    (Access::RandomWrite, 1),
    (Access::RandomWrite, 32),
    (Access::SequentialWrite, SEQUENTIAL_DEPTH),
];

/// Measures the device below `directory`, on a file of `file_bytes` (at least 1 MiB, in whole pages), for `seconds_per_point` at each of nine points
/// (and as long as it takes to write the file once). `progress` hears what is being done, `stop` ends it at once. No file is left.
///
/// # Errors
/// Why it cannot be measured, in one line: a file system in memory or without O_DIRECT, no room, no io_uring, a failing device; [`INTERRUPTED`].
pub fn measure(
    directory: &Path,
    file_bytes: u64,
    seconds_per_point: f64,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Device, String> {
    let pages = (file_bytes / PAGE as u64).max(LARGE_PAGES as u64);
    progress(&format!("writing a file of {} MiB", (pages * PAGE as u64) >> 20));
    let file = file::open(directory, pages)?;
    file::fill(&file, pages, stop)?;
    let mut points = Vec::new();
    for (access, depth) in POINTS {
        progress(&format!("{}, {depth} in flight", name(access)));
        points.push(Load::new(&file, pages, access, depth)?.run(seconds_per_point, stop)?);
    }
    Ok(Device { file_bytes: pages * PAGE as u64, points })
}

/// An access in words.
#[must_use]
pub fn name(access: Access) -> &'static str {
    match access {
        Access::RandomRead => "4 KiB random reads",
        Access::RandomWrite => "4 KiB random writes",
        Access::RandomMixed => "4 KiB random, half reads, half writes",
        Access::SequentialRead => "1 MiB sequential reads",
        Access::SequentialWrite => "1 MiB sequential writes",
    }
}

/// What so many pages a second take of what the device can do, in percent: `in/R + out/W`, with `R` and `W` the most pages that it
/// reads and writes a second at any depth, at random or in order. `None` if `R` or `W` is not known.
///
/// It can exceed 100: a target that clusters its writes (or reads ahead) makes fewer and larger requests than the 4 KiB that the limit was measured with, and
/// a device that reads and writes at the same time does more than one after the other.
#[must_use]
pub fn share(device: &Device, pages_in_per_second: f64, pages_out_per_second: f64, sequential: bool) -> Option<f64> {
    let (read, write) = match sequential {
        true => (Access::SequentialRead, Access::SequentialWrite),
        false => (Access::RandomRead, Access::RandomWrite),
    };
    Some(100.0 * (pages_in_per_second / best(device, read)? + pages_out_per_second / best(device, write)?))
}

/// The most pages a second at any depth; `None` if it was not measured.
#[must_use]
pub fn best(device: &Device, access: Access) -> Option<f64> {
    let speeds = device.points.iter().filter(|point| point.access == access).map(|point| point.pages_per_second);
    speeds.filter(|speed| *speed > 0.0).max_by(f64::total_cmp)
}

/// A ring whose users see a line instead of an errno.
fn ring(file: &File, depth: u32) -> Result<Ring<'_>, String> {
    Ring::new(file, depth).map_err(|error| {
        format!("io_uring cannot be used ({error}): the device cannot be measured; see kernel.io_uring_disabled and the limits of the container")
    })
}

/// One point being measured.
struct Load<'file> {
    ring: Ring<'file>,
    access: Access,
    depth: u32,
    /// Of the file.
    pages: u64,
    /// Where the next sequential request goes.
    next: u64,
    random: Xoshiro256PlusPlus,
    free: Vec<Buffer>,
    latency: hdrhistogram::Histogram<u64>,
}

impl<'file> Load<'file> {
    fn new(file: &'file File, pages: u64, access: Access, depth: u32) -> Result<Load<'file>, String> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(u64::from(depth) + access as u64);
        let request_pages = match access {
            Access::RandomRead | Access::RandomWrite | Access::RandomMixed => 1,
            Access::SequentialRead | Access::SequentialWrite => LARGE_PAGES,
        };
        let free = (0..depth).map(|_| file::blank(request_pages)).map(|mut buffer| {
            file::noise(&mut buffer, &mut random);
            buffer
        });
        let free = free.collect();
        let latency =
            hdrhistogram::Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 2).map_err(|error| error.to_string())?;
        Ok(Load { ring: ring(file, depth)?, access, depth, pages, next: 0, random, free, latency })
    }

    /// Keeps `depth` requests in flight for `seconds`, and until each place of the queue has been counted once on average.
    fn run(mut self, seconds: f64, stop: &AtomicBool) -> Result<DevicePoint, String> {
        let what = name(self.access);
        let told = |error: std::io::Error| format!("the device failed at {what}: {error}");
        let begin = Instant::now();
        let (mut counted_from, mut pages, mut done) = (None, 0, Vec::new());
        let elapsed = loop {
            if stop.load(Ordering::Relaxed) {
                return Err(INTERRUPTED.into());
            }
            while let Some(buffer) = self.free.pop() {
                let (kind, page, buffer) = self.request(buffer);
                self.ring.start(kind, page, buffer).map_err(told)?;
            }
            self.ring.wait(&mut done).map_err(told)?;
            let counts = counted_from.is_some();
            pages += self.take(&mut done, counts)?;
            let now = Instant::now();
            if counted_from.is_none() && now.duration_since(begin).as_secs_f64() >= seconds * NOT_COUNTED {
                counted_from = Some(now);
            }
            let enough = now.duration_since(begin).as_secs_f64() >= seconds && self.latency.len() >= u64::from(self.depth);
            if let Some(from) = counted_from.filter(|_| enough) {
                break now.duration_since(from).as_secs_f64();
            }
        };
        let counts = self.latency.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        let pages_per_second = pages as f64 / elapsed;
        Ok(DevicePoint { access: self.access, depth: self.depth, pages_per_second, latency: Histogram { counts } })
    }

    /// The next request. What is written bears its number.
    fn request(&mut self, mut buffer: Buffer) -> (Kind, u64, Buffer) {
        let kind = match self.access {
            Access::RandomRead | Access::SequentialRead => Kind::Read,
            Access::RandomWrite | Access::SequentialWrite => Kind::Write,
            Access::RandomMixed if self.random.random() => Kind::Write,
            Access::RandomMixed => Kind::Read,
        };
        let count = buffer.len() as u64;
        let page = if count == 1 { self.random.random_range(0..self.pages) } else { self.in_order(count) };
        if kind == Kind::Write {
            file::stamp(&mut buffer, page);
        }
        (kind, page, buffer)
    }

    /// The next `count` pages in order; from the start again where the file ends.
    fn in_order(&mut self, count: u64) -> u64 {
        let page = if self.next + count > self.pages { 0 } else { self.next };
        self.next = page + count;
        page
    }

    /// Checks what was read, notes how long each request took if it `counts`, and gives back how many pages those were.
    fn take(&mut self, done: &mut Vec<Done>, counts: bool) -> Result<u64, String> {
        let mut pages = 0;
        for done in done.drain(..) {
            if done.kind == Kind::Read {
                file::check(&done.buffer, done.page)?;
            }
            if counts {
                self.latency.saturating_record(done.took.as_nanos() as u64);
                pages += done.buffer.len() as u64;
            }
            self.free.push(done.buffer);
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::file::tests::on_disk;
    use super::*;

    fn go() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn each_point_is_measured_and_nothing_is_left() {
        let directory = on_disk();
        let mut heard = Vec::new();
        let device = measure(directory.path(), 4 << 20, 0.02, &go(), &mut |line| heard.push(line.to_string())).expect("measured");
        assert_eq!(device.file_bytes, 4 << 20);
        assert_eq!(device.points.iter().map(|point| (point.access, point.depth)).collect::<Vec<_>>(), POINTS);
        for point in &device.points {
            assert!(point.pages_per_second > 0.0, "{point:?}");
            assert!(point.latency.total() >= u64::from(point.depth), "{point:?}");
            assert!(point.latency.counts.is_sorted_by(|(one, _), (other, _)| one < other));
        }
        assert_eq!(heard.len(), POINTS.len() + 1);
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_stop_ends_it_between_two_requests() {
        let directory = on_disk();
        let stop = go();
        // So long that the test would hang if the flag were not heard.
        let mut at_the_first_point = |line: &str| stop.store(line.contains("reads"), Ordering::Relaxed);
        assert_eq!(measure(directory.path(), 1 << 20, 1e6, &stop, &mut at_the_first_point), Err(INTERRUPTED.into()));
    }

    #[test]
    fn wrong_data_end_it() {
        let directory = on_disk();
        // The pages are there, but were never written.
        let file = file::open(directory.path(), 1024).expect("a file");
        let result = Load::new(&file, 1024, Access::SequentialRead, 1).and_then(|load| load.run(1e6, &go()));
        assert!(result.is_err_and(|line| line.contains("wrong data")));
    }

    fn device(points: &[(Access, u32, f64)]) -> Device {
        let point = |(access, depth, speed): &(Access, u32, f64)| DevicePoint {
            access: *access,
            depth: *depth,
            pages_per_second: *speed,
            latency: Histogram::default(),
        };
        Device { file_bytes: 0, points: points.iter().map(point).collect() }
    }

    #[test]
    fn shares() {
        let both = device(&[
            (Access::RandomRead, 1, 100.0),
            (Access::RandomRead, 32, 1000.0),
            (Access::RandomWrite, 32, 500.0),
            (Access::SequentialRead, 4, 10_000.0),
            (Access::SequentialWrite, 4, 2000.0),
        ]);
        assert_eq!(share(&both, 500.0, 100.0, false), Some(70.0));
        assert_eq!(share(&both, 500.0, 100.0, true), Some(10.0));
        assert_eq!(share(&both, 0.0, 0.0, false), Some(0.0));
        assert_eq!(share(&both, 1000.0, 1000.0, false), Some(300.0));
        assert_eq!(share(&device(&[(Access::RandomRead, 1, 9.0)]), 1.0, 0.0, false), None);
        assert_eq!(share(&device(&[(Access::RandomRead, 1, 9.0), (Access::RandomWrite, 1, 0.0)]), 1.0, 0.0, false), None);
    }
}
