//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_config::pace::OrAuto;
use farshore_config::{Ablate, Budget, FaultMode, Named, Size, Slowdown, StatsTarget, SwapSpec, Time};

use crate::others::{BENCH, DAEMON, MANAGE, METRICS, NODE, Other, PLAN, POLICY, RECORD, REPORT, TOP, VM};

/// Runs unmodified programs in less memory than they ask for.
#[derive(Parser, Debug)]
#[command(name = "farshore", version, max_term_width = 100, after_help = AFTER_ALL)]
#[command(
    long_about = "Runs unmodified programs in less memory than they ask for. Pages that a program does not use move to disk or to \
    compressed RAM, and come back when the program touches them. No root, kernel module or patched kernel is needed."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_ALL: &str = "\
Examples:
  farshore doctor                                    can this machine do it?
  farshore run --memory 256M -- sort -S 1G big.txt   sort with 256 MiB of local memory
  farshore stat 4242                                 show the counters of process 4242
  farshore set 4242 memory=512M                      give it more local memory
  farshore top                                       watch all running programs
  farshore bench random --against farshore,zram      compare with zram on this machine

See 'farshore COMMAND --help' or 'man farshore-COMMAND' for all about a command.";

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program in less memory than it asks for
    #[command(
        long_about = "Runs PROGRAM with a limit on the local memory of its heap and its large anonymous mappings. Pages that do not fit \
    move to the swap spaces. PROGRAM replaces this command: process id, input, output, signals and exit status are PROGRAM's own.\n\n\
    Everything after PROGRAM belongs to PROGRAM. Sizes take K, M, G and T (powers of 1024), such as 64M or 1.5G."
    )]
    Run(Box<RunArgs>),
    /// Check what this machine and user can do, and how to mend what is missing
    #[command(
        long_about = "Tries each operation that Farshore needs from the kernel and from the user's rights. For each one that is missing, it \
    says what that costs and how to mend it. It leaves nothing behind. It also says what programs leave behind in a swap space."
    )]
    Doctor(DoctorArgs),
    /// Show the counters of a running program
    Stat(StatArgs),
    /// Change settings of a running program
    Set(SetArgs),
    #[command(about = farshore_command::TOP_ABOUT, disable_help_flag = true)]
    Top(Words),
    #[command(about = farshore_command::METRICS_ABOUT, disable_help_flag = true)]
    Metrics(Words),
    #[command(about = farshore_command::PLAN_ABOUT, disable_help_flag = true)]
    Plan(Words),
    #[command(about = farshore_command::RECORD_ABOUT, disable_help_flag = true)]
    Record(Words),
    #[command(about = farshore_command::REPORT_ABOUT, disable_help_flag = true)]
    Report(Words),
    #[command(about = farshore_command::POLICY_ABOUT, disable_help_flag = true)]
    Policy(Words),
    #[command(about = farshore_command::NODE_ABOUT, disable_help_flag = true)]
    Node(Words),
    #[command(about = farshore_command::MANAGE_ABOUT, disable_help_flag = true)]
    Manage(Words),
    #[command(about = farshore_command::VM_ABOUT, disable_help_flag = true)]
    Vm(Words),
    #[command(about = farshore_command::DAEMON_ABOUT, disable_help_flag = true)]
    Daemon(Words),
    #[command(about = farshore_command::BENCH_ABOUT, disable_help_flag = true)]
    Bench(Words),
}

/// `farshore run`.
#[derive(Args, Debug)]
#[command(
    override_usage = "farshore run [OPTIONS] [--] PROGRAM [ARG]...",
    after_long_help = AFTER_RUN
)]
pub struct RunArgs {
    /// Local memory for managed pages, at least 4M; this, --slowdown or --budget is required, here or in the config file
    // A negative size should be called that, not an unknown option.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,

    /// Choose the local memory: the least with which faults make the program at most this much slower (5%)
    ///
    /// Farshore measures the time that is lost to faults. It takes memory away in small steps while less is lost, and gives it back
    /// within seconds when more is. PROGRAM and the processes that share its limit are measured together. In place of --memory.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub slowdown: Option<Slowdown>,

    /// The least memory that --slowdown may choose, and that --budget leaves [default: 16M]
    ///
    /// A program that fits it stays as it is: nothing is measured, and nothing is taken away.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_min: Option<Size>,

    /// The most memory that --slowdown may choose, and what PROGRAM begins with [default: what the machine has, or the control group]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_max: Option<Size>,

    /// Take the local memory from a budget that this user's programs share: never more than SIZE together
    ///
    /// Who loses more time to faults gets more, and who needs less gives it back. Programs that name the same budget share it; without
    /// SIZE, PROGRAM joins one that is there. With --slowdown a program takes no more than it needs for that; --memory or
    /// --memory-max is the most that it takes. It is never left with less than --memory-min, and does not begin where that
    /// is not to be had. Its processes count as one. A budget ends with its last program.
    #[arg(long, value_name = "NAME[=SIZE]")]
    pub budget: Option<Budget>,

    /// Where cold pages go; repeat to spread them over several
    ///
    /// SPEC is one of
    ///   auto                   ram:auto in front of the default;
    ///   dir:PATH               a file without a name in this directory;
    ///   file:PATH[,size=SIZE]  this file, made anew and removed at once;
    ///   dev:PATH[,size=SIZE][,force]
    ///                          a block device that nothing else uses; what is on it is lost. If
    ///                          it bears a file system or the like, only with ,force;
    ///   ram:lz4[,size=SIZE]    a pool of compressed pages in RAM, within --memory: alone, or in
    ///                          front of others, which get its oldest pages when it is full;
    ///   ram:zstd[,size=SIZE]   the same, smaller and slower;
    ///   ram:auto[,size=SIZE]   the same, in front of others: it decides while the program runs how much
    ///                          of --memory it is worth, from none to seven eighths;
    ///   ram[,size=SIZE]        RAM set aside, for tests;
    ///   nbd://HOST[:PORT][/EXPORT][,force], nbd+unix:///[EXPORT]?socket=PATH
    ///                          memory or disks of another machine, by an NBD server: always encrypted, for one run at a time;
    ///   redis://HOST[:PORT], redis+unix:///PATH, each with [,size=SIZE][,expire=TIME][,password-file=PATH]
    ///                          a Redis or Valkey server, or a Cluster by one of its servers: always encrypted. Pages of
    ///                          a program that was killed go after TIME (3600s);
    ///   mirror:(SPEC,SPEC[,SPEC])
    ///                          two or three of these (no pool), each of which has all pages: what one loses the others have;
    ///   delay:TIME[,rate=SIZE][,size=SIZE]
    ///                          RAM that answers after TIME (10us, 1ms) and transfers at most SIZE a second, for
    ///                          measuring; several are an array, each with a rate of its own.
    /// The default is dir: of $FARSHORE_SWAP_DIR, else of /var/tmp.
    ///
    /// A device that is mounted, swapped to, part of a volume, read-only or in use by another program is
    /// refused. One that bears the signature of a file system, a partition table, a volume, an array or
    /// swap space needs ,force. Its user must be able to open it for reading and writing. The program
    /// and its descendants share it, each with parts of its own. Others can use it when all of them
    /// have ended, or after swap-=.
    ///
    /// A pool's pages are local memory, so pages and pool together keep the limit. Pages that compression
    /// does not make smaller by a quarter go on to the other spaces; pages of one word repeated, such as
    /// zeros, take no memory.
    #[arg(long, value_name = "SPEC", verbatim_doc_comment)]
    pub swap: Vec<SwapSpec>,

    /// Who fetches an absent page: upcall (default) or poll
    ///
    /// upcall  the thread that touched the page, in a signal handler: faster, and needs no
    ///         privilege;
    /// poll    threads of Farshore's: slower, but no signal is raised. The kernel's own accesses
    ///         are served too with vm.unprivileged_userfaultfd=1, /dev/userfaultfd or
    ///         CAP_SYS_PTRACE.
    #[arg(long, value_name = "MODE", verbatim_doc_comment)]
    pub fault: Option<FaultMode>,

    /// Which pages leave: second-chance (default) or fifo
    ///
    /// second-chance passes over a page once if it came back while it was leaving, and three times if it did so before. Of a loop
    /// over more pages than there is room for, a part stays. fifo takes pages in the order in which they came.
    #[arg(long, value_name = "NAME[,KEY=VALUE]...")]
    pub policy: Option<Named>,

    /// Which pages are fetched before they are asked for: sequential (default), stride, majority or none
    ///
    /// sequential: a fault that goes on where the last fetch nearby ended brings up to 63 pages beside it by the same read; from 16
    /// on, other threads read up to 252 more while the program works on these. stride: pages at equal distances, found region by
    /// region. majority: the distance that most of the last faults nearby have (after Leap).
    #[arg(long, value_name = "NAME[,KEY=VALUE]...")]
    pub prefetch: Option<Named>,

    /// Evictors, the threads that move pages out, 1 to 16 [default: auto: one a core, at most 4, awake as needed]
    #[arg(long, value_name = "N|auto")]
    pub evictors: Option<OrAuto>,

    /// Pages that leave together, 8 to 256 [default: auto: 64 to 256, the more the faster the program needs memory]
    ///
    /// Fewer under a small limit, and 64 at most while the program runs unithreads. Farshore keeps about two batches of memory free.
    #[arg(long, value_name = "N|auto")]
    pub batch: Option<OrAuto>,

    /// Writes that each evictor may have with the disk at a time, 1 to 4 [default: auto: 2; more where the disk works on them side by
    /// side, fewer where reads would wait for them]
    #[arg(long, value_name = "N|auto")]
    pub writes: Option<OrAuto>,

    /// Percent of the memory limit that is kept free for faults, 1 to 50 [default: auto: two batches, at most a sixteenth of the limit;
    /// 15 while the program runs unithreads]
    #[arg(long, value_name = "N|auto")]
    pub free: Option<OrAuto>,

    /// For experiments and nothing else: leave out parts of Farshore, to see what each of them gives
    ///
    /// LIST is one or more, with commas between them, of
    ///   pipeline    an evictor has one batch at a time, and not three;
    ///   caches      faults take each frame from what all cores share;
    ///   rescue      a page that is leaving does not come back from its stage: the fault waits for the write, and reads;
    ///   delegation  a core without slots takes another core's, with its lock, and does not ask it;
    ///   write-runs  each page is a write of its own, of 4 KiB;
    ///   partitions  all cores have one list of granules, and extents in common;
    ///   prefetch    as --prefetch none;
    ///   headroom    stages and free frames stay as many where the data would nearly fit without them;
    ///   migration   each evictor stays on one core;
    ///   batch=N     batches of N pages, 1 to 512.
    /// The program runs as well as without, and slower. farshore stat says what is left out.
    #[arg(long, value_name = "LIST", verbatim_doc_comment)]
    pub ablate: Option<Ablate>,

    /// Write the counters as JSON to FILE when the program ends (- for stderr)
    ///
    /// The process that this command becomes writes them, whatever program it is by then; other processes do not. An existing file
    /// is overwritten, and a link followed, as by a shell's redirection.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub stats: Option<StatsTarget>,

    /// Read options from FILE: TOML, with the same names; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The smallest mapping that is managed (the heap always is) [default: 128K]
    ///
    /// Smaller ones are managed too, from when those that are there come to a 32nd of the limit.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub threshold: Option<Size>,

    /// How long a swap space may take for a read or write before it counts as hanging [default: 10s]
    ///
    /// Farshore then says so, and writes to the other swap spaces alone until it answers. A thread that needs a page from it
    /// waits, however long that takes.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub io_timeout: Option<Time>,

    /// Give each process all of --memory for itself
    ///
    /// Without it, PROGRAM and all processes that it forks or starts share the limit: a process that is short of memory takes it
    /// from one that has some to spare. When all are short, all get equal parts. A process always keeps what it cannot do without,
    /// 1 to 10 MiB, so many processes under a small limit exceed it together. Pages that a forked child shares with its parent count
    /// once, until one of the two writes them or gives them up.
    #[arg(long)]
    pub memory_per_process: bool,

    /// Encrypt pages on their way to the swap space
    ///
    /// AES-256-XTS, about a microsecond a page, and a MiB of memory for each evictor. The key is random and exists only in memory
    /// (4 KiB) that is locked, which counts towards RLIMIT_MEMLOCK, and left out of core dumps. A forked child reads its parent's
    /// pages with the parent's key, and has one of its own for what it writes itself. What is local stays plain: the kernel's own
    /// swap and core dumps hold it. With nbd: and redis: pages are always encrypted. On a block device (dev:) they are too, unless --no-follow is given: all programs
    /// of a family have the whole device open.
    ///
    /// Without it the program's cold pages are plain text in the swap space, and stay there after its end: on a device until
    /// they are overwritten, and in the blocks that a swap file leaves free on its disk. Nothing is wiped.
    #[arg(long)]
    pub encrypt: bool,

    /// Manage mappings of files too, with the file as their swap space
    ///
    /// Private mappings, and shared ones that are only read, of regular files of the program's user: their pages count within
    /// --memory and are read past the page cache, and leave without a write. What the program writes to a private mapping becomes
    /// memory like any other. Farshore holds a read lease on the file: who opens it for writing waits until the mapping is the
    /// kernel's again. A file that somebody has open for writing, that is another user's (unless root asks), or that lies in a tmpfs or on
    /// a network stays the kernel's, and so do mappings that can be run. In a config file: files = true.
    #[arg(long)]
    pub files: bool,

    /// Keep the room that freed pages have on the disk
    ///
    /// Without it, room that is no longer needed is given back some seconds later, 2 MiB at a time, if there is more than 64 MiB of
    /// room and more than twice what is needed: swap files get holes, devices are told (discard). In a config file: trim = false.
    #[arg(long)]
    pub no_trim: bool,

    /// Run programs that PROGRAM starts as ordinary programs
    ///
    /// Without it they run under Farshore too, with these options, if they can: see below. In a config file: follow = false.
    #[arg(long)]
    pub no_follow: bool,

    /// Do not start programs that cannot run under Farshore
    ///
    /// Without it such a program (set-user-ID, 32-bit) runs as it would natively, outside of the limit,
    /// and a line on stderr says so. With it the call that starts the program fails with EPERM. In a config file: require = true.
    #[arg(long, conflicts_with = "no_follow")]
    pub require: bool,

    /// The program, found in PATH as a shell would, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", num_args = 1..)]
    pub command: Vec<OsString>,
}

const AFTER_RUN: &str = "\
Examples:
  farshore run --memory 256M -- sort -S 1G big.txt
  farshore run --memory 1G --swap dir:/mnt/a --swap dir:/mnt/b -- redis-server
  farshore run --slowdown 5% -- redis-server
  farshore run --budget jobs=8G -- python3 job.py      (another: farshore run --budget jobs -- …)
  farshore run --memory 64M --swap delay:10us --stats - -- ./program
  farshore run --memory 1G --encrypt -- ./program
  farshore run --memory 8G --files -- llama-cli -m model.gguf
  farshore run --config far.toml -- python3 job.py     (far.toml: memory = \"2G\")

Programs that PROGRAM starts run under Farshore too, with the same options, and so do those that
they start, whatever environment they get. Programs that cannot (setuid, 32-bit, unreadable; static
ones where their start cannot be traced) run without it, and a line says so; with --require they
are not started. So does a program where Farshore is in the way of its start: its library was
replaced, a swap directory is gone, there is no room for its variables. What such a program starts
is not followed.
A 'farshore run' among them replaces the options for what it starts. Only the process that this
command becomes writes --stats, at its end, whatever program it is by then.

Exit status:
  PROGRAM's own; 128+n in a shell if signal n ended it. If PROGRAM could not be started:
  125  Farshore could not start it: a wrong option, an unusable swap space, or a program that cannot
       work with it (setuid, 32-bit)
  126  PROGRAM exists and is not executable
  127  PROGRAM does not exist

Environment:
  FARSHORE_SWAP_DIR  the directory for swap files if no --swap is given
  FARSHORE_LIBRARY   libfarshore.so, if it is not beside farshore, nor in ../lib/farshore or ../lib
  FARSHORE_OPTIONS, FARSHORE_OLD_PRELOAD and LD_PRELOAD are set for PROGRAM, which sees none of
  them";

/// `farshore doctor`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  farshore doctor
  farshore doctor --swap dir:/mnt/fast    and whether cold pages can go there
  farshore doctor --measure --swap nbd://memory-7 --swap dir:/var/tmp
                                          and what a page costs that is there
  farshore doctor --json | jq .           for scripts

Exit status: 0 if 'farshore run' can work here with its default, --fault upcall; 1 if it cannot.")]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Check this swap space; repeat for more [default: the one that run would take]
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<SwapSpec>,
    /// Measure how long pages take that are there, by a program of 64 MiB in 16 (some four seconds each)
    #[arg(long)]
    pub measure: bool,
}

/// `farshore stat`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  farshore stat 4242
  farshore stat --watch 1 4242            again every second, with rates
  farshore stat --json 4242               the same fields as --stats of 'farshore run'

Only the user that started the program, and root, may ask.

Exit status: 0; 1 if there is no such program, or it does not run under Farshore.")]
pub struct StatArgs {
    /// The program's process id
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: u32,
    /// Print JSON; with --watch, one line each time
    #[arg(long)]
    pub json: bool,
    /// Show them again every SECONDS, with what happened in between, until the program ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<f64>,
}

/// `farshore set`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Keys:
  memory=SIZE   the local memory: more at once; less as fast as pages can leave
  slowdown=PERCENT
                chooses the local memory, as --slowdown of 'farshore run': at most the last
                --memory, --memory-max or memory=. slowdown=off and memory= end that; off keeps the
                limit
  budget=SIZE   how large the budget is that the program shares (--budget), for all programs in it.
                There memory= is the most that this one takes
  swap+=SPEC    adds a swap space (dir:, file: or dev:), or calls off the removal of one. Where the
                swap space is mirror:, adds a copy, and waits until it has all pages
  swap-=SPEC    removes a swap space, named as 'farshore stat' shows it: what it holds moves to the
                others, then its file is closed. The command waits for that; after Ctrl-C it goes on
                without the command. If the others have no room, the space is used again.
                Where the swap space is mirror:, removes a copy: two must stay, and have all pages.
                The command waits until children that were forked before have ended
  policy=NAME, prefetch=NAME
                as the options of 'farshore run', for this process, and what it forks or starts
                later
  evictors=N, batch=N, writes=N, free=N
                as the options of 'farshore run', at most what the run was started with, or auto
  NAME=NUMBER   a parameter of a policy that has attached to the program

Settings are made in order, each when the one before is done, up to the first that is refused or
fails. There can be 64 swap spaces; none can be added where the program's is RAM alone. Pages of a
space to be removed that cannot be read stay where they are, and so does the space; the program's
stderr names them. Forked children that exist already have swap spaces of their own; later ones, and
programs that the program starts later, get the spaces that are in use then.

Exit status: 0; 1 if a setting was refused or failed, or there is no such program.

Examples:
  farshore set 4242 memory=2G
  farshore set 4242 swap+=dir:/mnt/new swap-=dir:/mnt/old
  farshore set 4242 swap+=nbd://node3/job swap-=nbd://node1/job    another copy of a mirror:")]
pub struct SetArgs {
    /// The program's process id
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: u32,
    /// Settings, made in order
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

/// What a command is asked that is a program of its own, which reads it.
#[derive(Args, Debug)]
pub struct Words {
    /// Its words
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    pub words: Vec<OsString>,
}

fn pid(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if pid > 0 && i32::try_from(pid).is_ok() => Ok(pid),
        _ => Err(format!("invalid process id {text:?}: write a number such as 4242")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("invalid number of seconds {text:?}: write one from 0.1 to 86400")),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("invalid setting {text:?}: write KEY=VALUE such as memory=512M")),
    }
}

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(words: Vec<OsString>) -> Result<Asked<Command>, Refusal> {
    for (other, command) in OTHERS {
        if let Some(words) = other.asked(&words) {
            return Ok(Asked::For(command(Words { words })));
        }
    }
    Ok(match usage::parse::<Cli>(words, &WORDS)? {
        Asked::For(cli) => Asked::For(cli.command),
        Asked::Text(text) => Asked::Text(text),
    })
}

/// What makes a command of its words.
type Read = fn(Words) -> Command;
/// The commands that are programs of their own, and what they are here.
const OTHERS: [(Other, Read); 11] = [
    (TOP, Command::Top),
    (METRICS, Command::Metrics),
    (PLAN, Command::Plan),
    (RECORD, Command::Record),
    (REPORT, Command::Report),
    (POLICY, Command::Policy),
    (NODE, Command::Node),
    (MANAGE, Command::Manage),
    (VM, Command::Vm),
    (DAEMON, Command::Daemon),
    (BENCH, Command::Bench),
];

/// What usage errors name.
const WORDS: usage::Words = usage::Words {
    first: "command",
    known: "run, doctor, stat, set, top, metrics, plan, record, report, policy, node, manage, vm, daemon or bench",
    required: &[
        ("PROGRAM", "no PROGRAM given: write it as in 'farshore run --memory 256M -- PROGRAM'"),
        ("KEY=VALUE", "no setting given: write it as in 'farshore set PID memory=512M'"),
        ("PID", "no process id given: write it as in 'farshore stat PID'"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_manual::Parts;

    fn parsed(words: &[&str]) -> Result<Asked<Command>, Refusal> {
        parse(std::iter::once("farshore").chain(words.iter().copied()).map(OsString::from).collect())
    }

    fn run(words: &[&str]) -> RunArgs {
        match parsed(words) {
            Ok(Asked::For(Command::Run(arguments))) => *arguments,
            other => panic!("{words:?} gave {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_tells_what_stays_on_the_disk() {
        let help = Cli::command().find_subcommand_mut("run").expect("it is there").render_long_help().to_string();
        let told = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            told.contains("Without it the program's cold pages are plain text in the swap space, and stay there after its end"),
            "{help}"
        );
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        for words in [
            &["run", "--memory", "64M", "ls", "--memory", "-l", "--help", "--", "x"][..],
            &["run", "--memory", "64M", "--", "ls", "--memory", "-l", "--help", "--", "x"][..],
        ] {
            let arguments = run(words);
            assert_eq!(arguments.memory, Some(Size::mib(64)));
            assert_eq!(arguments.command, ["ls", "--memory", "-l", "--help", "--", "x"]);
        }
        assert_eq!(run(&["run", "--stats", "-", "--", "-odd"]).command, ["-odd"]);
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&["run", "--bogus", "ls"][..], "unknown option '--bogus'"),
            (&["run", "--memori", "4M", "ls"], "did you mean '--memory'?"),
            (&["run", "--memory", "64Q", "ls"], "--memory: invalid size \"64Q\""),
            (&["run", "--memory", "-5M", "ls"], "--memory: invalid size \"-5M\""),
            (&["run", "--memory"], "--memory has no value"),
            (&["run", "--memory", "4M", "--memory", "5M", "ls"], "--memory is given twice"),
            (&["run", "--memory", "4M"], "no PROGRAM given"),
            (&["run", "--swap", "tape:/x", "ls"], "--swap: invalid swap space \"tape:/x\""),
            (&["run", "--fault", "push", "ls"], "--fault: invalid fault mode \"push\""),
            (&["run", "--evictors", "many", "ls"], "--evictors"),
            (&["run", "--policy", "=", "ls"], "--policy"),
            (&["run", "--threshold", "x", "ls"], "--threshold"),
            (&["walk"], "unknown command 'walk'"),
            (&[], "no command given"),
            (&["stat"], "no process id given"),
            (&["stat", "0"], "invalid process id \"0\""),
            (&["stat", "x"], "invalid process id \"x\""),
            (&["stat", "1", "--watch", "0"], "--watch: invalid number of seconds \"0\""),
            (&["set", "1"], "no setting given"),
            (&["set", "1", "memory"], "invalid setting \"memory\""),
            (&["doctor", "now"], "now"),
        ] {
            let refusal = parsed(words).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert_eq!(refusal.status, farshore_command::refusal::CANNOT_START);
            assert!(refusal.text.contains(part), "{words:?}: {}", refusal.text);
            assert!(!refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
            println!("{refusal}");
        }
    }

    /// A file of the repository, by its path from there.
    fn document(path: &str) -> String {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The long options of a command and of its own commands, without --help.
    fn options(command: &clap::Command) -> Vec<String> {
        let own = command.get_arguments().filter_map(|argument| argument.get_long()).filter(|name| *name != "help");
        let mut names: Vec<String> = own.map(String::from).collect();
        names.extend(command.get_subcommands().flat_map(options));
        names
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let mut cli = Cli::command();
        cli.build();
        let check = |name: &str, command: &clap::Command, see: &str| {
            farshore_manual::check(env!("CARGO_MANIFEST_DIR"), name, command, Parts::Pages, see);
        };
        check("farshore", &cli, "farshore-load(1), farshore-serve(1)");
        for sub in cli
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help" && OTHERS.iter().all(|(other, _)| other.name != sub.get_name()))
        {
            check(&format!("farshore-{}", sub.get_name()), sub, "farshore(1)");
        }
    }

    #[test]
    fn the_reference_has_every_option() {
        let page = document("docs/src/reference/command-line.md");
        for name in ["run", "stat", "doctor"] {
            let command = Cli::command().find_subcommand(name).expect("it is a command").clone();
            let missing: Vec<String> =
                options(&command).into_iter().filter(|name| !page.contains(&format!("--{name}"))).collect();
            assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?} of {name}");
        }
    }
}
