// The live view: asks for the state once a second while the page is seen, and shows it.

import { blockMap, countStates, lines, short, stackedAreas } from "./charts.js";
import { startChat } from "./chat.js";

const POLL_MS = 1000, WINDOW_SECONDS = 180;
const LABELS = {
  name: "Name", weights: "Weights", kv: "KV format", target: "Target", isa: "Instruction set", parameters: "Parameters",
  created: "Built", producer: "By", max_seq_len: "Longest sequence", max_batch_size: "Sequences a step", max_num_tokens: "Tokens a step",
  num_blocks: "KV blocks", block_tokens: "Tokens a block", kv_block_bytes: "Bytes a block", vocab_size: "Vocabulary", open_ms: "Opened in",
};
const LATENCIES = { ttft: "First token", tpot: "Each token after", queue: "In the queue", e2e: "Whole answer" };
const by = (id) => document.getElementById(id);
let newest = null, timer = 0;

export async function request(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    askForKey(Boolean(key));
    throw new Error("the server needs a key");
  }
  return answer;
}

function askForKey(wrong) {
  sessionStorage.removeItem("key");
  by("key-text").textContent = wrong ? "That key is not known here." : "It is kept in this tab until you close it.";
  if (!by("key-dialog").open) by("key-dialog").showModal();
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || by("key-dialog").open) return;
  try {
    const answer = await request("dashboard/state");
    if (!answer.ok) throw new Error(answer.statusText);
    newest = await answer.json();
    show(newest);
  } catch (error) {
    setStatus(by("key-dialog").open ? "locked" : "unreachable");
  }
  timer = setTimeout(poll, POLL_MS);
}

function setStatus(status) {
  const chip = by("status");
  if (chip.dataset.state !== status) {
    chip.dataset.state = status;
    chip.textContent = status;
  }
}

function show(state) {
  setStatus(state.status);
  by("model").textContent = state.model;
  document.title = `${state.model} · enginewright`;
  by("uptime").textContent = `up ${duration(state.uptime_seconds)}`;
  const last = state.samples[state.samples.length - 1];
  const now = state.now;
  if (last) {
    by("t-generation").textContent = short(last.generation_rate);
    by("t-prompt").textContent = short(last.prompt_rate);
    by("t-busy").textContent = `${Math.round(last.busy * 100)}%`;
    by("t-step").textContent = last.busy ? `${milliseconds(last.step_ms)} ms a step` : "idle";
  }
  if (now.num_blocks) {
    by("t-running").textContent = now.running;
    by("t-running-of").textContent = `of ${state.engine.max_batch_size}`;
    by("t-waiting").textContent = now.waiting;
    by("t-kv").textContent = `${((100 * now.used_blocks) / now.num_blocks).toFixed(1)}%`;
  }
  drawCharts(state);
  showLatency(state.latency);
  showFacts(by("totals"), totals(state));
  showFacts(by("engine"), engineFacts(state.engine));
  showErrors(state.errors);
}

function drawCharts(state) {
  const since = (state.samples.at(-1)?.time ?? 0) - WINDOW_SECONDS;
  const samples = state.samples.filter((sample) => sample.time >= since);
  stackedAreas(by("chart-batch"), samples, ["generation", "context", "waiting"], WINDOW_SECONDS);
  lines(by("chart-rate"), samples, [["prompt_rate", "context"], ["generation_rate", "generation"]], WINDOW_SECONDS);
  blockMap(by("blocks"), state.blocks);
  const counts = countStates(state.blocks), now = state.now;
  if (!now.num_blocks) return;
  const room = now.used_blocks * state.engine.block_tokens;
  const full = room ? ` · ${Math.round((100 * now.kv_tokens) / room)}% of their places filled` : "";
  const text = `${counts.h} held · ${counts.s} shared · ${counts.c} cached · ${counts.f} free of ${now.num_blocks} blocks · ${now.kv_tokens} tokens${full}`;
  by("blocks-text").textContent = text;
  by("blocks").setAttribute("aria-label", `Map of the KV blocks: ${text}`);
  by("chart-batch").setAttribute("aria-label", `Batch: ${now.running - now.context} in generation, ${now.context} in context, ${now.waiting} waiting`);
}

function showLatency(latency) {
  by("latency-of").textContent = `${latency.answers} answers in ${Math.round(latency.window_seconds / 60)} min`;
  by("latency").replaceChildren(...Object.entries(LATENCIES).map(([key, label]) => {
    const row = document.createElement("tr");
    const values = latency[key] || {};
    row.append(cell("th", label), ...["p50", "p90", "p99"].map((p) => cell("td", values[p] === undefined ? "–" : milliseconds(values[p]))));
    row.firstChild.scope = "row";
    return row;
  }));
}

function totals(state) {
  const ended = Object.entries(state.ended).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`);
  const rejected = Object.entries(state.rejected).map(([cause, count]) => `${count} ${cause}`);
  return {
    Requests: ended.join(", ") || "none yet",
    Refused: rejected.join(", ") || "none",
    "Prompt tokens": grouped(state.totals.prompt_tokens),
    "Cached tokens": grouped(state.totals.cached_tokens),
    "Tokens generated": grouped(state.totals.generation_tokens),
    Steps: grouped(state.totals.steps),
  };
}

function engineFacts(engine) {
  const shown = {};
  for (const [key, label] of Object.entries(LABELS)) {
    if (engine[key] === undefined) continue;
    const value = engine[key];
    shown[label] = key === "open_ms" ? `${value} ms` : typeof value === "number" ? grouped(value) : String(value);
  }
  return shown;
}

function showFacts(list, facts) {
  const text = JSON.stringify(facts);
  if (list.dataset.shown === text) return; // so that a selection in it lasts
  list.dataset.shown = text;
  list.replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]));
}

function showErrors(errors) {
  const list = by("errors"), text = JSON.stringify(errors);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  if (!errors.length) {
    list.replaceChildren(cell("li", "None."));
    list.firstChild.className = "quiet";
    return;
  }
  list.replaceChildren(...errors.slice(0, 20).map((error) => {
    const item = document.createElement("li");
    item.title = `${error.path}, request ${error.request_id}`;
    item.append(cell("time", new Date(error.time * 1000).toLocaleTimeString()), cell("b", String(error.status)), error.error || error.path);
    return item;
  }));
}

function cell(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

const grouped = (number) => (number === undefined ? "–" : Math.round(number).toLocaleString("en").replaceAll(",", " "));
const milliseconds = (value) => (value >= 100 ? grouped(value) : value.toFixed(1));

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (newest) blockMap(by("blocks"), newest.blocks);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
setTheme(chosen());
dark.addEventListener("change", () => setTheme(chosen()));
by("theme").addEventListener("click", () => {
  localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  setTheme(chosen());
});
for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const other of document.querySelectorAll("nav button")) other.setAttribute("aria-pressed", String(other === button));
    if (newest) drawCharts(newest);
  });
}
by("key-form").addEventListener("submit", () => {
  sessionStorage.setItem("key", by("key").value.trim());
  by("key").value = "";
  setTimeout(poll, 0);
});
document.addEventListener("visibilitychange", poll);
addEventListener("resize", () => newest && drawCharts(newest));
startChat(request);
poll();
