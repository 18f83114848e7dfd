//! Vectors for a similarity search: what they are, how far one is from another, and which are the nearest.
//!
//! A server and the generator of its load have the same ones, by their numbers from 0 on, so answers can be checked. They are *made* ([`Made`]), or lie in
//! a file in one of the formats in which sets such as SIFT1M and BIGANN are given away:
//!
//! | name ends in | a vector is |
//! |---|---|
//! | `.fvecs` | its length, 4 bytes little-endian, and so many numbers of 4 bytes (IEEE 754, little-endian) |
//! | `.bvecs` | its length, the same, and so many bytes |
//!
//! All have the same length. A server has the first ones. Queries are those that follow: so they are of the same kind, and none of them is stored.
//!
//! **The distance is the same to the last bit everywhere**: [`distance`] adds up the squares in an order of its own, whatever the processor. Where all numbers
//! are whole and small, as in these sets, it is exact besides.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rand::Rng;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

/// Numbers that a vector has at most.
pub const DIMENSIONS_MAX: usize = 1024;
/// Sums that [`distance`] adds up beside each other.
pub const LANES: usize = 8;
/// Neighbours that are asked for where nothing else is said.
pub const NEAREST: usize = 10;

/// Numbers of a vector as it is compared: its own, and zeros up to a multiple of [`LANES`].
#[must_use]
pub fn stride(dimensions: usize) -> usize {
    dimensions.next_multiple_of(LANES)
}

/// The square of the Euclidean distance of two vectors with the same [`stride`].
#[must_use]
pub fn distance(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (one, other) in one.as_chunks::<LANES>().0.iter().zip(other.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let apart = one[lane] - other[lane];
            sums[lane] += apart * apart;
        }
    }
    total(&sums)
}

/// The sum of the lanes, from the first to the last.
#[must_use]
pub fn total(sums: &[f32; LANES]) -> f32 {
    sums.iter().fold(0.0, |sum, lane| sum + lane)
}

/// The nearest of those that were offered. Of two that are as far, the one with the lower number is nearer.
#[derive(Clone, Debug)]
pub struct Nearest {
    most: usize,
    /// Bits of distances, which are in order as these are, for none is below 0; and numbers. The farthest is on top.
    heap: BinaryHeap<(u32, u32)>,
}

impl Nearest {
    /// The `most` nearest, at least one.
    #[must_use]
    pub fn new(most: usize) -> Nearest {
        Nearest { most, heap: BinaryHeap::with_capacity(most + 1) }
    }

    /// One more.
    #[inline]
    pub fn offer(&mut self, distance: f32, number: u32) {
        let one = (distance.to_bits(), number);
        if self.heap.len() < self.most {
            self.heap.push(one);
        } else if self.heap.peek().is_some_and(|farthest| one < *farthest) {
            self.heap.pop();
            self.heap.push(one);
        }
    }

    /// Distances and numbers, the nearest first.
    #[must_use]
    pub fn sorted(self) -> Vec<(f32, u32)> {
        self.heap.into_sorted_vec().into_iter().map(|(bits, number)| (f32::from_bits(bits), number)).collect()
    }
}

/// Where vectors come from.
#[derive(Debug)]
pub enum Vectors {
    /// They are made: as many as are wanted.
    Made(Made),
    /// They lie in a file.
    Listed(Listed),
}

impl Vectors {
    /// Made, with so many numbers each.
    #[must_use]
    pub fn made(dimensions: usize) -> Vectors {
        Vectors::Made(Made::new(dimensions))
    }

    /// Those of a file.
    ///
    /// # Errors
    /// It cannot be read, or is not in one of the formats.
    pub fn of_file(path: &Path) -> io::Result<Vectors> {
        Listed::open(path).map(Vectors::Listed)
    }

    /// Numbers that each has.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        match self {
            Vectors::Made(made) => made.dimensions,
            Vectors::Listed(listed) => listed.dimensions,
        }
    }

    /// How many there are; `None`: without end.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        match self {
            Vectors::Made(_) => None,
            Vectors::Listed(listed) => Some(listed.count),
        }
    }

    /// Writes the vector with this number to `to`, which has its [`stride`].
    ///
    /// # Errors
    /// The file cannot be read, or has there what is no number.
    pub fn get(&self, number: u64, to: &mut [f32]) -> io::Result<()> {
        match self {
            Vectors::Made(made) => made.get(number, to),
            Vectors::Listed(listed) => listed.get(number, to)?,
        }
        Ok(())
    }
}

/// Where the numbers start: they are the same in each run.
const SALT: u64 = 0x6661_7273_686f_7265;
/// Clusters.
const CLUSTERS: u64 = 64;
/// Directions in which the vectors of a cluster differ.
const AXES: usize = 12;
/// What a vector's way along all axes is divided by: the power of two.
const SHRINK: u32 = 9;

/// Vectors that are made, alike to descriptors of images: whole numbers from 0 to 255, in clusters that are not equally dense everywhere, and in which
/// vectors differ in few directions. So a search in the nearest cells finds most neighbours, and not all.
///
/// A vector is its cluster's centre, a random way along each of the cluster's axes, and a little noise. All of it is done in whole numbers: so it is the
/// same on each machine.
#[derive(Debug)]
pub struct Made {
    dimensions: usize,
    /// Of each cluster one vector after the other.
    centres: Vec<i32>,
    /// Of each cluster, and each of its axes.
    axes: Vec<i32>,
}

/// A number from `low` to `high`.
fn between(random: &mut SplitMix64, low: i32, high: i32) -> i32 {
    let many = u64::from(high.abs_diff(low)) + 1;
    // The low 31 bits fit.
    low + i32::try_from((random.next_u64() >> 33) % many).unwrap_or(0)
}

impl Made {
    fn new(dimensions: usize) -> Made {
        let mut random = SplitMix64::seed_from_u64(SALT);
        let count = dimensions * usize::try_from(CLUSTERS).unwrap_or(0);
        let centres = (0..count).map(|_| between(&mut random, 64, 192)).collect();
        let axes = (0..count * AXES).map(|_| between(&mut random, -32, 32)).collect();
        Made { dimensions, centres, axes }
    }

    fn get(&self, number: u64, to: &mut [f32]) {
        // Seeds next to each other make streams that have nothing to do with each other only if they are scattered first.
        let seed = SplitMix64::seed_from_u64(number).next_u64();
        let mut random = SplitMix64::seed_from_u64(seed ^ SALT);
        let cluster = usize::try_from(random.next_u64() % CLUSTERS).unwrap_or(0);
        // The sum of several dice: most are near the middle.
        let ways: [i32; AXES] = std::array::from_fn(|_| (0..4).map(|_| between(&mut random, -128, 127)).sum());
        let (length, start) = (self.dimensions, cluster * self.dimensions);
        let axes = &self.axes[start * AXES..(start + length) * AXES];
        let mut noise = 0;
        for (place, (to, centre)) in to.iter_mut().zip(&self.centres[start..start + length]).enumerate() {
            if place % 16 == 0 {
                noise = random.next_u64();
            }
            let along: i32 = ways.iter().zip(axes.iter().skip(place).step_by(length)).map(|(way, axis)| way * axis).sum();
            let dice = i32::try_from(noise & 15).unwrap_or(0) - 8;
            noise >>= 4;
            let value = (centre + (along >> SHRINK) + dice).clamp(0, 255);
            *to = f32::from(u8::try_from(value).unwrap_or(u8::MAX));
        }
        to[length..].fill(0.0);
    }
}

/// Bytes of a vector's length in a file.
const HEAD: usize = 4;

/// Vectors in a file.
#[derive(Debug)]
pub struct Listed {
    file: File,
    dimensions: usize,
    count: u64,
    /// Bytes of a number: 1 or 4.
    width: usize,
}

fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

impl Listed {
    fn open(path: &Path) -> io::Result<Listed> {
        let width = match path.extension().and_then(|end| end.to_str()) {
            Some("fvecs") => 4,
            Some("bvecs") => 1,
            _ => return Err(wrong("its name must end in .fvecs or .bvecs")),
        };
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, 0)?;
        let dimensions = usize::try_from(i32::from_le_bytes(head)).ok().filter(|length| (1..=DIMENSIONS_MAX).contains(length));
        let dimensions = dimensions.ok_or_else(|| wrong(format!("its vectors must have 1 to {DIMENSIONS_MAX} numbers")))?;
        let each = (HEAD + dimensions * width) as u64;
        if !bytes.is_multiple_of(each) {
            return Err(wrong(format!("{bytes} bytes are no multiple of {each}, a vector's")));
        }
        Ok(Listed { file, dimensions, count: bytes / each, width })
    }

    fn get(&self, number: u64, to: &mut [f32]) -> io::Result<()> {
        let mut bytes = [0; HEAD + 4 * DIMENSIONS_MAX];
        let each = HEAD + self.dimensions * self.width;
        if number >= self.count {
            return Err(wrong(format!("there is no vector {number}: it has {}", self.count)));
        }
        self.file.read_exact_at(&mut bytes[..each], number * each as u64)?;
        let (head, numbers) = bytes[..each].split_at(HEAD);
        if head != i32::try_from(self.dimensions).unwrap_or(0).to_le_bytes() {
            return Err(wrong(format!("vector {number} has another length than the first one")));
        }
        let (own, rest) = to.split_at_mut(self.dimensions);
        if self.width == 1 {
            own.iter_mut().zip(numbers).for_each(|(to, byte)| *to = f32::from(*byte));
        } else {
            own.iter_mut().zip(numbers.as_chunks().0).for_each(|(to, bytes)| *to = f32::from_le_bytes(*bytes));
        }
        rest.fill(0.0);
        if own.iter().all(|number| number.is_finite()) {
            return Ok(());
        }
        Err(wrong(format!("vector {number} has what is no finite number")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn vector(vectors: &Vectors, number: u64) -> Vec<f32> {
        let mut to = vec![7.0; stride(vectors.dimensions())];
        vectors.get(number, &mut to).unwrap_or_else(|error| panic!("{error}"));
        to
    }

    #[test]
    fn made_vectors_are_bytes_in_clusters() {
        let vectors = Vectors::made(100);
        let all: Vec<Vec<f32>> = (0..2000).map(|number| vector(&vectors, number)).collect();
        let again = Vectors::made(100);
        assert!(all.iter().zip(0..).all(|(one, number)| *one == vector(&again, number)), "the same each time");
        for one in &all {
            assert!(one[..100].iter().all(|number| number.fract() == 0.0 && (0.0..=255.0).contains(number)));
            assert_eq!(one[100..], [0.0; 4], "up to a multiple of the lanes");
        }
        assert!(all.iter().enumerate().all(|(at, one)| !all[..at].contains(one)), "none is there twice");
        // Half a cluster is nearer to any of its vectors than other clusters are.
        let mut apart: Vec<f32> = all[1..].iter().map(|other| distance(&all[0], other)).collect();
        apart.sort_by(f32::total_cmp);
        assert!(apart[10] * 3.0 < apart[1000], "{} and {}", apart[10], apart[1000]);
    }

    #[test]
    fn distances() {
        let one: Vec<f32> = (0..16u8).map(f32::from).collect();
        let other: Vec<f32> = (0..16u8).map(|number| f32::from(number) + f32::from(number % 3)).collect();
        let wanted: f32 = (0..16u8).map(|number| f32::from(number % 3) * f32::from(number % 3)).sum();
        assert_eq!(distance(&one, &other).to_bits(), wanted.to_bits());
        assert_eq!(distance(&one, &one).to_bits(), 0);
    }

    #[test]
    fn the_nearest_come_in_order_and_ties_by_number() {
        let mut nearest = Nearest::new(4);
        for (distance, number) in [(5.0, 1), (0.5, 9), (5.0, 0), (2.0, 4), (9.0, 2), (2.0, 3), (0.0, 8)] {
            nearest.offer(distance, number);
        }
        let numbers: Vec<u32> = nearest.sorted().iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [8, 9, 3, 4]);
        assert_eq!(Nearest::new(3).sorted(), []);
    }

    #[test]
    fn files_of_both_formats() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let path = |name: &str| place.path().join(name);
        let head = 3_i32.to_le_bytes();
        let bytes: Vec<u8> = [[1, 2, 3], [255, 0, 9]].iter().flat_map(|own| [&head[..], own].concat()).collect();
        fs::write(path("x.bvecs"), &bytes)?;
        let floats = |own: [f32; 3]| [&head[..], own.map(f32::to_le_bytes).as_flattened()].concat();
        fs::write(path("x.fvecs"), [floats([0.5, -1.0, 1e9]), floats([1.0, 2.0, 3.0])].concat())?;
        let (small, large) = (Vectors::of_file(&path("x.bvecs"))?, Vectors::of_file(&path("x.fvecs"))?);
        assert_eq!((small.dimensions(), small.count(), large.count()), (3, Some(2), Some(2)));
        assert_eq!(vector(&small, 1), [255.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(vector(&large, 0), [0.5, -1.0, 1e9, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let mut to = [0.0; 8];
        assert!(small.get(2, &mut to).is_err_and(|error| error.to_string().contains("no vector 2")));
        // What is none of them.
        for (name, contents, says) in [
            ("x.txt", bytes.clone(), ".fvecs"),
            ("empty.bvecs", Vec::new(), ""),
            ("cut.bvecs", bytes[..13].to_vec(), "multiple of 7"),
            ("none.bvecs", 0_i32.to_le_bytes().to_vec(), "1 to 1024"),
            ("long.fvecs", i32::MAX.to_le_bytes().to_vec(), "1 to 1024"),
        ] {
            fs::write(path(name), contents)?;
            assert!(Vectors::of_file(&path(name)).is_err_and(|error| error.to_string().contains(says)), "{name}");
        }
        let mut other = bytes;
        other[7] = 2;
        fs::write(path("other.bvecs"), other)?;
        let said = Vectors::of_file(&path("other.bvecs"))?.get(1, &mut to);
        assert!(said.is_err_and(|error| error.to_string().contains("another length")));
        fs::write(path("nan.fvecs"), floats([1.0, f32::NAN, 3.0]))?;
        let said = Vectors::of_file(&path("nan.fvecs"))?.get(0, &mut to);
        assert!(said.is_err_and(|error| error.to_string().contains("finite")));
        Ok(())
    }
}
