// The page of a server. Every name and text of others is put in as text and never as markup.

const PERIOD = 2000;
const WINDOW = 60_000;
const DETAILS_PERIOD = 10_000;
const MOST_LINES = 100;
const find = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
let key = "";
let status = null;
/** Snapshots of the histograms, the oldest first. */
let snapshots = [];

/** An element with a text, a class and attributes. */
function make(name, text = "", kind = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

/** Changes a text only where it is another, so that nothing is read out again. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keeps one child of `parent` an item, in the items' order, and lets `update` change it. */
function keep(parent, items, name, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.name, child]));
  items.forEach((item, at) => {
    let child = old.get(name(item));
    old.delete(name(item));
    if (!child) {
      child = create(item);
      child.dataset.name = name(item);
    }
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    update(child, item);
  });
  for (const child of old.values()) child.remove();
}

/** Asks the server; an answer that is an error is thrown with its message. */
async function ask(path, body, signal) {
  const headers = key ? {authorization: `Bearer ${key}`} : {};
  const request = {headers, signal, cache: "no-store"};
  if (body) Object.assign(request, {method: "POST", body: JSON.stringify(body), headers: {...headers, "content-type": "application/json"}});
  const answer = await fetch(path, request);
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw Object.assign(new Error(told?.error?.message ?? `the server answered ${answer.status}`), {status: answer.status});
}

// --- what the server does now ---------------------------------------------------------------------------------------

function state(word, text) {
  find("state").dataset.state = word;
  say(find("state-text"), text);
}

/** The value under which a part of the counts lies; between two bounds it is taken to be spread evenly. */
function quantile(bounds, counts, part) {
  const rank = counts.reduce((sum, count) => sum + count, 0) * part;
  let before = 0;
  for (let at = 0; at < counts.length; at++) {
    if (counts[at] > 0 && before + counts[at] >= rank) {
      const low = at === 0 ? 0 : bounds[at - 1];
      return at === bounds.length ? Infinity : low + ((bounds[at] - low) * (rank - before)) / counts[at];
    }
    before += counts[at];
  }
  return 0;
}

function milliseconds(seconds, bounds) {
  if (seconds === Infinity) return `> ${count.format(bounds.at(-1) * 1000)}`;
  const value = seconds * 1000;
  return short(value);
}

/** A number in two digits or more, and without an exponent. */
function short(value) {
  return value >= 10 ? count.format(value) : value.toFixed(value >= 1 ? 1 : 2);
}

/** The histograms by what a row of the table calls them; of the routes those that do work. */
function series(seconds) {
  const inner = [["a sentence in the queue", seconds.queue], ["a batch on the device", seconds.batch], ["to the first token", seconds.first_token], ["between two tokens", seconds.next_token]];
  const routes = Object.entries(seconds.routes).filter(([route]) => route.startsWith("/v1/"));
  return new Map([...routes, ...inner]);
}

function latencies(seconds) {
  const now = {at: performance.now(), of: series(seconds)};
  snapshots = snapshots.filter((old) => now.at - old.at <= WINDOW);
  const oldest = snapshots[0];
  snapshots.push(now);
  const rows = [];
  for (const [what, all] of now.of) {
    const before = oldest?.of.get(what);
    const fresh = before ? all.map((count, at) => count - before[at]) : all;
    const recent = Boolean(before) && fresh.some((count) => count > 0);
    const counts = recent ? fresh : all;
    const sum = counts.reduce((sum, count) => sum + count, 0);
    if (sum > 0) rows.push({what, sum, over: recent ? "last minute" : "since the start", values: [0.5, 0.9, 0.99].map((part) => milliseconds(quantile(seconds.bounds, counts, part), seconds.bounds))});
  }
  find("latency-none").hidden = rows.length > 0;
  const create = (row) => {
    const line = make("tr");
    line.append(make("th", row.what, "", {scope: "row"}), ...Array.from({length: 4}, () => make("td", "", "number")), make("td", "", "quiet"));
    return line;
  };
  const update = (line, row) => [count.format(row.sum), ...row.values, row.over].forEach((text, at) => say(line.children[at + 1], text));
  keep(find("latency"), rows, (row) => row.what, create, update);
}

function tiles(told) {
  const items = [
    ["Under way", told.requests.open], ["Answered", told.requests.finished], ["Failed or late", told.requests.failed + told.requests.expired],
    ["Tokens waiting", told.tokens.waiting], ["Tokens in", told.tokens.prompt], ["Tokens out", told.tokens.generated],
  ];
  const create = ([name]) => {
    const tile = make("div");
    tile.append(make("dt", name), make("dd"));
    return tile;
  };
  keep(find("tiles"), items, ([name]) => name, create, (tile, [, value]) => say(tile.lastChild, count.format(value)));
}

/** What the server tells of adapters beside their names, and when it was last asked. */
const details = {of: new Map(), at: -Infinity, route: null};

/** Asks for the adapters' certificates, where this server has them. The answer may wait for the device, so that nothing waits for it. */
async function learn() {
  const now = performance.now();
  if (now - details.at < DETAILS_PERIOD) return;
  details.at = now;
  details.route ??= (await (await ask("/openapi.json")).json()).paths["/v1/lora_adapters"] ? "/v1/lora_adapters" : "";
  if (!details.route) return;
  const {data} = await (await ask(details.route)).json();
  details.of = new Map(data.map((own) => [own.lora_name, own]));
  for (const head of document.querySelectorAll("[data-detail]")) head.hidden = data.length === 0;
}

function models(told) {
  const create = (model) => {
    const line = make("tr", "", model.parent === null ? "" : "adapter");
    const content = make("td");
    line.append(make("th", model.id, "", {scope: "row"}), make("td", model.makes), make("td", "", "number"), content, make("td", "", "number"), make("td"));
    return line;
  };
  const update = (line, model) => {
    const own = details.of.get(model.id);
    say(line.children[2], count.format(model.requests));
    say(line.children[4], own?.cosine?.toFixed(4) ?? "");
    say(line.children[5], own?.resident === true ? "yes" : own?.resident === false ? "no" : "");
    for (const cell of [line.children[4], line.children[5]]) cell.hidden = details.of.size === 0;
    if (model.adapter_generation && line.children[3].textContent !== model.adapter_generation) {
      line.children[3].replaceChildren(make("code", model.adapter_generation, "", {title: model.adapter_generation}));
    }
  };
  keep(find("models"), told.models, (model) => `${model.makes} ${model.id}`, create, update);
  choices("sentence", told.models.filter((model) => model.makes === "vectors"));
  choices("chat", told.models.filter((model) => model.makes === "text"));
}

/** Offers the models of a box: the base on the left and the first adapter on the right, until somebody chooses. */
function choices(box, list) {
  find(box).hidden = list.length === 0;
  for (const [side, first] of [["left", 0], ["right", 1]]) {
    const select = find(`${box}-${side}`);
    const before = select.value;
    keep(select, list, (model) => model.id, (model) => make("option", model.id, "", {value: model.id}), () => {});
    const kept = list.some((model) => model.id === before);
    if (!kept && list.length > 0) select.value = (list[first] ?? list[0]).id;
    say(find(`${box}-${side}-title`), select.value);
  }
}

const STATES = {ready: "ready", ending: "about to end", draining: "ending", lost: "the device is lost"};

async function refresh() {
  if (document.documentElement.dataset.keys && !key) {
    find("key").hidden = false;
    state("connecting", "waiting for a key");
    return;
  }
  try {
    status = await (await ask("/status")).json();
    find("key").hidden = true;
    state(status.state, STATES[status.state] ?? status.state);
    const minutes = Math.floor(status.uptime_seconds / 60);
    say(find("about"), `version ${status.version}, up ${minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`}`);
    tiles(status);
    latencies(status.seconds);
    models(status);
    if (status.state === "ready") learn().catch(() => {});
  } catch (error) {
    if (error.status === 401) {
      key = "";
      find("key").hidden = false;
      say(find("key-fault"), error.message);
      state("connecting", "waiting for a key");
    } else {
      state("away", "does not answer");
    }
  }
}

let timer = 0;
async function turn() {
  clearTimeout(timer);
  if (!document.hidden) await refresh();
  timer = setTimeout(turn, PERIOD);
}

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("key-field").value.trim();
  find("key-field").value = "";
  say(find("key-fault"), "");
  turn();
});
document.addEventListener("visibilitychange", turn);
for (const box of ["sentence", "chat"]) {
  for (const side of ["left", "right"]) find(`${box}-${side}`).addEventListener("change", (event) => say(find(`${box}-${side}-title`), event.target.value));
}

// --- a sentence -----------------------------------------------------------------------------------------------------

function cosine(a, b) {
  let [dot, left, right] = [0, 0, 0];
  a.forEach((value, at) => {
    dot += value * b[at];
    left += value * value;
    right += b[at] * b[at];
  });
  return dot / Math.sqrt(left * right || 1);
}

function ranking(list, lines, [own, ...others]) {
  const rows = lines.map((line, at) => ({line, value: cosine(own, others[at])})).sort((a, b) => b.value - a.value);
  list.replaceChildren(...rows.map(({line, value}) => {
    const item = make("li");
    const text = make("span", "", "line");
    text.append(make("span", line), make("span", value.toFixed(4), "value"));
    const bar = make("span", "", "bar", {"aria-hidden": "true"});
    bar.style.setProperty("--part", Math.max(0, value).toFixed(4));
    item.append(text, bar);
    return item;
  }));
}

async function compare() {
  const lines = find("sentence-lines").value.split("\n").map((line) => line.trim()).filter((line) => line).slice(0, MOST_LINES);
  const texts = [find("sentence-text").value, ...lines];
  const base = status.models.find((model) => model.makes === "vectors" && model.parent === null).id;
  const sides = ["left", "right"].map((side) => ({side, name: find(`sentence-${side}`).value}));
  const adapters = sides.flatMap(({name}) => texts.map(() => (name === base ? null : name)));
  const began = performance.now();
  const answer = await (await ask("/v1/embeddings", {model: base, input: [...texts, ...texts], adapters, truncate: true})).json();
  const took = performance.now() - began;
  const vectors = answer.data.map((row) => row.embedding);
  sides.forEach(({side, name}, at) => {
    say(find(`sentence-${side}-title`), name);
    ranking(find(`sentence-${side}-list`), lines, vectors.slice(at * texts.length, (at + 1) * texts.length));
  });
  const nearest = sides.map(({side, name}) => `nearest by ${name}: ${find(`sentence-${side}-list`).querySelector("span.line > span")?.textContent ?? "none"}`);
  say(find("sentence-status"), `${vectors.length} vectors in ${count.format(took)} ms; ${nearest.join("; ")}`);
}

find("sentence-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  say(find("sentence-fault"), "");
  say(find("sentence-status"), "embedding");
  try {
    await compare();
  } catch (error) {
    say(find("sentence-status"), "");
    say(find("sentence-fault"), error.message);
  }
});

// --- a chat ---------------------------------------------------------------------------------------------------------

const talks = {left: [], right: []};
let stop = null;

/** The data of the events of a stream, as they come. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) throw new Error("the stream broke off before its end");
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks.filter((block) => !block.startsWith(":"))) {
      const lines = block.split("\n");
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (lines.includes("event: error")) throw new Error(JSON.parse(data).error.message);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function speak(side, text, signal) {
  const [talk, log, told] = [talks[side], find(`chat-${side}-log`), find(`chat-${side}-told`)];
  const name = find(`chat-${side}`).value;
  const messages = [...talk, {role: "user", content: text}];
  const words = make("p");
  log.setAttribute("aria-busy", "true");
  log.append(make("p", text, "user"), words);
  const began = performance.now();
  let [first, tokens, said, ended] = [0, 0, "", ""];
  try {
    const body = {model: name, messages, max_completion_tokens: Number(find("chat-most").value), temperature: Number(find("chat-heat").value), stream: true, stream_options: {include_usage: true}};
    for await (const event of events((await ask("/v1/chat/completions", body, signal)).body)) {
      const piece = event.choices[0]?.delta.content ?? "";
      if (piece && !first) first = performance.now() - began;
      said += piece;
      words.append(piece);
      ended = event.choices[0]?.finish_reason ?? ended;
      tokens = event.usage?.completion_tokens ?? tokens;
      log.scrollTop = log.scrollHeight;
    }
    talk.push(messages.at(-1), {role: "assistant", content: said});
    const rate = tokens / Math.max(performance.now() - began, 1) * 1000;
    say(told, `${tokens} tokens, the first after ${count.format(first)} ms, ${short(rate)} a second${ended === "length" ? "; cut at the most tokens" : ""}`);
    return null;
  } catch (error) {
    say(told, "");
    return signal.aborted ? null : `${name}: ${error.message}`;
  } finally {
    log.removeAttribute("aria-busy");
  }
}

function busy(is) {
  find("chat-send").disabled = is;
  find("chat-anew").disabled = is;
  find("chat-stop").disabled = !is;
}

find("chat-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (stop) return;
  const text = find("chat-text").value.trim();
  if (!text) return;
  stop = new AbortController();
  const {signal} = stop;
  busy(true);
  say(find("chat-fault"), "");
  say(find("chat-status"), "both are writing");
  find("chat-text").value = "";
  const faults = await Promise.all(["left", "right"].map((side) => speak(side, text, signal)));
  say(find("chat-fault"), faults.filter((fault) => fault).join("; "));
  say(find("chat-status"), signal.aborted ? "stopped" : faults.some((fault) => fault) ? "" : "both have answered");
  stop = null;
  busy(false);
});
find("chat-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) find("chat-form").requestSubmit();
});
find("chat-stop").addEventListener("click", () => {
  stop?.abort();
  find("chat-text").focus();
});
find("chat-anew").addEventListener("click", () => {
  for (const side of ["left", "right"]) {
    talks[side] = [];
    find(`chat-${side}-log`).replaceChildren();
    say(find(`chat-${side}-told`), "");
  }
  say(find("chat-status"), "");
  say(find("chat-fault"), "");
  find("chat-text").focus();
});

turn();
