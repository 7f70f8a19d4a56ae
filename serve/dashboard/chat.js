// The chat box: streams an answer, and shows how likely each of its tokens was.

const by = (id) => document.getElementById(id);
const conversation = []; // {role, content}
let request = null, stop = null; // stop: the AbortController of the answer that is being written

export function startChat(ask) {
  request = ask;
  by("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (stop) stop.abort();
    else send();
  });
  by("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!stop) send();
    }
  });
  by("clear").addEventListener("click", () => {
    if (stop) stop.abort();
    conversation.length = 0;
    by("messages").replaceChildren();
    by("prompt").focus();
  });
  by("show-probabilities").addEventListener("change", (event) => {
    by("messages").classList.toggle("probabilities", event.target.checked);
  });
  by("messages").addEventListener("mouseover", (event) => showTip(event.target));
  by("messages").addEventListener("mouseout", hideTip);
  by("messages").addEventListener("focusin", (event) => showTip(event.target));
  by("messages").addEventListener("focusout", hideTip);
  by("messages").addEventListener("keydown", walk);
  by("messages").addEventListener("scroll", hideTip);
}

async function send() {
  const text = by("prompt").value.trim();
  if (!text) return;
  by("prompt").value = "";
  by("hint")?.remove();
  conversation.push({ role: "user", content: text });
  addMessage("user").textContent = text;
  const bubble = addMessage("assistant");
  const answer = new Answer(bubble);
  stop = new AbortController();
  by("send").textContent = "Stop";
  bubble.classList.add("writing");
  try {
    const response = await request("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body()),
      signal: stop.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) answer.add(event);
  } catch (error) {
    if (error.name !== "AbortError") answer.fail(error.message);
  }
  bubble.classList.remove("writing");
  stop = null;
  by("send").textContent = "Send";
  answer.end();
  conversation.push({ role: "assistant", content: answer.text });
}

function body() {
  const number = (id) => (by(id).value === "" ? undefined : Number(by(id).value));
  const system = by("system").value.trim();
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: 5,
    temperature: number("temperature"), top_p: number("top_p"), top_k: number("top_k"), min_p: number("min_p"),
    max_tokens: number("max_tokens"), seed: number("seed"),
  };
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: {")) yield JSON.parse(block.slice(6));
    }
  }
}

class Answer {
  constructor(bubble) {
    this.bubble = bubble;
    this.text = "";
    this.tokens = 0;
    this.waiting = []; // log-probabilities of tokens whose text has not come yet
    this.begun = performance.now();
    this.first = null;
    this.why = "";
  }

  add(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.tokens = event.usage.completion_tokens;
    const choice = event.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason === "length") this.why = "cut at its limit";
    const reasoning = choice.delta?.reasoning_content ?? choice.delta?.reasoning;
    this.waiting.push(...(choice.logprobs?.content ?? []));
    const text = choice.delta?.content || reasoning;
    if (!text) return;
    this.first ??= performance.now();
    const log = by("messages");
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const span = document.createElement("span");
    span.textContent = text;
    span.className = reasoning && !choice.delta.content ? "token reasoning" : "token";
    span.tabIndex = this.text ? -1 : 0;
    if (this.waiting.length) {
      span.probabilities = this.waiting;
      span.classList.add(shade(Math.exp(this.waiting[0].logprob)));
      this.waiting = [];
    }
    if (choice.delta.content) this.text += choice.delta.content;
    this.bubble.append(span);
    if (follow) log.scrollTop = log.scrollHeight;
  }

  fail(message) {
    const note = document.createElement("div");
    note.className = "message failed";
    note.textContent = message;
    this.bubble.append(note);
  }

  end() {
    const meta = document.createElement("div");
    meta.className = "meta";
    const now = performance.now(), parts = [];
    if (this.first !== null) {
      parts.push(`first token after ${Math.round(this.first - this.begun)} ms`);
      if (this.tokens > 1) parts.push(`${this.tokens} tokens, ${((1000 * (this.tokens - 1)) / (now - this.first)).toFixed(1)} a second`);
    }
    if (this.why) parts.push(this.why);
    meta.textContent = parts.join(" · ");
    this.bubble.append(meta);
    const log = by("messages");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) log.scrollTop = log.scrollHeight;
  }
}

const shade = (probability) => (probability > 0.8 ? "p0" : probability > 0.4 ? "p1" : probability > 0.1 ? "p2" : "p3");

function addMessage(role) {
  const message = document.createElement("div");
  message.className = `message ${role}`;
  by("messages").append(message);
  by("messages").scrollTop = by("messages").scrollHeight;
  return message;
}

function walk(event) {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const token = event.target;
  if (!step || !token.classList.contains("token")) return;
  const next = token[step];
  if (!next?.classList.contains("token")) return;
  event.preventDefault();
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function showTip(target) {
  const tip = by("tip");
  if (!target.probabilities) return;
  tip.replaceChildren(...target.probabilities.flatMap(rows));
  tip.hidden = false;
  const at = target.getClientRects()[0], size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left), document.documentElement.clientWidth - size.width - 8);
  const above = at.top - size.height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : at.bottom + 6}px`;
  target.setAttribute("aria-describedby", "tip");
}

function hideTip(event) {
  by("tip").hidden = true;
  event.target.removeAttribute?.("aria-describedby");
}

function rows(entry) {
  const all = entry.top_logprobs.some((other) => other.token === entry.token) ? entry.top_logprobs : [entry, ...entry.top_logprobs];
  return all.map((other) => {
    const row = document.createElement("div"), name = document.createElement("code");
    const bar = document.createElement("div"), fill = document.createElement("i"), value = document.createElement("span");
    const percent = 100 * Math.exp(other.logprob);
    row.className = other.token === entry.token ? "row chosen" : "row";
    name.textContent = JSON.stringify(other.token).slice(1, -1).replace(/^ | $/g, "␣");
    bar.className = "bar";
    fill.style.width = `${percent}%`;
    bar.append(fill);
    value.textContent = percent >= 0.05 ? `${percent.toFixed(1)}%` : "<0.1%";
    row.append(name, bar, value);
    return row;
  });
}
