//! How loom models are run.

/// Runs a model with all schedules of up to `preemptions` forced switches, which each model has chosen so that it ends
/// in seconds. `LOOM_MAX_PREEMPTIONS` above 3 raises it, for a long search.
///
/// A model that is to see an error with few switches starts all its actors as threads and only joins them, so that
/// going from one actor to the first is no forced switch.
pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let asked = builder.preemption_bound.filter(|&asked| asked > 3);
    builder.preemption_bound = Some(asked.unwrap_or(preemptions));
    // Searching an extent is one step a slot.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Passes when `model` ends in a panic that says `why`. Loom's report of a deadlock cannot be caught (its
/// destructors panic again), so the model runs in a process of its own: this test, started once more.
pub fn must_die(test: &str, why: &str, model: impl Fn() + Sync + Send + 'static) {
    const INSIDE: &str = "FARSHORE_CANARY_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        explore(2, model);
        return;
    }
    let this = std::env::current_exe().expect("the test knows its own program");
    let child = std::process::Command::new(this).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output();
    let child = child.expect("the test can start itself");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains(why), "the model did not see `{why}`:\n{said}");
}
