//! A graph in a file: a header of 64 bytes, the offsets, the neighbours; all numbers little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | `CSRGRAPH` |
//! | 8 to 15 | version of the format and scale, 4 bytes each |
//! | 16 to 23 | degree, 4 bytes; 0, 4 bytes |
//! | 24 to 55 | seed, number of vertices, entries of the array of neighbours, hash of both arrays: 8 bytes each |
//! | 56 to 63 | hash of the bytes before |
//!
//! A file gets its name when it is whole. It is read into memory of the program, not mapped: the graph is to be data like
//! any other.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Graph, Recipe};
use crate::work::scatter::mix2;

const MAGIC: [u8; 8] = *b"CSRGRAPH";
const VERSION: u32 = 1;
const HEADER: usize = 64;
/// Bytes of one read or write.
const BUFFER: usize = 4 << 20;

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    recipe: Recipe,
    vertices: u64,
    entries: u64,
    hash: u64,
}

impl Header {
    fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        let halves = [VERSION, self.recipe.scale, self.recipe.degree, 0];
        for (to, half) in bytes[8..24].chunks_exact_mut(4).zip(halves) {
            to.copy_from_slice(&half.to_le_bytes());
        }
        let words = [self.recipe.seed, self.vertices, self.entries, self.hash];
        for (to, word) in bytes[24..56].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let check = check(&bytes);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HEADER]) -> Result<Self, String> {
        if bytes[..8] != MAGIC {
            return Err("it is not a graph".into());
        }
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        if half(8) != VERSION {
            return Err(format!("it is of version {}, and {VERSION} is known here", half(8)));
        }
        if word(56) != check(bytes) {
            return Err("its header is damaged".into());
        }
        let recipe = Recipe { scale: half(12), degree: half(16), seed: word(24) };
        Ok(Header { recipe, vertices: word(32), entries: word(40), hash: word(48) })
    }

    /// The length of the whole file; `None` if there is no such number.
    fn length(&self) -> Option<u64> {
        let offsets = self.vertices.checked_add(1)?.checked_mul(8)?;
        self.entries.checked_mul(4)?.checked_add(offsets)?.checked_add(HEADER as u64)
    }
}

fn check(header: &[u8; HEADER]) -> u64 {
    let words = header[..56].chunks_exact(8).map(|bytes| u64::from_le_bytes(std::array::from_fn(|n| bytes[n])));
    words.fold(0, mix2)
}

/// Reads the graph of `recipe`; `None` if there is no such file.
pub fn read(path: &Path, recipe: Recipe, threads: usize) -> Result<Option<Graph>, String> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot open the graph {}: {error}", path.display())),
    };
    let read = read_open(&mut file, recipe, threads);
    read.map(Some).map_err(|why| format!("cannot use {} as graph: {why}; remove it, or name another file", path.display()))
}

fn read_open(file: &mut File, recipe: Recipe, threads: usize) -> Result<Graph, String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut bytes = [0; HEADER];
    file.read_exact(&mut bytes).map_err(|_| format!("its {length} bytes are less than a header"))?;
    let header = Header::read(&bytes)?;
    if header.recipe != recipe {
        return Err(format!("it has {}, and {} is wanted", told(header.recipe), told(recipe)));
    }
    if header.vertices != 1 << recipe.scale || header.length() != Some(length) {
        return Err(format!("it has {length} bytes, and {} vertices with {} neighbours do not", header.vertices, header.entries));
    }
    let cannot = |error: io::Error| format!("reading it: {error}");
    let offsets = numbers(file, header.vertices + 1, u64::from_le_bytes).map_err(cannot)?;
    let neighbours = numbers(file, header.entries, u32::from_le_bytes).map_err(cannot)?;
    // So that nobody looks outside of the arrays, even before the hash is known to be right.
    let ascending = offsets.first() == Some(&0) && offsets.is_sorted() && offsets.last() == Some(&header.entries);
    if !ascending || neighbours.iter().any(|vertex| u64::from(*vertex) >= header.vertices) {
        return Err("its data are damaged: an offset or a neighbour is out of range".into());
    }
    let graph = Graph::new(recipe, offsets, neighbours, threads);
    if graph.hash != header.hash {
        return Err(format!("its data are damaged: their hash is {:016x}, not {:016x}", graph.hash, header.hash));
    }
    Ok(graph)
}

fn told(recipe: Recipe) -> String {
    format!("scale {}, degree {}, seed {}", recipe.scale, recipe.degree, recipe.seed)
}

/// Reads `count` numbers of `N` bytes.
fn numbers<T, const N: usize>(file: &mut File, count: u64, number: impl Fn([u8; N]) -> T) -> io::Result<Vec<T>> {
    let count = usize::try_from(count).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(count)?;
    let mut buffer = vec![0; BUFFER.min(count * N)];
    while numbers.len() < count {
        let wanted = BUFFER.min((count - numbers.len()) * N);
        file.read_exact(&mut buffer[..wanted])?;
        numbers.extend(buffer[..wanted].chunks_exact(N).map(|bytes| number(std::array::from_fn(|n| bytes[n]))));
    }
    Ok(numbers)
}

/// Whether a file can be made in the directory of `path`: to be known before the graph is made.
pub fn check_directory(path: &Path) -> Result<(), String> {
    temporary(path).map(drop)
}

/// Writes `graph` to `path`.
pub fn write(path: &Path, graph: &Graph) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot write the graph {}: {error}", path.display());
    let mut file = temporary(path)?;
    write_open(file.as_file_mut(), graph).map_err(cannot)?;
    file.persist(path).map_err(|error| cannot(error.error))?;
    Ok(())
}

/// A file beside `path`, which is removed if nothing becomes of it.
fn temporary(path: &Path) -> Result<tempfile::NamedTempFile, String> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Others may use the graph too.
    builder.prefix(".graph-").permissions(fs::Permissions::from_mode(0o644));
    builder.tempfile_in(directory).map_err(|error| format!("cannot make the graph {}: {error}", path.display()))
}

fn write_open(file: &mut File, graph: &Graph) -> io::Result<()> {
    let (vertices, entries) = (graph.vertices() as u64, graph.entries() as u64);
    let header = Header { recipe: graph.recipe, vertices, entries, hash: graph.hash };
    let mut writer = BufWriter::with_capacity(BUFFER, file);
    writer.write_all(&header.bytes())?;
    graph.offsets.iter().try_for_each(|offset| writer.write_all(&offset.to_le_bytes()))?;
    graph.neighbours.iter().try_for_each(|vertex| writer.write_all(&vertex.to_le_bytes()))?;
    writer.flush()?;
    writer.get_ref().sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { scale: 9, degree: 8, seed: 3 };

    #[test]
    fn a_graph_comes_back() -> Result<(), String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = directory.path().join("g");
        let made = Graph::from_file(&path, RECIPE, 2)?;
        assert_eq!(made, Graph::make(RECIPE, 1)?);
        assert_eq!(read(&path, RECIPE, 2)?.as_ref(), Some(&made));
        assert_eq!(Graph::from_file(&path, RECIPE, 1)?, made);
        let names = fs::read_dir(directory.path()).map_err(|error| error.to_string())?.count();
        assert_eq!(names, 1, "no temporary file is left");
        Ok(())
    }

    /// What is said of a file with these bytes.
    fn refused(bytes: &[u8], recipe: Recipe) -> String {
        let file = tempfile::NamedTempFile::new().unwrap_or_else(|error| panic!("{error}"));
        fs::write(file.path(), bytes).unwrap_or_else(|error| panic!("{error}"));
        read(file.path(), recipe, 1).expect_err("it is refused")
    }

    #[test]
    fn a_file_that_is_not_the_graph_is_refused_with_one_line() -> Result<(), String> {
        let graph = Graph::make(RECIPE, 1)?;
        let mut bytes = Vec::new();
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        write(file.path(), &graph)?;
        File::open(file.path()).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| error.to_string())?;
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] ^= value;
            bytes
        };
        let longer = [&bytes[..], &[0]].concat();
        let cases: Vec<(Vec<u8>, Recipe, &str)> = vec![
            (Vec::new(), RECIPE, "less than a header"),
            (bytes[..40].to_vec(), RECIPE, "less than a header"),
            (bytes[..bytes.len() - 1].to_vec(), RECIPE, "do not"),
            (bytes[..HEADER].to_vec(), RECIPE, "do not"),
            (longer, RECIPE, "do not"),
            (vec![b'x'; 4096], RECIPE, "not a graph"),
            (changed(8, 3), RECIPE, "version"),
            (changed(13, 1), RECIPE, "header is damaged"),
            (changed(41, 1), RECIPE, "header is damaged"),
            (changed(HEADER, 1), RECIPE, "out of range"),
            (changed(HEADER + 7, 0x80), RECIPE, "out of range"),
            (changed(bytes.len() - 1, 0xff), RECIPE, "out of range"),
            (changed(bytes.len() - 4, 1), RECIPE, "hash"),
            (bytes.clone(), Recipe { seed: 4, ..RECIPE }, "seed 4 is wanted"),
            (bytes.clone(), Recipe { scale: 10, ..RECIPE }, "scale 10"),
            (bytes.clone(), Recipe { degree: 9, ..RECIPE }, "degree 9"),
        ];
        for (bytes, recipe, wanted) in cases {
            let said = refused(&bytes, recipe);
            assert!(said.contains(wanted) && !said.contains('\n'), "{wanted}: {said}");
        }
        Ok(())
    }

    #[test]
    fn what_cannot_be_written_is_said_before_the_graph_is_made() {
        let said = Graph::from_file(Path::new("/nowhere/at/all/g"), RECIPE, 1).expect_err("no such directory");
        assert!(said.contains("/nowhere/at/all/g"), "{said}");
        let said = Graph::from_file(Path::new("/"), RECIPE, 1).expect_err("a directory");
        assert!(!said.contains('\n'), "{said}");
    }
}
