//! `images`: pictures of three bytes a pixel are made grey, or flipped from left to right, as a program does that has them all in memory.
//!
//! Each thread has pictures of its own. A picture stays, and so does what is made of it: a grey one of a byte a pixel, by the weights that Pillow takes, or
//! a flipped one of its size. Each pass makes all of them again, in order. One operation is one picture.
//!
//! Verified: each picture, and each byte of what was made of it, by another way than it was made.

use std::sync::{Mutex, PoisonError};

use farshore_load::outcome::Outcome;
use farshore_load::workload::{self, Change};

use crate::memory::{Contents, shard};
use crate::record::Recorder;
use crate::report::Report;
use crate::team;
use crate::verify::{Wrongs, checksum};

/// Pixels of a row.
const WIDTH: usize = 640;
/// Rows.
const HEIGHT: usize = 480;
/// Bytes of a pixel.
const PIXEL: usize = 3;
/// Bytes of a picture.
const BYTES: usize = WIDTH * HEIGHT * PIXEL;
/// Random words of a picture.
const WORDS: usize = BYTES / size_of::<u64>();

/// Runs it.
///
/// # Errors
/// If there is not one picture for each thread, or threads are not to be had.
pub fn run(args: &workload::Images, report: &mut Report) -> Result<Outcome, String> {
    let (common, change) = (&args.common, args.change);
    let each = BYTES + made_bytes(change);
    let count = usize::try_from(common.size.0 / each as u64).map_err(|_| format!("--size {} is too much", common.size))?;
    let threads = common.threads as usize;
    if count < threads {
        return Err(format!(
            "--size {} is {count} pictures of {each} bytes, less than one for each of {threads} threads: give more --size or fewer --threads",
            common.size
        ));
    }
    let contents = Contents::new(common.seed);
    let fill = |thread| shard(count, threads, thread).map(|number| Picture::new(contents, number)).collect();
    let albums: Vec<Vec<Picture>> = team::phase(report, "fill", common.threads, fill)?;
    // Each is one thread's alone; the lock is taken once a phase.
    let albums: Vec<Mutex<Vec<Picture>>> = albums.into_iter().map(Mutex::new).collect();
    let of = |thread: usize| albums[thread].lock().unwrap_or_else(PoisonError::into_inner);
    let mut fixed = team::Fixed::new(common.threads);
    let work = |thread, recorder: &mut Recorder| {
        let mut album = of(thread);
        for _ in 0..args.passes {
            for picture in album.iter_mut() {
                picture.change(change);
                recorder.done();
            }
        }
    };
    fixed.part(report, |_, _| {}, work)?;
    let total = fixed.end(report);
    let check = |thread| {
        let (mut wrongs, mut sum) = (Wrongs::default(), 0_u64);
        for picture in of(thread).iter() {
            sum = sum.wrapping_add(picture.check(contents, change, &mut wrongs));
        }
        (wrongs, sum)
    };
    let found = team::phase(report, "verify", common.threads, check)?;
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    let outcome = Outcome {
        unit: "picture".into(),
        bytes_per_operation: each as u64,
        data_bytes: (count * each) as u64,
        verified: format!("each byte of {count} pictures, and of what was made of them"),
        checksum: format!("{sum:016x}"),
        wrong: Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs)).lines(),
        ..Default::default()
    };
    Ok(super::measured(outcome, total))
}

/// Bytes of what is made of a picture.
fn made_bytes(change: Change) -> usize {
    match change {
        Change::Grey => WIDTH * HEIGHT,
        Change::Flip => BYTES,
    }
}

/// A picture, and what was made of it.
#[derive(Debug)]
struct Picture {
    number: usize,
    pixels: Vec<u8>,
    made: Vec<u8>,
}

impl Picture {
    fn new(contents: Contents, number: usize) -> Self {
        let words = (number * WORDS..).take(WORDS);
        Picture { number, pixels: words.flat_map(|index| contents.word(index).to_le_bytes()).collect(), made: Vec::new() }
    }

    fn change(&mut self, change: Change) {
        let Picture { pixels, made, .. } = self;
        made.clear();
        made.reserve_exact(made_bytes(change));
        let (pixels, _) = pixels.as_chunks::<PIXEL>();
        match change {
            Change::Grey => made.extend(pixels.iter().map(grey)),
            Change::Flip => pixels.chunks_exact(WIDTH).for_each(|row| made.extend(row.iter().rev().flatten())),
        }
    }

    /// Checks it against its contents, which are computed anew; a number over all that was made.
    fn check(&self, contents: Contents, change: Change, wrongs: &mut Wrongs) -> u64 {
        let byte = |at: usize| contents.word(self.number * WORDS + at / size_of::<u64>()).to_le_bytes()[at % size_of::<u64>()];
        let mut sum = 0_u64;
        for (at, found) in self.pixels.iter().enumerate() {
            self.expect("byte", at, *found, byte(at), wrongs);
        }
        if self.made.len() != made_bytes(change) {
            wrongs.add(|| format!("what was made of picture {} has {} bytes", self.number, self.made.len()));
        }
        for (at, found) in self.made.iter().enumerate() {
            let expected = match change {
                Change::Grey => grey(&[byte(at * PIXEL), byte(at * PIXEL + 1), byte(at * PIXEL + 2)]),
                Change::Flip => {
                    let (row, within) = (at / (WIDTH * PIXEL), at % (WIDTH * PIXEL));
                    let (column, colour) = (within / PIXEL, within % PIXEL);
                    byte((row * WIDTH + WIDTH - 1 - column) * PIXEL + colour)
                }
            };
            self.expect("made byte", at, *found, expected, wrongs);
            sum = sum.wrapping_add(checksum(self.number * BYTES + at, u64::from(*found)));
        }
        sum
    }

    fn expect(&self, what: &str, at: usize, found: u8, expected: u8, wrongs: &mut Wrongs) {
        if found != expected {
            wrongs.add(|| format!("{what} {at} of picture {} is {found:#x}, not {expected:#x}", self.number));
        }
    }
}

/// How bright a pixel is: 0.299 of its red, 0.587 of its green, 0.114 of its blue, rounded.
fn grey(pixel: &[u8; PIXEL]) -> u8 {
    let [red, green, blue] = pixel.map(u32::from);
    // The weights are 65536 together: at most 255.
    u8::try_from((red * 19_595 + green * 38_470 + blue * 7471 + 0x8000) >> 16).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_is_between_black_and_white_and_green_is_brightest() {
        assert_eq!(
            [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]].map(|pixel| grey(&pixel)),
            [0, 255, 76, 150, 29]
        );
    }

    #[test]
    fn what_is_flipped_twice_is_as_it_was() {
        let contents = Contents::new(5);
        let mut picture = Picture::new(contents, 3);
        picture.change(Change::Flip);
        assert_ne!(picture.pixels, picture.made);
        assert_eq!(picture.made[..PIXEL], picture.pixels[(WIDTH - 1) * PIXEL..WIDTH * PIXEL]);
        let mut again = Picture { number: 3, pixels: picture.made.clone(), made: Vec::new() };
        again.change(Change::Flip);
        assert_eq!(again.made, picture.pixels);
    }

    #[test]
    fn a_byte_that_changes_is_found_in_the_picture_and_in_what_was_made() {
        let contents = Contents::new(6);
        for change in [Change::Grey, Change::Flip] {
            let mut picture = Picture::new(contents, 2);
            picture.change(change);
            picture.change(change);
            let mut wrongs = Wrongs::default();
            let good = picture.check(contents, change, &mut wrongs);
            assert_eq!(wrongs.lines(), Vec::<String>::new());
            for made in [false, true] {
                let bytes = if made { &mut picture.made } else { &mut picture.pixels };
                bytes[5000] ^= 1;
                let mut wrongs = Wrongs::default();
                let sum = picture.check(contents, change, &mut wrongs);
                assert_eq!((wrongs.lines().len(), sum != good), (1, made), "{change:?}");
                let bytes = if made { &mut picture.made } else { &mut picture.pixels };
                bytes[5000] ^= 1;
            }
            picture.made.pop();
            let mut wrongs = Wrongs::default();
            picture.check(contents, change, &mut wrongs);
            assert_eq!(wrongs.lines().len(), 1);
        }
    }
}
