// The page: a chat, and beside it the blocks of the answer as they are resolved.

import { markdown } from "./markdown.js";
import { Watch } from "./watch.js";

const $ = (id) => document.getElementById(id);

// ---- what survives a reload ----

const defaults = { mode: "", threshold: "", block_size: "", temperature: "", seed: "", max_tokens: "",
  thinking: "", pace: "80", system: "", key: "" };
const settings = { ...defaults };
for (const [name, value] of Object.entries(load("settings", {}))) {
  if (name in defaults && typeof value === "string") settings[name] = value;
}
// Whatever else stands there is of another version, or of nobody's making.
const isMessage = (message) => ["user", "assistant"].includes(message?.role)
  && typeof message.content === "string" && typeof (message.reasoning ?? "") === "string";
const isChat = (chat) => Array.isArray(chat) && chat.every(isMessage);
const kept = { chat: load("history", []), chats: load("chats", []) };
let history = isChat(kept.chat) ? kept.chat : [];
// Conversations before this one, the last first.
const MOST_CHATS = 30;
let earlier = Array.isArray(kept.chats) ? kept.chats.filter((chat) => isChat(chat) && chat.length > 0) : [];

function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`shamrock.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function save(name, value) {
  try {
    localStorage.setItem(`shamrock.${name}`, JSON.stringify(value));
  } catch {
    // A browser that keeps nothing is no reason to stop.
  }
}

// ---- the API ----

// What the server does where a request does not say.
let usual = "";

// Only denoising has blocks.
const hasBlocks = (mode) => (mode || usual || "denoise") === "denoise";

const number = (text) => (text === "" ? undefined : Number(text));

function body(chat) {
  const messages = chat.map(({ role, content, reasoning }) => ({
    role, content, ...(reasoning ? { reasoning_content: reasoning } : {}),
  }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  return {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: number(settings.temperature),
    seed: number(settings.seed),
    max_tokens: number(settings.max_tokens),
    chat_template_kwargs: settings.thinking ? { enable_thinking: settings.thinking === "on" } : undefined,
    shamrock: {
      events: true,
      mode: settings.mode || undefined,
      ...(hasBlocks(settings.mode)
        ? { threshold: number(settings.threshold), block_size: number(settings.block_size) } : {}),
    },
  };
}

const authorization = () => (settings.key ? { authorization: `Bearer ${settings.key}` } : {});

async function* chunks(chat, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...authorization() },
    body: JSON.stringify(body(chat)),
    signal,
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new Error(problem?.error?.message ?? `the server says ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

// ---- the conversation ----

const watch = new Watch({
  blocks: $("blocks"), passes: $("passes"), tokens: $("tokens"), rate: $("rate"), seconds: $("seconds"),
  timeline: $("timeline"), shown: $("shown"),
}, () => Number(settings.pace));

let running = null;

function show(message) {
  $("welcome").hidden = true;
  const element = document.createElement("article");
  element.className = `message ${message.role}`;
  $("messages").append(element);
  render(element, message);
  return element;
}

function render(element, message) {
  const list = $("messages");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  if (message.role === "user") {
    element.textContent = message.content;
  } else {
    const parts = [];
    if (message.reasoning) {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = "thinking";
      details.open = !message.content;
      details.append(summary, message.reasoning);
      parts.push(details);
    }
    parts.push(markdown(message.content));
    if (message.failure) {
      const failure = document.createElement("p");
      failure.className = "failure";
      failure.textContent = message.failure;
      parts.push(failure);
    }
    if (message.note) parts.push(footer(message));
    element.replaceChildren(...parts);
  }
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function footer(message) {
  const element = document.createElement("footer");
  const note = document.createElement("span");
  note.className = "quiet";
  note.textContent = message.note;
  element.append(note);
  if (message === history.at(-1)) {
    const again = document.createElement("button");
    again.textContent = "Again";
    again.title = "Answer once more";
    again.onclick = regenerate;
    element.append(again);
  }
  return element;
}

function redraw() {
  $("messages").querySelectorAll(".message").forEach((element) => element.remove());
  history.forEach(show);
  $("welcome").hidden = history.length > 0;
  $("messages").scrollTop = $("messages").scrollHeight;
}

async function answer() {
  // Somebody may be in another conversation by the time it ends.
  const chat = history;
  const message = { role: "assistant", content: "", reasoning: "" };
  const element = show(message);
  const mine = new AbortController();
  running = mine;
  busy(true);
  watch.begin();
  let usage = null;
  try {
    for await (const chunk of chunks(chat, mine.signal)) {
      if (chunk.shamrock) watch.pass(chunk.shamrock);
      if (chunk.usage) usage = chunk.usage;
      const delta = chunk.choices[0]?.delta ?? {};
      message.content += delta.content ?? "";
      message.reasoning += delta.reasoning_content ?? "";
      if (delta.content || delta.reasoning_content) render(element, message);
    }
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.failure = error.message;
  }
  running = null;
  busy(false);
  message.note = note(message, usage);
  chat.push(message);
  keep();
  if (chat !== history) return;
  watch.end(usage);
  redraw();
}

function keep() {
  save("history", history);
  save("chats", earlier);
}

// Puts the conversation to the earlier ones and takes up another.
function change(chat) {
  running?.abort();
  if (history.length > 0) earlier = [history, ...earlier].slice(0, MOST_CHATS);
  history = chat;
  keep();
  watch.begin();
  redraw();
  list();
  $("input").focus();
}

function list() {
  const title = (chat) => chat.find((message) => message.role === "user")?.content ?? "…";
  const options = earlier.map((chat, index) => new Option(title(chat).slice(0, 60), index));
  $("earlier").replaceChildren(new Option("Earlier chats", ""), ...options, new Option("— forget them —", "forget"));
  $("earlier").hidden = earlier.length === 0;
}

function note(message, usage) {
  if (message.stopped) return "stopped";
  if (!usage) return "no answer";
  const { deciding_passes: passes, tokens_per_pass: rate, elapsed_ms: time } = usage.shamrock;
  const cached = usage.prompt_tokens_details.cached_tokens;
  return `${usage.completion_tokens} tokens in ${passes} passes, ${rate.toFixed(1)} a pass, `
    + `${(time / 1000).toFixed(2)} s` + (cached ? `, ${cached} of ${usage.prompt_tokens} prompt tokens known` : "");
}

function regenerate() {
  if (running || history.at(-1)?.role !== "assistant") return;
  history.pop();
  redraw();
  answer();
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

function submit() {
  const content = $("input").value.trim();
  if (!content || running) return;
  // A failed answer is no part of the conversation.
  if (history.at(-1)?.failure) history.splice(-2);
  history.push({ role: "user", content });
  $("input").value = "";
  redraw();
  answer();
}

// ---- hands on keys ----

$("ask").onsubmit = (event) => {
  event.preventDefault();
  submit();
};
$("input").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
};
$("stop").onclick = () => running?.abort();
$("new").onclick = () => change([]);
$("earlier").onchange = () => {
  const chosen = $("earlier").value;
  if (chosen === "forget") {
    earlier = [];
    keep();
    list();
  } else {
    change(earlier.splice(Number(chosen), 1)[0]);
  }
};
document.onkeydown = (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "Escape" && running) running.abort();
  if (event.key === "/" && !typing) {
    event.preventDefault();
    $("input").focus();
  }
};

const form = $("settings").querySelector("form");
$("open-settings").onclick = () => {
  for (const [name, value] of Object.entries(settings)) form.elements[name].value = value;
  fit();
  $("settings").showModal();
};
function fit() {
  for (const name of ["threshold", "block_size"]) form.elements[name].disabled = !hasBlocks(form.elements.mode.value);
}
form.elements.mode.onchange = fit;
$("settings").onclose = () => {
  for (const name of Object.keys(defaults)) settings[name] = form.elements[name].value;
  save("settings", settings);
  greet();
};

const themes = ["", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").title = `Theme: ${name || "the system's"}`;
  save("theme", name);
}
const themed = () => Math.max(themes.indexOf(load("theme", "")), 0);
$("theme").onclick = () => theme(themes[(themed() + 1) % themes.length]);

// ---- the server ----

async function greet() {
  const response = await fetch("v1/models", { headers: authorization() }).catch(() => null);
  if (response?.ok) {
    const [model] = (await response.json()).data;
    $("model").textContent = `${model.id} · ${model.shamrock.backend}`;
    document.title = `shamrock · ${model.id}`;
    usual = model.shamrock.mode;
  } else {
    $("model").textContent = response?.status === 401 ? "needs an API key: see Settings" : "";
  }
}

async function probe() {
  const response = await fetch("health").catch(() => null);
  const health = await response?.json().catch(() => null);
  $("health").className = `dot ${response?.ok ? "ok" : "bad"}`;
  $("health").title = health ? `${health.status}, ${health.active} active, ${health.queued} queued` : "no connection";
}

theme(themes[themed()]);
redraw();
list();
greet();
probe();
setInterval(probe, 5000);
