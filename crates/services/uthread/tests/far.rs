//! Unithreads on far memory. Run as it is, all memory is here; the tests of real programs run it with the library loaded and a fraction of the memory
//! that it uses, on several kinds of swap space.
#![cfg(not(loom))]

mod common;

use common::watchdog;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use farshore_uthread::{Config, Request, Runtime, hold, io, sleep, yield_now};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

#[global_allocator]
static HEAP: farshore_uthread::Allocator = farshore_uthread::Allocator;

const WORDS: usize = 512;
/// Four or five times what the tests are given.
const PAGES: usize = 12_000;

fn expected(word: usize) -> u64 {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An array that does not fit.
fn array(pages: usize) -> Arc<[AtomicU64]> {
    (0..pages * WORDS).map(|word| AtomicU64::new(expected(word))).collect()
}

fn start(workers: usize, unithreads: usize) -> Runtime {
    watchdog();
    Runtime::start(Config { workers, unithreads, stack_bytes: 32 << 10, ..Config::default() }).unwrap()
}

/// The end of a runtime. Where it is said that memory is far, unithreads must have waited for it as they can.
fn end(runtime: Runtime) {
    let least = std::env::var("FARSHORE_TEST_WAITS").map_or(0, |text| text.parse().unwrap());
    let waited = runtime.handle().pages_waited_for();
    assert!(waited >= least, "unithreads have left their workers at {waited} accesses");
    runtime.shutdown().unwrap();
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize
    }
}

#[test]
fn updates_are_made_once() {
    let (memory, runtime) = (array(PAGES), start(2, 256));
    let work = |seed: u64| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(seed);
            for _ in 0..200 {
                memory[dice.next() % (PAGES * WORDS)].fetch_add(1 << 48, SeqCst);
            }
        }
    };
    let tasks: Vec<_> = (0..256).map(|seed| runtime.spawn(work(seed)).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    let sum = |(word, at): (usize, &AtomicU64)| at.load(SeqCst).wrapping_sub(expected(word)) >> 48;
    assert_eq!(memory.iter().enumerate().map(sum).sum::<u64>(), 256 * 200);
    end(runtime);
}

/// Each has a page of its own, all touch theirs at once, and none has ended before all have begun.
#[test]
fn ten_thousand_wait_at_once() {
    const COUNT: usize = 10_000;
    let (memory, runtime) = (array(PAGES), start(1, COUNT));
    let (here, go) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let work = |number: usize| {
        let (memory, here, go) = (memory.clone(), here.clone(), go.clone());
        move || {
            here.fetch_add(1, SeqCst);
            while !go.load(SeqCst) {
                yield_now();
            }
            let word = number * WORDS + number % WORDS;
            assert_eq!(memory[word].load(SeqCst), expected(word), "word {word}");
        }
    };
    let tasks: Vec<_> = (0..COUNT).map(|number| runtime.spawn(work(number)).unwrap()).collect();
    while here.load(SeqCst) as usize != COUNT {
        std::thread::sleep(Duration::from_millis(1));
    }
    go.store(true, SeqCst);
    tasks.into_iter().for_each(|task| task.join().unwrap());
    end(runtime);
}

/// On one page, of one worker and of two.
#[test]
fn many_wait_for_one_page() {
    let (memory, runtime) = (array(PAGES), start(2, 64));
    for round in 0..40 {
        let page = (round * 293) % PAGES;
        let work = |number: usize| {
            let memory = memory.clone();
            move || memory[page * WORDS + number].load(SeqCst)
        };
        let tasks: Vec<_> = (0..64).map(|number| (number, runtime.spawn(work(number)).unwrap())).collect();
        for (number, task) in tasks {
            assert_eq!(task.join().unwrap(), expected(page * WORDS + number));
        }
        // So that it is far again.
        let others = 0..PAGES;
        others.for_each(|page| assert_eq!(memory[page * WORDS].load(SeqCst), expected(page * WORDS)));
    }
    end(runtime);
}

/// All registers of the interrupted code are as they were after an access at which others have run.
#[test]
fn registers_stay() {
    let (memory, runtime) = (array(PAGES), start(1, 64));
    let work = |seed: u64| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(seed);
            for _ in 0..100 {
                let word = dice.next() % (PAGES * WORDS);
                let found = load_among_patterns(&memory[word], seed);
                assert_eq!(found, expected(word));
            }
        }
    };
    let tasks: Vec<_> = (1..=64).map(|seed| runtime.spawn(work(seed)).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    end(runtime);
}

/// Fills registers from `seed`, loads from `at`, and looks at the registers again.
fn load_among_patterns(at: &AtomicU64, seed: u64) -> u64 {
    let vectors: [u64; 4] = core::array::from_fn(|n| expected(seed as usize * 7 + n));
    let mut after = [[0u64; 4]; 4];
    let (mut value, mut state) = (0u64, [0u64; 10]);
    let (mxcsr, x87) = (0x1f80u32 | ((seed as u32 & 3) << 13), 0x037fu16 | ((seed as u16 & 3) << 10));
    let (mut mxcsr_after, mut x87_after) = (0u32, 0u16);
    if !std::arch::is_x86_feature_detected!("avx") {
        return at.load(SeqCst);
    }
    let words = [mxcsr, u32::from(x87)];
    // SAFETY: `at` is borrowed; what is written are locals of the right sizes; rbx and the stack pointer are put back, control words too.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "sub rsp, 16",
            "stmxcsr [rsp]",
            "fnstcw [rsp + 4]",
            // The red zone is not in use here: a function with a push has none.
            "ldmxcsr [r12]",
            "fldcw [r12 + 4]",
            "vmovdqu ymm0, [r13]",
            "vmovdqu ymm7, [r13]",
            "vmovdqu ymm15, [r13]",
            "mov rbx, rdi", "mov rbp, rdi",
            "mov r8, rdi", "mov r9, rdi", "mov r10, rdi", "mov r11, rdi",
            "add r8, 8", "add r9, 9", "add r10, 10", "add r11, 11",
            "mov rcx, rdi", "not rcx",
            "fld1",
            "stc",
            "mov rax, [rsi]",
            // Carry into r11: flags stay.
            "adc r11, 0",
            "fstp qword ptr [rdx + 72]",
            "mov [rdx], rbx", "mov [rdx + 8], rbp", "mov [rdx + 16], r8", "mov [rdx + 24], r9",
            "mov [rdx + 32], r10", "mov [rdx + 40], r11", "mov [rdx + 48], rcx", "mov [rdx + 56], rdi", "mov [rdx + 64], rsi",
            "vmovdqu [r14], ymm0",
            "vmovdqu [r14 + 32], ymm7",
            "vmovdqu [r14 + 64], ymm15",
            "stmxcsr [r14 + 96]",
            "fnstcw [r14 + 104]",
            "ldmxcsr [rsp]",
            "fldcw [rsp + 4]",
            "add rsp, 16",
            "pop rbp",
            "pop rbx",
            in("r12") &raw const words,
            in("r13") &raw const vectors,
            in("r14") &raw mut after,
            in("rdi") seed.wrapping_mul(0x1234_5678_9abc_def1),
            in("rsi") at.as_ptr(),
            in("rdx") &raw mut state,
            out("rax") value,
            out("rcx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("ymm0") _, out("ymm7") _, out("ymm15") _,
        );
    }
    let pattern = seed.wrapping_mul(0x1234_5678_9abc_def1);
    mxcsr_after |= after[3][0] as u32;
    x87_after |= after[3][1] as u16;
    let general = [
        pattern,
        pattern,
        pattern.wrapping_add(8),
        pattern.wrapping_add(9),
        pattern.wrapping_add(10),
        pattern.wrapping_add(12),
        !pattern,
        pattern,
        at.as_ptr().addr() as u64,
        1f64.to_bits(),
    ];
    assert_eq!(state, general, "general registers, flags, x87");
    assert_eq!(&after[..3], &[vectors; 3], "vectors");
    assert_eq!((mxcsr_after & !0x3f, x87_after), (mxcsr, x87), "control words");
    value
}

#[test]
fn errno_is_each_ones_own() {
    let (memory, runtime) = (array(PAGES), start(1, 32));
    let work = |number: i32| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(number as u64);
            // SAFETY: this thread's errno.
            let errno = unsafe { libc::__errno_location() };
            for _ in 0..200 {
                // SAFETY: as above.
                unsafe { errno.write(number) };
                let word = dice.next() % (PAGES * WORDS);
                assert_eq!(memory[word].load(SeqCst), expected(word));
                // SAFETY: as above.
                assert_eq!(unsafe { errno.read() }, number);
            }
        }
    };
    let tasks: Vec<_> = (1..=32).map(|number| runtime.spawn(work(number)).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    end(runtime);
}

/// Who holds is not switched away from, though it waits for a page that another one of its worker's is fetching.
#[test]
fn who_holds_waits_in_place() {
    let (memory, runtime) = (array(PAGES), start(1, 64));
    let inside = Arc::new(AtomicU32::new(0));
    let work = |seed: u64| {
        let (memory, inside) = (memory.clone(), inside.clone());
        move || {
            let mut dice = Dice(seed % 4);
            for turn in 0..60 {
                let word = dice.next() % (PAGES * WORDS);
                if turn % 3 == 0 {
                    let _hold = hold();
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold on one worker");
                    assert_eq!(memory[word].load(SeqCst), expected(word));
                    assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                } else {
                    assert_eq!(memory[word].load(SeqCst), expected(word));
                }
            }
        }
    };
    let tasks: Vec<_> = (0..64).map(|seed| runtime.spawn(work(seed)).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    end(runtime);
}

/// System calls with far buffers, by ring and without, while others of the worker fetch.
#[test]
fn calls_take_far_buffers() {
    let (memory, runtime) = (array(PAGES), start(2, 64));
    let toucher = |seed: u64| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(seed);
            for _ in 0..100 {
                let word = dice.next() % (PAGES * WORDS);
                assert_eq!(memory[word].load(SeqCst), expected(word));
            }
        }
    };
    let caller = |seed: u64| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(seed);
            let path = std::env::temp_dir().join(format!("farshore-far-{}-{seed}", std::process::id()));
            let mut file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let mut back = vec![0u8; 3 * 4096];
            for turn in 0..20 {
                let first = dice.next() % (PAGES * WORDS - 2 * WORDS);
                let words = &memory[first..first + 2 * WORDS];
                // SAFETY: words that nobody writes in this test, as bytes.
                let bytes = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
                if turn % 2 == 0 {
                    use std::os::unix::fs::FileExt;
                    file.write_all_at(bytes, 0).unwrap();
                    file.read_exact_at(&mut back[100..100 + bytes.len()], 0).unwrap();
                } else {
                    assert_eq!(io::write(&file, bytes, 0).unwrap(), bytes.len());
                    assert_eq!(io::read(&file, &mut back[100..100 + bytes.len()], 0).unwrap(), bytes.len());
                }
                assert!(back[100..100 + bytes.len()] == *bytes);
                let _ = file.flush();
            }
        }
    };
    let touchers: Vec<_> = (0..40).map(|seed| runtime.spawn(toucher(seed)).unwrap()).collect();
    let callers: Vec<_> = (0..20).map(|seed| runtime.spawn(caller(seed)).unwrap()).collect();
    touchers.into_iter().chain(callers).for_each(|task| task.join().unwrap());
    end(runtime);
}

/// A unithread, and a thread that is none, make processes while others fetch.
#[test]
fn processes_are_made_beside_fetches() {
    let (memory, runtime) = (array(PAGES), start(2, 64));
    let stop = Arc::new(AtomicBool::new(false));
    let toucher = |seed: u64| {
        let (memory, stop) = (memory.clone(), stop.clone());
        move || {
            let mut dice = Dice(seed);
            while !stop.load(SeqCst) {
                let word = dice.next() % (PAGES * WORDS);
                assert_eq!(memory[word].load(SeqCst), expected(word));
                yield_now();
            }
        }
    };
    let touchers: Vec<_> = (0..40).map(|seed| runtime.spawn(toucher(seed)).unwrap()).collect();
    let spawner = runtime.spawn(|| {
        for _ in 0..5 {
            let out = Command::new("echo").arg("from a child").output().unwrap();
            assert_eq!(out.stdout, b"from a child\n");
            sleep(Duration::from_millis(1)).unwrap();
        }
    });
    let forker = {
        let memory = memory.clone();
        runtime.spawn(move || {
            for turn in 0..5 {
                fork_and_look(&memory, turn);
                sleep(Duration::from_millis(1)).unwrap();
            }
        })
    };
    (5..10).for_each(|turn| fork_and_look(&memory, turn));
    [spawner.unwrap(), forker.unwrap()].into_iter().for_each(|task| task.join().unwrap());
    stop.store(true, SeqCst);
    touchers.into_iter().for_each(|task| task.join().unwrap());
    end(runtime);
}

/// A child looks at some of the memory: it is what it was, and is fetched without workers.
fn fork_and_look(memory: &[AtomicU64], turn: usize) {
    // SAFETY: the child makes no use of what other threads may have had in their hands.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut dice = Dice(turn as u64);
        let right = (0..200).all(|_| {
            let word = dice.next() % (PAGES * WORDS);
            memory[word].load(SeqCst) == expected(word)
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(if right { 7 } else { 8 }) };
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: writes to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

/// Memory is given up, made anew and moved by unithreads while others of their worker fetch there.
#[test]
fn memory_calls_beside_fetches() {
    let (memory, runtime) = (array(PAGES), start(2, 64));
    let toucher = |seed: u64| {
        let memory = memory.clone();
        move || {
            let mut dice = Dice(seed);
            for _ in 0..300 {
                let word = dice.next() % (PAGES * WORDS);
                assert_eq!(memory[word].load(SeqCst), expected(word));
            }
        }
    };
    let mapper = |seed: u64| {
        move || {
            let mut dice = Dice(seed);
            for _ in 0..10 {
                remap(&mut dice);
                yield_now();
            }
        }
    };
    let touchers: Vec<_> = (0..40).map(|seed| runtime.spawn(toucher(seed)).unwrap()).collect();
    let mappers: Vec<_> = (0..8).map(|seed| runtime.spawn(mapper(seed)).unwrap()).collect();
    touchers.into_iter().chain(mappers).for_each(|task| task.join().unwrap());
    end(runtime);
}

fn remap(dice: &mut Dice) {
    const BYTES: usize = 4 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert!(at != libc::MAP_FAILED);
    let word = |at: *mut libc::c_void, page: usize| at.cast::<u64>().wrapping_add(page * WORDS);
    // SAFETY: inside the mapping, here and below.
    (0..BYTES / 4096).for_each(|page| unsafe { word(at, page).write(expected(page)) });
    let gone = dice.next() % (BYTES / 4096 - 16);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::madvise(word(at, gone).cast(), 16 * 4096, libc::MADV_DONTNEED) }, 0);
    // SAFETY: as above.
    let moved = unsafe { libc::mremap(at, BYTES, BYTES * 2, libc::MREMAP_MAYMOVE) };
    assert!(moved != libc::MAP_FAILED);
    for page in 0..BYTES / 4096 {
        let want = if (gone..gone + 16).contains(&page) { 0 } else { expected(page) };
        // SAFETY: as above.
        assert_eq!(unsafe { word(moved, page).read() }, want, "page {page}");
    }
    // SAFETY: the mapping, as a whole.
    assert_eq!(unsafe { libc::munmap(moved, BYTES * 2) }, 0);
}

/// Requests of random sizes, with faults, panics and replies: each is answered once, and slots and bytes are where they were.
#[test]
fn a_hundred_thousand_requests() {
    const COUNT: u64 = 100_000;
    std::panic::set_hook(Box::new(|_| {}));
    let (memory, runtime) = (array(PAGES), start(2, 512));
    let (here, there) = UnixStream::pair().unwrap();
    let (sender, panics) = (Arc::new(OwnedFd::from(there)), Arc::new(AtomicU64::new(0)));
    let reader = std::thread::spawn(move || read_answers(here));
    let mut dice = Dice(5);
    for number in 0..COUNT {
        let length = 16 + dice.next() % 1000;
        let mut request = vec![number as u8; length];
        request[..8].copy_from_slice(&number.to_le_bytes());
        let word = dice.next() % (PAGES * WORDS);
        request[8..16].copy_from_slice(&(word as u64).to_le_bytes());
        let panics_here = dice.next().is_multiple_of(16);
        loop {
            let (memory, sender, panics) = (memory.clone(), sender.clone(), panics.clone());
            let serve = move |request: Request<'_>| answer(request, &memory, sender, panics_here.then_some(&*panics));
            match runtime.handle().spawn_request(&request, serve) {
                Ok(()) => break,
                Err(farshore_uthread::SpawnError::Full(_)) => std::thread::yield_now(),
                Err(why) => panic!("{why}"),
            }
        }
    }
    let handle = runtime.handle();
    while handle.live() != 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    end(runtime);
    drop(sender);
    let answered = reader.join().unwrap();
    let panicked = panics.load(SeqCst);
    assert_eq!(answered + panicked, COUNT);
    assert_eq!((handle.panics(), handle.replies_failed()), (panicked, 0));
    assert!(panicked > COUNT / 32);
}

fn answer(mut request: Request<'_>, memory: &[AtomicU64], to: Arc<OwnedFd>, panics: Option<&AtomicU64>) {
    let bytes = request.bytes();
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let word = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    assert!(bytes[16..].iter().all(|&byte| byte == number as u8), "request {number}");
    let value = memory[word].load(SeqCst);
    assert_eq!(value, expected(word));
    if let Some(panics) = panics {
        panics.fetch_add(1, SeqCst);
        panic!("as asked");
    }
    request.buffer()[..8].copy_from_slice(&number.to_le_bytes());
    request.buffer()[8..16].copy_from_slice(&value.to_le_bytes());
    request.reply(to, 16);
}

/// How many answers came; none twice.
fn read_answers(mut from: UnixStream) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let mut answer = [0; 16];
    while from.read_exact(&mut answer).is_ok() {
        let number = u64::from_le_bytes(answer[..8].try_into().unwrap());
        assert!(seen.insert(number), "request {number} was answered twice");
    }
    seen.len() as u64
}
