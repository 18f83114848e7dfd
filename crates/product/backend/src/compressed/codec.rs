//! Compressing one page: LZ4 or Zstandard, by their authors' libraries, in memory that was allocated beforehand.
//!
//! Both libraries are called through the C interfaces that take the caller's working memory. The usual interfaces allocate with
//! the program's `malloc`, whose memory is what we manage. These call nothing but `memcpy` and its like.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_config::Compression;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::PageBuf;
use farshore_core::sync::spin_hint;

/// A page that does not become smaller than this is passed on uncompressed: decompressing it would cost more than it
/// saves.
pub const WORTH_IT: usize = PAGE_SIZE / 4 * 3;
/// The level that zstd's authors call fast, and that the kernel's zswap uses as well.
const ZSTD_LEVEL: c_int = 1;
/// Decompressions at a time with zstd, whose decoder needs 100 KiB of working memory each. Further ones wait.
const DECODERS: usize = 8;

// Declared here because lz4-sys lacks some of them.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        from: *const c_char,
        to: *mut c_char,
        len: c_int,
        room: c_int,
        speed: c_int,
    ) -> c_int;
}
// Links the library.
use lz4_sys::LZ4_decompress_safe;

/// Working memory, aligned as both libraries want it.
#[derive(Debug)]
struct Work(Box<[u64]>);

impl Work {
    fn new(bytes: usize) -> Work {
        Work(vec![0; bytes.div_ceil(8)].into_boxed_slice())
    }

    fn bytes(&self) -> usize {
        self.0.len() * 8
    }

    fn at(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// The compressor: one for each evictor.
#[derive(Debug)]
pub struct Encoder {
    kind: Compression,
    work: Work,
    turn: u32,
}

impl Encoder {
    /// Allocates the working memory.
    pub fn new(kind: Compression) -> Encoder {
        let bytes = match kind {
            Compression::Lz4 | Compression::Auto => {
                // SAFETY: only asks for a size.
                let bytes = unsafe { LZ4_sizeofState() };
                bytes as usize
            }
            Compression::Zstd => {
                // SAFETY: only asks for parameters.
                let parameters = unsafe { zstd_sys::ZSTD_getCParams(ZSTD_LEVEL, PAGE_SIZE as u64, 0) };
                // SAFETY: only asks for a size.
                unsafe { zstd_sys::ZSTD_estimateCCtxSize_usingCParams(parameters) }
            }
        };
        Encoder { kind, work: Work::new(bytes), turn: 0 }
    }

    /// Whether this is one of so many times.
    pub fn is_turn(&mut self, of: u32) -> bool {
        self.turn = (self.turn + 1) % of;
        self.turn == 0
    }

    /// Compresses a page. Returns the bytes written to `to`, or `None` when compressing is not worth it.
    pub fn encode(&mut self, page: &PageBuf, to: &mut [u8; WORTH_IT]) -> Option<usize> {
        let (from, out) = (page.0.as_ptr(), to.as_mut_ptr());
        let written = match self.kind {
            Compression::Lz4 | Compression::Auto => {
                let (len, room) = (PAGE_SIZE as c_int, WORTH_IT as c_int);
                // SAFETY: reads `len` bytes of the page, and writes at most `room` bytes to `to`; the state is of the size that
                // the library asked for. Returns 0 when there is too little room.
                let n = unsafe { LZ4_compress_fast_extState(self.work.at(), from.cast(), out.cast(), len, room, 1) };
                usize::try_from(n).ok()?
            }
            Compression::Zstd => {
                let (work, bytes) = (self.work.at(), self.work.bytes());
                // SAFETY: a context in our memory, which lives as long as it is used, here.
                let context = unsafe { zstd_sys::ZSTD_initStaticCCtx(work, bytes) };
                if context.is_null() {
                    return None;
                }
                // SAFETY: as for lz4. An error, such as too little room, is a number that is too large for a size.
                let n = unsafe { zstd_sys::ZSTD_compressCCtx(context, out.cast(), WORTH_IT, from.cast(), PAGE_SIZE, ZSTD_LEVEL) };
                // SAFETY: asks only.
                if unsafe { zstd_sys::ZSTD_isError(n) } != 0 { 0 } else { n }
            }
        };
        (written > 0).then_some(written)
    }
}

/// The decompressor: one for all threads.
#[derive(Debug)]
pub struct Decoder {
    kind: Compression,
    /// Working memory, and whether a thread uses it. None for lz4, which needs none.
    works: Box<[(AtomicBool, core::cell::UnsafeCell<Work>)]>,
}

// SAFETY: only the thread that has set a `Work`'s flag uses that `Work`.
unsafe impl Sync for Decoder {}

impl Decoder {
    /// Allocates the working memory.
    pub fn new(kind: Compression) -> Decoder {
        let (count, bytes) = match kind {
            Compression::Lz4 | Compression::Auto => (0, 0),
            // SAFETY: asks only.
            Compression::Zstd => (DECODERS, unsafe { zstd_sys::ZSTD_estimateDCtxSize() }),
        };
        Decoder { kind, works: (0..count).map(|_| (AtomicBool::new(false), Work::new(bytes).into())).collect() }
    }

    /// Decompresses a page from `from`. Returns whether that gave a whole page.
    pub fn decode(&self, from: &[u8], page: &mut PageBuf) -> bool {
        let (start, out) = (from.as_ptr(), page.0.as_mut_ptr());
        match self.kind {
            Compression::Lz4 | Compression::Auto => {
                // SAFETY: reads at most `from.len()` bytes and writes at most a page, whatever the bytes are.
                let n = unsafe { LZ4_decompress_safe(start.cast(), out.cast(), from.len() as c_int, PAGE_SIZE as c_int) };
                n == PAGE_SIZE as c_int
            }
            Compression::Zstd => self.with_work(|work| {
                let (at, bytes) = (work.at(), work.bytes());
                // SAFETY: a context in our memory, which lives as long as it is used, here.
                let context = unsafe { zstd_sys::ZSTD_initStaticDCtx(at, bytes) };
                if context.is_null() {
                    return false;
                }
                // SAFETY: as for lz4.
                let n = unsafe { zstd_sys::ZSTD_decompressDCtx(context, out.cast(), PAGE_SIZE, start.cast(), from.len()) };
                n == PAGE_SIZE
            }),
        }
    }

    /// Runs `f` with working memory that no other thread uses. Threads that have some do nothing but decompress, with signals
    /// blocked, so the wait is short.
    fn with_work<R>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        let (flag, work) = loop {
            let free =
                self.works.iter().find(|(taken, _)| !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire));
            match free {
                Some(work) => break work,
                None => spin_hint(),
            }
        };
        // SAFETY: we have set the flag, so the memory is ours until the store below.
        let result = f(unsafe { &mut *work.get() });
        flag.store(false, Ordering::Release);
        result
    }
}

/// The 64-bit word that the page repeats, if the page is one word repeated.
pub fn repeated(page: &PageBuf) -> Option<u64> {
    // Most pages differ at an end.
    let word = |i: usize| u64::from_ne_bytes(core::array::from_fn(|b| page.0[i * 8 + b]));
    let first = word(0);
    (word(PAGE_SIZE / 8 - 1) == first && (1..PAGE_SIZE / 8).all(|i| word(i) == first)).then_some(first)
}

/// Fills a page with one word.
pub fn repeat(word: u64, page: &mut PageBuf) {
    page.0.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word.to_ne_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A page of `pieces`, each some bytes again and again, so that it compresses more or less.
    fn page(pieces: &[(Vec<u8>, usize)]) -> PageBuf {
        let bytes = pieces.iter().flat_map(|(bytes, times)| bytes.iter().copied().cycle().take(bytes.len() * times));
        let mut page = PageBuf::ZERO;
        page.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        page
    }

    fn there_and_back(kind: Compression, page: &PageBuf) -> Option<usize> {
        let (mut encoder, decoder) = (Encoder::new(kind), Decoder::new(kind));
        let mut small = [0; WORTH_IT];
        let len = encoder.encode(page, &mut small)?;
        let mut back = PageBuf([7; PAGE_SIZE]);
        assert!(decoder.decode(&small[..len], &mut back));
        assert!(back.0 == page.0);
        // Any other bytes are refused or become some page, and do nothing else.
        let mut other = small;
        for i in 0..len {
            other[i] ^= 0x5a;
            let _ = decoder.decode(&other[..len], &mut back);
            let _ = decoder.decode(&small[..i], &mut back);
        }
        Some(len)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn pages_come_back(pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..300), 1usize..40), 1..12)) {
            for kind in [Compression::Lz4, Compression::Zstd] {
                let _ = there_and_back(kind, &page(&pieces));
            }
        }
    }

    #[test]
    fn noise_is_not_worth_it_and_text_is() {
        let mut noise = PageBuf::ZERO;
        farshore_random::Rng::new(1).fill(&mut noise.0);
        let text = page(&[(b"a line of a log, and another, and so on\n".to_vec(), 200)]);
        for kind in [Compression::Lz4, Compression::Zstd] {
            assert_eq!(there_and_back(kind, &noise), None, "{kind:?}");
            assert!(there_and_back(kind, &text).is_some_and(|len| len < 200), "{kind:?}");
        }
    }

    #[test]
    fn many_threads_decompress() {
        let page = page(&[(vec![1, 2, 3], 1000)]);
        let mut small = [0; WORTH_IT];
        let len = Encoder::new(Compression::Zstd).encode(&page, &mut small).unwrap();
        let decoder = Decoder::new(Compression::Zstd);
        std::thread::scope(|scope| {
            for _ in 0..2 * DECODERS {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut back = PageBuf::ZERO;
                        assert!(decoder.decode(&small[..len], &mut back) && back.0 == page.0);
                    }
                });
            }
        });
    }

    #[test]
    fn repeated_words_are_found() {
        assert_eq!(repeated(&PageBuf::ZERO), Some(0));
        let mut page = PageBuf::ZERO;
        repeat(0x0102_0304_0506_0708, &mut page);
        assert_eq!(repeated(&page), Some(0x0102_0304_0506_0708));
        for i in [0, 8, 2048, 4095] {
            let mut other = page.clone();
            other.0[i] ^= 1;
            assert_eq!(repeated(&other), None, "{i}");
        }
    }
}
