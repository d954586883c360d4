// Follows one run: takes in the server's messages, and draws again at most once a frame what changed.
"use strict";

const MOST = 1024, FEW = 15, ALL = 1000, UNITS = 1e6;
const $ = (id) => document.getElementById(id);
const run = { progress: {}, series: new Map(), clients: new Map(), utility: new Map(), names: new Map(), about: null, accounts: new Map(), flows: [], latest: null, refusals: [], books: null };
const open = { clients: false, balances: false };
let stale = new Set(), asked = false;

// ---- taking in

// The same rule as the server's: every stride-th observation is kept, and the last.
function observe(key, x, y) {
  let s = run.series.get(key);
  if (!s) run.series.set(key, (s = { x: [], y: [], stride: 1, seen: 0, last: null }));
  if (s.seen % s.stride === 0) {
    if (s.x.length === MOST) { s.x = s.x.filter((_, i) => i % 2 === 0); s.y = s.y.filter((_, i) => i % 2 === 0); s.stride *= 2; }
    if (s.seen % s.stride === 0) { s.x.push(x); s.y.push(y); }
  }
  s.seen++;
  s.last = [x, y];
}

function points(key) {
  const s = run.series.get(key);
  if (!s) return [];
  const found = s.x.map((x, i) => [x, s.y[i]]);
  if (s.last && (!found.length || found[found.length - 1][0] !== s.last[0])) found.push(s.last);
  return found;
}

function take(message) {
  if (message.whole) {
    run.series = new Map(Object.entries(message.series));
    run.clients = new Map(); run.utility = new Map(); run.accounts = new Map(); run.flows = []; run.books = null;
    run.names = new Map(message.names);
    run.about = message.about;
    stale = new Set(["about", "lines", "clients", "books", "latest"]);
  }
  run.progress = message.progress;
  stale.add("progress");
  for (const [key, found] of Object.entries(message.points || {})) { stale.add("lines"); for (const [x, y] of found) observe(key, x, y); }
  for (const row of message.clients || []) { stale.add("clients"); run.clients.set(row[0], row); }
  for (const [client, value] of message.utility || []) { stale.add("clients"); run.utility.set(client, value); }
  if (message.latest) { stale.add("latest"); run.latest = message.latest; run.refusals = message.refusals; }
  if (message.books) {
    stale.add("books");
    run.books = message.books;
    run.flows = message.books.flows;
    for (const [account, figures] of Object.entries(message.books.accounts)) run.accounts.set(account, figures);
  }
  later();
}

function later() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; const now = stale; stale = new Set(); draw(now); });
}

// ---- drawing

const nameOf = (client) => run.names.get(client) || `client ${client}`;
function accountName(account) {
  const [kind, rest] = [account.split("/")[0], account.slice(account.indexOf("/") + 1)];
  return kind === "client" ? nameOf(Number(rest)) : kind === "escrow" ? `held for ${nameOf(Number(rest))}` : account === "mint" ? "mint" : rest;
}

function draw(now) {
  if (now.has("about")) drawAbout();
  if (now.has("progress")) drawProgress();
  if (now.has("lines")) drawFigures();
  if (now.has("books")) { drawBalances(); drawMarket(); }
  if (now.has("clients")) drawClients();
  if (now.has("latest")) drawLatest();
}

function drawProgress() {
  const p = run.progress, words = [p.mechanism];
  if (p.clients !== null) words.push(`${p.clients} client${p.clients === 1 ? "" : "s"}`);
  if (p.seed !== null) words.push(`seed ${p.seed}`);
  $("about").textContent = words.join(", ");
  $("rounds").textContent = p.planned === null ? `${p.rounds} rounds` : `${p.rounds} of ${p.planned} rounds`;
  $("state").textContent = p.state;
  $("state").className = `state ${p.state}`;
  $("bar").max = Math.max(1, p.planned === null ? p.rounds : p.planned);
  $("bar").value = p.rounds;
  const said = [];
  if (p.pace_s !== null) said.push(`${span(p.pace_s)} a round`);
  if (p.pace_s !== null && p.planned !== null && p.state === "running") said.push(`about ${span((p.planned - p.rounds) * p.pace_s)} left`);
  if (p.refused) said.push(`${p.refused} updates refused`);
  if (p.state === "quiet") said.push(`no round for ${span(p.age_s)}: stopped, or in a long round`);
  if (p.state === "waiting") said.push("no round is over yet");
  if (p.left) said.push(`reading, ${(p.left / 1e6).toFixed(1)} MB to go`);
  $("pace").textContent = said.join(" · ") || " ";
  const wrong = [];
  if (run.about && run.about.trouble) wrong.push(`What the run says of itself cannot be read: ${run.about.trouble}`);
  if (p.damaged) wrong.push(`${p.damaged} damaged lines were passed over.`);
  if (run.books && run.books.trouble) wrong.push(`The books cannot be read: ${run.books.trouble}`);
  $("trouble").hidden = !wrong.length;
  $("trouble").replaceChildren(...wrong.map((text) => tag("li", {}, text)));
}

// What the run's parts and behaviours say of themselves: anybody's words, shown as text.
function drawAbout() {
  const { sentences, charts } = run.about;
  $("said").hidden = !sentences.length;
  $("said").replaceChildren(...sentences.map((text) => tag("li", {}, text)));
  $("told").replaceChildren(...charts.map((chart, i) => tag("section", { id: `s-told-${i}`, hidden: "", "aria-labelledby": `h-told-${i}` },
    tag("h2", { id: `h-told-${i}` }, chart.title),
    tag("figure", {}, tag("div", { class: "chart", id: `c-told-${i}` }), tag("figcaption", {}, [chart.unit ? `${chart.unit[0].toUpperCase()}${chart.unit.slice(1)}, by round.` : "", chart.caption].join(" ").trim())))));
}

// What each * of a pattern stands for in a metric's name, or null; at most one a step of the path. The same rule as the server's.
function matched(pattern, name) {
  const steps = pattern.split("/"), words = name.split("/"), found = [];
  if (steps.length !== words.length) return null;
  for (let i = 0; i < steps.length; i++) {
    const at = steps[i].indexOf("*"), before = steps[i].slice(0, at), after = steps[i].slice(at + 1);
    if (at < 0) { if (steps[i] !== words[i]) return null; continue; }
    if (words[i].length <= before.length + after.length || !words[i].startsWith(before) || !words[i].endsWith(after)) return null;
    found.push(words[i].slice(before.length, words[i].length - after.length));
  }
  return found;
}

function called(line, stars, name) {
  if (!line) return stars.join(", ") || name;
  const [first, ...rest] = line.split("*");
  return first + rest.map((text, i) => (stars[i] ?? "*") + text).join("");
}

function drawTold() {
  const keys = [...run.series.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  (run.about ? run.about.charts : []).forEach((chart, i) => {
    const lines = [];
    for (const key of keys) {
      const stars = matched(chart.metric, key);
      if (stars && lines.length < FEW) lines.push({ name: called(chart.line, stars, key), points: points(key).map(([x, y]) => [x, y * chart.factor]) });
    }
    $(`s-told-${i}`).hidden = !lines.length;
    if (lines.length) drawLines($(`c-told-${i}`), lines, `${chart.title} by round`);
  });
}

function span(seconds) {
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const MEANING = "Share of test samples that the models get right, after each tested round; higher is better.";
const LOSS = [["train/loss", "in training"], ["test/loss", "on the server's test set"], ["client/test_loss", "clients on their own data, mean"]];

// the run's main metric: its curves, and what stands above and below them
function mainFigures() {
  const { key, title, less } = (run.progress && run.progress.main) || { key: "accuracy", title: "accuracy", less: false };
  const usual = key === "accuracy", name = title[0].toUpperCase() + title.slice(1);
  $("h-accuracy").textContent = name;
  $("k-accuracy").textContent = usual ? MEANING : `${name} on test samples, after each tested round; ${less ? "lower" : "higher"} is better.`;
  return { what: `${name} by round`, keys: [[`test/${key}`, "on the server's test set"], [`client/test_${key}`, "clients on their own data, mean"], [`client/test_${key}_${usual ? "min" : "worst"}`, "the worst client on its own data"]] };
}

function drawFigures() {
  const main = mainFigures();
  const charts = [["accuracy", main.keys, main.what], ["loss", LOSS, "Loss by round"]];
  for (const [id, keys] of charts) $(`s-${id}`).hidden = !keys.some(([key]) => run.series.has(key)); // before the widths are looked at
  for (const [id, keys, what] of charts) {
    const lines = keys.filter(([key]) => run.series.has(key)).map(([key, name]) => ({ name, points: points(key) }));
    if (lines.length) drawLines($(`c-${id}`), lines, what);
  }
  drawTold();
  const select = $("figure"), keys = [...run.series.keys()].sort();
  $("s-any").hidden = !keys.length;
  if (select.length !== keys.length) {
    const chosen = select.value || ["value/sum", "time/round_s"].find((key) => run.series.has(key)) || keys[0];
    select.replaceChildren(...keys.map((key) => tag("option", { value: key }, key)));
    select.value = chosen;
  }
  if (keys.length) drawLines($("c-any"), [{ name: select.value, points: points(select.value) }], `${select.value} by round`);
}

const net = (account) => { const figures = run.accounts.get(account); return figures ? (figures[2] - figures[1]) / UNITS : 0; };

function drawMarket() {
  if (!run.flows.length) return;
  const flows = run.flows.map(([from, to, units]) => [from, to, units / UNITS]);
  const seen = drawGraph($("c-market"), flows, net, accountName);
  const left = run.books.pairs - seen.drawn;
  $("k-market").dataset.left = left;
  if (!$("k-market").dataset.said) $("k-market").dataset.said = $("k-market").textContent;
  $("k-market").textContent = $("k-market").dataset.said + (left > 0 ? ` ${left} smaller flows are not drawn.` : "");
  const kinds = Object.entries(run.books.kinds);
  fill("t-kinds", ["What for", "#Tokens"], kinds.map(([kind, units]) => [(run.about && run.about.kinds[kind]) || kind, money(units / UNITS)]));
  fill("t-flows", ["From", "To", "#Tokens"], flows.slice(0, FEW).map(([from, to, tokens]) => [accountName(from), accountName(to), money(tokens)]));
}

const money = (tokens) => tokens.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

function drawBalances() {
  const rows = [...run.accounts].filter(([account]) => account !== "mint" && !account.startsWith("escrow/")).sort(([a], [b]) => byAccount(a, b));
  $("s-balances").hidden = !rows.length;
  $("s-market").hidden = !run.flows.length;
  if (!rows.length) return;
  const held = [...run.accounts].filter(([account]) => account.startsWith("escrow/")).reduce((sum, [, f]) => sum + f[0], 0);
  const minted = run.accounts.has("mint") ? -run.accounts.get("mint")[0] : 0;
  $("k-balances").textContent = `In tokens, after ${run.books.count} transactions up to round ${run.books.round}. Granted in all: ${money(minted / UNITS)}` + (held ? `; held for bids: ${money(held / UNITS)}.` : ".") + cutText("balances", rows, "that gained or lost most by trade");
  const figures = rows.map(([, f]) => f[0]), low = Math.min(0, ...figures), high = Math.max(0, ...figures);
  const some = cut("balances", rows, (row) => Math.abs(row[1][2] - row[1][1]));
  fill("t-balances", ["Account", "#Balance", "", "#Paid", "#Received"], some.map(([account, [balance, paid, received]]) =>
    [accountName(account), money(balance / UNITS), bar(balance, low, high), money(paid / UNITS), money(received / UNITS)]));
}

// Of many rows those with the most of something are shown, in their order, until all are asked for.
function cut(what, rows, size) {
  const button = $(`more-${what}`), many = rows.length > FEW;
  button.hidden = !many;
  button.textContent = open[what] ? "Show fewer" : `Show all ${rows.length}`;
  if (!many || open[what]) return rows.slice(0, ALL);
  const kept = new Set(rows.slice().sort((a, b) => size(b) - size(a)).slice(0, FEW));
  return rows.filter((row) => kept.has(row));
}

const SURE = 1.96; // standard errors to each side of a 95 % interval
const interval = (value, error) => (value === null || !error ? "–" : `${short(value - SURE * error)} to ${short(value + SURE * error)}`);
const cutText = (what, rows, which) => (rows.length > FEW && !open[what] ? ` Shown are the ${FEW} ${which}.` : "");

function drawClients() {
  const rows = [...run.clients.values()], utility = run.utility.size > 0, worth = (row) => utility ? run.utility.get(row[0]) ?? null : row[1];
  $("s-clients").hidden = !rows.length;
  if (!rows.length) return;
  const valued = rows.some((row) => worth(row) !== null);
  rows.sort((a, b) => (worth(b) ?? -Infinity) - (worth(a) ?? -Infinity) || a[0] - b[0]);
  const said = (run.about && run.about.worth) || { label: "Utility", sentence: "" };
  const what = utility ? said.sentence || `${said.label} of each client so far.`
    : valued ? "What each client's updates were worth so far, summed over rounds."
    : "This mechanism does not value updates; here is how often each client trained.";
  const errors = valued && !utility && rows.some((row) => row[2] !== null), scores = rows.some((row) => row[3] !== null);
  const more = (errors ? " The 95 % interval is that of the sum, and may be wider than the report's." : "") + (scores ? " The score is the running value that the mechanism itself goes by." : "");
  $("k-clients").textContent = `${what}${more} A client's name opens its statement.` + cutText("clients", rows, valued ? "with the largest figures, up or down" : "that trained most");
  const found = rows.map(worth).filter((w) => w !== null), low = Math.min(0, ...found), high = Math.max(0, ...found), id = $("live").dataset.run;
  const some = cut("clients", rows, (row) => Math.abs(worth(row) ?? row[4])), figure = (value) => (value === null ? "–" : short(value));
  const head = ["Client", ...(valued ? [`#${utility ? said.label : "Contribution"}`, ""] : []), ...(errors ? ["#95 % interval"] : []), ...(scores ? ["#Score"] : [])];
  fill("t-clients", [...head, "#Rounds trained", "#Refused", "#Last round"], some.map((row) => {
    const [client, , error, score, trained, refused, last] = row, w = worth(row);
    const figures = valued ? [figure(w), w === null ? "" : bar(w, low, high)] : [];
    return [tag("a", { href: `/statement/${id}/${client}` }, nameOf(client)), ...figures, ...(errors ? [interval(w, error)] : []), ...(scores ? [figure(score)] : []), trained, refused, last];
  }));
}

function drawLatest() {
  const { round, seats } = run.latest;
  $("s-latest").hidden = !seats.length;
  if (seats.length) {
    $("h-latest").textContent = `The last round, no. ${round} counted from 0`;
    const valued = seats.some((seat) => seat[1] !== null), figure = (value) => (value === null ? "–" : short(value));
    const head = valued ? ["Client", "#Worth", "#95 % interval", "Result"] : ["Client", "Result"];
    fill("t-latest", head, seats.slice(0, 200).map(([client, value, error, reason]) =>
      [nameOf(client), ...(valued ? [figure(value), interval(value, error)] : []), reason === null ? "taken" : `refused: ${reason}`]));
  }
  $("refused").hidden = !run.refusals.length;
  $("l-refused").replaceChildren(...run.refusals.slice().reverse().map(([r, client, reason]) => tag("li", {}, `round ${r}, ${nameOf(client)}: ${reason}`)));
}

// Fills a table; a heading that begins with # is of numbers, the first column names the row.
function fill(id, headings, rows) {
  const number = headings.map((heading) => heading.startsWith("#"));
  const head = tag("tr", {}, ...headings.map((heading, i) => heading === "" ? tag("td", {}) : tag("th", { scope: "col", ...(number[i] ? { class: "num" } : {}) }, heading.replace("#", ""))));
  const body = rows.map((row) => tag("tr", {}, ...row.map((cell, i) => tag(i ? "td" : "th", i ? { "data-head": headings[i].replace("#", ""), ...(number[i] ? { class: "num" } : {}) } : { scope: "row" }, typeof cell === "number" ? String(cell) : cell))));
  $(id).classList.toggle("many", headings.length > 3);
  $(id).replaceChildren(tag("thead", {}, head), tag("tbody", {}, ...body));
}

// ---- the stream

function follow() {
  const stream = new EventSource(`/run/${$("live").dataset.run}/events`);
  let lost = false;
  stream.onmessage = (event) => {
    if (lost) { lost = false; $("link").textContent = "Connected again."; }
    take(JSON.parse(event.data));
  };
  stream.onerror = () => {
    lost = true;
    $("link").textContent = stream.readyState === EventSource.CLOSED ? "The server no longer lets this page follow the run; reload to log in." : "The connection is lost; trying again.";
  };
}

for (const what of ["clients", "balances"]) $(`more-${what}`).addEventListener("click", () => { open[what] = !open[what]; what === "clients" ? drawClients() : drawBalances(); });
$("figure").addEventListener("change", drawFigures);
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; stale.add("lines"); if (run.books) stale.add("books"); later(); } });
follow();
