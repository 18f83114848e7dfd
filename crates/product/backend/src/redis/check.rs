//! Whether a server can be used, and as whom: at the start.

use super::Shared;
use super::ask::Lost;
use super::talk::Talk;
use super::wire::{self, Head, Out, Refusal};
use crate::sleep;
use core::sync::atomic::{AtomicPtr, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::fd::read_file;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroize;

/// How long a server may take to say what it is, in ns.
const LOOK_NS: u64 = 10_000_000_000;
/// Bytes of the longest text in which it does so; and of a user's name and a password.
const INFO_MAX: usize = 256 << 10;
const WORD_MAX: usize = 1024;

/// The request by which we say who we are.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login(Box<[u8]>);

impl Drop for Login {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The password is nobody's to read.
impl core::fmt::Debug for Login {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Login")
    }
}

impl Login {
    pub(super) fn request(&self) -> &[u8] {
        &self.0
    }
}

/// The file that was read last, and what it says: a process that was forked may not be allowed to read it any more.
static READ: AtomicPtr<(PathBuf, Login)> = AtomicPtr::new(core::ptr::null_mut());

/// `AUTH [USER] PASSWORD`, of a file that has these words in a line each.
pub(super) fn login(path: &Path) -> Result<Login, String> {
    let shown = path.display();
    let read = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL.to_string());
    let read =
        read.and_then(|path| read_file(&path, 2 * WORD_MAX).map_err(|errno| Errno::from_raw_os_error(errno.0).to_string()));
    let mut bytes = match read {
        Ok(bytes) => bytes,
        Err(why) => {
            // SAFETY: null, or from `Box::into_raw` below, and never freed.
            let before = unsafe { READ.load(Ordering::Acquire).as_ref() };
            return match before {
                Some((there, login)) if there == path => Ok(login.clone()),
                _ => Err(format!("the file with its password, '{shown}', cannot be read ({why})")),
            };
        }
    };
    let made = make_login(&bytes);
    bytes.zeroize();
    let login = made.map_err(|why| format!("'{shown}' {why}"))?;
    READ.store(Box::into_raw(Box::new((path.to_owned(), login.clone()))), Ordering::Release);
    Ok(login)
}

fn make_login(text: &[u8]) -> Result<Login, &'static str> {
    let lines: Vec<&[u8]> = text.strip_suffix(b"\n").unwrap_or(text).split(|&byte| byte == b'\n').collect();
    if lines.len() > 2 || lines.iter().any(|line| line.is_empty() || line.len() > WORD_MAX) {
        return Err("has not a password in its only line, or a user's name and a password in two");
    }
    let mut memory = vec![0; 2 * WORD_MAX + 64];
    let words: Vec<&[u8]> = core::iter::once(&b"AUTH"[..]).chain(lines).collect();
    let mut request = Out::new(&mut memory);
    request.request(&words);
    let login = Login(request.made().into());
    memory.zeroize();
    Ok(login)
}

/// What a server says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
struct About {
    is_cluster: bool,
    is_master: bool,
    is_loading: bool,
    /// What it does when it is full.
    policy: String,
}

impl About {
    fn read(text: &str) -> Option<About> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        Some(About {
            is_cluster: value("cluster_enabled")? == "1",
            is_master: value("role")? == "master",
            is_loading: value("loading") == Some("1"),
            policy: value("maxmemory_policy")?.into(),
        })
    }
}

/// Asks a server what it is.
fn look(shared: &Shared, node: u8) -> Result<About, String> {
    let until = sleep::now_ns() + LOOK_NS;
    let told = shared.over(node, until, |socket| {
        let mut talk = Talk::new(socket, until);
        talk.say(b"*1\r\n$4\r\nINFO\r\n")?;
        match talk.head()? {
            Head::Bulk(Some(len)) if len <= INFO_MAX => {
                let mut bytes = vec![0; len];
                talk.value(&mut bytes)?;
                Ok(Ok(bytes))
            }
            Head::Error(refusal) => Ok(Err(refusal)),
            _ => Err(Errno::PROTO),
        }
    });
    let bytes = match told {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(Refusal::Never(Errno::ACCESS))) => {
            return Err("it wants to know who asks, or does not let this user ask: write the password into a file, and add ,password-file=PATH".into());
        }
        Ok(Err(Refusal::Later)) => return Err("it is just starting, or busy: try again".into()),
        Ok(Err(_)) => return Err("it does not say what it is (INFO): look at its rules".into()),
        Err(lost) => return Err(in_words(lost)),
    };
    About::read(&String::from_utf8_lossy(&bytes)).ok_or_else(|| in_words(Lost { errno: Errno::PROTO, sent: true }))
}

fn in_words(lost: Lost) -> String {
    match lost {
        Lost { errno: Errno::ACCESS, .. } => "it does not take the password: look at the file, and at the server's users".into(),
        Lost { errno: Errno::PROTO, .. } => {
            "what answers there is no Redis or Valkey server: look at the address (there is no TLS)".into()
        }
        Lost { errno, sent: false } => format!("no server can be reached there ({errno}): start it, or name another"),
        Lost { errno, sent: true } => {
            format!("the server ends the connection, or does not answer in time ({errno}): look at its log")
        }
    }
}

/// Checks whether pages can be given to a server.
fn suits(about: &About) -> Result<(), String> {
    if about.is_loading {
        return Err("it is still loading its data: try again".into());
    }
    if about.policy != "noeviction" {
        let policy = farshore_config::plain(&about.policy);
        return Err(format!(
            "it may evict what it was given (its maxmemory-policy is {policy}), and the program would lose pages: redis-cli config set maxmemory-policy noeviction"
        ));
    }
    Ok(())
}

/// Does with a server what will be done with it, to a key of its own, which ends in a minute: a user may have rights to less.
fn try_out(shared: &Shared, node: u8) -> Result<(), String> {
    let is_there = |key: &wire::Key| shared.nodes.owner(key.hash_slot) == Some(node);
    let key = (0..=u32::MAX).rev().map(|extent| wire::key(shared.run, extent)).find(is_there);
    let Some(key) = key else { return Ok(()) };
    let (field, page) = (wire::field(0, 0), [0x5a; PAGE_SIZE]);
    let (set, expire): (&[&[u8]], &[&[u8]]) = (&[b"HSET", &key.name, &field, &page], &[b"EXPIRE", &key.name, b"60"]);
    let (get, remove): (&[&[u8]], &[&[u8]]) = (&[b"HMGET", &key.name, &field], &[b"HDEL", &key.name, &field]);
    let wait: &[&[u8]] = &[b"WAIT", b"1", b"1"];
    // First without a page: what may not be done leaves no key that stays for ever.
    let all = [expire, get, remove, set, expire, get, remove].into_iter().chain(shared.is_cluster.then_some(wait));
    let until = sleep::now_ns() + LOOK_NS;
    let told = shared.over(node, until, |socket| {
        let mut talk = Talk::new(socket, until);
        let mut memory = vec![0; PAGE_SIZE + 512];
        let mut is_set = false;
        for words in all {
            is_set |= words[0] == b"HSET";
            let mut request = Out::new(&mut memory);
            request.request(words);
            talk.say(request.made())?;
            let refused = match talk.head()? {
                Head::Number(_) => None,
                Head::Array(Some(1)) => match talk.head()? {
                    Head::Bulk(None) if !is_set => None,
                    Head::Bulk(Some(PAGE_SIZE)) => {
                        let mut got = [0; PAGE_SIZE];
                        talk.value(&mut got)?;
                        (got != page).then_some(Refusal::Never(Errno::BADMSG))
                    }
                    _ => return Err(Errno::PROTO),
                },
                Head::Error(refusal) => Some(refusal),
                _ => return Err(Errno::PROTO),
            };
            if let Some(refusal) = refused {
                return Ok(Some((String::from_utf8_lossy(words[0]).into_owned(), refusal)));
            }
        }
        Ok(None)
    });
    match told.map_err(in_words)? {
        None => Ok(()),
        Some((command, Refusal::Full)) => Err(format!("it has no room ({command}): look at its maxmemory")),
        Some((command, Refusal::Later)) => {
            Err(format!("it does not take pages now ({command}): it may be busy, or cannot save what it has; look at its log"))
        }
        Some((_, Refusal::Moved(..) | Refusal::Ask(_))) => Err("its hash slots are just moving: try again".into()),
        Some((command, Refusal::Never(Errno::ACCESS))) => {
            Err(format!("this user may not use {command} there, or not for keys that begin with farshore: redis-cli acl setuser"))
        }
        Some((command, Refusal::Never(_))) => Err(format!("it does not do what {command} asks: is the command renamed?")),
    }
}

/// Looks at the server that the user has named, and at its Cluster. Returns how many masters that has; `None`: it is one server.
pub(super) fn check(shared: &mut Shared, notice: &mut dyn FnMut(&str)) -> Result<Option<usize>, String> {
    let first = look(shared, 0)?;
    if !first.is_cluster {
        suits(&first)?;
        return if first.is_master { try_out(shared, 0).map(|()| None) } else { Err("it is a replica: name its master".into()) };
    }
    shared.is_cluster = true;
    shared.nodes.forget_owners();
    let until = sleep::now_ns() + LOOK_NS;
    let learned = shared.over(0, until, |socket| shared.nodes.learn(&mut Talk::new(socket, until), 0));
    if shared.nodes.has_names.load(Ordering::Relaxed) {
        return Err("its Cluster calls servers by names, which nobody looks up in a fault: redis-cli config set cluster-preferred-endpoint-type ip, on each of them".into());
    }
    match learned {
        Err(Lost { errno: Errno::NFILE, .. }) => return Err("its Cluster has more than 64 masters".into()),
        Err(Lost { errno: Errno::PROTO, .. }) => {
            return Err("it does not say who has which hash slots (CLUSTER SLOTS): is it in a Cluster?".into());
        }
        Err(lost) => return Err(in_words(lost)),
        Ok(()) => {}
    }
    let masters = shared.nodes.masters().ok_or("some hash slots of its Cluster have no server: redis-cli --cluster check")?;
    for &node in &masters {
        look(shared, node)
            .and_then(|about| suits(&about))
            .and_then(|()| try_out(shared, node))
            .map_err(|why| format!("{} of its Cluster: {why}", shared.nodes.name(node)))?;
    }
    // Replicas would be masters one day. One that cannot be asked now may be away.
    for node in (0..shared.nodes.count()).filter(|node| !masters.contains(node)) {
        if let Ok(about) = look(shared, node) {
            suits(&About { is_loading: false, ..about })
                .map_err(|why| format!("{} of its Cluster: {why}", shared.nodes.name(node)))?;
        }
    }
    if let Some(&node) = masters.iter().find(|&&node| !shared.nodes.has_replicas(node)) {
        notice(&format!("{} of a Redis Cluster has no replica: what it has is lost with it", shared.nodes.name(node)));
    }
    Ok(Some(masters.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_who_asks() {
        for (text, want) in [
            (&b"secret\n"[..], &b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n"[..]),
            (b"a b", b"*2\r\n$4\r\nAUTH\r\n$3\r\na b\r\n"),
            (b"me\nsecret\n", b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n"),
        ] {
            assert_eq!(make_login(text).unwrap().request(), want);
        }
        for wrong in [&b""[..], b"\n", b"a\n\n", b"a\nb\nc\n", &[b'x'; WORD_MAX + 1]] {
            assert!(make_login(wrong).is_err(), "{}", wrong.escape_ascii());
        }
        assert!(make_login(&[b'x'; WORD_MAX]).is_ok());
    }

    #[test]
    fn a_file_that_was_read_is_known_when_it_is_gone() {
        let path = std::env::temp_dir().join(format!("redis-password-{}", std::process::id()));
        std::fs::write(&path, "secret\n").unwrap();
        let before = login(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(login(&path), Ok(before));
        assert!(login(Path::new("/no/such/file")).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn what_a_server_says_of_itself() {
        let text = "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\nloading:0\r\nrole:master\r\ncluster_enabled:1\r\n";
        let good = About { is_cluster: true, is_master: true, is_loading: false, policy: "noeviction".into() };
        assert_eq!(About::read(text), Some(good.clone()));
        assert_eq!(About::read(&text.replace("role:", "rolle:")), None);
        assert_eq!(suits(&good), Ok(()));
        for (about, part) in [
            (About { is_loading: true, ..good.clone() }, "loading"),
            (About { policy: "allkeys-lru".into(), ..good }, "allkeys-lru"),
        ] {
            assert!(suits(&about).unwrap_err().contains(part));
        }
    }
}
