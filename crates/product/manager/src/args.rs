//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};
use farshore_config::control::Setting;
use farshore_config::{Budget, Named, Size, Slowdown, SwapSpec};

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::MANAGE_ABOUT,
        long_about = "Manages the memory of virtual machines: a virtual machine monitor connects to SOCKET and hands the memory of its guest over. From \
    then on at most --memory of it is in RAM, and pages that do not fit move to the swap spaces, as with 'farshore run'. The guest runs on, and needs no \
    change. Each virtual machine gets a process of its own, which ends with it. Ended by a signal, the command gives all memory back first. With --protocol firecracker it \
    restores guests from a snapshot instead: the guest runs at once, and its memory comes as it is touched."
    )]
    Manage(ManageArgs),

    /// `farshore vm`.
    #[command(about = farshore_command::VM_ABOUT)]
    Vm(VmArgs),
}

/// `farshore manage`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_MANAGE)]
pub struct ManageArgs {
    /// Listen at SOCKET, a path, for the processes of this user
    #[arg(long, value_name = "SOCKET")]
    pub listen: PathBuf,

    /// How memory is handed over
    #[arg(long, value_name = "NAME")]
    pub protocol: Protocol,

    /// With 'firecracker': restore guests from FILE, the memory file of a snapshot; no other option of memory goes with it
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,

    /// What a restored guest touches in its first ten seconds: written to FILE the first time, and read ahead from then on
    #[arg(long, value_name = "FILE")]
    pub working_set: Option<PathBuf>,

    /// The memory of each virtual machine.
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// How the memory of a virtual machine is managed.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// The most memory of a virtual machine that is in RAM, at least 4M; this, --slowdown or --budget is required
    ///
    /// Not in it: the manager's own tables, 8 bytes for each page of 4 KiB that was used.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,

    /// Choose that memory: the least with which faults make the virtual machine at most this much slower (5%)
    ///
    /// As with 'farshore run'. What is lost to faults is measured by the processor time of the virtual machine monitor's process.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub slowdown: Option<Slowdown>,

    /// The least memory that --slowdown may choose, and that --budget leaves [default: 16M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_min: Option<Size>,

    /// The most memory that --slowdown may choose [default: what the machine has, or the control group]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_max: Option<Size>,

    /// Take the memory from a budget that this user's virtual machines and programs share: never more than SIZE together
    ///
    /// As with 'farshore run': who loses more time to faults gets more. Without SIZE, the virtual machine joins a budget that is there. --memory is the most that
    /// it takes. It is never left with less than --memory-min, and does not begin where that is not to be had.
    #[arg(long, value_name = "NAME[=SIZE]")]
    pub budget: Option<Budget>,

    /// Where cold pages go; repeat to spread them over several [default: a file in /var/tmp, or in $FARSHORE_SWAP_DIR]
    ///
    /// As with 'farshore run'. Each virtual machine has files of its own in a dir:. A file: or dev: is for one virtual machine at a time.
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<SwapSpec>,

    /// Encrypt pages on their way to the swap spaces
    #[arg(long)]
    pub encrypt: bool,
}

/// `farshore vm`.
#[derive(Args, Debug)]
pub struct VmArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: VmCommand,
}

/// The commands of `farshore vm`.
#[derive(Subcommand, Debug)]
pub enum VmCommand {
    #[command(
        about = "Run an unmodified QEMU with at most SIZE of its guest's memory in RAM",
        long_about = "Runs an unmodified QEMU with at most SIZE of its guest's memory in RAM: pages that do not fit move to the swap spaces, as with 'farshore run'. \
    The guest needs no change, and has as much memory as QEMU's -m says. This command becomes QEMU: its process, its terminal and its exit status are QEMU's. \
    What is managed is the guest's memory alone, by a process of its own beside QEMU."
    )]
    Run(VmRunArgs),

    /// Show the virtual machines that run under Farshore, whoever has started them
    #[command(after_long_help = AFTER_VM_LIST)]
    List(VmListArgs),

    /// Show the counters of a virtual machine's memory: 'farshore stat' of its manager
    Stat(VmStatArgs),

    /// Change the memory limit, the service level and more of a virtual machine: 'farshore set' of its manager
    Set(VmSetArgs),

    /// Show where the guest has a virtual address, in each address space of it that is known (with 'farshore vm run --prefetch guest')
    Translate(VmTranslateArgs),

    /// Choose the policy by which pages of a virtual machine leave: 'farshore set' with policy=
    Policy(VmPolicyArgs),
}

/// `farshore vm list`.
#[derive(Args, Debug)]
pub struct VmListArgs {
    /// Print JSON: an array of objects
    #[arg(long)]
    pub json: bool,
}

/// `farshore vm stat`.
#[derive(Args, Debug)]
pub struct VmStatArgs {
    /// The virtual machine: the number of its monitor's process or of its manager, or its name (QEMU's -name)
    #[arg(value_name = "VM")]
    pub vm: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show them again every SECONDS
    #[arg(long, value_name = "SECONDS")]
    pub watch: Option<String>,
}

/// `farshore vm set`.
#[derive(Args, Debug)]
pub struct VmSetArgs {
    /// The virtual machine: the number of its monitor's process or of its manager, or its name (QEMU's -name)
    #[arg(value_name = "VM")]
    pub vm: String,
    /// Settings, made in order: memory=1G, slowdown=5%, budget=4G, policy=NAME, prefetch=NAME (or guest), evictors=N, batch=N,
    /// writes=N, free=5%
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// `farshore vm translate`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_VM_TRANSLATE)]
pub struct VmTranslateArgs {
    /// The virtual machine: the number of its monitor's process or of its manager, or its name (QEMU's -name)
    #[arg(value_name = "VM")]
    pub vm: String,
    /// The virtual address, such as 7f3c00001000 or 0x7f3c00001000
    #[arg(value_name = "ADDRESS", value_parser = address)]
    pub address: u64,
    /// Print JSON: an array of objects
    #[arg(long)]
    pub json: bool,
}

/// Reads an address.
fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| "write it in hexadecimal, such as 7f3c00001000".into())
}

/// `farshore vm policy`.
#[derive(Args, Debug)]
pub struct VmPolicyArgs {
    /// The virtual machine: the number of its monitor's process or of its manager, or its name (QEMU's -name)
    #[arg(value_name = "VM")]
    pub vm: String,
    /// The policy, one of those of --policy of 'farshore run'
    #[arg(value_name = "NAME")]
    pub policy: String,
}

/// `farshore vm run`.
#[derive(Args, Debug)]
#[command(override_usage = "farshore vm run [OPTIONS] [--] QEMU [ARG]...", after_long_help = AFTER_VM_RUN)]
pub struct VmRunArgs {
    /// The memory of the virtual machine.
    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Which pages come unasked: sequential (the default), stride, majority, none, or guest
    ///
    /// The first three go by the order in which the guest's memory lies. 'guest' goes by the virtual addresses of the guest's programs, which it finds in the guest's page tables:
    /// for programs that go through memory in order, in a guest that has run for a while.
    #[arg(long, value_name = "NAME", value_parser = prefetcher)]
    pub prefetch: Option<Prefetcher>,

    /// QEMU and its arguments
    // What follows QEMU's name is its own, options too; an option before it that we do not know is still an error.
    #[arg(value_name = "QEMU", required = true, trailing_var_arg = true)]
    pub line: Vec<OsString>,
}

/// Which pages come unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prefetcher {
    /// Those that a prefetcher of the engine asks for.
    BuiltIn(Named),
    /// Those that come next in virtual addresses of the guest.
    Guest,
}

/// Reads the name of one.
fn prefetcher(text: &str) -> Result<Prefetcher, String> {
    match Setting::read("prefetch", text) {
        _ if text == "guest" => Ok(Prefetcher::Guest),
        Ok(Setting::Prefetch(named)) => Ok(Prefetcher::BuiltIn(named)),
        Ok(_) => Err(format!("'{text}' is no prefetcher")),
        Err(why) => Err(format!("{why}, or guest")),
    }
}

/// The protocols.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Cloud Hypervisor's, in both of its proposed forms.
    CloudHypervisor,
    /// Firecracker's, of snapshots that are restored: memory comes as it is touched, and stays.
    Firecracker,
}

const AFTER_MANAGE: &str = "\
Examples:
  farshore manage --listen /run/user/1000/memory --protocol cloud-hypervisor --memory 256M
  S=/run/user/1000/memory
  cloud-hypervisor --memory size=1G,shared=on,uffd_handoff_socket=$S,uffd_handoff_mode='MISSING|WP'

  farshore manage --listen $S --protocol firecracker --snapshot vm.mem --working-set vm.set
  (Firecracker's /snapshot/load: a mem_backend of backend_type Uffd, and $S as its backend_path)

Signals: SIGUSR1 writes a line about each virtual machine to stderr. SIGINT, SIGTERM, SIGHUP and
SIGQUIT end it. All memory is brought back before, so that the virtual machines go on without a
manager; where there is no room for that, it stays.

Exit status:
  1    it cannot listen at SOCKET, or the kernel lacks something
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n)";

const AFTER_VM_RUN: &str = "\
Examples:
  farshore vm run --memory 1G -- qemu-system-x86_64 -accel kvm -m 4G -drive file=disk.qcow2 ...
  farshore vm run --memory 1G --swap ram:zstd,size=512M --swap dir:/disk -- qemu-system-x86_64 ...
  farshore vm run --budget guests=8G -- qemu-system-x86_64 ...    (another: --budget guests)
  farshore vm run --slowdown 5% -- qemu-system-x86_64 ...

QEMU gets two options in front of its own, unless it has a memory backend:
-object memory-backend-memfd,id=farshore,share=on,size=... and -machine memory-backend=farshore.
A memory backend of its own must be a memory-backend-memfd with share=on.

Signals to QEMU are QEMU's. SIGUSR1 to its manager, whose number is said at the start, writes a
line about the memory to stderr; SIGTERM gives the memory back, and QEMU goes on without a limit.

Exit status:
  125     a wrong option
  126     QEMU cannot be executed
  127     QEMU was not found
  else    QEMU's";

const AFTER_VM_LIST: &str = "\
Columns:
  pid       the monitor's process
  name      QEMU's -name, or what the kernel calls the monitor
  manager   the process that manages its memory
  level     how its limit comes about: fixed, slowdown with how much slower it is and may be, or
            budget with the budget's name
  limit     the most of its memory that is in RAM
  resident  what is in RAM
  memory    what the guest has
  out       what the swap spaces hold

Examples:
  farshore vm list
  farshore vm set one memory=512M                   a guest that runs as QEMU's -name one
  farshore vm set 4711 slowdown=5%                  from now on its limit is chosen
  farshore vm policy one fifo

Exit status: 0, also if no virtual machine runs.";

const AFTER_VM_TRANSLATE: &str = "\
Columns:
  root      the address space: the physical address of its first page table (what CR3 has)
  physical  the guest-physical address
  host      the address in the monitor's process; - where the guest has no memory
  page      the size of the page that has it

The address spaces are those that a processor of the guest was seen to run lately. A page table
that is out of RAM is wished to come, and has no answer this time.

Exit status: 0, also if no address space has the address.";

/// What usage errors name.
const WORDS: Words = Words {
    first: "command",
    known: "manage or vm, and vm run, list, stat, set, translate or policy",
    required: &[
        ("QEMU", "no QEMU given: write it behind the options, such as farshore vm run --memory 1G -- qemu-system-x86_64 -m 4G"),
        ("--listen", "no socket given: write --listen SOCKET, such as --listen /run/user/1000/memory"),
        ("--protocol", "no protocol given: write --protocol cloud-hypervisor, or firecracker"),
        ("<VM>", "no virtual machine given: write its process or its name, as 'farshore vm list' shows them"),
        ("KEY=VALUE", "no setting given: write it as in 'farshore vm set one memory=512M'"),
        ("<ADDRESS>", "no address given: write it as in 'farshore vm translate one 7f3c00001000'"),
        ("<NAME>", "no policy given: write it as in 'farshore vm policy one fifo'"),
    ],
};

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(line: Vec<OsString>) -> Result<Asked<Command>, Refusal> {
    usage::command::<Command>(line, &WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;
    use farshore_manual::Parts;

    fn parsed(words: &[&str]) -> Result<Asked<Command>, Refusal> {
        parse(std::iter::once("farshore").chain(words.iter().copied()).map(OsString::from).collect())
    }

    const GOOD: [&str; 7] = ["manage", "--listen", "/x", "--protocol", "cloud-hypervisor", "--memory", "64M"];

    #[test]
    fn the_definition_is_sound() {
        Line::<Command>::command().debug_assert();
    }

    #[test]
    fn what_is_given_is_read() {
        let Ok(Asked::For(Command::Manage(read))) =
            parsed(&[&GOOD[..], &["--swap", "ram:lz4", "--swap", "dir:/var/tmp"]].concat())
        else {
            panic!("it is right")
        };
        assert_eq!(
            (read.memory.memory, read.protocol, read.memory.swap.len(), read.memory.encrypt),
            (Some(Size::mib(64)), Protocol::CloudHypervisor, 2, false)
        );
    }

    #[test]
    fn what_stands_behind_the_options_is_qemus() {
        let line = ["qemu-system-x86_64", "-m", "1G", "--memory", "-h"];
        for between in [&["--"][..], &[]] {
            let words = [&["vm", "run", "--memory", "64M"], between, &line].concat();
            let Ok(Asked::For(Command::Vm(VmArgs { command: VmCommand::Run(read) }))) = parsed(&words) else {
                panic!("{words:?}")
            };
            assert_eq!((read.memory.memory, &read.line[..]), (Some(Size::mib(64)), &line.map(OsString::from)[..]));
        }
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&[&GOOD[..1], &GOOD[3..]].concat()[..], "no socket given: write --listen"),
            (&[&GOOD[..3], &GOOD[5..]].concat(), "no protocol given"),
            (&[&GOOD[..5], &["--budget", "x="]].concat(), "--budget"),
            (&[&GOOD[..5], &["--slowdown", "0"]].concat(), "--slowdown"),
            (&["manage", "--listen", "/x", "--protocol", "vnc", "--memory", "64M"], "vnc"),
            (&["manage", "--listen", "/x", "--protocol", "cloud-hypervisor", "--memory", "x"], "--memory: invalid size"),
            (&[&GOOD[..], &["--swap", "tape:/x"]].concat(), "--swap: invalid swap space \"tape:/x\""),
            (&[&GOOD[..], &["vm"]].concat(), "unknown word 'vm': see 'farshore manage --help'"),
            (&["vm"], "no command given: use"),
            (&["vm", "walk"], "unknown command 'walk'"),
            (&["vm", "stat"], "no virtual machine given: write its process or its name"),
            (&["vm", "set", "one"], "no setting given: write it as in 'farshore vm set one memory=512M'"),
            (&["vm", "policy", "one"], "no policy given"),
            (&["vm", "translate", "one"], "no address given"),
            (&["vm", "translate", "one", "xyz"], "write it in hexadecimal"),
            (&["vm", "run", "--memory", "64M", "--prefetch", "oracle", "--", "qemu"], "none, or guest"),
            (&["vm", "list", "one"], "unknown word 'one': see 'farshore vm list --help'"),
            (&["vm", "run", "--memory", "64M"], "no QEMU given"),
            (&["vm", "run", "--memory", "x", "--", "qemu-system-x86_64"], "--memory: invalid size"),
            (&["vm", "run", "--memory", "64M", "--page", "2M", "--", "qemu-system-x86_64"], "unknown option '--page'"),
        ] {
            let refusal = parsed(words).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert_eq!(refusal.status, farshore_command::refusal::CANNOT_START);
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = [("manage", Parts::Pages, "farshore(1)"), ("vm", Parts::Sections, "farshore(1), farshore-manage(1)")];
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }

    #[test]
    fn the_reference_has_every_option() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/command-line.md")).expect("it is there");
        let line = Line::<Command>::command();
        let vm = line.find_subcommand("vm").expect("it is a command");
        let all = line.get_subcommands().chain(vm.get_subcommands()).flat_map(clap::Command::get_arguments);
        let options = all.filter_map(|argument| argument.get_long());
        let missing: Vec<_> = options.filter(|name| *name != "help" && !page.contains(&format!("--{name}"))).collect();
        assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?}");
    }
}
