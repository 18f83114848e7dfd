//! Finds a library of Farshore's own, which is to be preloaded.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::refusal::Refusal;

/// Where a library is: what `variable` of the environment names, or else beside this command or in the `lib` directory next to it.
///
/// # Errors
/// It is nowhere, or `LD_PRELOAD` cannot carry its path (125).
pub fn find(file: &str, variable: &str) -> Result<PathBuf, Refusal> {
    let named = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let command = std::env::current_exe().ok();
    let path = choose(file, variable, named.as_deref(), command.as_deref())?;
    check(&path)?;
    Ok(path)
}

fn choose(file: &str, variable: &str, named: Option<&Path>, command: Option<&Path>) -> Result<PathBuf, Refusal> {
    if let Some(path) = named {
        let shown = path.display();
        let missing = |error| {
            Refusal::cannot_start(format!(
                "the library '{shown}' (from {variable}) cannot be used ({error}): correct or unset {variable}"
            ))
        };
        return std::fs::canonicalize(path).map_err(missing);
    }
    let Some(folder) = command.and_then(Path::parent) else {
        return Err(Refusal::cannot_start(format!(
            "where farshore itself lies is not known (is /proc mounted?), so {file} cannot be found: set {variable} to its path"
        )));
    };
    let places = ["", "../lib/farshore", "../lib"].map(|place| folder.join(place).join(file));
    if let Some(found) = places.iter().find_map(|place| std::fs::canonicalize(place).ok()) {
        return Ok(found);
    }
    let looked = places.map(|place| format!("'{}'", place.display())).join(", ");
    Err(Refusal::cannot_start(format!(
        "{file} was not found (looked at {looked}): install it there, or set {variable} to its path"
    )))
}

fn check(path: &Path) -> Result<(), Refusal> {
    // The linker splits LD_PRELOAD at these, and knows no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        return Err(Refusal::cannot_start(format!(
            "the library '{}' has a space, a colon or a dollar sign in its path, which LD_PRELOAD cannot carry: install it elsewhere",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_it_looked() {
        let of = |named: Option<&str>, command: Option<&str>| {
            choose("libx.so", "X_LIBRARY", named.map(Path::new), command.map(Path::new)).unwrap_err().text
        };
        let text = of(None, Some("/nonexistent/bin/farshore"));
        assert!(text.contains("/nonexistent/bin/../lib/farshore/libx.so"), "{text}");
        let text = of(Some("/nonexistent.so"), None);
        assert!(text.contains("'/nonexistent.so' (from X_LIBRARY)"), "{text}");
        assert!(of(None, None).contains("set X_LIBRARY"));
        assert!(check(Path::new("/a b/libx.so")).unwrap_err().text.contains("LD_PRELOAD cannot carry"));
    }
}
