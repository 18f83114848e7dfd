//! Centroids and lists: how they are made, and searched.

use std::ops::Range;
use std::{fmt, io};

use farshore_load::vectors::{Nearest, Vectors, stride};
use farshore_uthread::{checkpoint, stopping};

use super::cells;
use super::rows::Rows;
use super::stats::{Count, Counters};

/// Vectors of the sample for each centroid.
const SAMPLE: usize = 32;
/// A search looks whether it has to give way, or to end, each time after so many vectors: some two pages of them.
const TURN: usize = 16;
/// Lists that there are at most: their centroids are compared with each query.
pub const LISTS_MAX: usize = 65_536;

/// The index.
#[derive(Debug)]
pub struct Index {
    dimensions: usize,
    stride: usize,
    lists: usize,
    vectors: usize,
    /// The centroids. The id of each says where its list begins; one more says where the last list ends. They may be far as well, so they have checks.
    centroids: Rows,
    rows: Rows,
    /// What happened.
    pub counters: Counters,
}

/// Why there is no index.
#[derive(Debug)]
pub enum Error {
    /// The vectors cannot be read.
    Read(io::Error),
    /// There is no memory for them.
    Memory(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read(error) => write!(f, "cannot read the vectors: {error}"),
            Error::Memory(error) => {
                write!(f, "the kernel refuses the addresses (see ulimit -v and vm.overcommit_memory): {error}")
            }
        }
    }
}

/// Why a search has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The vector at this place, or the centroid of the list of this number, is not what was stored there.
    Damaged(usize),
    /// The runtime ends.
    Stopped,
}

/// How many lists so many vectors have if nothing is said: as many as each has vectors.
pub fn usual_lists(items: u32) -> usize {
    (items.isqrt() as usize).clamp(1, LISTS_MAX)
}

impl Index {
    /// Of the first `items` vectors, in `lists` lists, of which there are not more than vectors. `threads` share the work.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(vectors: &Vectors, items: u32, lists: usize, threads: usize) -> Result<Index, Error> {
        let (count, stride) = (items as usize, stride(vectors.dimensions()));
        let centroids = {
            let many = count.min(lists * SAMPLE);
            let mut sample = vec![0.0; many * stride];
            for (number, to) in sample.chunks_exact_mut(stride).enumerate() {
                vectors.get((number * count / many) as u64, to).map_err(Error::Read)?;
            }
            cells::centroids(&sample, stride, lists, threads)
        };
        let cell = |part: Range<usize>| {
            let mut vector = vec![0.0; stride];
            let cell = |number: usize| {
                vectors.get(number as u64, &mut vector)?;
                Ok::<u32, io::Error>(cells::nearest(&centroids, stride, &vector) as u32)
            };
            part.map(cell).collect::<io::Result<Vec<u32>>>()
        };
        let cells: Vec<Vec<u32>> =
            cells::in_parts(count, threads, cell).into_iter().collect::<Result<_, _>>().map_err(Error::Read)?;
        let cells = cells.concat();
        let mut starts = vec![0; lists + 1];
        cells.iter().for_each(|cell| starts[*cell as usize + 1] += 1);
        (0..lists).for_each(|list| starts[list + 1] += starts[list]);
        let mut rows = Rows::new(count, stride).map_err(Error::Memory)?;
        // Each list grows at its end: so few pages are written at a time.
        let mut ends = starts.clone();
        let mut vector = vec![0.0; stride];
        for (id, cell) in (0..items).zip(cells) {
            vectors.get(id.into(), &mut vector).map_err(Error::Read)?;
            let end = &mut ends[cell as usize];
            rows.put(*end, id, &vector);
            *end += 1;
        }
        let mut checked = Rows::new(lists + 1, stride).map_err(Error::Memory)?;
        let last = vec![0.0; stride];
        let all = centroids.chunks_exact(stride).chain([&last[..]]);
        for ((list, centroid), start) in all.enumerate().zip(&starts) {
            // There are not more places than vectors, whose numbers are ids.
            checked.put(list, *start as u32, centroid);
        }
        Ok(Index {
            dimensions: vectors.dimensions(),
            stride,
            lists,
            vectors: count,
            centroids: checked,
            rows,
            counters: Counters::default(),
        })
    }

    /// Numbers of a vector.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Numbers of a query, with the zeros at its end.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// How many lists there are.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// How many vectors there are.
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// Of the vectors in the `probes` nearest lists the `most` nearest, with their distances.
    ///
    /// # Errors
    /// Why it has no result.
    pub fn search(&self, query: &[f32], most: usize, probes: usize) -> Result<Vec<(f32, u32)>, Failed> {
        let mut lists = Nearest::new(probes);
        for list in 0..self.lists {
            lists.offer(self.look(&self.centroids, list, query)?.0, list as u32);
        }
        let (mut nearest, mut read) = (Nearest::new(most), 0);
        for (_, list) in lists.sorted() {
            for place in self.list(list as usize, query)? {
                let (far, id) = self.look(&self.rows, place, query)?;
                nearest.offer(far, id);
                read += 1;
            }
        }
        self.counters.add(Count::Searches);
        self.counters.add_many(Count::Lists, probes as u64);
        self.counters.add_many(Count::Rows, read);
        Ok(nearest.sorted())
    }

    /// Looks at all vectors, and tells how many there are.
    ///
    /// # Errors
    /// If one is not what was stored, or the runtime ends.
    pub fn verify(&self) -> Result<usize, Failed> {
        let query = vec![0.0; self.stride];
        let mut vectors = 0;
        for list in 0..self.lists {
            for place in self.list(list, &query)? {
                self.look(&self.rows, place, &query)?;
                vectors += 1;
            }
        }
        Ok(vectors)
    }

    /// Where a list is.
    fn list(&self, list: usize, query: &[f32]) -> Result<Range<usize>, Failed> {
        let place = |list| Ok(self.look(&self.centroids, list, query)?.1 as usize);
        Ok(place(list)?..place(list + 1)?)
    }

    fn look(&self, rows: &Rows, place: usize, query: &[f32]) -> Result<(f32, u32), Failed> {
        if place.is_multiple_of(TURN) {
            checkpoint();
            if stopping() {
                return Err(Failed::Stopped);
            }
        }
        rows.look(place, query).ok_or_else(|| {
            self.counters.add(Count::Damaged);
            Failed::Damaged(place)
        })
    }

    /// The vectors, for tests that change them.
    #[cfg(test)]
    pub fn rows(&mut self) -> &mut Rows {
        &mut self.rows
    }

    /// The centroids, for tests that change them.
    #[cfg(test)]
    pub fn centroids(&mut self) -> &mut Rows {
        &mut self.centroids
    }
}
