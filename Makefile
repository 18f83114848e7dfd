# Farshore. `make` shows what there is; `make demo` and `make test` do all their set-up themselves.

# Where things are built: cargo's own variable. Set for cargo and the tools only if the caller has set it.
TARGET := $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr/local
# NIGHTLY names the toolchain that has miri, if it shall not be the one that tools/setup.sh --nightly finds.
# The drivers import each other; their byte code stays out of the tree.
export PYTHONDONTWRITEBYTECODE := 1
# Parts of the tests that take a minute or two together.
FAST := runner format clippy unit sim
# More options for a tool: make bench ARGS='--only random'
ARGS ?=

.DELETE_ON_ERROR:
.PHONY: help man build demo demo-kv test test-long test-fast check policies-table fleet-table autopilot-table plan-table remote-table density-table ablations-table flushes-table policies-real policies-redis unit sim canaries fuzz loom miri real real-more rows rows-long pace ablate pools remote redis redis-long mirror survived survived-long manager unithreads spaces devices calls threads pages asynchronous dormant sandbox failures follow hosted secrecy family policies autopilot budget daemon seeing bench-ends report serve serve-long suites suites-long soak soak-long kernels kernels-long guests guests-long newcomer packages front book bench deb deny setup install uninstall clean

help: ## show this
	@echo 'Farshore: unmodified programs in less memory than they ask for. Start with make demo.'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo 'Variables: CARGO_TARGET_DIR, PREFIX (make install), ARGS (options for demo, bench and the tests, such as'
	@echo "make demo ARGS='--size small'), NIGHTLY (a toolchain with miri), FARSHORE_SWAP_DIR (where tests put cold pages; default /var/tmp)"

build: ## build what is installed: the commands and the library (release)
	@tools/setup.sh
	cargo build --release

demo: ## run real programs natively and in half of their memory, and compare
	@tools/setup.sh --programs
	cargo build --release
	python3 tools/demo.py $(ARGS)

demo-kv: ## a memcached on unithreads in a fifth of its data: a client, load, a plot of its latency
	@tools/setup.sh --clients
	cargo build --release
	python3 tools/demo_kv.py $(ARGS)

test: setup ## all tests: what CI runs, after make newcomer (about 50 minutes)
	python3 tools/test.py $(ARGS)

test-long: setup ## the same with the whole of other people's suites and ten minutes of soak (hours)
	python3 tools/test.py --long $(ARGS)

test-fast: setup ## formatting, clippy, unit tests and simulation
	python3 tools/test.py $(FAST) $(ARGS)

policies-table: ## replacement policies over the same traces, against the optimum (docs/src/guide/replacement.md)
	cargo run --release -p farshore-traces

fleet-table: ## 1,000 clients and 100 memory nodes in a simulation: pages lost, traffic, time to be whole (docs/src/guide/fleet.md)
	cargo run --release -p farshore-fleet -- $(ARGS)

policies-real: ## real programs beside each policy of farshore policy: pages read, faults, time (docs/src/guide/policies.md)
	cargo build --release
	python3 tools/policies_real.py $(ARGS)

plan-table: build ## what farshore plan says, against measurement (half an hour)
	python3 tools/plan_table.py $(ARGS)

policies-redis: build ## redis-server beside policies that listen, stop, die and go mad: throughput and bytes (docs/src/guide/policies.md)
	python3 tools/policies_redis.py $(ARGS)

ablations-table: build ## what each mechanism gives, by leaving it out; pages a TLB flush (about an hour)
	python3 tools/ablations.py $(ARGS)

flushes-table: ## how calls that flush TLBs overlap, by threads and pages a call (a minute or two; an idle machine)
	python3 tools/flushes.py $(ARGS)

remote-table: build ## pages of another machine's memory beside a bare socket, libnbd and nbdkit (docs/src/guide/remote.md; some minutes)
	python3 tools/remote.py $(ARGS)

density-table: build ## guests that fit into one budget, against swap, zram, balloons and pauses (docs/src/guide/virtual-machines.md; root, half an hour)
	python3 tools/density.py $(ARGS)

autopilot-table: build ## limits that are chosen, against the smallest that a search finds (about an hour)
	python3 tools/autopilot.py $(ARGS)

check: ## formatting, and clippy with warnings as errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

unit: ## unit, integration and conformance tests
sim: ## simulation, from fixed and random seeds
canaries: ## rules broken on purpose, which the simulation must notice
fuzz: ## bytes from outside, guided by coverage (ARGS='word --seconds 600', ARGS=--canaries)
loom: ## all interleavings of core and uthread
miri: ## undefined behaviour in core
real: ## real programs, natively and under farshore
rows: ## programs of many languages in half and a quarter of their memory: what goes of it (a few)
rows-long: ## the same for all that the table in the book has
threads: ## threads, signals, limits, filters and allocators
pages: ## what the kernel and programs do to pages: merging, locks, devices, stacks that grow
asynchronous: ## io_uring and Linux AIO of programs, natively and under farshore
dormant: ## programs that fit at first, and what they do when they do not
sandbox: ## programs that restrict themselves, or insist on one thread
failures: ## bad input, full disks, kill -9, other users
calls: ## every system call natively and under farshore; blocked threads; debuggers
follow: ## programs that a program starts
hosted: ## static programs, Go's and musl's
pace: ## how hard evictors work: idle, crowded, on a slow disk, fixed
ablate: ## what an experiment leaves out is out, and no byte is wrong
pools: ## compressed RAM, alone and in front of a disk
manager: ## farshore manage: a stand-in for virtual machines, clients that misbehave, kill -9
redis: ## Redis, and a Cluster of six servers, as swap space: killed, stopped, resharded
redis-long: ## the same, each kind of fault twenty times (half an hour)
mirror: ## pages on several nodes and disks, of which one is killed, hangs, lies or is full
survived: ## faults of nodes and networks at random moments, and how long nothing moves
survived-long: ## the same, each kind twenty times (an hour)
remote: ## pages with NBD servers, which are killed, stopped and lie
unithreads: ## unithreads on far memory
devices: ## block devices as swap space; room that goes back to the disk
spaces: ## swap spaces that come, go and die while a program runs
secrecy: ## --encrypt: swap files are noise, the key is in no core dump
family: ## what Farshore shows of itself, and whom it lets in
policies: ## policies beside programs, and a program's own hints
autopilot: ## limits that follow what a program loses to faults
budget: ## budgets that several programs of one user share
daemon: ## farshore daemon: its API, its page in a browser, virtual machines that it starts
seeing: ## farshore top, metrics, plan, record and report: programs whose state or pattern is known
bench-ends: ## farshore bench: what it measures, and that nothing stays behind
suites: ## other people's test suites, natively and under farshore (a part of each)
suites-long: ## other people's test suites as a whole
soak: ## stress-ng under changing limits and a failing swap space (40 s)
soak-long: ## the same for ten minutes
kernels: ## other kernels, libcs and numbers of processors, in emulated machines (as root)
kernels-long: ## the same for each kernel that Debian has, with more tests
guests: ## unmodified QEMU, whose guests run in less memory than they have
guests-long: ## the same with a large guest
serve: ## farshore-serve with other people's clients, and its limits
serve-long: ## the same, with ten minutes each of TPC-C and of vsearch while their memory nodes are killed
report: ## the report of farshore bench in a browser
packages: ## the Debian packages in a fresh Debian: installed, used, removed (as root)
front: ## the set-up, the interpreter of Debian's packages, what CI counts, the order of parts
fuzz:
	python3 tools/fuzz.py $(ARGS)
bench-ends:
	python3 tools/test.py bench $(ARGS)
newcomer: setup ## what a newcomer does first: both demos, small, and all of it once more in a fresh Debian; packages (as root)
	@tools/setup.sh --packaging
	@tools/setup.sh --book
	python3 tools/test.py demo demo-kv fresh packages book $(ARGS)
front unit sim canaries loom miri real real-more rows rows-long pace ablate pools remote redis redis-long mirror survived survived-long manager unithreads spaces devices calls threads pages asynchronous dormant sandbox failures follow hosted secrecy family policies autopilot budget daemon seeing report serve serve-long suites suites-long soak soak-long kernels kernels-long guests guests-long packages:
	python3 tools/test.py $@ $(ARGS)

bench: ## the canonical comparisons with Linux swap and zram, to results/ (under 20 minutes; needs root)
	@tools/setup.sh --programs
	cargo build --release
	$(TARGET)/release/farshore bench canonical --results results $(ARGS)

# No part of the tests: it is seldom installed, takes minutes to build, and says nothing new until Cargo.lock changes.
deny: ## look at licenses, versions and sources of dependencies, if cargo-deny is installed (deny.toml)
	@command -v cargo-deny >/dev/null || { echo 'cargo-deny is not installed: cargo install --locked cargo-deny' >&2; exit 1; }
	cargo deny check licenses bans sources

book: ## build the book of docs to target/book, and check where its links lead
	@tools/setup.sh --book
	python3 tools/book.py

man: ## write the manual pages anew, from what --help says (docs/man)
	FARSHORE_WRITE_MANUAL=1 cargo test -p farshore-cli -p farshore-node -p farshore-manager -p farshore-daemon -p farshore-view -p farshore-advise -p farshore-bench -p farshore-load -p farshore-serve the_manual_says

setup: ## install what is missing: Debian packages (as root or by sudo), rustfmt, clippy, miri
	@tools/setup.sh --tests

# Does not build: the user that installs (root) often has no Rust toolchain.
install: ## install to PREFIX (default /usr/local), after make build
	@test -x $(TARGET)/release/farshore && test -f $(TARGET)/release/libfarshore.so || { echo 'nothing is built in $(TARGET)/release: run make build first' >&2; exit 1; }
	install -D -m 755 $(TARGET)/release/farshore $(DESTDIR)$(PREFIX)/bin/farshore
	install -D -m 755 $(TARGET)/release/farshore-node $(DESTDIR)$(PREFIX)/bin/farshore-node
	install -D -m 755 $(TARGET)/release/farshore-manager $(DESTDIR)$(PREFIX)/bin/farshore-manager
	install -D -m 755 $(TARGET)/release/farshore-daemon $(DESTDIR)$(PREFIX)/bin/farshore-daemon
	install -D -m 755 crates/product/daemon/farshore-qemu $(DESTDIR)$(PREFIX)/bin/farshore-qemu
	for place in system user; do for unit in service socket; do install -D -m 644 crates/product/daemon/systemd/farshore-daemon.$$unit $(DESTDIR)$(PREFIX)/lib/systemd/$$place/farshore-daemon.$$unit || exit 1; done; done
	install -D -m 755 $(TARGET)/release/farshore-view $(DESTDIR)$(PREFIX)/bin/farshore-view
	install -D -m 755 $(TARGET)/release/farshore-advise $(DESTDIR)$(PREFIX)/bin/farshore-advise
	install -D -m 755 $(TARGET)/release/farshore-bench $(DESTDIR)$(PREFIX)/bin/farshore-bench
	install -D -m 755 $(TARGET)/release/farshore-load $(DESTDIR)$(PREFIX)/bin/farshore-load
	install -D -m 755 $(TARGET)/release/farshore-serve $(DESTDIR)$(PREFIX)/bin/farshore-serve
	install -D -m 644 $(TARGET)/release/libfarshore.so $(DESTDIR)$(PREFIX)/lib/farshore/libfarshore.so
	install -D -m 644 $(TARGET)/release/libfarshore_agent.so $(DESTDIR)$(PREFIX)/lib/farshore/libfarshore_agent.so
	install -D -m 644 crates/product/view/grafana.json $(DESTDIR)$(PREFIX)/share/farshore/grafana/farshore.json
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1

# Where the tests have cargo-deb, if it is not installed.
deb packages newcomer: export PATH := $(PATH):$(abspath $(TARGET))/tools/bin
# cargo-deb strips what is built, and asks dpkg-shlibdeps what it depends on: without that program it would only warn. It warns about the command, which is
# linked statically and depends on nothing.
deb: ## make the Debian packages farshore, farshore-bench, libfarshore-uthread-dev, to target/debian
	@command -v cargo-deb >/dev/null || { echo 'cargo-deb is not installed: cargo install cargo-deb --locked (to ~/.cargo/bin; a minute and a half of processor time)' >&2; exit 1; }
	@command -v dpkg-shlibdeps >/dev/null || { echo 'dpkg-shlibdeps is not installed; as root: apt-get install dpkg-dev' >&2; exit 1; }
	@tools/setup.sh
	cargo build --release
	cargo build --release -p farshore-uthread-c
	for crate in cli bench uthread-c; do cargo deb --no-build --strip -p farshore-$$crate || exit 1; done

uninstall: ## remove what make install has installed
	rm -f $(DESTDIR)$(PREFIX)/bin/farshore $(DESTDIR)$(PREFIX)/bin/farshore-node $(DESTDIR)$(PREFIX)/bin/farshore-manager $(DESTDIR)$(PREFIX)/bin/farshore-daemon $(DESTDIR)$(PREFIX)/bin/farshore-qemu $(foreach place,system user,$(foreach unit,service socket,$(DESTDIR)$(PREFIX)/lib/systemd/$(place)/farshore-daemon.$(unit))) $(DESTDIR)$(PREFIX)/bin/farshore-view $(DESTDIR)$(PREFIX)/bin/farshore-advise $(DESTDIR)$(PREFIX)/share/farshore/grafana/farshore.json $(DESTDIR)$(PREFIX)/bin/farshore-bench $(DESTDIR)$(PREFIX)/bin/farshore-load $(DESTDIR)$(PREFIX)/bin/farshore-serve $(DESTDIR)$(PREFIX)/lib/farshore/libfarshore.so $(DESTDIR)$(PREFIX)/lib/farshore/libfarshore_agent.so $(patsubst docs/man/%,$(DESTDIR)$(PREFIX)/share/man/man1/%,$(wildcard docs/man/*.1))
	rmdir $(DESTDIR)$(PREFIX)/lib/farshore $(DESTDIR)$(PREFIX)/share/farshore/grafana $(DESTDIR)$(PREFIX)/share/farshore 2>/dev/null || true

clean: ## remove everything that was built
	cargo clean
