//! Workloads: traces of pages, from fixed seeds. An access to the same page as the one before is left out, since no policy could lose it in between.

use farshore_random::{Rng, mix};
use farshore_replay::{Access, Trace};
use std::cell::RefCell;
use std::collections::VecDeque;

/// Writes a trace down.
struct Pen {
    accesses: Vec<Access>,
}

impl Pen {
    fn new() -> Pen {
        Pen { accesses: Vec::new() }
    }

    fn touch(&mut self, page: u32, site: u16) {
        if self.accesses.last().is_none_or(|last| last.page != page) {
            self.accesses.push(Access { page, site });
        }
    }

    fn end(self, name: &'static str, streamed: core::ops::Range<u32>) -> Trace {
        let pages = self.accesses.iter().map(|access| access.page + 1).max().unwrap_or(1);
        Trace { name, accesses: self.accesses, pages, streamed, ..Trace::default() }
    }
}

/// All of them. `scale` divides sizes and lengths: 1 for the table, more for tests.
pub fn all(scale: u32) -> Vec<Trace> {
    let graph = Graph::new(scale);
    vec![
        graph.breadth_first(),
        graph.pagerank(),
        graph.components(),
        hot_set(scale),
        moving_hot_set(scale),
        round(scale),
        phases(scale),
        zipf(scale),
        matrices(scale),
        tree(scale),
        sort(scale),
        grid(scale),
        map_reduce(scale),
    ]
}

/// A graph whose degrees follow a power law, as compressed sparse rows: vertices of 128 bytes, edges of 64.
struct Graph {
    /// Where each vertex's edges begin.
    first: Vec<u32>,
    to: Vec<u32>,
}

const VERTICES_A_PAGE: u32 = 32;
const EDGES_A_PAGE: u32 = 64;

impl Graph {
    fn new(scale: u32) -> Graph {
        let (vertices, edges) = (65_536 / scale, 524_288 / scale);
        let mut rng = Rng::new(1);
        // A recursive matrix (Chakrabarti et al., 2004), as GAP's Kronecker graphs: a quarter of the matrix at a time.
        let mut all: Vec<(u32, u32)> = (0..edges)
            .map(|_| {
                let (mut from, mut to, mut half) = (0, 0, vertices / 2);
                while half > 0 {
                    let (down, right) = match rng.below(100) {
                        0..57 => (0, 0),
                        57..76 => (0, 1),
                        76..95 => (1, 0),
                        _ => (1, 1),
                    };
                    (from, to) = (from + down * half, to + right * half);
                    half /= 2;
                }
                // Numbers say nothing of degrees.
                let spread = |vertex: u32| (mix(u64::from(vertex)) % u64::from(vertices)) as u32;
                (spread(from), spread(to))
            })
            .collect();
        all.sort_unstable();
        let first = (0..=vertices).map(|vertex| all.partition_point(|edge| edge.0 < vertex) as u32).collect();
        Graph { first, to: all.into_iter().map(|edge| edge.1).collect() }
    }

    fn vertices(&self) -> u32 {
        self.first.len() as u32 - 1
    }

    fn page_of(&self, vertex: u32) -> u32 {
        vertex / VERTICES_A_PAGE
    }

    fn page_of_edge(&self, edge: u32) -> u32 {
        self.vertices().div_ceil(VERTICES_A_PAGE) + edge / EDGES_A_PAGE
    }

    fn edges(&self) -> core::ops::Range<u32> {
        self.page_of_edge(0)..self.page_of_edge(self.to.len() as u32)
    }

    /// Goes over a vertex's edges, and calls `f` with each neighbour.
    fn visit(&self, pen: &mut Pen, vertex: u32, mut f: impl FnMut(&mut Pen, u32)) {
        pen.touch(self.page_of(vertex), 1);
        for edge in self.first[vertex as usize]..self.first[vertex as usize + 1] {
            pen.touch(self.page_of_edge(edge), 2);
            f(pen, self.to[edge as usize]);
        }
    }

    /// From three vertices, one after the other.
    fn breadth_first(&self) -> Trace {
        let mut pen = Pen::new();
        for source in [1, 2, 3] {
            let mut found = vec![false; self.vertices() as usize];
            let start = (0..self.vertices()).max_by_key(|&vertex| {
                (self.first[vertex as usize + 1] - self.first[vertex as usize]).wrapping_mul(u32::from(vertex % 3 == source % 3))
            });
            let mut queue = VecDeque::from_iter(start);
            while let Some(vertex) = queue.pop_front() {
                self.visit(&mut pen, vertex, |pen, to| {
                    pen.touch(self.page_of(to), 3);
                    if !std::mem::replace(&mut found[to as usize], true) {
                        queue.push_back(to);
                    }
                });
            }
        }
        pen.end("bfs", self.edges())
    }

    /// Three rounds.
    fn pagerank(&self) -> Trace {
        let mut pen = Pen::new();
        for _ in 0..3 {
            (0..self.vertices()).for_each(|vertex| self.visit(&mut pen, vertex, |pen, to| pen.touch(self.page_of(to), 3)));
        }
        pen.end("pr", self.edges())
    }

    /// By propagation of labels: rounds in which vertices whose label has changed tell their neighbours.
    fn components(&self) -> Trace {
        let mut pen = Pen::new();
        let mut label: Vec<u32> = (0..self.vertices()).collect();
        let mut changed = vec![true; self.vertices() as usize];
        while changed.iter().any(|&changed| changed) {
            let told = std::mem::replace(&mut changed, vec![false; self.vertices() as usize]);
            for vertex in (0..self.vertices()).filter(|&vertex| told[vertex as usize]) {
                self.visit(&mut pen, vertex, |pen, to| {
                    pen.touch(self.page_of(to), 3);
                    if label[vertex as usize] < label[to as usize] {
                        label[to as usize] = label[vertex as usize];
                        changed[to as usize] = true;
                    }
                });
            }
        }
        pen.end("cc", self.edges())
    }
}

/// Nine of ten accesses go to a tenth of the pages.
fn hot_set(scale: u32) -> Trace {
    let (mut pen, mut rng) = (Pen::new(), Rng::new(2));
    let pages = u64::from(16_384 / scale);
    for _ in 0..1_000_000 / scale {
        let hot = rng.chance(9_000);
        // Hot pages lie all over.
        let page = if hot { mix(rng.below(pages / 10)) % pages } else { rng.below(pages) };
        pen.touch(page as u32, u16::from(hot));
    }
    pen.end("hot", 0..0)
}

/// The same, with other hot pages after each tenth of the time.
fn moving_hot_set(scale: u32) -> Trace {
    let (mut pen, mut rng) = (Pen::new(), Rng::new(3));
    let pages = u64::from(16_384 / scale);
    for n in 0..u64::from(1_000_000 / scale) {
        let when = n / u64::from(100_000 / scale);
        let hot = rng.chance(9_000);
        let page = if hot { mix(rng.below(pages / 10) + (when << 32)) % pages } else { rng.below(pages) };
        pen.touch(page as u32, u16::from(hot));
    }
    pen.end("moving", 0..0)
}

/// Round and round.
fn round(scale: u32) -> Trace {
    let mut pen = Pen::new();
    (0..20).for_each(|_| (0..16_384 / scale).for_each(|page| pen.touch(page, 0)));
    pen.end("loop", 0..0)
}

/// In turn: rounds over a half, accesses at random in a quarter, one pass over all.
fn phases(scale: u32) -> Trace {
    let (mut pen, mut rng) = (Pen::new(), Rng::new(4));
    let pages = 16_384 / scale;
    for _ in 0..4 {
        (0..4).for_each(|_| (0..pages / 2).for_each(|page| pen.touch(page, 0)));
        (0..pages * 4).for_each(|_| pen.touch(pages / 2 + rng.below(u64::from(pages / 4)) as u32, 1));
        (0..pages).for_each(|page| pen.touch(page, 2));
    }
    pen.end("phases", 0..0)
}

/// Map over an input that was made before, whose pairs are appended to 64 buckets, and reduce over one bucket after the other (Metis' shape, as the workload `phase`
/// of `farshore-load`). The input is not wanted again.
fn map_reduce(scale: u32) -> Trace {
    const BUCKETS: u32 = 64;
    /// Parts of a page that are appended at a time.
    const PARTS: u32 = 16;
    let (mut pen, mut rng) = (Pen::new(), Rng::new(9));
    let (input, output) = (8192 / scale, 8192 / scale);
    // Some buckets get more than others, up to twice their share.
    let most = output / BUCKETS * 2 * PARTS;
    let page = |bucket: u32, part: u32| input + bucket * (most / PARTS) + part / PARTS;
    (0..input).for_each(|n| pen.touch(n, 0));
    let mut parts = [0; BUCKETS as usize];
    for n in 0..input {
        for _ in 0..PARTS {
            pen.touch(n, 1);
            let bucket = rng.below(u64::from(BUCKETS)) as u32;
            let part = &mut parts[bucket as usize];
            pen.touch(page(bucket, (*part).min(most - 1)), 2);
            *part += 1;
        }
    }
    for (bucket, &part) in (0..).zip(&parts) {
        (0..part.min(most).div_ceil(PARTS)).for_each(|n| pen.touch(page(bucket, n * PARTS), 3));
    }
    pen.end("map-reduce", 0..0)
}

/// A store of keys and values: the n-th most popular page is asked for in proportion to 1 / n.
fn zipf(scale: u32) -> Trace {
    let (mut pen, mut rng) = (Pen::new(), Rng::new(5));
    let pages = u64::from(16_384 / scale);
    let mut sums: Vec<u64> = Vec::new();
    for n in 1..=pages {
        sums.push(sums.last().unwrap_or(&0) + (1 << 40) / n);
    }
    let mut places: Vec<u32> = (0..pages as u32).collect();
    rng.shuffle(&mut places);
    let most = sums[sums.len() - 1];
    for _ in 0..1_000_000 / scale {
        let drawn = rng.below(most);
        pen.touch(places[sums.partition_point(|&sum| sum <= drawn)], 0);
    }
    pen.end("zipf", 0..0)
}

/// C += A × B, each of 1,448 rows of 4 pages, by blocks of 181 rows and half a page.
fn matrices(scale: u32) -> Trace {
    let mut pen = Pen::new();
    let rows = 1_448 / scale;
    let (blocks, block) = (8, rows / 8);
    let page = |matrix: u32, row: u32, column: u32| (matrix * rows + row) * 4 + column / 2;
    for (row, column, inner) in (0..blocks * blocks * blocks).map(|n| (n / 64, n / 8 % 8, n % 8)) {
        for n in 0..block {
            pen.touch(page(0, row * block + n, column), 0);
            pen.touch(page(1, row * block + n, inner), 1);
            // The block of B is gone over for each row; a sixteenth of the times is enough here, since it stays in any case.
            if n % 16 == 0 {
                (0..block).for_each(|line| pen.touch(page(2, inner * block + line, column), 2));
            }
        }
    }
    pen.end("matmul", 0..0)
}

/// C += A × B twice, of matrices with 20,480 rows and columns of doubles in pages of 2 MiB, in the order in which OpenBLAS's `dgemm` goes over them
/// (Flexible Swapping §6.5 limits it to 80 % of its memory): a part of the columns of B and C at a time, of the sum's terms some after others, and rows of A
/// and C by blocks.
pub fn dgemm(scale: u32) -> Trace {
    /// Terms of a sum at a time, columns of B and C, and blocks of rows (40 in truth; each goes over the same pages, so fewer do).
    const TERMS: u32 = 384;
    const PANEL: u32 = 13_824;
    const BLOCKS: u32 = 8;
    /// Bytes of a page.
    const PAGE: u64 = 2 << 20;
    let order = 20_480;
    let matrix = (u64::from(order) * u64::from(order) * 8).div_ceil(PAGE) as u32 / scale;
    // Matrices lie column after column.
    let columns = |of: u32, from: u32, to: u32| {
        let page = |column: u32| of * matrix + (u64::from(column) * u64::from(order) * 8 / PAGE) as u32 / scale;
        page(from)..page(to - 1) + 1
    };
    let mut pen = Pen::new();
    for _ in 0..2 {
        for from in (0..order).step_by(PANEL as usize) {
            let to = (from + PANEL).min(order);
            for term in (0..order).step_by(TERMS as usize) {
                for block in 0..BLOCKS {
                    // Packs some columns of A; rows of B, which lie in all of its columns, once.
                    columns(0, term, (term + TERMS).min(order)).for_each(|page| pen.touch(page, 0));
                    for (b, c) in columns(1, from, to).zip(columns(2, from, to)) {
                        if block == 0 {
                            pen.touch(b, 1);
                        }
                        pen.touch(c, 2);
                    }
                }
            }
        }
    }
    pen.end("dgemm", 0..0)
}

/// Lookups in a B-tree of three levels with 128 entries a page, half of them at random and half of keys that are popular.
fn tree(scale: u32) -> Trace {
    let (mut pen, mut rng) = (Pen::new(), Rng::new(6));
    let leaves = u64::from(16_384 / scale);
    let inner = leaves.div_ceil(128);
    for _ in 0..400_000 / scale {
        let any = rng.below(leaves);
        let leaf = if rng.chance(5_000) { any } else { mix(any * rng.below(leaves) / leaves / 8) % leaves };
        pen.touch(0, 0);
        pen.touch(1 + (leaf / 128) as u32, 1);
        pen.touch((1 + inner + leaf) as u32, 2);
    }
    pen.end("b-tree", 0..0)
}

/// Look-ups of cross sections as XSBench makes them, laid out as the workload `grid` of `farshore-load`: a bisection in the energies of 32 nuclides, a line of the
/// index, and a point of each of eight nuclides. A page of points is used some twenty times as often as one of the index.
fn grid(scale: u32) -> Trace {
    const NUCLIDES: u64 = 32;
    let (mut pen, mut rng) = (Pen::new(), Rng::new(9));
    // Words: a point has 6, an energy 1, a line of the index 16.
    let intervals = u64::from(16_384 / scale) * 512 / (NUCLIDES * 23);
    let (energies, index) = (NUCLIDES * intervals * 6, NUCLIDES * intervals * 7);
    let page = |word: u64| (word / 512) as u32;
    for _ in 0..60_000 / scale {
        let energy = rng.below(intervals * NUCLIDES);
        let (mut low, mut high) = (0, intervals * NUCLIDES);
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            pen.touch(page(energies + middle), 0);
            if middle <= energy { low = middle } else { high = middle }
        }
        let material = rng.below(12);
        for part in 0..8 {
            let nuclide = (material * 5 + part * 3) % NUCLIDES;
            pen.touch(page(index + low * 16 + nuclide / 2), 1);
            pen.touch(page((nuclide * intervals + low / NUCLIDES) * 6), 2);
        }
    }
    pen.end("grid", 0..0)
}

/// A record of 64 bytes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Record(u64);

/// What a real program does: the standard library's sort of 262,144 records. Each comparison tells which two it reads; where it moves records is not
/// seen.
fn sort(scale: u32) -> Trace {
    let mut rng = Rng::new(8);
    let mut records: Vec<Record> = (0..262_144 / scale).map(|_| Record(rng.bits())).collect();
    let pen = RefCell::new(Pen::new());
    let range = records.as_ptr_range();
    let base = range.start.addr();
    let bytes = range.end.addr() - base;
    records.sort_unstable_by(|one, other| {
        for (site, record) in [one, other].into_iter().enumerate() {
            // One that is being moved may lie on the stack meanwhile.
            let offset = core::ptr::from_ref(record).addr().wrapping_sub(base);
            if offset < bytes {
                pen.borrow_mut().touch((offset / 4096) as u32, site as u16);
            }
        }
        one.0.cmp(&other.0)
    });
    pen.into_inner().end("sort", 0..0)
}
