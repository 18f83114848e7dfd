"use strict";

// The page of `farshore daemon`: asks the API each second or two and shows what it says. What comes from there is anybody's (names of programs, lines that they
// have written), so it is set as text and never as HTML.

const at = (id) => document.getElementById(id);
const MIB = 1048576;
// From one request to the next.
const PAUSE = 1000;
// How long an answer is waited for.
const PATIENCE = 15000;
let token = null;
let chosen = null;
let rows = [];
// A slider that somebody has moved stays where he has left it until it is set.
let moved = false;
let keysOf = null;

// The token comes behind #, which is sent to no server, and goes from the address at once.
function takeToken() {
  const given = /^#token=([\w.~-]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("token", given[1]);
    history.replaceState(null, "", location.pathname);
  }
  token = sessionStorage.getItem("token");
}

async function ask(method, path, body) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // What is watched is answered at once, from what the daemon has. What is set waits for the program.
  const options = { method, headers, cache: "no-store", signal: AbortSignal.timeout(method === "GET" ? PATIENCE : 4 * PATIENCE) };
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await fetch(path, options);
  const text = await answer.text();
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    read = { error: text.trim() };
  }
  if (answer.ok) return read;
  const error = new Error(read.error || `status ${answer.status}`);
  error.status = answer.status;
  throw error;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 100 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const rate = (number) => (number === null || number === undefined ? "–" : number < 10 ? number.toFixed(1) : String(Math.round(number)));
const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`);

function level(vm) {
  if (vm.budget) return `budget ${vm.budget.name}`;
  if (vm.slowdown) return `slowdown ${(vm.slowdown.measured_ppm / 1e4).toFixed(1)} of ${vm.slowdown.target_ppm / 1e4} %`;
  return vm.level ?? "–";
}

function tell(text) {
  at("problem").textContent = text;
  at("problem").hidden = text === "";
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function newRow(vm, key) {
  const row = element("tr");
  row.dataset.pid = vm.pid;
  row.dataset.key = key;
  const button = element("button", String(vm.pid));
  button.type = "button";
  const first = element("td");
  first.append(button);
  row.append(first, ...["", "", "number", "number", "number", "number", "number", ""].map((kind) => element("td", "", kind)));
  return row;
}

// A row stays the element that it is for as long as its process lives: what is pressed, focused or selected when new numbers come is there when the finger is lifted.
function showTable() {
  const body = document.querySelector("#vms tbody");
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const shown = rows.map((vm) => {
    const key = `${vm.pid} ${vm.started}`;
    const row = old.get(key) ?? newRow(vm, key);
    old.delete(key);
    row.setAttribute("aria-selected", String(chosen === vm.pid));
    row.title = vm.why ?? "";
    const numbers = [size(vm.limit_bytes), size(vm.resident_bytes), size(vm.out_bytes), rate(vm.faults_per_second), percent(vm.stall)];
    [vm.name, level(vm), ...numbers, vm.state].forEach((text, at) => {
      const cell = row.cells[at + 1];
      if (cell.textContent !== text) cell.textContent = text;
    });
    return row;
  });
  for (const row of old.values()) row.remove();
  shown.forEach((row, at) => {
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
  at("none").hidden = rows.length > 0;
}

function choose(pid) {
  if (chosen !== pid) {
    moved = false;
    keysOf = null;
    for (const id of ["said", "create-said"]) {
      at(id).textContent = "";
      at(id).className = "quiet";
    }
    at("written").hidden = true;
    for (const id of ["chart-memory", "chart-faults"]) at(id).replaceChildren();
    showHeat({ pieces: [], looks: [] });
  }
  chosen = pid;
  showTable();
  showOne();
}

const wanted = () => Math.round(2 ** Number(at("slider").value) / MIB) || 1;

function showOne() {
  const vm = rows.find((one) => one.pid === chosen);
  at("one").hidden = !vm;
  if (!vm) return;
  at("title").textContent = `${vm.name} (${vm.kind === "vm" ? "virtual machine" : "program"}, process ${vm.pid})`;
  const parts = [`level ${level(vm)}`, vm.policy && `policy ${vm.policy}`, vm.prefetcher && `prefetcher ${vm.prefetcher}`, vm.manager && `manager ${vm.manager}`, vm.why];
  at("about").textContent = parts.filter(Boolean).join(" · ");
  const steers = vm.state === "running" || vm.state === "dormant";
  at("set").disabled = !steers;
  at("slider").disabled = !steers;
  if (!moved && vm.limit_bytes) {
    at("slider").max = Math.max(30, Math.ceil(Math.log2(Math.max(vm.managed_bytes ?? 0, vm.limit_bytes))) + 1);
    at("slider").value = Math.log2(vm.limit_bytes);
  }
  at("wanted").textContent = size(moved ? wanted() * MIB : vm.limit_bytes);
  at("stop").hidden = vm.kind !== "vm" || vm.state === "ended";
  const keys = ["policy", "prefetch", "slowdown", "budget", "swap+", "swap-", "evictors", "batch", "writes", "free", ...Object.keys(vm.parameters)];
  if (keys.join() !== keysOf) {
    keysOf = keys.join();
    at("key").replaceChildren(...keys.map((key) => new Option(key, key)));
  }
  const now = { policy: vm.policy, prefetch: vm.prefetcher, slowdown: vm.slowdown ? `${vm.slowdown.target_ppm / 1e4}%` : "off" };
  at("value").placeholder = String(vm.parameters[at("key").value] ?? now[at("key").value] ?? "");
}

// Lines over time: names of the samples' members, and what their numbers are.
function chart(id, samples, names, shown) {
  const svg = at(id);
  const [width, height, left, bottom] = [600, 180, 62, 18];
  // As long as there is something to show: one minute to five.
  const span = Math.min(300000, Math.max(60000, Math.ceil((samples[0]?.age_ms ?? 0) / 60000) * 60000));
  const make = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const most = Math.max(1, ...samples.flatMap((sample) => names.map(([member]) => sample[member]))) * 1.08;
  const x = (age) => width - 4 - ((width - left - 4) * age) / span;
  const y = (value) => height - bottom - ((height - bottom - 8) * value) / most;
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    const value = (most / 1.08) * part;
    parts.push(make("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }));
    parts.push(make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  for (const part of [0, 0.25, 0.5, 0.75]) {
    const seconds = (part * span) / 1000;
    parts.push(make("text", { x: x(part * span), y: height - 3, "text-anchor": part ? "middle" : "end" }, part ? `−${seconds} s` : "now"));
  }
  for (const [member, kind] of names) {
    const points = samples.map((sample) => `${x(sample.age_ms).toFixed(1)},${y(sample[member]).toFixed(1)}`);
    if (points.length > 1) parts.push(make("polyline", { class: kind, points: points.join(" ") }));
  }
  svg.replaceChildren(...parts);
  svg.dataset.samples = samples.length;
}

function showHeat(heat) {
  const canvas = at("heat");
  const which = document.querySelector('input[name="shown"]:checked').value;
  const context = canvas.getContext("2d");
  const [width, height] = [canvas.width, canvas.height];
  context.clearRect(0, 0, width, height);
  canvas.dataset.looks = heat.looks.length;
  canvas.dataset.pieces = heat.pieces.length;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const [red, green, blue] = dark ? [255, 171, 112] : [154, 52, 18];
  const tall = height / Math.max(1, heat.pieces.length);
  const wide = width / Math.max(30, heat.looks.length);
  // Few pages of a piece come at a time, so the most of all is full there.
  const most = Math.max(1, ...heat.looks.flatMap((look) => look.came));
  heat.looks.forEach((look, number) => {
    const x = width - (heat.looks.length - number) * wide;
    look[which].forEach((count, piece) => {
      const part = which === "resident" ? count / Math.max(1, heat.pieces[piece].pages) : Math.sqrt(count / most);
      if (part <= 0) return;
      context.fillStyle = `rgba(${red}, ${green}, ${blue}, ${(0.08 + 0.92 * Math.min(1, part)).toFixed(3)})`;
      context.fillRect(Math.floor(x), Math.floor(piece * tall), Math.ceil(wide), Math.max(1, Math.ceil(tall)));
    });
  });
  const bytes = heat.pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  at("heat-about").textContent = heat.looks.length
    ? `${heat.pieces.length} pieces, ${size(bytes)} in all, lowest address first; ${heat.looks.length} looks.`
    : "Looking …";
}

async function showMore() {
  const pid = chosen;
  const vm = rows.find((one) => one.pid === pid);
  if (!vm) return;
  if (vm.created) {
    const { text } = await ask("GET", `/v1/vms/${pid}/output`);
    if (chosen !== pid) return;
    at("written").hidden = text === "";
    at("output").textContent = text;
  }
  if (vm.state === "ended" || vm.state === "starting" || vm.state === "dormant") return;
  const [past, heat] = await Promise.all([ask("GET", `/v1/vms/${pid}/history?seconds=300`), ask("GET", `/v1/vms/${pid}/heat`)]);
  if (chosen !== pid) return;
  const memory = [["limit_bytes", "limit"], ["resident_bytes", "resident"], ["out_bytes", "out"]];
  chart("chart-memory", past.samples, memory, size);
  chart("chart-faults", past.samples, [["faults_per_second", "faults"], ["evicted_per_second", "evicted"]], rate);
  showHeat(heat);
}

// There is one that looks: what begins anew ends the one before.
let turn = 0;
async function look() {
  turn += 1;
  const mine = turn;
  try {
    const [all, host] = await Promise.all([ask("GET", "/v1/vms"), ask("GET", "/v1/host")]);
    if (mine !== turn) return;
    rows = all;
    const parts = [`version ${host.version}`, `${size(host.available_bytes)} of ${size(host.memory_bytes)} free`];
    if (host.pressure) parts.push(`memory pressure ${host.pressure.some_percent} %`);
    parts.push(...host.budgets.map((it) => `budget ${it.name}: ${size(it.taken_bytes)} of ${size(it.size_bytes)}`));
    at("host").textContent = parts.join(" · ");
    at("login").hidden = true;
    at("main").hidden = false;
    showTable();
    showOne();
    tell("");
    // One that has just ended has no history.
    await showMore().catch((error) => {
      at("heat-about").textContent = error.message;
    });
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) {
      at("login").hidden = false;
      at("main").hidden = true;
      tell(token ? "The daemon does not know this token." : "");
      return;
    }
    tell(error.status ? error.message : "The daemon does not answer.");
  }
  setTimeout(() => mine === turn && look(), PAUSE);
}

// Words of a command line: cut at spaces, but for what is in quotes.
function words(text) {
  const found = [];
  let word = null;
  let quote = null;
  for (const letter of text.trim()) {
    if (quote) {
      if (letter === quote) quote = null;
      else word += letter;
    } else if (letter === '"' || letter === "'") {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== null) found.push(word);
      word = null;
    } else {
      word = (word ?? "") + letter;
    }
  }
  if (quote) throw new Error(`a quote (${quote}) is not closed: close it`);
  if (word !== null) found.push(word);
  return found;
}

async function done(button, work) {
  const said = at(button.form.id === "create" ? "create-said" : "said");
  button.disabled = true;
  said.textContent = "";
  try {
    const text = await work();
    said.className = "quiet";
    said.textContent = text;
  } catch (error) {
    said.className = "problem";
    said.textContent = `Not done: ${error.message}`;
  } finally {
    button.disabled = false;
  }
}

function onSubmit(id, work) {
  at(id).addEventListener("submit", (event) => {
    event.preventDefault();
    done(event.submitter ?? at(id).querySelector("button"), work);
  });
}

onSubmit("memory", async () => {
  const value = `${wanted()}M`;
  await ask("POST", `/v1/vms/${chosen}/set`, { key: "memory", value });
  moved = false;
  return `memory=${value} is set.`;
});

onSubmit("setting", async () => {
  const [key, value] = [at("key").value, at("value").value.trim()];
  const { change } = await ask("POST", `/v1/vms/${chosen}/set`, { key, value });
  at("value").value = "";
  return change === null ? `${key}=${value} is set.` : `${key}=${value} has begun, as change ${change}.`;
});

onSubmit("ending", async () => {
  const { signal } = await ask("DELETE", `/v1/vms/${chosen}`);
  return `${signal} was sent.`;
});

onSubmit("create", async () => {
  const levels = { fixed: "memory", slowdown: "slowdown", budget: "budget" };
  const service = { level: at("level").value };
  service[levels[service.level]] = at("amount").value.trim();
  const vm = await ask("POST", "/v1/vms", { command: words(at("command").value), service });
  rows = [...rows.filter((one) => one.pid !== vm.pid), vm];
  choose(vm.pid);
  return `Process ${vm.pid} was started.`;
});

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  sessionStorage.setItem("token", token);
  at("token").value = "";
  look();
});
document.querySelector("#vms tbody").addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row) choose(Number(row.dataset.pid));
});
at("slider").addEventListener("input", () => {
  moved = true;
  at("wanted").textContent = size(wanted() * MIB);
});
at("key").addEventListener("change", showOne);
at("level").addEventListener("change", () => {
  const [label, sample] = { fixed: ["Memory", "1G"], slowdown: ["Slowdown", "5%"], budget: ["Budget", "guests=8G"] }[at("level").value];
  at("amount-label").textContent = label;
  at("amount").placeholder = sample;
});

function begin() {
  takeToken();
  look();
}

// A new token in the address of a page that is open does not load it anew.
addEventListener("hashchange", () => location.hash && begin());
begin();
