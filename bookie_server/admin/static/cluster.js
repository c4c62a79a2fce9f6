// The page of the cluster. Values are foreign text: they enter the page by textContent alone.
"use strict";

const REFRESH_MS = 5000;
const UNKNOWN = "–";
const NUMBERS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

let paused = false;
let timer = 0;
let latest = null;

const byId = (id) => document.getElementById(id);

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function number(value, unit = "") {
  return value === null || value === undefined ? UNKNOWN : NUMBERS.format(value) + unit;
}

function size(bytes, unit = "") {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (bytes >= 1024 && power < names.length - 1) {
    bytes /= 1024;
    power += 1;
  }
  return `${NUMBERS.format(bytes)} ${names[power]}${unit}`;
}

function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function ago(timeMs, nowMs) {
  return timeMs === null || timeMs === undefined ? UNKNOWN : `${duration(nowMs - timeMs)} ago`;
}

// A row. The first cell names it; a cell is a text, or [text, class].
function row(cells) {
  const made = document.createElement("tr");
  cells.forEach((cell, index) => {
    const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
    const part = element(index ? "td" : "th", text, kind);
    if (!index) part.scope = "row";
    made.append(part);
  });
  return made;
}

function fill(id, rows, columns, nothing) {
  const body = document.querySelector(`#${id} tbody`);
  if (!rows.length) {
    const empty = document.createElement("tr");
    const cell = element("td", nothing, "none");
    cell.colSpan = columns;
    empty.append(cell);
    rows = [empty];
  }
  body.replaceChildren(...rows);
}

function facts(list, values) {
  list.replaceChildren(...values.map(([name, value, kind]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value, kind));
    return pair;
  }));
}

const STATES = { "writable": "good", "read-only": "warn", "not registered": "bad" };

function bookieRow(one) {
  const used = one.disks.map((disk) => disk.used_percent);
  const most = used.length ? Math.max(...used) : one.total_bytes ? 100 * (1 - one.free_bytes / one.total_bytes) : null;
  const kind = most === null ? "" : most > 90 ? " bad" : most > 80 ? " warn" : "";
  const free = one.total_bytes === null ? UNKNOWN : `${size(one.free_bytes)} of ${size(one.total_bytes)}`;
  const note = one.problem || (one.http || one.state === "not registered" ? "" : "no HTTP endpoint that others reach");
  return row([
    one.bookie, [one.state, STATES[one.state] || ""], one.rack || UNKNOWN, [number(most, " %"), `number${kind}`],
    [free, "number"], [number(one.adds_per_s), "number"], [size(one.written_bytes_per_s), "number"],
    [number(one.reads_per_s), "number"], [size(one.read_bytes_per_s), "number"], [number(one.add_p99_ms, " ms"), "number"],
    note,
  ]);
}

function leftOut(count, what, columns) {
  return count ? [row([`… and ${number(count)} more ${what}`, ...Array(columns - 1).fill("")])] : [];
}

function showBookies(bookies, states) {
  const others = Object.values(states).reduce((sum, one) => sum + one, 0) - bookies.length;
  fill("bookies", [...bookies.map(bookieRow), ...leftOut(others, "bookies", 11)], 11, "No bookie has ever registered.");
}

function showLedgers(ledgers) {
  const states = ledgers.states;
  const total = `${ledgers.more ? "more than " : ""}${number(ledgers.total)}`;
  const values = [
    ["all", total], ["open", number(states.open)], ["in recovery", number(states.in_recovery)],
    ["closed", number(states.closed)],
  ];
  if (states.unreadable) values.push(["unreadable", number(states.unreadable), "bad"]);
  if (ledgers.more) values.push(["states of", `the newest ${number(ledgers.total)}`, "warn"]);
  if (ledgers.unread) values.push(["not read yet", number(ledgers.unread), "warn"]);
  facts(document.querySelector("#ledgers dl"), values);
}

function showRepair(repair, bookies, nowMs) {
  const copied = (bookies || []).reduce((sum, one) => sum + (one.copied_entries_per_s || 0), 0);
  const count = `${repair.more ? "more than " : ""}${number(repair.under_replicated)}`;
  facts(document.querySelector("#repair dl"), [
    ["autorecovery", repair.enabled ? "enabled" : "disabled", repair.enabled ? "good" : "warn"],
    ["auditor", repair.auditor || "none", repair.auditor ? "" : "bad"],
    ["under-replicated ledgers", count, repair.under_replicated ? "warn" : "good"],
    ["being repaired", number(repair.repairing)],
    ["copied entries/s", number(copied)],
  ]);
  const bar = byId("repaired");
  bar.hidden = !repair.most;
  const done = repair.most - repair.under_replicated;
  byId("progress").max = Math.max(1, repair.most);
  byId("progress").value = done;
  bar.querySelector("span").textContent = `${number(done)} of ${number(repair.most)}`;
  const rows = repair.ledgers.map((one) => row([
    String(one.ledger),
    [one.fragments === null ? UNKNOWN : `${one.fragments} of ${one.all_fragments}`, "number"],
    one.missing.join(", ") || UNKNOWN,
    ago(one.marked_ms, nowMs),
    one.repaired_by ? `${one.repaired_by}, since ${duration(nowMs - one.since_ms)}` : "nobody yet",
  ]));
  rows.push(...leftOut(Math.max(0, repair.under_replicated - rows.length), "ledgers", 5));
  fill("repair", rows, 5, "Every ledger has all its copies.");
}

function retention(log) {
  const kept = [];
  if (log.retention_time_ms) kept.push(duration(log.retention_time_ms));
  if (log.retention_bytes) kept.push(size(log.retention_bytes));
  return kept.join(" or ") || "everything";
}

function writers(log, nowMs) {
  const named = log.writers.map((one) => `${one.application}: batch ${one.batch}, ${ago(one.committed_ms, nowMs)}`);
  if (log.owner) named.unshift(`${log.owner} holds the tail`);
  else if (log.open_tail) named.unshift("open tail without a writer");
  return named.join("; ") || UNKNOWN;
}

function logRow(log, readers, nowMs) {
  if (log.state === "unreadable") return row([log.log, ["unreadable", "bad"], "", "", "", "", "", log.problem, ""]);
  const read = readers.flatMap((reader) => reader.logs.filter((one) => one.log === log.log)
    .map((one) => `${reader.reader}: ${number(one.lag_entries)}`));
  const least = log.complete ? "" : "at least ";
  return row([
    log.state === "ok" ? log.log : `${log.log} (${log.state})`,
    [number(log.next_offset - log.first_offset), "number"],
    [number(log.entries_per_s, "/s"), "number"],
    [`${least}${number(log.segments)}${log.open_tail ? ", open tail" : ""}`, "number"],
    [`${least}${size(log.bytes)}`, "number"],
    retention(log), ago(log.last_commit_ms, nowMs), writers(log, nowMs), read.join("; ") || UNKNOWN,
  ]);
}

function showLogs(logs, readers, others, nowMs) {
  const rows = logs.map((log) => logRow(log, readers, nowMs));
  rows.push(...leftOut(others, "logs", 9));
  fill("logs", rows, 9, "There is no log.");
}

function showReaders(readers, others, nowMs) {
  const rows = readers.flatMap((reader) => {
    if (reader.problem) return [row([reader.reader, [reader.problem, "bad"], "", "", "", ""])];
    const rows = reader.logs.map((one) => row([
      reader.reader, one.log, [number(one.lag_entries, " entries"), one.lag_entries ? "number warn" : "number good"],
      [number(one.read_to), "number"], [number(one.end), "number"], ago(reader.told_ms, nowMs),
    ]));
    return [...rows, ...leftOut(reader.other_logs, `logs of ${reader.reader}`, 6)];
  });
  rows.push(...leftOut(others, "queries", 6));
  fill("readers", rows, 6, "No streaming query is reading.");
}

function showSummary(seen) {
  const values = [];
  if (seen.bookies) {
    const writable = seen.bookie_states.writable;
    const all = Object.values(seen.bookie_states).reduce((total, one) => total + one, 0);
    values.push(["writable bookies", `${number(writable)} of ${number(all)}`, writable === all ? "good" : "warn"]);
    const sum = (name) => seen.bookies.reduce((total, one) => total + (one[name] || 0), 0);
    values.push(["written", size(sum("written_bytes_per_s"), "/s")], ["read", size(sum("read_bytes_per_s"), "/s")]);
  }
  if (seen.repair) {
    values.push(["under-replicated", number(seen.repair.under_replicated), seen.repair.under_replicated ? "warn" : "good"]);
  }
  if (seen.logs) values.push(["logs", number(seen.logs.length + seen.other_logs)]);
  if (seen.readers) values.push(["largest lag", number(Math.max(0, ...seen.readers.map((one) => one.lag_entries || 0)))]);
  facts(byId("summary"), values);
}

function show(seen) {
  const nowMs = seen.collected_ms;
  byId("where").textContent = seen.cluster;
  byId("problems").replaceChildren(...seen.problems.map((problem) => element("li", problem)));
  showSummary(seen);
  if (seen.bookies) showBookies(seen.bookies, seen.bookie_states);
  if (seen.ledgers) showLedgers(seen.ledgers);
  if (seen.repair) showRepair(seen.repair, seen.bookies, nowMs);
  if (seen.logs) showLogs(seen.logs, seen.readers, seen.other_logs, nowMs);
  if (seen.readers) showReaders(seen.readers, seen.other_readers, nowMs);
  document.body.dataset.shown = String(nowMs);
}

// The status is read out when it changes, so it changes only with the outcome.
function tell(text, kind) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

async function refresh() {
  clearTimeout(timer);
  try {
    const answer = await fetch("api/v1/cluster/overview", { cache: "no-store" });
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    latest = content;
    show(content);
    tell(paused ? "Paused" : `Refreshed every ${REFRESH_MS / 1000} s`, "");
  } catch (error) {
    const since = latest ? `; shown is what was collected ${ago(latest.collected_ms, Date.now())}` : "";
    tell(`No answer: ${error.message}${since}`, "bad");
  }
  // Hidden meanwhile: it goes on when somebody looks.
  if (!paused && !document.hidden) timer = setTimeout(refresh, REFRESH_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  clearTimeout(timer);
  if (paused) tell("Paused", "");
  else refresh();
});

// A page that nobody sees asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused) refresh();
});

refresh();
