"use strict";
// The page of lmk serve. Texts of documents and queries enter the page as text nodes only.

const byId = (id) => document.getElementById(id);
let fused = "fused"; // the name of the fusion, which no index has
const HITS = 10;
// Around a word: no character of a word, and no joint as in it's, example.org or 3.14 (as in analyzer.py).
const BEFORE = String.raw`(?<![\p{L}\p{M}\p{N}_])(?<!\p{L}\p{M}*[.'\u2019:·](?=\p{L}))(?<!\p{N}[.,;'](?=\p{N}))`;
const AFTER = String.raw`(?![\p{L}\p{M}\p{N}_])(?!(?<=\p{L}\p{M}*)[.'\u2019:·]\p{L})(?!(?<=\p{N})[.,;']\p{N})`;
// Scripts without spaces between words, and Hangul, as in analyzer.py
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u30fc\p{Script=Hangul}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
const SHOWN = 600; // characters of a passage in a hit
let indexes = [];
let separate = false; // whether equal ids of indexes may be different documents
let serial = 0; // the number of the latest action; answers to earlier ones are ignored

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// A header has bytes only: the token in UTF-8.
function bearer(token) {
  return `Bearer ${String.fromCharCode(...new TextEncoder().encode(token))}`;
}

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = bearer(token);
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body),
  }).catch(() => { throw new Error("The server does not answer. Is it still running?"); });
  if (answer.status === 401) {
    byId("access").hidden = false;
    byId("token").focus();
  }
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error.message);
  return value;
}

function say(text) {
  byId("status").textContent = text;
}

// Offsets of the server count code points, and JavaScript counts UTF-16 units.
function cutter(text) {
  if (!/[\ud800-\udfff]/.test(text)) return (begin, end) => text.slice(begin, end);
  const points = Array.from(text);
  return (begin, end) => points.slice(begin, end).join("");
}

// The words that the server found to matter, as a pattern of whole words; null without words.
function pattern(words) {
  if (!words || !words.length) return null;
  const longest = words.slice(0, 200).sort((one, other) => other.length - one.length);
  // With the flag u, a backslash is an error before any character that is not part of the syntax, such as '.
  const escaped = longest.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")
    .replace(/i\u0307?/g, "(?:i\u0307?|\u0130)")); // no case folding has \u0130
  const spaced = escaped.filter((word) => !UNSPACED.test(word)), others = escaped.filter((word) => UNSPACED.test(word));
  return new RegExp([...(spaced.length ? [`${BEFORE}(?:${spaced.join("|")})${AFTER}`] : []), ...others].join("|"), "giu");
}

// Add a text to an element, with the words of the query marked.
function addMarked(element, text, words) {
  let done = 0;
  let count = 0;
  if (words) {
    for (const found of text.matchAll(words)) {
      if (++count > 2000) break;
      element.append(text.slice(done, found.index), make("mark", {}, found[0]));
      done = found.index + found[0].length;
    }
  }
  element.append(text.slice(done));
}

function place(element, begin, end, whole) {
  element.style.left = `${(100 * begin) / whole}%`;
  element.style.width = `${(100 * (end - begin)) / whole}%`;
  return element;
}

// The state of the page is in the part of its address after '#'.
function state() {
  const values = new URLSearchParams(location.hash.slice(1));
  return {
    query: values.get("q") || "",
    views: values.getAll("view"),
    doc: values.get("doc"),
    index: values.get("index"),
  };
}

function address(values) {
  const parts = new URLSearchParams();
  if (values.doc) {
    parts.set("doc", values.doc);
    parts.set("index", values.index);
  }
  parts.set("q", values.query);
  for (const view of values.views) parts.append("view", view);
  return `#${parts}`;
}

function chosenViews() {
  return [...document.querySelectorAll("#views input:checked")].map((box) => box.value);
}

// The indexes that are no parts of others.
function mainNames() {
  return indexes.filter((each) => !each.part_of).map((each) => each.name);
}

// All lists of hits. The first one is the best: the fusion of all indexes, or the only one.
function viewNames() {
  const names = indexes.map((each) => each.name);
  return mainNames().length > 1 && !separate ? [fused, ...names] : names;
}

// Show the switch for a comparison, and while comparing, a box for each list. Returns the lists to show.
function showViews(views) {
  const names = viewNames();
  const known = names.filter((name) => views.includes(name)); // an address may be older than the indexes
  const comparing = known.length > 0;
  const chosen = comparing ? known : separate ? mainNames().slice(0, 4) : names.slice(0, 1);
  const go = (next) => {
    const now = { ...state(), views: next };
    if (now.query) location.hash = address(now);
    else showViews(next);
  };
  const button = byId("compare");
  button.hidden = names.length < 2;
  button.setAttribute("aria-pressed", String(comparing));
  button.onclick = () => go(comparing ? [] : names.slice(0, 4));
  const boxes = !comparing || button.hidden ? [] : names.map((name) => {
    const box = make("input", { type: "checkbox", value: name });
    box.checked = chosen.includes(name);
    box.addEventListener("change", () => go(chosenViews()));
    return make("label", {}, box, name);
  });
  byId("views").hidden = !boxes.length;
  byId("views").replaceChildren(byId("views").firstElementChild, ...boxes);
  return names.filter((name) => chosen.includes(name));
}

// How an index finds documents, for people.
function manner(view) {
  const known = indexes.find((each) => each.name === view);
  if (!known) return "all indexes together";
  if (known.kind === "documents") return "by meaning and by words";
  if (known.dimensions === null) return "by words";
  return known.unit === "doc" ? "by meaning of whole documents" : "by meaning of passages";
}

async function showResults(now, mine) {
  const views = showViews(now.views);
  const started = performance.now();
  say("Searching …");
  const requests = views.map((view) => ask("v1/search", {
    query: now.query, k: HITS, index: view === fused ? mainNames() : view,
  }).then((answer) => answer.results[0]));
  const outcomes = await Promise.allSettled(requests);
  if (mine !== serial) return;
  const ranks = new Map();
  outcomes.forEach((outcome, column) => {
    for (const hit of outcome.value ? outcome.value.hits : []) {
      if (!ranks.has(hit.id)) ranks.set(hit.id, []);
      ranks.get(hit.id).push([views[column], hit.rank]);
    }
  });
  const columns = outcomes.map((outcome, column) => {
    const view = views[column];
    const found = outcome.value;
    const title = make("h2", { id: `view-${column}` }, view, " ", make("span", {}, manner(view)));
    const section = make("section", { "aria-labelledby": `view-${column}` }, title);
    if (outcome.status === "rejected") section.append(make("p", {}, outcome.reason.message));
    else if (!found.hits.length) section.append(make("p", {}, "No document found."));
    else {
      if (found.answered === false) {
        section.append(make("p", { class: "doubt" }, "No good match: these documents may not answer the question."));
      }
      const words = pattern(found.words);
      const items = found.hits.map((hit) => showHit(hit, view, now, words, ranks.get(hit.id), found));
      section.append(make("ol", { class: "hits" }, ...items));
      if (found.meaning) section.append(make("p", { class: "quiet" }, `Score: ${found.meaning}.`));
    }
    return section;
  });
  byId("main").replaceChildren(make("div", { class: "columns" }, ...columns));
  const failed = outcomes.find((outcome) => outcome.status === "rejected");
  const seconds = ((performance.now() - started) / 1000).toFixed(2);
  say(failed ? failed.reason.message : `${ranks.size} documents in ${seconds} s`);
}

function showHit(hit, view, now, words, ranks, found) {
  const index = view === fused ? passageIndex().name : view;
  const link = make("a", { href: address({ ...now, doc: hit.id, index }), dir: "auto" }, hit.title || hit.id);
  const item = make("li", {}, make("div", { class: "line" },
    make("span", { class: "rank" }, String(hit.rank)), link,
    make("span", { class: "score", title: found.meaning || "score" }, hit.score.toFixed(found.answered === null ? 4 : 2))));
  const others = ranks.filter(([name]) => name !== view).map(([name, rank]) => `#${rank} in ${name}`);
  const passage = hit.passage || { chunks: 0 };
  const { chunk, chunks, begin, end } = passage;
  const facts = [hit.title ? hit.id : "", placeOf(passage), ...others].filter(Boolean).join(" · ");
  if (facts) item.append(make("p", { class: "facts", dir: "auto" }, facts));
  const text = make("p", { class: "text", dir: "auto" });
  addMarked(text, passage.text ? excerpt(hit, words) : hit.text || "", words);
  item.append(text);
  if (chunks > 1 && hit.characters && end > begin) {
    item.append(make("div", {
      class: "bar", role: "img", "aria-label": `Passage ${chunk + 1} of ${chunks} in the document`,
    }, place(make("span"), begin, end, hit.characters)));
  }
  return item;
}

// Where a passage is in its file, for people.
function placeOf(passage) {
  const { heading, page, lines, chunk, chunks } = passage;
  const which = chunks > 1 ? `passage ${chunk + 1} of ${chunks}` : "";
  const range = lines && (lines[0] === lines[1] ? `line ${lines[0]}` : `lines ${lines[0]}–${lines[1]}`);
  return [heading, page ? `page ${page}` : range || which].filter(Boolean).join(" · ");
}

// The piece of a passage with its first words of the question, as plain text with its lines; dots where it
// continues. The title of the document and the marks of Markdown are left out.
function excerpt(hit, words) {
  const { begin, end, text: whole } = hit.passage;
  const titled = begin === 0 && hit.title && whole.startsWith(hit.title) ? whole.slice(hit.title.length) : whole;
  const text = plain(titled).trim();
  const first = words ? text.search(words) : -1;
  const from = startOf(text, first);
  const shown = cutter(text.slice(from))(0, SHOWN);
  const body = from || begin > 0 ? `… ${shown.replace(/^[\s.,;:!?)\]]+/, "")}` : shown;
  return end < hit.characters || from + shown.length < text.length ? `${body} …` : body;
}

// Where the piece of a text starts that shows the place `first`: at its line or a little before it.
function startOf(text, first) {
  if (first <= SHOWN / 2 && text.slice(0, Math.max(0, first)).split("\n").length <= 4) return 0;
  const line = text.lastIndexOf("\n", first) + 1;
  if (first - line <= SHOWN / 4) return line;
  const space = text.lastIndexOf(" ", first - 80) + 1;
  if (first - space <= SHOWN / 4) return space;
  const cut = first - 80;
  return /[\udc00-\udfff]/.test(text[cut]) ? cut + 1 : cut; // not in the middle of a surrogate pair
}

// A text without the marks of Markdown, and with single empty lines.
function plain(text) {
  return text.replace(/^ {0,3}#{1,6}[ \t]+/gm, "").replace(/^[ \t]*[-*+][ \t]+/gm, "• ")
    .replace(/(?<![\p{L}\p{N}_*`])(\*\*|`+)(?=\S)(.+?)(?<=\S)\1(?![\p{L}\p{N}_*`])/gu, "$2")
    .replace(/(?<![\p{L}\p{N}_\])])\[([^\]\n]+)\]\([^)\n]*\)/gu, "$1")
    .replace(/[ \t]+$/gm, "").replace(/\n{2,}|\f/g, "\n");
}

// The index for a document of the fused column: the first one with vectors, which knows its best passage.
function passageIndex() {
  return indexes.find((each) => each.kind === "documents")
    || indexes.find((each) => each.dimensions !== null) || indexes[0];
}

async function showDocument(now, mine) {
  showViews(now.views);
  say("Loading …");
  const query = Array.from(now.query).slice(0, 1000).join("");
  const parameters = new URLSearchParams({ index: now.index || passageIndex().name, query });
  const path = `v1/documents/${encodeURIComponent(now.doc)}`;
  const found = await ask(`${path}?${parameters}`);
  if (mine !== serial) return;
  const top = make("div", { class: "top" },
    make("p", { class: "facts" }, make("a", { href: address({ ...now, doc: null }) }, "Back to the results")),
    make("h1", { dir: "auto" }, found.title || found.id),
    make("p", { class: "facts", dir: "auto" },
      [found.id, found.passage ? placeOf(found.passage) : "", found.index].filter(Boolean).join(" · ")));
  if (found.file) top.lastElementChild.append(" · ", fileLink(found));
  byId("main").replaceChildren(make("article", {}, top, showText(found)));
  const passage = found.passage;
  say(passage ? `Best passage: ${placeOf(passage) || "the whole document"}` : "");
  if (found.chunks) top.append(...showBars(found, found.chunks, false));
  scrollToMark();
  const known = indexes.find((each) => each.name === found.index);
  if (query && known && known.dimensions !== null && known.unit === "doc") {
    await addContributions(top, `${path}?${parameters}&contributions=true`, mine);
  }
}

// The vector of this document is a mean; ask what each of its chunks contributes to the score.
async function addContributions(top, path, mine) {
  say("Computing what each chunk contributes to the score …");
  const found = await ask(path);
  if (mine !== serial) return;
  const parts = found.contributions || [];
  say("");
  if (parts.length < 2) return;
  top.append(...showBars(found, parts, true));
  const best = parts.reduce((one, other) => (other.score > one.score ? other : one));
  say(`Chunk ${parts.indexOf(best) + 1} of ${parts.length} contributes most`);
  showChunk(found, best);
}

// A link to the file. A server with a token gives the file only to this page.
function fileLink(found) {
  const path = `v1/files/${encodeURIComponent(found.id)}?${new URLSearchParams({ index: found.index })}`;
  const page = found.passage?.page ? `#page=${found.passage.page}` : "";
  const link = make("a", { href: path + page }, "open the file");
  const token = sessionStorage.getItem("token");
  if (token) link.addEventListener("click", async (event) => {
    event.preventDefault();
    const answer = await fetch(path, { headers: { authorization: bearer(token) } });
    if (answer.ok) location.assign(URL.createObjectURL(await answer.blob()) + page);
    else say("The file cannot be opened.");
  });
  return link;
}

function showChunk(found, chunk) {
  byId("main").querySelector(".whole").replaceWith(showText({ ...found, passage: chunk }));
  scrollToMark();
}

// Show the first mark below the part of the page that stays at the top.
function scrollToMark() {
  const whole = byId("main").querySelector(".whole");
  const mark = whole.querySelector(".passage") || whole.querySelector("mark");
  if (!mark) return;
  mark.style.scrollMarginTop = `${byId("main").querySelector(".top").offsetHeight + 24}px`;
  mark.scrollIntoView({ block: "start" });
}

// One bar per chunk at its place in the document, and a caption. The height of a bar is the score of the chunk
// between the least and the greatest one, or its contribution to the score of the document.
function showBars(found, parts, contributions) {
  const scores = parts.map((part) => part.score);
  const high = Math.max(...scores);
  const low = Math.min(...scores);
  const most = Math.max(...scores.map(Math.abs)) || 1;
  const length = Array.from(found.text).length + found.text_begin || 1;
  const bars = make("div", { class: "bars", role: "group", "aria-label": "Chunks of the document" });
  const buttons = parts.map((part, number) => {
    const share = contributions ? Math.abs(part.score) / most : (part.score - low) / (high - low || 1);
    const what = contributions ? "contributes" : "score";
    const name = `Chunk ${number + 1} of ${parts.length}, ${what} ${part.score.toFixed(4)}`;
    const best = part.score === high;
    const button = make("button", { type: "button", title: name, "aria-label": name, tabindex: best ? 0 : -1 });
    const fill = make("span");
    fill.style.height = `${8 + 92 * share}%`;
    if (best) button.classList.add("best");
    if (contributions && part.score < 0) button.classList.add("against");
    button.append(fill);
    button.addEventListener("click", () => choose(button, part));
    return place(button, part.begin, part.end, length);
  });
  const choose = (button, part) => {
    for (const each of buttons) each.tabIndex = each === button ? 0 : -1;
    for (const each of buttons) each.classList.toggle("chosen", each === button);
    showChunk(found, part);
  };
  bars.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = buttons[buttons.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  bars.append(...buttons);
  const sum = scores.reduce((one, other) => one + other, 0);
  const caption = contributions
    ? `The document has one vector. A bar is what one of its ${parts.length} chunks contributes to the score ${sum.toFixed(4)}.`
    : `A bar is one of ${parts.length} chunks: the higher, the better it fits (${low.toFixed(4)} to ${high.toFixed(4)}).`;
  return [bars, make("p", { class: "facts" }, `${caption} Click a bar to read its chunk.`)];
}

// The text with its line breaks. The passage has a line at its edge, and the words of the question in it are marked.
function showText(found) {
  const text = make("div", { class: "whole", dir: "auto" });
  const passage = found.passage;
  const words = pattern(found.words);
  if (!passage || passage.end <= Math.max(passage.begin, found.text_begin)) {
    addMarked(text, found.text, words);
    return text;
  }
  const cut = cutter(found.text.replaceAll("\f", "\n")); // a form feed is the end of a page
  const begin = Math.max(0, passage.begin - found.text_begin);
  const end = passage.end - found.text_begin;
  const mark = make("mark", { class: "passage" });
  addMarked(mark, cut(begin, end), words);
  text.append(cut(0, begin), mark, cut(end, undefined));
  return text;
}

function showStart() {
  const rows = indexes.filter((each) => !each.part_of).map((each) => {
    const size = each.documents === null ? "" : `, ${each.documents.toLocaleString("en")} documents`;
    return make("li", {}, make("strong", {}, each.name), `: ${manner(each.name)}${size}`);
  });
  const examples = [...new Set(indexes.flatMap((each) => each.examples || []))].slice(0, 5).map((query) =>
    make("li", {}, make("a", { href: address({ query, views: [] }), dir: "auto" }, query)));
  const tries = examples.length ? [make("p", {}, "For example:"), make("ul", { class: "examples" }, ...examples)] : [];
  byId("main").replaceChildren(make("div", { class: "start" },
    make("h1", {}, "Ask a question, or type some words"), ...tries,
    make("p", {}, "This server searches:"), make("ul", {}, ...rows)));
  say("");
}

async function show() {
  const mine = ++serial;
  const now = state();
  byId("query").value = now.query;
  document.title = now.query ? `${Array.from(now.query).slice(0, 60).join("")} – lmk search` : "lmk search";
  try {
    if (!indexes.length) {
      const listed = await ask("v1/indexes");
      indexes = listed.indexes;
      separate = Boolean(listed.note);
    }
    while (indexes.some((each) => each.name === fused)) fused += " (all)";
    if (mine !== serial) return;
    if (now.doc) await showDocument(now, mine);
    else if (now.query) await showResults(now, mine);
    else {
      showViews(now.views);
      showStart();
    }
  } catch (error) {
    if (mine === serial) say(error.message);
  }
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("query").value.trim();
  const query = given.toWellFormed ? given.toWellFormed() : given;
  const next = address({ query, views: chosenViews() });
  if (location.hash === next) show();
  else location.hash = next;
});

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  byId("access").hidden = true;
  show();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (state().doc) location.hash = address({ ...state(), doc: null });
    return;
  }
  if (typing && event.key !== "ArrowDown") return;
  if (event.key === "/") {
    event.preventDefault();
    byId("query").select();
    return;
  }
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  const links = [...document.querySelectorAll(".hits .line a")];
  if (!step || !links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), links.length - 1);
  event.preventDefault();
  links[next].focus();
});

window.addEventListener("hashchange", show);
// People also write the question before the '#', as for GET /v1/search.
const written = new URLSearchParams(location.search);
if (written.get("q") && !location.hash) location.replace(`${location.pathname}#${written}`);
else show();
if (!state().query && !state().doc) byId("query").focus();
