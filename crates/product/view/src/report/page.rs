//! The page: heat map, table, flame graph, and how it went over time. All of it is in one file without a script; names are anybody's, and escaped.

use std::fmt::Write;

use farshore_client::shown::{bytes, duration};
use farshore_command::page;
use maud::{Markup, PreEscaped, html};
use serde_json::json;

use super::code::{Flame, Node};
use super::policies::Policies;
use super::seen::{COLUMNS, Counts, Seen};
use crate::record::file::End;

const STYLE: &str = include_str!("style.css");
/// The schema of the data in the page.
const SCHEMA: u32 = 1;
/// Width of drawings, and of what is left of them.
pub(super) const WIDTH: f64 = 1160.0;
pub(super) const LEFT: f64 = 250.0;
/// A part of the flame graph that is narrower is not drawn.
const NARROW: f64 = 1.0;
const LEVEL: f64 = 22.0;
/// How wide a letter is taken to be.
const LETTER: f64 = 7.0;
/// Parts of the flame graph that are in the data and in the table.
const LINES_MAX: usize = 200;

/// The whole page.
pub fn page(seen: &Seen, flame: &Flame, policies: &Result<Policies, &'static str>) -> String {
    let found = &seen.found;
    let title = format!("farshore record: {}", found.name);
    let data = data(seen, flame, policies).to_string().replace('<', "\\u003c");
    let body = html! {
        (head(seen))
        main {
            section id="heat" {
                h2 { "Where it faulted, and when" }
                (heat(seen))
                p.quiet { "Each row is a piece of memory, each column a piece of the time. Memory in which nothing faulted is left out; a line says where. The darker, the more faults." }
            }
            section id="rate" { h2 { "Over time" } (rate(seen)) }
            section id="mappings" { h2 { "By mapping" } (mappings(seen)) }
            section id="code" {
                h2 { "By code" }
                p { "Program, mapping, function, line: of each fault the instruction is known, not who called the function. Functions that were inlined lie on the one that they became a part of." }
                (self::flame(flame))
                (lines(flame))
                @for (name, why) in flame.without.iter().filter(|(name, _)| name.starts_with('/')) {
                    p.note { "Not all names of " code { (name) } ": " (why) "." }
                }
            }
            section id="distances" { h2 { "How far apart pages are used again" } (distances(seen)) }
            section id="policies" {
                h2 { "What other policies would have done" }
                @match policies { Ok(policies) => (policies.section()), Err(why) => p.note { "There is nothing to say: " (why) "." } }
            }
        }
        script type="application/json" id="data" { (PreEscaped(data)) }
    };
    page::page(&title, &[STYLE], &body)
}

fn head(seen: &Seen) -> Markup {
    let found = &seen.found;
    let limits: Vec<String> = found
        .limits
        .iter()
        .take(12)
        .map(|(ns, limit)| format!("{} from {}", bytes(*limit), duration(ns.saturating_sub(found.from))))
        .collect();
    let end = match found.end {
        Some(End::Over) => "the program ended",
        Some(End::Stopped) => "the recording was ended",
        None => "the recording is cut off",
    };
    html! {
        header {
            h1 { (found.name) }
            p.quiet {
                "process " (found.pid) " · " (duration(found.to - found.from)) " · " (seen.all.faults) " faults · " (seen.all.fetched)
                " pages fetched · " (seen.all.evicted) " evicted · " (seen.all.rescued) " rescued · " (seen.threads.len()) " threads · " (end)
            }
            p.quiet { "Limit: " (if limits.is_empty() { "not known".into() } else { limits.join(", ") }) }
            @if !found.broken.is_empty() { p.note id="broken" { "The recording is not whole (" (found.broken) "). This page shows what is before." } }
            @if seen.lost > 0 { p.note id="lost" { (seen.lost) " events were lost, since the recorder got no processor in time: all numbers are too small." } }
            @if found.execs > 0 { p.note { "The program became another one " (found.execs) " times (execve): faults in between are not known." } }
            @if found.too_much { p.note { "There were too many mappings to keep: some names are not known." } }
        }
    }
}

pub(super) fn svg(height: f64, name: &str, inside: &str) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(name) { (PreEscaped(inside)) }
    }
}

pub(super) fn escaped(text: &str) -> String {
    html! { (text) }.into_string()
}

/// As much of a text as fits, from its end for a path.
fn fitting(text: &str, width: f64) -> String {
    let most = (width / LETTER) as usize;
    let count = text.chars().count();
    if count <= most {
        return text.into();
    }
    if most < 4 {
        return String::new();
    }
    if text.starts_with('/') {
        format!("…{}", text.chars().skip(count - most + 1).collect::<String>())
    } else {
        format!("{}…", text.chars().take(most - 1).collect::<String>())
    }
}

fn heat(seen: &Seen) -> Markup {
    if seen.rows.is_empty() {
        return html! { p.note { "There was no fault." } };
    }
    let tall = (480.0 / seen.rows.len() as f64).clamp(3.0, 14.0);
    let wide = (WIDTH - LEFT) / COLUMNS as f64;
    let most = seen.rows.iter().flat_map(|row| &row.cells).copied().max().unwrap_or(0).max(1);
    let mut inside = String::new();
    let mut last_label = 0.0_f64;
    for (n, row) in seen.rows.iter().enumerate() {
        let y = n as f64 * tall;
        if n > 0 && seen.rows[n - 1].end != row.start {
            let _ = write!(inside, r#"<line class="gap" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1}" y2="{y:.1}"/>"#);
        }
        // A row is lower than a letter; labels that have no room any more are in the data alone.
        let label_y = (last_label + 13.0).max(y + 11.0);
        if !row.name.is_empty() && label_y - y < 60.0 {
            last_label = label_y;
            let label = escaped(&fitting(&row.name, LEFT - 100.0));
            let _ = write!(
                inside,
                r#"<text class="label" x="0" y="{:.1}">{label}</text><text class="address" x="{}" y="{:.1}">{:x}</text>"#,
                label_y,
                LEFT - 95.0,
                label_y,
                row.start
            );
        }
        let mut column = 0;
        while column < COLUMNS {
            let count = row.cells[column];
            let alike = row.cells[column..].iter().take_while(|&&other| other == count).count();
            if count > 0 {
                // By its logarithm, so that a place with few is seen beside one with many.
                let share = 0.2 + 0.8 * f64::from(count).ln_1p() / f64::from(most).ln_1p();
                let _ = write!(
                    inside,
                    r#"<rect class="cell" x="{:.1}" y="{y:.1}" width="{:.1}" height="{tall:.1}" opacity="{share:.2}"><title>{:x}: {count} faults</title></rect>"#,
                    LEFT + column as f64 * wide,
                    alike as f64 * wide,
                    row.start
                );
            }
            column += alike;
        }
    }
    let height = seen.rows.len() as f64 * tall;
    let all = duration(seen.found.to - seen.found.from);
    let _ = write!(
        inside,
        r#"<text class="label" x="{LEFT}" y="{:.1}">0</text><text class="label end" x="{WIDTH}" y="{:.1}">{all}</text>"#,
        height + 16.0,
        height + 16.0
    );
    svg((height + 22.0).max(last_label + 4.0), "Faults by address and time", &inside)
}

/// What a line of the plot over time counts.
type Counter = fn(&Counts) -> u64;

fn rate(seen: &Seen) -> Markup {
    const HEIGHT: f64 = 200.0;
    let seconds = (seen.found.to - seen.found.from) as f64 / 1e9 / COLUMNS as f64;
    let series: [(&str, Counter); 4] =
        [("faults", |it| it.faults), ("fetched", |it| it.fetched), ("evicted", |it| it.evicted), ("rescued", |it| it.rescued)];
    let most = series.iter().flat_map(|(_, of)| seen.columns.iter().map(of)).max().unwrap_or(0).max(1);
    let wide = (WIDTH - LEFT) / COLUMNS as f64;
    let mut inside = format!(
        r#"<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/><text class="label end" x="{:.1}" y="12">{:.0}/s</text>"#,
        LEFT - 8.0,
        most as f64 / seconds.max(1e-9)
    );
    for (n, (name, of)) in series.iter().enumerate() {
        let mut points = String::new();
        for (column, counts) in seen.columns.iter().enumerate() {
            let y = HEIGHT - of(counts) as f64 / most as f64 * (HEIGHT - 6.0);
            let _ = write!(points, "{:.1},{y:.1} ", LEFT + (column as f64 + 0.5) * wide);
        }
        let y = 40.0 + n as f64 * 22.0;
        let _ = write!(
            inside,
            r#"<polyline class="series s{n}" points="{points}"/><line class="series s{n}" x1="0" x2="30" y1="{y}" y2="{y}"/><text class="label" x="38" y="{}">{name}</text>"#,
            y + 4.0
        );
    }
    for (column, _) in seen.lost_columns.iter().enumerate().filter(|(_, lost)| **lost > 0) {
        let _ = write!(
            inside,
            r#"<rect class="lost" x="{:.1}" y="0" width="{wide:.1}" height="6"><title>events were lost</title></rect>"#,
            LEFT + column as f64 * wide
        );
    }
    svg(HEIGHT + 8.0, "Faults and pages over time", &inside)
}

fn mappings(seen: &Seen) -> Markup {
    let mut all: Vec<_> = seen.mappings.iter().collect();
    all.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.faults));
    html! {
        div.scroll { table {
            thead { tr { th { "mapping" } th.number { "faults" } th.number { "share" } th.number { "fetched" } th.number { "evicted" } th.number { "rescued" } } }
            tbody { @for (name, counts) in all.iter().take(LINES_MAX) { tr {
                th scope="row" { (name) }
                td.number { (counts.faults) }
                td.number { (share(counts.faults, seen.all.faults)) }
                td.number { (counts.fetched) } td.number { (counts.evicted) } td.number { (counts.rescued) }
            } } }
        } }
        @if all.len() > LINES_MAX { p.quiet { "and " (all.len() - LINES_MAX) " more" } }
    }
}

fn share(part: u64, all: u64) -> String {
    format!("{:.1} %", part as f64 / all.max(1) as f64 * 100.0)
}

fn flame(flame: &Flame) -> Markup {
    fn draw(inside: &mut String, name: &str, node: &Node, (x, depth, scale): (f64, usize, f64)) -> usize {
        let width = node.faults as f64 * scale;
        if width < NARROW {
            return depth;
        }
        let y = depth as f64 * LEVEL;
        let _ = write!(
            inside,
            r#"<g><title>{0}: {1} faults</title><rect class="part d{4}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{2:.1}"/><text x="{3:.1}" y="{5:.1}">{6}</text></g>"#,
            escaped(name),
            node.faults,
            LEVEL - 1.0,
            x + 4.0,
            depth % 5,
            y + 15.0,
            escaped(&fitting(name, width - 8.0))
        );
        let (mut x, mut deepest) = (x, depth + 1);
        for (name, part) in &node.parts {
            deepest = deepest.max(draw(inside, name, part, (x, depth + 1, scale)));
            x += part.faults as f64 * scale;
        }
        deepest
    }
    if flame.root.faults == 0 {
        return html! { p.note { "There was no fault." } };
    }
    let mut inside = String::new();
    let deepest = draw(&mut inside, "all faults", &flame.root, (0.0, 0, WIDTH / flame.root.faults as f64));
    svg(deepest as f64 * LEVEL, "Faults by code", &inside)
}

/// The leaves of the tree with the most faults: their paths.
fn leaves(flame: &Flame) -> Vec<(Vec<&str>, u64)> {
    fn collect<'a>(node: &'a Node, path: &mut Vec<&'a str>, leaves: &mut Vec<(Vec<&'a str>, u64)>) {
        if node.parts.is_empty() {
            leaves.push((path.clone(), node.faults));
        }
        for (name, part) in &node.parts {
            path.push(name);
            collect(part, path, leaves);
            path.pop();
        }
    }
    let mut leaves = Vec::new();
    collect(&flame.root, &mut Vec::new(), &mut leaves);
    leaves.retain(|(path, _)| !path.is_empty());
    leaves.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
    leaves.truncate(LINES_MAX);
    leaves
}

fn lines(flame: &Flame) -> Markup {
    let all = leaves(flame);
    html! {
        details {
            summary { "The lines with the most faults" }
            div.scroll { table {
                thead { tr { th.number { "faults" } th.number { "share" } th { "where" } } }
                tbody { @for (path, faults) in all.iter().take(40) { tr {
                    td.number { (faults) } td.number { (share(*faults, flame.root.faults)) } td { (path.join(" › ")) }
                } } }
            } }
        }
    }
}

fn distances(seen: &Seen) -> Markup {
    if seen.distances.is_empty() {
        return html! { p.note { "No page came back that was seen leaving." } };
    }
    let most = seen.distances.values().copied().fold(1.0, f64::max);
    html! {
        p { "Of each page that came back: how many pages left after it and had not come back, so how much more memory would have kept it." }
        div.scroll { table {
            thead { tr { th { "with so much more memory" } th.number { "pages that came back" } th {} } }
            tbody { @for (power, count) in &seen.distances { tr {
                th scope="row" { "up to " (bytes((1_u64 << (power + 1).min(50)) * 4096)) }
                td.number { (format!("{count:.0}")) }
                td.bar { svg viewBox="0 0 300 12" width="300" height="12" aria-hidden="true" { rect.cell width=(format!("{:.1}", count / most * 300.0)) height="12" {} } }
            } } }
        } }
        @if seen.unseen > 0 { p.quiet { (seen.unseen) " more came back and were not seen leaving." } }
        p.quiet { "'farshore plan' tells what that would mean for the program's time." }
    }
}

/// What the page shows, for scripts.
fn data(seen: &Seen, flame: &Flame, policies: &Result<Policies, &'static str>) -> serde_json::Value {
    let found = &seen.found;
    let counts = |it: &Counts| json!({"faults": it.faults, "fetched": it.fetched, "evicted": it.evicted, "rescued": it.rescued});
    let rows: Vec<_> = seen
        .rows
        .iter()
        .scan("", |name, row| {
            if !row.name.is_empty() {
                *name = &row.name;
            }
            Some(json!({"start": row.start, "end": row.end, "mapping": name, "faults": row.cells}))
        })
        .collect();
    let mut mappings: Vec<_> = seen.mappings.iter().collect();
    mappings.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.faults));
    let mappings: Vec<_> =
        mappings.into_iter().take(LINES_MAX).map(|(name, it)| json!({"mapping": name, "counts": counts(it)})).collect();
    let code: Vec<_> = leaves(flame).into_iter().map(|(path, faults)| json!({"path": path, "faults": faults})).collect();
    let end = match found.end {
        Some(End::Over) => "over",
        Some(End::Stopped) => "stopped",
        None => "cut off",
    };
    json!({
        "schema": SCHEMA,
        "program": found.name, "pid": found.pid, "date": found.date, "end": end, "broken": found.broken,
        "ns": found.to - found.from, "lost": seen.lost, "threads": seen.threads.len(),
        "limits": found.limits.iter().map(|(ns, limit)| json!({"ns": ns.saturating_sub(found.from), "bytes": limit})).collect::<Vec<_>>(),
        "counts": counts(&seen.all),
        "columns": seen.columns.iter().map(counts).collect::<Vec<_>>(),
        "heat": rows, "mappings": mappings, "code": code,
        "policies": policies.as_ref().map_or(serde_json::Value::Null, Policies::data),
        "distances": seen.distances.iter().map(|(power, count)| json!({"pages_up_to": 1_u64 << (power + 1).min(63), "returns": count})).collect::<Vec<_>>(),
    })
}
