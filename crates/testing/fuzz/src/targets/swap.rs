//! A swap spec.

use super::{assert_one_line, reads_back, text};
use farshore_config::{EXPORT_MAX, ServerPlace, Size, SwapSpec};

/// Reads the input as a swap spec.
pub fn run(input: &[u8]) {
    let text = text(input);
    let Some(spec) = reads_back::<SwapSpec>(&text) else {
        assert!(!certainly_good(&text), "{text:?} is refused");
        return;
    };
    assert_means(&spec, &text);
    let built = matches!(
        spec,
        SwapSpec::Dir(_)
            | SwapSpec::File { .. }
            | SwapSpec::Dev { .. }
            | SwapSpec::Ram { .. }
            | SwapSpec::Delay(_)
            | SwapSpec::Nbd(_)
            | SwapSpec::Redis(_)
    ) || matches!(&spec, SwapSpec::Mirror(copies) if copies.iter().all(|copy| copy.check_supported().is_ok()));
    match spec.check_supported() {
        Ok(()) => assert!(built, "{text:?} is not built"),
        Err(error) => {
            assert!(!built, "{text:?} is refused: {error}");
            assert_one_line(&error);
        }
    }
}

/// Whether the documents leave no doubt that this is a spec.
fn certainly_good(text: &str) -> bool {
    let some = |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
    let sized = |prefix: &str| text.strip_prefix(prefix).is_some_and(|size| size.parse::<Size>().is_ok());
    some("dir:")
        || some("dev:") && !text.contains(",size=") && !text.contains(",force")
        || some("rediss://")
        || some("file:") && !text.contains(",size=")
        || text == "ram"
        || sized("ram,size=")
}

/// The kind, the path and the size are where the text has them.
fn assert_means(spec: &SwapSpec, text: &str) {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let path_is = |path: &std::path::Path, expected: &str| assert_eq!(path.to_str(), Some(expected), "{text:?}");
    match spec {
        SwapSpec::Dir(path) => {
            assert_eq!(kind, "dir");
            path_is(path, rest);
        }
        SwapSpec::Dev { path, size, force } => {
            assert_eq!(kind, "dev");
            let rest = rest.strip_prefix(path.to_str().unwrap_or_default()).unwrap_or_else(|| panic!("{path:?} of {text:?}"));
            assert!(rest.matches(",force").count() == usize::from(*force), "{text:?}");
            let written = rest.replace(",force", "");
            let written = written.strip_prefix(",size=").and_then(|size| size.parse().ok());
            assert_eq!(written, *size, "{text:?}");
        }
        SwapSpec::File { path, size: None } => {
            assert_eq!(kind, "file");
            path_is(path, rest);
        }
        SwapSpec::File { path, size: Some(size) } => {
            assert_eq!(kind, "file");
            let path = path.to_str().unwrap_or_default();
            let written = rest.strip_prefix(path).and_then(|rest| rest.strip_prefix(",size="));
            assert_eq!(written.and_then(|size| size.parse().ok()), Some(*size), "{text:?}");
        }
        SwapSpec::Ram { size, .. } => {
            assert!(text.starts_with("ram") || text == "auto", "{text:?}");
            let written = text.split_once(",size=").and_then(|(_, size)| size.parse().ok());
            assert_eq!(written, *size, "{text:?}");
        }
        SwapSpec::Delay(delay) => {
            assert_eq!(kind, "delay");
            let mut words = rest.split(',');
            assert_eq!(words.next().and_then(|time| time.parse().ok()), Some(delay.time), "{text:?}");
            let said = |name: &str| words.clone().find_map(|word| word.strip_prefix(name)).and_then(|size| size.parse().ok());
            assert_eq!((said("rate="), said("size=")), (delay.rate, delay.size), "{text:?}");
            assert_ne!(delay.rate, Some(Size(0)), "{text:?}");
        }
        SwapSpec::Nbd(export) => {
            assert!(kind == "nbd" || kind == "nbd+unix", "{text:?}");
            assert_eq!(export.force, text.ends_with(",force"), "{text:?}");
            match &export.server {
                ServerPlace::Tcp { host, port } => {
                    assert!(kind == "nbd" && *port > 0 && text.contains(host.as_str()), "{text:?}");
                }
                // It ends in the kernel's structure with a zero.
                ServerPlace::Unix(path) => assert!((1..108).contains(&path.as_os_str().len()), "{text:?}"),
            }
            assert!(export.name.len() <= EXPORT_MAX && !export.name.contains('\0'), "{text:?}");
        }
        SwapSpec::Redis(keys) => {
            assert!(kind == "redis" || kind == "redis+unix", "{text:?}");
            match &keys.server {
                ServerPlace::Tcp { host, port } => {
                    assert!(kind == "redis" && *port > 0 && text.contains(host.as_str()), "{text:?}");
                }
                ServerPlace::Unix(path) => {
                    assert!(kind == "redis+unix" && path.is_absolute() && path.as_os_str().len() < 108, "{text:?}");
                }
            }
            let said = |option: &str| text.contains(option);
            assert_eq!((keys.size.is_some(), keys.expire.is_some()), (said(",size="), said(",expire=")), "{text:?}");
            assert!(keys.password_file.is_some() == said(",password-file=") && keys.expire_s() >= 10, "{text:?}");
        }
        SwapSpec::Mirror(copies) => {
            assert!(kind == "mirror" && (2..=3).contains(&copies.len()), "{text:?}");
            copies.iter().for_each(|copy| assert!(!copy.is_pool() && copy.copies().len() == 1, "{text:?}"));
        }
        SwapSpec::Later(address) => assert_eq!(address, text),
    }
}
