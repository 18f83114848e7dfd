//! From edges to CSR.
//!
//! 1. All edges are made, and the ends of each are counted: `ends[v]` is the length of the list of `v`.
//! 2. Sums make of the lengths where each list begins.
//! 3. All edges are made again, and written to where their lists have come to: `ends[v]` is where the list of `v` ends.
//! 4. Each list is sorted, and what is in it twice is dropped: now it no longer matters which thread wrote what when.
//! 5. The lists move together.
//!
//! So the most memory is that of the offsets and of the neighbours with those drawn twice: some percent more than
//! the graph. The writes of step 3 go all over the array: with little memory make the graph beforehand, in a file.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;

use super::kronecker::Kronecker;
use super::{Graph, index, vector};

/// Pieces of work for each thread: more than one, because some take longer.
const PIECES: usize = 16;

pub fn build(generator: &Kronecker, threads: usize) -> Result<Graph, String> {
    let ends = vector(generator.vertices(), || AtomicU64::new(0))?;
    each_entry(generator, threads, |vertex, _| {
        ends[vertex as usize].fetch_add(1, Relaxed);
    });
    let mut entries = 0;
    for end in &ends {
        entries += end.swap(entries, Relaxed);
    }
    let neighbours = vector(index(entries), || AtomicU32::new(0))?;
    each_entry(generator, threads, |vertex, neighbour| {
        let place = ends[vertex as usize].fetch_add(1, Relaxed);
        neighbours[index(place)].store(neighbour, Relaxed);
    });
    // These reuse the memory, with its room for one offset more.
    let mut ends: Vec<u64> = ends.into_iter().map(AtomicU64::into_inner).collect();
    let mut neighbours: Vec<u32> = neighbours.into_iter().map(AtomicU32::into_inner).collect();
    sort(&mut ends, &mut neighbours, threads);
    ends.insert(0, 0);
    Ok(Graph::new(generator.recipe(), ends, neighbours, threads))
}

/// Calls `each` with (vertex, neighbour) for both directions of each edge that is not a loop, by several threads at once.
fn each_entry(generator: &Kronecker, threads: usize, each: impl Fn(u32, u32) + Sync) {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut drawn, mut sorted) = (Vec::new(), Vec::new());
        loop {
            let block = next.fetch_add(1, Relaxed);
            if block >= generator.blocks() {
                return;
            }
            drawn.clear();
            generator.block(block, |u, v| {
                if u != v {
                    drawn.extend([(u, v), (v, u)]);
                }
            });
            bring_together(&drawn, &mut sorted, generator.recipe().scale);
            sorted.iter().for_each(|(vertex, neighbour)| each(*vertex, *neighbour));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
}

/// Sorts a block's entries by the upper bits of their vertices, into `sorted`: what lies near each other in the arrays is
/// then written at about the same time. Without this most writes would miss the caches and the TLB, and pages
/// that are not in memory would be fetched again and again.
fn bring_together(drawn: &[(u32, u32)], sorted: &mut Vec<(u32, u32)>, scale: u32) {
    const BITS: u32 = 10;
    let group = |vertex: u32| (vertex >> scale.saturating_sub(BITS)) as usize;
    let mut ends = [0; 1 << BITS];
    drawn.iter().for_each(|(vertex, _)| ends[group(*vertex)] += 1);
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    sorted.resize(drawn.len(), (0, 0));
    for entry in drawn {
        let place = &mut ends[group(entry.0)];
        sorted[*place] = *entry;
        *place += 1;
    }
}

/// Lists that lie one behind the other.
struct Piece<'a> {
    /// Where the first begins in the whole array.
    start: u64,
    /// Where each ends in the whole array; then, how many entries it has left.
    ends: &'a mut [u64],
    entries: &'a mut [u32],
}

impl Piece<'_> {
    /// Sorts the lists, drops what is twice, and moves what is left to the front of the piece.
    fn sort(self) {
        let (mut begin, mut kept) = (0, 0);
        for end in self.ends {
            let list = begin..index(*end - self.start);
            begin = list.end;
            let first = kept;
            self.entries[list.clone()].sort_unstable();
            for place in list {
                let entry = self.entries[place];
                if kept == first || self.entries[kept - 1] != entry {
                    self.entries[kept] = entry;
                    kept += 1;
                }
            }
            *end = (kept - first) as u64;
        }
    }
}

/// Steps 4 and 5.
fn sort(ends: &mut [u64], neighbours: &mut Vec<u32>, threads: usize) {
    // (where it begins, how many vertices) of each piece.
    let mut cuts = Vec::new();
    let pieces = Mutex::new(pieces(ends, neighbours, threads * PIECES, &mut cuts).into_iter());
    let next = || pieces.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(piece) = next() {
                    piece.sort();
                }
            });
        }
    });
    drop(pieces);
    let (mut kept, mut rest) = (0, ends);
    for (start, vertices) in cuts {
        let (piece, behind) = rest.split_at_mut(vertices);
        rest = behind;
        let from = kept;
        for end in piece {
            kept += *end;
            *end = kept;
        }
        neighbours.copy_within(index(start)..index(start + kept - from), index(from));
    }
    neighbours.truncate(index(kept));
    neighbours.shrink_to_fit();
}

/// Cuts both arrays into about `count` pieces with about the same number of entries.
fn pieces<'a>(ends: &'a mut [u64], entries: &'a mut [u32], count: usize, cuts: &mut Vec<(u64, usize)>) -> Vec<Piece<'a>> {
    let share = (entries.len() as u64).div_ceil(count.max(1) as u64).max(1);
    let (mut ends, mut entries, mut start) = (ends, entries, 0);
    let mut pieces = Vec::with_capacity(count + 1);
    while !ends.is_empty() {
        // At least one list, which may be longer than a share; then all those that end within it.
        let vertices = ends.partition_point(|end| *end <= start + share).max(1);
        let (these, behind) = ends.split_at_mut(vertices);
        let end = these.last().map_or(start, |end| *end);
        let (list, others) = entries.split_at_mut(index(end - start));
        cuts.push((start, vertices));
        pieces.push(Piece { start, ends: these, entries: list });
        (ends, entries, start) = (behind, others, end);
    }
    pieces
}
