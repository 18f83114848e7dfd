//! What is asked, and what is answered: a table of routes, by which requests find their way and which [`crate::openapi`] describes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farshore_client::Client;
use farshore_client::programs;
use farshore_command::http::{Answer, PLAIN, Request};
use farshore_command::refusal::Refusal;
use farshore_config::SwapSpec;
use farshore_config::stats::Stats;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::created::{Created, No, PATIENCE, has_relative_path};
use crate::guard::Guard;
use crate::heat::Heats;
use crate::shapes::{Change, Create, Heat, History, Host, Kind, Made, Output, Problem, Set, State, Told, Vm};
use crate::watch::{KEPT, Seen, Watch};
use crate::{host, openapi};

const JSON: &str = "application/json";
/// What the page may do: run its own script, and ask its own daemon.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
/// The page: path, type and text.
const PAGE: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/page.html")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../page/page.js")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
];

/// Requests that wait for a program at a time: fewer than a door has workers, so that the others, which are answered at once, wait for none of them.
const WAITING: usize = 12;

/// One of them.
struct Turn<'w>(&'w AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All that requests need.
#[derive(Debug)]
pub struct Api {
    guard: Guard,
    /// The command `farshore`, which starts virtual machines.
    farshore: PathBuf,
    /// What runs.
    pub watch: Arc<Watch>,
    heats: Heats,
    created: Created,
    /// Requests that wait for a program.
    waiting: AtomicUsize,
}

/// A request that has found its way.
#[derive(Debug)]
pub struct Asked<'r> {
    request: &'r Request,
    /// `{pid}` of the path.
    pid: u32,
    /// `{id}` of the path.
    id: u64,
}

/// Describes a type.
type Shape = fn(&mut SchemaGenerator) -> Schema;

/// What can be asked.
pub struct Route {
    /// The method.
    pub method: &'static str,
    /// The path, with names of numbers in braces.
    pub path: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// What is sent along, if anything.
    pub body: Option<Shape>,
    /// The status of an answer to what was done.
    pub status: u16,
    /// What is answered.
    pub answer: Option<Shape>,
    /// A number that may stand behind `?`, and what it is.
    pub query: Option<(&'static str, &'static str)>,
    act: fn(&Api, &Asked<'_>) -> Result<Answer, No>,
}

fn shape<T: JsonSchema>(of: &mut SchemaGenerator) -> Schema {
    of.subschema_for::<T>()
}

/// All that can be asked.
pub const ROUTES: [Route; 12] = [
    Route {
        method: "GET",
        path: "/v1/openapi.json",
        about: "This description.",
        body: None,
        status: 200,
        answer: None,
        query: None,
        act: |_, _| Ok(Answer::new(200, JSON, openapi::text())),
    },
    Route {
        method: "GET",
        path: "/v1/host",
        about: "The machine: its memory, how much everybody waits for memory, budgets.",
        body: None,
        status: 200,
        answer: Some(shape::<Host>),
        query: None,
        act: |api, _| Ok(json(200, &host::host(&api.all()))),
    },
    Route {
        method: "GET",
        path: "/v1/vms",
        about: "All virtual machines and programs that run under Farshore, as they were a second ago or less; and those that were started here and have ended in the last minutes.",
        body: None,
        status: 200,
        answer: Some(shape::<Vec<Vm>>),
        query: None,
        act: |api, _| Ok(json(200, &api.all())),
    },
    Route {
        method: "POST",
        path: "/v1/vms",
        about: "Starts a virtual machine, as 'farshore vm run' does. It is answered when its memory is managed, or it has failed, or after three seconds.",
        body: Some(shape::<Create>),
        status: 201,
        answer: Some(shape::<Vm>),
        query: None,
        act: Api::create,
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}",
        about: "One of them.",
        body: None,
        status: 200,
        answer: Some(shape::<Vm>),
        query: None,
        act: |api, asked| api.vm(asked.pid).map(|vm| json(200, &vm)),
    },
    Route {
        method: "DELETE",
        path: "/v1/vms/{pid}",
        about: "Tells a virtual machine's monitor to end (SIGTERM), or ends it at once (SIGKILL).",
        body: None,
        status: 202,
        answer: Some(shape::<Told>),
        query: Some(("force", "1: at once; the guest loses what it has not written.")),
        act: Api::stop,
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}/counters",
        about: "All counters of its last answer, as 'farshore stat --json' has them.",
        body: None,
        status: 200,
        answer: Some(shape::<Stats>),
        query: None,
        act: |api, asked| {
            let seen = api.seen(asked.pid)?;
            let why = || {
                (
                    409,
                    format!(
                        "process {} has no counters: {}",
                        asked.pid,
                        seen.vm.why.as_deref().unwrap_or("it has not answered yet")
                    ),
                )
            };
            seen.stats.as_ref().map(|stats| json(200, &**stats)).ok_or_else(why)
        },
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}/history",
        about: "Limit, memory and faults of the last minutes, a sample each second.",
        body: None,
        status: 200,
        answer: Some(shape::<History>),
        query: Some(("seconds", "How far back, 1 to 900; 300 if it is not given.")),
        act: |api, asked| {
            let seconds = number(&asked.request.query, "seconds", 300, 1..=KEPT.as_secs())?;
            let samples = api.watch.history(&api.seen(asked.pid)?, Duration::from_secs(seconds));
            Ok(json(200, &History { samples }))
        },
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}/heat",
        about: "Which memory was in RAM in the last two minutes, piece by piece. The first request begins to look; a minute after the last one it ends.",
        body: None,
        status: 200,
        answer: Some(shape::<Heat>),
        query: None,
        act: |api, asked| {
            let vm = api.vm(asked.pid)?;
            api.heats.of(vm.pid, vm.started).map(|heat| json(200, &heat))
        },
    },
    Route {
        method: "POST",
        path: "/v1/vms/{pid}/set",
        about: "Makes one setting, as 'farshore set' does. One that takes its time is given a number.",
        body: Some(shape::<Set>),
        status: 200,
        answer: Some(shape::<Made>),
        query: None,
        act: Api::set,
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}/changes/{id}",
        about: "How far a setting is that takes its time.",
        body: None,
        status: 200,
        answer: Some(shape::<Change>),
        query: None,
        act: |api, asked| {
            let left = api.at_client(asked.pid, |client| client.change(asked.id))?;
            Ok(json(200, &Change { done: left.is_none(), percent: left.unwrap_or(100) }))
        },
    },
    Route {
        method: "GET",
        path: "/v1/vms/{pid}/output",
        about: "What a virtual machine that was started here has written last, and how it has ended.",
        body: None,
        status: 200,
        answer: Some(shape::<Output>),
        query: None,
        act: |api, asked| {
            let one = api.created.of(asked.pid).ok_or_else(|| (404, format!("process {} was not started here", asked.pid)))?;
            Ok(json(200, &one.output()))
        },
    },
];

impl Api {
    /// All that requests need, with what is found from now on.
    pub fn new(guard: Guard, farshore: PathBuf) -> Api {
        Api {
            guard,
            farshore,
            watch: Arc::default(),
            heats: Heats::default(),
            created: Created::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Answers a request.
    pub fn answer(&self, request: &Request) -> Answer {
        let page = PAGE.iter().find(|(path, ..)| *path == request.path && request.method == "GET");
        let mut answer = guarded(match self.guard.admit(request, page.is_some()) {
            Err(no) => problem(no),
            Ok(()) => match page {
                Some((_, kind, text)) => Answer::new(200, kind, *text),
                None => self.act(request).unwrap_or_else(problem),
            },
        });
        match answer.status {
            401 => answer.headers.push(("WWW-Authenticate", "Bearer".into())),
            405 => answer.headers.push(("Allow", allowed(&request.path))),
            _ => {}
        }
        answer
    }

    fn act(&self, request: &Request) -> Result<Answer, No> {
        let mut methods: Vec<&str> = Vec::new();
        for route in &ROUTES {
            let Some(numbers) = numbers(route.path, &request.path) else { continue };
            if route.method != request.method {
                methods.push(route.method);
                continue;
            }
            let of = |name: &str| numbers.iter().find(|(one, _)| *one == name).map(|(_, text)| *text);
            let wrong = |name: &str, text: &str| (400, format!("{name} is {text:?}: write a number such as 4242"));
            let pid =
                of("pid").map_or(Ok(0), |text| text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| wrong("pid", text)))?;
            let id = of("id").map_or(Ok(0), |text| text.parse().map_err(|_| wrong("id", text)))?;
            return (route.act)(self, &Asked { request, pid, id });
        }
        match &methods[..] {
            [] => Err((404, format!("there is nothing at {}: see /v1/openapi.json", farshore_config::plain(&request.path)))),
            _ => Err((405, format!("{} is not served at {}: use {}", request.method, request.path, methods.join(" or ")))),
        }
    }

    /// All that run, with what this daemon knows of those that it has started.
    fn all(&self) -> Vec<Vm> {
        let mut vms = self.watch.all();
        self.created.join(&mut vms);
        vms
    }

    fn vm(&self, pid: u32) -> Result<Vm, No> {
        let of = |vm: &&Vm| vm.pid == pid;
        let all = self.all();
        let found = all.iter().find(of).or_else(|| all.iter().find(|vm| vm.manager == Some(pid)));
        found.cloned().ok_or_else(|| unknown(pid))
    }

    fn seen(&self, pid: u32) -> Result<Seen, No> {
        self.watch.one(pid).ok_or_else(|| match self.created.of(pid) {
            Some(_) => (409, format!("process {pid} has no memory that is managed, or not yet: see /v1/vms/{pid}/output")),
            None => unknown(pid),
        })
    }

    /// The right to wait for a program, if not too many do.
    fn turn(&self) -> Option<Turn<'_>> {
        let turn = (self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING, Turn(&self.waiting));
        turn.0.then_some(turn.1)
    }

    /// Does something at its control socket.
    fn at_client<T>(&self, pid: u32, act: impl FnOnce(&mut Client) -> Result<T, Refusal>) -> Result<T, No> {
        let Some(_turn) = self.turn() else {
            return Err((503, format!("{WAITING} requests wait for programs already: come again when they answer")));
        };
        act(&mut self.client(pid)?).map_err(refused)
    }

    /// Its control socket.
    fn client(&self, pid: u32) -> Result<Client, No> {
        let seen = self.seen(pid)?;
        if seen.vm.state == State::Silent {
            return Err((504, format!("process {pid}: {}", seen.vm.why.unwrap_or_default())));
        }
        // Its number may have come again since the look: before, so that no other is woken; and after, so that no other is asked.
        let is_there = || seen.is_there().map_err(|error| unlooked(pid, &error));
        if !is_there()? {
            return Err(unknown(pid));
        }
        let client = Client::connect(seen.answers).map_err(refused)?;
        is_there()?.then_some(client).ok_or_else(|| unknown(pid))
    }

    fn create(&self, asked: &Asked<'_>) -> Result<Answer, No> {
        // Where too many wait, it is told as starting.
        let turn = self.turn();
        let patience = if turn.is_some() { PATIENCE } else { Duration::ZERO };
        let is_managed = |pid| self.watch.one(pid).is_some();
        let one = self.created.start(&self.farshore, &body::<Create>(asked.request)?, patience, &is_managed)?;
        drop(turn);
        // Where it is managed already, its numbers come with the next look.
        let vm = self.vm(one.pid)?;
        Ok(json(201, &vm))
    }

    fn stop(&self, asked: &Asked<'_>) -> Result<Answer, No> {
        let (signal, name) = match number(&asked.request.query, "force", 0, 0..=1)? {
            1 => (Signal::KILL, "SIGKILL"),
            _ => (Signal::TERM, "SIGTERM"),
        };
        let vm = self.vm(asked.pid)?;
        if vm.state == State::Ended {
            return Err((409, format!("process {} has ended already", vm.pid)));
        }
        if vm.kind != Kind::Vm {
            return Err((
                409,
                format!(
                    "process {} ({}) is a program, which is not ended from here: end it where it was started",
                    vm.pid, vm.name
                ),
            ));
        }
        if vm.manager == Some(vm.pid) {
            return Err((409, format!("the monitor of {} is not known, as it has made itself a daemon: end it there", vm.name)));
        }
        let failed = |why: &dyn std::fmt::Display| (409, format!("process {} cannot be ended ({why})", vm.pid));
        match self.created.of(vm.pid).filter(|one| one.is(&vm)) {
            Some(one) => one.signal(signal).map_err(|why| (409, why))?,
            None => {
                let pid = i32::try_from(vm.pid).ok().and_then(Pid::from_raw).ok_or_else(|| unknown(vm.pid))?;
                let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(&errno))?;
                // Now it keeps its number, and is the one that was meant, or another one that has come since.
                if programs::started(vm.pid).map_err(|error| unlooked(vm.pid, &error))? != Some(vm.started) {
                    return Err(unknown(vm.pid));
                }
                pidfd_send_signal(&process, signal).map_err(|errno| failed(&errno))?;
            }
        }
        Ok(json(202, &Told { signal: name.into() }))
    }

    fn set(&self, asked: &Asked<'_>) -> Result<Answer, No> {
        let Set { key, value } = body(asked.request)?;
        if key.is_empty() || value.is_empty() {
            return Err((400, format!("{key:?}={value:?} is no setting: write a key and a value, such as memory and 512M")));
        }
        if matches!(key.as_str(), "swap+" | "swap-") && value.parse::<SwapSpec>().is_ok_and(|spec| has_relative_path(&spec)) {
            return Err((400, format!("{key}={value} has a relative path: give an absolute one")));
        }
        let change = self.at_client(asked.pid, |client| client.set(&key, &value))?;
        Ok(json(200, &Made { change }))
    }
}

fn unknown(pid: u32) -> No {
    (404, format!("process {pid} is not known here: it does not run under Farshore, has ended, or is another user's"))
}

/// Whether it is still the one that was meant is not known, so nothing is done.
fn unlooked(pid: u32, error: &std::io::Error) -> No {
    (503, format!("process {pid}: {}", farshore_client::round::unlooked(error)))
}

/// What a program, or its socket, has answered; or that it has not.
fn refused(refusal: Refusal) -> No {
    let status = if farshore_client::client::is_silence(&refusal) { 504 } else { 409 };
    (status, farshore_config::plain(&refusal.text))
}

fn problem((status, error): No) -> Answer {
    json(status, &Problem { error: farshore_config::plain(&error) })
}

/// An answer with what keeps browsers from doing more with it than they should.
fn guarded(mut answer: Answer) -> Answer {
    answer.headers.extend([
        ("Cache-Control", "no-store".into()),
        ("Content-Security-Policy", POLICY.into()),
        ("X-Content-Type-Options", "nosniff".into()),
        ("Referrer-Policy", "no-referrer".into()),
        ("Cross-Origin-Resource-Policy", "same-origin".into()),
    ]);
    answer
}

/// What is answered where there is no request that could be: in the form of all other answers.
pub fn wrong(status: u16) -> Answer {
    let why = match status {
        413 => "the body is too long: send 64 KiB at most",
        431 => "the request's head is too long: send 8 KiB at most",
        501 => "a body in chunks is not served: send its length, as Content-Length",
        503 => "too many requests wait: come again in a second",
        _ => "this is no request of HTTP/1.1: send a method, a path, and one Content-Length if there is a body",
    };
    guarded(problem((status, why.into())))
}

/// What may be done at a path.
fn allowed(path: &str) -> String {
    let mut methods: Vec<&str> =
        ROUTES.iter().filter(|route| numbers(route.path, path).is_some()).map(|route| route.method).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.join(", ")
}

fn json(status: u16, it: &impl Serialize) -> Answer {
    match serde_json::to_vec(it) {
        Ok(mut text) => {
            text.push(b'\n');
            Answer::new(status, JSON, text)
        }
        // Numbers and strings have a JSON form.
        Err(error) => Answer::new(500, PLAIN, format!("{error}\n")),
    }
}

/// What was sent along.
fn body<T: DeserializeOwned>(request: &Request) -> Result<T, No> {
    serde_json::from_slice(&request.body)
        .map_err(|error| (400, format!("the body cannot be read ({error}): /v1/openapi.json says what is sent")))
}

/// A number behind `?`.
fn number(query: &str, name: &str, usual: u64, within: std::ops::RangeInclusive<u64>) -> Result<u64, No> {
    let mut found = usual;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if key != name {
            return Err((400, format!("?{key} is not known here: there is {name}")));
        }
        found =
            value.parse().ok().filter(|number| within.contains(number)).ok_or_else(|| {
                (400, format!("{name} is {value:?}: write a number from {} to {}", within.start(), within.end()))
            })?;
    }
    Ok(found)
}

/// The parts of a path that stand where the pattern has names in braces; none, if it is another path.
fn numbers<'p>(pattern: &'static str, path: &'p str) -> Option<Vec<(&'static str, &'p str)>> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut found = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(found),
            (Some(wanted), Some(given)) => match wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) => found.push((name, given)),
                None if wanted == given => {}
                None => return None,
            },
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_command::http::Peer;

    fn api() -> Api {
        Api::new(Guard::new(1000, None, Vec::new()), "/bin/false".into())
    }

    fn asked(method: &str, target: &str, body: &str) -> (u16, String) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = vec![("content-type".into(), JSON.into())];
        let (method, path, query, body) = (method.into(), path.into(), query.into(), body.as_bytes().into());
        let answer = api().answer(&Request { method, path, query, headers, body, peer: Peer::User(Some(1000)) });
        assert!(answer.headers.iter().any(|(name, _)| *name == "Content-Security-Policy"));
        (answer.status, String::from_utf8(answer.body).expect("it is text"))
    }

    #[test]
    fn routes_are_found() {
        assert_eq!(asked("GET", "/v1/vms", ""), (200, "[]\n".into()));
        assert!(asked("GET", "/v1/host", "").1.contains("\"memory_bytes\""));
        for (path, part) in [("/", "<!doctype html>"), ("/page.js", "use strict"), ("/page.css", "color-scheme")] {
            let (status, text) = asked("GET", path, "");
            assert!(status == 200 && text.contains(part), "{path}");
        }
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let api = api();
        let turns: Vec<_> = (0..WAITING).map(|_| api.turn()).collect();
        assert!(turns.iter().all(Option::is_some) && api.turn().is_none() && api.turn().is_none());
        drop(turns);
        assert!(api.turn().is_some());
    }

    #[test]
    fn what_is_no_request_is_told_in_the_same_form() {
        for (status, part) in [(400, "no request"), (413, "64 KiB"), (431, "8 KiB"), (501, "Content-Length"), (503, "come again")]
        {
            let answer = wrong(status);
            let told: serde_json::Value = serde_json::from_slice(&answer.body).expect("it is JSON");
            assert!(
                (answer.status, answer.kind) == (status, JSON) && told["error"].as_str().is_some_and(|why| why.contains(part))
            );
            assert!(answer.headers.iter().any(|(name, _)| *name == "Content-Security-Policy"));
        }
        assert_eq!((allowed("/v1/vms").as_str(), allowed("/v1/vms/7/set").as_str()), ("GET, POST, HEAD", "POST"));
    }

    #[test]
    fn what_is_wrong_is_told_in_a_line() {
        for (method, target, body, status, part) in [
            ("GET", "/v1/nothing", "", 404, "there is nothing at /v1/nothing"),
            ("PUT", "/v1/vms", "", 405, "PUT is not served at /v1/vms: use GET or POST"),
            ("POST", "/", "", 404, "there is nothing at /"),
            ("GET", "/v1/vms/x", "", 400, "pid is \"x\""),
            ("GET", "/v1/vms/0", "", 400, "pid is \"0\""),
            ("GET", "/v1/vms/7/changes/-1", "", 400, "id is \"-1\""),
            ("GET", "/v1/vms/7", "", 404, "process 7 is not known here"),
            ("GET", "/v1/vms/7/counters", "", 404, "process 7"),
            ("GET", "/v1/vms/7/heat", "", 404, "process 7"),
            ("GET", "/v1/vms/7/output", "", 404, "process 7 was not started here"),
            ("DELETE", "/v1/vms/7", "", 404, "process 7"),
            ("DELETE", "/v1/vms/7?force=2", "", 400, "force is \"2\": write a number from 0 to 1"),
            ("GET", "/v1/vms/7/history?seconds=901", "", 400, "seconds is \"901\": write a number from 1 to 900"),
            ("GET", "/v1/vms/7/history?minutes=1", "", 400, "?minutes is not known here"),
            ("POST", "/v1/vms", "{", 400, "the body cannot be read"),
            ("POST", "/v1/vms", "[]", 400, "the body cannot be read"),
            ("POST", "/v1/vms", r#"{"command":["x"],"service":{"level":"gold"}}"#, 400, "gold"),
            ("POST", "/v1/vms", r#"{"command":["x"],"service":{"level":"fixed","memory":"1M"},"more":1}"#, 400, "more"),
            ("POST", "/v1/vms", r#"{"command":["x"],"service":{"level":"fixed"}}"#, 400, "service.memory is missing"),
            ("POST", "/v1/vms/7/set", r#"{"key":"memory","value":64}"#, 400, "the body cannot be read"),
            ("POST", "/v1/vms/7/set", r#"{"key":"memory","value":""}"#, 400, "is no setting"),
            ("POST", "/v1/vms/7/set", r#"{"key":"swap+","value":"dir:x"}"#, 400, "has a relative path"),
            ("POST", "/v1/vms/7/set", r#"{"key":"memory","value":"64M"}"#, 404, "process 7"),
        ] {
            let (found, text) = asked(method, target, body);
            let why = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|it| Some(it["error"].as_str()?.to_owned()));
            let why = why.unwrap_or_else(|| panic!("{method} {target}: {text}"));
            assert!(found == status && why.contains(part) && !why.contains('\n'), "{method} {target}: {found} {why}");
        }
    }
}
