//! Transfers against models of a file, a pipe, a stream and a datagram socket, on absent memory with a small budget.

// The set-up of a test is groups of libc calls that belong together, with one reason for all.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use super::super::buffers::errno;
use super::super::buffers::fake::Fake;
use proptest::prelude::*;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

const BUDGET: u64 = 64 << 10;
/// Pages of a test's arena, and where its iovec arrays and headers start.
const PAGES: u64 = 400;
const TABLES: u64 = 300 * 4096;

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 13)) as u8).collect()
}

fn file_with(bytes: &[u8]) -> std::fs::File {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"transfer".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor, ours alone.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(bytes).expect("memfd");
    file.rewind().expect("memfd");
    file
}

fn pipe_of(size: i32, flags: i32) -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: the array has room; the size is set on an open descriptor.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), flags | libc::O_CLOEXEC), 0);
        assert!(libc::fcntl(fds[0], libc::F_SETPIPE_SZ, size) >= size);
    }
    // SAFETY: new descriptors, ours alone.
    unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) }
}

fn fd(file: &impl AsRawFd) -> u64 {
    file.as_raw_fd() as u64
}

/// Buffers scattered over the arena: (offset, length), one after another with gaps.
fn layout(parts: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut at = 0;
    parts
        .iter()
        .map(|&(gap, len)| {
            let here = at + gap;
            at = here + len;
            (here, len)
        })
        .collect()
}

/// Writes an iovec array into the arena; its address.
fn put_vectors(fake: &Fake, buffers: &[(u64, u64)]) -> u64 {
    let at = fake.base() + TABLES - 8 + 4096 * 2;
    for (index, (offset, len)) in buffers.iter().enumerate() {
        fake.put_words(at + index as u64 * 16, &[fake.base() + offset, *len]);
    }
    at
}

fn gather(fake: &Fake, buffers: &[(u64, u64)], total: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = buffers.iter().flat_map(|&(offset, len)| fake.get(fake.base() + offset, len)).collect();
    bytes.truncate(total as usize);
    bytes
}

fn scatter(fake: &Fake, buffers: &[(u64, u64)], bytes: &[u8]) {
    let mut at = 0;
    for &(offset, len) in buffers {
        fake.put(fake.base() + offset, &bytes[at..at + len as usize]);
        at += len as usize;
    }
}

fn parts() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let small = prop::collection::vec((0u64..5000, 0u64..300), 1..200);
    let few = prop::collection::vec((0u64..9000, 0u64..200_000), 1..5);
    // Both, cut to what fits into the arena.
    prop_oneof![small, few].prop_map(|parts| {
        let mut end = 0;
        parts
            .into_iter()
            .take_while(|(gap, len)| {
                end += gap + len;
                end < TABLES
            })
            .collect::<Vec<_>>()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn file_reads_are_whole(parts in parts(), size in 0u64..600_000, start in 0u64..100_000, which in 0..4) {
        let content = pattern(size);
        let file = file_with(&content);
        let fake = Fake::new(PAGES, BUDGET);
        let buffers = layout(&parts);
        let total: u64 = buffers.iter().map(|b| b.1).sum();
        let array = put_vectors(&fake, &buffers);
        let count = buffers.len() as u64;
        let from = if which == 0 { 0 } else { start };
        let result = match which {
            0 => fake.call(libc::SYS_readv, &[fd(&file), array, count]),
            1 => fake.call(libc::SYS_preadv, &[fd(&file), array, count, start, 0]),
            2 => fake.call(libc::SYS_preadv2, &[fd(&file), array, count, start, 0, 0]),
            _ => {
                (&file).seek(SeekFrom::Start(start)).expect("memfd");
                fake.call(libc::SYS_preadv2, &[fd(&file), array, count, u64::MAX, 0, 0])
            }
        };
        let want = total.min(size.saturating_sub(from));
        prop_assert_eq!(result, want as i64);
        prop_assert_eq!(gather(&fake, &buffers, want), &content[(from.min(size)) as usize..][..want as usize]);
        let position = (&file).stream_position().expect("memfd");
        prop_assert_eq!(position, match which { 0 => want, 3 => start + want, _ => 0 });
    }

    #[test]
    fn file_writes_are_whole(parts in parts(), start in 0u64..100_000, positioned: bool) {
        let mut file = file_with(b"");
        let fake = Fake::new(PAGES, BUDGET);
        let buffers = layout(&parts);
        let total: u64 = buffers.iter().map(|b| b.1).sum();
        let content = pattern(total);
        scatter(&fake, &buffers, &content);
        let array = put_vectors(&fake, &buffers);
        let args = [fd(&file), array, buffers.len() as u64, start, 0];
        let from = if positioned { start } else { 0 };
        let nr = if positioned { libc::SYS_pwritev } else { libc::SYS_writev };
        prop_assert_eq!(fake.call(nr, &args), total as i64);
        let mut got = Vec::new();
        file.seek(SeekFrom::Start(from)).expect("memfd");
        file.read_to_end(&mut got).expect("memfd");
        prop_assert_eq!(got, content);
    }

    #[test]
    fn flat_calls_are_whole(size in 0u64..900_000, len in 0u64..1_000_000, offset in 0u64..5000) {
        let content = pattern(size);
        let mut file = file_with(&content);
        let fake = Fake::new(PAGES, BUDGET);
        let at = fake.base() + offset;
        let want = len.min(size);
        prop_assert_eq!(fake.call(libc::SYS_read, &[fd(&file), at, len]), want as i64);
        prop_assert_eq!(&fake.get(at, want), &content[..want as usize]);
        prop_assert_eq!(fake.call(libc::SYS_pread64, &[fd(&file), at, len, size / 2]), len.min(size - size / 2) as i64);
        fake.put(at, &content[..want as usize]);
        file.set_len(0).expect("memfd");
        prop_assert_eq!(fake.call(libc::SYS_pwrite64, &[fd(&file), at, want, 77]), want as i64);
        file.seek(SeekFrom::Start(77)).expect("memfd");
        let mut got = Vec::new();
        file.read_to_end(&mut got).expect("memfd");
        prop_assert_eq!(got, &content[..want as usize]);
    }

    #[test]
    fn a_pipe_gives_what_it_has(parts in parts(), filled in 1u64..400_000, fifo: bool) {
        let (reader, writer) = if fifo { named_pipe() } else { pipe_of(1 << 19, 0) };
        let content = pattern(filled);
        std::fs::File::from(writer.try_clone().expect("dup")).write_all(&content).expect("room in the pipe");
        let fake = Fake::new(PAGES, BUDGET);
        let buffers = layout(&parts);
        let total: u64 = buffers.iter().map(|b| b.1).sum();
        prop_assume!(total > 0);
        let array = put_vectors(&fake, &buffers);
        let want = total.min(filled);
        prop_assert_eq!(fake.call(libc::SYS_readv, &[fd(&reader), array, buffers.len() as u64]), want as i64);
        prop_assert_eq!(gather(&fake, &buffers, want), &content[..want as usize]);
    }

    #[test]
    fn a_full_pipe_takes_what_natively_it_takes(len in 1u64..900_000, offset in 0u64..5000, before in 0u64..9000) {
        let (fake, content) = (Fake::new(PAGES, BUDGET), pattern(len));
        fake.put(fake.base() + offset, &content);
        let pipes = [pipe_of(1 << 18, libc::O_NONBLOCK), pipe_of(1 << 18, libc::O_NONBLOCK)];
        let first = vec![1u8; before as usize];
        for (_, writer) in &pipes {
            std::fs::File::from(writer.try_clone().expect("dup")).write_all(&first).expect("room in the pipe");
        }
        // SAFETY: the buffer is ours.
        let native = unsafe { libc::write(pipes[0].1.as_raw_fd(), content.as_ptr().cast(), len as usize) };
        let ours = fake.call(libc::SYS_write, &[fd(&pipes[1].1), fake.base() + offset, len]);
        // The kernel merges the odd bytes of a whole write into the last page of the pipe.
        prop_assert!(ours <= native as i64 && ours > native as i64 - 4096, "{} bytes, natively {}", ours, native);
    }

    #[test]
    fn a_stream_gives_what_it_has(parts in parts(), filled in 1u64..150_000, flags in 0usize..3, with_header: bool) {
        let (mut left, right) = UnixStream::pair().expect("socketpair");
        let content = pattern(filled);
        left.write_all(&content).expect("room in the socket");
        let fake = Fake::new(PAGES, BUDGET);
        let buffers = layout(&parts);
        let total: u64 = buffers.iter().map(|b| b.1).sum();
        prop_assume!(total > 0);
        let flags = [0, libc::MSG_PEEK as u64, libc::MSG_DONTWAIT as u64][flags];
        let want = total.min(filled);
        if with_header {
            let header = put_message(&fake, &buffers);
            prop_assert_eq!(fake.call(libc::SYS_recvmsg, &[fd(&right), header, flags]), want as i64);
            prop_assert_eq!(gather(&fake, &buffers, want), &content[..want as usize]);
        } else {
            let result = fake.call(libc::SYS_recvfrom, &[fd(&right), fake.base(), total, flags, 0, 0]);
            prop_assert_eq!(result, want as i64);
            prop_assert_eq!(&fake.get(fake.base(), want), &content[..want as usize]);
        }
        let rest = if flags == libc::MSG_PEEK as u64 { filled } else { filled - want };
        let mut got = Vec::new();
        drop(left);
        (&right).read_to_end(&mut got).expect("socket");
        prop_assert_eq!(got, &content[(filled - rest) as usize..]);
    }

    #[test]
    fn datagrams_are_never_cut(parts in parts(), sent in 0u64..200_000, truncated: bool) {
        let (left, right) = UnixDatagram::pair().expect("socketpair");
        let fake = Fake::new(PAGES, BUDGET);
        let content = pattern(sent);
        fake.put(fake.base(), &content);
        prop_assert_eq!(fake.call(libc::SYS_sendto, &[fd(&left), fake.base(), sent, 0, 0, 0]), sent as i64);
        fake.put(fake.base(), &vec![0; sent as usize]);
        let buffers = layout(&parts);
        let room: u64 = buffers.iter().map(|b| b.1).sum();
        let header = put_message(&fake, &buffers);
        let flags = if truncated { libc::MSG_TRUNC as u64 } else { 0 };
        let result = fake.call(libc::SYS_recvmsg, &[fd(&right), header, flags]);
        let stored = room.min(sent);
        prop_assert_eq!(result, if truncated { sent } else { stored } as i64);
        prop_assert_eq!(gather(&fake, &buffers, stored), &content[..stored as usize]);
        let answer = fake.get(header + 48, 4)[0];
        prop_assert_eq!(i32::from(answer) & libc::MSG_TRUNC != 0, sent > room);
    }

    #[test]
    fn messages_are_sent_whole(parts in parts(), stream: bool) {
        let fake = Fake::new(PAGES, BUDGET);
        let buffers = layout(&parts);
        let total: u64 = buffers.iter().map(|b| b.1).sum();
        prop_assume!(total > 0 && total < 180_000);
        let content = pattern(total);
        scatter(&fake, &buffers, &content);
        let header = put_message(&fake, &buffers);
        let mut got = vec![0; total as usize + 1];
        let (result, len) = if stream {
            let (left, mut right) = UnixStream::pair().expect("socketpair");
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                right.read_to_end(&mut got).map(|_| got)
            });
            let result = fake.call(libc::SYS_sendmsg, &[fd(&left), header, 0]);
            drop(left);
            got = reader.join().expect("reader").expect("socket");
            (result, got.len())
        } else {
            let (left, right) = UnixDatagram::pair().expect("socketpair");
            (fake.call(libc::SYS_sendmsg, &[fd(&left), header, 0]), right.recv(&mut got).expect("a datagram"))
        };
        prop_assert_eq!(result, total as i64);
        prop_assert_eq!(&got[..len], &content);
    }
}

/// A header with a name-less message of `buffers`; it lies across two pages.
fn put_message(fake: &Fake, buffers: &[(u64, u64)]) -> u64 {
    let array = put_vectors(fake, buffers);
    let header = fake.base() + TABLES + 4096 - 20;
    fake.put_words(header, &[0, 0, array, buffers.len() as u64, 0, 0, 0]);
    header
}

fn named_pipe() -> (OwnedFd, OwnedFd) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("farshore-fifo-{}-{number}", std::process::id()));
    let name = std::ffi::CString::new(path.to_str().expect("a path")).expect("a path");
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("fifo");
    std::fs::remove_file(&path).expect("fifo");
    // SAFETY: an open descriptor.
    assert!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 19) } > 0);
    (file.try_clone().expect("dup").into(), file.into())
}

#[test]
fn blocking_writes_go_on_until_all_is_done() {
    let (reader, writer) = pipe_of(4096, 0);
    let content = pattern(1 << 20);
    let fake = Fake::new(PAGES, BUDGET);
    fake.put(fake.base() + 11, &content);
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        std::fs::File::from(reader).read_to_end(&mut got).map(|_| got)
    });
    assert_eq!(fake.call(libc::SYS_write, &[fd(&writer), fake.base() + 11, 1 << 20]), 1 << 20);
    drop(writer);
    assert_eq!(reading.join().expect("reader").expect("pipe"), content);
}

#[test]
fn waitall_waits_for_all() {
    let (mut left, right) = UnixStream::pair().expect("socketpair");
    let content = pattern(300_000);
    let copy = content.clone();
    let writing = std::thread::spawn(move || {
        for part in copy.chunks(30_000) {
            left.write_all(part).expect("socket");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        left
    });
    let fake = Fake::new(PAGES, BUDGET);
    let args = [fd(&right), fake.base() + 5, 300_000, libc::MSG_WAITALL as u64, 0, 0];
    assert_eq!(fake.call(libc::SYS_recvfrom, &args), 300_000);
    assert_eq!(fake.get(fake.base() + 5, 300_000), content);
    drop(writing.join());
}

#[test]
fn a_reader_that_goes_away_ends_a_write_with_what_was_done() {
    let (left, right) = UnixStream::pair().expect("socketpair");
    let fake = Fake::new(PAGES, BUDGET);
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 150_000];
        (&right).read_exact(&mut got).expect("socket");
    });
    let result = fake.call(libc::SYS_sendto, &[fd(&left), fake.base(), 1 << 20, libc::MSG_NOSIGNAL as u64, 0, 0]);
    assert!((150_000..1 << 20).contains(&result), "{result}");
    reading.join().expect("reader");
    let again = fake.call(libc::SYS_sendto, &[fd(&left), fake.base(), 10, libc::MSG_NOSIGNAL as u64, 0, 0]);
    assert!(again == errno(libc::EPIPE) || again == errno(libc::ECONNRESET), "{again}");
}

#[test]
fn a_signal_after_the_first_piece_gives_what_was_done() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: zeros are a valid sigaction; without SA_RESTART the call ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let (_reader, writer) = pipe_of(1 << 17, 0);
    let fake = Fake::new(PAGES, BUDGET);
    // SAFETY: no conditions.
    let thread = unsafe { libc::pthread_self() };
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = done.clone();
    let signals = std::thread::spawn(move || {
        while !seen.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            // SAFETY: the thread waits for us below.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        }
    });
    let result = fake.call(libc::SYS_write, &[fd(&writer), fake.base(), 1 << 20]);
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    signals.join().expect("signals");
    assert_eq!(result, 1 << 17);
}

#[test]
fn forbidden_memory_ends_a_transfer_before_it() {
    let content = pattern(300_000);
    let file = file_with(&content);
    let fake = Fake::new(PAGES, BUDGET);
    fake.forbid(30);
    assert_eq!(fake.call(libc::SYS_read, &[fd(&file), fake.base(), 300_000]), 30 * 4096);
    assert_eq!(fake.get(fake.base(), 30 * 4096), content[..30 * 4096]);
    assert_eq!(fake.call(libc::SYS_pread64, &[fd(&file), fake.base() + 30 * 4096, 10, 0]), errno(libc::EFAULT));
    // A small one too, and a pipe keeps its bytes.
    assert_eq!(fake.call(libc::SYS_pread64, &[fd(&file), fake.base() + 30 * 4096 - 6, 10, 0]), 6);
    let (reader, writer) = pipe_of(1 << 16, 0);
    assert_eq!(fake.call(libc::SYS_write, &[fd(&writer), fake.base() + 30 * 4096 - 6, 10]), 6);
    fake.make_read_only(40);
    assert_eq!(fake.call(libc::SYS_read, &[fd(&reader), fake.base() + 40 * 4096, 6]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_read, &[fd(&reader), fake.base(), 100]), 6);
    assert_eq!(fake.call(libc::SYS_write, &[fd(&writer), fake.base() + 40 * 4096, 100]), 100);
    assert_eq!(fake.call(libc::SYS_read, &[fd(&reader), 4096, 100]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_readv, &[fd(&reader), 4096, 3]), errno(libc::EFAULT));
}

#[test]
fn bad_arguments_get_the_kernels_answer() {
    let file = file_with(&pattern(1000));
    let fake = Fake::new(PAGES, BUDGET);
    let (base, big) = (fake.base(), 300_000);
    assert_eq!(fake.call(libc::SYS_read, &[9999, base, big]), errno(libc::EBADF));
    assert_eq!(fake.call(libc::SYS_pread64, &[fd(&file), base, big, u64::MAX]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_recvfrom, &[fd(&file), base, big, 0, 0, 0]), errno(libc::ENOTSOCK));
    assert_eq!(fake.call(libc::SYS_sendmsg, &[fd(&file), base, 0]), errno(libc::ENOTSOCK));
    assert_eq!(fake.call(libc::SYS_readv, &[fd(&file), base, 1025]), errno(libc::EINVAL));
    fake.put_words(base, &[base + 8192, big, base, 1 << 63]);
    assert_eq!(fake.call(libc::SYS_readv, &[fd(&file), base, 2]), errno(libc::EINVAL));
    fake.put_words(base, &[base + 8192, big, base, 5]);
    assert_eq!(fake.call(libc::SYS_preadv, &[fd(&file), base, 2, u64::MAX, 0]), errno(libc::EINVAL));
    let (reader, _writer) = pipe_of(4096, libc::O_NONBLOCK);
    assert_eq!(fake.call(libc::SYS_read, &[fd(&reader), base, big]), errno(libc::EAGAIN));
    assert_eq!(fake.call(libc::SYS_pread64, &[fd(&reader), base, big, 0]), errno(libc::ESPIPE));
    assert_eq!(fake.call(libc::SYS_read, &[fd(&file), base, u64::MAX]), errno(libc::EFAULT));
}

#[test]
fn direct_io_stays_in_sectors() {
    let dir = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(|| "/var/tmp".into(), std::path::PathBuf::from);
    let path = dir.join(format!("farshore-direct-{}", std::process::id()));
    let content = pattern(1 << 20);
    std::fs::write(&path, &content).expect("a file");
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).expect("a file");
    let Ok(file) = file else {
        println!("skipped: no direct I/O in {}", dir.display());
        return;
    };
    let fake = Fake::new(PAGES, BUDGET);
    for offset in [0, 512] {
        let result = fake.call(libc::SYS_pread64, &[fd(&file), fake.base() + offset, 1 << 20, 0]);
        if result == errno(libc::EINVAL) {
            println!("skipped: this disk wants more than {offset} aligned");
            continue;
        }
        assert_eq!(result, 1 << 20);
        assert_eq!(fake.get(fake.base() + offset, 1 << 20), content);
    }
}

#[test]
fn control_data_is_passed() {
    let (left, right) = UnixStream::pair().expect("socketpair");
    let file = file_with(b"passed");
    let fake = Fake::new(PAGES, BUDGET);
    let (header, array, control) = (fake.base() + 100, fake.base() + 4096 - 8, fake.base() + 9 * 4096 - 12);
    // Large enough to be cut if there were no control data.
    let len = 120_000;
    fake.put_words(array, &[fake.base() + 20 * 4096 + 5, len]);
    fake.put_words(header, &[0, 0, array, 1, control, 24, 0]);
    fake.put_words(control, &[20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32, fd(&file)]);
    let content = pattern(len);
    fake.put(fake.base() + 20 * 4096 + 5, &content);
    assert_eq!(fake.call(libc::SYS_sendmsg, &[fd(&left), header, 0]), len as i64);
    fake.put_words(control, &[0, 0, 0, 0, 0]);
    fake.put_words(header, &[0, 0, array, 1, control, 40, 0]);
    let result = fake.call(libc::SYS_recvmsg, &[fd(&right), header, libc::MSG_WAITALL as u64]);
    assert!(result > 0 && result <= len as i64);
    assert_eq!(fake.get(header + 40, 8), 24u64.to_ne_bytes());
    let got = u64::from_ne_bytes(fake.get(control + 16, 8).try_into().expect("8 bytes")) as u32 as i32;
    // SAFETY: the descriptor has just been received.
    let mut received = unsafe { std::fs::File::from_raw_fd(got) };
    let mut text = String::new();
    received.rewind().expect("memfd");
    received.read_to_string(&mut text).expect("memfd");
    assert_eq!(text, "passed");
}

#[test]
fn many_messages_keep_their_lengths() {
    let (left, right) = UnixDatagram::pair().expect("socketpair");
    let fake = Fake::new(PAGES, BUDGET);
    let sizes = [10u64, 30_000, 50_000, 100_000, 0, 7];
    let mut at = fake.base() + 4096 + 50;
    for (index, size) in sizes.iter().enumerate() {
        let (header, array) = (fake.base() + 40 + index as u64 * 64, fake.base() + TABLES + index as u64 * 16);
        fake.put_words(array, &[at, *size]);
        fake.put_words(header, &[0, 0, array, 1, 0, 0, 0, 0]);
        fake.put(at, &vec![index as u8 + 1; *size as usize]);
        at += size + 5000;
    }
    let vector = fake.base() + 40;
    let count = sizes.len() as u64;
    let sent = fake.call(libc::SYS_sendmmsg, &[fd(&left), vector, count, libc::MSG_DONTWAIT as u64]);
    assert!(sent >= 3, "{sent}");
    let first = fake.base() + 4096 + 50;
    fake.put(first, &vec![0; (at - first) as usize]);
    let timeout = fake.base() + 3000;
    fake.put_words(timeout, &[1, 0]);
    let flags = libc::MSG_WAITFORONE as u64;
    assert_eq!(fake.call(libc::SYS_recvmmsg, &[fd(&right), vector, count, flags, timeout]), sent);
    let mut at = first;
    for (index, size) in sizes.iter().enumerate().take(sent as usize) {
        let len = fake.get(vector + index as u64 * 64 + 56, 4);
        assert_eq!(len, (*size as u32).to_ne_bytes(), "message {index}");
        assert!(fake.get(at, *size).iter().all(|byte| *byte == index as u8 + 1));
        at += size + 5000;
    }
}

#[test]
fn random_bytes_and_directories() {
    let fake = Fake::new(PAGES, BUDGET);
    assert_eq!(fake.call(libc::SYS_getrandom, &[fake.base() + 9, 200_000, 0]), 200_000);
    assert!(fake.get(fake.base() + 9, 200_000).chunks(1000).all(|part| part.iter().any(|byte| *byte != 0)));
    assert_eq!(fake.call(libc::SYS_getrandom, &[fake.base(), 0, 0]), 0);
    let dir = std::fs::File::open("/").expect("a directory");
    assert!(fake.call(libc::SYS_getdents64, &[fd(&dir), fake.base() + 4000, 400_000]) > 0);
    assert_eq!(fake.call(libc::SYS_getdents64, &[fd(&dir), fake.base() + 4000, 400_000]), 0);
    let (mut byte, file) = ([0u8; 1], dir.as_raw_fd());
    // SAFETY: the buffer is ours.
    assert_eq!(unsafe { libc::read(file, byte.as_mut_ptr().cast(), 1) }, -1);
    let native = std::io::Error::last_os_error().raw_os_error().expect("an errno");
    assert_eq!(fake.call(libc::SYS_read, &[fd(&dir), fake.base(), 400_000]), errno(native));
}

#[test]
fn devices_are_not_cut() {
    let fake = Fake::new(PAGES, BUDGET);
    let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero").expect("/dev/zero");
    fake.put(fake.base(), &pattern(300_000));
    assert_eq!(fake.call(libc::SYS_write, &[fd(&zero), fake.base(), 300_000]), 300_000);
    assert_eq!(fake.call(libc::SYS_read, &[fd(&zero), fake.base(), 300_000]), 300_000);
    assert!(fake.get(fake.base(), 300_000).iter().all(|byte| *byte == 0));
    // SAFETY: a new descriptor, ours alone.
    let counter = unsafe { OwnedFd::from_raw_fd(libc::eventfd(5, libc::EFD_CLOEXEC)) };
    assert_eq!(fake.call(libc::SYS_read, &[fd(&counter), fake.base(), 300_000]), 8);
    assert_eq!(fake.get(fake.base(), 8), 5u64.to_ne_bytes());
}

/// The first piece is filled and nothing is left: the next one must not wait. If it did, the byte that comes late would
/// be in the result.
#[test]
fn a_filled_piece_with_nothing_behind_it_does_not_wait() {
    let content = pattern(BUDGET);
    let (left, right) = UnixStream::pair().expect("socketpair");
    let ends: [(OwnedFd, OwnedFd); 3] = [pipe_of(1 << 19, 0), named_pipe(), (right.into(), left.into())];
    for (reader, writer) in ends {
        let late = writer.try_clone().expect("dup");
        std::fs::File::from(writer).write_all(&content).expect("room");
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let writing = std::thread::spawn(move || {
            if wait.recv_timeout(std::time::Duration::from_secs(3)).is_err() {
                std::fs::File::from(late).write_all(b"late").expect("room");
            }
        });
        let fake = Fake::new(PAGES, BUDGET);
        let result = fake.call(libc::SYS_read, &[fd(&reader), fake.base(), 300_000]);
        stop.send(()).ok();
        writing.join().expect("writer");
        assert_eq!(result, BUDGET as i64);
        assert_eq!(fake.get(fake.base(), BUDGET), content);
    }
}
