
"use strict";
// The page of lmk browse. Every text of a run, a query or a document enters the page as a text node.
const data = JSON.parse(document.getElementById("overview").textContent);
const details = document.getElementById("details").textContent.split("\n");
const TIE = 1e-9; // as in lmk eval --baseline
const SNIPPET = 320; // characters of a hit before a click on "More"
const STOP = new Set("the and for that with from are was were has have had not this which its can does did how what who why".split(" "));
const PROPERTIES = {
  "length": "words in the relevant documents",
  "query-length": "words in the query",
  "position": "position of the evidence",
  "language": "language",
  "place": "place of the passage (% of the document)",
};
// The fields of the arrays in the data; evaluation/browsing.py declares them.
const queries = data.queries.map(([id, text, chars, values, first, hits, relevant, groups], number) =>
  ({ number, id, text, chars, values, first, hits, relevant, groups }));
function asDocument([id, title, grade, hits, chars, excerpts]) {
  const [ranks, scores, passages] = [0, 1, 2].map(() => data.runs.map(() => null));
  for (const [run, rank, score, passage] of hits) {
    [ranks[run], scores[run]] = [rank, score];
    if (passage) passages[run] = { chunk: passage[0], chunks: passage[1], begin: passage[2], end: passage[3] };
  }
  return { id, title, grade, chars, ranks, scores, passages, excerpts: excerpts.map(([begin, end, text]) => ({ begin, end, text })) };
}
const byId = new Map(queries.map(each => [each.id, each]));
const several = data.runs.length > 1;
const $ = id => document.getElementById(id);

// --- small tools ---------------------------------------------------------------------------------

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") node.className = value;
    else if (name.includes("-") || name === "role" || name === "dir" || name === "scope") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter(each => each !== null && each !== undefined && each !== ""));
  return node;
}
function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const bdi = text => el("bdi", { dir: "auto" }, text);
const count = new Intl.NumberFormat("en").format;
const score = value => value.toFixed(4);
const signed = value => (Math.abs(value) < TIE ? "±" : value > 0 ? "+" : "−") + Math.abs(value).toFixed(4);
const direction = value => value > TIE ? "up" : value < -TIE ? "down" : "";
const mean = values => values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : NaN;
const nameOf = run => data.runs[run].name;

// --- the state, which is the fragment of the address --------------------------------------------

const DEFAULTS = { q: "", m: 0, a: 0, b: several ? 1 : 0, sort: several ? "loss" : "low", show: "all", by: "", group: "", text: "", all: "" };
let state = { ...DEFAULTS };

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const next = { ...DEFAULTS };
  for (const name of Object.keys(next)) if (given.has(name)) next[name] = given.get(name);
  for (const [name, list] of [["m", data.measures], ["a", data.runs], ["b", data.runs]]) {
    const number = Number(next[name]);
    next[name] = Number.isInteger(number) && list[number] ? number : DEFAULTS[name];
  }
  if (!Object.hasOwn(SORTS, next.sort)) next.sort = DEFAULTS.sort;
  if (!Object.hasOwn(FILTERS, next.show)) next.show = DEFAULTS.show;
  const property = data.properties.find(each => each.name === next.by);
  if (!property) next.by = next.group = "";
  else if (next.group !== "" && !property.groups[next.group]) next.group = "";
  return next;
}
function address(changes) {
  const wanted = { ...state, ...changes };
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(wanted))
    if (String(value) !== String(DEFAULTS[name])) given.set(name, value);
  return "#" + given.toString();
}

const value = (query, run) => query.values[run][state.m];
const difference = query => value(query, state.b) - value(query, state.a);
const unanswered = (query, run) => !query.first[run] || query.first[run] > data.depth;

const SORTS = {
  ...(several ? {
    loss: ["largest losses of B first", (x, y) => difference(x) - difference(y)],
    gain: ["largest gains of B first", (x, y) => difference(y) - difference(x)],
    change: ["largest differences first", (x, y) => Math.abs(difference(y)) - Math.abs(difference(x))],
  } : {}),
  low: [several ? "lowest scores of B first" : "lowest scores first", (x, y) => value(x, state.b) - value(y, state.b)],
  high: [several ? "highest scores of B first" : "highest scores first", (x, y) => value(y, state.b) - value(x, state.b)],
  ...(several ? { lowa: ["lowest scores of A first", (x, y) => value(x, state.a) - value(y, state.a)] } : {}),
  file: ["order of the judgements", () => 0],
};
const FILTERS = {
  all: ["all queries", () => true],
  ...(several ? {
    worse: ["only regressions (B below A)", query => difference(query) < -TIE],
    better: ["only gains (B above A)", query => difference(query) > TIE],
    changed: ["only differences", query => Math.abs(difference(query)) > TIE],
    equal: ["only ties", query => Math.abs(difference(query)) <= TIE],
  } : {}),
  unanswered: [
    `only unanswered${several ? " by B" : ""} (nothing relevant in ${data.depth})`,
    query => unanswered(query, state.b),
  ],
  ...(several ? {
    lost: ["unanswered by B, answered by A", query => unanswered(query, state.b) && !unanswered(query, state.a)],
    nobody: ["unanswered by all runs", query => data.runs.every((_, run) => unanswered(query, run))],
  } : {}),
  nohits: [`without any hit${several ? " in B" : ""}`, query => !query.hits[state.b]],
};

let order = []; // the queries of the list, in its order
function choose() {
  const place = data.properties.findIndex(each => each.name === state.by);
  const group = state.group === "" ? null : Number(state.group);
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const [, keep] = FILTERS[state.show], [, compare] = SORTS[state.sort];
  order = queries.filter(query =>
    keep(query)
    && (place < 0 || group === null || query.groups[place] === group)
    && words.every(word => query.text.toLowerCase().includes(word) || query.id.toLowerCase().includes(word)));
  order.sort((x, y) => compare(x, y) || x.number - y.number);
}

// --- the list ------------------------------------------------------------------------------------

function showRuns() {
  $("runs").replaceChildren(
    el("caption", { class: "small" }, `means over ${count(data.judged)} judged queries`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "run"),
      ...data.measures.map(name => el("th", { scope: "col" }, name)), el("th", { scope: "col" }, "answered"))),
    el("tbody", {}, ...data.runs.map((run, number) => el("tr", {},
      el("th", { scope: "row", title: run.path }, letters(number), bdi(run.name)),
      ...run.values.map((each, m) => el("td", { class: run.best[m] ? "best" : "" }, score(each))),
      el("td", {}, count(run.answered))))));
}
const letters = run => !several ? "" : [run === state.a && "A ", run === state.b && "B "].filter(Boolean).join("");

function fill(id, options, chosen) {
  $(id).replaceChildren(...options.map(([key, name]) =>
    el("option", { value: key, selected: String(key) === String(chosen) }, name)));
}
function showControls() {
  fill("measure", data.measures.map((name, number) => [number, name]), state.m);
  for (const side of ["a", "b"]) fill(side, data.runs.map((run, number) => [number, run.name]), state[side]);
  fill("sort", Object.entries(SORTS).map(([key, [name]]) => [key, name]), state.sort);
  fill("show", Object.entries(FILTERS).map(([key, [name]]) => [key, name]), state.show);
  fill("property", [["", "none"], ...data.properties.map(each => [each.name, PROPERTIES[each.name] || each.name])], state.by);
  const place = data.properties.findIndex(each => each.name === state.by);
  const groups = place < 0 ? [] : data.properties[place].groups;
  const sizes = groups.map((_, group) => queries.filter(query => query.groups[place] === group).length);
  fill("group", [["", "all groups"], ...groups.map((name, number) => [number, `${name}: ${count(sizes[number])}`])], state.group);
  $("group").disabled = place < 0;
  if ($("text").value !== state.text) $("text").value = state.text;
  for (const each of document.querySelectorAll(".pair")) each.hidden = !several;
  for (const each of document.querySelectorAll(".groups")) each.hidden = !data.properties.length;
  const filters = ["show", "by", "group", "text"];
  $("reset").disabled = filters.every(name => String(state[name]) === String(DEFAULTS[name]));
}

function showList() {
  $("queries").replaceChildren(...order.map(query => {
    const change = difference(query);
    const link = el("a", { href: address({ q: query.id }) },
      el("span", { class: "query", dir: "auto" }, query.text.slice(0, 300) || query.id),
      el("span", { class: "line" }, el("span", { class: "id" }, bdi(query.id)),
        several ? `${score(value(query, state.a))} → ${score(value(query, state.b))}` : score(value(query, state.b)),
        several ? el("span", { class: direction(change) }, signed(change)) : null));
    query.link = link;
    return el("li", {}, link);
  }));
  const means = [state.a, state.b].map(run => mean(order.map(query => value(query, run))));
  const parts = [`${count(order.length)} of ${count(queries.length)} queries`];
  if (order.length && several) {
    const better = order.filter(query => difference(query) > TIE).length;
    const worse = order.filter(query => difference(query) < -TIE).length;
    parts.push(`B is better in ${count(better)}, equal in ${count(order.length - better - worse)}, worse in ${count(worse)}`);
    parts.push(`means ${score(means[0])} → ${score(means[1])} (${signed(means[1] - means[0])})`);
  } else if (order.length) parts.push(`mean ${score(means[1])}`);
  const tested = several ? testOf(state.a, state.b, state.m) : "";
  $("count").replaceChildren(parts.join("; "), ...(tested ? [el("br"), tested] : []));
}

// The test of B against A over all judged queries, whatever is filtered.
function testOf(a, b, measure) {
  const sign = a < b ? 1 : -1, [first, second] = a < b ? [a, b] : [b, a];
  const found = data.comparisons.find(each => each[0] === first && each[1] === second && each[2] === measure);
  if (!found) return "";
  const [, , , change, [low, high], p] = found;
  const [least, most] = [sign * low, sign * high].sort((x, y) => x - y);
  return `over all ${count(data.judged)} judged queries: ${signed(sign * change)}, 95 % interval ${signed(least)} to ${signed(most)}, p = ${p < .0001 ? "< 0.0001" : p.toFixed(4)} (paired randomisation test)`
    .replace("= <", "<");
}

function showStrip() {
  const size = Math.max(order.length, 1), strip = $("strip");
  const numbers = order.map(query => several ? difference(query) : value(query, state.b));
  const most = Math.max(...numbers.map(Math.abs), 1e-12);
  const middle = several ? 50 : 100, room = several ? 50 : 100;
  const draw = sign => numbers.map((each, place) => {
    const height = Math.max(Math.abs(each) / most * room, .5);
    if (Math.sign(each) !== sign) return "";
    return `M${place + .06} ${middle}h.88v${sign > 0 ? -height : height}h-.88z`;
  }).join("");
  strip.setAttribute("viewBox", `0 0 ${size} 100`);
  strip.setAttribute("aria-label", several
    ? `Difference of ${data.measures[state.m]} between ${nameOf(state.b)} and ${nameOf(state.a)}, for each query in the list`
    : `${data.measures[state.m]} of each query in the list`);
  strip.replaceChildren(
    svg("rect", { class: "here", id: "here", x: 0, y: 0, width: 0, height: 100 }),
    svg("rect", { class: "middle", x: 0, y: middle - .6, width: size, height: 1.2 }),
    svg("path", { class: "bars-up", d: draw(1) }), svg("path", { class: "bars-down", d: draw(-1) }));
  $("figure").hidden = !order.length;
}
function markChosen() {
  for (const link of $("queries").querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
  const query = current(), place = order.indexOf(query);
  if (place >= 0) {
    query.link.setAttribute("aria-current", "true");
    const list = $("queries"), link = query.link.getBoundingClientRect(), box = list.getBoundingClientRect();
    if (list.scrollHeight > list.clientHeight && (link.top < box.top || link.bottom > box.bottom))
      list.scrollTop += link.top - box.top - box.height / 3;
  }
  const here = $("here");
  if (here) {
    const width = Math.max(1, order.length / 150);
    here.setAttribute("x", place - (width - 1) / 2);
    here.setAttribute("width", place < 0 ? 0 : width);
  }
}

// --- one query -----------------------------------------------------------------------------------

const current = () => state.q ? byId.get(state.q) : order[0];

function showQuery() {
  const query = current(), detail = $("detail");
  document.body.classList.toggle("chosen", Boolean(state.q));
  const back = el("a", { class: "back", href: address({ q: "" }) }, "← All queries");
  if (!query) {
    const why = state.q
      ? ["The page has no query ", bdi(state.q), data.judged > queries.length ? "; it shows a sample of the judged queries." : "."]
      : ["No query matches the filters."];
    detail.replaceChildren(back, el("p", {}, ...why));
    return;
  }
  const documents = JSON.parse(details[query.number]).map(asDocument);
  const place = order.indexOf(query);
  const cut = query.chars > query.text.length ? ` … (${count(query.chars)} characters)` : "";
  detail.replaceChildren(
    el("div", { class: "bar" }, back,
      step("← Previous", order[place - 1]), step("Next →", order[place + 1]),
      el("a", { href: address({ q: query.id }) }, "Link to this query")),
    el("h2", { dir: "auto", class: query.text.length > 300 ? "long" : "" }, (query.text || query.id) + cut),
    el("p", { class: "facts" }, "query ", bdi(query.id), ` · ${count(query.relevant)} relevant in the judgements`, ...facts(query)),
    scores(query),
    ...moved(documents),
    ...rankings(query, documents));
}
function step(name, query) {
  return el("button", { type: "button", disabled: !query, onclick: () => go(query) }, name);
}
function facts(query) {
  return data.properties.flatMap((property, place) => query.groups[place] === null ? []
    : [` · ${PROPERTIES[property.name] || property.name}: ${property.groups[query.groups[place]]}`]);
}
function scores(query) {
  const row = (run, number) => el("tr", {}, el("th", { scope: "row" }, letters(number), bdi(run.name)),
    ...query.values[number].map(each => el("td", {}, score(each))),
    el("td", {}, query.first[number] ? count(query.first[number]) : "–"), el("td", {}, count(query.hits[number])));
  const changes = data.measures.map((_, m) => query.values[state.b][m] - query.values[state.a][m]);
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["run", ...data.measures, "first relevant at rank", "hits"].map(name => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...data.runs.map(row),
      several ? el("tr", {}, el("th", { scope: "row" }, "B − A"),
        ...changes.map(each => el("td", { class: direction(each) }, signed(each))), el("td", {}), el("td", {})) : "")));
}

const isRelevant = document => document.grade !== null && document.grade >= data.rel;
const FAR = 1e9;
function move(from, to) { // of a document, from its rank in A
  if (from === to) return from === null ? null : el("span", { class: "small" }, "=");
  if (from === null) return el("span", { class: "up" }, "▲ new");
  if (to === null) return el("span", { class: "down" }, "▼ lost");
  return to < from ? el("span", { class: "up" }, `▲ ${from - to}`) : el("span", { class: "down" }, `▼ ${to - from}`);
}
function moved(documents) {
  const relevant = documents.filter(isRelevant);
  if (!relevant.length) return [];
  const gain = each => 1 / (each.ranks[state.b] || FAR) - 1 / (each.ranks[state.a] || FAR);
  const best = each => Math.min(...each.ranks.map(rank => rank || FAR));
  relevant.sort((x, y) => several && Math.abs(gain(y)) - Math.abs(gain(x)) || best(x) - best(y));
  const rows = relevant.map(each => el("tr", {},
    el("th", { scope: "row" }, badge(each.grade), " ", bdi(each.title || each.id)),
    ...each.ranks.map(rank => el("td", {}, rank ? count(rank) : "–")),
    several ? el("td", {}, move(each.ranks[state.a], each.ranks[state.b])) : ""));
  return [
    el("h3", {}, several ? "What moved: ranks of the relevant documents" : "Ranks of the relevant documents"),
    el("div", { class: "wide" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "document"),
        ...data.runs.map((run, number) => el("th", { scope: "col" }, letters(number), bdi(run.name))),
        several ? el("th", { scope: "col" }, "A to B") : "")),
      el("tbody", {}, ...rows))),
  ];
}
function badge(grade) {
  if (grade === null) return el("span", { class: "badge" }, "unjudged");
  const good = grade >= data.rel;
  const names = good ? ["relevant", "✓", "relevant, grade"] : ["wrong", "✗", "not relevant, grade"];
  return el("span", { class: `badge ${names[0]}`, role: "img", "aria-label": `${names[2]} ${grade}` }, `${names[1]} ${grade}`);
}

function rankings(query, documents) {
  const terms = termsOf(query.text);
  const shown = !several || state.all ? data.runs.map((_, run) => run) : [...new Set([state.a, state.b])];
  const columns = shown.map(run => {
    const hits = documents.filter(each => each.ranks[run] && each.ranks[run] <= data.depth)
      .sort((x, y) => x.ranks[run] - y.ranks[run]);
    return el("section", { "aria-label": `Ranking of ${nameOf(run)}` },
      el("h4", {}, letters(run), bdi(nameOf(run)), el("span", {}, ` ${score(value(query, run))}`)),
      hits.length ? el("ol", { class: "hits" }, ...hits.map(each => hit(each, run, terms))) : el("p", {}, "No hits."));
  });
  const more = data.runs.length > 2
    ? el("button", { type: "button", "aria-pressed": String(Boolean(state.all)), onclick: () => change({ all: state.all ? "" : "1" }) }, "All runs") : "";
  const missed = documents.filter(each => isRelevant(each) && shown.every(run => !each.ranks[run] || each.ranks[run] > data.depth));
  return [
    el("div", { class: "bar" }, el("h3", {}, several ? "Rankings" : "Ranking"), more),
    el("div", { class: "columns" }, ...columns),
    ...(missed.length ? [el("h3", {}, `Relevant documents that are not among these hits`),
      el("ol", { class: "hits" }, ...missed.map(each => hit(each, null, terms)))] : []),
  ];
}

function termsOf(text) {
  const words = [...new Set(text.toLowerCase().match(/[\p{L}\p{M}\p{N}_]{3,}/gu) || [])].filter(word => !STOP.has(word)).slice(0, 60);
  return words.length ? new RegExp(`(?<![\\p{L}\\p{M}\\p{N}_])(?:${words.join("|")})(?![\\p{L}\\p{M}\\p{N}_])`, "giu") : null;
}
function highlighted(text, terms) {
  if (!terms) return [text];
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(terms)) {
    parts.push(text.slice(end, match.index), el("b", { class: "term" }, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function hit(each, run, terms) {
  const kind = each.grade === null ? "" : isRelevant(each) ? "relevant" : "wrong";
  const passage = run === null ? each.passages.find(Boolean) : each.passages[run];
  const compared = several && run !== null && run !== state.a;
  const node = el("li", { class: `hit ${kind}` },
    el("div", { class: "top" },
      run === null ? null : el("span", { class: "rank" }, String(each.ranks[run])),
      compared ? move(each.ranks[state.a], each.ranks[run]) : null,
      badge(each.grade), el("span", { class: "title" }, bdi(each.title || each.id))),
    el("div", { class: "small" }, each.title ? bdi(each.id) : null, each.title && run !== null ? " · " : null,
      run === null ? null : `score ${each.scores[run]}`,
      compared && each.ranks[state.a] ? ` · rank ${count(each.ranks[state.a])} in A` : null),
    ...place(each, passage), ...text(each, passage, terms));
  node.dataset.doc = each.id;
  return node;
}
function place(each, passage) {
  if (!passage || !each.chars || passage.begin >= passage.end || passage.chunks < 2) return [];
  const percent = 100 / each.chars;
  const width = Math.max((passage.end - passage.begin) * percent, .7);
  const where = `chunk ${passage.chunk + 1} of ${passage.chunks}, characters ${count(passage.begin)}–${count(passage.end)} of ${count(each.chars)}`;
  return [svg("svg", { class: "place", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `Place of the passage: ${where}` },
    svg("rect", { x: 0, y: 3, width: 100, height: 2 }),
    svg("rect", { x: Math.min(passage.begin * percent, 100 - width), y: 0, width, height: 8 })), el("div", { class: "small" }, where)];
}
function text(each, passage, terms) {
  if (!each.excerpts.length) return [];
  const shown = passage || each.passages.find(Boolean);
  const start = shown ? shown.begin : each.excerpts[each.excerpts.length - 1].begin;
  const paragraph = el("p", { dir: "auto" });
  const total = each.excerpts.reduce((sum, part) => sum + part.text.length, 0);
  const write = all => {
    paragraph.className = all ? "open" : "";
    const parts = [];
    // Offsets count code points, and texts of scripts beyond the basic plane count two units for each.
    let end = null, left = all ? Infinity : SNIPPET;
    for (const part of each.excerpts) {
      if (!all && part.end <= start || left <= 0) continue;
      if (part.begin !== end && part.begin > 0) parts.push("… ");
      let piece = part.text;
      if (piece.length > left) piece = piece.slice(0, left).replace(/[\ud800-\udbff]$/, "");
      left -= piece.length;
      const inside = passage && part.begin >= passage.begin && part.end <= passage.end;
      parts.push(...(inside ? [el("mark", {}, ...highlighted(piece, terms))] : highlighted(piece, terms)));
      end = piece.length < part.text.length ? null : part.end;
    }
    if (end !== each.chars) parts.push(" …");
    paragraph.replaceChildren(...parts);
  };
  write(false);
  if (total <= SNIPPET) { write(true); return [paragraph]; }
  const button = el("button", { type: "button", "aria-expanded": "false", "aria-label": `More of ${each.title || each.id}` }, "More");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(open));
    button.setAttribute("aria-label", `${open ? "Less" : "More"} of ${each.title || each.id}`);
    button.textContent = open ? "Less" : "More";
    write(open);
  });
  return [paragraph, button];
}

// --- what the user does --------------------------------------------------------------------------

function render() {
  choose();
  showRuns();
  showControls();
  showList();
  showStrip();
  showQuery();
  markChosen();
}
function change(changes) {
  state = { ...state, ...changes };
  history.replaceState(null, "", address({}));
  render();
}
function go(query) {
  if (query) location.hash = address({ q: query.id });
}
function neighbour(distance) {
  const place = order.indexOf(current());
  go(order[Math.min(Math.max(place + distance, 0), order.length - 1)]);
}

addEventListener("hashchange", () => {
  const before = state;
  state = readState();
  const same = Object.keys(state).every(name => name === "q" || state[name] === before[name]);
  if (!same) return render();
  showQuery();
  markChosen();
  if (matchMedia("(max-width: 800px)").matches) scrollTo(0, 0);
  else if ($("detail").getBoundingClientRect().top < 0) $("detail").scrollIntoView();
});
for (const [id, name] of Object.entries({ measure: "m", a: "a", b: "b" }))
  $(id).addEventListener("change", event => change({ [name]: Number(event.target.value) }));
for (const [id, name] of Object.entries({ sort: "sort", show: "show", group: "group" }))
  $(id).addEventListener("change", event => change({ [name]: event.target.value }));
$("property").addEventListener("change", event => change({ by: event.target.value, group: "" }));
$("text").addEventListener("input", event => change({ text: event.target.value }));
$("controls").addEventListener("submit", event => event.preventDefault());
$("swap").addEventListener("click", () => change({ a: state.b, b: state.a }));
$("reset").addEventListener("click", () => change({ show: "all", by: "", group: "", text: "" }));
$("open-help").addEventListener("click", () => $("help").showModal());
$("close-help").addEventListener("click", () => $("help").close());

const under = event => {
  const box = $("strip").getBoundingClientRect();
  return order[Math.min(Math.floor((event.clientX - box.left) / box.width * order.length), order.length - 1)];
};
$("strip").addEventListener("click", event => go(under(event)));
$("strip").addEventListener("pointermove", event => {
  const query = under(event);
  if (query) $("tip").replaceChildren(`${several ? signed(difference(query)) : score(value(query, state.b))}  `, bdi(query.text.slice(0, 200) || query.id));
});
$("strip").addEventListener("pointerleave", () => $("tip").replaceChildren());
for (const kind of ["pointerover", "focusin"])
  $("detail").addEventListener(kind, event => {
    const chosen = event.target.closest(".hit");
    for (const each of $("detail").querySelectorAll(".hit"))
      each.classList.toggle("same", Boolean(chosen) && each !== chosen && each.dataset.doc === chosen.dataset.doc);
  });
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const typing = event.target.closest("input, select");
  if (event.key === "Escape") {
    if (typing) typing.blur();
    else if (state.q && matchMedia("(max-width: 800px)").matches) location.hash = address({ q: "" });
    return;
  }
  if (typing) return;
  const inList = event.target.closest("#queries");
  const actions = {
    j: () => neighbour(1), k: () => neighbour(-1), "/": () => $("text").focus(), "?": () => $("help").showModal(),
    ...(several ? { x: () => change({ a: state.b, b: state.a }) } : {}),
    ...(inList ? { ArrowDown: () => focusNeighbour(1), ArrowUp: () => focusNeighbour(-1) } : {}),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
});
function focusNeighbour(distance) {
  const place = order.findIndex(query => query.link === document.activeElement);
  const query = order[Math.min(Math.max(place + distance, 0), order.length - 1)];
  query.link.focus();
  go(query);
}

$("collection").textContent = data.collection;
document.title = `${data.collection} – ${data.runs.map(run => run.name).join(" · ")}`.slice(0, 200);
$("notes").replaceChildren(...[
  ...(queries.length < data.judged ? [`This page shows a sample of ${count(queries.length)} of the ${count(data.judged)} judged queries. The means above are over all of them.`] : []),
  ...data.notes,
].map(note => el("li", {}, bdi(note))));
state = readState();
render();
