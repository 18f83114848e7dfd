//! The cipher against the standard and another implementation; where keys may and may not lie; the queue.

use super::*;
use crate::ram::{RamQueue, RamSpace};
use aes::cipher::KeyInit;
use farshore_config::Size;
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;

const VECTORS: &str = include_str!("../../tests/data/ieee1619.txt");

fn slot(n: u64) -> Slot {
    Slot::new(n).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn with_key(bytes: &[u8]) -> Cipher {
    Cipher::fill_with(|key| {
        key.copy_from_slice(bytes);
        Ok(())
    })
    .unwrap()
}

fn encrypted(cipher: &Cipher, n: u64, page: &PageBuf) -> PageBuf {
    let mut to = PageBuf::ZERO;
    cipher.encrypt(slot(n), page, &mut to);
    to
}

fn decrypted(cipher: &Cipher, n: u64, page: &PageBuf) -> PageBuf {
    let mut page = page.clone();
    cipher.decrypt(slot(n), &mut page);
    page
}

/// A page that is the same each time and has no long runs.
fn pattern(seed: u64) -> PageBuf {
    let mut page = PageBuf::ZERO;
    farshore_random::Rng::new(seed).fill(&mut page.0);
    page
}

/// How far the counts of byte values are from even ones: for noise about 255, with a standard deviation of 23.
fn chi_square(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let even = bytes.len() as f64 / 256.0;
    counts.iter().map(|&count| (f64::from(count) - even).powi(2) / even).sum()
}

#[test]
fn the_standards_vectors() {
    let mut lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
    let key: Vec<u8> = lines.by_ref().take(2).flat_map(unhex).collect();
    let cipher = with_key(&key);
    // The standard's data units are 512 bytes: the first ones of a page, since a block depends only on its place.
    let plain = PageBuf(core::array::from_fn(|i| i as u8));
    let mut count = 0;
    for line in lines {
        let (number, expected) = line.split_once(' ').unwrap();
        let (number, expected) = (u64::from_str_radix(number, 16).unwrap(), unhex(expected));
        let made = encrypted(&cipher, number, &plain);
        assert_eq!((&made.0[..512], expected.len()), (&expected[..], 512), "unit {number:x}");
        assert_eq!(decrypted(&cipher, number, &made).0, plain.0, "unit {number:x}");
        count += 1;
    }
    assert_eq!(count, 5);
}

proptest! {
    #[test]
    fn whole_pages_are_as_another_implementation_makes_them(
        key in proptest::collection::vec(any::<u8>(), 64), n in 1u64.., seed in any::<u64>(),
    ) {
        let half = |bytes: &[u8]| aes::Aes256::new_from_slice(bytes).unwrap();
        let oracle = xts_mode::Xts128::new(half(&key[..32]), half(&key[32..]));
        let mut expected = pattern(seed);
        oracle.encrypt_sector(&mut expected.0, xts_mode::get_tweak_default(n.into()));
        let cipher = with_key(&key);
        prop_assert_eq!(encrypted(&cipher, n, &pattern(seed)).0, expected.0);
        prop_assert_eq!(decrypted(&cipher, n, &expected).0, pattern(seed).0);
    }

    #[test]
    fn what_goes_in_comes_out_and_only_there(n in 1u64..1 << 40, other in 1u64..1 << 40, seed in any::<u64>(), bit in 0usize..8 * 4096) {
        let (cipher, stranger) = (Cipher::new().unwrap(), Cipher::new().unwrap());
        let page = pattern(seed);
        let mut made = encrypted(&cipher, n, &page);
        prop_assert_eq!(decrypted(&cipher, n, &made).0, page.0);
        prop_assert_eq!(decrypted(&cipher, other, &made).0 == page.0, n == other);
        prop_assert_ne!(decrypted(&stranger, n, &made).0, page.0);
        // One bit of the medium spoils one block, and half of its bits: the checksum cannot miss it.
        made.0[bit / 8] ^= 1 << (bit % 8);
        let spoilt = decrypted(&cipher, n, &made);
        let wrong: Vec<usize> = (0..4096).filter(|&i| spoilt.0[i] != page.0[i]).collect();
        prop_assert!(wrong.len() > 8 && wrong.iter().all(|i| i / 16 == bit / 128), "{wrong:?}");
    }
}

#[test]
fn it_is_noise_also_with_the_wrong_slot() {
    let cipher = Cipher::new().unwrap();
    let (mut stored, mut wrong, mut blocks) = (Vec::new(), Vec::new(), HashSet::new());
    for n in 1..=256 {
        let made = encrypted(&cipher, n, &PageBuf::ZERO);
        blocks.extend(made.0.as_chunks::<16>().0.iter().copied());
        stored.extend_from_slice(&made.0);
        wrong.extend_from_slice(&decrypted(&cipher, n + 1, &made).0);
    }
    assert_eq!(blocks.len(), 256 * 256, "two blocks of zeros are stored alike");
    // Ten standard deviations: noise never gets there, and anything else goes far beyond.
    for (what, bytes) in [("stored", &stored), ("wrong slot", &wrong)] {
        let chi = chi_square(bytes);
        assert!((25.0..485.0).contains(&chi), "{what}: {chi}");
    }
    assert!(chi_square(&pattern(1).0.map(|byte| byte & 0x7f)) > 485.0, "the test finds noise everywhere");
}

/// The flags of a process's mapping that `address` lies in.
fn flags_at(process: &str, address: usize) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let mut found = false;
    for line in maps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let bounds = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16));
            found = matches!(bounds, (Ok(start), Ok(end)) if (start..end).contains(&address));
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| found) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {address:#x}")
}

fn has(flags: &[String], flag: &str) -> bool {
    flags.iter().any(|f| f == flag)
}

#[test]
fn the_key_is_locked_read_only_out_of_dumps_and_wiped() {
    let cipher = Cipher::new().unwrap();
    let address = std::ptr::from_ref(cipher.schedules()).addr();
    let flags = flags_at("self", address);
    assert!(has(&flags, "dd") && has(&flags, "lo") && has(&flags, "rd") && !has(&flags, "wr"), "{flags:?}");
    assert!(!has(&flags_at("self", address - 4096), "rd") && !has(&flags_at("self", address + 4096), "rd"));
    // SAFETY: unlocks a page of the cipher's; nothing about its bytes changes.
    unsafe { rustix::mm::munlock(address as *mut _, 4096) }.unwrap();
    assert!(!has(&flags_at("self", address), "lo"));
    cipher.lock().unwrap();
    assert!(has(&flags_at("self", address), "lo"));
    if !aes::hardware_accelerated() {
        return println!("skipped: the rest, since without AES instructions round keys are laid out in another way");
    }
    // The key itself is in the page once, as the first round keys of each half: the copy it was read into is gone.
    let known = with_key(&std::array::from_fn::<u8, 64, _>(|i| i as u8 ^ 0xa5));
    let page = own_memory(std::ptr::from_ref(known.schedules()).addr(), 4096);
    let count = |part: &[u8]| page.windows(16).filter(|window| *window == part).count();
    let key: Vec<u8> = (0..64).map(|i| i ^ 0xa5).collect();
    // Decryption's last round key is encryption's first.
    assert_eq!([count(&key[..16]), count(&key[32..48])], [2, 1]);
}

/// Reads memory of this process that need not be mapped: unmapped parts read as zeros.
fn own_memory(start: usize, len: usize) -> Vec<u8> {
    let file = std::fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; len];
    for (n, page) in bytes.chunks_mut(4096).enumerate() {
        let _ = file.read_exact_at(page, (start + n * 4096) as u64);
    }
    bytes
}

/// All vector registers as they are.
#[inline(never)]
fn registers() -> Vec<u8> {
    #[repr(align(64))]
    struct Area([u8; 32 * 64]);
    let mut area = Area([0; 32 * 64]);
    let to = area.0.as_mut_ptr();
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: 32 registers of 64 bytes, for which the area has room, on a processor that has them.
        unsafe {
            core::arch::asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovdqu64 [{0} + 64*\\n], zmm\\n",
                ".endr",
                in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: 16 registers of 16 bytes, for which the area has room.
        unsafe {
            core::arch::asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "movdqu [{0} + 16*\\n], xmm\\n",
                ".endr",
                in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
    area.0.to_vec()
}

/// Makes a cipher and does `work` with it, on a thread of its own. Returns how many words of the cipher's page can then be
/// seen in the registers and on the stack of that thread. Another thread looks, since looking leaves traces itself.
fn traces_of(work: fn(&Cipher)) -> usize {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let (let_go, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let worker = std::thread::spawn(move || {
        let cipher = Cipher::new().unwrap();
        work(&cipher);
        let registers = registers();
        let here = std::ptr::from_ref(&registers).addr();
        tell.send((cipher, registers, here)).unwrap();
        wait.recv().unwrap();
    });
    let (cipher, mut seen, here) = told.recv().unwrap();
    seen.extend(own_memory((here & !15) - (96 << 10), (96 << 10) + 1024));
    let_go.send(()).unwrap();
    worker.join().unwrap();
    let page = own_memory(std::ptr::from_ref(cipher.schedules()).addr(), 4096);
    let secret = |word: &&[u8; 16]| word.iter().collect::<HashSet<_>>().len() > 6;
    let secrets: HashSet<[u8; 16]> = page.as_chunks::<16>().0.iter().filter(secret).copied().collect();
    assert!(secrets.len() > 30, "{} words in the page of the key", secrets.len());
    seen.windows(16).filter(|window| secrets.contains(*window)).count()
}

#[test]
fn no_round_key_stays_in_registers_or_on_the_stack() {
    if !aes::hardware_accelerated() {
        return println!(
            "skipped: without AES instructions round keys are spread over bits, and cannot be told from other words"
        );
    }
    fn encrypt(cipher: &Cipher) {
        cipher.encrypt(slot(5), &pattern(7), &mut PageBuf::ZERO.clone());
    }
    fn encrypt_and_decrypt(cipher: &Cipher) {
        let mut page = encrypted(cipher, 5, &pattern(7));
        cipher.decrypt(slot(5), &mut page);
    }
    fn without_clearing(cipher: &Cipher) {
        cipher.schedules().encrypt_leaving_traces(5, &pattern(7), &mut PageBuf::ZERO.clone());
    }
    assert_eq!(traces_of(|_| {}), 0, "after making it");
    assert_eq!(traces_of(encrypt), 0, "after an encryption");
    assert_eq!(traces_of(encrypt_and_decrypt), 0, "after a decryption");
    assert!(traces_of(without_clearing) > 0, "the test sees nothing where there is something");
}

#[test]
fn two_threads_encrypt_at_once() {
    let cipher = Cipher::new().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cipher = &cipher;
            scope.spawn(move || {
                for n in 1..300 {
                    let page = pattern(thread * 1000 + n);
                    assert_eq!(decrypted(cipher, n, &encrypted(cipher, n, &page)).0, page.0);
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_locked_is_an_error_with_the_limit() {
    // In a process of its own: the limit belongs to the process, and root is not limited.
    const CHILD: &str = "FARSHORE_TEST_MEMLOCK";
    if std::env::var_os(CHILD).is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        assert_eq!(getrlimit(Resource::Memlock).current, Some(0));
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
        println!("said: {}", Cipher::new().unwrap_err());
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "encrypt::tests::what_cannot_be_locked_is_an_error_with_the_limit", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout);
    let said = out.lines().find_map(|line| line.split("said: ").nth(1)).unwrap_or_else(|| panic!("{child:?}"));
    assert!(said.contains("--encrypt") && said.contains("limit is 0 KiB") && said.contains("ulimit -l"), "{said}");
}

fn ram() -> Encrypted<RamSpace> {
    Encrypted::new(RamSpace::open(Some(Size::mib(4)), None).unwrap(), Arc::new(Cipher::new().unwrap()))
}

/// Writes pages and returns what became of them.
fn write<Q: WriteQueue>(queue: &mut Q, writes: &[(u64, &[PageBuf])]) -> Vec<(u64, Result<(), IoError>)> {
    for (tag, (first, pages)) in (0..).zip(writes) {
        // SAFETY: the pages live until all completions were reaped below.
        unsafe { queue.start_write(slot(*first), pages.as_ptr(), pages.len() as u32, tag) }.unwrap();
    }
    let mut seen = Vec::new();
    while queue.in_flight() > 0 {
        let before = seen.len();
        queue.reap(true, &mut |tag, result| seen.push((tag, result)));
        assert!(seen.len() > before, "reap did not wait");
    }
    seen.sort_by_key(|&(tag, _)| tag);
    seen
}

#[test]
fn writes_of_every_size_come_back_and_are_noise_inside() {
    let space = ram();
    let mut queue = space.queue(3).unwrap();
    let pages: Vec<PageBuf> = (0..200).map(pattern).collect();
    for count in [1, 2, 63, 64, 65, 128, 200] {
        let batch = &pages[..count];
        assert_eq!(write(&mut queue, &[(1, batch), (300, &pages[..1]), (400, batch)]), [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        for first in [1, 400] {
            let mut back = vec![PageBuf::ZERO; count];
            space.read_run(slot(first), &mut back).unwrap();
            assert!(back.iter().zip(batch).all(|(a, b)| a.0 == b.0), "{count} pages at {first}");
            space.inner().read_run(slot(first), &mut back).unwrap();
            assert!(back.iter().zip(batch).all(|(a, b)| a.0 != b.0 && a.0[..16] != b.0[..16]));
        }
        let mut one = PageBuf::ZERO;
        space.read(slot(300), &mut one).unwrap();
        assert_eq!(one.0, pages[0].0);
    }
    // The pages themselves stayed plain.
    assert!((0..).zip(&pages).all(|(n, page)| page.0 == pattern(n).0));
}

#[test]
fn a_full_queue_and_errors_are_as_without_a_cipher() {
    let space = ram();
    let mut queue = space.queue(2).unwrap();
    assert_eq!(space.bounce_bytes(), 2 * 64 * 4096);
    let pages: Vec<PageBuf> = (0..100).map(pattern).collect();
    // SAFETY: `pages` lives until the completions are reaped below.
    unsafe { queue.start_write(slot(1), pages.as_ptr(), 1, 1) }.unwrap();
    // SAFETY: as above.
    unsafe { queue.start_write(slot(9), pages.as_ptr(), 1, 2) }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { queue.start_write(slot(20), pages.as_ptr(), 1, 3) }, Err(()));
    assert_eq!(queue.in_flight(), 2);
    queue.reap(true, &mut |_, result| result.unwrap());
    assert_eq!(queue.in_flight(), 0);
    // 4 MiB are 1,024 slots: the first piece fits and the second does not.
    assert_eq!(write(&mut queue, &[(950, &pages), (2000, &pages[..1])]), [(0, Err(IoError::Full)), (1, Err(IoError::Full))]);
    assert_eq!(write(&mut queue, &[(1, &pages)]), [(0, Ok(()))]);
    let mut back = PageBuf::ZERO;
    assert_eq!(space.read(slot(5000), &mut back), Err(IoError::Device(22)));
    drop(queue);
    assert_eq!(space.bounce_bytes(), 0);
}

#[test]
fn a_forked_child_reads_what_its_parent_wrote() {
    let space = ram();
    let mut queue: EncryptedQueue<RamQueue> = space.queue(1).unwrap();
    let page = [pattern(3)];
    assert_eq!(write(&mut queue, &[(7, &page)]), [(0, Ok(()))]);
    let address = std::ptr::from_ref(space.cipher.schedules()).addr();
    // SAFETY: until it ends, the child only makes system calls and uses memory of its own: it waits for no thread that it
    // has not got.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut back = PageBuf::ZERO;
        let right = space.read(slot(7), &mut back).is_ok() && back.0 == page[0].0 && space.cipher.lock().is_ok();
        // SAFETY: stops the child, so that its parent can look at it.
        unsafe { libc::raise(libc::SIGSTOP) };
        // SAFETY: ends the child.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for a child of ours; `status` lives until after the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    let flags = flags_at(&child.to_string(), address);
    // SAFETY: a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGCONT) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert!(has(&flags, "dd") && has(&flags, "lo") && !has(&flags, "wr"), "{flags:?}");
}
