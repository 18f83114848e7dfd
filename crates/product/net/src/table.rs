//! What every system call does with the program's memory.
//!
//! Under `UFFD_FEATURE_SIGBUS` the kernel's own access to a page that is absent or write-protected fails with
//! `EFAULT`. So the net must know, before a call is made, which bytes the kernel may touch. This table says so,
//! for each x86-64 system call, as data: [`Kind`] is what is done with the call, [`Ptr`] is one pointer
//! argument. [`super::buffers`] carries the rules out, [`super::transfer`] moves what can be larger than the
//! budget, [`super::calls`] has the calls that no rule describes. `docs/src/reference/system-calls.md` is the table for people.
//!
//! The rules are generous: a page pinned too many costs nothing but time, a page too few is an `EFAULT` that the
//! program would not have seen.
//!
//! # Numbers that are not in the table
//!
//! They get `ENOSYS`, whatever their arguments are. A call that is newer than Farshore could do anything: read structures
//! with pointers inside (an `EFAULT` that the program would not have seen), move or drop mappings, or keep pages for
//! later, as io_uring does, and write to them when they have long been evicted: wrong bytes, without an error. To
//! refuse only those with an argument in managed memory would not do, since a structure on the stack may lead there, and a
//! range may begin outside. A program that knows such a call must run on kernels that do not have it, and has a way
//! without. Numbers with x32's bit are not in the table either: their structures are other ones.

#[cfg(test)]
mod document;
mod entries;
#[cfg(test)]
mod special;

/// What the kernel does with the memory behind a pointer argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// It reads.
    In,
    /// It writes.
    Out,
    /// It reads and writes; where the program itself may not write, it only reads.
    Both,
}

/// How many bytes lie behind a pointer argument. `by` is the index of another argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// So many.
    Bytes(u32),
    /// `plus` + argument `by` × `unit`, at most `cap`. With `int` the kernel looks at the argument's low 32 bits,
    /// as a signed number: a negative one is no bytes.
    Counted {
        /// Which argument.
        by: u8,
        /// Bytes an element.
        unit: u32,
        /// Bytes before the elements.
        plus: u32,
        /// The kernel never touches more.
        cap: u64,
        /// The argument is a 32-bit integer.
        int: bool,
    },
    /// One bit for each of argument `by`, in whole 64-bit words.
    Bits {
        /// Which argument.
        by: u8,
    },
    /// One byte for each page of argument `by` bytes.
    Pages {
        /// Which argument.
        by: u8,
    },
    /// A string that ends with a zero byte.
    Text,
    /// As many as the 32-bit integer says to which argument `by` points, at most `cap`; the kernel writes the integer.
    Behind {
        /// Which argument.
        by: u8,
        /// The kernel never touches more.
        cap: u64,
    },
    /// A structure whose size is the 32-bit integer at byte `at` of it (at least 64 bytes, at most a page).
    Sized {
        /// Offset of the size.
        at: u8,
    },
}

/// One pointer argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ptr {
    /// Index of the argument, 0 to 5.
    pub arg: u8,
    /// What the kernel does there.
    pub dir: Dir,
    /// With how many bytes.
    pub extent: Extent,
}

impl Ptr {
    /// The same, but the kernel never touches more than `bytes`.
    const fn cap(mut self, bytes: u64) -> Ptr {
        match &mut self.extent {
            Extent::Counted { cap, .. } | Extent::Behind { cap, .. } => *cap = bytes,
            _ => panic!("only counted extents have a cap"),
        }
        self
    }
    /// The same, but the count is a 32-bit integer.
    const fn int(mut self) -> Ptr {
        match &mut self.extent {
            Extent::Counted { int, .. } => *int = true,
            _ => panic!("only counted extents have a count"),
        }
        self
    }
    /// The same, with `bytes` more before the elements.
    const fn plus(mut self, bytes: u32) -> Ptr {
        match &mut self.extent {
            Extent::Counted { plus, .. } => *plus = bytes,
            _ => panic!("only counted extents have a head"),
        }
        self
    }
}

/// A call that moves bytes between a file and buffers that may be larger than the budget ([`super::transfer`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// `read`, `write`, `pread64`, `pwrite64`.
    Flat(Flow),
    /// `readv` … `pwritev2`.
    Vector(Flow),
    /// `sendto`.
    SendTo,
    /// `recvfrom`.
    RecvFrom,
    /// `sendmsg`.
    SendMsg,
    /// `recvmsg`.
    RecvMsg,
    /// `sendmmsg`.
    SendMany,
    /// `recvmmsg`.
    RecvMany,
    /// `getrandom`.
    Random,
    /// `getdents`, `getdents64`: the kernel may always return fewer entries.
    Entries,
}

/// Which way a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// From a file into memory.
    Read,
    /// From memory into a file.
    Write,
}

/// A call that no rule describes ([`super::calls`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// `close_range`: leaves Farshore's own descriptors out.
    CloseRange,
    /// `fcntl`, by command.
    Fcntl,
    /// `pidfd_getfd`: what it brings must not be Farshore's own.
    FetchDescriptor,
    /// `ioctl`, by the size in the request, with a few by name.
    Ioctl,
    /// `prctl`, by option.
    Prctl,
    /// `arch_prctl`, by option.
    ArchPrctl,
    /// `futex`, by operation.
    Futex,
    /// `futex_waitv`, `futex_requeue`: an array of waiters (argument 0), counted by argument 1 or two.
    FutexArray,
    /// `futex_wait`.
    FutexWait,
    /// `ptrace`, by request.
    Ptrace,
    /// `bpf`, by the pointers in its structure.
    Bpf,
    /// `keyctl`, by operation.
    Keyctl,
    /// `fsconfig`, by command.
    Fsconfig,
    /// `semctl`, by command.
    Semctl,
    /// `mq_notify`: a structure with a pointer to a cookie.
    MqNotify,
    /// `setsockopt`, with the options that have pointers inside.
    SetSockOpt,
    /// `getsockopt`, likewise.
    GetSockOpt,
    /// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`: fewer events are always allowed; the signal mask is filtered.
    EpollWait,
    /// `ppoll`: the signal mask is filtered.
    Ppoll,
    /// `pselect6`: likewise.
    Pselect,
    /// `rt_sigsuspend`: likewise.
    Suspend,
    /// `seccomp`: installed if it lets our own calls pass.
    Seccomp,
    /// `process_vm_readv`, `process_vm_writev`: on the program itself done by copying.
    ProcessVm(Flow),
    /// `execve`, `execveat`: path, arguments and environment are copied first.
    Exec,
    /// `setxattrat`, `getxattrat`: the value is behind a pointer in a structure.
    XattrAt(Flow),
    /// `kexec_load`: an array of segments.
    KexecLoad,
    /// `io_uring_setup`, `io_uring_enter`, `io_uring_register` ([`super::asynchronous`]).
    Ring,
    /// `io_setup` and its like, of Linux AIO ([`super::asynchronous`]).
    Aio,
}

/// Which part of the net handles a call that changes memory, signals or processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// Changes the program's mappings.
    Memory,
    /// Changes signal handling.
    Signals,
    /// Starts or ends a thread or process.
    Process,
}

/// What is done with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No argument points to memory: passed through.
    NoPointers,
    /// Pointers by rule: pinned for the time of the call.
    Pointers(&'static [Ptr]),
    /// A transfer, in pieces where it must be.
    Transfer(Transfer),
    /// Code of its own.
    Special(Special),
    /// Handled by another part of the net.
    Elsewhere(Area),
    /// The kernel keeps the pointer: the pages behind it stop being managed, and what the kernel does with them.
    Kept(Ptr, &'static str),
    /// Passed through although it has an address, and why that is right.
    Passed(&'static str),
    /// Answered with `ENOSYS`, and why.
    Refused(&'static str),
    /// Linux has no such call any more: passed through, the kernel answers `ENOSYS`.
    Gone,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name, as in the kernel's list.
    pub name: &'static str,
    /// What is done with it.
    pub kind: Kind,
    /// A bit for each argument that is a descriptor: Farshore's own answer `EBADF` there ([`super::calls`]).
    pub descriptors: u8,
    /// A bit for each argument that is a descriptor if other arguments say so: in the place of Farshore's own the kernel is shown one that is not
    /// open, and it decides.
    pub perhaps: u8,
}

/// One more than the highest number in the table.
pub const COUNT: usize = 472;

const UNASSIGNED: Entry = Entry { name: "", kind: Kind::Refused("there is no such call"), descriptors: 0, perhaps: 0 };

static TABLE: [Entry; COUNT] = build();

const fn build() -> [Entry; COUNT] {
    let list = entries::ENTRIES;
    let mut table = [UNASSIGNED; COUNT];
    let mut i = 0;
    while i < list.len() {
        let (nr, name, kind) = list[i];
        assert!(table[nr as usize].name.is_empty(), "a number is listed twice");
        assert!(i == 0 || list[i - 1].0 < nr, "the list is in order");
        table[nr as usize] = Entry { name, kind, descriptors: 0, perhaps: 0 };
        i += 1;
    }
    let mut i = 0;
    while i < entries::DESCRIPTORS.len() {
        let (bits, numbers) = entries::DESCRIPTORS[i];
        let mut j = 0;
        while j < numbers.len() {
            assert!(table[numbers[j] as usize].descriptors == 0, "a number is listed twice");
            table[numbers[j] as usize].descriptors = bits;
            j += 1;
        }
        i += 1;
    }
    let mut i = 0;
    while i < entries::PERHAPS.len() {
        let (bits, numbers) = entries::PERHAPS[i];
        let mut j = 0;
        while j < numbers.len() {
            assert!(table[numbers[j] as usize].perhaps == 0, "a number is listed twice");
            assert!(table[numbers[j] as usize].descriptors & bits == 0, "either always, or perhaps");
            table[numbers[j] as usize].perhaps = bits;
            j += 1;
        }
        i += 1;
    }
    table
}

/// The entry of call `nr`; `None` if the number is not assigned or newer than the table.
#[inline]
pub fn lookup(nr: u64) -> Option<&'static Entry> {
    // An unassigned number is refused by its entry, so the fast path need not ask for its name.
    TABLE.get(usize::try_from(nr).ok()?)
}

/// The entry of call `nr`, for documentation; `None` if there is no such call in the table.
pub fn describe(nr: u64) -> Option<&'static Entry> {
    lookup(nr).filter(|entry| !entry.name.is_empty())
}

#[cfg(test)]
mod tests;
