//! The metrics: each number of the counters' schema is one, and its help is what the schema says of it.
//!
//! A name is the path of the field, without its unit, and then the unit, as OpenMetrics has it: `evictors.frame_wait_ns` is
//! `farshore_evictors_frame_wait_seconds`, and `farshore_evictors_frame_wait_seconds_total` in the text, since it grows.

use farshore_config::stats::Stats;
use serde_json::Value;

/// Fields that only grow, by their paths in the schema. Those that are not here go up and down, or are peaks.
const GROW: &[&str] = &[
    "faults/fetch",
    "faults/zero",
    "faults/rescue",
    "faults/wait",
    "faults/write_protect",
    "evictions/pages",
    "evictions/clean_pages",
    "evictions/batches",
    "evictions/synchronous",
    "evictors/changes",
    "evictors/frame_waits",
    "evictors/frame_wait_ns",
    "huge_pages/mapped",
    "huge_pages/split",
    "swap/pages_in",
    "swap/pages_out",
    "swap/writes",
    "swap/delegations",
    "swap/delegation_ns",
    "swap/bytes_in",
    "swap/bytes_out",
    "swap/errors",
    "swap/bytes_given_back",
    "prefetch/issued",
    "prefetch/used",
    "flushes/protect_calls",
    "flushes/unmap_calls",
    "flushes/unmap_ranges",
    "copies/in_bytes",
    "copies/out_bytes",
    "waits/page",
    "waits/page_ns",
    "waits/write",
    "waits/write_ns",
    "fetch_parts/measured",
    "fetch_parts/claim_ns",
    "fetch_parts/read_ns",
    "fetch_parts/check_ns",
    "fetch_parts/map_ns",
    "fetch_parts/rest_ns",
    "fault_latency_ns/total",
    "spaces/write_errors",
    "spaces/copies/hedged_reads",
    "spaces/copies/hedged_reads_won",
    "pool/refused_pages",
    "pool/moved_pages",
    "policies/events_lost",
    "policies/requests",
    "policies/requests_bad",
    "scans/watched_pages",
    "scans/taken_pages",
    "autopilot/lost_ns",
    "autopilot/ran_ns",
    "autopilot/changes",
    "guest/looks",
    "guest/unheard",
    "guest/asked",
    "guest/found",
    "guest/stale",
    "guest/tables_out",
    "guest/prefetched",
    "guest/used",
    "processor_ns",
];

/// A metric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name, without unit.
    pub name: String,
    /// What it is.
    pub help: String,
    /// In what it is given; none: it counts.
    pub unit: Option<Unit>,
    /// Whether it only grows.
    pub grows: bool,
    /// The field, from the root of the counters.
    pub path: Vec<String>,
}

/// What a metric is given in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// The schema has it in bytes too.
    Bytes,
    /// The schema has nanoseconds.
    Seconds,
}

impl Unit {
    /// As it stands in names.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
        }
    }
}

/// A leaf of the schema.
struct Leaf {
    path: Vec<String>,
    help: String,
    /// `integer`, `boolean`, `string`, or `object` with names that are not of the schema.
    kind: String,
}

/// All metrics, in the order of the schema. Texts are no metrics: they are labels. What a policy calls its parameters is none either.
pub fn metrics() -> Vec<Metric> {
    leaves()
        .into_iter()
        .filter(|leaf| leaf.kind != "string" && leaf.kind != "object" && leaf.path != ["schema"] && leaf.path != ["pid"])
        .map(metric)
        .collect()
}

fn metric(leaf: Leaf) -> Metric {
    let mut unit = None;
    let mut parts: Vec<String> = Vec::new();
    for part in &leaf.path {
        // A unit may stand in the middle (`fault_latency_ns.p50`, `swap.bytes_in`).
        let mut words: Vec<&str> = part.split('_').collect();
        words.retain(|word| match *word {
            "ns" => unit.replace(Unit::Seconds).is_some(),
            "bytes" => unit.replace(Unit::Bytes).is_some(),
            _ => true,
        });
        parts.push(words.join("_"));
    }
    let grows = GROW.contains(&leaf.path.join("/").as_str());
    // What the form adds to the name of a counter is there already.
    parts.retain(|part| !(part.is_empty() || grows && part == "total"));
    let help = if unit == Some(Unit::Seconds) { in_seconds(&leaf.help) } else { leaf.help };
    Metric { name: format!("farshore_{}", parts.join("_")), help, unit, grows, path: leaf.path }
}

/// A help whose unit is that of the metric: the schema says nanoseconds.
fn in_seconds(help: &str) -> String {
    help.replace(" in ns", " in seconds").replace(", ns", ", seconds").replace("nanoseconds", "seconds")
}

fn leaves() -> Vec<Leaf> {
    let schema = schemars::schema_for!(Stats).to_value();
    let mut found = Vec::new();
    collect(&schema, &schema, &mut Vec::new(), "", &mut found);
    found
}

/// Adds the leaves below `schema`, a part of `root`, to `found`.
fn collect(root: &Value, schema: &Value, path: &mut Vec<String>, help: &str, found: &mut Vec<Leaf>) {
    let text = |value: &Value| value.as_str().map(String::from);
    if let Some(name) = schema.get("$ref").and_then(text) {
        let to = root.pointer(name.trim_start_matches('#')).expect("a schema refers to its own parts");
        return collect(root, to, path, help, found);
    }
    // What may be `null` is that or the other thing.
    if let Some(of) = schema.get("anyOf").and_then(Value::as_array) {
        let it = of.iter().find(|one| one.get("type").and_then(Value::as_str) != Some("null")).expect("something is not null");
        return collect(root, it, path, help, found);
    }
    if let Some(items) = schema.get("items") {
        return collect(root, items, path, help, found);
    }
    if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
        for (name, field) in fields {
            path.push(name.clone());
            let help = field.get("description").and_then(text).unwrap_or_default();
            collect(root, field, path, &one_line(&help), found);
            path.pop();
        }
        return;
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().find(|kind| *kind != "null").and_then(text),
        Some(kind) => text(kind),
        None => None,
    };
    found.push(Leaf { path: path.clone(), help: help.to_owned(), kind: kind.expect("a field of the counters has a type") });
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Fields that go up and down, and peaks. A new one is here or in [`GROW`], so that nobody forgets to say which it is.
    const LEVELS: &str = "uptime_ns memory_limit_bytes managed_bytes managed_bytes_peak used_bytes_peak resident_bytes resident_bytes_peak \
        overhead_bytes overhead_bytes_peak evictors/count evictors/awake evictors/awake_fixed evictors/batch_pages evictors/batch_fixed \
        evictors/batch_pages_most evictors/writes_each evictors/writes_fixed evictors/writes_in_flight evictors/writes_in_flight_peak \
        evictors/batches_in_flight_peak evictors/bound evictors/lists evictors/low_pages evictors/high_pages prefetch/wasted prefetch/threads fault_latency_ns/p50 fault_latency_ns/p90 \
        fault_latency_ns/p99 fault_latency_ns/p999 fault_latency_ns/max frames/limit frames/debt frames/free frames/cached frames/taken \
        family/own_limit_bytes family/processes family/memory_bytes spaces/capacity_bytes spaces/used_bytes spaces/encrypted \
        spaces/drained_percent spaces/copies/stale_pages pool/capacity_bytes pool/used_bytes pool/pages pool/repeated_pages pool/compressed_bytes \
        pool/chosen_bytes pool/page_ns pool/behind_page_ns \
        kinds/managed_bytes kinds/farshore_bytes kinds/locked_bytes kinds/huge_bytes kinds/shared_bytes kinds/file_bytes \
        kinds/executable_bytes kinds/stack_bytes kinds/static_bytes kinds/other_bytes thrashing/times thrashing/waited_percent \
        autopilot/target_ppm autopilot/measured_ppm autopilot/limit_bytes autopilot/least_bytes autopilot/most_bytes autopilot/decides \
        budget/size_bytes budget/share_bytes budget/least_bytes budget/wanted_bytes budget/need_ppm budget/taken_bytes budget/programs \
        guest/address_spaces";

    #[test]
    fn each_field_grows_or_is_a_level() {
        let levels: BTreeSet<String> = LEVELS.split_whitespace().map(String::from).collect();
        let known: BTreeSet<String> = GROW.iter().map(|path| (*path).into()).chain(levels.iter().cloned()).collect();
        let found: BTreeSet<String> = metrics().iter().map(|metric| metric.path.join("/")).collect();
        let (new, gone): (Vec<_>, Vec<_>) = (found.difference(&known).collect(), known.difference(&found).collect());
        assert!(new.is_empty(), "say of {new:?} whether they only grow (GROW), or not (LEVELS)");
        assert!(gone.is_empty(), "the schema has no {gone:?}");
        assert!(GROW.iter().all(|path| !levels.contains(*path)));
    }

    #[test]
    fn names_have_units_and_help() {
        let metrics = metrics();
        let of = |path: &str| metrics.iter().find(|metric| metric.path.join("/") == path).expect("it is a metric");
        for (path, name, unit) in [
            ("resident_bytes", "farshore_resident", Some(Unit::Bytes)),
            ("resident_bytes_peak", "farshore_resident_peak", Some(Unit::Bytes)),
            ("faults/fetch", "farshore_faults_fetch", None),
            ("swap/bytes_in", "farshore_swap_in", Some(Unit::Bytes)),
            ("swap/pages_in", "farshore_swap_pages_in", None),
            ("evictors/frame_wait_ns", "farshore_evictors_frame_wait", Some(Unit::Seconds)),
            ("fault_latency_ns/total", "farshore_fault_latency", Some(Unit::Seconds)),
            ("fault_latency_ns/p999", "farshore_fault_latency_p999", Some(Unit::Seconds)),
            ("spaces/capacity_bytes", "farshore_spaces_capacity", Some(Unit::Bytes)),
            ("pool/used_bytes", "farshore_pool_used", Some(Unit::Bytes)),
        ] {
            assert_eq!((of(path).name.as_str(), of(path).unit), (name, unit), "{path}");
        }
        assert_eq!(of("uptime_ns").help, "How long Farshore has been at work, in seconds.");
        assert_eq!(of("faults/rescue").help, "The page's bytes were still local.");
        assert_eq!(of("kinds/stack_bytes").help, "The main thread's stack, and others that grow.");
        let full: BTreeSet<String> = metrics.iter().map(|one| format!("{} {:?} {}", one.name, one.unit, one.grows)).collect();
        assert_eq!(full.len(), metrics.len(), "two have one name");
        for metric in &metrics {
            assert!(!metric.help.is_empty() && !metric.help.contains('\n'), "{metric:?}");
            assert!(metric.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{metric:?}");
        }
    }
}
